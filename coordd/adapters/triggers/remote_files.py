"""The files in HDFS that match a pattern, over WebHDFS. A look is bounded in questions, entries and time."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from coordd.adapters.remote.content import Deadline
from coordd.adapters.remote.webhdfs import UNREADABLE, DeniedError, WebHdfsStore
from coordd.adapters.triggers.files import ENTRIES_MAX, REFUSED_MAX, base_of, is_wild, look as look_here
from coordd.core.jobs.arguments import control_character
from coordd.core.triggers.files import Found
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Listing

# How long (seconds) one look may take, and how many directories and single files it asks for.
LOOK_S = 25.0
QUESTIONS_MAX = 2000


def look(pattern: str) -> Listing:
    """One look at a pattern, here (a path) or in HDFS (a URL). Raises UnavailableError."""
    return look_there(pattern) if "://" in pattern else look_here(pattern)


def look_there(url: str) -> Listing:
    """One look at HDFS. Paths in it are those of HDFS, without the address. Raises UnavailableError."""
    address, _, user = url.partition("?")
    scheme, _, rest = address.partition("://")
    hosts, _, path = rest.partition("/")
    store = WebHdfsStore(f"{scheme}://{hosts}/" + (f"?{user}" if user else ""))
    base = base_of(f"/{path}")
    walk = _Walk(store, Deadline(LOOK_S, f"the look at {address}"))
    try:
        walk.below(base, f"/{path}".removeprefix(base + "/").split("/"), first=True)
    except RefusedError as exc:
        raise UnavailableError(str(exc)) from exc
    if walk.denied is not None and not walk.read:
        raise walk.denied
    return Listing(walk.found, walk.refused, walk.more)


class _Walk:
    def __init__(self, store: WebHdfsStore, deadline: Deadline) -> None:
        self._store = store
        self._deadline = deadline
        self._questions = QUESTIONS_MAX
        self._entries = ENTRIES_MAX
        self.found: list[Found] = []
        self.refused: list[tuple[str, str]] = []
        self.more = False
        self.read = False  # a directory that may have files, or a file
        self.denied: DeniedError | None = None  # the first one

    def below(self, directory: str, names: list[str], *, first: bool = False) -> None:
        """Find what matches. Only the first directory must be there: others may vanish during the look."""
        try:
            for path, status in self._matching(directory, names[0]):
                if len(names) == 1:
                    self._take(path, status)
                elif status is None or status.get("type") == "DIRECTORY":
                    self.below(path, names[1:])
                self.read = self.read or len(names) == 1
        except RefusedError:
            if first:
                raise
            self.read = True
        except DeniedError as exc:
            if first:
                raise
            self._denied(directory, exc)

    def _matching(self, directory: str, name: str) -> Iterator[tuple[str, dict[str, Any] | None]]:
        """Paths with their status; None: it was not asked for."""
        if not is_wild(name):
            yield f"{directory}/{name}", None
            return
        if not self._may_ask():
            return
        for status in self._store.statuses(directory, self._deadline):
            self._entries -= 1
            if self._entries < 0:
                self.more = True
                return
            suffix = str(status.get("pathSuffix", ""))
            if suffix and (suffix[0] != "." or name[0] == ".") and fnmatchcase(suffix, name):
                yield f"{directory}/{suffix}", status

    def _may_ask(self) -> bool:
        self._questions -= 1
        self.more = self.more or self._questions < 0
        return self._questions >= 0

    def _take(self, path: str, status: dict[str, Any] | None) -> None:
        if status is None:
            if not self._may_ask():
                return
            try:
                status = self._store.status(path, self._deadline)
            except RefusedError:
                self.read = True
                return  # it is not there
            except DeniedError as exc:
                self._denied(path, exc)
                return
            self.read = True
        if status.get("type") == "SYMLINK":
            self._refuse(path, "a link")
        elif status.get("type") == "FILE":
            bad = control_character(path)
            if bad:
                self._refuse(path, f"its name has the character {bad!r}")
                return
            try:
                changed_ns, size = int(status.get("modificationTime", 0)) * 10**6, int(status.get("length", 0))
            except UNREADABLE as exc:
                raise UnavailableError(f"the namenode does not tell size and time of {path} as one does") from exc
            self.found.append(Found(path, size, changed_ns, changed_ns))

    def _denied(self, path: str, exc: DeniedError) -> None:
        """The others are looked at all the same."""
        self.denied = self.denied or exc
        self._refuse(path, str(exc))

    def _refuse(self, path: str, why: str) -> None:
        if len(self.refused) < REFUSED_MAX:
            self.refused.append((path, why))
