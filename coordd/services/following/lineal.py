"""Parents and children of runs: which runs have opened one, which ones it opens, and what a child waits for. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from coordd.core.groups.expand import group_of
from coordd.core.jobs.after import parents_of, period_of, rerun_of
from coordd.core.jobs.job import Job, iso
from coordd.core.ledger.rerun.plan import Item, read
from coordd.core.ledger.rows import OF_RERUN, Hold, Row, is_rerun
from coordd.core.ledger.words import OPENED, REPEATED, RERUN, TERMINAL
from coordd.core.node.following import Waiting

# At most this many waiting runs of one job are named.
NAMED_MAX = 3

# At most this many runs of a re-run are named in a sentence.
TOLD_MAX = 10

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


def shown(runs: Sequence[str], rows: Mapping[str, Row], again: Container[str] = ()) -> list[dict[str, Any]]:
    """Children, each with the state of its row (None: it has none), and whether it is still to run once more."""
    return [{"id": run, "state": rows[run].state if run in rows else None, "again": run in again} for run in runs]


# ---- re-runs with children


def reruns(row: Row) -> str | None:
    """RUN/ATTEMPT that this run is once more; of a child that runs once more for its parent, that one's."""
    return (rerun_of(row.by)[0] or None) if isinstance(row.by, str) else None


def registered_by(row: Row) -> str:
    """Who asked for it first. "": nobody, or the row does not tell: of a run that was run once more, it names who asked
    for that, and beside them the parents that have opened it.
    """
    if row.by.startswith(OPENED):
        return row.by.partition(RERUN)[0]
    return "" if row.by.startswith(REPEATED) else row.by


def to_rerun(holds: Mapping[str, Hold]) -> dict[str, tuple[str, Hold, Item]]:
    """The runs and groups that the ledger's plans name, each with the run that a person ran once more."""
    found = {}
    for key, hold in sorted(holds.items()):
        if key.startswith(OF_RERUN):
            root = key[len(OF_RERUN) :]
            found.update({item.runs.run: (root, hold, item) for item in read(hold.note)})
    return found


def rerun_told(run: str, row: Row | None, holds: Mapping[str, Hold]) -> str:
    """What there is to say of a run about re-runs with children, each sentence after a blank."""
    told = ""
    if row is not None and isinstance(row.by, str) and is_rerun(row):
        again, who = rerun_of(row.by)
        begins = "It has run once more" if row.state in TERMINAL else "It runs once more"
        if again.rpartition("/")[0] == run:
            told += f" {begins}: {who} ran {again} again."
        else:
            after = ", ".join(parents_of(row.by))
            told += f" {begins} after {after}: {who} ran {again} again, with its children."
    root, hold, item = to_rerun(holds).get(group_of(run), ("", None, None))
    mine = row is not None and hold is not None and reruns(row) == f"{root}/{hold.version}"
    if hold is not None and item is not None and not mine:
        awaited = ", ".join(runs.run for of_job in item.parents for runs in of_job)
        told += f" {hold.by} runs {root} again, with its children: this one follows {awaited}."
    plan = holds.get(OF_RERUN + run)
    if plan is not None:
        told += f" {plan.by} runs it again, with its children: {named(read(plan.note))}."
    return told


def named(items: Sequence[Item]) -> str:
    """The runs of a plan, for people."""
    told = [f"{one.runs.run} ({one.runs.count} runs)" if one.runs.count else one.runs.run for one in items]
    more = f" and {len(told) - TOLD_MAX} more" if len(told) > TOLD_MAX else ""
    return ", ".join(told[:TOLD_MAX]) + more


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
