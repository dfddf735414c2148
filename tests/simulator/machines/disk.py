"""One machine's disk. After a power cut it has all synced data and a part of the rest, and the last line is torn.

Small files (the clock's mark, an accepted trigger) are replaced as a whole and synced, as ``write_atomic`` does. In
some worlds (``packs``) the journal has its real bytes: a power cut cuts them at any byte, and the real reader reads
the rest.
"""

from __future__ import annotations

import random
from typing import Any

from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Launch
from coordd.core.wire.events import Task, flatten, task_of
from coordd.core.wire.journal_line import decode_line, encode_line
from coordd.ports import Kept


class Disk:
    """The data that survives a daemon."""

    def __init__(self, *, packs: bool) -> None:
        self.packs = packs
        self.full_until = 0.0
        self.clock_mark = 0
        self.unsaved_mark = 0  # a mark that the full disk did not accept
        self.pin = ("", "")  # the identity and the address of the ledger that the node has used
        self.requests: dict[str, Registration] = {}
        self.definitions: dict[str, Any] = {}
        self.revision: Kept | None = None  # the copy of the published revision that the node had last
        self.hooks: dict[str, float] = {}  # since when the node has each hook
        # records of attempts: the grant, and the place where it was launched (core/runs/knowledge.py)
        self.attempts: dict[str, tuple[Launch, dict[str, str]]] = {}
        self.journal: list[Task] = []
        self.synced = 0  # how many lines of the journal are synced
        self.torn = 0  # how many lines a power cut has left incomplete
        self._bytes = bytearray()
        self._ends: list[int] = []

    def append(self, events: list[Task], *, sync: bool) -> None:
        """Append events to the journal. With ``sync``, all its lines are synced."""
        self.journal += events
        if self.packs:
            for event in events:
                self._bytes += encode_line(flatten(event, hostname="n", pid=1, incarnation="1", seq=0, utcoffset=0))
                self._ends.append(len(self._bytes))
        if sync:
            self.synced = len(self.journal)

    def save_mark(self, mark: int) -> None:
        """Replace the clock's mark as a whole."""
        self.clock_mark = mark
        self.unsaved_mark = 0

    def power_cut(self, rng: random.Random) -> None:
        """Keep the synced lines and a random part of the other lines."""
        if self.synced == len(self.journal):
            return
        kept = rng.randint(self.synced, len(self.journal) - 1)
        self.torn += 1
        if self.packs:
            start = self._ends[kept - 1] if kept else 0
            cut_at = rng.randrange(start, self._ends[kept] - 1)  # a line that lacks only its newline is whole
            del self._bytes[cut_at:]
            self.journal = self._read()
            assert len(self.journal) == kept, "a torn line was read, or a whole one was not"
            del self._bytes[start:], self._ends[kept:]
        else:
            del self.journal[kept:]
        self.synced = len(self.journal)

    def _read(self) -> list[Task]:
        found = []
        for line in bytes(self._bytes).splitlines(keepends=True):
            record = decode_line(line)
            event = task_of(record) if record is not None else None
            if event is not None:
                found.append(event)
        return found
