"""QU: the queue of a job has its length and its order, and what is rejected is what its ``queue_keep`` does not keep.

The judge compares the rows that wait after each claim with those that waited before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.ledger.breaker.text import PREVENTED_BY
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import GRANTED, LIMITED, PENDING, REJECTED

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

# Answers of a claim that nobody has judged a queue for: something else stops the run.
STOPPED = frozenset(("suspended", "drained", "newcomer"))

# The place of a run in the queue of its job.
Place = tuple[float, str]


class Queues:
    """The queues of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._waited: dict[str, set[Place]] = {}  # job -> those that waited after the last operation on it
        self._setbacks = 0

    def operation(
        self, _host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None
    ) -> None:
        """Check each claim of a job that has a queue."""
        setbacks = len(self.world.server.setbacks)
        if setbacks != self._setbacks:
            self._setbacks = setbacks
            self._waited.clear()
        job = self.world.known_jobs.get(row.digest) if row is not None else None
        queues = job is not None and job.overlap == "queue"
        if row is None or not (queues or row.job in self._waited):
            return
        waits = {
            (one.not_before, one.run)
            for one in self.world.server.open_rows()
            if one.job == row.job and one.state == PENDING
        }
        waited = self._waited.get(row.job)
        self._waited[row.job] = waits
        if isinstance(request, Claim) and waited is not None and job is not None and queues:
            self._judge(job, request, answer, (before, row), (waited, waits))

    def _judge(
        self,
        job: Job,
        claim: Claim,
        answer: Answer,
        rows: tuple[Row | None, Row],
        queues: tuple[set[Place], set[Place]],
    ) -> None:
        before, row = rows
        waited, waits = queues
        mine, world = (row.not_before, row.run), self.world
        first_time = before is None or before.state == PENDING
        ahead = sorted(place for place in waited if place < mine)
        still = [place for place in waits if place < mine]
        length = f"{job.name} keeps the {job.queue_keep} {job.queue_max}"
        if answer.word == GRANTED and first_time and row.attempt == 0 and ahead:
            world.violate(f"QU {row.run} was granted, and {ahead[0][1]} waits before it")
        keeps_last = job.queue_keep == "last" and job.queue_max > 0
        by_queue = row.state == REJECTED and row.reason != PREVENTED_BY
        if by_queue and first_time and (keeps_last or len(ahead) < job.queue_max):
            world.violate(f"QU {row.run} was rejected, {len(ahead)} wait before it, and {length}")
        gone = sorted(place for place in waited - waits if place[1] != row.run)
        if not gone and answer.word != LIMITED:
            return
        due = row.not_before <= world.server.wall() and answer.by not in STOPPED
        if row.state == PENDING and answer.word == LIMITED and due and still and len(still) >= job.queue_max:
            world.violate(f"QU {row.run} waits, {len(still)} wait before it, and {length}")
        if gone and (job.queue_keep != "last" or gone != ahead[: len(ahead) - job.queue_max + 1]):
            world.violate(f"QU a claim of {row.run} has rejected {[run for _, run in gone]}, and {length}")
        for _, run in gone:
            other = world.server.row(run)
            if other is not None and other.state != REJECTED:
                world.violate(f"QU {run} is {other.state} after a claim of {claim.of.run}")
