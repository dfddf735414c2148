"""The events: the messages between nodes, and the records of a node's journal.

The names and fields are those of Celery's events. Several events of one tick travel in one ``Packet``; their common
fields (hostname, pid, incarnation, utcoffset) are once in its head, and ``flatten`` adds them again for journals and
people. Enumerations are the words on the wire.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from coordd.core.ledger.open_answer import OpenRun
from coordd.core.ledger.words import ATTEMPT_MAX, DURATION_MAX_S, INSTANT_MAX, NAME_MAX, TOKEN_MAX

# A packet with another major is refused, with a clear log line.
PROTOCOL_MAJOR = 1

# The maximum size of a message, checked before anything is parsed.
MESSAGE_BYTES_MAX = 64 * 1024

# After a loss of the bus the others may need this long (seconds) to be back, too: an empty inbox proves nothing before.
OTHERS_RETURN_S = 5.0


# Bounds of a peer's values, checked when a message is read: a value outside is dropped and counted like an unknown
# type. The bounds are wide, for older and newer nodes; they exclude values that no date, row or JSON can hold (NaN is
# one).
Name = Annotated[str, Meta(max_length=NAME_MAX)]  # ids, names, words, digests, marks
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
Clock = int  # core/clock.py refuses and counts absurd values


class Candidacy(msgspec.Struct, frozen=True, array_like=True):
    """One node's statement in one election: a stamp for sorting, or a reason to abstain."""

    load: Count
    clock: Clock
    name: Name  # full_hostname, the tie-breaker
    abstains: str = ""
    ledger: Name = ""  # the identity of its ledger


class Action(msgspec.Struct, frozen=True, omit_defaults=True):
    """The subject of an election: a job and its parameters, never code and never a command line."""

    job: Name
    run: Name
    attempt: Attempt = 0
    fire_at: Instant = 0.0
    scheduled: bool = False
    digest: Name = ""
    args: str = "{}"
    due: float = 0.0  # the due time, if later than ``fire_at``, which is in its id

    @property
    def due_at(self) -> float:
        """The earliest time at which the run is due."""
        return max(self.fire_at, self.due)


def asked_for(row: OpenRun, attempt: int) -> Action:
    """The registered run, as the ledger has it."""
    due = row.due if row.due > row.fire_at else 0.0
    return Action(row.job, row.run, attempt, row.fire_at, bool(row.scheduled), row.digest, row.args, due)


class PeerSummary(msgspec.Struct, frozen=True, array_like=True):
    """A summary of one node for others: its identity, and the fields that a succession without messages needs."""

    name: Name  # full_hostname
    incarnation: Name
    jobs_digest: Name = ""
    tags: Names = ()
    ledger: Name = ""
    pinned: bool = False


class RunOutcome(msgspec.Struct, frozen=True, array_like=True):
    """How a run ended, for a node that was not there: an event without what only the ledger needs."""

    kind: Name  # the type of the event: task-succeeded, task-failed, task-rejected, task-revoked
    run: Name
    clock: Clock  # of the event, as ``at``
    at: Instant
    age: Seconds = 0.0  # since the teller, or who told it, heard of it
    attempt: Attempt = 0
    token: Token = 0  # 0: there was no grant, or a person has revoked it
    node: Name = ""
    exit_code: ExitCode | None = None
    reason: Name = ""
    result: Name = ""


class Event(msgspec.Struct, tag_field="type", omit_defaults=True, kw_only=True):
    """The base: every event has the sender's logical clock and its time."""

    clock: Clock = 0
    timestamp: Instant = 0.0

    TYPE: ClassVar[str] = ""


class WorkerElect(Event, tag="worker-elect"):
    """A node opens an election, with its own candidacy."""

    id: Name
    topic: Name
    candidacy: Candidacy
    view: Names = ()
    digest: Name = ""
    action: Action | None = None
    cver: Count = 1


