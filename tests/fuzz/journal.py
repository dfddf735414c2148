"""The journal's reader: it reads every good line in order, however the file was damaged.

The first byte of an input says where the rest is: in memory, or in one or two segments of a real journal.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from support.small_cluster import EPOCH, Lone, job

from coordd.adapters.disk import journal as journal_files
from coordd.adapters.disk.journal import Journal, read
from coordd.core.wire.events import flat, task_of
from coordd.core.wire.journal_line import decode_line, encode_line
from fuzz.bus import packets
from fuzz.mutate import Pool, distort, pick
from fuzz.trial import Try, check, scratch

MEMORY, OPEN, CLOSED, BOTH = range(4)

AFTER = {"type": "after", "clock": 1}


def records() -> list[dict[str, Any]]:
    """What nodes write: events of every kind, and lines about persons and the disk."""
    made = [flat(packet, event) for packet in packets() for event in packet.events]
    control = {
        "type": "control",
        "clock": 9,
        "timestamp": EPOCH,
        "method": "run.trigger",
        "subject": "sales#1",
        "uid": 0,
    }
    return [
        *made,
        control,
        {"type": "x", "text": '\u00e9\u2028\U0001f600 " \\ \n', "name": b"\xff".decode(errors="surrogateescape")},
    ]


class World:
    """A directory for journals, and the lines that are known to be good."""

    def __init__(self, root: str, known: dict[bytes, dict[str, Any]]) -> None:
        self.root = root
        self.known = known
        self.witness = Lone(job("sales")).ready().node.witness

    async def attempt(self, data: bytes) -> str:
        """One file."""
        where, text = data[0] % 16 if data else MEMORY, data[1:]
        due = [record for line in io.BytesIO(text) if (record := self._of_good_line(line)) is not None]
        if where not in (OPEN, CLOSED, BOTH):
            found = [record for line in io.BytesIO(text) if (record := decode_line(line)) is not None]
            check(found == due, "a good line was not read, or a bad one was")
            journal_files._measure(io.BytesIO(text))
        else:
            self._on_disk(where, text, due)
        events = 0
        for record in due:
            event = task_of(record)
            if event is not None:
                self.witness.saw(event)
                events += 1
        return "read, with events" if events else "read" if due else "nothing"

    def _of_good_line(self, line: bytes) -> dict[str, Any] | None:
        """Written apart from the product: a known line, or one whose checksum is right and that is an object."""
        known = self.known.get(line if line.endswith(b"\n") else line + b"\n")
        if known is not None:
            return known
        text, mark, sum_ = line.removesuffix(b"\n").rpartition(b',"crc":"')
        if not mark or sum_ != f'{zlib.crc32(text):08x}"}}'.encode():
            return None
        try:
            record = json.loads(text + b"}", parse_constant=_no_number)
        except (ValueError, RecursionError):
            return None
        return record if isinstance(record, dict) and record else None

    def _on_disk(self, where: int, text: bytes, due: list[dict[str, Any]]) -> None:
        directory = os.path.join(self.root, "journal")
        os.mkdir(directory)
        try:
            closed, current = (text, b"") if where == CLOSED else (b"", text)
            if where == BOTH:  # between two lines, as a segment ends
                at = text.find(b"\n", len(text) // 2) + 1
                closed, current = text[:at], text[at:]
            if where != OPEN:
                Path(directory, "00000001.jsonl").write_bytes(closed)
            if where != CLOSED:
                Path(directory, "current.jsonl").write_bytes(current)
            check(list(read(directory)) == due, "read before the repair: a good line is lacking, or a bad one is there")
            clocks = [record["clock"] for record in due if isinstance(record.get("clock"), int)]
            check(journal_files.highest_clock(directory) == max(clocks, default=0), "the highest clock is another one")
            journal = Journal(directory)
            journal.append([AFTER], sync=True)
            check(list(read(directory)) == self._repaired(current, due), "the repair has lost or made a line")
            journal.close()
            kept = sum(os.path.getsize(f"{directory}/{name}") for name in os.listdir(directory))
            check(kept == len(text) + len(encode_line(AFTER)), "the repair has thrown bytes away")
        finally:
            shutil.rmtree(directory)

    def _repaired(self, current: bytes, due: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The lines that must be read. A last line without its end is torn, even if it looks whole."""
        last = current.rpartition(b"\n")[2]
        torn = bool(last) and self._of_good_line(last) is not None
        return [*(due[:-1] if torn else due), AFTER]


def _no_number(word: str) -> None:
    raise ValueError(word)


class JournalTarget:
    """core.wire.journal_line and adapters.disk.journal."""

    name = "journal"
    what = "journal lines, segments, repair"
    limit_s = 2.0

    def __init__(self) -> None:
        self._records = records()
        lines = [encode_line(record) for record in self._records]
        # As it is read back: a name that was not text has become text.
        self._known = {line: json.loads(line) for line in lines}
        for record in self._known.values():
            del record["crc"]
        words = [b'","crc":"', b'"}\n', b"\n", b"\0" * 100, b'{"type":"task-started"', b"{}", *lines[:2]]
        self._pool = Pool([*lines, *[b"".join(lines[at : at + 5]) for at in range(len(lines))]], words)

    def make(self, rng: random.Random) -> bytes:
        """Spoilt lines; or whole lines with contents that no node writes."""
        where = bytes((int(rng.random() * 256),))
        if rng.random() < 0.6:
            return where + self._pool.make(rng)
        lines = [self._pool.make(rng) if rng.random() < 0.2 else b""]
        if rng.random() < 0.3:  # whole by its checksum, and no JSON: found by a coverage-guided fuzzer, not by this one
            text = self._pool.make(rng)[:2000].replace(b"\n", b"")
            lines.append(b'%b,"crc":"%08x"}\n' % (text, zlib.crc32(text)))
        for _ in range(pick(rng, (1, 1, 2, 4))):
            record = distort(pick(rng, self._records), rng)
            if isinstance(record, dict) and record and "crc" not in record:
                lines.append(encode_line(record))
        return where + b"".join(lines)

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """An empty directory in memory."""
        with scratch() as root:
            yield World(root, self._known).attempt
