"""The strategies: how many runs a machine has room for, and which jobs go first.

A strategy of a node's budget or of a job's concurrency is a callable. It takes a ``Room``, which says what the machine
has and does, and returns a number of runs. A strategy of priorities takes a ``Past``, which says how the runs of a job
were, and returns a number: the job with the highest goes first.

The shell measures and asks (services/strategies); sites can bring strategies of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

# The load average of a minute, for each processor. Below CALM_LOAD there is room for more; above HOT_LOAD too much
# runs.
CALM_LOAD = 0.7
HOT_LOAD = 1.2

# The share of the memory that is available. Below LOW_MEMORY too much runs; above ENOUGH_MEMORY there is room for more.
LOW_MEMORY = 0.1
ENOUGH_MEMORY = 0.25

# Seconds between two changes: the load average needs about as long to show the first one.
PAUSE_S = 30.0

# Each time that too much runs, the pause before the next growth doubles, up to this (seconds).
PAUSE_MAX_S = 960.0

# A budget of which less than half was used for this long (seconds) is halved.
IDLE_S = 300.0


class Room(NamedTuple):
    """What a strategy is told. ``load``: the load average of the last minute, for each processor; ``memory``: the
    available share of the memory; ``at``: seconds on a clock that never steps.
    """

    least: int
    most: int
    size: int  # what it said last, or ``least``
    busy: int  # drivers that compute on this node
    wanted: bool  # a run waited for the budget in the last minute
    load: float
    memory: float
    at: float


Strategy = Callable[[Room], int]


def by_load(room: Room) -> int:
    """From ``most`` on a calm machine down to ``least`` on a loaded one."""
    return _share(room, (HOT_LOAD - room.load) / (HOT_LOAD - CALM_LOAD))


def by_memory(room: Room) -> int:
    """From ``most`` with enough memory down to ``least`` with hardly any."""
    return _share(room, (room.memory - LOW_MEMORY) / (ENOUGH_MEMORY - LOW_MEMORY))


def _share(room: Room, share: float) -> int:
    return room.least + int(min(1.0, max(0.0, share)) * (room.most - room.least))


class Past(NamedTuple):
    """What a strategy of priorities is told of a job."""

    job: str
    runs: int  # how many of its newest runs the ledger has, up to 50
    seconds: float | None  # how long the middle one of those that succeeded took; None if none did
    every_s: float | None  # the time from one of them to the next; None without any


def quick_first(past: Past) -> float:
    """The job whose runs are the shortest; before all others one that has not succeeded yet."""
    return math.inf if past.seconds is None else -past.seconds


def long_first(past: Past) -> float:
    """The job whose runs are the longest; before all others one that has not succeeded yet."""
    return math.inf if past.seconds is None else past.seconds


def rare_first(past: Past) -> float:
    """The job that runs most seldom; before all others one that has no run yet."""
    return math.inf if past.every_s is None else past.every_s


PRIORITIES: dict[str, Callable[[Past], float]] = {
    "quick_first": quick_first,
    "long_first": long_first,
    "rare_first": rare_first,
}


class Auto:
    """A budget that doubles while runs wait and the machine is calm, and halves when too much runs or it lies idle.

    After each halving for load or memory, the next growth waits twice as long as before, up to PAUSE_MAX_S; after each
    growth half as long, down to PAUSE_S. So a machine that is at its limit is tried seldom.
    """

    __slots__ = ("_cool_at", "_grow_at", "_pause_s", "_used_at")

    def __init__(self) -> None:
        self._pause_s = PAUSE_S
        self._grow_at = 0.0
        self._cool_at = 0.0
        self._used_at: float | None = None  # when more than half of it was last used, or a run waited for it

    def __call__(self, room: Room) -> int:
        """The budget from now on."""
        if self._used_at is None or room.wanted or 2 * room.busy > room.size:
            self._used_at = room.at
        if room.load > HOT_LOAD or room.memory < LOW_MEMORY:
            if room.at < self._cool_at:
                return room.size
            self._cool_at = room.at + PAUSE_S
            self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
            self._grow_at = room.at + self._pause_s
            return max(room.least, room.size // 2)
        if room.wanted and room.load < CALM_LOAD and room.memory > ENOUGH_MEMORY and room.at >= self._grow_at:
            self._pause_s = max(self._pause_s / 2, PAUSE_S)
            self._grow_at = room.at + self._pause_s
            return min(room.most, max(2 * room.size, 1))
        if room.at - self._used_at >= IDLE_S:
            self._used_at = room.at
            return max(room.least, room.size // 2)
        return room.size
