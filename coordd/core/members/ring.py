"""Who is next to whom: an order of all members that every node with the same view computes alike.

Names stand on a circle by their hash, so that neighbours have nothing in common (no rack, no start script) and a
member that comes or goes changes the neighbours of a few only.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

# Places that are remembered: members come and go, and a hash costs more than a look.
PLACES_MAX = 8192


@lru_cache(PLACES_MAX)
def place(name: str) -> tuple[bytes, str]:
    """Where a full_hostname stands on every ring."""
    return hashlib.blake2b(name.encode(), digest_size=8).digest(), name


class Ring:
    """Names in the order of their places."""

    __slots__ = ("_places",)

    def __init__(self) -> None:
        self._places: list[tuple[bytes, str]] = []

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: str) -> bool:
        at = bisect_left(self._places, place(name))
        return at < len(self._places) and self._places[at][1] == name

    def add(self, name: str) -> None:
        """Put a name on the ring; one that is there stays where it is."""
        if name not in self:
            insort(self._places, place(name))

    def discard(self, name: str) -> None:
        """Take a name off the ring, if it is there."""
        if name in self:
            del self._places[bisect_left(self._places, place(name))]

    def after(self, name: str) -> Iterator[str]:
        """Everybody else once, beginning with the successor; ``name`` itself need not be on the ring."""
        places = self._places
        start = bisect_left(places, place(name))
        for at in chain(range(start, len(places)), range(start)):
            if places[at][1] != name:
                yield places[at][1]

    def before(self, name: str) -> Iterator[str]:
        """Everybody else once, beginning with the predecessor."""
        places = self._places
        start = bisect_left(places, place(name)) - 1
        for at in chain(range(start, -1, -1), range(len(places) - 1, start, -1)):
            if places[at][1] != name:
                yield places[at][1]
