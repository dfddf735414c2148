"""Journals as they lie on a disk: those of nodes, and copies in a sink. Nothing is written.

A node may write its journal meanwhile: its open segment is closed (renamed), and others follow.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import BinaryIO, NamedTuple

from coordd.core.wire.chain import Head, Line, parsed_head
from coordd.errors import UnavailableError

CURRENT = "current.jsonl"
HEAD = "audit.json"

# Nodes write no longer lines. A file that is not a journal must not fill the memory.
LINE_BYTES_MAX = 1024 * 1024

# The name of a closed segment; in a sink, with a part of its hash. Somebody may have compressed it: Spark reads it so.
SEGMENT = re.compile(r"(\d{1,12})(?:-[0-9a-f]{6,64})?\.jsonl(?:\.gz)?")
PACKED = ".gz"


class Segment(NamedTuple):
    """A closed file of lines. ``number``: its place in the journal."""

    path: str
    number: int


class Journal(NamedTuple):
    """One directory with segments. ``head``: of its audit chain, before any line was read; only a node has one."""

    directory: str
    head: Head | None

    def lines(self) -> Iterator[tuple[Line, bool]]:
        """Every line, oldest first, and whether it is of the open segment. Raises UnavailableError."""
        read: set[str] = set()
        with contextlib.ExitStack() as stack:
            # Opened first: if it is closed (renamed) while we read, we find it in its place, or have the right file.
            current = _opened(os.path.join(self.directory, CURRENT), stack)
            held = _identity(current)
            while new := [one for one in _closed(self.directory) if one.path.removesuffix(PACKED) not in read]:
                for segment in new:
                    read.add(segment.path.removesuffix(PACKED))
                    with contextlib.ExitStack() as own:
                        file = _opened(segment.path, own)  # None: it was pruned meanwhile
                        if held is not None and _identity(file) == held:
                            current = None
                        yield from ((line, False) for line in _placed(segment.path, file))
            yield from ((line, True) for line in _placed(os.path.join(self.directory, CURRENT), current))

    def head_now(self) -> Head | None:
        """The head once more; None as in ``head``."""
        return _head(self.directory)


def missing(journal: Journal) -> list[str]:
    """The numbers of closed segments between others that are not there. Raises UnavailableError."""
    numbers = sorted({segment.number for segment in _closed(journal.directory)})
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
        if odd := [name for name in names if name.endswith(f".jsonl{PACKED}") and not SEGMENT.fullmatch(name)]:
            path = os.path.join(folder, min(odd))
            raise UnavailableError(f"{path}: expected a closed segment's name, NUMBER.jsonl{PACKED}; unpack it")
        if CURRENT in names or any(SEGMENT.fullmatch(name) for name in names):
            yield Journal(folder, _head(folder))


def _closed(directory: str) -> list[Segment]:
    """The closed segments, by number. Of one that is there twice, the compressed file is left out."""
    try:
        names = set(os.listdir(directory))
    except OSError as exc:
        raise UnavailableError(f"{directory}: {exc.strerror or exc}") from exc
    named = [(int(match[1]), name) for name in names if (match := SEGMENT.fullmatch(name))]
    once = [(number, name) for number, name in named if not name.endswith(PACKED) or name[: -len(PACKED)] not in names]
    return [Segment(os.path.join(directory, name), number) for number, name in sorted(once)]


def _head(directory: str) -> Head | None:
    """The head of a node's chain stands beside its journal."""
    try:
        with open(os.path.join(os.path.dirname(directory), HEAD), "rb") as file:
            return parsed_head(file.read())
    except OSError:
        return None


def _opened(path: str, stack: contextlib.ExitStack) -> BinaryIO | None:
    """The file, until the stack ends; None if it is not there any more."""
    try:
        return stack.enter_context(open(path, "rb"))
    except OSError as exc:
        if isinstance(exc, FileNotFoundError) and not os.path.islink(path):
            return None
        raise UnavailableError(f"{path}: {exc.strerror or exc}") from exc


def _identity(file: BinaryIO | None) -> tuple[int, int] | None:
    if file is None:
        return None
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _placed(path: str, file: BinaryIO | None) -> Iterator[Line]:
    """Every line with its place, too long ones in pieces. The last one may be without a line feed.

    Raises UnavailableError.
    """
    if file is None:
        return
    try:
        plain = gzip.GzipFile(fileobj=file) if path.endswith(PACKED) else file
        number, begins = 0, True
        while data := plain.readline(LINE_BYTES_MAX):
            number += begins
            begins = data.endswith(b"\n")
            yield Line(path, number, data)
    except (EOFError, zlib.error) as exc:
        raise UnavailableError(f"{path}: cannot be unpacked: {exc}") from exc
    except OSError as exc:
        raise UnavailableError(f"{path}: {exc.strerror or exc}") from exc
