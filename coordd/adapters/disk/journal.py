"""A node's own append-only record: segments of JSON lines, each with its checksum.

    journal/00000001.jsonl … 00000007.jsonl   closed: never written again, may be shipped and pruned
    journal/current.jsonl                     open
    journal/torn-00000003.bytes               a partial line after a crash at the end of segment 3, kept unchanged

A segment is closed (renamed) when it is large or old, at a clean stop, and at the next start after a crash.
The format of a line is in core/wire/journal_line.py, which the history pipeline uses too.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from coordd.adapters.disk.files import sync_directory
from coordd.core.wire.chain import Line
from coordd.core.wire.journal_line import decode_line, encode_line
from coordd.errors import ConfigError, LocalProtocolError, UnavailableError

CURRENT = "current.jsonl"

# A segment of this size is closed, so that it can be read in a second and shipped in one piece ...
SEGMENT_BYTES_MAX = 16 * 1024 * 1024
# ... and also at this age, so that the pipeline is never further behind.
SEGMENT_AGE_S = 3600.0

# This many bytes at the end are searched for the highest clock. Clocks only grow; three segments, because one may be
# damaged.
CLOCK_BYTES_MAX = 3 * SEGMENT_BYTES_MAX


class Journal:
    """The port's Journal on files. Blocking: an append with ``sync`` waits for the disk.

    ``repaired`` has one sentence for the log per repair at the start. ``bad_lines`` counts damaged lines in the middle:
    they stay, and readers skip them.
    """

    def __init__(
        self,
        directory: str,
        *,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        segment_age_s: float = SEGMENT_AGE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the journal, after repair.

        Raises:
            ConfigError: another process has it open.
            UnavailableError: the disk refuses.
        """
        self.directory = directory
        self.repaired: list[str] = []
        self.bad_lines = 0
        self._segment_bytes_max = segment_bytes_max
        self._segment_age_s = segment_age_s
        self._clock = clock
        self._fd = -1
        self._size = 0  # bytes of complete lines; the file is cut to this size before anything is written
        self._dirty = False  # the file may be longer than that, or its name may not be durable
        self._opened_at = 0.0
        self._number = 1  # the future name of the open segment
        try:
            os.makedirs(directory, mode=0o750, exist_ok=True)
            self._lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as exc:
            raise UnavailableError(f"cannot open the journal {directory}: {exc.strerror or exc}") from exc
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._number = max(_numbers(directory), default=0) + 1
            self._repair()
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(f"the journal {directory} is in use: another coordd runs with this state_dir") from None
        except OSError as exc:
            os.close(self._lock)
            raise UnavailableError(f"cannot repair the journal {directory}: {exc.strerror or exc}") from exc

    def append(self, records: Sequence[dict[str, Any]], *, sync: bool) -> None:
        """Write records in order; with ``sync`` they, and all before them, are on the disk when this returns.

        Raises: UnavailableError: the disk refuses them. Then none of them is in the journal; a later append works when
        the disk does. So it says, once, that somebody removed the open segment. LocalProtocolError: a record is not
        JSON; none of them was written.
        """
        if not records:
            return
        try:
            data = b"".join([encode_line(record) for record in records])
        except (ValueError, TypeError, RecursionError) as exc:
            raise LocalProtocolError(f"a record that is not JSON: {exc}") from exc
        try:
            self._miss_segment()
            if self._fd >= 0 and self._is_due(len(data)):
                self._close_segment()
            self._open_segment()
            self._write(data)
            if sync:
                os.fdatasync(self._fd)
        except OSError as exc:
            self._cut_back()
            raise UnavailableError(f"the journal {self.directory} refuses records: {exc.strerror or exc}") from exc
        self._size += len(data)
        self._dirty = False

    def closed(self) -> list[str]:
        """The paths of closed segments, oldest first."""
        return [_path(self.directory, number) for number in _numbers(self.directory)]

    def prune(self, keep_s: float, now: float) -> list[str]:
        """Remove closed segments (and torn ends) last written more than ``keep_s`` before ``now`` (Unix time).

        The newest closed segment always stays: numbering continues from it, so that no number is used twice.
        Returns the removed paths. Raises UnavailableError.
        """
        removed = []
        try:
            torn = [os.path.join(self.directory, n) for n in sorted(os.listdir(self.directory)) if _is_torn(n)]
            for path in self.closed()[:-1] + torn:
                if os.stat(path).st_mtime < now - keep_s:
                    os.unlink(path)
                    removed.append(path)
        except OSError as exc:
            raise UnavailableError(f"cannot prune the journal {self.directory}: {exc.strerror or exc}") from exc
        return removed

    def close(self) -> None:
        """Close the open segment. Raises UnavailableError; records appended with ``sync`` are safe in any case."""
        if self._lock < 0:
            return
        try:
            self._miss_segment()
            if self._fd >= 0:
                self._close_segment()
        except OSError as exc:
            raise UnavailableError(f"cannot close the journal {self.directory}: {exc.strerror or exc}") from exc
        finally:
            if self._fd >= 0:
                os.close(self._fd)
            os.close(self._lock)
            self._fd = self._lock = -1

    # ---- the open segment

    def _miss_segment(self) -> None:
        """Begin another segment if the open one was removed or replaced: nobody would ever read what is written to it,
        and it could never be closed. Raises UnavailableError if it was.
        """
        path = os.path.join(self.directory, CURRENT)
        if self._fd < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._fd), os.stat(path)):
                return
        os.close(self._fd)
        self._fd, self._size = -1, 0
        self._repair()  # whatever is there now is kept, as after a crash
        raise UnavailableError(f"the journal lost its open segment: {path} was removed or replaced; another is begun")

    def _is_due(self, more: int) -> bool:
        if not self._size:
            return False  # a record larger than a segment has a segment of its own
        return self._size + more > self._segment_bytes_max or self._clock() - self._opened_at >= self._segment_age_s

    def _open_segment(self) -> None:
        if self._fd < 0:
            path = os.path.join(self.directory, CURRENT)
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
            self._size = 0
            self._dirty = True
            self._opened_at = self._clock()
        if self._dirty:
            os.ftruncate(self._fd, self._size)
            sync_directory(self.directory)

    def _write(self, data: bytes) -> None:
        self._dirty = True
        view = memoryview(data)
        while view:  # one write; a short one means that the disk is filling up, and the next one gives the error
            view = view[os.write(self._fd, view) :]

    def _cut_back(self) -> None:
        """Remove a partial line. If even that fails, the next append tries it again first."""
        if self._fd >= 0 and self._dirty:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)

    def _close_segment(self) -> None:
        """Close by renaming. The lines are made durable first: a closed segment never changes again."""
        path = os.path.join(self.directory, CURRENT)
        if self._dirty:
            os.ftruncate(self._fd, self._size)
        os.fdatasync(self._fd)
        if self._size:
            os.rename(path, _path(self.directory, self._number))
            self._number += 1
        else:
            os.unlink(path)
        os.close(self._fd)
        self._fd = -1
        sync_directory(self.directory)

    # ---- after a crash

    def _repair(self) -> None:
        """Close the segment of the last process; a partial line at its end is moved aside first."""
        path = os.path.join(self.directory, CURRENT)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        self._fd = fd
        try:
            with open(fd, "rb", closefd=False) as file:
                good_to, bad, size = _measure(file)
            self.bad_lines = bad
            if bad:
                self.repaired.append(
                    f"{bad} bad lines in the middle of {_path(self.directory, self._number)} were left"
                )
            self._size = good_to
            if size > good_to:
                kept = self._move_aside(fd, good_to)
                os.ftruncate(fd, good_to)
                self.repaired.append(f"{size - good_to} bytes of a torn end were moved from {path} to {kept}")
            self._close_segment()
        finally:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    def _move_aside(self, fd: int, start: int) -> str:
        # Named after the segment. A segment that has only a partial line passes its number to the next one.
        names = [f"torn-{self._number:08d}.bytes", f"torn-{self._number:08d}-{time.time_ns()}.bytes"]
        kept = next(p for p in (os.path.join(self.directory, n) for n in names) if not os.path.exists(p))
        out = os.open(kept, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        with open(out, "wb") as file:
            os.lseek(fd, start, os.SEEK_SET)
            while chunk := os.read(fd, 1024 * 1024):
                file.write(chunk)
            file.flush()
            os.fsync(out)
        return kept


def read(directory: str) -> Iterator[dict[str, Any]]:
    """All valid lines of a journal, in the order of writing, even while a node writes it.

    Raises UnavailableError when it cannot be read.
    """
    try:
        with contextlib.ExitStack() as stack:
            # Open the current segment first: if it is closed (renamed) while we read, we still have the right file.
            current = None
            with contextlib.suppress(FileNotFoundError):
                current = stack.enter_context(open(os.path.join(directory, CURRENT), "rb"))
            held = os.fstat(current.fileno()).st_ino if current else 0
            for number in _numbers(directory):
                with contextlib.suppress(FileNotFoundError), open(_path(directory, number), "rb") as file:
                    if os.fstat(file.fileno()).st_ino != held:
                        yield from filter(None, map(decode_line, file))
            if current:
                yield from filter(None, map(decode_line, current))
    except OSError as exc:
        raise UnavailableError(f"cannot read the journal {directory}: {exc.strerror or exc}") from exc


def lines(directory: str, *, newest: int | None = None) -> Iterator[Line]:
    """All lines unchanged, in order, with their positions; only of the ``newest`` segments.

    A last line without a line feed is left out: it is being written. Raises UnavailableError.
    """
    try:
        with contextlib.ExitStack() as stack:
            current = None  # opened first, as in ``read``
            with contextlib.suppress(FileNotFoundError):
                current = stack.enter_context(open(os.path.join(directory, CURRENT), "rb"))
            held = os.fstat(current.fileno()).st_ino if current else 0
            numbers = _numbers(directory)
            for number in numbers if newest is None else numbers[-newest:]:
                path = _path(directory, number)
                with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                    if os.fstat(file.fileno()).st_ino != held:
                        yield from _placed(os.path.basename(path), file)
            if current:
                yield from _placed(CURRENT, current)
    except OSError as exc:
        raise UnavailableError(f"cannot read the journal {directory}: {exc.strerror or exc}") from exc


def _placed(name: str, file: BinaryIO) -> Iterator[Line]:
    return (Line(name, at, data) for at, data in enumerate(file, 1) if data.endswith(b"\n"))


def highest_clock(directory: str) -> int:
    """The highest Lamport clock near the journal's end; 0 without a journal. For StateFile.load."""
    clocks = (record.get("clock") for record in newest(directory, CLOCK_BYTES_MAX))
    return max((clock for clock in clocks if isinstance(clock, int)), default=0)


def newest(directory: str, bytes_max: int) -> Iterator[dict[str, Any]]:
    """The valid lines among the last ``bytes_max`` bytes, oldest first; nothing without a journal.

    Raises UnavailableError when they cannot be read.
    """
    yield from about(directory, "", bytes_max)


def about(directory: str, text: str, bytes_max: int) -> Iterator[dict[str, Any]]:
    """As ``newest``, but only lines that contain this text; the others are not decoded."""
    wanted = text.encode()
    if not os.path.isdir(directory):
        return
    try:
        for path, start in _tail(directory, bytes_max):
            with open(path, "rb") as file:
                if start:
                    file.seek(start - 1)
                    file.readline()  # skip the rest of a line that starts before the range
                yield from filter(None, map(decode_line, (line for line in file if wanted in line)))
    except OSError as exc:
        raise UnavailableError(f"cannot read the journal {directory}: {exc.strerror or exc}") from exc


def _tail(directory: str, bytes_max: int) -> list[tuple[str, int]]:
    """(path, start) of the segments that hold the last ``bytes_max`` bytes, oldest first."""
    found: list[tuple[str, int]] = []
    paths = [_path(directory, number) for number in _numbers(directory)]
    for path in (os.path.join(directory, CURRENT), *reversed(paths)):
        if bytes_max <= 0:
            break
        with contextlib.suppress(FileNotFoundError):  # no segment is open
            size = os.stat(path).st_size
            found.append((path, max(0, size - bytes_max)))
            bytes_max -= size
    return found[::-1]


def _measure(file: Any) -> tuple[int, int, int]:
    """(end of the last valid line, bad lines before it, size of the file)."""
    good_to = offset = bad = bad_since = 0
    for line in file:
        offset += len(line)
        if line.endswith(b"\n") and decode_line(line) is not None:
            good_to = offset
            bad += bad_since
            bad_since = 0
        else:
            bad_since += 1
    return good_to, bad, offset


def _numbers(directory: str) -> list[int]:
    """The numbers of the closed segments, ascending."""
    names = [name.removesuffix(".jsonl") for name in os.listdir(directory) if name.endswith(".jsonl")]
    return sorted(int(name) for name in names if name.isdigit())


def _path(directory: str, number: int) -> str:
    return os.path.join(directory, f"{number:08d}.jsonl")


def _is_torn(name: str) -> bool:
    return name.startswith("torn-") and name.endswith(".bytes")
