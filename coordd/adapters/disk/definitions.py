"""Which definition of each job this node had last, in one file of its state: it activates only what it did not have."""

from __future__ import annotations

import json
from collections.abc import Mapping

from coordd.adapters.disk.files import set_aside, write_atomic
from coordd.errors import UnavailableError

# More than ten thousand jobs; a longer file is not ours.
BYTES_MAX = 4 * 1024 * 1024


# What that means; see docs/runbook.md: a job is stale on this node.
_FORGOTTEN = "this node has forgotten which definitions it had: where another one counts, its own is stale"

# Larger numbers are no sequence, and no instant, of ours: neither SQLite nor Lua would take them.
NUMBER_MAX = 2**53


class DefinitionsFile:
    """A small file, replaced whole. Losing it is no harm: then only what the ledger has never seen is activated."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> tuple[dict[str, tuple[str, int, float]], str]:
        """What it says, and a sentence for the log when it says nothing usable."""
        try:
            with open(self.path, "rb") as file:
                said = json.loads(file.read(BYTES_MAX))
            found = {str(job): _checked(*one) for job, one in said["jobs"].items()}
        except FileNotFoundError:
            return {}, ""
        except OSError as exc:
            return {}, f"{self.path} is not readable ({exc.strerror or exc}); {_FORGOTTEN}"
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as exc:
            return {}, f"{self.path} is not readable ({exc}){self._set_aside()}; {_FORGOTTEN}"
        return found, ""

    def _set_aside(self) -> str:
        try:
            return f", kept as {set_aside(self.path)}"
        except UnavailableError as exc:
            return f"; {exc}"

    def save(self, jobs: Mapping[str, tuple[str, int, float]]) -> None:
        """Write it; it is on the disk when this returns. Raises UnavailableError when the disk does not take it."""
        data = json.dumps({"jobs": {job: list(one) for job, one in jobs.items()}}).encode()
        try:
            write_atomic(self.path, data)
        except OSError as exc:
            raise UnavailableError(f"cannot write {self.path}: {exc.strerror or exc}") from exc


def _checked(digest: object, sequence: object, counts_from: object) -> tuple[str, int, float]:
    """One definition as it was kept. Raises ValueError."""
    if not isinstance(digest, str) or type(sequence) is not int or not isinstance(counts_from, (int, float)):
        found = f"{[digest, sequence, counts_from]!r:.120}"
        raise ValueError(f"expected a digest, a whole number and an instant, found {found}")
    if not (0 <= sequence < NUMBER_MAX and abs(counts_from) < NUMBER_MAX):  # not a NaN either
        raise ValueError(f"numbers out of range at the definition {digest:.80}")
    return digest, sequence, float(counts_from)
