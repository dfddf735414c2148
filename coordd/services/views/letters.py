"""Dead letters, read from the rows of runs that ended as failure or lost."""

from __future__ import annotations

from coordd.core.jobs.job import EXEC_DIGEST
from coordd.core.ledger.people import is_dead_letter
from coordd.core.ledger.rows import Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import FAILURE, LOST
from coordd.ports import Ledger

# How many rows are searched for those that nobody has discarded.
SEARCHED_MAX = 10_000


def dead_letters(ledger: Ledger, limit: int, job: str = "", *, searched: int = SEARCHED_MAX) -> list[Row]:
    """Runs in the ledger's thread: the newest dead letters. Of the runs that failed, and of those that were lost, the
    newest ``searched`` are looked at.
    """
    found = [row for state in (FAILURE, LOST) for row in _newest(ledger, state, limit, job, searched)]
    return sorted(found, key=lambda row: (-row.ended_at, row.run))[:limit]


def _newest(ledger: Ledger, state: str, limit: int, job: str, searched: int) -> list[Row]:
    """Most of them are dead letters, so only a few rows are read at first."""
    count = min(limit, searched)
    while True:
        rows = ledger.runs(job=job, state=state, limit=count)
        found = [row for row in rows if is_letter(row)]
        if len(found) >= limit or len(rows) < count or count >= searched:
            return found
        count = min(4 * count, searched)


def is_letter(row: Row) -> bool:
    """True for a dead letter. Not for a run of `coordd exec`: its caller saw it fail, and no job file has it."""
    return not run_fault(row) and is_dead_letter(row) and not row.digest.startswith(EXEC_DIGEST)


def letter_id(run: str, attempt: int) -> str:
    """The id of a dead letter: the run, and the attempt with which it was given up."""
    return f"{run}/{attempt}"
