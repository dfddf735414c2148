"""The faults of each machine with their times: the causes of excuses and losses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container
from typing import NamedTuple

# The ledger and the network before it, where a machine's number would stand.
LEDGER = -1

# A machine that was frozen whole ends its late programs within this time after it thaws.
THAW_S = 0.5


class Harm(NamedTuple):
    """One thing that went wrong, from when to when (true time)."""

    kind: str
    begin: float
    end: float


class Records:
    """The record of one world."""

    def __init__(self) -> None:
        self._of: dict[int, list[Harm]] = defaultdict(list)
        # (machine, job) -> when its daemon got another definition of it
        self.redefined: dict[tuple[int, str], list[float]] = defaultdict(list)

    def befell(self, machine: int, kind: str, begin: float, seconds: float = 0.0) -> None:
        """Something goes wrong on that machine (or with the ledger) from now on, for these seconds."""
        self._of[machine].append(Harm(kind, begin, begin + seconds))

    def healed(self, now: float) -> None:
        """Nothing that went wrong goes on."""
        for machine, harms in self._of.items():
            self._of[machine] = [Harm(one.kind, one.begin, min(one.end, max(now, one.begin))) for one in harms]

    def between(self, machine: int, begin: float, end: float, kinds: Container[str] | None = None) -> str:
        """What went wrong there in that time, of these kinds where some are given; "" when nothing did."""
        for harm in self._of[machine]:
            if harm.begin <= end and harm.end >= begin and (kinds is None or harm.kind in kinds):
                return harm.kind
        return ""

    def frozen_over(self, machine: int, instant: float, now: float) -> bool:
        """The machine stood still when that instant passed, or until just before, and has not had the time since to end
        what was late.

        It needs that time in one piece: a machine that is frozen again sooner has not had it.
        """
        begin, end = 0.0, -1.0
        for harm in self._of[machine]:  # in the order of their beginnings; one may come on top of another
            if harm.kind != "freeze":
                continue
            begin = begin if harm.begin <= end + THAW_S else harm.begin
            end = max(end, harm.end)
            if begin <= instant <= end + THAW_S and now <= end + THAW_S:
                return True
        return False
