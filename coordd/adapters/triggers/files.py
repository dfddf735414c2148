"""The files that match a pattern. A look is bounded, follows no link out of its directory, and opens no file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase

from coordd.core.jobs.arguments import control_character
from coordd.core.triggers.files import Found
from coordd.errors import UnavailableError
from coordd.ports import Listing

# Entries of directories that one look reads, in all.
ENTRIES_MAX = 200_000

# Errors of names that are gone, or were never directories; any other error hides what may be there.
VANISHED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)

# Files that are named with the reason why they are left out.
REFUSED_MAX = 100


def base_of(pattern: str) -> str:
    """The directory that all files must be in: the part before the first wildcard, without its last name."""
    parts = pattern.split("/")
    wild = next((place for place, part in enumerate(parts) if is_wild(part)), len(parts))
    return "/".join(parts[: min(wild, len(parts) - 1)])


def look(pattern: str) -> Listing:
    """One look. Blocks as long as the file system does.

    Raises UnavailableError if the directory is not there or cannot be read, or none of those below it can be.
    """
    base = base_of(pattern)
    names = pattern.removeprefix(base + "/").split("/")
    try:
        root = os.path.realpath(base, strict=True)
        walk = _Walk(root)
        for path in walk.below(base, names, first=True):
            walk.take(path)
    except OSError as exc:
        raise UnavailableError(f"{exc.filename or base} cannot be read: {exc.strerror or exc}") from exc
    if walk.unread and not walk.read:
        raise UnavailableError(walk.unread)
    return Listing(walk.found, walk.refused, walk.more)


class _Walk:
    """One look at the directories below ``root`` (its real path)."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._left = ENTRIES_MAX
        self.found: list[Found] = []
        self.refused: list[tuple[str, str]] = []
        self.more = False
        self.read = False  # a directory that may have files, or a file
        self.unread = ""  # the first that could not be read, and why

    def below(self, directory: str, names: list[str], *, first: bool = False) -> Iterator[str]:
        """The paths that match. Only the first directory must be there: others may vanish during the look."""
        try:
            matches = self._matching(directory, names[0])
        except OSError as exc:
            if first:
                raise
            self._failed(directory, exc)
            return
        self.read = self.read or (len(names) == 1 and is_wild(names[0]))
        for name in matches:
            path = f"{directory}/{name}"
            if len(names) == 1:
                yield path
            elif self._is_within(path):
                yield from self.below(path, names[1:])

    def _matching(self, directory: str, name: str) -> list[str]:
        if not is_wild(name):
            return [name]
        matches = []
        with os.scandir(directory) as entries:
            for entry in entries:
                self._left -= 1
                if self._left < 0:
                    self.more = True
                    break
                if (entry.name[0] != "." or name[0] == ".") and fnmatchcase(entry.name, name):
                    matches.append(entry.name)
        return matches

    def _is_within(self, path: str) -> bool:
        """False for a link out of the directory, which is refused."""
        real = os.path.realpath(path)
        if real == self._root or real.startswith(f"{self._root}/"):
            return True
        self._refuse(path, f"a link out of {self._root}")
        return False

    def take(self, path: str) -> None:
        """Add the file, if it is one."""
        try:
            found = os.lstat(path)
            if stat.S_ISLNK(found.st_mode):
                if not self._is_within(path):
                    return
                found = os.stat(path)
        except OSError as exc:
            self._failed(path, exc)  # unless it has vanished, or is a link to nothing
            return
        self.read = True
        if not stat.S_ISREG(found.st_mode):
            return
        bad = control_character(path)
        if bad:
            self._refuse(path, f"its name has the character {bad!r}")
            return
        self.found.append(Found(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns))

    def _failed(self, path: str, exc: OSError) -> None:
        """It cannot be read."""
        if exc.errno in VANISHED:
            self.read = True
            return
        why = f"it cannot be read: {exc.strerror or exc}"
        self.unread = self.unread or f"{path}: {why}"
        self._refuse(path, why)

    def _refuse(self, path: str, why: str) -> None:
        if len(self.refused) < REFUSED_MAX:
            self.refused.append((path, why))


def is_wild(name: str) -> bool:
    """True for a pattern."""
    return any(wild in name for wild in "*?[")