class WorkerElectAck(Event, tag="worker-elect-ack"):
    """A node's only answer to an election that it has not opened itself."""

    id: Name
    candidacy: Candidacy
    acks: Name = ""


class WorkerState(Event, kw_only=True):
    """The state that a node sends with every heartbeat."""

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
    rules: Count = 1  # the newest rules that it knows; an older version does not send it
    failing: bool = False  # it stands aside, or soon will, because its runs fail


class WorkerOnline(WorkerState, tag="worker-online"):
    """A node has mingled and takes part."""


class WorkerHeartbeat(WorkerState, tag="worker-heartbeat"):
    """A node is alive; every other message proves that too."""


class WorkerOffline(WorkerState, tag="worker-offline"):
    """A node leaves on purpose."""


class WorkerHello(WorkerState, tag="worker-hello"):
    """A node starts and asks what it has missed. With ``to``, it asks only that node; otherwise a few answer."""

    to: Name = ""


class WorkerHelloReply(WorkerState, tag="worker-hello-reply"):
    """Data for a starting node. Suspended is never sent. Revoked and outcomes are for people: the ledger has the
    truth.
    """

    to: Name = ""
    members: Names = ()
    revoked: Names = ()
    suspended: Names = ()
    tokens: dict[Name, Token] = {}
    protocol: Count = PROTOCOL_MAJOR
    known: tuple[PeerSummary, ...] = ()
    outcomes: Annotated[tuple[RunOutcome, ...], Meta(max_length=4096)] = ()


class WorkerBeat(Event, tag="worker-beat"):
    """A unicast to the few nodes that watch this one; with ``ask`` the receiver sends one back."""

    ask: bool = False


class WorkerSuspect(Event, tag="worker-suspect"):
    """The sender hears nothing of these members. A suspect that lives answers all, and so does a node that hears it."""

    suspects: tuple[PeerSummary, ...] = ()


class WorkerVouch(Event, tag="worker-vouch"):
    """These members are alive: the sender has heard them itself."""

    known: tuple[PeerSummary, ...] = ()


class Task(Event, kw_only=True):
    """A run's life; the run is the task, and ``uuid`` is derived from its id."""

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
    due: Instant = 0.0  # the due time, if later
    application_id: Name = ""
    runtime: Seconds | None = None
    result: str | None = None
    exit_code: ExitCode | None = None
    exception: str | None = None
    traceback: str | None = None
    reason: str = ""
    retries: Attempt = 0
    digest: Name = ""  # the granted definition, policy (as the ledger keeps it) and lease (seconds);
    policy: Name = ""  # absent in events of an older version
    lease: Lease = 0.0


class TaskSent(Task, tag="task-sent"):
    """A run was triggered."""


class TaskReceived(Task, tag="task-received"):
    """A node was granted an attempt."""


class TaskStarted(Task, tag="task-started"):
    """The program was executed."""


class TaskSucceeded(Task, tag="task-succeeded"):
    """The program exited with 0."""


class TaskFailed(Task, tag="task-failed"):
    """The program ended in another way."""


class TaskRejected(Task, tag="task-rejected"):
    """The ledger refused the run: overlap, limit, breaker, or too late."""


class TaskRevoked(Task, tag="task-revoked"):
    """A person (or a newer run) ended or forbade it."""


class TaskRetried(Task, tag="task-retried"):
    """An attempt is over (lost or failed) and the next one is due."""


class ControlRevoke(Event, tag="control-revoke"):
    """Makes nodes notice a revocation sooner; the ledger has it already."""

    run: Name
    reason: str = ""


class ControlCancel(Event, tag="control-cancel"):
    """Brings a cancellation to the node that holds the run sooner: for that attempt (-1: an older version does not
    say).
    """

    run: Name
    reason: str = ""
    attempt: int = -1


class ControlClear(Event, tag="control-clear"):
    """A person has looked at these alarms."""

    ids: Names = ()
    note: str = ""
    by: Name = ""


