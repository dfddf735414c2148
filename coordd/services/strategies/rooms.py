"""Measures the machine, and asks the strategies how many runs there is room for.

The built-in strategies are in core/node/room.py. Others come from entry points of the group ``coordd.strategies``. Such
a plug-in runs in a thread with a deadline. If it fails, or says something absurd, the log says so once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import structlog
import trio

from coordd.config.values import CONFIG_BACKENDS, STRATEGIES
from coordd.core.node.room import Auto, Room, Strategy, by_load, by_memory
from coordd.plugins import BOOT_STEPS, CHECKS, COMMANDS, SERVICES, SINKS, TRIGGERS
from coordd.plugins.installed import misfit, package_of, points
from coordd.services.control.doctor import OK, WARN, Check, check
from coordd.services.driver import Driver
from coordd.services.ledger import boottime

log = structlog.get_logger("rooms")

# How long (seconds) a plug-in may take.
ASKED_S = 1.0

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


def installed(name: str) -> metadata.EntryPoint | None:
    """The strategy of that name that a package brings."""
    return next(iter(metadata.entry_points(group=STRATEGIES, name=name)), None)


def brought(group: str = STRATEGIES, what: str = "a strategy") -> list[tuple[str, str, str]]:
    """(name, its package and version, "" or why it cannot be used) of each plug-in of that group."""
    found = []
    for point in points(group):
        wrong = ""
        try:
            wrong = misfit(point)
            if not wrong and not callable(point.load()):
                wrong = f"{point.value} is not callable"
        except Exception as exc:  # a plug-in's own code: whatever it raises is told
            wrong = f"{point.value} cannot be loaded: {type(exc).__name__}: {exc}"[:200]
        found.append((point.name, f"{what} of {package_of(point)}", wrong))
    return found


def plugin_checks() -> list[Check]:
    """For ``doctor``: every plug-in, with its version; a broken one is named."""
    kinds = ((STRATEGIES, "a strategy"), (CONFIG_BACKENDS, "a configuration backend"))
    # Not loaded here: they run in processes of their own.
    apart = (
        (BOOT_STEPS, "a boot step"),
        (CHECKS, "a check"),
        (COMMANDS, "a command"),
        (SERVICES, "a service"),
        (SINKS, "a sink"),
        (TRIGGERS, "a trigger"),
    )
    advice = "it is not used: repair or remove its package"
    return [
        check(f"plug-in {name}", WARN if wrong else OK, wrong or text, advice)
        for group, what in kinds
        for name, text, wrong in brought(group, what)
    ] + [
        check(f"plug-in {point.name}", WARN if wrong else OK, wrong or f"{what} of {package_of(point)}", advice)
        for group, what in apart
        for point in points(group)
        for wrong in (misfit(point),)
    ]


class Rooms:
    """The budget of this node, and the present concurrency of the jobs that leave it to a strategy."""

    def __init__(self, driver: Driver, measure: Callable[[], tuple[float, float]] = measured) -> None:
        self._driver = driver
        self._measure = measure
        self._sizes: dict[str, int] = {}  # BUDGET, or a job -> what its strategy said last
        self._strategies: dict[tuple[str, str], Strategy] = {}  # (BUDGET or a job, strategy's name) -> the strategy
        self._troubles: dict[str, str] = {}  # BUDGET, or a job -> what is wrong with its strategy
        self._hung: set[str] = set()  # strategies that did not answer in time: not asked again
        self._wanted_at = -WANTED_S

    async def look(self) -> None:
        """Ask all strategies, and tell the core."""
        node = self._driver.node
        wanted = list(self._asked())
        now = boottime()
        if node.pursuits.short:
            node.pursuits.short = False
            self._wanted_at = now
        sizes: dict[str, int] = {}
        if wanted:
            load, memory = self._measure()
            busy = sum(not waits for _, _, waits in node.pursuits.running.values())
            for key, name, least, most in wanted:
                size = min(max(self._sizes.get(key, least), least), most)
                short = now - self._wanted_at < WANTED_S
                sizes[key] = await self._ask(key, name, Room(least, most, size, busy, short, load, memory, now))
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

    async def _ask(self, key: str, name: str, room: Room) -> int:
        """What the strategy says, within its bounds; what held before if it fails."""
        if name in self._hung:
            return room.size
        strategy = self._strategies.get((key, name))
        try:
            if strategy is None:
                make = BUILT_IN.get(name)
                strategy = make() if make is not None else await _in_thread(loaded, name)
                self._strategies[key, name] = strategy
            said = strategy(room) if name in BUILT_IN else await _in_thread(strategy, room)
        except trio.TooSlowError:
            self._hung.add(name)
            self._trouble(key, name, f"no answer within {ASKED_S:g} s; it is not asked again")
            return room.size
        except Exception as exc:  # a plug-in's own code: whatever it raises, it is disabled here and named
            self._trouble(key, name, f"failed: {type(exc).__name__}: {exc}"[:200])
            return room.size
        if not isinstance(said, int) or isinstance(said, bool) or not room.least <= said <= room.most:
            self._trouble(key, name, f"said {said!r:.60}; expected a whole number from {room.least} to {room.most}")
            return min(max(said, room.least), room.most) if isinstance(said, int) else room.size
        self._troubles.pop(key, None)
        return said

    def _trouble(self, key: str, name: str, what: str) -> None:
        if self._troubles.get(key) != what:
            self._troubles[key] = what
            log.warning("strategy.absurd", strategy=name, of=key, problem=what)


def loaded(name: str) -> Any:
    """The strategy of that name that a package brings. Blocks: the package is imported. Raises LookupError if there is
    none, and what the package raises.
    """
    found = installed(name)
    if found is None:
        raise LookupError(f"no installed package brings it (entry points, group {STRATEGIES})")
    return found.load()


async def _in_thread(of_plugin: Callable[[Any], Any], argument: object) -> Any:
    """What a plug-in's code returns. Raises trio.TooSlowError after ASKED_S; the thread is left to itself then."""
    with trio.fail_after(ASKED_S):
        return await trio.to_thread.run_sync(of_plugin, argument, abandon_on_cancel=True)
