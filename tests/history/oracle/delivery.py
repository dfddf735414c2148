"""Brings lines to the disk as segments: late, twice, shuffled, cut, glued, spoilt, compressed, and in several parts.

Between two parts the pipeline runs. A segment may stay away for a part, and may be pruned after one; an open one is
there, with a line that is half written, and is closed later.
"""

from __future__ import annotations

import gzip
import os
import random
from pathlib import Path

from history.oracle.events import Line

OPEN = "current.jsonl"

# Of each thousand lines: those that come in a later segment, those that come again, and those that are broken.
LATE, AGAIN, BROKEN = 30, 40, 10

# Of each hundred segments: those that stay away for a part, come again under another name, or are compressed; and those
# that are pruned after a part.
AWAY, TWICE, COMPRESSED = 10, 6, 12
PRUNED = 15


class Sink:
    """A directory with a journal of each node. ``length``: the lines of a segment, about."""

    def __init__(self, top: Path, seed: int, nodes: int, length: int) -> None:
        self.top = top
        self.rng = random.Random(seed)
        self.length = length
        self.journals = [top / "prod" / f"edge-{number + 1}" / "the journal" for number in range(nodes)]
        self._lines: list[list[bytes]] = [[] for _ in range(nodes)]
        self._late: list[list[bytes]] = [[] for _ in range(nodes)]
        self._numbers = [0] * nodes
        self._away: list[tuple[Path, bytes]] = []
        for journal in self.journals:
            journal.mkdir(parents=True)

    def take(self, line: Line) -> None:
        """One line of a node; its segment is closed when it is long enough."""
        number, data = line
        rng = self.rng
        chance = rng.randrange(1000)
        if chance < LATE:
            self._late[number].append(data)
        else:
            self._lines[number].append(data)
        if LATE <= chance < LATE + AGAIN:
            rng.choice((self._lines, self._late))[rng.randrange(len(self._lines))].append(data)
        if len(self._lines[number]) >= self.length * rng.uniform(0.5, 1.5):
            self._close(number)

    def end_part(self, *, last: bool) -> None:
        """The open segments are on the disk now; with ``last``, all that has stayed away, too."""
        for number, journal in enumerate(self.journals):
            if last:
                self._lines[number] += self._late[number]
                self._late[number] = []
            if self._lines[number]:
                whole = b"".join(_broken(self.rng, self._lines[number]))
                _write(journal / OPEN, whole[: -self.rng.randrange(1, 30)])

    def begin_part(self) -> None:
        """The open segments are closed, those that have stayed away come, and some of the others are pruned."""
        for path in sorted(self.top.rglob("*.jsonl*")):
            if path.name != OPEN and self.rng.randrange(100) < PRUNED:
                path.unlink()
        for number, journal in enumerate(self.journals):
            (journal / OPEN).unlink(missing_ok=True)
            if self._lines[number]:
                self._close(number)
        for path, data in self._away:
            _write(path, data)
        self._away.clear()

    def _close(self, number: int) -> None:
        rng = self.rng
        lines = self._lines[number]
        if rng.random() < 0.5:
            rng.shuffle(lines)
        data = b"".join(_broken(rng, lines))
        self._numbers[number] += 1
        name = f"{self._numbers[number]:08d}.jsonl"
        path = self.journals[number] / name
        if rng.randrange(100) < TWICE:
            again = rng.choice((self.journals[number] / f"9{name[1:]}", self.top / "copies" / f"edge-{number}" / name))
            some = b"".join(rng.sample(lines, len(lines) // 2))
            self._away.append((again, rng.choice((data, some))))
        if rng.randrange(100) < COMPRESSED:
            path, data = path.with_name(name + ".gz"), gzip.compress(data, 1, mtime=0)
        if rng.randrange(100) < AWAY:
            self._away.append((path, data))
        else:
            _write(path, data)
        late = self._late[number]
        rng.shuffle(late)
        half = len(late) // 2
        self._lines[number], self._late[number] = late[:half], late[half:]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    changed = 1_790_000_000 + 3_600 * (len(data) % 100)  # the last change of a file is a day of its broken lines
    os.utime(path, (changed, changed))


def _broken(rng: random.Random, lines: list[bytes]) -> list[bytes]:
    """The same lines, some of them broken as crashes and disks do it, with others beside."""
    found = []
    for line in lines:
        found.append(line)
        if rng.randrange(1000) >= BROKEN:
            continue
        cut = line[: rng.randrange(1, len(line) - 1)]
        at = rng.randrange(len(line) - 1)
        other = bytes([rng.choice([byte for byte in (0, 32, 48, 57, 123, 125, 200) if byte != line[at]])])
        found[-1:] = rng.choice(
            (
                [cut + b"\n"],  # it was cut, and a new line begun
                [cut, line],  # it was cut, and went on in the same line
                [line[:-1], line],  # two in one
                [line[:-1], cut + b"\n"],
                [line[:at] + other + line[at + 1 :]],
                [line[:-1] + b"\r\n"],
                [b"\0" * rng.randrange(1, 200) + b"\n", line],
                [b"\n", line, b"\n\n"],
                [b"no line of a journal\n"],
                [b'{"type":"task-started"}\n', line],
            )
        )
    return found
