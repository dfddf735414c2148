"""The revision in force, as the ledger keeps it; and the definitions of a revision, as a request brings them."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Digest and schedule digest of a job that a revision does not have any more: no node's definition is equal to it.
GONE = "gone"


class InForce(NamedTuple):
    """A revision: its number (1, 2, …; 0: none) and the digest of its job files."""

    number: int
    digest: str

    def text(self) -> str:
        """As the note of the hold REVISION."""
        return f"{self.number} {self.digest}"


NO_REVISION = InForce(0, "")


def read(note: str) -> InForce:
    """The inverse of ``InForce.text``; NO_REVISION for any other text."""
    number, space, digest = note.partition(" ")
    if not (space and digest and number.isascii() and number.isdigit()):
        return NO_REVISION
    return InForce(int(number), digest)


def definitions(jobs: Mapping[str, tuple[str, str]], gone: Iterable[str] = ()) -> str:
    """The jobs of a revision that have a schedule (name -> digest, schedule digest), and those that it lacks now."""
    lines = [f"{name} {digest} {schedule}" for name, (digest, schedule) in sorted(jobs.items())]
    return "\n".join([*lines, *[f"{name} {GONE} {GONE}" for name in sorted(set(gone) - set(jobs))]])
