"""What the ledger is asked: one class for each operation, and what travels in it as one value.

``Ledger.ask`` takes one and answers with what the class names: Answer, or OpenAnswer for the sweep. ``op`` is the word
of the operation: the rule of core.ledger has that name, and so has the script in Redis. ``wire`` names the fields in
the order of the script's arguments; a field that is itself a value (a grant, a registration) stands there with all of
its own.

The runner loads this file before it starts a job, so it imports nothing but its neighbours.
"""

from coordd.core.ledger.answers import Answer, OpenAnswer
from coordd.core.ledger.rows import AttemptNumber, Cursor, Policy, Record, Token
from coordd.core.ledger.words import FAILURE, LOST, OPEN_PAGE, RECEIVED, RETRY, REVOKED, STARTED, SUCCESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar, Generic, TypeVar

    A_co = TypeVar("A_co", covariant=True)

    class Request(Record, Generic[A_co]):
        """One operation; ``A_co`` is what it is answered with."""

        op: ClassVar[str]
        writes: ClassVar[bool]

else:

    class Request(Record):
        """As above: what it is answered with is for mypy alone (typing would cost the runner's start 10 ms)."""

        __slots__ = ()
        writes = True

        def __class_getitem__(cls, answer: type) -> "type[Request]":
            return cls


# What a report may say of an attempt: lost is that it may have run, retry that it certainly never started.
REPORTS = (SUCCESS, FAILURE, REVOKED, LOST, RETRY)
# What a witness may say of it. That it certainly never started needs no witness: it is claimed anew.
RESTORES = (RECEIVED, STARTED, SUCCESS, FAILURE, REVOKED, LOST)
# How a node comes to activate a definition.
HOW = ("new", "changed", "returned", "restored", "person")
# What a person may say of a run whose end is unknown.
OUTCOMES = ("success", "failed", "relaunch")


# ---- values


class Grant(Record):
    """One grant of one attempt: who holds it proves that by the token and the nonce, never by one alone."""

    wire = ("run", "attempt", "token", "nonce")
    __slots__ = wire

    def __init__(self, *, run: str, attempt: AttemptNumber, token: Token, nonce: str) -> None:
        self.run = run
        self.attempt = attempt
        self.token = token
        self.nonce = nonce


class Watched(Record):
    """What a node has itself seen of a holder: under this token the beat has not changed for ``unchanged_s`` seconds of
    the node's own CLOCK_BOOTTIME."""

    wire = ("token", "beat", "unchanged_s")
    __slots__ = wire

    def __init__(self, *, token: Token, beat: int, unchanged_s: float) -> None:
        self.token = token
        self.beat = beat
        self.unchanged_s = unchanged_s


class Registration(Record):
    """What is known of a run before anybody has claimed it; the same from every node.

    ``fire_at`` is the time that a scheduled run's id names, ``due`` when it is due (later by the job's jitter, where
    the id is made of the nominal time), and ``identity_from`` the instant from which on ids are made so, as far as
    the one who asks knows. Of a triggered run ``fire_at`` is the asking node's time, which only that node can judge:
    it tells the ledger how old the request is (``age_s``), and the ledger dates it.
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


# ---- before a launch


class Register(Request[Answer]):
    """Write a run down before whoever asked for it is answered."""

    op = "register"
    wire = ("of",)
    __slots__ = wire

    def __init__(self, *, of: Registration) -> None:
        self.of = of


class Claim(Request[Answer]):
    """A node asks for one attempt.

    ``watched`` is what the claimant itself has seen of the holder, or None. ``settled_to`` is the fire time up to which
    older ones are settled under the job's misfire policy.
    """

    op = "claim"
    wire = ("of", "attempt", "nonce", "node", "lease_s", "watched", "settled_to")
    __slots__ = wire

    def __init__(
        self,
        *,
        of: Registration,
        attempt: AttemptNumber,
        nonce: str,
        node: str,
        lease_s: float,
        watched: "Watched | None" = None,
        settled_to: float = 0.0,
    ) -> None:
        self.of = of
        self.attempt = attempt
        self.nonce = nonce
        self.node = node
        self.lease_s = lease_s
        self.watched = watched
        self.settled_to = settled_to


class Settle(Request[Answer]):
    """End what nobody may launch any more, or nobody holds."""

    op = "settle"
    wire = ("run", "attempt", "watched")
    __slots__ = wire

    def __init__(self, *, run: str, attempt: AttemptNumber, watched: "Watched | None" = None) -> None:
        self.run = run
        self.attempt = attempt
        self.watched = watched


# ---- who holds an attempt


class Gate(Request[Answer]):
    """The last word before the program is executed."""

    op = "gate"
    wire = ("grant",)
    __slots__ = wire

    def __init__(self, *, grant: Grant) -> None:
        self.grant = grant


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
    """How an attempt ended, in one of REPORTS. ``final`` forbids another try after a failure."""

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
    """May the attempt publish what it has made?"""

    op = "commit"
    wire = ("grant",)
    __slots__ = wire

    def __init__(self, *, grant: Grant) -> None:
        self.grant = grant


class Restore(Request[Answer]):
    """A witness puts back what the ledger forgot, in one of RESTORES. The grant is of the run that ``of`` names."""

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
        """The grant's."""
        return self.grant.attempt

    @property
    def token(self) -> Token:
        """The grant's."""
        return self.grant.token

    @property
    def nonce(self) -> str:
        """The grant's."""
        return self.grant.nonce


