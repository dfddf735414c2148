"""The faults of each machine with their times: the causes of excuses and losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import NamedTuple

# This number instead of a machine's number means the ledger, with its network.
LEDGER = -1

# Every machine.
ALL = -2

# A daemon is a member on all nodes after this time (seconds) without a fault, and in which nothing has kept it from
# hearing and being heard.
KNOWN_S = 12.0

# A machine that was frozen whole ends its late programs within this time after it thaws.
THAW_S = 0.5


class Harm(NamedTuple):
    """One fault, with the true times at which it begins and ends."""

    kind: str
    begin: float
    end: float


class Records:
    """The record of one world."""

    def __init__(self) -> None:
        self._of: dict[int, list[Harm]] = defaultdict(list)
        self._unheard: list[tuple[int, float, float]] = []  # machine (or ALL), and from when to when
        # (machine, job) -> when its daemon got another definition of it
        self.redefined: dict[tuple[int, str], list[float]] = defaultdict(list)

    def befell(self, machine: int, kind: str, begin: float, seconds: float = 0.0) -> None:
        """Record a fault of that machine (or of the ledger): when it begins, and how long it lasts."""
        self._of[machine].append(Harm(kind, begin, begin + seconds))

    def cut_off(self, machine: int, begin: float, seconds: float) -> None:
        """Record that other nodes may not have heard that machine (or ALL), or it them."""
        self._unheard.append((machine, begin, begin + seconds))

    def unheard(self, machine: int, begin: float, end: float) -> bool:
        """True if something kept that machine's node from hearing others, or others from hearing it, in that time."""
        return any(one in (machine, ALL) and at <= end and until >= begin for one, at, until in self._unheard)

    def healed(self, now: float) -> None:
        """All faults end now."""
        for machine, harms in self._of.items():
            self._of[machine] = [Harm(one.kind, one.begin, min(one.end, max(now, one.begin))) for one in harms]

    def between(self, machine: int, begin: float, end: float, kinds: Container[str] | None = None) -> str:
        """The kind of a fault on that machine in that time; "" when there is none. ``kinds``: only these kinds."""
        for harm in self._of[machine]:
            if harm.begin <= end and harm.end >= begin and (kinds is None or harm.kind in kinds):
                return harm.kind
        return ""

    def frozen_over(self, machine: int, instant: float, now: float) -> bool:
        """True if the machine stood still at ``instant`` or until just before, and could not end late programs since.

        The machine needs THAW_S without a break to end them. If it is frozen again sooner, it has not had that time.
        """
        begin, end = 0.0, -1.0
        for harm in self._of[machine]:  # in the order of their beginnings; two may overlap
            if harm.kind != "freeze":
                continue
            begin = begin if harm.begin <= end + THAW_S else harm.begin
            end = max(end, harm.end)
            if begin <= instant <= end + THAW_S and now <= end + THAW_S:
                return True
        return False
