"""`job show`: every key of a job file, with its effective value. Pure."""

from __future__ import annotations

import math
from typing import Any

from coordd.config.hooks.sink import shown
from coordd.config.jobkeys import PLAIN
from coordd.core.jobs.job import Blackout, Breaker, Command, Job
from coordd.core.ledger.breaker.text import MATCHED
from coordd.core.redaction import HIDDEN, is_secret_name
from coordd.services.views.objects import REDACTED, instant

# These fields are in the list of jobs too: objects.job_view shows them.
LISTED = frozenset((
    "description", "owner", "enabled", "timezone", "misfire", "overlap", "on_lost", "tags", "lease_s", "params",
    "expect_within_s",
))  # fmt: skip


def everything(job: Job, *, redacted: bool) -> dict[str, Any]:
    """The effective values. ``redacted``: without arguments and paths."""
    schedule = job.released.schedule
    launch = _fields(job.launch)
    if "class_name" in launch:
        launch["class"] = launch.pop("class_name")
    return {
        "timezone": job.timezone,
        "start": instant(schedule.start) if schedule else None,
        "end": instant(schedule.end) if schedule and schedule.end != math.inf else None,
        "jitter_offset_s": schedule.offset_s if schedule else 0.0,  # the job's position in its jitter
        "blackout": [_blackout(one) for one in schedule.blackout] if schedule else [],
        **{key.field: _plain(getattr(job, key.field)) for key in PLAIN.values() if key.field not in LISTED},
        "retry": {
            "attempts": job.retry.attempts,
            "relaunches": job.retry.relaunches,
            "submits": job.retry.submits,
            "delay_s": job.retry.delay_s,
            "backoff": job.retry.backoff,
            "jitter": job.retry.jitter,
            "never_on": [*job.retry.never_on_codes, *job.retry.never_on_patterns],
        },
        "breaker_rule": _breaker(job.breaker),
        "check": [one.name for one in job.checks] + [one.check for one in job.uses],
        "trigger": [
            {"name": one.name, "kind": one.kind, "about": REDACTED if redacted else one.about} for one in job.triggers
        ],
        "sink": [{"to": shown(one.to), "on": one.on, "args": one.args} for one in job.sinks],
        "chunk": (job.expand.chunk or None) if job.expand else None,
        "command" if isinstance(job.launch, Command) else "spark": REDACTED if redacted else launch,
    }


def _breaker(said: Breaker | None) -> dict[str, Any] | None:
    if said is None:
        return None
    counts = [{"after": count, "on": [word for word in on if word != MATCHED]} for count, on in said.groups]
    return {
        "counts": counts,
        "patterns": list(said.patterns),
        "window_s": said.window_s or None,
        "open_for_s": said.open_for_s,
        "open_for_max_s": said.open_for_max_s,
        "growth": said.growth,
        "when_open": said.when_open,
        "enforce": said.enforce,
        "loud": {"after": said.loud.after, "within_s": said.loud.within_s, "for_s": said.loud.for_s},
    }


def _plain(value: Any) -> Any:
    """The value of a plain key; None for a text or a duration that is not set."""
    return None if isinstance(value, str | float) and not value else _told(value)


def _told(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if is_secret_name(key) else item for key, item in value.items()}
    if hasattr(value, "__struct_fields__"):
        return _fields(value)
    return list(value) if isinstance(value, tuple) else value


def _fields(struct: Any) -> dict[str, Any]:
    return {name: _told(getattr(struct, name)) for name in struct.__struct_fields__}


def _blackout(one: Blackout) -> dict[str, Any]:
    if one.cron:
        return {"cron": one.cron, "duration_s": one.duration_s}
    return {"from": instant(one.start), "to": instant(one.end) if one.end != math.inf else None}