# ---- the sweep, and the ledger as a whole


class ListOpen(Request[OpenAnswer]):
    """The first page of the rows that are not terminal, and where these jobs stand."""

    op = "open"
    writes = False  # a job that was never seen before is the exception
    wire = ("limit", "jobs")
    __slots__ = wire

    def __init__(self, *, jobs: "tuple[str, ...]" = (), limit: int = 0) -> None:
        """``limit``: rows of a page; 0: OPEN_PAGE."""
        self.limit = limit or OPEN_PAGE
        self.jobs = jobs


class Page(Request[OpenAnswer]):
    """The page of a sweep that follows that row."""

    op = "page"
    writes = False
    wire = ("limit", "after")
    __slots__ = wire

    def __init__(self, *, after: Cursor, limit: int = 0) -> None:
        """``limit``: rows of a page; 0: OPEN_PAGE."""
        self.limit = limit or OPEN_PAGE
        self.after = after


class NewRules(Request[Answer]):
    """No member speaks the old rules any more. ``known``: where the new ones began when they were in force last (Unix
    seconds), below 0.0 when they never were."""

    op = "new_rules"
    wire = ("known",)
    __slots__ = wire

    def __init__(self, *, known: float) -> None:
        self.known = known


class Activate(Request[Answer]):
    """That definition of a job counts from now on. ``how`` is one of HOW; see the rule."""

    op = "activate"
    wire = ("name", "digest", "schedule", "how", "by", "sequence", "counts_from")
    __slots__ = wire

    def __init__(
        self, *, name: str, digest: str, schedule: str, how: str, by: str, sequence: int = 0, counts_from: float = 0.0
    ) -> None:
        assert how in HOW, f"{name}: activated as {how}"
        self.name = name
        self.digest = digest
        self.schedule = schedule
        self.how = how
        self.by = by
        self.sequence = sequence
        self.counts_from = counts_from


class Prune(Request[Answer]):
    """Forget at most ``limit`` runs that ended longer ago than ``keep_s``; the answer's ``token`` says how many."""

    op = "prune"
    wire = ("keep_s", "limit")
    __slots__ = wire

    def __init__(self, *, keep_s: float, limit: int = 1000) -> None:
        self.keep_s = keep_s
        self.limit = limit


class Close(Request[Answer]):
    """Answer nobody from now on. ``force``: although attempts hold leases."""

    op = "close"
    wire = ("force", "by")
    __slots__ = wire

    def __init__(self, *, force: bool = False, by: str) -> None:
        self.force = force
        self.by = by


class AcceptEpoch(Request[Answer]):
    """End the quarantine: a person knows that nothing was lost. Only where there is one."""

    op = "accept_epoch"
    wire = ()
    __slots__ = wire


# ---- people


class Revoke(Request[Answer]):
    """Forbid a run that has not started, known or not yet.

    ``due``: when a scheduled one is due, as far as the caller knows its job's jitter (0.0: when its name says).
    """

    op = "revoke"
    wire = ("run", "by", "of")
    __slots__ = wire

    def __init__(self, *, run: str, by: str, due: float = 0.0) -> None:
        self.run = run
        self.by = by
        self.of = unseen(run, by, due)


class Cancel(Request[Answer]):
    """End an attempt that runs."""

    op = "cancel"
    wire = ("run", "by")
    __slots__ = wire

    def __init__(self, *, run: str, by: str) -> None:
        self.run = run
        self.by = by


class Resolve(Request[Answer]):
    """Say what became of a run whose end is unknown: one of OUTCOMES."""

    op = "resolve"
    wire = ("run", "outcome", "by")
    __slots__ = wire

    def __init__(self, *, run: str, outcome: str, by: str) -> None:
        assert outcome in OUTCOMES, f"{run}: resolved as {outcome}"
        self.run = run
        self.outcome = outcome
        self.by = by


class Suspend(Request[Answer]):
    """Stop granting a job's runs, or go on."""

    op = "suspend"
    wire = ("job", "suspended", "by")
    __slots__ = wire

    def __init__(self, *, job: str, suspended: bool, by: str) -> None:
        self.job = job
        self.suspended = suspended
        self.by = by


def unseen(run: str, by: str, due: float) -> Registration:
    """What a run's name alone says of it. ``due``: see Revoke. A triggered one is dated by the ledger."""
    fire_at = nominal_time(run)
    at, due = (0.0, 0.0) if fire_at is None else (fire_at, due)
    job = run.partition("#")[0].partition("@")[0]
    return Registration(run, job, "", Policy(), at, scheduled=fire_at is not None, by=by, due=due)


def nominal_time(run: str) -> "float | None":
    """The fire time that a scheduled run's id names; None for a triggered run."""
    from datetime import datetime  # asked only when somebody revokes a run that nobody has seen

    if "#" in run:
        return None
    try:
        instant = datetime.fromisoformat(run.partition("@")[2])
    except ValueError:
        return None
    return instant.timestamp() if instant.tzinfo else None
