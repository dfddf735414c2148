"""The output of attempts on this node: its path, and how it is read."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from coordd.core.jobs.job import job_of
from coordd.core.redaction import redact_text

# Ids chosen by people; their file names are the same as in older versions.
_PLAIN = re.compile(r"#[A-Za-z0-9._-]+")

# A scheduled run. A person may choose a similar id with "_" for ":", which then gets a hash.
_TIMED = re.compile(r"@\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_LOOKS_TIMED = re.compile(r"#\d{4}-\d\d-\d\dT\d\d_")

TAIL_BYTES = 8192
TAIL_LINES_MAX = 20
TAIL_LINE_LENGTH_MAX = 500


# A log is recognised by its inode and its first bytes: the inode alone may be that of a removed file.
HEAD_BYTES = 64


class Place(NamedTuple):
    """A place in a log, between two pieces: before byte ``offset`` of the file with this inode and this checksum of its
    first bytes (0: it has too few).
    """

    inode: int
    head: int
    offset: int


class Piece(NamedTuple):
    """Bytes of a log, and what comes after them."""

    data: bytes
    place: Place  # where the next piece begins
    left: int = 0  # bytes after this piece, when it was read
    lost: bool = False  # bytes before it were dropped, because the log was full, before they were read


class _File(NamedTuple):
    fd: int
    inode: int
    head: int
    size: int

    def place(self, offset: int) -> Place:
        return Place(self.inode, self.head, offset)


def log_path(log_dir: str, run: str, attempt: int) -> str:
    """The path of an attempt's output: no two runs share a file.

    It is the run's id, with "_" for characters that are bad in file names. If another id would give the same name, a
    part of the id's hash follows.
    """
    rest = run[len(job_of(run)) :]
    own = _TIMED.fullmatch(rest) if rest.startswith("@") else _PLAIN.fullmatch(rest) and not _LOOKS_TIMED.match(rest)
    suffix = "" if own else "~" + hashlib.sha256(run.encode()).hexdigest()[:12]
    return os.path.join(log_dir, job_of(run), f"{_safe(run)}{suffix}.{attempt}.log")


def _safe(run: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]", "_", run)


def find_log(log_dir: str, run: str, attempt: int, *, earlier: bool) -> str:
    """The path of an attempt's log on this node, or (``earlier``) of the last attempt before it; "" if neither exists.

    Older versions used one file for several ids: those files are found too.
    """
    for number in range(attempt, -1, -1) if earlier else (attempt,):
        path = log_path(log_dir, run, number)
        for each in (path, os.path.join(os.path.dirname(path), f"{_safe(run)}.{number}.log")):
            if _is_there(each):
                return each
    return ""


def _is_there(path: str) -> bool:
    """Also a file that this process may not look at: who reads it is told so."""
    try:
        os.stat(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def end_of(data: bytes, limit: int) -> tuple[bytes, bool]:
    """Whole lines from the end of a log, at most ``limit`` bytes, and whether there are more before them.

    ``data``: its last bytes, more than ``limit`` of them if the log is longer. A line that alone is longer is cut.
    """
    if len(data) <= limit:
        return data, False
    begin = data.find(b"\n", len(data) - limit - 1) + 1
    return data[begin:] if 0 < begin < len(data) else data[-limit:], True


def tail_lines(path: str) -> list[str]:
    """The last lines of a log, without passwords; [] when it cannot be read."""
    try:
        lines = read_tail(path, TAIL_BYTES).splitlines()[-TAIL_LINES_MAX:]
    except OSError:
        return []
    return [redact_text(line)[:TAIL_LINE_LENGTH_MAX] for line in lines]


def read_tail(path: str, limit: int) -> str:
    """The last bytes of a log, including the rotated file. Raises OSError."""
    return read_piece(path, None, limit, tail=limit).data.decode(errors="replace")


def read_piece(path: str, place: Place | None, limit: int, *, tail: int = 0) -> Piece:
    """At most ``limit`` bytes of a log from a place on, including the rotated file; b"" at its end.

    Without a place: from its beginning, or the last ``tail`` bytes. Only what is asked for is read. Raises OSError if
    the log is gone.
    """
    with _opened(path) as files:
        total = sum(file.size for file in files)
        at, lost = (0, False) if place is None else _position(files, place)
        if place is None and tail:
            at = max(0, total - tail)
        parts: list[bytes] = []
        left = limit
        after = files[0].place(0)
        for file in files:
            if at >= file.size and file is not files[-1]:
                at -= file.size
                continue
            data = os.pread(file.fd, min(left, max(0, file.size - at)), at)
            parts.append(data)
            left -= len(data)
            after = file.place(at + len(data))
            if not left or at + len(data) < file.size:
                break
            at = 0
        data = b"".join(parts)
        return Piece(data, after, _after(files, after), lost)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[list[_File]]:
    """The files of a log, oldest first; at least one of them."""
    fds: list[int] = []
    try:
        for name in (path, f"{path}.old"):  # a rotation between the two gives the same file twice
            with contextlib.suppress(FileNotFoundError):
                fds.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC))
        files = [_file(fd) for fd in reversed(fds)]
        if len(files) == 2 and files[0].inode == files[1].inode:
            del files[0]
        if not files:
            raise FileNotFoundError(path)
        yield files
    finally:
        for fd in fds:
            os.close(fd)


def _file(fd: int) -> _File:
    stat = os.fstat(fd)
    head = os.pread(fd, HEAD_BYTES, 0)
    return _File(fd, stat.st_ino, zlib.crc32(head) if len(head) == HEAD_BYTES else 0, stat.st_size)


def _position(files: list[_File], place: Place) -> tuple[int, bool]:
    """The place as a number of bytes from the beginning of the oldest file, and whether bytes before it are lost."""
    start = 0
    for file in files:
        same = file.inode == place.inode and (not place.head or file.head == place.head)
        if same and place.offset <= file.size:
            return start + place.offset, False
        start += file.size
    return 0, place.inode != 0


def _after(files: list[_File], place: Place) -> int:
    """How many bytes there are after a place."""
    at, _ = _position(files, place)
    return sum(file.size for file in files) - at
