"""The breakers of jobs, as people see them: from the job files of this node and what the ledger keeps. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from coordd.core.breaker import Breaker
from coordd.core.jobs.job import Job, iso
from coordd.core.ledger.breaker.text import CLOSED, HALF_OPEN, ISOLATED, OPEN, State
from coordd.core.ledger.rows import OF_BREAKER, OF_ISOLATED, OF_JOB, Hold
from coordd.services.views.objects import hold_view, instant


class JobBreaker(NamedTuple):
    """The breaker of one job. ``isolated``: a person's hold on it."""

    job: Job
    kept: State
    isolated: Hold | None

    @property
    def name(self) -> str:
        """Its name for people."""
        return OF_JOB + self.job.name

    @property
    def state(self) -> str:
        """closed, open, half_open or isolated."""
        return ISOLATED if self.isolated is not None else self.kept.state

    @property
    def enforces(self) -> bool:
        """False if it only watches."""
        return self.job.breaker is not None and self.job.breaker.enforce

    @property
    def is_open(self) -> bool:
        """True if it is not closed."""
        return self.state != CLOSED

    @property
    def failures(self) -> int:
        """How many runs it has counted."""
        return len({at_ms for _, at_ms in self.kept.failures})

    def sentence(self) -> str:
        """What it does, and until when; "" if it is closed."""
        name, kept, isolated = self.job.name, self.kept, self.isolated
        closes = f"`coordctl breaker reset {self.name}` closes it."
        if isolated is not None:
            end = f" until {iso(isolated.until)}" if isolated.until else ""
            note = f" ({isolated.note})" if isolated.note else ""
            return f"The breaker of {name} is held open by {isolated.by}{end}{note}: none of its runs starts. {closes}"
        if kept.state == CLOSED:
            return ""
        watches = "" if self.enforces else " It only watches (enforce = false): no run is stopped."
        if kept.state == HALF_OPEN:
            return f"The breaker of {name} is half-open: {kept.probe} tries whether it works again.{watches} {closes}"
        again = f", for the {kept.trips}. time in a row" if kept.trips > 1 else ""
        return (
            f"The breaker of {name} is open since {iso(kept.since)}{again}: the last run that failed is {kept.last}. "
            f"The first run from {iso(kept.retry_at)} on tries whether it works again.{watches} {closes}"
        )


def of_jobs(jobs: Mapping[str, Job], holds: Mapping[str, Hold]) -> dict[str, JobBreaker]:
    """The breakers of the jobs that have one, by job; ``holds``: what the ledger keeps, by key."""
    found = {}
    for name in sorted([name for name, job in jobs.items() if job.breaker is not None]):
        hold = holds.get(OF_BREAKER + name)
        kept = State.read(hold.note) if hold is not None else State()
        found[name] = JobBreaker(jobs[name], kept, holds.get(OF_ISOLATED + name))
    return found


def job_view(one: JobBreaker) -> dict[str, Any]:
    """One job's breaker, as in `breaker list`."""
    kept = one.kept
    return {
        "name": one.name,
        "kind": "job",
        "state": one.state,
        "failures": one.failures,
        "opened_at": instant(kept.since) if kept.state != CLOSED else None,
        "next_probe_at": instant(kept.retry_at) if kept.state == OPEN and one.isolated is None else None,
        "note": one.isolated.note or None if one.isolated is not None else None,
        "opened": kept.trips,
        "prevented": kept.prevented,
        "probe": kept.probe if kept.state == HALF_OPEN else None,
        "last_failed": kept.last if kept.state != CLOSED or kept.failures else None,
        "enforce": one.enforces,
        "isolated": hold_view(one.isolated),
        "reason": one.sentence() or None,
    }


def connection_view(breaker: Breaker, now: float, wall: float) -> dict[str, Any]:
    """The breaker of a connection or a service of this node. ``now``: seconds, monotonic; ``wall``: Unix seconds."""
    retry_in_s = breaker.retry_in_s(now)
    since_s = now - breaker.changed_at if breaker.changed_at else None
    return {
        "name": breaker.name,
        "kind": breaker.name.partition(":")[0],
        "state": breaker.state,
        "failures": breaker.failures,
        "opened_at": instant(wall - since_s) if breaker.is_open and since_s is not None else None,
        "next_probe_at": instant(wall + retry_in_s) if retry_in_s else None,
        "note": None,
        "opened": breaker.opened,
        "since_s": round(since_s, 1) if since_s is not None else None,
        "retry_in_s": round(retry_in_s, 1),
        "reason": breaker.reason or None,
    }
