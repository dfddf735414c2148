"""The event alphabet: what nodes say to each other, and what a node's journal keeps.

The names and fields are those of Celery's events. Several events of one tick travel in one ``Packet``; the
fields that they share (hostname, pid, incarnation, utcoffset) stand once in its head, and ``flatten`` puts
them back for journals and people. Enumerations are the words on the wire.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

# A packet of another major is refused with a clear log line.
PROTOCOL_MAJOR = 1

# A message may have this size at the most, and is measured before anything is parsed.
MESSAGE_BYTES_MAX = 64 * 1024


class Candidacy(msgspec.Struct, frozen=True, array_like=True):
    """What one node says of itself in one election: a stamp that sorts, or a reason to abstain."""

    load: int
    clock: int
    name: str  # full_hostname, the tie-breaker
    abstains: str = ""


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an election is about: a job and its parameters, never code and never a command line."""

    job: str
    run: str
    attempt: int = 0
    fire_at: float = 0.0
    scheduled: bool = False
    digest: str = ""
    args: str = "{}"


class Known(msgspec.Struct, frozen=True, array_like=True):
    """What one node tells of another: who it is, and what a succession without messages needs of it."""

    name: str  # full_hostname
    incarnation: str
    jobs_digest: str = ""
    tags: tuple[str, ...] = ()


class Event(msgspec.Struct, tag_field="type", omit_defaults=True, kw_only=True):
    """The root: every event has the sender's logical clock and its time."""

    clock: int = 0
    timestamp: float = 0.0

    TYPE: ClassVar[str] = ""


class WorkerElect(Event, tag="worker-elect"):
    """A node opens an election; its own candidacy rides along."""

    id: str
    topic: str
    candidacy: Candidacy
    view: tuple[str, ...] = ()
    digest: str = ""
    action: Action | None = None
    cver: int = 1


class WorkerElectAck(Event, tag="worker-elect-ack"):
    """A node's one answer to an election that it has not opened itself."""

    id: str
    candidacy: Candidacy
    acks: str = ""


class WorkerState(Event, kw_only=True):
    """What a node says of itself with every heartbeat."""

    freq: float = 0.0
    active: int = 0
    processed: int = 0
    loadavg: tuple[float, float, float] = (0.0, 0.0, 0.0)
    sw_ident: str = "coordd"
    sw_ver: str = ""
    sw_sys: str = ""
    state: str = ""
    tags: tuple[str, ...] = ()
    view_digest: str = ""
    jobs_digest: str = ""


class WorkerOnline(WorkerState, tag="worker-online"):
    """A node has mingled and takes part."""


class WorkerHeartbeat(WorkerState, tag="worker-heartbeat"):
    """A node lives; every other message says so too."""


class WorkerOffline(WorkerState, tag="worker-offline"):
    """A node leaves on purpose."""


class WorkerHello(WorkerState, tag="worker-hello"):
    """A node starts and asks what it has missed. With ``to`` it asks that one node; else a few answer for all."""

    to: str = ""


class WorkerHelloReply(WorkerState, tag="worker-hello-reply"):
    """What a starting node needs. Revoked and suspended are caches: the ledger has the truth."""

    to: str = ""
    members: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    suspended: tuple[str, ...] = ()
    tokens: dict[str, int] = {}
    protocol: int = PROTOCOL_MAJOR
    known: tuple[Known, ...] = ()


class WorkerBeat(Event, tag="worker-beat"):
    """A letter to the few who watch this node; with ``ask`` the reader answers with one of its own."""

    ask: bool = False


class WorkerSuspect(Event, tag="worker-suspect"):
    """Nothing is heard of these: whoever lives says so, and whoever hears them."""

    suspects: tuple[Known, ...] = ()


class WorkerVouch(Event, tag="worker-vouch"):
    """These live: the sender has heard them itself."""

    known: tuple[Known, ...] = ()


