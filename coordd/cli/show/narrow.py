"""Which columns of a table fit into a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.cells import cell_len

# A column that may be wrapped needs this width, or its own; narrower than this it cannot be read.
READABLE = 20

# Between two columns.
GAP = 2


class Shaped(Protocol):
    """What a column needs."""

    @property
    def title(self) -> str: ...
    @property
    def whole(self) -> bool: ...
    @property
    def spare(self) -> int: ...


def kept(columns: Sequence[Shaped], lines: Sequence[Sequence[str]], width: int) -> tuple[list[int], bool]:
    """The places of the columns that are shown, and whether they fit; where they do not, columns without a text are
    left out first. ``lines``: the cells of each row.
    """
    widths = []
    for place, column in enumerate(columns):
        own = max(cell_len(text) for text in (column.title, *(line[place] for line in lines)))
        widths.append(own if column.whole else max(min(own, READABLE), cell_len(column.title)))
    places = list(range(len(columns)))
    empty = [place for place in places if lines and not any(line[place] for line in lines)]
    spare = sorted((place for place in places if columns[place].spare), key=lambda one: columns[one].spare)
    unneeded = [*spare, *empty]  # from the end: what says nothing goes first
    while True:
        fits = sum(widths[place] + GAP for place in places) - GAP <= width
        if fits or not unneeded:
            return places, fits
        if (place := unneeded.pop()) in places:
            places.remove(place)
