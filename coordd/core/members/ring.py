"""The ring: an order of all members. Every node with the same view computes the same order.

Names are ordered by their hash. So neighbours have nothing in common (rack, start script), and a member that joins or
leaves changes the neighbours of only a few.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Iterator
from functools import lru_cache
from itertools import chain

# The size of the cache of places: members come and go, and a hash is slower than a look-up.
PLACES_MAX = 8192


@lru_cache(PLACES_MAX)
def place(name: str) -> tuple[bytes, str]:
    """The place of a full_hostname on every ring."""
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
        """Add a name; an existing name keeps its place."""
        if name not in self:
            insort(self._places, place(name))

    def discard(self, name: str) -> None:
        """Remove a name, if it is there."""
        if name in self:
            del self._places[bisect_left(self._places, place(name))]

    def after(self, name: str) -> Iterator[str]:
        """All other names once, starting with the successor; ``name`` itself need not be on the ring."""
        places = self._places
        start = bisect_left(places, place(name))
        for at in chain(range(start, len(places)), range(start)):
            if places[at][1] != name:
                yield places[at][1]

    def before(self, name: str) -> Iterator[str]:
        """All other names once, starting with the predecessor."""
        places = self._places
        start = bisect_left(places, place(name)) - 1
        for at in chain(range(start, -1, -1), range(len(places) - 1, start, -1)):
            if places[at][1] != name:
                yield places[at][1]
