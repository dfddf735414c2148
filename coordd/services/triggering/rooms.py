"""How many arrivals a job has room for: one count for all its triggers on this node."""

from __future__ import annotations

from typing import NamedTuple

import trio

from coordd.core.jobs.job import Job
from coordd.core.ledger.rows import OF_BREAKER, OF_ISOLATED, Hold
from coordd.core.ledger.words import STATES, TERMINAL
from coordd.ports import Ledger
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService
from coordd.services.triggering.registering import breaker_lets, may_start

# How long (seconds) the number of open runs counts, with those that were taken since.
COUNTED_S = 1.0

OPEN_STATES = tuple([state for state in STATES if state not in TERMINAL])


class _Count(NamedTuple):
    """``runs``: open ones, up to the limit; ``lets``: how many the job's breaker lets be open, None: any number."""

    at: float
    runs: int
    lets: int | None


class Rooms:
    """The open runs of the jobs of this node that have triggers."""

    def __init__(self, driver: Driver, ledger: LedgerService) -> None:
        self._driver = driver
        self._ledger = ledger
        self._turns: dict[str, trio.Lock] = {}  # by job
        self._counts: dict[str, _Count] = {}

    def turn(self, job: str) -> trio.Lock:
        """Who counts holds it until what it took is registered: two triggers must not both take the last place."""
        return self._turns.setdefault(job, trio.Lock())

    async def room(self, job: Job, most: int) -> int:
        """The same as ``counted``, for who registers nothing."""
        async with self.turn(job.name):
            return await self.counted(job, most)

    async def counted(self, job: Job, most: int) -> int:
        """How many arrivals of a trigger with this `max_open` may be taken now. Who calls has the turn.

        Raises UnavailableError.
        """
        if may_start(self._driver, job):
            return 0
        now = self._driver.now().mono
        count = self._counts.get(job.name)
        if count is None or now - count.at > COUNTED_S or not _left(count, most):
            count = self._counts[job.name] = _Count(now, *await self._read(job))
        return _left(count, most)

    def took(self, job: str) -> None:
        """One more run is open."""
        if (count := self._counts.get(job)) is not None:
            self._counts[job] = count._replace(runs=count.runs + 1)

    def forget(self, job: str) -> None:
        """The count may be old."""
        self._counts.pop(job, None)

    async def _read(self, job: Job) -> tuple[int, int | None]:
        """The open runs, and what the breaker lets through: what this node knows of it may be some seconds old."""
        most = max([one.max_open for one in job.triggers], default=1)
        keys = (OF_BREAKER + job.name, OF_ISOLATED + job.name) if job.breaker is not None else ()

        def read(ledger: Ledger) -> tuple[int, dict[str, Hold | None]]:
            runs = sum(len(ledger.runs(job=job.name, state=state, limit=most)) for state in OPEN_STATES)
            return runs, {key: ledger.mark(key) for key in keys}

        runs, marks = await self._ledger.query(read)
        return runs, breaker_lets(self._driver, job, {key: hold for key, hold in marks.items() if hold is not None})


def _left(count: _Count, most: int) -> int:
    return max(0, (most if count.lets is None else min(most, count.lets)) - count.runs)
