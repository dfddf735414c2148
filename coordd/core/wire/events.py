"""The event alphabet: what nodes say to each other, and what a node's journal keeps.

The names and fields are those of Celery's events. Several events of one tick travel in one ``Packet``; the
fields that they share (hostname, pid, incarnation, utcoffset) stand once in its head, and ``flatten`` puts
them back for journals and people. Enumerations are the words on the wire.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from coordd.core.ledger.answers import OpenRun
from coordd.core.ledger.sound import ATTEMPT_MAX, DURATION_MAX_S, INSTANT_MAX, TOKEN_MAX

# A packet of another major is refused with a clear log line.
PROTOCOL_MAJOR = 1

# A message may have this size at the most, and is measured before anything is parsed.
MESSAGE_BYTES_MAX = 64 * 1024


# What a peer may say, checked where a message is read: what is outside is dropped and counted like an unknown type.
# Bounds are wide, for older and newer nodes; they keep out what no date, no row and no JSON can hold (NaN among it).
Name = Annotated[str, Meta(max_length=1024)]  # ids, names, words, digests, marks
Names = Annotated[tuple[Name, ...], Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=TOKEN_MAX)]
Token = Count
Attempt = Annotated[int, Meta(ge=0, le=ATTEMPT_MAX)]
Instant = Annotated[float, Meta(ge=0.0, le=INSTANT_MAX)]
Seconds = Annotated[float, Meta(ge=-INSTANT_MAX, le=INSTANT_MAX)]  # below 0: a wall clock was set back meanwhile
Lease = Annotated[float, Meta(ge=0.0, le=DURATION_MAX_S)]
Load = Annotated[float, Meta(ge=0.0, le=1e9)]
Offset = Annotated[int, Meta(ge=-86_400, le=86_400)]
ExitCode = Annotated[int, Meta(ge=-(2**31), le=2**32)]
Clock = int  # core.clock refuses and counts what is absurd


class Candidacy(msgspec.Struct, frozen=True, array_like=True):
    """What one node says of itself in one election: a stamp that sorts, or a reason to abstain."""

    load: Count
    clock: Clock
    name: Name  # full_hostname, the tie-breaker
    abstains: str = ""
    ledger: Name = ""  # the identity of the ledger that it would ask


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an election is about: a job and its parameters, never code and never a command line."""

    job: Name
    run: Name
    attempt: Attempt = 0
    fire_at: Instant = 0.0
    scheduled: bool = False
    digest: Name = ""
    args: str = "{}"
    due: float = 0.0  # when it is due, where that is later than ``fire_at``, which its id names

    @property
    def due_at(self) -> float:
        """When the run is due at the earliest."""
        return max(self.fire_at, self.due)


def asked_for(row: OpenRun, attempt: int) -> Action:
    """What was asked for, as the ledger has it."""
    due = row.due if row.due > row.fire_at else 0.0
    return Action(row.job, row.run, attempt, row.fire_at, bool(row.scheduled), row.digest, row.args, due)


class PeerSummary(msgspec.Struct, frozen=True, array_like=True):
    """What one node tells of another: who it is, and what a succession without messages needs of it."""

    name: Name  # full_hostname
    incarnation: Name
    jobs_digest: Name = ""
    tags: Names = ()
    ledger: Name = ""
    pinned: bool = False


class Event(msgspec.Struct, tag_field="type", omit_defaults=True, kw_only=True):
    """The root: every event has the sender's logical clock and its time."""

    clock: Clock = 0
    timestamp: Instant = 0.0

    TYPE: ClassVar[str] = ""


class WorkerElect(Event, tag="worker-elect"):
    """A node opens an election; its own candidacy rides along."""

    id: Name
    topic: Name
    candidacy: Candidacy
    view: Names = ()
    digest: Name = ""
    action: Action | None = None
    cver: Count = 1


class WorkerElectAck(Event, tag="worker-elect-ack"):
    """A node's one answer to an election that it has not opened itself."""

    id: Name
    candidacy: Candidacy
    acks: Name = ""


class WorkerState(Event, kw_only=True):
    """What a node says of itself with every heartbeat."""

    freq: Seconds = 0.0
    active: Count = 0
    processed: Count = 0
    loadavg: tuple[Load, Load, Load] = (0.0, 0.0, 0.0)
    sw_ident: Name = "coordd"
    sw_ver: Name = ""
    sw_sys: Name = ""
    state: Name = ""
    tags: Names = ()
    view_digest: Name = ""
    jobs_digest: Name = ""
    ledger: Name = ""  # the identity of its ledger
    pinned: bool = False  # it has used that ledger
    rules: Count = 1  # the newest that it knows; an older version says nothing of it


class WorkerOnline(WorkerState, tag="worker-online"):
    """A node has mingled and takes part."""


class WorkerHeartbeat(WorkerState, tag="worker-heartbeat"):
    """A node lives; every other message says so too."""


class WorkerOffline(WorkerState, tag="worker-offline"):
    """A node leaves on purpose."""


class WorkerHello(WorkerState, tag="worker-hello"):
    """A node starts and asks what it has missed. With ``to`` it asks that one node; else a few answer for all."""

    to: Name = ""


class WorkerHelloReply(WorkerState, tag="worker-hello-reply"):
    """What a starting node needs. Revoked and suspended are caches: the ledger has the truth."""

    to: Name = ""
    members: Names = ()
    revoked: Names = ()
    suspended: Names = ()
    tokens: dict[Name, Token] = {}
    protocol: Count = PROTOCOL_MAJOR
    known: tuple[PeerSummary, ...] = ()


class WorkerBeat(Event, tag="worker-beat"):
    """A unicast to the few nodes that watch this one; with ``ask`` the receiver sends one back."""

    ask: bool = False


class WorkerSuspect(Event, tag="worker-suspect"):
    """Nothing is heard of these: whoever lives says so, and whoever hears them."""

    suspects: tuple[PeerSummary, ...] = ()


class WorkerVouch(Event, tag="worker-vouch"):
    """These live: the sender has heard them itself."""

    known: tuple[PeerSummary, ...] = ()


class Task(Event, kw_only=True):
    """A run's life; the run is the task, ``uuid`` is derived from its id."""

    uuid: Name
    name: Name = ""
    args: str = ""
    kwargs: str = ""
    run: Name = ""
    attempt: Attempt = 0
    token: Token = 0
    nonce: Name = ""
    node: Name = ""
    fire_at: Instant = 0.0
    due: Instant = 0.0  # where that is later
    application_id: Name = ""
    runtime: Seconds | None = None
    result: str | None = None
    exit_code: ExitCode | None = None
    exception: str | None = None
    traceback: str | None = None
    reason: str = ""
    retries: Attempt = 0
    digest: Name = ""  # the definition, the policy (as the ledger keeps it) and the lease (seconds) that were granted;
    policy: Name = ""  # absent where an older version says it
    lease: Lease = 0.0


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

    run: Name


class ControlCancel(Event, tag="control-cancel"):
    """Hurries a cancellation to the node that holds the run: of that attempt (-1: an older version does not say)."""

    run: Name
    reason: str = ""
    attempt: int = -1


class ControlClear(Event, tag="control-clear"):
    """A person has looked at these alarms."""

    ids: Names = ()
    note: str = ""
    by: Name = ""


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
    | ControlClear
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
    cluster: Name
    hostname: Name
    pid: Count
    incarnation: Name
    seq: Count
    utcoffset: Offset
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
