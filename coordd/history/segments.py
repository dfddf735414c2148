"""Which segments there are, which were read before, and a snapshot of the others.

The output keeps a list of the closed segments that it was made from (``LIST``). A closed segment never changes, so
one that is on the list is not read again; nor is one with the same bytes under another name. The open segment is read
each time: what it says twice is dropped later.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import gzip
import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from coordd.errors import ConfigError, UnavailableError

# Segments are renamed and pruned while we list them: a listing that changes is repeated, up to this many times.
LISTINGS_MAX = 5

LIST = "_segments.jsonl"
OPEN = "current.jsonl"
SUFFIXES = (".jsonl", ".jsonl.gz")

# A file system without links, another one, or a file with as many links as it may have: then files are copied.
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EACCES, errno.ENOTSUP, errno.ENOSYS)


class Segment(NamedTuple):
    """A closed segment that was read. ``digest``: of its bytes; "" if it is not local."""

    path: str
    size: int
    modified_ns: int
    digest: str


class Picture(NamedTuple):
    """Files that do not change any more; Spark may read them several times.

    ``paths``: what is to be read, as URIs. ``read``: all closed segments that the output will be made from. ``known``:
    how many of those that are there now were read before. ``replaced``: files whose rejected lines are replaced.
    ``below``: the directory that holds local files, each under its own path. ``size`` and ``largest`` in bytes;
    ``size`` is None when some are not local.
    """

    paths: list[str]
    read: list[Segment]
    known: int
    replaced: list[str]
    below: str
    size: int | None
    largest: int


def read_before(output: str) -> list[Segment]:
    """The list of an output; empty if there is none (""). A damaged line is left out: that segment is read again."""
    found: list[Segment] = []
    if not output:
        return found  # not what lies in the working directory
    try:
        with open(os.path.join(output, LIST), encoding="utf-8") as file:
            for line in file:
                with contextlib.suppress(ValueError, TypeError):
                    found.append(Segment(*json.loads(line)))
    except FileNotFoundError:
        pass
    return found


def list_text(segments: Iterable[Segment]) -> str:
    """The inverse of ``read_before``."""
    return "".join(json.dumps(segment) + "\n" for segment in segments)


def snapshot(
    journals: list[str],
    target: str,
    before: Iterable[Segment] = (),
    *,
    found: bool = False,
    lists: Callable[[str], list[str]] | None = None,
) -> Picture:
    """Gather the segments of all journals that are not in ``before``, under ``target``.

    A closed segment is linked, so that pruning cannot remove it; the open one is copied, so that two scans see the same
    lines. URIs (hdfs://, s3a://) have only closed segments and are read in place; ``lists`` names those of one. Raises
    ConfigError when there are no segments in one of the journals: without a node, the others prove little. ``found``: a
    stream has found these files, and those that were pruned since are left out. Raises UnavailableError for a directory
    that cannot be listed.
    """
    shot = _Snapshot(target, before)
    missing = []
    for pattern in journals:
        if re.match(r"^[a-z0-9]+://", pattern) and not pattern.startswith("file://"):
            there = [pattern] if found or lists is None else lists(pattern)
            shot.remote += [path for path in there if path not in shot.remote]
            if not there:
                missing.append(pattern)
        elif not shot.gather(pattern.removeprefix("file://")):
            missing.append(pattern)
    if missing and not found:
        raise ConfigError(
            f"no journal segments (*.jsonl, *.jsonl.gz) in {', '.join(missing)}: expected some in each of --journals;"
            " check the spelling and what is mounted, or leave it out"
        )
    return shot.picture()


class _Snapshot:
    def __init__(self, target: str, before: Iterable[Segment]) -> None:
        self.target = target
        self.read = {segment.path: segment for segment in before}
        self.digests = {segment.digest for segment in self.read.values() if segment.digest}
        self.taken: dict[str, str] = {}  # path -> where it is now
        self.replaced: set[str] = set()
        self.known: set[str] = set()
        self.remote: list[str] = []

    def gather(self, pattern: str) -> bool:
        """Are there segments?"""
        for _ in range(LISTINGS_MAX):
            with contextlib.suppress(FileNotFoundError):  # it was closed or pruned since the listing
                found = _segments(pattern)
                for path in found:
                    self.take(path)
                return bool(found)
        raise UnavailableError(f"the journal segments of {pattern} kept changing names; tried {LISTINGS_MAX} times")

    def take(self, path: str) -> None:
        """One segment, unless it was taken or read before."""
        if path in self.taken or path in self.known:
            return
        taken = self.target + path
        if os.path.basename(path) != OPEN:
            state = os.stat(path)
            one = self.read.get(path)
            if one is not None and (one.size, one.modified_ns) == (state.st_size, state.st_mtime_ns):
                self._skip(path)
                return
            _take(path, taken)
            digest = digest_of(taken)
            self.read[path] = Segment(path, state.st_size, state.st_mtime_ns, digest)
            if digest in self.digests:
                self._skip(path)
                return
            self.digests.add(digest)
            if path.endswith(".gz"):
                _make_readable(taken)
        else:
            _take(path, taken)
        self.replaced |= {path, _open_beside(path)}
        self.taken[path] = taken

    def _skip(self, path: str) -> None:
        self.known.add(path)
        self.replaced.add(_open_beside(path))

    def picture(self) -> Picture:
        """All that was gathered."""
        sizes = [os.path.getsize(path) for path in self.taken.values()]
        return Picture(
            [*(f"file://{path}" for path in self.taken.values()), *self.remote],
            list(self.read.values()),
            len(self.known),
            sorted(self.replaced),
            self.target,
            None if self.remote else sum(sizes),
            max(sizes, default=0),
        )


def digest_of(path: str) -> str:
    """Of the bytes of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


def _segments(pattern: str) -> list[str]:
    """The segments in a directory and below, a file, or a glob of either."""
    found: list[str] = []
    seen: set[str] = set()
    for path in sorted(glob.glob(pattern), key=lambda path: (os.path.islink(path), path)):
        if os.path.isdir(path):
            found.extend(_below(path, seen))
        else:
            found.append(path)
    return [os.path.abspath(path) for path in found if path.endswith(SUFFIXES)]


def _below(top: str, seen: set[str]) -> Iterator[str]:
    """The files below a directory. Linked directories come last, and each real one once: links may form a loop."""

    def refuse(exc: OSError) -> None:
        if isinstance(exc, FileNotFoundError):
            raise exc  # it was removed since the listing
        raise UnavailableError(
            f"cannot list {exc.filename or top} ({exc.strerror}): its journals would be missing;"
            " let this user read it, or name the other directories"
        ) from exc

    links: list[str] = []
    for folder, below, names in os.walk(top, onerror=refuse):
        real = os.path.realpath(folder)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below.sort()
        links.extend(path for name in below if os.path.islink(path := os.path.join(folder, name)))
        yield from (os.path.join(folder, name) for name in sorted(names))
    for link in links:
        yield from _below(link, seen)


def _open_beside(path: str) -> str:
    """The open segment of the same journal: what it was once, is in closed ones by now."""
    return os.path.join(os.path.dirname(path), OPEN)


def _take(path: str, taken: str) -> None:
    os.makedirs(os.path.dirname(taken), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(taken)  # of a listing that was given up
    if os.path.basename(path) == OPEN:
        shutil.copy2(path, taken)
        return
    link(path, taken)


def link(path: str, other: str) -> None:
    """The same file under another name; a copy, where links cannot be."""
    try:
        os.link(path, other)
    except OSError as exc:
        if exc.errno not in NO_LINK:
            raise
        shutil.copy2(path, other)


def _make_readable(taken: str) -> None:
    """If a compressed file is cut or damaged: replace it with what can be read, and a line that says so.

    Spark would fail for such a file, each time. That line is not an event, so it is kept aside as others that are cut.
    """
    if not _damage(taken, lambda _data: None):
        return
    readable = f"{taken}.readable"  # not into the file itself: the journal has it under another name
    with gzip.open(readable, "wb") as file:
        damage = _damage(taken, file.write)
        file.write(f"\n(the rest of this file cannot be read: {damage})\n".encode())
    os.replace(readable, taken)


def _damage(path: str, write: Callable[[bytes], object]) -> str:
    """Why a compressed file cannot be read to its end; "" if it can. ``write`` gets all bytes before that."""
    with gzip.open(path) as file:
        try:
            while data := file.read1():
                write(data)
        except (gzip.BadGzipFile, EOFError, zlib.error) as exc:
            return str(exc)
    return ""
