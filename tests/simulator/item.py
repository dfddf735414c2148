"""One event of a world's plan."""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One event of the plan. ``who`` in [0, 1) chooses the target; plan.py explains ``amount`` at MACHINES."""

    at: float
    kind: str
    who: float
    amount: float
    what: str = ""  # a run or a job

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.kind} {self.what} {self.amount:.2f}"
