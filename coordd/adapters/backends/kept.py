"""The last definitions that came from elsewhere, in one file of the node's state.

A daemon that starts while the place is away uses them. Losing the file does no harm while the place can be reached.
"""

from __future__ import annotations

import json

from coordd.adapters.disk.files import kept_aside, write_atomic
from coordd.errors import UnavailableError
from coordd.ports import Kept

# More than a revision may have; a longer file is not ours.
BYTES_MAX = 64 * 2**20


class KeptFile:
    """A file that is replaced as a whole; only the daemon's user may read it."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> tuple[Kept | None, str]:
        """The content (None: there is none), and a sentence for the log if the file is unusable."""
        try:
            with open(self.path, "rb") as file:
                said = json.loads(file.read(BYTES_MAX))
            kept = Kept(said["source"], said["jobs"], said["number"], said["digest"])
            if not (isinstance(kept.jobs, dict) and type(kept.number) is int and isinstance(kept.digest, str)):
                raise ValueError("expected jobs, a number and a digest")
        except FileNotFoundError:
            return None, ""
        except OSError as exc:
            return None, f"{self.path} is not readable ({exc.strerror or exc})"
        except (ValueError, TypeError, KeyError, RecursionError) as exc:
            return None, f"{self.path} is not readable ({exc}){kept_aside(self.path)}"
        return kept, ""

    def save(self, kept: Kept) -> None:
        """Replace the content. Raises UnavailableError when the disk refuses it."""
        try:
            write_atomic(self.path, json.dumps(kept._asdict()).encode())
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc
