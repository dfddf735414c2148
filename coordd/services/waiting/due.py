"""Scheduled runs that are due, and have no row yet: why no node has taken them, and when they are given up. Pure.

A node writes a row with its claim, or after ``start_within``. Until then only the nodes that pursue a run know of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from coordd.core.election import Election
from coordd.core.groups.expand import group_of
from coordd.core.jobs.job import Job
from coordd.core.runs.pursued import Pursuit
from coordd.services.waiting.sentences import by_host, standing, when


def told(job: Job, waiting: Sequence[Pursuit], elections: Mapping[str, Election], wall: float) -> str:
    """What there is to say of the runs of a job that wait without a row; "" if none does. The first is explained."""
    if not waiting:
        return ""
    first = waiting[0]
    run, election = group_of(first.action.run), elections.get(f"{first.action.run}/{first.attempt}")
    said = f"{run} is due since {when(first.action.due_at)}, and no node has taken it: {first.why or first.phase}."
    parts = [said, standing(election), given_up(job, first.action.due_at, wall)]
    more = len({group_of(one.action.run) for one in waiting}) - 1
    if more:
        parts.append(f"{more} more fire times of {job.name} wait." if more > 1 else f"1 more of {job.name} waits.")
    names = [first.owner, *(election.statements if election is not None else ())]
    return by_host(" ".join(filter(None, parts)), names)


def given_up(job: Job, due: float, wall: float) -> str:
    """Until when such a run may be launched."""
    until = due + job.start_within_s
    return f"It is missed at {when(until)}." if until > wall else f"It is missed: that was to be before {when(until)}."


def without_row(pursuits: Iterable[Pursuit], wall: float) -> list[Pursuit]:
    """The scheduled runs that are due at ``wall`` by the ledger's clock and have no row, as far as this node knows; the
    longest due first.
    """
    found = [
        one
        for one in pursuits
        if one.action.scheduled and one.row_at == float("inf") and not one.redefined and one.action.due_at <= wall
    ]
    return sorted(found, key=lambda one: (one.action.due_at, one.action.run))
