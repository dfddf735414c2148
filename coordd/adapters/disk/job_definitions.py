"""The definitions of jobs that this node had last, whole, in one file of the node's state.

A run is executed by the definition of its row. So a daemon that is restarted with changed job files needs the earlier
definitions for the runs that are still open. Losing the file does little harm: such a run is left to other nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from coordd.adapters.disk.files import set_aside, write_atomic
from coordd.core.jobs import kept
from coordd.core.jobs.job import Job
from coordd.errors import UnavailableError

# More than ten thousand jobs need; a longer file is not ours.
BYTES_MAX = 64 * 1024 * 1024


class JobDefinitionsFile:
    """A file that is replaced as a whole; only the daemon's user may read it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> tuple[list[Job], str]:
        """The definitions, and a sentence for the log if the file is unusable: it is then kept under another name."""
        try:
            with open(self.path, "rb") as file:
                return kept.unpack(file.read(BYTES_MAX)), ""
        except FileNotFoundError:
            return [], ""
        except OSError as exc:
            return [], f"{self.path} is not readable ({exc.strerror or exc})"
        except ValueError as exc:
            return [], f"{self.path} is not readable ({exc}){self._set_aside()}"

    def _set_aside(self) -> str:
        try:
            return f", kept as {set_aside(self.path)}"
        except UnavailableError as exc:
            return f"; {exc}"

    def save(self, jobs: Iterable[Job]) -> None:
        """Replace the content. Raises UnavailableError when the disk refuses it."""
        try:
            write_atomic(self.path, kept.pack(jobs))
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc
