"""The requests of runners and witnesses to the ledger, the values in them, and the class of all requests.

``Ledger.ask`` takes a request and returns the type that the class names: Answer, or OpenAnswer for the sweep. ``op`` is
the word of the operation, and the name of its rule and of its Redis script. ``wire`` names the fields in the order of
the script's arguments; a field that is itself a value (a grant, a registration) contributes all of its fields.

The runner loads this file before it starts a job. So it imports only its neighbours, and a request that only nodes or
people need is in requests.py.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import (
    FAILURE,
    LOST,
    RECEIVED,
    RETRY,
    REVOKED,
    STARTED,
    SUCCESS,
    AttemptNumber,
    Policy,
    Record,
    Token,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Generic, TypeVar

    A_co = TypeVar("A_co", covariant=True)

    class Request(Record, Generic[A_co]):
        """One operation; ``A_co`` is the type of its answer."""

        op: ClassVar[str]
        writes: ClassVar[bool]

else:

    class Request(Record):
        """As above; the answer's type is only for mypy (typing would cost the runner's start 10 ms)."""

        __slots__ = ()
        writes = True

        def __class_getitem__(cls, answer: type) -> "type[Request]":
            return cls


# The states of a report. lost: it may have run. retry: it certainly never started.
REPORTS = (SUCCESS, FAILURE, REVOKED, LOST, RETRY)
# The states that a witness may restore. An attempt that certainly never started needs no witness: it is claimed again.
RESTORES = (RECEIVED, STARTED, SUCCESS, FAILURE, REVOKED, LOST)


class Grant(Record):
    """A grant of an attempt. Its holder proves it with the token and the nonce together, never with one alone."""

    wire = ("run", "attempt", "token", "nonce")
    __slots__ = wire

    def __init__(self, *, run: str, attempt: AttemptNumber, token: Token, nonce: str) -> None:
        self.run = run
        self.attempt = attempt
        self.token = token
        self.nonce = nonce


class Registration(Record):
    """A run before its first claim; the same from every node.

    ``fire_at`` is the time in a scheduled run's id. ``due`` is its due time (later by the job's jitter, if the id has
    the nominal time). ``identity_from`` is the instant after which ids have the nominal time, as far as the caller
    knows. For a triggered run ``fire_at`` is the asking node's time, which only that node can judge: it sends the
    request's age (``age_s``), and the ledger dates it.
    """

    wire = ("run", "job", "digest", "policy", "fire_at", "scheduled", "args", "by", "age_s", "due", "identity_from")
    __slots__ = wire

    def __init__(
        self,
        run: str,
        job: str,
        digest: str,
        policy: Policy,
        fire_at: float,
        *,
        scheduled: bool,
        args: str = "{}",
        by: str = "",
        age_s: float = 0.0,
        due: float = 0.0,
        identity_from: float = 0.0,
    ) -> None:
        self.run = run
        self.job = job
        self.digest = digest
        self.policy = policy
        self.fire_at = fire_at
        self.scheduled = scheduled
        self.args = args
        self.by = by
        self.age_s = age_s
        self.due = max(fire_at, due)
        self.identity_from = identity_from


# ---- the holder of an attempt


class Gate(Request[Answer]):
    """The final check before the program is executed.

    ``ahead_s``: the caller can wait for this long (seconds) by itself, if the run is not due yet.
    """

    op = "gate"
    wire = ("grant", "ahead_s")
    __slots__ = wire

    def __init__(self, *, grant: Grant, ahead_s: float = 0.0) -> None:
        self.grant = grant
        self.ahead_s = ahead_s


class Renew(Request[Answer]):
    """Extend the lease by ``lease_s`` seconds. ``launched``: the attempt is past the gate."""

    op = "renew"
    wire = ("grant", "lease_s", "application_id", "launched")
    __slots__ = wire

    def __init__(self, *, grant: Grant, lease_s: float, application_id: str = "", launched: bool) -> None:
        self.grant = grant
        self.lease_s = lease_s
        self.application_id = application_id
        self.launched = launched


class Report(Request[Answer]):
    """The end of an attempt, one of REPORTS. ``final`` forbids a retry after a failure."""

    op = "report"
    wire = ("grant", "state", "exit_code", "reason", "application_id", "final")
    __slots__ = wire

    def __init__(
        self,
        *,
        grant: Grant,
        state: str,
        exit_code: "int | None" = None,
        reason: str = "",
        application_id: str = "",
        final: bool = False,
    ) -> None:
        assert state in REPORTS, f"{grant.run}: a report cannot say {state}"
        self.grant = grant
        self.state = state
        self.exit_code = exit_code
        self.reason = reason
        self.application_id = application_id
        self.final = final


class Commit(Request[Answer]):
    """Asks whether the attempt may publish its results."""

    op = "commit"
    wire = ("grant",)
    __slots__ = wire

    def __init__(self, *, grant: Grant) -> None:
        self.grant = grant


class Restore(Request[Answer]):
    """A witness restores a forgotten attempt, in one of RESTORES. The grant belongs to the run of ``of``."""

    op = "restore"
    wire = (
        "of", "attempt", "token", "nonce",
        "node", "lease_s", "state", "exit_code", "reason", "application_id", "final",
    )  # fmt: skip
    __slots__ = ("application_id", "exit_code", "final", "grant", "lease_s", "node", "of", "reason", "state")

    def __init__(
        self,
        *,
        of: Registration,
        grant: Grant,
        node: str,
        lease_s: float,
        state: str,
        exit_code: "int | None" = None,
        reason: str = "",
        application_id: str = "",
        final: bool = False,
    ) -> None:
        assert state in RESTORES, f"{of.run}: restored as {state}"
        assert grant.run == of.run, f"{of.run}: a grant of {grant.run}"
        self.of = of
        self.grant = grant
        self.node = node
        self.lease_s = lease_s
        self.state = state
        self.exit_code = exit_code
        self.reason = reason
        self.application_id = application_id
        self.final = final

    @property
    def attempt(self) -> AttemptNumber:
        """From the grant."""
        return self.grant.attempt

    @property
    def token(self) -> Token:
        """From the grant."""
        return self.grant.token

    @property
    def nonce(self) -> str:
        """From the grant."""
        return self.grant.nonce
