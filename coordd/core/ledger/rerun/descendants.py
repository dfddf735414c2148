"""Which runs follow a run: the children of its period, their children, and so on. Pure.

A re-run with children writes them into the ledger (core/ledger/rerun/plan.py), so they are named at one instant, from
one node's job files. What becomes of each is the ledger's to decide.
"""

from __future__ import annotations

from collections.abc import Mapping

from coordd.core.groups.expand import group_of
from coordd.core.jobs.after import Period, period_end, period_of
from coordd.core.jobs.job import After, Job, due_time, fire_time, scheduled_run, triggered_run
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.rerun.plan import Item, Runs

# At most this many fire times of one job in one period are looked at.
FIRES_MAX = 1000

# This long (seconds) before a period are looked for fire times in it: a due time may be later by the job's jitter.
BEFORE_S = 1e-3


class At:
    """A run and the time in its id (Unix seconds; 0.0: none, it was triggered)."""

    __slots__ = ("fire_at", "run")

    def __init__(self, run: str, fire_at: float) -> None:
        self.run = run
        self.fire_at = fire_at


def descendants(
    jobs: Mapping[str, Job], name: str, run: str, fire_at: float, *, scheduled: bool, identity_from: float
) -> list[Item]:
    """The runs that follow a run of the job ``name``, parents before their children.

    Jobs without a file here, and jobs that are not enabled, have none.
    """
    root = At(group_of(run), fire_at if scheduled else 0.0)
    found: dict[str, Item] = {}
    follows: dict[str, set[str]] = {}  # run -> those that it waits for, among these
    waiting = [(name, root)]
    while waiting:
        parent, at = waiting.pop()
        for child in sorted(jobs.values(), key=lambda job: job.name):
            after = child.follows
            if after is None or parent not in after.jobs:
                continue
            period = period_of(after, child.timezone, at.run, at.fire_at, scheduled="#" not in at.run)
            for one in _runs_in(child, after, period, identity_from):
                if one.run == root.run:
                    continue  # a circle of jobs
                if one.run not in found:
                    found[one.run] = _item(jobs, child, after, period, one.run, identity_from)
                    waiting.append((child.name, one))
                follows.setdefault(one.run, set()).add(at.run)
                _name(found[one.run], after.jobs.index(parent), jobs.get(parent), at.run)
    return _in_order(found, follows)


def _runs_in(job: Job, after: After, period: Period, identity_from: float) -> list[At]:
    """The runs of a child for a period: one, or those of its own schedule."""
    if job.schedule is None:
        return [At(period.run_of(job.name), period.at)]
    if period.ident:
        return []  # it needs its own time too
    return [one for one in _fires(job, period, after, identity_from) if _belongs(job, after, period, one)]


def _belongs(job: Job, after: After, period: Period, one: At) -> bool:
    return period_of(after, job.timezone, one.run, one.fire_at, scheduled=True) == period


def _fires(job: Job, period: Period, after: After, identity_from: float) -> list[At]:
    """The fire times of a job's schedule in a period of a child's zone."""
    assert job.schedule is not None, job.name
    end = period_end(period.at, after.period_s, job.timezone) if after.period_s else period.at
    begin = due_time(job, period.at, identity_from) - BEFORE_S
    dues = fires_between(job.schedule, begin, due_time(job, end, identity_from) + BEFORE_S, FIRES_MAX)
    fires = [fire_time(job, due, identity_from) for due in dues]
    return [At(scheduled_run(job.name, at), at) for at in fires if period.at <= at < max(end, period.at + BEFORE_S)]


def _item(jobs: Mapping[str, Job], child: Job, after: After, period: Period, run: str, identity_from: float) -> Item:
    """The child's run, with its parents' runs as far as their schedules tell them."""
    parents = []
    for name in after.jobs:
        job = jobs.get(name)
        if period.ident:
            known = [triggered_run(name, period.ident)]
        elif not after.period_s:
            known = [scheduled_run(name, period.at)]
        elif job is not None and job.schedule is not None:
            known = [one.run for one in _fires(job, period, after, identity_from)]
        else:
            known = []  # those that are re-run are added
        parents.append(tuple([_runs(job, one) for one in known]))
    return Item(_runs(child, run), after.on, after.needs == "any", tuple(parents))


def _name(item: Item, place: int, job: Job | None, run: str) -> None:
    """That run of a parent is one of those that the child waits for."""
    if run not in [one.run for one in item.parents[place]]:
        parents = list(item.parents)
        parents[place] = (*parents[place], _runs(job, run))
        item.parents = tuple(parents)


def _runs(job: Job | None, run: str) -> Runs:
    return Runs(run, job.expand.count if job is not None and job.expand is not None else 0)


def _in_order(found: Mapping[str, Item], follows: Mapping[str, set[str]]) -> list[Item]:
    """Parents before their children; those of a circle are left out."""
    left, order = dict(found), []
    while left:
        free = sorted(run for run in left if not follows[run] & left.keys())
        if not free:
            break
        order += [left.pop(run) for run in free]
    return order
