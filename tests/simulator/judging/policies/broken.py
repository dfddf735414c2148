"""BR: of a job whose breaker is open nothing starts but the run that tries, and no breaker stays half-open.

The judge reads the state that the ledger keeps after each operation on such a job, and compares a grant with the state
before it. A ledger that goes back may have forgotten an end, or the state: the judge begins again then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.ledger.breaker.rule import TRYING
from coordd.core.ledger.breaker.text import HALF_OPEN, OPEN, State
from coordd.core.ledger.requests import Claim, ListOpen
from coordd.core.ledger.rows import OF_BREAKER
from coordd.core.ledger.words import GRANTED, PENDING
from simulator.judging.limits import taken_for_good, waits_for_good
from simulator.policies import BREAKERS

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World


class Broken:
    """The breakers of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: set[str] = set()  # the states that some breaker had
        self._kept: dict[str, State] = {}  # job -> its state after the last operation on it
        self._setbacks = 0

    def operation(self, _: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """Check a grant against the state before it, and the state after each operation."""
        if BREAKERS not in self.world.plan.kinds or row is None:
            return
        job = self.world.known_jobs.get(row.digest)
        setbacks = len(self.world.server.setbacks)
        if setbacks != self._setbacks:
            self._setbacks = setbacks
            self._kept.clear()
        if job is None or job.breaker is None:
            return
        was, now = self._kept.get(row.job), self._read(row.job)
        self._kept[row.job] = now
        self.seen.add(now.state)
        fresh = before is None or before.state == PENDING
        if isinstance(request, Claim) and answer.word == GRANTED and fresh and was is not None and job.breaker.enforce:
            self._judge(row, was)
        if now.state == HALF_OPEN and not self._tries(now.probe) and not self.world.server.setbacks:
            self.world.violate(f"BR the breaker of {row.job} is half-open, and {now.probe} does not try")

    def _judge(self, row: Row, was: State) -> None:
        at = max(self.world.server.wall(), row.not_before)
        if was.state == OPEN and at < was.retry_at - 0.001:  # three decimals are kept
            self.world.violate(f"BR {row.run} was granted while the breaker of its job is open")
        if was.state == HALF_OPEN and was.probe != row.run and self._tries(was.probe):
            self.world.violate(f"BR {row.run} was granted beside {was.probe}, which tries")

    def end(self) -> None:
        """Long after the faults nothing tries any more, but a run that cannot start before a person has acted."""
        if BREAKERS not in self.world.plan.kinds:
            return
        taken = taken_for_good(self.world)
        for job in sorted(self._kept):
            kept = self._read(job)
            row = self.world.server.row(kept.probe)
            waits = row is not None and waits_for_good(self.world, row, taken)
            if kept.state == HALF_OPEN and not self.world.server.setbacks and not waits:
                self.world.violate(f"BR the breaker of {job} is still half-open: {kept.probe} tries")

    def _tries(self, run: str) -> bool:
        row = self.world.server.row(run)
        return row is not None and row.state in TRYING

    def _read(self, job: str) -> State:
        hold = self.world.ledger.ask(ListOpen(jobs=(), limit=1)).holds.get(OF_BREAKER + job)
        return State.read(hold.note) if hold is not None else State()
