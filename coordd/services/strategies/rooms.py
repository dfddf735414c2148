"""Measures the machine, and asks the strategies how many runs there is room for.

The built-in strategies are in core/node/room.py. Others come from entry points of the group ``coordd.strategies``, and
run in processes of their own. If one fails, or says something absurd, the log says so once.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import structlog
import trio

from coordd.config.values import CONFIG_BACKENDS
from coordd.core.node.room import Auto, Room, Strategy, by_load, by_memory
from coordd.core.visible import visible
from coordd.errors import UnavailableError
from coordd.plugins import BOOT_STEPS, CHECKS, COMMANDS, SERVICES, SINKS, STRATEGIES, TOPICS, TRIGGERS
from coordd.plugins.calling import LOADING, host
from coordd.plugins.installed import misfit, package_of, points
from coordd.services.control.doctor import OK, WARN, Check, check
from coordd.services.driver import Driver
from coordd.services.ledger import boottime
from coordd.services.programs.child import environment
from coordd.services.strategies.hosted import ASKED_S, Hosted

log = structlog.get_logger("rooms")

# How long (seconds) a plug-in may take to load, for ``doctor``.
LOADED_S = 5.0

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


def brought(group: str, what: str) -> list[tuple[str, str, str]]:
    """(name, its package and version, "" or why it cannot be used) of each plug-in of that group. Blocking: each is
    loaded in a process of its own.
    """
    return [
        (point.name, f"{what} of {package_of(point)}", misfit(point) or _not_loaded(group, point.name, point.value))
        for point in points(group)
    ]


def _not_loaded(group: str, name: str, value: str) -> str:
    argv = host(LOADING, name, json.dumps({"group": group}))
    try:
        tried = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment(finds_packages=True),
            cwd="/",
            timeout=LOADED_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{value} did not load within {LOADED_S:g} s"
    except OSError as exc:
        return f"{value} cannot be loaded: {exc.strerror or exc}"
    if tried.returncode == 0:
        return ""
    said = tried.stdout.decode(errors="replace").strip().removeprefix("problem ")
    return visible(f"{value} cannot be loaded: {said}")[:200]


def plugin_checks() -> list[Check]:
    """For ``doctor``: every plug-in, with its version; a broken one is named."""
    tried = ((STRATEGIES, "a strategy"), (CONFIG_BACKENDS, "a configuration backend"))
    apart = (
        (BOOT_STEPS, "a boot step"),
        (CHECKS, "a check"),
        (COMMANDS, "a command"),
        (SERVICES, "a service"),
        (SINKS, "a sink"),
        (TOPICS, "a topic"),
        (TRIGGERS, "a trigger"),
    )
    advice = "it is not used: repair or remove its package"
    return [
        check(f"plug-in {name}", WARN if wrong else OK, wrong or text, advice)
        for group, what in tried
        for name, text, wrong in brought(group, what)
    ] + [
        check(
            f"plug-in {point.name}",
            WARN if misfit(point) else OK,
            misfit(point) or f"{what} of {package_of(point)}",
            advice,
        )
        for group, what in apart
        for point in points(group)
    ]


class Rooms:
    """The budget of this node, and the present concurrency of the jobs that leave it to a strategy."""

    def __init__(self, driver: Driver, measure: Callable[[], tuple[float, float]] = measured) -> None:
        self._driver = driver
        self._measure = measure
        self._sizes: dict[str, int] = {}  # BUDGET, or a job -> what its strategy said last
        self._strategies: dict[tuple[str, str], Strategy] = {}  # (BUDGET or a job, strategy's name) -> the strategy
        self._troubles: dict[str, str] = {}  # BUDGET, or a job -> what is wrong with its strategy
        self._hosted = Hosted("room")
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
        await self._hosted.keep({name for _, name, _, _ in wanted})
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
        try:
            if (make := BUILT_IN.get(name)) is not None:
                said: Any = self._strategies.setdefault((key, name), make())(room)
            else:
                answer = await self._hosted.ask(name, [room])
                if answer is None:
                    return room.size
                said = answer[0]
        except trio.TooSlowError:
            self._trouble(key, name, f"no answer within {ASKED_S:g} s; it was ended, and is asked again later")
            return room.size
        except UnavailableError as exc:
            self._trouble(key, name, str(exc))
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
