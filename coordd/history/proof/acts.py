"""What people asked for, as audit records tell it in their subjects: ends of suspensions, backfills, re-runs. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from typing import NamedTuple

from coordd.core.groups.expand import group_of
from coordd.core.jobs.job import job_of
from coordd.core.ledger.requests import nominal_time

BACKFILL = "job.backfill"
# After the subject of these stand the runs that follow.
RERUN = "run.rerun"
REPEATS = (RERUN, "deadletter.replay")

REFUSED = "refused"
NONE, FAILED = "none", "failed"

# An instant of a record has milliseconds (see services.views.objects.instant): the ledger's may be half of one earlier.
ROUNDED_S = 0.0005

# JOB ID: FROM TO, how.
_BACKFILL = re.compile(r"(?P<job>\S+) (?P<id>\S+): (?P<begin>\S+) to (?P<end>\S+), .*\bredo (?P<redo>none|failed|all)")
_THEN = ", then "


class Backfill(NamedTuple):
    """A plan that began: fire times from ``begin`` to ``end``, which is not included (Unix seconds)."""

    job: str
    id: str
    begin: float
    end: float
    redo: str

    def covers(self, run: str) -> bool:
        """True if it is the run of one of its fire times."""
        fire_at = nominal_time(run) if job_of(run) == self.job else None
        return fire_at is not None and self.begin <= fire_at < self.end


def backfill(subject: str) -> Backfill | None:
    """The plan that a person began; None if it says something else, such as its cancellation."""
    found = _BACKFILL.fullmatch(subject)
    if found is None:
        return None
    begin, end = _instant(found["begin"]), _instant(found["end"])
    return Backfill(found["job"], found["id"], begin, end, found["redo"]) if begin and end else None


def follows(subject: str, run: str) -> bool:
    """True if that run is named as one that runs once more after the run of the subject, alone or in its group."""
    return bool({run, group_of(run)} & followers(subject))


def followers(subject: str) -> set[str]:
    """The runs and groups that run once more after the run of the subject; a record names the first few of them."""
    _, _, told = subject.rpartition(_THEN) if _THEN in subject else ("", "", "")
    names = told.partition(" and ")[0].split(", ")
    return {name.partition(" ")[0] for name in names} - {""}


def is_of_job(subject: str, job: str) -> bool:
    """True if the subject is that job, and not all jobs: more may stand after its name."""
    rest = subject.removeprefix(job)
    return subject.startswith(job) and (not rest or rest.startswith((": ", " until ")))


def until(subject: str, job: str) -> float:
    """When the suspension of that job ends by itself (Unix seconds); 0.0: it does not."""
    rest = subject.removeprefix(job)
    if not rest.startswith(" until "):
        return 0.0
    at = _instant(rest.removeprefix(" until ").partition(" ")[0].rstrip(":"))
    return at - ROUNDED_S if at else 0.0


def _instant(text: str) -> float:
    """Unix seconds of an instant in a record; 0.0 for another text."""
    try:
        at = datetime.fromisoformat(text)
        return at.timestamp() if at.tzinfo is not None else 0.0
    except (ValueError, OverflowError):
        return 0.0
