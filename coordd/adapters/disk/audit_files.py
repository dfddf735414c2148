"""The audit chain on the disk: its records are lines of the journal, its head is a small separate file."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterable
from typing import Any

from coordd.adapters.disk.files import write_atomic
from coordd.adapters.disk.journal import Journal, lines
from coordd.core.wire.chain import Checked, Checker, Head, chained, head_after, link, parsed_head
from coordd.core.wire.journal_line import encode_line
from coordd.errors import UnavailableError

# The newest segments, which may contain a record newer than the head: each start closes one segment.
SEGMENTS_LOOKED_AT = 2

# Maximum number of records that wait for the disk.
WAITING_MAX = 1000


class AuditChain:
    """Writes records to the journal, each with the hash of the previous one."""

    def __init__(self, journal: Journal, path: str) -> None:
        """``path``: the head's file. Raises UnavailableError when the journal cannot be read."""
        self.path = path
        self._journal = journal
        head = load_head(path)
        # Without a head, the whole journal is searched: it is the first start with a chain, or somebody removed the
        # head.
        newest = SEGMENTS_LOOKED_AT if head is not None else None
        self._head = head_after(lines(journal.directory, newest=newest), head)
        self._waiting: deque[dict[str, Any]] = deque()  # what the disk has refused, oldest first
        self._unwritten = 0  # how many of these had to be given up

    def append(self, record: dict[str, Any]) -> str:
        """Write one record, after those that wait; it is on the disk when this returns. Returns its hash.

        Raises UnavailableError when the disk refuses it. Then it waits for the next call; if too many wait, the oldest
        is given up, and the next one says how many are missing.
        """
        self._waiting.append(record)
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            self._unwritten += 1
        self.catch_up()
        return self._head.hash if self._head is not None else ""

    def catch_up(self) -> None:
        """Write what waits. Raises UnavailableError when the disk still refuses it."""
        while self._waiting:
            self._write(self._waiting[0])

    def _write(self, record: dict[str, Any]) -> None:
        if self._unwritten:
            record = {**record, "unwritten": self._unwritten}
        made = chained(record, self._head)
        self._journal.append([made], sync=True)
        self._waiting.popleft()
        self._unwritten = 0
        self._head = Head(made["n"], link(encode_line(made)), float(made["timestamp"]))
        try:
            write_atomic(self.path, json.dumps(self._head._asdict()).encode() + b"\n")
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc


def load_head(path: str) -> Head | None:
    """The head; None if there is none or it is invalid."""
    try:
        with open(path, "rb") as file:
            return parsed_head(file.read())
    except OSError:
        return None


def check(directory: str, path: str, *, since: float, limit: int, oldest: float) -> Checked:
    """Follow the chain of a journal from its first record to the head, also while a node writes it.

    Returns the newest ``limit`` records since ``since``. Raises UnavailableError when it cannot be read.
    """
    checker = Checker(since, limit)
    head = load_head(path)  # before the lines: records written meanwhile come after it
    _take(checker, lines(directory))
    if head is not None and checker.last > head.number + 1:
        head = load_head(path)
    return checker.finish(head, os.path.basename(path), oldest=oldest)


def _take(checker: Checker, found: Iterable[Any]) -> None:
    for line in found:
        checker.take(line)
