"""Journals what becomes of breakers: of those of jobs, and of this node's own. The history shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from coordd.core.ledger.breaker.text import CLOSED, OPEN
from coordd.core.ledger.words import NEVER
from coordd.core.wire.events import BreakerChanged
from coordd.services.breakers.view import JobBreaker
from coordd.services.driver import Driver


class Seen(NamedTuple):
    """A breaker at the last look. ``since``: of its state (Unix seconds), 0.0: closed. ``opened``: how often."""

    state: str = CLOSED
    since: float = 0.0
    opened: int = 0


class BreakerChanges:
    """Compares each look with the one before."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._seen: dict[str, Seen] = {}

    def look(self, jobs: Mapping[str, JobBreaker]) -> None:
        """Journal what has changed since the last look. After a start each breaker that is not closed is told again.

        ``jobs``: the breakers of jobs as they are now.
        """
        if self._driver.node.identity_from != NEVER:  # else no sweep has shown them yet
            self._look_at_jobs(jobs)
        self._look_at_own()

    def _look_at_jobs(self, jobs: Mapping[str, JobBreaker]) -> None:
        for one in jobs.values():
            since = one.isolated.at if one.isolated is not None else one.kept.since
            found = Seen(one.state, since if one.is_open else 0.0, one.kept.trips)
            self._note(one.name, found, one.sentence())

    def _look_at_own(self) -> None:
        """While one is tried and fails again and again, it counts as open since it opened first."""
        wall = self._driver.now().wall
        for breaker in self._driver.breakers:
            before = self._seen.get(breaker.name, Seen())
            opened = Seen(OPEN, before.since or wall, breaker.opened)
            if breaker.opened > before.opened and not before.since:
                self._note(breaker.name, opened, breaker.reason)
            if not breaker.is_open:
                self._note(breaker.name, Seen(opened=breaker.opened), "")

    def _note(self, name: str, found: Seen, reason: str) -> None:
        before = self._seen.get(name, Seen())
        self._seen[name] = found
        if (found.state, found.since) == (before.state, before.since):
            return
        event = BreakerChanged(
            clock=self._driver.node.stamp(),
            timestamp=self._driver.now().wall,
            breaker=name,
            state=found.state,
            since=found.since or before.since,
            trips=found.opened,
            reason=reason,
        )
        self._driver.tell(event)
