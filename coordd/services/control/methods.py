"""The control methods, one for each name in the interface."""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import structlog
import trio

from coordd import __version__
from coordd.config.hooks.publisher import PUBLISH
from coordd.core.groups.expand import group_of
from coordd.core.groups.members import members_of
from coordd.core.jobs.arguments import merge_params
from coordd.core.jobs.job import HOOK, IDENT, Job, job_of, pinned, run_uuid, scheduled_run, triggered_run
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.requests import OUTCOMES, Cancel, Resolve, Revoke, nominal_time
from coordd.core.ledger.rows import Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import FAILURE, INSTANT_MAX, OK, PENDING, RECEIVED, RETRY, REVOKED, STATES, SUCCESS
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.core.runs.pursuit import Pursuits
from coordd.core.triggers.duplicates import ident_of
from coordd.core.wire.events import TASK_END, Action
from coordd.errors import CoorddError, RefusedError
from coordd.ports import Ledger
from coordd.services.audit import Audit
from coordd.services.backends.source import Source
from coordd.services.breakers.service import open_breakers
from coordd.services.checks.methods import CheckMethods
from coordd.services.control import disclosure, doctor as checkup
from coordd.services.control.callers import ADMIN, OPERATOR, ROLE_NAMES, VIEWER, Caller, Method
from coordd.services.control.core_methods import LIST_MAX, VIEWER_LIST_MAX
from coordd.services.control.hold_methods import Asked
from coordd.services.control.lookups import Lookups
from coordd.services.control.quota import RunShares
from coordd.services.control.rpc import INVALID_PARAMS, RpcError, take, take_id
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService, boottime
from coordd.services.publishing import recording
from coordd.services.readiness import ready_view
from coordd.services.relay import Relay
from coordd.services.triggering.registering import told_of
from coordd.services.views import objects, recorded
from coordd.services.views.troubles import Troubles

log = structlog.get_logger("control")

# Valid names of job files.
JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")

# The time for a check of a large ledger; viewers get the last result for a while.
DOCTOR_S = 60.0
DOCTOR_KEPT_S = 10.0

# `status` answers even while the ledger hangs, with the last known values.
STATUS_WAITS_S = 1.0

# Runs that one call revokes; the client repeats the call for the rest.
REVOKED_AT_ONCE_MAX = 200

# In the interface, but not implemented: they answer so.
UNAVAILABLE_METHODS = frozenset((
    "keys.new", "keys.rotate",
))  # fmt: skip


