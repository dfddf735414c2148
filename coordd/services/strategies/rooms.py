"""Measures the machine, and asks the strategies how many runs there is room for.

The built-in strategies are in core/node/room.py, others come from packages (brought.py). If one fails, or says
something absurd, the log says so once, and what held before holds on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import structlog
import trio

from coordd.core.node.room import Auto, Room, Strategy, by_load, by_memory
from coordd.services.driver import Driver
from coordd.services.ledger import boottime
from coordd.services.strategies.brought import Brought, Said, StrategyError

log = structlog.get_logger("rooms")

# A run that waited for the budget counts as waiting for this long (seconds): it asks again with a growing pause.
WANTED_S = 60.0

# The built-in strategies by name: each call makes one, because some keep what was.
BUILT_IN: dict[str, Callable[[], Strategy]] = {"auto": Auto, "load": lambda: by_load, "memory": lambda: by_memory}

BUDGET = "budget"
OF_JOB = "job:"


def measured() -> tuple[float, float]:
    """The load average of the last minute for each processor, and the available share of the memory."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    found = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            name, _, said = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(said.split()[0])
    return load, found["MemAvailable"] / found["MemTotal"]


class Rooms:
    """The budget of this node, and the present concurrency of the jobs that leave it to a strategy."""

    def __init__(self, driver: Driver, brought: Brought, measure: Callable[[], tuple[float, float]] = measured) -> None:
        self._driver = driver
        self._brought = brought
        self._measure = measure
        self._sizes: dict[str, int] = {}  # BUDGET, or a job -> what its strategy said last
        self._strategies: dict[tuple[str, str], Strategy] = {}  # (BUDGET or a job, its name) -> a built-in strategy
        self._troubles: dict[str, str] = {}  # BUDGET, or a job -> what is wrong with its strategy
        self._wanted_at = -WANTED_S

    async def look(self) -> None:
        """Ask all strategies, and tell the core."""
        node = self._driver.node
        wanted = list(self._asked())
        now = boottime()
        if node.pursuits.short:
            node.pursuits.short = False
            self._wanted_at = now
        rooms: dict[str, Room] = {}
        if wanted:
            load, memory = self._measure()
            busy = sum(not waits for _, _, waits in node.pursuits.running.values())
            short = now - self._wanted_at < WANTED_S
            for key, _, least, most in wanted:
                size = min(max(self._sizes.get(key, least), least), most)
                rooms[key] = Room(least, most, size, busy, short, load, memory, now)
        names = {key: name for key, name, _, _ in wanted}
        answers = self._ask_built_in(names, rooms)
        async with trio.open_nursery() as nursery:  # several that hang take no longer than one
            for name in {*names.values()} - BUILT_IN.keys():
                asked = {key: room for key, room in rooms.items() if names[key] == name}
                nursery.start_soon(self._ask, name, asked, answers)
        sizes = {key: self._bounded(key, names[key], room, answers[key]) for key, room in rooms.items()}
        self._strategies = {of: one for of, one in self._strategies.items() if of[0] in sizes}
        self._troubles = {key: said for key, said in self._troubles.items() if key in sizes}
        if self._sizes.get(BUDGET) != sizes.get(BUDGET) and BUDGET in sizes:
            log.info("budget.changed", runs=sizes[BUDGET], before=self._sizes.get(BUDGET))
        self._sizes = dict(sizes)
        budget = sizes.pop(BUDGET, None)
        node.loaded(os.getloadavg(), budget, {key.removeprefix(OF_JOB): size for key, size in sizes.items()})

    def _asked(self) -> Iterator[tuple[str, str, int, int]]:
        """(BUDGET or a job, the strategy's name, least, most)."""
        settings = self._driver.node.settings
        if settings.budget_by:
            yield BUDGET, settings.budget_by, settings.budget_min, settings.budget_client
        for job in self._driver.node.jobs.values():
            if job.concurrency is not None and job.concurrency.by:
                # A job has no name with a ":", so none is taken for the budget.
                yield OF_JOB + job.name, job.concurrency.by, job.concurrency.min, job.concurrency.max

    def _ask_built_in(self, names: dict[str, str], rooms: dict[str, Room]) -> dict[str, Said | None]:
        answers: dict[str, Said | None] = {}
        for key, name in names.items():
            if name in BUILT_IN:
                strategy = self._strategies.get((key, name))
                if strategy is None:
                    strategy = self._strategies[key, name] = BUILT_IN[name]()
                answers[key] = Said(strategy(rooms[key]), "")
        return answers

    async def _ask(self, name: str, rooms: dict[str, Room], answers: dict[str, Said | None]) -> None:
        """What the strategy of a package says of each; None while it is loaded."""
        said: Sequence[Said | None] | None
        try:
            said = await self._brought.ask(name, "room", [*rooms.values()])
        except StrategyError as exc:
            said = [Said(None, str(exc))] * len(rooms)
        answers.update(zip(rooms, said or [None] * len(rooms), strict=True))

    def _bounded(self, key: str, name: str, room: Room, answer: Said | None) -> int:
        """What the strategy says, within its bounds; what held before if it says nothing."""
        if answer is None or answer.problem:
            if answer is not None:
                self._trouble(key, name, answer.problem)
            return room.size
        said: Any = answer.value
        if not isinstance(said, int) or isinstance(said, bool) or not room.least <= said <= room.most:
            self._trouble(key, name, f"said {said!r:.60}; expected a whole number from {room.least} to {room.most}")
            return min(max(said, room.least), room.most) if isinstance(said, int) else room.size
        self._troubles.pop(key, None)
        return said

    def _trouble(self, key: str, name: str, what: str) -> None:
        if self._troubles.get(key) != what:
            self._troubles[key] = what
            log.warning("strategy.absurd", strategy=name, of=key, problem=what)