class PeerAsk(Event, tag="peer-ask"):
    """A node asks another for something that only that node has (services/relay.py). Sent to its inbox alone."""

    id: Name  # of the question; the answer brings it back
    what: Name  # "journal": what became of a run, as its journal says; "log": a piece of an attempt's output
    subject: Name


class PeerAnswer(Event, tag="peer-answer"):
    """The answer to a ``peer-ask``, in the inbox of the node that has asked."""

    id: Name
    body: str = ""  # JSON
    error: Name = ""


class ElectionDecided(Event, tag="election-decided"):
    """The result of an election about a run. It is only in the journals of the node that opened it and of the first in
    its succession, and is never sent.
    """

    id: Name
    topic: Name
    run: Name
    attempt: Attempt = 0
    opened_by: Name = ""
    succession: Names = ()
    abstained: dict[Name, str] = {}  # full_hostname -> why
    silent: Names = ()  # no statement came in time
    stamps: dict[Name, tuple[Count, Clock]] = {}  # full_hostname -> (load class, clock), of candidates that have stated
    duration: Seconds = 0.0


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
    | PeerAsk
    | PeerAnswer
)


class ClusterReady(Event, tag="cluster-ready"):
    """More than half of the nodes take new runs, or no more (not ``ready``), as this node sees it. Each node judges for
    itself, so it is in the node's own journal and for its own subscribers, and never in a message.
    """

    ready: bool = True
    alive: Count = 0
    reason: str = ""


class JobLate(Event, tag="job-late"):
    """A job has had no success for longer than its ``expect_within``, as this node sees it; once for each lateness.
    ``since``: its last success, or when it was first seen. As ``ClusterReady``, never in a message.
    """

    job: Name
    since: Instant = 0.0
    reason: str = ""


class CopyGivenUp(Event, tag="copy-given-up"):
    """A file of this node could not be copied to its sink. As ``ClusterReady``, never in a message."""

    sink: Name  # log | journal
    name: Name  # below the state directory
    tries: Count = 0
    reason: str = ""


class CheckChanged(Event, tag="check-changed"):
    """A check has another state, as this node has found it. As ``ClusterReady``, never in a message."""

    check: Name
    state: Name
    before: Name = ""
    reason: str = ""


class BreakerChanged(Event, tag="breaker-changed"):
    """A breaker has another state, as this node sees it. As ``ClusterReady``, never in a message.

    ``breaker``: ``job:NAME``, of which all nodes tell; or one of this node's own. ``since``: when it came into this
    state (Unix seconds), and for ``closed`` when it came into the one that has ended. ``trips``: how often it opened in
    a row (a node's own: since the node's start).
    """

    breaker: Name
    state: Name  # open | half_open | isolated | closed
    since: Instant = 0.0
    trips: Count = 0
    reason: str = ""


# Events that are not sent.
LOCAL = (ClusterReady, JobLate, CopyGivenUp, CheckChanged, BreakerChanged)

# The event type for the end of an attempt, by the reported state.
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
    """All events of one tick of one node: the common fields once, then the events."""

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
    """The type of an event, as on the wire."""
    return str(type(event).__struct_config__.tag)


def flatten(event: Event, *, hostname: str, pid: int, incarnation: str, seq: int, utcoffset: int) -> dict[str, Any]:
    """One event with all fields of the schema, for journals and streams."""
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


def flat(packet: Packet, event: Event) -> dict[str, Any]:
    """An event of that packet, with all fields of the schema."""
    return flatten(
        event,
        hostname=packet.hostname,
        pid=packet.pid,
        incarnation=packet.incarnation,
        seq=packet.seq,
        utcoffset=packet.utcoffset,
    )


def task_of(record: dict[str, Any]) -> Task | None:
    """The event about a run in a journal line; None for any other or invalid line."""
    if not str(record.get("type", "")).startswith("task-"):
        return None
    try:
        event = msgspec.convert(record, AnyEvent)
    except msgspec.ValidationError:  # of a newer version
        return None
    return event if isinstance(event, Task) else None
