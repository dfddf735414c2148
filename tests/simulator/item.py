"""One thing that happens in a world."""

from __future__ import annotations

from typing import NamedTuple


class Item(NamedTuple):
    """One thing that happens. ``who`` in [0, 1) picks from those whom it may befall; ``amount`` as STRIKES say."""

    at: float
    kind: str
    who: float
    amount: float
    what: str = ""  # a run or a job

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.kind} {self.what} {self.amount:.2f}"
