"""What the core is told and what it wants done: the seam between deciding and acting."""

from __future__ import annotations

from typing import Any, NamedTuple

from coordd.core.ledger.answers import Answer, OpenAnswer
from coordd.core.ledger.requests import Grant, Registration, Request
from coordd.core.ledger.rows import AttemptNumber, Token
from coordd.core.wire.events import Action, Event


class Now(NamedTuple):
    """The time, as an argument: ``mono`` (CLOCK_BOOTTIME, seconds) for every duration, ``wall`` (Unix seconds)
    for what people mean by 02:00. Two, because one must never step and the other may."""

    mono: float
    wall: float


class LedgerRequest(NamedTuple):
    """One operation for the ledger; its answer comes back through ``Node.ledger_answered`` with this id."""

    id: int
    request: Request[Answer | OpenAnswer]


class Launch(NamedTuple):
    """Start a runner: the attempt was granted, and the intent is in the journal (written before this)."""

    run: str
    job: str
    attempt: AttemptNumber
    token: Token
    nonce: str
    fire_at: float
    args: str
    deadline: float  # CLOCK_BOOTTIME: from when the claim was SENT
    lease_s: float
    due_at: float = 0.0  # CLOCK_BOOTTIME: when it is due by the ledger's clock; the gate has the last word
    digest: str = ""  # the definition that was granted: nothing else may be launched under this grant
    policy: str = ""  # and its policy, as the ledger keeps it
    due: float = 0.0  # Unix seconds: when it is due, where that is later than ``fire_at``

    @property
    def grant(self) -> Grant:
        """What was granted."""
        return Grant(run=self.run, attempt=self.attempt, token=self.token, nonce=self.nonce)


class Reply(NamedTuple):
    """The answer to a command; ``kind`` is empty for success, else the error's stable word."""

    id: int
    result: dict[str, Any]
    kind: str = ""
    message: str = ""


class Notice(NamedTuple):
    """Something for the log: a fixed, dotted, past-tense event and its fields."""

    event: str
    fields: dict[str, Any]


class Elected(NamedTuple):
    """This node is first in an election whose topic a handler was registered for."""

    id: str
    topic: str
    action: Action | None


class Outcome(NamedTuple):
    """How a ``Ready`` was performed, where the node must hear of it."""

    refused: str | None  # why the journal did not take its lines; "" when it did, None when there were none
    unlaunched: list[Launch]  # their intents are not on the disk
    unkept: list[str]  # runs: the disk did not take these triggers


class Ready:
    """What the shell must do now; ``core.perform`` does it, in the order of these fields."""

    __slots__ = (
        "alarms_changed",
        "cancels",
        "clock_mark",
        "definitions",
        "elected",
        "fatal",
        "journal",
        "journal_sync",
        "launches",
        "ledger",
        "messages",
        "notices",
        "pin",
        "replies",
        "requests_done",
        "requests_kept",
        "state",
        "unicasts",
    )

    def __init__(self) -> None:
        self.fatal = ""  # stop now, with this sentence
        self.clock_mark: int | None = None  # persist BEFORE any message or journal line leaves
        self.pin = ""  # the identity of the ledger that this node uses from now on: persist it
        self.definitions: dict[str, tuple[str, int, float]] | None = None  # to be kept over a restart
        self.journal: list[Event] = []  # append, and BEFORE the rest
        self.journal_sync = False  # fsync them: a launch or a reply depends on them
        self.alarms_changed = False  # keep what ``core.alarms`` keeps
        self.requests_kept: list[Registration] = []  # on disk BEFORE the replies
        self.requests_done: list[str] = []  # the ledger has them now: forget the copies
        self.ledger: list[LedgerRequest] = []
        self.launches: list[Launch] = []
        self.cancels: list[tuple[str, str]] = []  # (run, reason), for the runner of this node
        self.messages: list[Event] = []  # to every node
        self.unicasts: list[tuple[str, Event]] = []  # to one node
        self.elected: list[Elected] = []
        self.replies: list[Reply] = []
        self.notices: list[Notice] = []
        self.state = ""  # the node's state, when it has changed

    def any(self) -> bool:
        """True when there is anything to do."""
        return bool(
            self.messages
            or self.ledger
            or self.journal
            or self.notices
            or self.replies
            or self.launches
            or self.unicasts
            or self.cancels
            or self.elected
            or self.requests_kept
            or self.requests_done
            or self.state
            or self.fatal
            or self.pin
            or self.alarms_changed
            or self.clock_mark is not None
            or self.definitions is not None
        )
