"""The log lines of runs: one per event, with a fixed name and a level. Pure.

They are made from this node's journal: events of its own attempts, and decisions of its own claims (missed, rejected,
taken over). The events of other nodes are in their logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from coordd.core.jobs.job import Job
from coordd.core.ledger.words import LOST, MISSED, RETRY
from coordd.core.names import host_of
from coordd.core.wire import events

INFO, WARNING, ERROR = "info", "warning", "error"

# Notices of the core with a level above information.
NOTICE_LEVELS = {
    "alarm.raised": ERROR,
    "ledger.not_used": WARNING,
    "ledger.differs": WARNING,
    "bus.lost": WARNING,
    "ledger.lost": WARNING,
    "node.lost": WARNING,
    "clock.jump_refused": WARNING,
    "jobs.differ": WARNING,
    "token.went_back": ERROR,
    "token.not_believed": WARNING,
    "outcome.not_believed": WARNING,
    "launch.failed": ERROR,
    "wall_clock.set_back": WARNING,
    "launch.refused": ERROR,
    "fires.skipped": WARNING,
    "fires.coalesced": WARNING,
    "run.unknown": ERROR,
}


class Line(NamedTuple):
    """One line of the log."""

    level: str
    event: str
    fields: dict[str, Any]


def level_of(notice: str) -> str:
    """The level of a notice of the core."""
    return NOTICE_LEVELS.get(notice, INFO)


def line_of(event: events.Event, own_name: str, jobs: Mapping[str, Job]) -> Line | None:
    """The log line of a journalled event; None if it needs none. ``own_name``: full_hostname."""
    if not isinstance(event, events.Task):
        return None
    told = _told(event, own_name, jobs.get(event.name))
    if told is None:
        return None
    level, name = told
    fields = {
        "run": event.run,
        "job": event.name,
        "attempt": event.attempt,
        "node": host_of(event.node),
        "exit_code": event.exit_code,
        "reason": event.reason,
        "application_id": event.application_id,
        "runtime_s": None if event.runtime is None else round(event.runtime, 3),
    }
    return Line(level, name, {key: value for key, value in fields.items() if value not in (None, "")})


def _told(event: events.Task, own_name: str, job: Job | None) -> tuple[str, str] | None:
    """(level, name)"""
    if isinstance(event, events.TaskReceived):
        return (WARNING, "run.retried") if event.attempt else None
    if isinstance(event, events.TaskStarted):
        return INFO, "run.started"
    if isinstance(event, events.TaskSucceeded):
        return INFO, "run.succeeded"
    if isinstance(event, events.TaskFailed):
        # Each earlier attempt has failed or was lost. If the job allows more attempts, another one follows.
        follows = job is not None and event.attempt + 1 < job.retry.attempts
        final = job is not None and event.exit_code in job.retry.never_on_codes
        return (WARNING if follows and not final else ERROR), "run.failed"
    if isinstance(event, events.TaskRevoked):
        return INFO, "run.revoked"
    if isinstance(event, events.TaskRejected):
        return WARNING, "run.missed" if event.result == MISSED else "run.rejected"
    if isinstance(event, events.TaskRetried):
        return _lost(event, own_name, job)
    return None


def _lost(event: events.TaskRetried, own_name: str, job: Job | None) -> tuple[str, str]:
    if event.node != own_name:
        return (ERROR, "run.lost") if event.result == LOST else (WARNING, "run.taken_over")
    if event.result == RETRY:
        return WARNING, "run.given_back"  # it was never started
    if job is not None and job.on_lost == "hold":
        return ERROR, "run.unknown"
    return WARNING, "run.lost"
