"""TP: the pause before a retry is the one that its definition says, and no shorter; somebody takes it soon after.

The judge computes the pause from the job's definition as the world has it: the delay, its back-off and its jitter, of
which run and attempt decide the share (docs/protocol.md, limits of a policy). When a gate lets the retry through, the
ledger's clock as it is then says when it may start. If that clock was set back since the failure, the ledger does not
believe its own date any more, and the judge leaves that retry out.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from coordd.core.ledger.requests import Claim
from coordd.core.ledger.runner_requests import Gate, Report
from coordd.core.ledger.words import GRANTED, OK, RETRY
from simulator.judging.leave import EXACT_S
from simulator.judging.policies.able import CALM_FROM_S, Able
from simulator.policies import RETRIES

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.judging.judge import Child
    from simulator.judging.knowledge import Key
    from simulator.world import Host, World

# A retry that is due is taken within this time (seconds), if a node can. How often that is looked at.
TAKEN_S = 8.0
LOOK_S = 1.0


def pause_of(job: Job, failures: int, run: str, attempt: int) -> float:
    """Seconds between the failure of that attempt and the next attempt."""
    retry = job.retry
    growth: int = {"fixed": 1, "linear": failures, "exponential": 2 ** (failures - 1)}[retry.backoff]
    share = int(hashlib.sha1(f"{run}/{attempt}".encode(), usedforsecurity=False).hexdigest()[:8], 16) / 2**32
    return retry.delay_s * growth * (1 + retry.jitter * share)


class Pauses:
    """The retries of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.able = Able(world)
        self._due: dict[tuple[str, int], float] = {}  # (run, attempt) -> when its pause is over, by the ledger's clock
        self._set_back: dict[tuple[str, int], float] = {}  # how far the ledger's clock had been set back then
        self._granted: dict[Key, float] = {}  # the same of what was granted
        self._from: dict[Key, float] = {}  # since when it may start (true time)
        self._since: dict[str, float] = {}  # run -> since when its retry is due and somebody can take it
        self.judged = 0
        if RETRIES in world.plan.kinds:
            world.at(CALM_FROM_S, self._look)

    def operation(self, host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """Check one operation that was executed."""
        if row is None:
            return
        if before is not None and row.state == RETRY and before.state != RETRY:
            self._pauses(before, row, failed=isinstance(request, Report) and row.failures > before.failures)
        if isinstance(request, Claim) and answer.word == GRANTED:
            due = self._due.get((row.run, row.attempt))
            if due is not None and self._set_back[row.run, row.attempt] == self.world.server.ahead_s:
                self._granted[row.run, row.attempt, row.token] = due
        if isinstance(request, Gate) and answer.word == OK:
            grant = request.grant
            key = (grant.run, grant.attempt, grant.token)
            server = self.world.server
            if key in self._granted and self._set_back[key[:2]] == server.ahead_s:
                at = self.world.now + (self._granted[key] - server.wall()) / server.rate
                self._from[key] = min(at, self._from.get(key, at))

    def launched(self, child: Child) -> None:
        """A program was started."""
        if child.key not in self._granted:
            return
        self.judged += 1
        at = self._from.get(child.key, 0.0)
        if self.world.now < at - EXACT_S:
            self.world.violate(
                f"TP {child.run}/{child.attempt} starts {at - self.world.now:.3f} s before its pause is over"
            )

    def _pauses(self, before: Row, row: Row, *, failed: bool) -> None:
        """An attempt is over, and another follows. If it was lost, or a person wants one more, there is no pause."""
        world, key = self.world, (row.run, row.attempt)
        self._due.pop(key, None)
        job = world.known_jobs.get(before.digest)
        if not failed or job is None:
            return
        wall = world.server.wall()
        self._set_back[key] = world.server.ahead_s
        pause_s = pause_of(job, row.failures, before.run, before.attempt)
        if row.scheduled or row.due_at <= wall:  # otherwise it was asked for by a clock that was ahead
            self._due[key] = wall + pause_s
        due = max(row.due_at, wall + pause_s)
        if abs(row.not_before - due) > EXACT_S:
            world.violate(
                f"TP {row.run}/{row.attempt} is due {row.not_before - wall:.3f} s after a failure, "
                f"and its job says {due - wall:.3f} s"
            )

    def _look(self) -> None:
        """Is a retry due that somebody can take, and nobody does?"""
        world = self.world
        world.at(LOOK_S, self._look)
        wall = world.server.wall()
        due = {
            row.run: row
            for row in world.server.open_rows()
            if row.state == RETRY and row.not_before <= wall and self.able.anybody(row)
        }
        self._since = {run: self._since.get(run, world.now) for run in due}
        for run, since in self._since.items():
            if world.now - since > TAKEN_S and self.able.calm(since):
                world.violate(f"TP {run}/{due[run].attempt} is due for {world.now - since:.1f} s, and nobody takes it")