class Task(Event, kw_only=True):
    """A run's life; the run is the task, ``uuid`` is derived from its id."""

    uuid: str
    name: str = ""
    args: str = ""
    kwargs: str = ""
    run: str = ""
    attempt: int = 0
    token: int = 0
    nonce: str = ""
    node: str = ""
    fire_at: float = 0.0
    application_id: str = ""
    runtime: float | None = None
    result: str | None = None
    exit_code: int | None = None
    exception: str | None = None
    traceback: str | None = None
    reason: str = ""
    retries: int = 0


class TaskSent(Task, tag="task-sent"):
    """A run was asked for."""


class TaskReceived(Task, tag="task-received"):
    """A node was granted an attempt."""


class TaskStarted(Task, tag="task-started"):
    """The program was executed."""


class TaskSucceeded(Task, tag="task-succeeded"):
    """The program exited with 0."""


class TaskFailed(Task, tag="task-failed"):
    """The program ended otherwise."""


class TaskRejected(Task, tag="task-rejected"):
    """The ledger refused the run: overlap, limit, breaker, or too late."""


class TaskRevoked(Task, tag="task-revoked"):
    """A person (or a newer run) ended or forbade it."""


class TaskRetried(Task, tag="task-retried"):
    """An attempt is over (lost or failed) and the next one is due."""


class ControlRevoke(Event, tag="control-revoke"):
    """Hurries a revocation along; the ledger has it already."""

    run: str


class ControlCancel(Event, tag="control-cancel"):
    """Hurries a cancellation to the node that holds the run."""

    run: str
    reason: str = ""


AnyEvent = (
    WorkerElect
    | WorkerElectAck
    | WorkerOnline
    | WorkerHeartbeat
    | WorkerOffline
    | WorkerHello
    | WorkerHelloReply
    | WorkerBeat
    | WorkerSuspect
    | WorkerVouch
    | TaskSent
    | TaskReceived
    | TaskStarted
    | TaskSucceeded
    | TaskFailed
    | TaskRejected
    | TaskRevoked
    | TaskRetried
    | ControlRevoke
    | ControlCancel
)

# What the end of an attempt is called, by the state that was reported.
TASK_END: dict[str, type[Task]] = {
    "success": TaskSucceeded,
    "failure": TaskFailed,
    "revoked": TaskRevoked,
    "lost": TaskRetried,
    "retry": TaskRetried,
    "rejected": TaskRejected,
    "missed": TaskRejected,
}


class Packet(msgspec.Struct, omit_defaults=True):
    """What one tick of one node says: the shared fields once, then the events."""

    v: int
    cluster: str
    hostname: str
    pid: int
    incarnation: str
    seq: int
    utcoffset: int
    events: list[AnyEvent]

    @property
    def sender(self) -> str:
        """The node's full_hostname."""
        return f"{self.hostname}.{self.pid}"


def event_type(event: Event) -> str:
    """The word of an event's type, as on the wire."""
    return str(type(event).__struct_config__.tag)


def flatten(event: Event, *, hostname: str, pid: int, incarnation: str, seq: int, utcoffset: int) -> dict[str, Any]:
    """One event with all fields of the schema, as journals keep it and streams show it."""
    record: dict[str, Any] = {
        "type": event_type(event),
        "hostname": hostname,
        "pid": pid,
        "incarnation": incarnation,
        "seq": seq,
        "utcoffset": utcoffset,
        "clock": event.clock,
        "timestamp": event.timestamp,
    }
    for name, value in msgspec.structs.asdict(event).items():
        if value not in (None, "", ()) and name not in record:
            record[name] = msgspec.to_builtins(value)
    return record


def task_of(record: dict[str, Any]) -> Task | None:
    """The event about a run that a journal's line holds; None for any other line, and for one that cannot be read."""
    if not str(record.get("type", "")).startswith("task-"):
        return None
    try:
        event = msgspec.convert(record, AnyEvent)
    except msgspec.ValidationError:  # of a newer version
        return None
    return event if isinstance(event, Task) else None
