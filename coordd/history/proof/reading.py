"""Journals as they lie on a disk: those of nodes, and copies in a sink. Nothing is written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from coordd.core.wire.chain import Head, Line, parsed_head
from coordd.errors import UnavailableError

CURRENT = "current.jsonl"
HEAD = "audit.json"

# Nodes write no longer lines. A file that is not a journal must not fill the memory.
LINE_BYTES_MAX = 1024 * 1024

# The name of a closed segment; in a sink, with a part of its hash.
SEGMENT = re.compile(r"(\d{1,12})(?:-[0-9a-f]{6,64})?\.jsonl")


class Segment(NamedTuple):
    """A file of lines. ``number``: its place in the journal; 0 for the open one."""

    path: str
    number: int


class Journal(NamedTuple):
    """One directory with segments, oldest first. ``head``: of its audit chain, which only the node itself has."""

    directory: str
    segments: list[Segment]
    head: Head | None

    @property
    def missing(self) -> list[str]:
        """The numbers of segments between others that are not there."""
        numbers = sorted({segment.number for segment in self.segments if segment.number})
        gaps = [(low + 1, high - 1) for low, high in pairwise(numbers) if high > low + 1]
        return [str(first) if first == last else f"{first} to {last}" for first, last in gaps]


def find(places: Sequence[str]) -> list[Journal]:
    """The journals in these directories and below. Raises UnavailableError when one has none, or cannot be read."""
    found: dict[str, Journal] = {}
    for place in places:
        below = list(_below(place))
        if not below:
            raise UnavailableError(f"{place}: there are no journal segments (*.jsonl)")
        found.update({journal.directory: journal for journal in below})
    return [found[directory] for directory in sorted(found)]


def _below(place: str) -> Iterator[Journal]:
    def refuse(exc: OSError) -> None:
        raise UnavailableError(f"{exc.filename or place}: {exc.strerror or exc}") from exc

    for folder, _, names in os.walk(os.path.realpath(place), onerror=refuse):
        closed = [(int(match[1]), name) for name in names if (match := SEGMENT.fullmatch(name))]
        segments = [Segment(os.path.join(folder, name), number) for number, name in sorted(closed)]
        if CURRENT in names:
            segments.append(Segment(os.path.join(folder, CURRENT), 0))
        if segments:
            yield Journal(folder, segments, _head(os.path.join(os.path.dirname(folder), HEAD)))


def _head(path: str) -> Head | None:
    try:
        with open(path, "rb") as file:
            return parsed_head(file.read())
    except OSError:
        return None


def lines(segment: Segment) -> Iterator[Line]:
    """Every line with its place, too long ones in pieces. The last one may be without a line feed.

    Raises UnavailableError.
    """
    try:
        with open(segment.path, "rb") as file:
            number, begins = 0, True
            while data := file.readline(LINE_BYTES_MAX):
                number += begins
                begins = data.endswith(b"\n")
                yield Line(segment.path, number, data)
    except OSError as exc:
        raise UnavailableError(f"{segment.path}: {exc.strerror or exc}") from exc
