"""The members of a group: their ids and arguments, the same on every node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import NamedTuple

from coordd.core.groups.expand import OF_THE_RUN, Expand, member
from coordd.core.jobs.arguments import packed
from coordd.core.jobs.job import Job
from coordd.core.jobs.schedule import zone


class Member(NamedTuple):
    """One run of a group."""

    run: str
    args: str


def members_of(job: Job, group: str, at: float, values: Mapping[str, str] | None = None) -> list[Member]:
    """The members of the group of a job, in their order; the run itself for a job without `expand`.

    ``at`` (Unix seconds): the fire time, or when the run was asked for. ``values``: the other arguments.
    """
    given = values or {}
    if job.expand is None:
        return [Member(group, packed(given))]
    texts = texts_of(job.expand, at, job.timezone)
    return [Member(member(group, number), packed({**given, job.expand.key: text})) for number, text in enumerate(texts)]


def texts_of(expand: Expand, at: float, timezone: str) -> list[str]:
    """The value of each member."""
    values = list(expand.values)
    if expand.days:
        if expand.begin == OF_THE_RUN:
            first = datetime.fromtimestamp(at, zone(timezone)).date()
        else:
            first = date.fromisoformat(expand.begin)
        values = [(first + timedelta(days=number)).isoformat() for number in range(expand.days)]
    if not expand.chunk:
        return values
    return [json.dumps(values[at : at + expand.chunk]) for at in range(0, len(values), expand.chunk)]
