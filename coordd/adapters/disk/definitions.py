"""The last known definition of each job, in one file of the node's state: the node activates only new definitions."""

from __future__ import annotations

import json
from collections.abc import Mapping

from coordd.adapters.disk.files import kept_aside, write_atomic
from coordd.errors import UnavailableError

# More than ten thousand jobs need; a longer file is not ours.
BYTES_MAX = 4 * 1024 * 1024


# The consequence; see docs/runbook.md: a job is stale on this node.
_FORGOTTEN = "this node has forgotten its definitions: if another definition of a job counts, its own is stale"

# Larger numbers are neither a sequence nor an instant of ours: SQLite and Lua could not store them.
NUMBER_MAX = 2**53


class DefinitionsFile:
    """A small file, replaced as a whole. Losing it does no harm: then the node activates only definitions of jobs that
    are new to the ledger.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> tuple[dict[str, tuple[str, int, float]], str]:
        """The content, and a sentence for the log if the file is unusable."""
        try:
            with open(self.path, "rb") as file:
                said = json.loads(file.read(BYTES_MAX))
            found = {str(job): _checked(*one) for job, one in said["jobs"].items()}
        except FileNotFoundError:
            return {}, ""
        except OSError as exc:
            return {}, f"{self.path} is not readable ({exc.strerror or exc}); {_FORGOTTEN}"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as exc:
            return {}, f"{self.path} is not readable ({exc}){kept_aside(self.path)}; {_FORGOTTEN}"
        return found, ""

    def save(self, jobs: Mapping[str, tuple[str, int, float]]) -> None:
        """Write it; it is on the disk when this returns. Raises UnavailableError when the disk refuses it."""
        data = json.dumps({"jobs": {job: list(one) for job, one in jobs.items()}}).encode()
        try:
            write_atomic(self.path, data)
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc


def _checked(digest: object, sequence: object, counts_from: object) -> tuple[str, int, float]:
    """One stored definition. Raises ValueError."""
    if not isinstance(digest, str) or type(sequence) is not int or not isinstance(counts_from, (int, float)):
        found = f"{[digest, sequence, counts_from]!r:.120}"
        raise ValueError(f"expected a digest, a whole number and an instant, found {found}")
    if not (0 <= sequence < NUMBER_MAX and abs(counts_from) < NUMBER_MAX):  # a NaN is refused too
        raise ValueError(f"numbers out of range at the definition {digest:.80}")
    return digest, sequence, float(counts_from)
