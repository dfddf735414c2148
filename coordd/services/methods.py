"""The control methods: what each name of the contract does."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import trio

from coordd import __version__
from coordd.core.arguments import merge_params, packed
from coordd.core.events import Action, event_type
from coordd.core.job import Job, iso, job_of, triggered_run
from coordd.core.pursuit import Pursuits
from coordd.core.rows import OK, STATES, Registration, Row
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Ledger
from coordd.services import checkup, views, why
from coordd.services.control import ADMIN, OPERATOR, VIEWER, Caller, Method
from coordd.services.driver import Driver, flat
from coordd.services.ledger import LedgerService, boottime
from coordd.services.ledger_methods import LedgerMethods
from coordd.services.logfiles import find_log, read_from, read_tail
from coordd.services.rpc import INVALID_PARAMS, RpcError, take
from coordd.services.why import CALM, Surroundings

# Ids that people give to their runs.
ID = re.compile(r"[A-Za-z0-9._:+-]{1,128}")

# Names that a job file can have.
JOB = re.compile(r"[A-Za-z0-9._-]{1,64}")

# Rows that one answer may carry.
LIST_MAX = 10_000

# A stream says at least this often that it is there, so that a client that is gone is noticed.
ALIVE_S = 15.0

# How often a followed log is looked at.
FOLLOW_S = 0.25

# Named in the contract, and not built yet: they say so.
UNAVAILABLE_METHODS = frozenset((
    "check.list", "deadletter.list", "deadletter.show", "deadletter.replay", "deadletter.discard", "publish",
    "keys.new", "keys.rotate", "exec",
))  # fmt: skip


class Methods(LedgerMethods):
    """Everything that can be asked on the control socket."""

    def __init__(
        self,
        driver: Driver,
        ledger: LedgerService,
        *,
        ledger_url: str,
        started_at: float,
        log_dir: str,
        job_problems: Callable[[], dict[str, list[str]]],
        reload: Callable[[], Any],
        argv: Callable[[Job, dict[str, str]], list[str]],
        doctor: Callable[[], list[dict[str, str]]],
    ) -> None:
        super().__init__(driver, ledger, ledger_url)
        self._started_at = started_at
        self._log_dir = log_dir
        self._job_problems = job_problems
        self._reload = reload
        self._argv = argv
        self._doctor = doctor
        self.suspended: dict[str, bool] = {}

    def table(self) -> dict[str, Method]:
        """Every method with the least role that may call it."""
        return {
            "ping": Method(self.ping),
            "status": Method(self.status),
            "node.list": Method(self.node_list),
            "node.drain": Method(self.node_drain, OPERATOR),
            "node.resume": Method(self.node_resume, OPERATOR),
            "job.list": Method(self.job_list),
            "job.show": Method(self.job_show),
            "job.next": Method(self.job_next),
            "job.suspend": Method(self.job_suspend),
            "job.resume": Method(self.job_resume),
            "run.list": Method(self.run_list),
            "run.show": Method(self.run_show),
            "run.trigger": Method(self.run_trigger),
            "run.cancel": Method(self.run_cancel),
            "run.revoke": Method(self.run_revoke),
            "run.resolve": Method(self.run_resolve),
            "run.logs": Method(self.run_logs),
            "why": Method(self.why),
            "election.list": Method(self.election_list),
            "election.open": Method(self.election_open, OPERATOR),
            "breaker.list": Method(self.breaker_list),
            "breaker.reset": Method(self.breaker_reset, OPERATOR),
            "events.subscribe": Method(self.events_subscribe),
            "doctor": Method(self.doctor),
            "reload": Method(self.reload, ADMIN),
            **super().table(),
        }

    # ---- this node

    async def ping(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return {"pong": True, "version": __version__}

    async def status(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return self.status_now()

    def status_now(self) -> dict[str, Any]:
        """This node, now."""
        driver = self._driver
        node = driver.node
        ctx = node.ctx
        problems = self._job_problems()
        return {
            "node": ctx.hostname,
            "cluster": ctx.settings.cluster,
            "state": ctx.state,
            "version": __version__,
            "pid": ctx.pid,
            "incarnation": ctx.incarnation,
            "clock": ctx.clock.value,
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
            },
            "backlog": driver.outbox.statistics() if driver.outbox is not None else None,
            "members": ctx.membership.count(),
            "isolated": views.is_isolated(ctx),
            "runs": {
                "active": len(node.pursuits.running),
                "pursued": len(node.pursuits.pursuits),
                "processed": ctx.processed,
                "jobs": sorted({job_of(run) for run in node.pursuits.running}),
            },
            "jobs": {"enabled": len(ctx.jobs), "disabled": sorted(set(problems) - set(ctx.jobs))},
            "breakers_open": [breaker.name for breaker in self._driver.breakers if breaker.is_open],
            "impaired": ctx.impaired or None,
            "counts": dict(driver.counts),
            "uptime_s": round(boottime() - self._started_at, 3),
        }

    async def node_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        node = self._driver.node
        return views.nodes_view(node.ctx, len(node.pursuits.running), boottime())

    async def node_drain(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return await self._drain(params, True)

    async def node_resume(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return await self._drain(params, False)

    async def _drain(self, params: dict[str, Any], draining: bool) -> dict[str, Any]:
        node = self._driver.node
        named = take(params, "node", str, "")
        if named not in ("", node.ctx.hostname, node.ctx.full_hostname):
            raise RefusedError(
                f"this is {node.ctx.hostname}, not {named}", kind="other_node", hint=f"ask on {named} itself"
            )
        if node.ctx.state not in ("ready", "draining"):
            raise RefusedError(f"the node is {node.ctx.state}", kind="try_later")
        self._driver.feed(node.drain, draining)
        return {"node": node.ctx.hostname, "state": node.ctx.state, "active": len(node.pursuits.running)}

    async def reload(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        result: dict[str, Any] = self._reload()
        return result

    async def doctor(self, params: dict[str, Any], caller: Caller) -> list[dict[str, str]]:
        checks = await trio.to_thread.run_sync(self._doctor)
        return checks + await checkup.cluster_checks(self._driver, self._ledger, self._ledger_url)

    async def breaker_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        return [views.breaker_view(breaker, boottime()) for breaker in self._driver.breakers]

    async def breaker_reset(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        name = take(params, "name", str)
        for breaker in self._driver.breakers:
            if breaker.name == name:
                breaker.reset(boottime())
                self._audit(caller, "breaker.reset", name)
                if name == "ledger":
                    self._driver.feed(self._driver.node.look_again)
                return views.breaker_view(breaker, boottime())
        known = ", ".join(breaker.name for breaker in self._driver.breakers)
        raise RefusedError(f"no breaker {name!r}", kind="unknown_breaker", hint=f"there are {known}")

    # ---- jobs

    def _job(self, params: dict[str, Any]) -> Job:
        name = take(params, "job", str, "") or take(params, "name", str)
        job = self._driver.node.ctx.jobs.get(name)
        if job is None:
            problems = self._job_problems().get(name)
            if problems:
                raise RefusedError(f"the job {name} is disabled: {problems[0]}", kind="bad_job")
            raise RefusedError(
                f"no job {name!r} on this node", kind="unknown_job", hint="coordctl job list shows what there is"
            )
        return job

    def _may_operate(self, caller: Caller, job: str) -> None:
        owner = self._driver.node.ctx.jobs[job].owner if job in self._driver.node.ctx.jobs else ""
        if caller.role < OPERATOR and not (owner and owner in caller.groups):
            raise RefusedError(
                f"{caller.name} may not operate {job}", kind="not_permitted",
                hint="it takes the operator group" + (f" or the group {owner}" if owner else ""),
            )  # fmt: skip

    async def _suspended(self) -> dict[str, bool]:
        def read(ledger: Ledger) -> dict[str, bool]:
            answer = ledger.call("open", tuple(self._driver.node.ctx.jobs))
            return {name: bool(about[2]) for name, about in answer.jobs.items()}  # type: ignore[union-attr]

        try:
            self.suspended = await self._ledger.query(read)
        except UnavailableError:
            return self.suspended  # what was last known; the ledger's state is shown beside it
        return self.suspended

    async def job_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        suspended = await self._suspended()
        now = self._driver.now().wall
        listed = [self._job_view(job, suspended, now, caller) for job in self._driver.node.ctx.jobs.values()]
        for name, problems in self._job_problems().items():
            if name not in self._driver.node.ctx.jobs:
                listed.append({"name": name, "enabled": False, "problems": problems})
        return sorted(listed, key=lambda view: str(view["name"]))

    def _job_view(self, job: Job, suspended: dict[str, bool], now: float, caller: Caller) -> dict[str, Any]:
        fires = views.next_fires(job, now, 1)
        problems = self._job_problems().get(job.name, [])
        problem = self._driver.node.ctx.launch_problems.get(job.name, "") or (problems[0] if problems else "")
        return views.job_view(
            job, suspended=suspended.get(job.name, False), next_at=fires[0] if fires else None, problem=problem,
            redacted=caller.role <= VIEWER,
        )  # fmt: skip

    async def job_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        job = self._job(params)
        return self._job_view(job, await self._suspended(), self._driver.now().wall, caller)

    async def job_next(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        job = self._job(params)
        count = min(max(1, take(params, "count", int, 5)), 1000)
        fires = views.next_fires(job, self._driver.now().wall, count)
        return [{"job": job.name, "fire_time": views.instant(at), "run": f"{job.name}@{iso(at)}"} for at in fires]

    async def job_suspend(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return await self._suspend(params, caller, True)

    async def job_resume(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        return await self._suspend(params, caller, False)

    async def _suspend(self, params: dict[str, Any], caller: Caller, suspended: bool) -> dict[str, Any]:
        job = self._job(params)
        self._may_operate(caller, job.name)
        answer = await self._change("suspend", job.name, suspended, caller.name)
        self._audit(caller, "job.suspend" if suspended else "job.resume", job.name)
        self._driver.feed(self._driver.node.look_again)
        return {"job": job.name, "suspended": suspended, "version": answer.token}

    # ---- runs

    async def run_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        job, state = take(params, "job", str, ""), take(params, "state", str, "")
        limit = min(max(1, take(params, "limit", int, 100)), LIST_MAX)
        if state and state not in STATES:
            raise RpcError(INVALID_PARAMS, f"no state {state!r}", kind="invalid_params", hint=", ".join(STATES))
        rows = await self._ledger.query(lambda ledger: ledger.runs(job=job, state=state, limit=limit))
        return [views.run_view(row, redacted=caller.role <= VIEWER) for row in rows]

    async def run_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        run = take(params, "id", str)
        row = await self._row(run)
        attempts = await self._ledger.query(lambda ledger: ledger.attempts(run))
        shown = views.run_view(row, redacted=caller.role <= VIEWER)
        shown["attempts"] = [views.attempt_view(attempt) for attempt in attempts]
        return shown

    async def _row(self, run: str) -> Row:
        row = await self._ledger.query(lambda ledger: ledger.run(run))
        if row is None:
            raise RefusedError(f"no run {run!r}", kind="unknown_run", hint="coordctl run list shows what there is")
        return row

    async def run_trigger(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        job = self._job(params)
        self._may_operate(caller, job.name)
        given = take(params, "args", dict, None) or {}
        ident = take(params, "id", str, "") or secrets.token_hex(6)
        if not ID.fullmatch(ident):
            raise RpcError(
                INVALID_PARAMS,
                f"the id {ident[:40]!r} must be 1 to 128 of A-Z a-z 0-9 . _ : + -",
                kind="invalid_params",
            )
        values = merge_params(job.params, given)
        if take(params, "dry_run", bool, False):
            return {"id": triggered_run(job.name, ident), "dry_run": True, "argv": self._argv(job, values)}
        of = Registration(
            triggered_run(job.name, ident), job.name, job.digest, job.policy(), self._driver.now().wall,
            scheduled=False, args=packed(values), by=caller.name,
        )  # fmt: skip
        reply = await self._driver.trigger(of)
        if reply.kind:
            raise RefusedError(reply.message, kind=reply.kind)
        self._audit(caller, "run.trigger", of.run)
        return reply.result

    async def run_cancel(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        run = take(params, "id", str)
        self._may_operate(caller, job_of(run))
        await self._row(run)
        answer = await self._change("cancel", run, caller.name)
        if answer.word != OK:
            raise RefusedError(f"{run} is {answer.state} already", kind="finished")
        self._audit(caller, "run.cancel", run)
        self._driver.feed(self._driver.node.hurry_cancel, run, f"cancelled by {caller.name}")
        return {"id": run, "state": answer.state}

    async def run_revoke(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        run = take(params, "id", str)
        self._may_operate(caller, job_of(run))
        if job_of(run) == run or not JOB.fullmatch(job_of(run)):
            raise RefusedError(
                f"{run!r} names no run", kind="unknown_run", hint="runs are JOB@FIRE_TIME or JOB#ID: coordctl job next"
            )
        answer = await self._change("revoke", run, caller.name)
        if answer.word != OK:
            hint = f"coordctl run cancel {run}" if answer.state == "started" else ""
            raise RefusedError(f"{run} is {answer.state}: too late to revoke it", kind="finished", hint=hint)
        self._audit(caller, "run.revoke", run)
        self._driver.feed(self._driver.node.look_again)
        return {"id": run, "state": answer.state}

    async def run_resolve(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        run, outcome = take(params, "id", str), take(params, "as", str)
        if outcome not in ("success", "failed", "relaunch"):
            raise RpcError(
                INVALID_PARAMS, f"as {outcome!r}: expected success, failed or relaunch", kind="invalid_params"
            )
        self._may_operate(caller, job_of(run))
        await self._row(run)
        answer = await self._change("resolve", run, outcome, caller.name)
        if answer.word != OK:
            raise RefusedError(f"{run} is {answer.state}: only an unknown run can be resolved", kind="finished")
        self._audit(caller, "run.resolve", run)
        self._driver.feed(self._driver.node.look_again)
        return {"id": run, "state": answer.state}

    async def run_logs(self, params: dict[str, Any], caller: Caller) -> Any:
        run = take(params, "id", str)
        if caller.role <= VIEWER:
            self._may_operate(caller, job_of(run))
        row = await self._row(run)
        attempt = take(params, "attempt", int, row.attempt)
        path = find_log(self._log_dir, run, attempt, earlier="attempt" not in params)
        if not path:
            where = row.node or "no node yet"
            raise RefusedError(f"no log of {run}/{attempt} on this node: it was on {where}", kind="no_log")
        if take(params, "follow", bool, False):
            return self._follow(run, path)
        limit = min(max(1, take(params, "bytes", int, 256 * 1024)), 768 * 1024)
        return {"id": run, "attempt": attempt, "path": path, "text": read_tail(path, limit)}

    async def _follow(self, run: str, path: str) -> AsyncIterator[dict[str, Any]]:
        """A log as it grows, until the run is over."""
        offset, quiet_s = 0, 0.0
        while True:
            text, offset = read_from(path, offset)
            if text:
                quiet_s = 0.0
                yield {"text": text}
                continue
            running = run in self._driver.node.pursuits.running
            if not running and quiet_s > 1.0:
                return
            await trio.sleep(FOLLOW_S)
            quiet_s += FOLLOW_S
            if quiet_s % ALIVE_S < FOLLOW_S:
                yield {"alive": True}

    # ---- explanations

    async def why(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        subject = take(params, "id", str, "") or take(params, "job", str)
        if job_of(subject) == subject:
            return {"id": subject, "why": await self._why_job(subject)}
        return {"id": subject, "why": await self._why_run(subject)}

    async def _why_run(self, run: str, around: Surroundings | None = None) -> str:
        node = self._driver.node
        pursuit = node.pursuits.pursuits.get(run)
        attempt = pursuit.attempt if pursuit else 0
        election = node.ballots.elections.get(f"{run}/{attempt}")
        try:
            row = await self._ledger.query(lambda ledger: ledger.run(run))
            attempts = await self._ledger.query(lambda ledger: ledger.attempts(run))
        except UnavailableError as exc:
            return why.why_run(run, None, [], pursuit, election, self._around(str(exc)))
        return why.why_run(run, row, attempts, pursuit, election, around or self._around())

    def _around(self, error: str = "") -> Surroundings:
        """``error``: what the question itself met. A ledger that only writes do not reach still answers it."""
        bus, breaker = self._driver.bus, self._ledger.breaker
        return Surroundings(
            ledger_error=error or self._ledger.error, recovering_s=self._ledger.recovering_s,
            breaker_open=breaker.is_open, retry_in_s=breaker.retry_in_s(boottime()),
            bus_down=bus.state == "disconnected", bus_error=bus.error,
        )  # fmt: skip

    async def _why_job(self, name: str) -> str:
        node = self._driver.node
        job = node.ctx.jobs.get(name)
        error, rows = "", []
        try:
            rows = await self._ledger.query(lambda ledger: ledger.runs(job=name, limit=1))
        except UnavailableError as exc:
            error = str(exc)
        last_word = await self._why_run(rows[0].run, CALM) if rows else ""  # what is around is said once
        suspended = (await self._suspended()).get(name, False)
        fires = views.next_fires(job, self._driver.now().wall, 1) if job else []
        problems = self._job_problems().get(name, [])
        return why.why_job(
            name, job, problems[0] if problems else "", suspended, fires[0] if fires else None,
            rows[0] if rows else None, last_word, node.ctx, self._around(error),
        )  # fmt: skip

    # ---- elections and events

    async def election_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        limit = min(max(1, take(params, "limit", int, 50)), LIST_MAX)
        elections = list(self._driver.node.ballots.elections.values())[-limit:]
        return [views.election_view(election) for election in elections]

    async def election_open(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        ident, topic = take(params, "id", str), take(params, "topic", str)
        action = take(params, "action", dict, None)
        if not ID.fullmatch(ident):
            raise RpcError(INVALID_PARAMS, "the id must be 1 to 128 of A-Z a-z 0-9 . _ : + -", kind="invalid_params")
        if topic in ("spark", "command"):
            if action is None:
                raise RpcError(INVALID_PARAMS, "the action names a job and its args", kind="invalid_params")
            triggered = await self.run_trigger({**action, "id": ident}, caller)
            return {**triggered, "election": f"{triggered['id']}/0"}
        node = self._driver.node
        named = Action(str(action.get("job", "")), ident) if action else None
        election = self._driver.feed(node.open_election, ident, topic, named)
        with trio.move_on_after(2 * node.ctx.settings.election_timeout_s):
            while election.succession is None:  # noqa: ASYNC110  # an event in every election would cost all of them
                await trio.sleep(0.005)
        return views.election_view(election)

    async def events_subscribe(self, params: dict[str, Any], caller: Caller) -> AsyncIterator[dict[str, Any]]:
        wanted = tuple(take(params, "types", list, []))
        backlog = min(max(0, take(params, "backlog", int, 0)), 2000)
        return self._events(wanted, backlog, redacted=caller.role <= VIEWER, follow=take(params, "follow", bool, True))

    async def _events(
        self, wanted: Iterable[Any], backlog: int, *, redacted: bool, follow: bool
    ) -> AsyncIterator[dict[str, Any]]:
        """What this node says and hears, as it happens. Who reads too slowly loses the oldest, and is told."""
        driver = self._driver
        types = {str(word) for word in wanted}
        seen = max(0, driver.recent_total - min(backlog, len(driver.recent)))
        while True:
            news = driver.wait_for_news()  # taken before counting: what comes while we send wakes us again
            fresh, seen = driver.recent_total - seen, driver.recent_total
            recent = list(driver.recent)[-fresh:] if fresh else []
            if fresh > len(recent):
                yield {"lost": fresh - len(recent)}
            for packet, event in recent:
                if not types or event_type(event) in types:
                    record = flat(packet, event)
                    if redacted:
                        record = {k: v for k, v in record.items() if k not in ("args", "kwargs", "nonce")}
                    yield {"event": record}
            if not follow:
                return
            with trio.move_on_after(ALIVE_S) as scope:
                await news.wait()
            if scope.cancelled_caught:
                yield {"alive": True}


def active_jobs(pursuits: Pursuits) -> str:
    """The jobs that run here, for one line of status."""
    names = sorted({job_of(run) for run in pursuits.running})
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
