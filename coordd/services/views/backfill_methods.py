"""The control methods of a backfill: `job.backfill` begins or cancels it, `job.backfills` shows how far it has come."""

from __future__ import annotations

import bisect
import math
import secrets
from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from coordd.core.groups.expand import member
from coordd.core.jobs.job import Job, due_time, fire_time, iso, scheduled_run
from coordd.core.jobs.schedule import fires_between, parse_instant
from coordd.core.ledger.backfill.plan import AT_MOST_MAX, OLDEST, ORDERS, REDO, RUNNING, Plan
from coordd.core.ledger.backfill.rule import is_wanted
from coordd.core.ledger.requests import ListOpen, PlanBackfill
from coordd.core.ledger.rows import OF_BACKFILL, Hold, Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import CONFLICT, FINISHED, INSTANT_MAX, NEVER, REVOKED, SUCCESS
from coordd.errors import RefusedError
from coordd.ports import Ledger
from coordd.services.breakers.methods import BreakerMethods
from coordd.services.control.callers import VIEWER, Caller, Method
from coordd.services.control.lookups import Work
from coordd.services.control.rpc import INVALID_PARAMS, RpcError, take
from coordd.services.views import objects, why

# A backfill of more runs than this is asked for twice; one of more than the second figure is refused.
ASKED_TWICE = 1000
RUNS_MAX = 20_000

# The clock of a caller may be this far (seconds) ahead: "now" is not ahead of now.
CLOCKS_APART_S = 10.0

# Computing the fire times of the longest range may take this long (seconds).
COUNT_S = 60.0

# Rows are read in parts, so that other questions come between.
PART = 1000

# The runtime of a run is estimated from this many of the last successes.
SUCCESSES = 20

# The fire times of this many plans are remembered.
PLANS_MAX = 8

# What became of a fire time, if it is not the state of its row.
NO_ROW = "none"
AS_A_GROUP = "group"  # the job had `expand` then


