"""The rows of the ledger, their columns, and the interface of the store.

The runner of a SQLite ledger loads this file before it starts a job, so it imports only its neighbours.
"""

from coordd.core.ledger.words import (
    CLOCK_EXACT_S,
    INSTANT_MAX,
    OPENED,
    REPEATED,
    RERUN,
    REVOKED,
    AttemptNumber,
    Policy,
    Record,
    Token,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    class Store(Protocol):
        """The transaction that the rules need: it reads and writes rows."""

        def run(self, run: str) -> "Row | None": ...
        def put_run(self, row: "Row") -> None: ...  # numbers what changes (changed_by)
        def job(self, job: str) -> "JobRow | None": ...
        def put_job(self, row: "JobRow") -> None: ...  # numbers it; so do put_standing and drop_job
        def job_names(self) -> "list[str]": ...  # every job that has a row
        def has_jobs(self) -> bool: ...  # some job has a row

        def standing(self, job: str) -> "JobRow | None":
            """The second row of a job, used since the new rules are in force (its ``fence`` is 0)."""

        def put_standing(self, row: "JobRow") -> None: ...
        def drop_job(self, job: str) -> None: ...  # and its second row
        def highest_token(self, job: str) -> int: ...  # of the job's runs; 0 without any

        def activations(self, job: str) -> "list[Activation]":
            """The last definitions of a job, oldest first."""

        def put_activation(self, job: str, activation: "Activation") -> None:
            """Add one; of more than ACTIVATIONS_MAX the oldest are forgotten."""

        def attempt(self, run: str, attempt: int) -> "AttemptRow | None": ...
        def put_attempt(self, row: "AttemptRow") -> None: ...

        def active_runs(self, job: str) -> "list[Row]":
            """The job's rows in an ACTIVE state, by id."""

        def slot_holders(self, key: str) -> "list[Row]":
            """The rows in a HOLDING state whose policy names the slots of that key (limits/text.py), by id."""

        def starts(self, key: str, since: float) -> "list[float]":
            """When attempts were started under a rate's key, later than ``since`` (Unix seconds), oldest first."""

        def put_start(self, key: str, attempt: str, at: float, since: float) -> None:
            """Record the start of an attempt (RUN/NUMBER) at that instant; those up to ``since`` are forgotten."""

        def first_waiting(self, job: str) -> "Row | None":
            """The job's first PENDING row by (not_before, run)."""

        def waiting_before(self, job: str, not_before: float, run: str) -> int:
            """How many PENDING rows of the job come before that one, by (not_before, run)."""

        def open_runs(self, limit: int, after: "Cursor | None" = None) -> "tuple[list[Row], Cursor | None]":
            """Open rows (read-only) by (not_before, run), starting after a cursor; and the cursor of the next page,
            None at the end.
            """

        def number(self, name: str) -> None:
            """Number a change of that run or job (OF_RUN, OF_JOB and its name)."""

        def changes(self) -> int:
            """The number of the newest change."""

        def changed(self, after: int, limit: int) -> "list[tuple[int, str]]":
            """The runs and jobs whose newest change has a higher number, with that number; in this order."""

        def ended_runs(self, before: float, limit: int) -> "list[Row]":
            """Terminal rows (read-only) that ended and fired before an instant; by (ended_at, run)."""

        def ended_since(self, since: float, limit: int) -> "list[Row]":
            """Terminal rows (read-only) that ended at that instant or later, by (ended_at, run)."""

        def drop_run(self, run: str) -> None:
            """Forget a run and its attempts."""

        def count_fired(self, job: str, after: float, upto: float) -> int:
            """How many of a job's scheduled rows are due after ``after``, up to ``upto``; not those that were revoked
            before any claim.
            """

        def last_fire_at(self, job: str, before: float) -> float:
            """The newest due time, up to ``before``, of a job's scheduled rows, or 0.0.

            A run that was revoked before any claim does not count: it may be far in the future.
            """

        def meta(self, key: str) -> str:
            """The ledger's own value with this name (identity.py); "" if missing."""

        def put_meta(self, key: str, value: str) -> None: ...  # "" removes it

        def metas_like(self, prefix: str) -> "dict[str, str]":
            """The ledger's own values whose names begin so, by name."""


class Cursor(Record):
    """The start of the next page of open rows: after this row, even if it no longer exists."""

    wire = ("not_before", "run")
    __slots__ = wire

    def __init__(self, *, not_before: float, run: str) -> None:
        self.not_before = not_before
        self.run = run


class LedgerTime:
    """The ledger's own clocks at one operation.

    ``wall`` (Unix seconds) decides only due and missed. ``lease`` (seconds) is what leases are counted on:
    CLOCK_BOOTTIME for SQLite, TIME for Redis. ``boot`` names the boot that ``lease`` belongs to ("" if the lease clock
    survives reboots): a lease of another boot has lapsed.

    ``recovering_s`` is the rest of a quarantine: the ledger may have lost its last writes, and witnesses restore them.
    Nothing is launched meanwhile. 0.0: no quarantine. ``epoch`` changes each time that the ledger goes back.
    ``whole_s``: the same, also if the quarantine has ended early; None: it has not. ``replicated``: a replica may have
    more, or less, than this server.
    """

    __slots__ = ("boot", "epoch", "lease", "recovering_s", "replicated", "wall", "whole_s")

    def __init__(
        self,
        wall: float,
        lease: float,
        boot: str = "",
        recovering_s: float = 0.0,
        epoch: str = "",
        *,
        whole_s: "float | None" = None,
        replicated: bool = False,
    ) -> None:
        self.wall = wall
        self.lease = lease
        self.boot = boot
        self.recovering_s = recovering_s
        self.epoch = epoch
        self.whole_s = recovering_s if whole_s is None else whole_s
        self.replicated = replicated


# The columns of a run; the SQLite table and the in-memory row both use them.
RUN_COLUMNS = (
    "run", "job", "digest", "args", "policy", "scheduled", "fire_at", "created_at", "by",
    "state", "attempt", "not_before", "failures", "relaunches",
    "token", "nonce", "node", "lease", "until", "boot", "beat", "commit_token", "cancel",
    "received_at", "started_at", "ended_at", "exit_code", "application_id", "reason",
    "due",
)  # fmt: skip


class Row:
    """One run, with its current attempt. Instants are Unix seconds, except ``until`` (the lease clock).

    ``fire_at`` is the time in the run's id. ``due`` is its earliest due time, later by the job's jitter; 0.0 in rows of
    an older version, where ``fire_at`` is both.
    """

    __slots__ = RUN_COLUMNS
    run: str
    job: str
    digest: str
    args: str
    policy: str
    scheduled: int
    fire_at: float
    created_at: float
    by: str
    state: str
    attempt: AttemptNumber
    not_before: float
    failures: int
    relaunches: int
    token: Token
    nonce: str
    node: str
    lease: float
    until: float
    boot: str
    beat: int
    commit_token: int
    cancel: int
    received_at: float
    started_at: float
    ended_at: float
    exit_code: "int | None"
    application_id: str
    reason: str
    due: float

    def __init__(self, values: "Iterable[Any]") -> None:
        """``values``: in the order of RUN_COLUMNS. Written out, as in ``values``: a loop is several times slower."""
        # fmt: off
        (
            self.run, self.job, self.digest, self.args, self.policy, self.scheduled, self.fire_at, self.created_at,
            self.by, self.state, self.attempt, self.not_before, self.failures, self.relaunches,
            self.token, self.nonce, self.node, self.lease, self.until, self.boot, self.beat, self.commit_token,
            self.cancel, self.received_at, self.started_at, self.ended_at, self.exit_code, self.application_id,
            self.reason, self.due,
        ) = values
        # fmt: on

    @property
    def due_at(self) -> float:
        """The earliest due time of the run."""
        return max(self.fire_at, self.due)

    def values(self) -> "tuple[object, ...]":
        """The columns' values, in the order of RUN_COLUMNS."""
        # fmt: off
        return (
            self.run, self.job, self.digest, self.args, self.policy, self.scheduled, self.fire_at, self.created_at,
            self.by, self.state, self.attempt, self.not_before, self.failures, self.relaunches,
            self.token, self.nonce, self.node, self.lease, self.until, self.boot, self.beat, self.commit_token,
            self.cancel, self.received_at, self.started_at, self.ended_at, self.exit_code, self.application_id,
            self.reason, self.due,
        )
        # fmt: on

    def copy(self) -> "Row":
        """A copy that can be changed without changing this row."""
        return Row(self.values())


# A change of one of these columns is numbered. What a holder renews is not: who watches a holder asks for its row.
FEED_COLUMNS = (
    "state", "job", "digest", "args", "policy", "scheduled", "fire_at", "due", "by",
    "attempt", "not_before", "token", "nonce", "node",
)  # fmt: skip

# The ledger remembers changes up to this number below the newest. An older cursor begins again.
FEED_MAX = 10_000
CHANGES = "changes"  # the number of the newest one, in the ledger's ``meta``


def changed_by(row: Row, before: "tuple[object, ...] | None") -> "list[str]":
    """What a sweep shows otherwise once this row is written: the run, its job, both or nothing. ``before``: the
    FEED_COLUMNS that it had. A renewal changes nothing.
    """
    if before == fed(row):
        return []
    # The newest fire time of a job does not count runs that were revoked before any claim.
    fires = row.scheduled and (before is None or REVOKED in (before[0], row.state))
    return [OF_RUN + row.run, *([OF_JOB + row.job] if fires else ())]


def fed(row: Row) -> "tuple[object, ...]":
    """The row's FEED_COLUMNS."""
    return tuple([getattr(row, column) for column in FEED_COLUMNS])


ATTEMPT_COLUMNS = (
    "run", "attempt", "token", "nonce", "node", "state",
    "received_at", "started_at", "ended_at", "exit_code", "application_id", "reason",
)  # fmt: skip


class AttemptRow:
    """One attempt, kept for people and audits after the run has moved on."""

    __slots__ = ATTEMPT_COLUMNS
    run: str
    attempt: AttemptNumber
    token: Token
    nonce: str
    node: str
    state: str
    received_at: float
    started_at: float
    ended_at: float
    exit_code: "int | None"
    application_id: str
    reason: str

    def __init__(self, values: "Iterable[object]") -> None:
        for column, value in zip(ATTEMPT_COLUMNS, values, strict=True):
            setattr(self, column, value)

    def values(self) -> "tuple[object, ...]":
        """The columns' values, in the order of ATTEMPT_COLUMNS."""
        return tuple([getattr(self, column) for column in ATTEMPT_COLUMNS])


JOB_COLUMNS = ("job", "fence", "horizon", "suspended", "version", "changed_by")


# The columns of the second row of a job, which older versions neither read nor write.
STANDING_COLUMNS = (
    "job",
    "horizon",
    "suspended",
    "version",
    "changed_by",
    "sequence",
    "digest",
    "schedule",
    "activated_at",
    "counts_from",
)


class JobRow:
    """The state of one job: the fencing counter, the horizon, suspension, and the definition that counts.

    The definition is identified by its ``digest`` ("": none was activated yet) and the digest of its ``schedule`` part.
    It was activated as number ``sequence`` at ``activated_at``, for runs that are due after ``counts_from``. ``past``
    has the values of all remembered definitions, oldest first; ``fires`` the stretches of fire times without a row,
    ``succeeded_at`` the end of the last success (core/ledger/fires.py), and ``first_heard`` the first horizon
    (core/ledger/standing.py). Only exported rows have these four.
    """

    __slots__ = (*JOB_COLUMNS, *STANDING_COLUMNS[5:], "fires", "first_heard", "past", "succeeded_at")

    def __init__(
        self,
        job: str,
        fence: int = 0,
        horizon: float = 0.0,
        suspended: int = 0,
        version: int = 0,
        changed_by: str = "",
        sequence: int = 0,
        digest: str = "",
        schedule: str = "",
        activated_at: float = 0.0,
        counts_from: float = 0.0,
    ) -> None:
        self.job = job
        self.fence = fence
        self.horizon = horizon
        self.suspended = suspended
        self.version = version
        self.changed_by = changed_by
        self.sequence = sequence
        self.digest = digest
        self.schedule = schedule
        self.activated_at = activated_at
        self.counts_from = counts_from
        self.fires = ""
        self.first_heard = 0.0
        self.succeeded_at = 0.0
        self.past: list[tuple[int, str, str, float, float, str]] = []

    def values(self) -> "tuple[object, ...]":
        """The columns' values, in the order of JOB_COLUMNS."""
        return (self.job, self.fence, self.horizon, self.suspended, self.version, self.changed_by)

    def standing(self) -> "tuple[object, ...]":
        """The columns' values, in the order of STANDING_COLUMNS."""
        return tuple([getattr(self, column) for column in STANDING_COLUMNS])

    @classmethod
    def of_standing(cls, values: "Iterable[object]") -> "JobRow":
        """The inverse of ``standing``."""
        row = cls("")
        for column, value in zip(STANDING_COLUMNS, values, strict=True):
            setattr(row, column, value)
        return row

    def copy(self) -> "JobRow":
        """A copy that can be changed without changing this row."""
        row = JobRow.of_standing(self.standing())
        row.fence = self.fence
        return row


# How many definitions of one job the ledger remembers.
ACTIVATIONS_MAX = 50

ACTIVATION_COLUMNS = ("sequence", "digest", "schedule", "activated_at", "counts_from", "by")


class Activation:
    """An activation: from when one definition of a job counts, and who or what activated it."""

    __slots__ = ACTIVATION_COLUMNS

    def __init__(
        self, sequence: int, digest: str, schedule: str, activated_at: float, counts_from: float, by: str = ""
    ) -> None:
        self.sequence = sequence
        self.digest = digest
        self.schedule = schedule
        self.activated_at = activated_at
        self.counts_from = counts_from
        self.by = by

    def values(self) -> "tuple[int, str, str, float, float, str]":
        """The columns' values, in the order of ACTIVATION_COLUMNS."""
        return (self.sequence, self.digest, self.schedule, self.activated_at, self.counts_from, self.by)


# The key of the hold on every job, and the beginning of the keys of the others.
ALL = "all"
OF_NODE = "node:"
OF_JOB = "job:"
OF_RUN = "run:"  # only in the feed
# No hold, but kept as one: a person's size of a pool, in its note.
OF_POOL = "pool:"
# Nor is this one: the plan of a job's backfill, in its note (core/ledger/backfill).
OF_BACKFILL = "backfill:"
# Nor is this one: which runs follow a run that a person has run once more, in its note (core/ledger/rerun).
OF_RERUN = "rerun:"
# Nor is this one: the revision of the job definitions that is in force, in its note (core/ledger/revision).
REVISION = "revision"
# Nor is this one: the state of a job's breaker, in its note (core/ledger/breaker). A person's hold on it is the other.
OF_BREAKER = "breaker:"
OF_ISOLATED = "isolated:"
# Nor are these: how a check stands that nodes share, in its note (core/checks), and what somebody reports of a check.
OF_CHECK = "check:"
OF_REPORTED = "reported:"
# Nor is this one: how often an input of a job has failed, in its note (core/ledger/inputs). Sweeps do not tell it.
OF_INPUT = "input:"

# Who asked for a run that a backfill opened: this word, the plan's id, and by whom the plan is.
BACKFILLED = "backfill "


class Hold:
    """Who stopped something: ``by`` (user) and ``uid``, ``at`` (Unix seconds), why (``note``), and ``until`` (Unix
    seconds; 0.0: until a person ends it). ``version``: of the job's row; 0 for the other kinds.
    """

    COLUMNS = ("version", "until", "at", "uid", "by", "note")
    __slots__ = COLUMNS

    def __init__(
        self, *, by: str, version: int = 0, until: float = 0.0, at: float = 0.0, uid: int = 0, note: str = ""
    ) -> None:
        self.version = version
        self.until = until
        self.at = at
        self.uid = uid
        self.by = by
        self.note = note

    def has_ended(self, now: LedgerTime) -> bool:
        """True once the ledger's clock has reached its end."""
        return 0.0 < self.until <= now.wall

    def text(self) -> str:
        """As a ledger keeps it."""
        return f"{self.version} {self.until!r} {self.at!r} {self.uid}\n{self.by}\n{self.note}"

    @classmethod
    def read(cls, text: str) -> "Hold":
        """The inverse of ``text``. A damaged text is a hold without an end: it still stops what it stopped."""
        figures, _, words = text.partition("\n")
        by, _, note = words.partition("\n")
        try:
            version, until, at, uid = figures.split(" ")
            read = cls(version=int(version), until=float(until), at=float(at), uid=int(uid), by=by, note=note)
        except ValueError:
            read = None
        if read is None or not (0.0 <= read.until <= INSTANT_MAX and 0.0 <= read.at <= INSTANT_MAX):
            return cls(by="", note="the row of this hold is damaged")
        return read


def host_of(full_hostname: str) -> str:
    """The node's name: the full hostname (HOSTNAME.PID) without the pid. "" for ""."""
    return full_hostname.rpartition(".")[0]


def key_of_node(full_hostname: str) -> str:
    """The key of the hold on the node with this full hostname (HOSTNAME.PID)."""
    return OF_NODE + host_of(full_hostname)


def is_backfill(row: Row) -> bool:
    """True if a backfill or a re-run has opened the run's present attempt: live runs go first."""
    return (bool(row.scheduled) and row.by.startswith(BACKFILLED)) or is_rerun(row)


def is_rerun(row: Row) -> bool:
    """True if the run runs once more because a person ran it once more, or its parent with its children."""
    return row.by.startswith(REPEATED) or (row.by.startswith(OPENED) and RERUN in row.by)


def left_of(row: Row, now: LedgerTime) -> float:
    """The seconds left of a lease, never more than its length; 0.0 if the ledger's clock cannot tell (another boot, or
    set back since).
    """
    return row.until - now.lease if row.boot == now.boot and row.token and not was_set_back(row, now) else 0.0


def was_set_back(row: Row, now: LedgerTime) -> bool:
    """True if the lease ends further ahead than its length: the ledger's clock went back, or was ahead at the grant."""
    return row.boot == now.boot and row.until - now.lease > row.lease + CLOCK_EXACT_S


def due_in(row: Row, now: LedgerTime) -> float:
    """Seconds until it may start, 0.0 when it is due.

    It waits for the fire time of its schedule, and for the pause before a further attempt. Where ``not_before`` is
    further ahead than that, the ledger's clock was ahead when it was written: then it waits for the fire time alone.
    """
    ahead_s = row.not_before - now.wall
    if ahead_s <= 0.0:
        return 0.0
    fires_in_s = max(0.0, row.due_at - now.wall) if row.scheduled else 0.0
    pause_s = Policy.unpack(row.policy).longest_pause() if row.attempt else 0.0
    return ahead_s if ahead_s <= max(fires_in_s, pause_s) + CLOCK_EXACT_S else fires_in_s


def is_overdue(row: Row, now: LedgerTime) -> bool:
    """Later than its ``start_within``, by the row's own policy, whatever the job says now."""
    return now.wall > row.not_before and late_in(row, now) < 0.0


def late_in(row: Row, now: LedgerTime) -> float:
    """Seconds until the row's own ``start_within`` is over; negative after it."""
    return row.not_before + Policy.unpack(row.policy).start_within_s - now.wall
