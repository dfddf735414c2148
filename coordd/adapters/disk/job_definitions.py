"""The definitions of jobs that this node had last, whole, in one file of the node's state.

A run is executed by the definition of its row. So a daemon that is restarted with changed job files needs the earlier
definitions for the runs that are still open. Losing the file does little harm: such a run is left to other nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from coordd.adapters.disk.files import kept_aside, write_atomic
from coordd.core.jobs import kept
from coordd.core.jobs.job import Job
from coordd.errors import UnavailableError

# More than ten thousand jobs need; a longer file is not ours.
BYTES_MAX = 64 * 1024 * 1024


class JobDefinitionsFile:
    """A file that is replaced as a whole; only the daemon's user may read it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._written = b""  # the digest of the content, as far as this process knows it

    def load(self) -> tuple[list[Job], str]:
        """The definitions, and a sentence for the log if the file is unusable: it is then kept under another name."""
        try:
            with open(self.path, "rb") as file:
                data = file.read(BYTES_MAX)
            found = kept.unpack(data)
        except FileNotFoundError:
            return [], ""
        except OSError as exc:
            return [], f"{self.path} is not readable ({exc.strerror or exc})"
        except ValueError as exc:
            return [], f"{self.path} is not readable ({exc}){kept_aside(self.path)}"
        self._written = _digest(data)
        return found, ""

    def save(self, jobs: Iterable[Job]) -> None:
        """Replace the content, unless it is the same. Raises UnavailableError when the disk refuses it."""
        data = kept.pack(jobs)
        if _digest(data) == self._written:
            return  # most starts and reloads change nothing, and a synced write is slow
        try:
            write_atomic(self.path, data)
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc
        self._written = _digest(data)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()
