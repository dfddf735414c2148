"""What a node found out about runs that wait, for the looks that follow."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from coordd.core.jobs.job import Job
from coordd.core.jobs.limits import JOB_SLOTS
from coordd.core.ledger.words import hashed

# So many of the runs that wait for the same slots look every time.
FIRST = 4

# When (seconds) those behind the first ones of a job's `concurrency` ask again, if nobody wakes them before.
BEHIND_S = 60.0

# A run lets those before it in the line of a pool ask first. Without an answer to them it waits this long (seconds):
# for one that is about to ask here, and for one that only other nodes can take.
YIELD_S = 1.0
YIELD_TO_OTHERS_S = 5.0

# All such bounds, the longest first. None: this node asks for that run, and an answer will come.
BOUNDS_S = (float("inf"), YIELD_TO_OTHERS_S, YIELD_S)

# A run that only other nodes can take did not take a free slot: until then (seconds) nobody here waits for it again.
ABSENT_S = 60.0

# For how long (seconds) a node goes by the order in which it has put them; runs that come or go count at once.
LOOK_S = 1.0


class Waiting(Protocol):
    """A run as far as it waits (pursued.py has all of it)."""

    slots: str


Run = TypeVar("Run", bound=Waiting)

# A run's place among those that wait: priority, what the strategy says, fire time, name.
Order = tuple[int, float, float, str]

# Who is first in the line of one pool: for how long the others let it go first (BOUNDS_S) -> its place, and the run.
Heads = dict[float, tuple[Order, Run]]


class Look(Generic[Run]):
    """The knowledge of one instant (``at``, mono) about runs that wait: thousands may look at the same instant.

    Who is first changes as runs come and go, and that is seen at once; as definitions and priorities change, it is seen
    after LOOK_S. So these two are handed on to the looks until then.
    """

    __slots__ = ("at", "firsts", "full", "heads", "ordered_at", "short")

    def __init__(self, at: float, before: Look[Run] | None = None) -> None:
        self.at = self.ordered_at = at
        self.firsts: dict[str, list[Run]] = {}  # slots -> who is first of those that wait for them
        self.short: list[Run] | None = None  # who waits for the budget here, in order; None: nobody has looked
        if before is not None and before.ordered_at <= at < before.ordered_at + LOOK_S:
            self.ordered_at, self.firsts, self.short = before.ordered_at, before.firsts, before.short
        self.heads: dict[str, Heads[Run]] = {}  # pool -> who is first in its line
        self.full: set[bool] = set()  # drivers that wait (True) or that compute, if no budget is left for them

    def add_short(self, pursuit: Run, order: Callable[[Run], Order]) -> None:
        """It waits for the budget here from now on."""
        if self.short is not None:
            bisect.insort(self.short, pursuit, key=order)


def has_one_line(job: Job | None) -> bool:
    """True if all runs of this job wait for the same slots of its ``concurrency``: then one of the first is next."""
    return job is not None and job.concurrency is not None and not job.concurrency.per


def spread(run: str, longest_s: float) -> float:
    """From half of that time (seconds) to all of it, by the run's name: those put off together come back apart."""
    return longest_s * (1 + hashed(run)) / 2


def later(run: str, longest_s: float, now: float) -> float:
    """When (in seconds) one of many looks again. Looks are at whole seconds: what one finds out serves the others at
    the same instant. Those that were put off together do not all come back together.
    """
    return math.ceil(now + spread(run, longest_s)) - now


def first_of_lines(pursuits: Iterable[Run], order: Callable[[Run], Order]) -> list[Run]:
    """Of these, for each job: the first that waits for its slots."""
    lines: dict[str, list[Run]] = {}
    for one in pursuits:
        if one.slots.startswith(JOB_SLOTS):
            lines.setdefault(one.slots, []).append(one)
    return [min(line, key=order) for line in lines.values()]
