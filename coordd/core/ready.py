"""The seam between deciding and acting: inputs and outputs of the core."""

from __future__ import annotations

from typing import Any, NamedTuple

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.runner_requests import Grant, Registration, Request
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.wire.events import Action, Event


class Now(NamedTuple):
    """The time, as an argument: ``mono`` (CLOCK_BOOTTIME, seconds) for every duration, ``wall`` (Unix seconds) for
    schedules. Two clocks, because one must never step and the other may.
    """

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
    deadline: float  # CLOCK_BOOTTIME: counted from when the claim was SENT
    lease_s: float
    due_at: float = 0.0  # CLOCK_BOOTTIME: when it is due by the ledger's clock; the gate decides finally
    digest: str = ""  # the granted definition: nothing else may be launched under this grant
    policy: str = ""  # its policy, as stored in the ledger
    due: float = 0.0  # Unix seconds: the due time, if later than ``fire_at``

    @property
    def grant(self) -> Grant:
        """The grant."""
        return Grant(run=self.run, attempt=self.attempt, token=self.token, nonce=self.nonce)


class Reply(NamedTuple):
    """The answer to a command; ``kind`` is empty for success, otherwise a stable error word."""

    id: int
    result: dict[str, Any]
    kind: str = ""
    message: str = ""


class Notice(NamedTuple):
    """An entry for the log: a fixed, dotted, past-tense event and its fields."""

    event: str
    fields: dict[str, Any]


class Elected(NamedTuple):
    """This node is first in an election with a registered topic."""

    id: str
    topic: str
    action: Action | None


class Outcome(NamedTuple):
    """The results of performing a ``Ready`` that the node must know."""

    refused: str | None  # why the journal refused its lines; "" on success, None without lines
    unlaunched: list[Launch]  # their intents are not on the disk
    unkept: list[str]  # runs whose triggers the disk refused


class Ready:
    """What the shell must do now; perform.py does it, in the order of these fields."""

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
        self.pin = ""  # the identity of this node's ledger: persist it
        self.definitions: dict[str, tuple[str, int, float]] | None = None  # to keep over a restart
        self.journal: list[Event] = []  # append BEFORE the rest
        self.journal_sync = False  # fsync them: a launch or a reply depends on them
        self.alarms_changed = False  # store the alarms
        self.requests_kept: list[Registration] = []  # on disk BEFORE the replies
        self.requests_done: list[str] = []  # the ledger has them: remove the copies
        self.ledger: list[LedgerRequest] = []
        self.launches: list[Launch] = []
        self.cancels: list[tuple[str, str]] = []  # (run, reason), for this node's runners
        self.messages: list[Event] = []  # broadcasts
        self.unicasts: list[tuple[str, Event]] = []  # (full_hostname, event)
        self.elected: list[Elected] = []
        self.replies: list[Reply] = []
        self.notices: list[Notice] = []
        self.state = ""  # the node's new state

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
