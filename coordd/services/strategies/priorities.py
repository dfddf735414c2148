"""Asks the strategy of priorities (``[cluster] priority``) which jobs go first, by what the ledger knows of their runs.

The built-in strategies are in core/node/room.py. A strategy of a package runs in a thread with a deadline. If it fails,
or says something absurd, the log says so once, and what it said before holds on. One that does not answer keeps its
thread, so it is asked again only when that call has ended: the threads of the daemon are for others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median

import structlog
import trio

from coordd.core.ledger.rows import Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import SUCCESS
from coordd.core.node.room import PRIORITIES, Past
from coordd.errors import CoorddError
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService
from coordd.services.strategies.rooms import ASKED_S, loaded

log = structlog.get_logger("priorities")

# How often (seconds) the jobs' runs are read, how soon again if the ledger did not answer, and how many of each job.
LOOK_S = 30.0
AGAIN_S = 2.0
RUNS_MAX = 50

Ordering = Callable[[Past], float]


class Priorities:
    """What the strategy says of each job."""

    def __init__(self, driver: Driver, ledger: LedgerService) -> None:
        self._driver = driver
        self._ledger = ledger
        self._scores: dict[str, float] = {}
        self._asked = ""  # the name of the strategy that was asked last
        self._strategies: dict[str, Ordering] = {}  # those of packages that were loaded
        self._calls: dict[str, trio.CapacityLimiter] = {}  # for each of them, one call at a time
        self._trouble = ""

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            answered = await self.look()
            await trio.sleep(LOOK_S if answered else AGAIN_S)

    async def look(self) -> bool:
        """Ask about all jobs, and tell the core. False if the ledger did not answer."""
        node = self._driver.node
        name = node.settings.priority_by
        if name != self._asked:
            self._scores, self._asked, self._trouble = {}, name, ""
        if name and not self._hangs(name):
            try:
                pasts = [await self._past(job) for job in sorted(node.jobs)]
            except CoorddError:
                return False  # what it said before holds on
            try:
                self._scores = await self._ask(name, pasts)
                self._trouble = ""
            except trio.TooSlowError:
                self._failed(name, f"no answer within {ASKED_S:g} s; it is asked again when that call has ended")
            except Exception as exc:  # a plug-in's own code: whatever it raises, it is named here
                self._failed(name, f"failed: {type(exc).__name__}: {exc}"[:200])
        node.pursuits.scored(self._scores)
        return True

    async def _past(self, job: str) -> Past:
        wall = self._driver.now().wall
        rows = await self._ledger.query(lambda ledger: ledger.runs(job=job, limit=RUNS_MAX))
        return past_of(job, [row for row in rows if not run_fault(row)], wall)

    def _hangs(self, name: str) -> bool:
        """True while the last call of a package's strategy has not ended."""
        return name in self._calls and self._calls[name].borrowed_tokens > 0

    async def _ask(self, name: str, pasts: list[Past]) -> dict[str, float]:
        def ask() -> dict[str, float]:
            strategy = PRIORITIES.get(name) or self._strategies.get(name)
            if strategy is None:
                strategy = self._strategies[name] = loaded(name)
            return {past.job: _number(strategy(past)) for past in pasts}

        if name in PRIORITIES:
            return ask()
        limiter = self._calls.setdefault(name, trio.CapacityLimiter(1))
        with trio.fail_after(ASKED_S):
            return await trio.to_thread.run_sync(ask, abandon_on_cancel=True, limiter=limiter)

    def _failed(self, name: str, what: str) -> None:
        if self._trouble != what:
            self._trouble = what
            log.warning("strategy.absurd", strategy=name, of="priority", problem=what)


def past_of(job: str, rows: list[Row], wall: float) -> Past:
    """What the newest runs of a job say; ``wall`` is now (Unix seconds)."""
    lasted = [row.ended_at - row.started_at for row in rows if row.state == SUCCESS and row.started_at > 0]
    dues = [row.due_at for row in rows]
    every_s = (max(wall, *dues) - min(dues)) / len(dues) if dues else None
    return Past(job, len(rows), max(0.0, median(lasted)) if lasted else None, every_s)


def _number(said: object) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float) or math.isnan(said):
        raise TypeError(f"it said {said!r:.60}; expected a number")
    return float(said)
