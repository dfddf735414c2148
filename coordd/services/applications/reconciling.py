"""Looks up runs whose end is unknown and whose drivers are on a cluster, and tells the ledger what is certain.

Each node does this for the jobs that it knows. A report carries token and nonce of the attempt, so the ledger takes one
of several, and none that is old. A living application leads to the next attempt, whose tracker adopts it.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from coordd.core.jobs.applications import END, REPORT, WAIT, Earlier, Unknown, Verdict, judge, needs_memory, run_mark
from coordd.core.jobs.job import Job
from coordd.core.ledger.answers import Answer, Ended
from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.runner_requests import Grant, Report
from coordd.core.ledger.words import FINISHED, LOST, OK, RETRY, UNKNOWN, AttemptNumber, Policy
from coordd.core.wire.events import Action
from coordd.errors import CoorddError
from coordd.ports import Applications, Ledger
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService, boottime
from coordd.services.pace import turn

log = structlog.get_logger("applications")

# How often (seconds) the ledger is asked for such runs.
LOOK_S = 5.0

# A run is looked up again after a pause (seconds), which doubles while nothing changes.
AGAIN_S = 5.0
AGAIN_MAX_S = 60.0

RUNS_MAX = 200
AT_A_TIME = 4

# A look-up may ask a pair of servers three times, ten seconds each, and Kerberos takes longer.
LOOKUP_S = 120.0


class Seen:
    """One attempt whose end is unknown, as this node has seen it."""

    __slots__ = ("again_at", "pause_s", "since", "why")

    def __init__(self, now: float) -> None:
        self.since = now
        self.again_at = now
        self.pause_s = AGAIN_S
        self.why = "it has not been looked up yet"


class Reconciling:
    """``manager`` opens the way to the cluster manager of a job's run, or of all its runs (None: it has none).
    It blocks, and raises CoorddError.
    """

    def __init__(
        self,
        driver: Driver,
        ledger: LedgerService,
        manager: Callable[[Job, Row | None], Applications | None],
        *,
        cluster: str,
        settle_s: Callable[[], float],
    ) -> None:
        self.driver = driver
        self.ledger = ledger
        self.manager = manager
        self.cluster = cluster
        self._settle_s = settle_s
        self._limiter = trio.CapacityLimiter(AT_A_TIME)
        self.seen: dict[tuple[str, int], Seen] = {}  # (run, token)

    def why(self, run: str) -> str:
        """Why the end of a run is still unknown; "" if this node does not look it up."""
        return next((seen.why for (known, _), seen in self.seen.items() if known == run), "")

    async def run(self) -> None:
        """Look again and again."""
        while True:
            await turn(LOOK_S)
            try:
                await self.look()
            except CoorddError as exc:
                log.debug("applications.not_looked", reason=str(exc))
            except Exception:  # the boundary of one look: a mistake here must not end the daemon
                log.exception("applications.look_failed")

    async def look(self) -> None:
        """One look at all such runs. Raises CoorddError."""
        if not self.driver.node.drives_elsewhere:
            self.seen.clear()
            return
        rows = await self.ledger.query(self._unknown)
        mine = [(row, job) for row in rows if (job := self._job(row)) is not None]
        known = {(row.run, int(row.token)) for row, _ in mine}
        self.seen = {key: seen for key, seen in self.seen.items() if key in known}
        async with trio.open_nursery() as nursery:
            for row, job in mine:
                seen = self.seen.setdefault((row.run, int(row.token)), Seen(boottime()))
                if boottime() >= seen.again_at:
                    nursery.start_soon(self._look_up, row, job, seen)

    def _unknown(self, ledger: Ledger) -> list[Row]:
        """The runs whose end is unknown. Many of other jobs, which wait for a person, must not hide those that are
        looked up.
        """
        rows = ledger.runs(state=UNKNOWN, limit=RUNS_MAX)
        if len(rows) < RUNS_MAX:
            return rows
        names = [name for name, job in self.driver.node.jobs.items() if job.drives_elsewhere]
        found = {row.run: row for name in names for row in ledger.runs(job=name, state=UNKNOWN, limit=RUNS_MAX)}
        return list(({row.run: row for row in rows} | found).values())

    def _job(self, row: Row) -> Job | None:
        """The job of a run that this node may look up."""
        job = self.driver.node.definition(row.job, row.digest)
        return job if job is not None and job.drives_elsewhere and job.on_lost == "relaunch" else None

    async def _look_up(self, row: Row, job: Job, seen: Seen) -> None:
        try:
            attempts = await self.ledger.query(lambda ledger: ledger.attempts(row.run))
            with trio.move_on_after(LOOKUP_S):
                verdict = await trio.to_thread.run_sync(
                    self._judge, row, job, attempts, seen, limiter=self._limiter, abandon_on_cancel=True
                )
                await self._act(row, seen, verdict)
                return
            self._waits(row, seen, f"the look-up took longer than {LOOKUP_S:g} s")
        except CoorddError as exc:
            self._waits(row, seen, f"the look-up failed: {exc}")
        except Exception as exc:  # the boundary of one run: the others are looked up all the same
            log.exception("application.look_failed", run=row.run)
            self._waits(row, seen, f"the look-up failed: a bug in coordd: {type(exc).__name__}: {exc!s:.200}")

    def _judge(self, row: Row, job: Job, attempts: list[AttemptRow], seen: Seen) -> Verdict:
        """Runs in a thread. Raises CoorddError."""
        manager = self.manager(job, row)
        if manager is None:
            return Verdict(WAIT, "its cluster manager has no look-up")
        run, earlier = unknown_run(row, boottime() - seen.since), earlier_of(row, attempts)
        known = {one.application_id for one in earlier if not one.settled} | {run.application_id}
        tokens = [run.token, *[one.token for one in earlier]]
        found = manager.find(run_mark(self.cluster, row.run), known - {""}, tokens)
        settle_s = self._settle_s()
        verdict = judge(run, found, earlier, settle_s=settle_s, forgets=None)
        if needs_memory(verdict):
            forgets = manager.keeps_since(row.received_at)
            verdict = judge(run, found, earlier, settle_s=settle_s, forgets=forgets)
        if verdict.word == END:
            for one in verdict.applications:
                manager.end(one.id)
        return verdict

    async def _act(self, row: Row, seen: Seen, verdict: Verdict) -> None:
        if verdict.word != REPORT:
            self._waits(row, seen, verdict.why, soon=verdict.word == END)
            return
        grant = Grant(run=row.run, attempt=AttemptNumber(row.attempt), token=row.token, nonce=row.nonce)
        report = Report(
            grant=grant,
            state=verdict.state,
            exit_code=verdict.exit_code,
            reason=verdict.why,
            application_id=verdict.application_id,
        )
        answer = await self.ledger.write(report)
        log.info("application.found", run=row.run, attempt=row.attempt, says=verdict.why, ledger=answer.word)
        if answer.word == OK:
            self.driver.feed(self.driver.node.pursuits.endings.tell, action_of(row), told(row, verdict))
            self.driver.feed(self.driver.node.look_again)

    def _waits(self, row: Row, seen: Seen, why: str, *, soon: bool = False) -> None:
        if why != seen.why:
            log.warning("application.unknown", run=row.run, attempt=row.attempt, reason=why)
        seen.why = why
        seen.again_at = boottime() + (AGAIN_S if soon else seen.pause_s)
        seen.pause_s = min(AGAIN_MAX_S, 2 * seen.pause_s)


def unknown_run(row: Row, quiet_s: float) -> Unknown:
    """What a judgement needs of the row."""
    return Unknown(
        attempt=int(row.attempt),
        token=int(row.token),
        application_id=row.application_id,
        reason=row.reason,
        cancelled=bool(row.cancel),
        relaunches=row.relaunches,
        relaunches_max=Policy.unpack(row.policy).relaunches,
        quiet_s=quiet_s,
    )


def earlier_of(row: Row, attempts: list[AttemptRow]) -> list[Earlier]:
    """The attempts before the current one, oldest first."""
    before = sorted([one for one in attempts if one.token < row.token], key=lambda one: int(one.token))
    return [Earlier(int(e.attempt), int(e.token), e.state, e.application_id, e.reason) for e in before]


def action_of(row: Row) -> Action:
    """The run as events name it."""
    return Action(row.job, row.run, row.attempt, row.fire_at, bool(row.scheduled), row.digest, row.args)


def told(row: Row, verdict: Verdict) -> Answer:
    """The end of the attempt, for the history."""
    ended = Ended(
        attempt=row.attempt,
        token=row.token,
        nonce=row.nonce,
        node=row.node,
        reason=verdict.why,
        digest=row.digest,
        policy=row.policy,
        lease_s=row.lease,
    )
    return Answer(FINISHED, state=LOST if verdict.state == RETRY else verdict.state, ended=ended)
