"""The chain of audit records: each contains its number and the hash of the previous one. Pure.

If somebody edits, removes, inserts or reorders a record, the chain is broken there. The head is kept in a separate
file, so records cut from the end are noticed. Retention removes whole old segments: the predecessor of the oldest
remaining record is an anchor, and is not compared. The hash has no key: a person who can write the journal and the head
can also make a new chain. Therefore the hash of each record also goes to the log, which a site keeps elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from coordd.core.wire.journal_line import decode_line

# The type of audit records in a journal, as such a line begins.
TYPE = "control"
_IS_CONTROL = b'"type":"control"'

HASH_LENGTH = 32

# Maximum number of breaks in one report; the first one says where to look.
BREAKS_MAX = 100


class Head(NamedTuple):
    """The last written record: its number, its hash, its time (Unix seconds)."""

    number: int
    hash: str
    at: float


def parsed_head(data: bytes) -> Head | None:
    """The head as its file has it; None if it is invalid."""
    try:
        found = json.loads(data)
        return Head(int(found["number"]), str(found["hash"]), float(found["at"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


class Line(NamedTuple):
    """One line of a journal and its position (lines count from 1)."""

    file: str
    number: int
    data: bytes


class Break(NamedTuple):
    """A place where the chain is broken, and how."""

    file: str
    line: int
    problem: str


class Checked(NamedTuple):
    """The result of a check. ``first`` is the number of the oldest record, 0 if there is none."""

    records: list[dict[str, Any]]
    breaks: list[Break]
    total: int
    first: int


def link(data: bytes) -> str:
    """The hash of one line."""
    return hashlib.sha256(data.rstrip(b"\n")).hexdigest()[:HASH_LENGTH]


def chained(record: dict[str, Any], head: Head | None) -> dict[str, Any]:
    """The record with its number and the previous hash."""
    return {**record, "n": head.number + 1 if head else 1, "prev": head.hash if head else ""}


def head_after(lines: Iterable[Line], head: Head | None) -> Head | None:
    """The true head, if a crash happened between writing a record and saving the head."""
    for line in lines:
        record = _control(line.data)
        number = record.get("n") if record else None
        if isinstance(number, int) and (head is None or number > head.number):
            assert record is not None
            head = Head(number, link(line.data), float(record.get("timestamp", 0.0)))
    return head


class Checker:
    """Follows a chain line by line, and collects the records since an instant."""

    def __init__(self, since: float = 0.0, limit: int = 1000) -> None:
        self.since = since
        self.limit = limit
        self.records: list[dict[str, Any]] = []
        self.breaks: list[Break] = []
        self.total = self.first = self.last = 0
        self._hash = ""
        self._at: Line | None = None  # the position of the last record

    @property
    def reached(self) -> Head:
        """The last record that was read, as a head names it; its time is not known."""
        return Head(self.last, self._hash, 0.0)

    def take(self, line: Line) -> None:
        """Read the next line of the journal; other lines than audit records are skipped."""
        if _IS_CONTROL not in line.data:
            return
        record = decode_line(line.data)
        if record is None:
            self._broken(line, "this line is not what was written: its checksum is wrong")
            return
        if record.get("type") != TYPE:
            return
        self.total += 1
        number = record.get("n")
        if isinstance(number, int) and not isinstance(number, bool):
            self._follow(line, record, number)
        elif self._at is not None:
            self._broken(line, "a record without a number: an older version wrote it, or somebody put it in")
        timestamp = record.get("timestamp")
        if isinstance(timestamp, (int, float)) and timestamp >= self.since:
            self.records.append(record)
            del self.records[: -self.limit]

    def _follow(self, line: Line, record: dict[str, Any], number: int) -> None:
        if self._at is None:
            self.first = number
            if number == 1 and record.get("prev"):
                self._broken(line, "the first record names one before it")
        elif number > self.last + 1:
            missing = f"{self.last + 1}" if number == self.last + 2 else f"{self.last + 1} to {number - 1}"
            self._broken(line, f"before number {number} the records of number {missing} are missing")
        elif number <= self.last:
            self._broken(line, f"number {number} comes after number {self.last}: moved, or put in")
        elif record.get("prev") != self._hash:
            self._broken(
                self._at, f"number {self.last} is not what was written: number {number} has another hash of it"
            )
        self.last, self._hash, self._at = number, link(line.data), line

    def finish(self, head: Head | None, head_file: str, *, oldest: float) -> Checked:
        """The end of the journal. Retention may have removed records from before ``oldest`` (Unix seconds)."""
        place = self._at or Line(head_file, 0, b"")
        if head is None:
            if self.last > 1:
                self.breaks.append(Break(head_file, 0, "is missing: what was cut from the end cannot be told"))
        elif self._at is None:
            if head.number and head.at >= oldest:
                self._broken(place, f"no record is left, and number {head.number} was written")
        elif self.last < head.number:
            self._broken(place, f"after number {self.last} the records up to number {head.number} are missing")
        elif self.last == head.number and self._hash != head.hash:
            self._broken(place, f"number {self.last} is not what was written: {head_file} has another hash of it")
        elif self.last > head.number + 1:  # one more is possible, by a crash between the two writes
            self.breaks.append(Break(head_file, 0, f"went back: it knows number {head.number} as the last"))
        return Checked(self.records, self.breaks, self.total, self.first)

    def _broken(self, line: Line, problem: str) -> None:
        if len(self.breaks) < BREAKS_MAX:
            self.breaks.append(Break(line.file, line.number, problem))


def _control(data: bytes) -> dict[str, Any] | None:
    record = decode_line(data) if _IS_CONTROL in data else None
    return record if record is not None and record.get("type") == TYPE else None
