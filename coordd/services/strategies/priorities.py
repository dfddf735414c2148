"""Asks the strategy of priorities (``[cluster] priority``) which jobs go first, by what the ledger knows of their runs.

The built-in strategies are in core/node/room.py, others come from packages (brought.py). If one fails, or says
something absurd, the log says so once, and what it said before holds on.
"""

from __future__ import annotations

import math
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
from coordd.services.strategies.brought import Brought, Said, StrategyError

log = structlog.get_logger("priorities")

# How often (seconds) the jobs' runs are read, how soon again if the ledger did not answer, and how many of each job.
LOOK_S = 30.0
AGAIN_S = 2.0
RUNS_MAX = 50


class Priorities:
    """What the strategy says of each job."""

    def __init__(self, driver: Driver, ledger: LedgerService, brought: Brought) -> None:
        self._driver = driver
        self._ledger = ledger
        self._brought = brought
        self._scores: dict[str, float] = {}
        self._asked = ""  # the name of the strategy that was asked last
        self._trouble = ""

    async def run(self) -> None:
        """Ask for ever."""
        while True:
            answered = await self.look()
            await trio.sleep(LOOK_S if answered else AGAIN_S)

    async def look(self) -> bool:
        """Ask about all jobs, and tell the core. False without an answer of the ledger or of the strategy."""
        node = self._driver.node
        name = node.settings.priority_by
        if name != self._asked:
            self._scores, self._asked, self._trouble = {}, name, ""
        if name:
            try:
                pasts = [await self._past(job) for job in sorted(node.jobs)]
            except CoorddError:
                return False  # what it said before holds on
            try:
                scores = await self._ask(name, pasts)
                if scores is None:
                    return False  # it is loaded
                self._scores, self._trouble = scores, ""
            except StrategyError as exc:
                self._failed(name, str(exc)[:300])
        node.pursuits.scored(self._scores)
        return True

    async def _past(self, job: str) -> Past:
        wall = self._driver.now().wall
        rows = await self._ledger.query(lambda ledger: ledger.runs(job=job, limit=RUNS_MAX))
        return past_of(job, [row for row in rows if not run_fault(row)], wall)

    async def _ask(self, name: str, pasts: list[Past]) -> dict[str, float] | None:
        """What it says of each job; None while it is loaded. Raises StrategyError."""
        if (built_in := PRIORITIES.get(name)) is not None:
            return {past.job: built_in(past) for past in pasts}
        answers = await self._brought.ask(name, "past", pasts)
        return None if answers is None else {past.job: _number(said) for past, said in zip(pasts, answers, strict=True)}

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


def _number(said: Said) -> float:
    if said.problem:
        raise StrategyError(said.problem)
    value = said.value
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise StrategyError(f"it said {value!r:.60}; expected a number")
    return float(value)
