"""Ends of the jobs that event triggers name, read from the ledger job by job.

The newest ends of all jobs hide older ones: those that a trigger has waited for while its job was suspended, or while
every node was down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import TERMINAL, UNKNOWN
from coordd.ports import Ledger
from coordd.services.hooks.listeners import EventTrigger, Listener

# How often (seconds) all of them are read, how many of each job and state, and how many jobs and states at a time.
EVERY_S = 300.0
ROWS = 1000
AT_A_TIME = 50

# The states that are an end for a trigger.
STATES = (*sorted(TERMINAL), UNKNOWN)


class Followed:
    """Which jobs and states are read next."""

    def __init__(self) -> None:
        self._left: list[tuple[str, str]] = []  # (job, state)
        self._again_at = 0.0

    def next(self, hooks: Iterable[Listener], now: float) -> Sequence[tuple[str, str]]:
        """The next jobs and states. ``now``: CLOCK_BOOTTIME."""
        if not self._left and now >= self._again_at:
            self._again_at = now + EVERY_S
            triggers = [hook for hook in hooks if isinstance(hook, EventTrigger)]
            wanted = {(job, state) for hook in triggers for job in hook.trigger.jobs for state in _states(hook)}
            self._left = sorted(wanted)
        return self._left[:AT_A_TIME]

    def were_read(self, count: int) -> None:
        """So many of them are done."""
        del self._left[:count]

    def again(self) -> None:
        """An end was not taken: read all of them soon."""
        self._again_at = 0.0


def read(ledger: Ledger, wanted: Sequence[tuple[str, str]]) -> tuple[list[Row], int]:
    """Rows of the first jobs and states, until there are ROWS of them; and of how many these are."""
    rows: list[Row] = []
    for count, (job, state) in enumerate(wanted, 1):
        rows += ledger.runs(job=job, state=state, limit=ROWS)
        if len(rows) >= ROWS:
            return rows, count
    return rows, len(wanted)


def _states(hook: Listener) -> list[str]:
    return [state for state in STATES if hook.wants(f"run.{state}")]
