"""Parents and children of runs: which runs have opened one, which ones it opens, and what a child waits for. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coordd.core.jobs.after import parents_of, period_of
from coordd.core.jobs.job import Job, iso
from coordd.core.ledger.rows import Row
from coordd.core.node.following import Waiting

# At most this many waiting runs of one job are named.
NAMED_MAX = 3

# At most this many children of a run are looked up.
CHILDREN_MAX = 100


def parents(row: Row) -> list[str]:
    """The runs whose ends have opened it."""
    return list(parents_of(row.by)) if isinstance(row.by, str) else []


def children(row: Row, jobs: Mapping[str, Job]) -> list[str]:
    """The runs that wait for this one, or have: of jobs without a schedule of their own, whose times this run does not
    tell.
    """
    found = [
        period_of(job.after, job.timezone, row.run, row.fire_at, scheduled=bool(row.scheduled)).run_of(job.name)
        for job in jobs.values()
        if job.after is not None and row.job in job.after.jobs and job.schedule is None
    ]
    return sorted(found)[:CHILDREN_MAX]


def children_of(name: str, jobs: Mapping[str, Job]) -> list[str]:
    """The jobs that run after that one."""
    return sorted(job.name for job in jobs.values() if job.after is not None and name in job.after.jobs)


def shown(runs: Sequence[str], rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Children, each with the state of its row; None: it has none."""
    return [{"id": run, "state": rows[run].state if run in rows else None} for run in runs]


def sentence(job: str, waiting: Sequence[Waiting]) -> str:
    """Which runs of a job wait for which parents; "" if none does."""
    told = [awaits(one) for one in waiting[:NAMED_MAX]]
    more = f" {len(waiting) - NAMED_MAX} more runs of {job} wait." if len(waiting) > NAMED_MAX else ""
    return " ".join(told) + more


def awaits(one: Waiting) -> str:
    """What one run waits for."""
    until = iso(round(one.until))
    if not one.absent:
        return f"{one.run} waits for its own time; its parents have ended."
    return f"{one.run} waits for {one.absent} of its period, until {until}; then it is missed."


def relation(job: Job) -> str:
    """After which jobs a job runs, for people."""
    after = job.after
    if after is None:
        return ""
    how = {"success": "have succeeded", "failure": "have failed", "done": "have ended"}[after.on]
    which = "all" if after.needs == "all" else "any"
    return f"It runs when {which} of {', '.join(after.jobs)} {how}."
