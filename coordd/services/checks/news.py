"""Which changes of checks are news for hooks, and since when the new state counts: the same on every node."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from coordd.core.checks.state import HEALTHY, UNKNOWN
from coordd.services.checks.service import Row


class Change(NamedTuple):
    """A check was in the state ``before``, and is in its row's ``since`` that instant (Unix seconds)."""

    row: Row
    before: str
    since: float


class News:
    """Remembers the state of each check that hooks were told of. A check that starts in health is not news."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}  # key -> state, and since when

    def of(self, rows: Iterable[Row]) -> list[Change]:
        """The changes since the last look."""
        changes = []
        known = {}
        for row in rows:
            key, state = row.check.key, row.state
            before, told_at = self._told.get(key, ("", 0.0))
            if not before and state == UNKNOWN:
                continue
            # A report that has ended leaves a state that began before it: then the report's instant counts.
            since = max(row.since, told_at)
            known[key] = state, since
            if state != before and (before or state != HEALTHY):
                changes.append(Change(row, before or row.before, since))
        self._told = known
        return changes
