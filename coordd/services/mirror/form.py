"""Our events as the workers of Celery 5 write theirs: names and fields, as one JSON object. Pure."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from coordd.core.wire.events import (
    Event,
    Task,
    TaskFailed,
    TaskReceived,
    TaskRejected,
    TaskRetried,
    TaskRevoked,
    TaskSent,
    TaskSucceeded,
    event_type,
)

# Celery cuts its texts too; a monitor keeps thousands of them.
TEXT_MAX = 1024

ONLINE, HEARTBEAT, OFFLINE = "worker-online", "worker-heartbeat", "worker-offline"


class Sender(NamedTuple):
    """The fields that each event of this node has."""

    hostname: str  # as Celery names a worker: coordd@NODE
    pid: int
    utcoffset: float  # as Celery counts it: hours west of UTC


def routing_key(kind: str) -> str:
    """`task-started` is sent with the key `task.started`."""
    return kind.replace("-", ".")


def worker(kind: str, sender: Sender, *, clock: int, timestamp: float, **said: Any) -> dict[str, Any]:
    """One of the three events of a worker. ``said``: freq, active, processed, loadavg, sw_ident, sw_ver, sw_sys."""
    return {"type": kind, **sender._asdict(), "clock": clock, "timestamp": timestamp, **said}


def task(event: Event, sender: Sender, *, arguments: bool) -> dict[str, Any] | None:
    """The event of a task; None for other events. The run's id stands where a task has its arguments.

    ``arguments``: the run's parameters go with it.
    """
    if not isinstance(event, Task):
        return None
    said: dict[str, Any] = {
        "type": event_type(event),
        "uuid": event.uuid,
        **sender._asdict(),
        "clock": event.clock,
        "timestamp": event.timestamp,
        "name": event.name,
        "args": repr((event.run,))[:TEXT_MAX],
        "kwargs": (event.kwargs or "{}")[:TEXT_MAX] if arguments else "{}",
        "retries": event.attempt,
        "run": event.run,
        "attempt": event.attempt,
        "token": event.token,
    }
    if event.application_id:
        said["application_id"] = event.application_id
    why = (event.exception or event.reason or _ending(event))[:TEXT_MAX]
    if isinstance(event, TaskSent | TaskReceived):
        said |= {"root_id": event.uuid, "parent_id": None, "eta": None, "expires": None}
    if isinstance(event, TaskSent):
        said |= {"queue": None, "exchange": "", "routing_key": ""}
    elif isinstance(event, TaskSucceeded):
        said |= {"result": (event.result or _ending(event))[:TEXT_MAX], "runtime": event.runtime or 0.0}
    elif isinstance(event, TaskFailed | TaskRetried):
        said |= {"exception": why, "traceback": (event.traceback or why)[:TEXT_MAX]}
    elif isinstance(event, TaskRejected):
        said |= {"requeue": False, "exception": why}
    elif isinstance(event, TaskRevoked):
        said |= {"terminated": event.runtime is not None, "signum": None, "expired": False}
    return said


def body(said: dict[str, Any]) -> bytes:
    """The message."""
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "backslashreplace")


def _ending(event: Task) -> str:
    return "" if event.exit_code is None else f"exit code {event.exit_code}"
