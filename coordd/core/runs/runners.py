"""The events of this node's runners: adopted, started, ended, gone; and launches that failed."""

from __future__ import annotations

from typing import TypeVar

from coordd.core.context import Context
from coordd.core.jobs.job import run_uuid, unpinned
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import FAILURE, LOST, RETRY
from coordd.core.ready import Launch, Now
from coordd.core.runs.pursuit import Pursuits
from coordd.core.runs.sweep import Sweep
from coordd.core.runs.testimony import Testimonies
from coordd.core.wire import events
from coordd.core.wire.events import TASK_END, Task

T = TypeVar("T", bound=Task)

# Why an attempt is returned if its intent is not on the disk.
NOT_WRITTEN = "the journal cannot be written"


class RunnerEvents:
    """Passes these events to the pursuits, the ledger and the other nodes."""

    __slots__ = ("_ctx", "_pursuits", "_sweep", "testimonies")

    def __init__(self, ctx: Context, pursuits: Pursuits, sweep: Sweep) -> None:
        self._ctx = ctx
        self._pursuits = pursuits
        self._sweep = sweep
        self.testimonies = Testimonies(ctx, pursuits.endings, self._lost)

    def adopted(self, run: str, job: str, attempt: int, token: int, waits: bool) -> None:
        """A runner of an earlier daemon is alive."""
        self._ctx.saw_token(job, token)
        self._pursuits.started(run, attempt, token, waits)

    def granted(self, launch: Launch, floor: int, now: Now) -> str:
        """An attempt was granted to a `coordd exec` on this machine: the journal and the other nodes hear of it before
        it starts. ``floor``: the highest token of the job that was known before the claim. Returns why it must not
        start; "" if it may.
        """
        ctx = self._ctx
        if launch.token < floor:  # equal: the same grant, asked for again
            ctx.note("token.went_back", run=launch.run, token=launch.token, seen=floor)
            return "the ledger handed out a token below one already seen"
        ctx.saw_token(launch.job, launch.token)
        event = self._task(events.TaskReceived, launch)
        event.retries = launch.attempt
        ctx.record(event, now, sync=True)
        return ""

    def started(self, launch: Launch, now: Now) -> None:
        """The program was executed."""
        self._ctx.record(self._task(events.TaskStarted, launch), now)

    def ended(
        self,
        launch: Launch,
        state: str,
        exit_code: int | None,
        reason: str,
        application_id: str,
        runtime_s: float | None,
        now: Now,
    ) -> None:
        """An attempt has ended here. Its runner itself reports to the ledger; this tells the other nodes."""
        event = self._task(TASK_END.get(state, events.TaskRetried), launch)
        event.exit_code, event.reason = exit_code, reason
        event.result = state
        event.application_id = application_id
        event.runtime = runtime_s
        if state == "failure":
            event.exception = reason
        self._ctx.record(event, now, sync=True)
        self._ctx.processed += 1
        self._pursuits.endings.heard(event, now)
        self._pursuits.gone(launch.run, launch.token, now)
        self._ctx.arm(now.mono, "ended", launch.job)
        self._sweep.soon(now)

    def _lost(self, launch: Launch, reason: str, now: Now) -> None:
        """The ledger has taken our word that an earlier daemon's attempt is over."""
        self.ended(launch, LOST, None, reason, "", None, now)

    def gone(self, launch: Launch, now: Now) -> None:
        """A runner died without a report: only the ledger can decide about the attempt."""
        self._pursuits.gone(launch.run, launch.token, now)

    def launch_failed(self, launch: Launch, reason: str, now: Now) -> None:
        """No runner could be started: the attempt certainly never ran, and the next one may be on another node.

        This node does not claim the job until a check shows that it can launch it: otherwise it would win again.
        """
        job = self._ctx.jobs.get(launch.job)
        if (
            job is not None and job.digest == unpinned(launch.digest)[0]
        ):  # otherwise the problem was of an old definition
            self._ctx.launch_problems = {**self._ctx.launch_problems, launch.job: reason}
        self._ctx.note("launch.failed", run=launch.run, attempt=launch.attempt, reason=reason)
        self._ctx.ask(Report(grant=launch.grant, state=RETRY, reason=reason))
        self._pursuits.gone(launch.run, launch.token, now)
        self._sweep.soon(now)

    def launch_refused(self, launch: Launch, reason: str, now: Now, *, final: bool = True) -> None:
        """The run cannot be started on any node (its arguments do not fit): that ends it, and other runs of the job are
        not affected. If not ``final``, it is a failed attempt, and the job may allow more.
        """
        self._ctx.note("launch.refused", run=launch.run, attempt=launch.attempt, reason=reason)
        self._ctx.ask(Report(grant=launch.grant, state=FAILURE, reason=reason, final=final))
        self.ended(launch, "failure", None, reason, "", None, now)

    def _task(self, kind: type[T], launch: Launch) -> T:
        return kind(
            uuid=run_uuid(launch.run),
            name=launch.job,
            run=launch.run,
            attempt=launch.attempt,
            token=launch.token,
            nonce=launch.nonce,
            node=self._ctx.full_hostname,
            fire_at=launch.fire_at,
            due=launch.due,
            kwargs=launch.args,
            digest=launch.digest,
            policy=launch.policy,
            lease=launch.lease_s,
        )