class Methods(CheckMethods):
    """All methods of the control socket."""

    def __init__(
        self,
        driver: Driver,
        ledger: LedgerService,
        troubles: Troubles,
        *,
        ledger_url: str,
        started_at: float,
        log_dir: str,
        job_problems: Callable[[], dict[str, list[str]]],
        reload: Callable[[bool], Any],
        argv: Callable[[Job, dict[str, str]], list[str]],
        doctor: Callable[[], list[dict[str, str]]],
        audit: Callable[[float, int], dict[str, Any]],
        source: Source | None = None,
        about: Callable[[str, int], Iterable[dict[str, Any]]] = lambda _text, _most: (),
        looks: Audit | None = None,
        unsigned: str = "",
        boot: Callable[[], list[dict[str, Any]]] = list,
    ) -> None:
        """``about``: the records that contain a text, among the last bytes of the journal. ``looks``: where it is
        recorded who read a log from another node; ``unsigned``: why nobody may. ``boot``: how each boot step is.
        """
        self.relay = Relay(driver, {"journal": recorded.answer(about)})
        super().__init__(driver, ledger, troubles, ledger_url=ledger_url, job_problems=job_problems, relay=self.relay)
        self._log_dir = log_dir
        self._read_logs(looks, unsigned)
        self._next_fires = {}
        self._lookups = Lookups()
        self._watches, self._shares = {}, RunShares()
        self._started_at = started_at
        self._room: checkup.Room | None = None  # None: not known
        self._disk_asked = False
        self._reload = reload
        self._argv = argv
        self._doctor = doctor
        self._read_audit = audit
        self.source = source
        self.boot = boot
        self._checked: tuple[float, list[dict[str, str]]] = (-math.inf, [])  # the last doctor's result, and its time

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "ping": Method(self.ping),
            "status": Method(self.status),
            "node.list": Method(self.node_list),
            "run.list": Method(self.run_list),
            "run.trigger": Method(self.run_trigger, changes=True),
            "run.cancel": Method(self.run_cancel, changes=True),
            "run.revoke": Method(self.run_revoke, changes=True),
            "run.resolve": Method(self.run_resolve, changes=True),
            "audit": Method(self.audit, OPERATOR, logs=True),
            "publish": Method(self.publish, changes=True),
            "election.open": Method(self.election_open, OPERATOR),
            "doctor": Method(self.doctor),
            "reload": Method(self.reload, ADMIN),
            **super().table(),
        }

    # ---- this node

    async def ping(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return {"pong": True, "version": __version__, "user": caller.name, "role": ROLE_NAMES[caller.role]}

    async def status(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        with trio.move_on_after(STATUS_WAITS_S):
            await self._look_at_disk()
            await self._troubles.look()
        return self.status_now()

    def _disk_and_uptime(self) -> dict[str, Any]:
        free_mb, files = self._room or (None, None)
        disk = {
            "free_mb": free_mb, "least_mb": checkup.DISK_FREE_MB,
            "free_files": files, "least_files": checkup.DISK_FREE_FILES,
        }  # fmt: skip
        return {"disk": disk, "uptime_s": round(boottime() - self._started_at, 3)}

    async def _look_at_disk(self) -> None:
        """How much space the disk of the state directory has. A disk that hangs keeps one thread, not each caller."""

        def look() -> None:
            try:
                self._room = checkup.room(os.path.dirname(self._log_dir))
            except OSError:
                self._room = None
            finally:
                self._disk_asked = False

        if not self._disk_asked:
            self._disk_asked = True
            await trio.to_thread.run_sync(look, abandon_on_cancel=True)

    def status_now(self) -> dict[str, Any]:
        """This node's present state."""
        driver = self._driver
        node = driver.node
        problems = self._job_problems()
        return {
            "node": node.hostname,
            "cluster": node.settings.cluster,
            "state": node.state,
            "version": __version__,
            "pid": node.pid,
            "incarnation": node.incarnation,
            "clock": node.clock,
            "bus": {
                "url": driver.bus.url,
                "state": driver.bus.state,
                "error": driver.bus.error or None,
                **driver.bus.statistics(),
            },
            "ledger": {
                "url": self._ledger_url,
                "state": self._ledger.state,
                "error": self._ledger.error or None,
                "recovering_s": round(self._ledger.recovering_s, 1),
                "identity": node.ledger or None,
                "pinned": node.pinned,
                "not_used": node.braked or None,
            },
            "backlog": driver.outbox.statistics() if driver.outbox is not None else None,
            "members": node.member_counts(),
            "isolated": objects.is_isolated(node),
            "runs": {
                "active": len(node.pursuits.running),
                "pursued": len(node.pursuits.pursuits),
                "processed": node.processed,
                "jobs": sorted({job_of(run) for run in node.pursuits.running}),
                **objects.troubles_view(self._troubles.found),
            },
            "budget": objects.budget_view(node),
            "jobs_from": self.source.view() if self.source is not None else None,
            "late_jobs": sorted(self._troubles.found.late_jobs),
            "suspended": {"all": objects.hold_view(node.drains.pause), "jobs": sorted(node.drains.suspended)},
            "drained": objects.hold_view(node.drains.own),
            "jobs": {
                "enabled": sum(job.enabled for name, job in node.jobs.items() if not name.startswith(HOOK)),
                "held": sorted(job.name for job in node.jobs.values() if not job.enabled),
                "disabled": sorted(set(problems) - set(node.jobs)),
            },
            "stale_jobs": sorted(node.rulebook.definitions.stale),
            "rules": objects.rules_view(node),
            "breakers_open": open_breakers(driver),
            **self._steps_triggers_and_checks(),
            "impaired": node.unfit or None,
            "stands_aside": node.aside or None,
            "ready": ready_view(driver, self._ledger),
            "clock_skew_s": round(node.skew_s(driver.now()), 3),
            "alarms": [alarm["text"] for alarm in node.alarms.standing.values()],
            "counts": dict(driver.counts),
            **self._disk_and_uptime(),
        }

    async def node_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        node = self._driver.node
        return objects.nodes_view(node, len(node.pursuits.running), boottime())

    async def reload(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        result: dict[str, Any] = self._reload(take(params, "no_jobs", bool, False))
        return result

    async def doctor(self, params: dict[str, Any], caller: Caller) -> list[dict[str, str]]:
        looks = caller.role <= VIEWER
        at, checks = self._checked
        if not looks or boottime() - at > DOCTOR_KEPT_S:
            checks = await self._lookups.do(lambda _: self._doctor(), looks=looks, limit_s=DOCTOR_S)
            self._checked = (boottime(), checks)
        found = await self._troubles.look()
        checks = checks + checkup.trouble_checks(found.reduced(disclosure.reason) if looks else found)
        checks += self._check_lines() + await self.input_lines()
        return checks + await checkup.cluster_checks(self._driver, self._ledger, self._ledger_url)

    async def audit(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        whole = isinstance(params.get("since"), int) and not isinstance(params["since"], bool)
        since = float(params["since"]) if whole else take(params, "since", float, 0.0)
        limit = min(max(1, take(params, "limit", int, 1000)), LIST_MAX)
        return await self._lookups.do(lambda _: self._read_audit(since, limit), looks=False, limit_s=DOCTOR_S)

    # ---- runs

    async def run_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        job, state = take(params, "job", str, ""), take(params, "state", str, "")
        looks = caller.role <= VIEWER
        at_most = VIEWER_LIST_MAX if looks else LIST_MAX
        wanted = min(max(1, take(params, "limit", int, 100)), LIST_MAX)
        if state and state not in STATES:
            raise RpcError(INVALID_PARAMS, f"no state {state!r}", kind="invalid_params", hint=", ".join(STATES))
        node, since = take(params, "node", str, ""), float(take(params, "since", float, 0.0))
        filtered = bool(node or since)
        most = at_most if filtered else min(wanted, at_most)  # only the newest of them are searched

        def read(ledger: Ledger) -> tuple[list[dict[str, Any]], dict[str, Any]]:  # the thread also formats the rows
            rows: list[Row] = ledger.runs(job=job, state=state, limit=most)
            found = (row for row in rows if objects.is_of(row, node, since)) if filtered else rows
            listed = [objects.run_view(row, redacted=looks) for row in islice(found, min(wanted, at_most))]
            cut = len(rows) >= most and len(listed) < wanted
            return listed, objects.searched_view(rows) if cut else {}

        listed, searched = await self._ledger.query(read)
        if self.progress is not None and take(params, "progress", bool, False):
            await self.progress.add_to(listed)
        return [*listed, searched] if searched and take(params, "searched", bool, False) else listed

    async def run_trigger(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        job = self._job(params)
        self._may_operate(caller, job.name)
        self._may_trigger(job)
        given = take(params, "args", dict, None) or {}
        ident = take_id(params) or (secrets.token_hex(6) if job.dedupe is None else "")
        if ident and job.dedupe is not None:
            hint = "leave the id out: triggers with the same key are the same run"
            raise RefusedError(f"dedupe makes the ids of the runs of {job.name}", kind="invalid_params", hint=hint)
        values = merge_params(job.params, given)
        if job.dedupe is not None:
            ident = ident_of(job.dedupe, values, job.timezone, self._driver.now().wall)
        if not IDENT.fullmatch(ident):
            raise RpcError(
                INVALID_PARAMS,
                f"the id {ident[:40]!r} must be 1 to 128 of A-Z a-z 0-9 . _ : + -",
                kind="invalid_params",
            )
        if job.expand is not None and job.expand.key in given:
            raise RefusedError(
                f"{job.expand.key} is what {job.name} expands: each of its runs has its own",
                kind="invalid_params",
                hint="leave it out; coordctl job show lists the others",
            )
        if take(params, "dry_run", bool, False):
            if caller.asked is not None:
                caller.asked.recorded = True  # it changed nothing
            argv = await self._lookups.do(lambda _: self._argv(job, values), looks=False)
            return {"id": triggered_run(job.name, ident), "dry_run": True, "argv": argv}
        only, said = self._only(job, params), self._asked(params)
        group = triggered_run(job.name, ident)
        result = await self._registered(job, group, values, only, caller)
        self._audit(caller, "run.trigger", said.text(group + (f" on {only}" if only else "")))
        return result

    async def _registered(
        self, job: Job, group: str, values: dict[str, str], only: str, caller: Caller
    ) -> dict[str, Any]:
        """Register a run, or each member of a group, for node ``only`` ("": for any). Raises RefusedError."""
        result: dict[str, Any] = {}
        at = self._driver.now().wall
        for one in members_of(job, group, at, values):
            of = Registration(
                one.run,
                job.name,
                pinned(job.digest, only),
                claimed_policy(job, one.args, self._driver.node.hostname, self._driver.node.concurrency),
                at,
                scheduled=False,
                args=one.args,
                by=caller.name,
            )
            reply = told_of(job, of.run, await self._driver.trigger(of))
            if reply.kind:  # asked for again with the same id, it goes on
                raise RefusedError(reply.message, kind=reply.kind)
            if reply.result.get("duplicate"):
                log.warning("trigger.duplicate", run=of.run, by=caller.name)
            if result.get("durable") != "node":
                result = reply.result
        return result if job.expand is None else {**result, "id": group, "members": job.expand.count}

    async def publish(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        to = take(params, "to", str)
        self._may_operate(caller, PUBLISH + to[:128])  # first: who may not publish is not told which names there are
        job = recording.publisher(self._driver, to)
        if "body" not in params:
            raise RpcError(INVALID_PARAMS, "body is missing", kind="invalid_params")
        expires, ident = take(params, "expires", str, ""), take_id(params)
        said = await recording.publish(self._driver, job, params["body"], ident=ident, expires=expires, by=caller.name)
        self._audit(caller, "publish", said["id"])
        return said

    def _only(self, job: Job, params: dict[str, Any]) -> str:
        """The only node that may launch a run; "" without the parameter. Raises RefusedError unless it is alive, and
        may run the job.
        """
        if not take(params, "node", str, ""):
            return ""
        name, node = self._named(params), self._driver.node
        member = node.members.get(name)
        state = ALIVE if name == node.hostname else member.state if member is not None else "not known here"
        if state not in (ALIVE, SUSPECT):
            raise RefusedError(
                f"{name} is {state}: nothing starts there now",
                kind="node_not_alive",
                hint="coordctl node list; without --node any node may launch it",
            )
        tags = node.settings.tags if member is None else member.tags
        if not set(job.tags) <= set(tags):
            raise RefusedError(f"{name} may not run {job.name}: it needs the tags {', '.join(job.tags)}", kind="tags")
        return name

    async def run_cancel(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        run, said = take(params, "id", str), self._asked(params)
        self._may_operate(caller, job_of(run))
        await self._row(run)
        answer = await self._change(Cancel(run=run, by=caller.name))
        if answer.word != OK:
            raise RefusedError(f"{run} is {answer.state} already", kind="finished")
        self._audit(caller, "run.cancel", said.text(run))
        self._driver.feed(self._driver.node.hurry_cancel, run, f"cancelled by {caller.name}", answer.attempt)
        if answer.state == REVOKED:
            await self._tell_ended(run)
        return {"id": run, "state": answer.state}

    async def run_revoke(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        if "job" in params:
            return await self._revoke_all(take(params, "job", str), self._asked(params), caller)
        run, said = take(params, "id", str), self._asked(params)
        self._may_operate(caller, job_of(run))
        if job_of(run) == run or not JOB.fullmatch(job_of(run)):
            raise RefusedError(
                f"{run!r} is not the id of a run",
                kind="unknown_run",
                hint="runs are JOB@FIRE_TIME or JOB#ID: coordctl job next",
            )
        recorded = await self._ledger.query(lambda ledger: ledger.run(run)) is not None
        if not recorded and run not in self._driver.node.bad_rows and not _is_run_id(run):
            hint = "runs are JOB@FIRE_TIME, as in tick@2026-12-01T01:30:00Z, or JOB#ID: coordctl job next"
            raise RefusedError(f"{run!r} is not the id of a run, and none has it", kind="unknown_run", hint=hint)
        answer = await self._change(Revoke(run=run, by=caller.name, due=self._driver.node.due_of(run)))
        if answer.word != OK:
            hint = f"coordctl run cancel {run}" if answer.state == "started" else ""
            raise RefusedError(f"{run} is {answer.state}: too late to revoke it", kind="finished", hint=hint)
        self._audit(caller, "run.revoke", said.text(run))
        self._driver.feed(self._driver.node.revoked, (run,), f"revoked by {caller.name}")
        await self._tell_ended(run)
        return {"id": run, "state": answer.state, "recorded": recorded}

    async def _tell_ended(self, *runs: str) -> None:
        """Journal the end of runs that a person has ended: no runner reports it, and without it they wait, or run, for
        ever in the history.
        """
        try:
            rows = await self._ledger.query(lambda ledger: [ledger.run(run) for run in runs])
        except CoorddError as exc:  # it is done: the caller must not hear of an error
            log.warning("end.not_told", runs=runs[:10], reason=str(exc))
            return
        for row in rows:
            if row is None or row.state not in (REVOKED, SUCCESS, FAILURE):
                continue
            end = TASK_END[row.state](
                uuid=run_uuid(row.run), name=row.job, run=row.run, attempt=row.attempt, reason=row.reason
            )
            if row.state != REVOKED:  # it was launched
                end.token, end.nonce, end.node = row.token, row.nonce, row.node
            self._driver.tell(end)

    async def _revoke_all(self, job: str, said: Asked, caller: Caller) -> dict[str, Any]:
        """Revoke every run of a job that has not started; the job may be gone. At most REVOKED_AT_ONCE_MAX per call."""
        self._may_operate(caller, job)
        revoked: list[str] = []

        def waiting(ledger: Ledger) -> list[str]:
            states = (RETRY, RECEIVED, PENDING)
            most = REVOKED_AT_ONCE_MAX
            return [row.run for state in states for row in ledger.runs(job=job, state=state, limit=most)]

        found = await self._ledger.query(waiting)
        for run in found[:REVOKED_AT_ONCE_MAX]:
            answer = await self._change(Revoke(run=run, by=caller.name, due=self._driver.node.due_of(run)))
            if answer.word == OK:  # otherwise it has started meanwhile
                self._audit(caller, "run.revoke", said.text(run))
                revoked.append(run)
        self._driver.feed(self._driver.node.revoked, tuple(revoked), f"revoked by {caller.name}")
        await self._tell_ended(*revoked)
        return {"job": job, "revoked": revoked, "more": len(found) >= REVOKED_AT_ONCE_MAX}

    async def run_resolve(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        run, outcome = take(params, "id", str), take(params, "as", str)
        if outcome not in OUTCOMES:
            raise RpcError(
                INVALID_PARAMS, f"as {outcome!r}: expected success, failed or relaunch", kind="invalid_params"
            )
        self._may_operate(caller, job_of(run))
        await self._row(run)
        answer = await self._change(Resolve(run=run, outcome=outcome, by=caller.name))
        if answer.word != OK:
            raise RefusedError(f"{run} is {answer.state}: only an unknown run can be resolved", kind="finished")
        self._audit(caller, "run.resolve", run)
        self._driver.feed(self._driver.node.look_again)
        await self._tell_ended(run)
        return {"id": run, "state": answer.state}

    # ---- elections and events

    async def election_open(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        ident, topic = take(params, "id", str), take(params, "topic", str)
        action = take(params, "action", dict, None)
        if not IDENT.fullmatch(ident):
            raise RpcError(INVALID_PARAMS, "the id must be 1 to 128 of A-Z a-z 0-9 . _ : + -", kind="invalid_params")
        if topic in ("spark", "command"):
            if action is None:
                raise RpcError(INVALID_PARAMS, "the action names a job and its args", kind="invalid_params")
            triggered = await self.run_trigger({**action, "id": ident}, caller)
            return {**triggered, "election": f"{triggered['id']}/0"}
        node = self._driver.node
        named = Action(str(action.get("job", "")), ident) if action else None
        election = self._driver.feed(node.open_election, ident, topic, named)
        with trio.move_on_after(2 * node.settings.election_timeout_s):
            while election.succession is None:  # noqa: ASYNC110  # an event in every election would cost all of them
                await trio.sleep(0.005)
        return objects.election_view(election)


def active_jobs(pursuits: Pursuits, percents: Mapping[str, int]) -> str:
    """The active jobs on this node, for one line of status; behind the job, how far its run is."""
    of = {job_of(run): f" {percents[run]} %" if run in percents else "" for run in pursuits.running}
    names = [name + of[name] for name in sorted(of)]
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


def _is_run_id(run: str) -> bool:
    """True if a run can have this id: JOB@FIRE_TIME as ``scheduled_run`` writes it, or JOB#ID; also with ~N."""
    name, separator, rest = group_of(run).partition("#" if "#" in run else "@")
    if not separator or not JOB.fullmatch(name):
        return False
    if separator == "#":
        return IDENT.fullmatch(rest) is not None
    at = nominal_time(run)
    return at is not None and 0.0 <= at <= INSTANT_MAX and scheduled_run(name, at) == group_of(run)
