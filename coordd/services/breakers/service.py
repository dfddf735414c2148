"""Tells in the log what becomes of the breakers of jobs: once for each change, louder after repeated trips."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from coordd.core.breaker import Loudness
from coordd.core.ledger.breaker.text import CLOSED, HALF_OPEN, ISOLATED
from coordd.services.breakers.view import JobBreaker, of_jobs
from coordd.services.driver import Driver

log = structlog.get_logger()


class JobBreakers:
    """Compares what each sweep brings with what was known before."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[str, JobBreaker] = {}
        self._loudness: dict[str, Loudness] = {}

    def look(self) -> Mapping[str, JobBreaker]:
        """Log what has changed since the last look; returns the breakers of jobs as they are now."""
        node = self._driver.node
        found = of_jobs(node.jobs, node.drains.holds)
        for job, one in found.items():
            before = self._known.get(job)
            was, trips = (before.state, before.kept.trips) if before is not None else (CLOSED, 0)
            if one.kept.trips > trips:
                self._tripped(one)
            elif one.state != was and one.state in (CLOSED, ISOLATED, HALF_OPEN):
                words = {CLOSED: "breaker.closed", ISOLATED: "breaker.isolated", HALF_OPEN: "breaker.half_open"}
                log.info(words[one.state], name=one.name, reason=one.sentence())
        self._known = found
        self._loudness = {job: self._loudness[job] for job in found if job in self._loudness}
        return found

    def _tripped(self, one: JobBreaker) -> None:
        loudness = self._loudness.setdefault(one.job.name, Loudness())
        if one.job.breaker is not None:
            loudness.rule = one.job.breaker.loud
        loud = loudness.tripped(self._driver.now().mono, in_a_row=one.kept.trips)
        (log.error if loud else log.warning)("breaker.opened", name=one.name, reason=one.sentence())


def open_breakers(driver: Driver) -> list[str]:
    """The names of the breakers that are not closed: of this node's connections, and of jobs."""
    node = driver.node
    jobs = of_jobs(node.jobs, node.drains.holds).values()
    return [*[one.name for one in driver.breakers if one.is_open], *[one.name for one in jobs if one.is_open]]