class BackfillMethods(BreakerMethods):
    """The methods of a backfill."""

    _backfill_fires: dict[tuple[str, str, str], list[float]] = {}  # noqa: RUF012 - replaced, never changed

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "job.backfill": Method(self.job_backfill, changes=True),
            "job.backfills": Method(self.job_backfills),
            **super().table(),
        }

    async def job_backfill(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        job = self._job(params)
        self._may_operate(caller, job.name)
        if take(params, "cancel", bool, False):
            return await self._cancel_backfill(job, caller)
        self._may_backfill(job)
        plan = self._planned(job, params)
        told = await self._foreseen(job, plan)
        if take(params, "dry_run", bool, False):
            if caller.asked is not None:
                caller.asked.recorded = True  # it changed nothing
            return {**told, "dry_run": True}
        if told["runs"] > ASKED_TWICE and not take(params, "yes", bool, False):
            raise RefusedError(
                f"this backfill of {job.name} is {told['runs']} runs, from {told['first']} to {told['last']}",
                kind="not_confirmed",
                hint="look at it with --dry-run, then say --yes",
            )
        answer = await self._change(PlanBackfill(job=job.name, text=plan.text(), by=caller.name, uid=caller.uid))
        if answer.word == CONFLICT:
            raise RefusedError(
                f"a backfill of {job.name} is running already ({answer.by})",
                kind="conflict",
                hint=f"coordctl job backfill {job.name} --status, or --cancel",
            )
        how = f"{told['runs']} runs, {plan.order} first, at most {plan.at_most}, redo {plan.redo}"
        self._audit(caller, "job.backfill", f"{job.name} {plan.id}: {told['from']} to {told['to']}, {how}")
        self._driver.feed(self._driver.node.look_again)
        return {**told, "dry_run": False}

    async def _cancel_backfill(self, job: Job, caller: Caller) -> dict[str, Any]:
        answer = await self._change(PlanBackfill(job=job.name, text="", by=caller.name))
        if answer.word == FINISHED:
            raise RefusedError(
                f"no backfill of {job.name} is running",
                kind="finished",
                hint=f"coordctl job backfill {job.name} --status shows the last one",
            )
        self._audit(caller, "job.backfill", f"{job.name} {answer.by}: cancelled")
        self._driver.feed(self._driver.node.look_again)
        return {"job": job.name, "plan": answer.by, "state": "cancelled"}

    async def job_backfills(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        only = self._job(params).name if "job" in params or "name" in params else ""
        names = (only,) if only else ()
        holds = await self._ledger.query(lambda ledger: ledger.ask(ListOpen(jobs=names, limit=1)).holds)
        found = [(key[len(OF_BACKFILL) :], hold) for key, hold in sorted(holds.items()) if key.startswith(OF_BACKFILL)]
        looks = caller.role <= VIEWER
        return [await self._progress(name, hold, looks=looks) for name, hold in found if only in ("", name)]

    # ---- what is asked for

    def _may_backfill(self, job: Job) -> None:
        """Raises RefusedError for a job whose fire times cannot be run now."""
        self._may_start(job)
        if job.expand is not None:
            raise RefusedError(
                f"a backfill of {job.name}, which has expand, is not available in this version",
                kind="not_available",
                hint=f"coordctl run trigger {job.name} starts one group",
            )
        node = self._driver.node
        if job.schedule is None:
            raise RefusedError(
                f"{job.name} has no schedule, so it has no fire times",
                kind="no_schedule",
                hint=f"coordctl run trigger {job.name} starts one run, and --arg gives it a date",
            )
        self._knows_holds(node.rulebook.held_back_by(), f"trigger the runs: coordctl run trigger {job.name}")
        if node.identity_from == NEVER:
            raise RefusedError("the old ledger rules are still in force", kind="try_later", hint="coordctl status")
        stale = node.rulebook.definitions.stale.get(job.name)
        if stale:
            raise RefusedError(f"the definition of {job.name} here does not count: {stale}", kind="stale")

    def _planned(self, job: Job, params: dict[str, Any]) -> Plan:
        """The plan that a caller asks for. Raises RpcError or RefusedError with what was expected and found."""
        begin, end = _instant(params, "from"), _instant(params, "to")
        present = self._ledger_wall()
        if begin >= end:
            raise _wrong(
                f"from {iso(begin)}, to {iso(end)}: expected an earlier from", "--from is included, --to is not"
            )
        if end > present + CLOCKS_APART_S:
            raise _wrong(
                f"to {iso(end)}: expected an instant that is over, now is {iso(math.floor(present))}",
                "fire times ahead are opened by the schedule: coordctl job next shows them",
            )
        order: str = take(params, "order", str, OLDEST)
        redo: str = take(params, "redo", str, REDO[0])
        for word, given, words in (("order", order, ORDERS), ("redo", redo, REDO)):
            if given not in words:
                raise _wrong(f"{word} {given[:40]!r}: expected one of {', '.join(words)}", "")
        at_most, stop = take(params, "at_most", int, 1), take(params, "stop_after_failures", int, 0)
        if not 1 <= at_most <= AT_MOST_MAX:
            raise _wrong(f"at_most {at_most}: expected 1 to {AT_MOST_MAX}", "")
        if not 0 <= stop <= RUNS_MAX:
            raise _wrong(f"stop_after_failures {stop}: expected 0 (never) to {RUNS_MAX}", "")
        return Plan(secrets.token_hex(4), begin, min(end, round(present, 3)), order, at_most, redo, stop)

    async def _foreseen(self, job: Job, plan: Plan) -> dict[str, Any]:
        """What the plan would run. Raises RefusedError if that is nothing, or too much."""
        dues = await self._fires_of(job, plan, looks=False)
        if len(dues) > RUNS_MAX:
            raise RefusedError(
                f"{job.name} has more than {RUNS_MAX} fire times in that range: expected {RUNS_MAX} at the most",
                kind="too_many",
                hint="ask for a shorter range, and for the next one when it is done",
            )
        if not dues:
            raise RefusedError(
                f"{job.name} has no fire time from {iso(plan.begin)} up to {iso(plan.end)}",
                kind="no_fire_times",
                hint=f"coordctl job show {job.name} shows its schedule; coordctl job fires {job.name} --from "
                f"{iso(plan.begin)} what became of its fire times",
            )
        rows = await self._rows(job.name, dues)
        begin = self._driver.node.identity_from
        states: Counter[str] = Counter()
        wanted: list[float] = []
        for due in dues:
            at = fire_time(job, due, begin)
            run = scheduled_run(job.name, at)
            row = rows.get(run)
            group = row is None and member(run, 0) in rows
            states[row.state if row is not None else AS_A_GROUP if group else NO_ROW] += 1
            if not group and (row is None or is_wanted(row, plan.redo)):
                wanted.append(at)
        lasts_s = await self._ledger.query(lambda ledger: _lasts_s(ledger, job.name))
        beside = plan.at_most if job.overlap == "allow" else 1
        return {
            "job": job.name,
            "plan": plan.id,
            **_asked_for(plan),
            "fire_times": len(dues),
            "states": dict(sorted(states.items())),
            "runs": len(wanted),
            "first": objects.instant(wanted[0]) if wanted else None,
            "last": objects.instant(wanted[-1]) if wanted else None,
            "overlap": job.overlap,
            "run_takes_s": lasts_s,
            "takes_s": None if lasts_s is None else round(lasts_s * math.ceil(len(wanted) / beside), 1),
        }

    async def _rows(self, job: str, dues: list[float]) -> Mapping[str, Row]:
        """The rows of these fire times, by run."""
        found: dict[str, Row] = {}
        after, last = math.nextafter(dues[0], -math.inf), dues[-1]
        while True:
            part = await self._ledger.query(lambda ledger, at=after: ledger.fired(job, at, last, PART))  # type: ignore[misc]  # mypy cannot infer a default of a lambda
            found.update({row.run: row for row in part if not run_fault(row)})
            if len(part) < PART:
                break
            after = part[-1].due_at
        # A run that was revoked before any claim is in no order of due times.
        revoked = await self._ledger.query(lambda ledger: ledger.runs(job=job, state=REVOKED, limit=PART))
        return {**{row.run: row for row in revoked if dues[0] <= row.due_at <= last}, **found}

    # ---- how far it has come

    async def _fires_of(self, job: Job, plan: Plan, *, looks: bool) -> list[float]:
        """The due times of the plan's fire times, at most one more than RUNS_MAX; computed once for each plan."""
        key = (job.name, job.digest, plan.id)
        known = self._backfill_fires.get(key)
        if known is not None:
            return known
        begin, schedule = self._driver.node.identity_from, job.schedule
        assert schedule is not None, job.name
        low = math.nextafter(due_time(job, plan.begin, begin), -math.inf)
        high = math.nextafter(due_time(job, plan.end, begin), -math.inf)

        def count(_: Work) -> list[float]:
            return fires_between(schedule, low, high, RUNS_MAX + 1)

        found = await self._lookups.do(count, looks=looks, limit_s=COUNT_S)
        kept = list(self._backfill_fires.items())[1 - PLANS_MAX :]
        self._backfill_fires = {**dict(kept), key: found}
        return found

    async def _progress(self, name: str, hold: Hold, *, looks: bool) -> dict[str, Any]:
        """One plan, as the ledger has it; ``passed``: fire times that it went by without a run."""
        plan, job = Plan.read(hold.note), self._driver.node.jobs.get(name)
        if plan is None:
            return {"job": name, "plan": None, "state": "damaged", "by": hold.by or None}
        fire_times = passed = None
        if job is not None and job.schedule is not None:
            dues = await self._fires_of(job, plan, looks=looks)
            fire_times, gone = len(dues), 0
            if plan.cursor:
                at = due_time(job, plan.cursor, self._driver.node.identity_from)
                first, after = bisect.bisect_left(dues, at), bisect.bisect_right(dues, at)
                gone = after if plan.order == OLDEST else len(dues) - first
            passed = max(0, (len(dues) if plan.state == "done" else gone) - plan.opened)
        return {
            "job": name,
            "plan": plan.id,
            "state": plan.state,
            **_asked_for(plan),
            "fire_times": fire_times,
            "passed": passed,
            "opened": plan.opened,
            "succeeded": plan.succeeded,
            "failed": plan.failed,
            "open": list(plan.open) if plan.state == RUNNING else [],
            "waits": await self._plan_waits(name) if plan.state == RUNNING else None,
            "by": hold.by,
            "uid": hold.uid,
            "at": objects.instant(hold.at),
            "ended_at": objects.instant(plan.ended_at),
        }

    async def _plan_waits(self, name: str) -> str | None:
        """Why no run of the plan starts now, beside what `why` says of its open runs; None if nothing is known."""
        job = self._driver.node.jobs.get(name)
        if job is None:
            return f"this node has no job {name}: a node that has its file opens the runs"
        if job.schedule is None or job.expand is not None:
            now = "has no schedule now" if job.schedule is None else "has expand now, and a backfill opens no groups"
            return f"{name} {now}: coordctl job backfill {name} --cancel ends the plan"
        stop = (await self._stopped()).get(name)
        return why.stopped(name, stop) if stop is not None else self._breaker(name) or None


def _asked_for(plan: Plan) -> dict[str, Any]:
    return {
        "from": objects.instant(plan.begin),
        "to": objects.instant(plan.end),
        "order": plan.order,
        "at_most": plan.at_most,
        "redo": plan.redo,
        "stop_after_failures": plan.stop_after,
    }


def _lasts_s(ledger: Ledger, job: str) -> float | None:
    """The median runtime (seconds) of the job's last successes; None without any."""
    rows = ledger.runs(job=job, state=SUCCESS, limit=SUCCESSES)
    times = [row.ended_at - row.started_at for row in rows if row.started_at and row.ended_at >= row.started_at]
    return round(median(times), 3) if times else None


def _instant(params: dict[str, Any], name: str) -> float:
    """An instant, in Unix seconds or as ISO 8601 (UTC)."""
    value = params.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        at = float(value)
    else:
        try:
            at = parse_instant(str(value or ""), "UTC")
        except ValueError as exc:
            raise _wrong(f"{name}: {exc}", "such as 2026-11-21T02:00Z") from exc
    if not 0.0 <= at <= INSTANT_MAX:  # also for NaN
        raise _wrong(f"{name} {value}: expected an instant from 1970 to 3000, or its Unix seconds", "")
    return float(round(at, 3))


def _wrong(sentence: str, hint: str) -> RpcError:
    return RpcError(INVALID_PARAMS, sentence, kind="invalid_params", hint=hint)
