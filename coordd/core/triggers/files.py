"""Which files are complete: two looks, far enough apart, have found the same size and time of change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coordd.core.triggers.arrivals import Arrival

# A file that is this much younger (seconds) than what the history forgets is too old to be taken: its run may have been
# forgotten, and would run again.
MARGIN_S = 86_400.0


class Found(NamedTuple):
    """A file of one look. ``mtime_ns``: when its content was last changed, nanoseconds since 1970; ``ctime_ns``: when
    anything of it was, its name too.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def key(self) -> str:
        """A file that is written again under its name is another arrival."""
        return f"{self.path}\0{self.size}\0{self.mtime_ns}"

    def arrival(self) -> Arrival:
        """What it starts."""
        directory, _, name = self.path.rpartition("/")
        values = {"path": self.path, "name": name, "dir": directory, "size": str(self.size), "key": self.path}
        return Arrival(self.key, values)


class Seen(NamedTuple):
    """A file of the last look. ``since``: when it was first seen as it is (seconds of a clock that never steps)."""

    file: Found
    since: float
    settled: bool


class Looks:
    """What earlier looks have found. Its size is that of the last look."""

    def __init__(self, settle_s: float) -> None:
        self._settle_s = settle_s
        self._since: dict[str, tuple[Found, float]] = {}  # by path: since when it is so
        self._settled: set[str] = set()
        self.unsettled = 0  # files of the last look that may still change

    def seen(self, path: str) -> Seen | None:
        """A file of the last look."""
        known = self._since.get(path)
        return None if known is None else Seen(*known, settled=path in self._settled)

    def look(self, found: Iterable[Found], now: float) -> list[Found]:
        """The complete files of this look, oldest first. ``now``: seconds of a clock that never steps."""
        since: dict[str, tuple[Found, float]] = {}
        settled = []
        for file in found:
            before = self._since.get(file.path)
            if before is None or before[0] != file:
                since[file.path] = (file, now)
                continue
            since[file.path] = before
            if now - before[1] >= self._settle_s:
                settled.append(file)
        # At once: ``seen`` may be asked from another thread.
        self._since, self._settled = since, {file.path for file in settled}
        self.unsettled = len(since) - len(settled)
        return sorted(settled, key=lambda file: (file.mtime_ns, file.path))
