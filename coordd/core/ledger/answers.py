"""The ledger's answers: to a request, and the open rows of a sweep.

The runner loads this file before it starts a job, so it imports only its neighbours.
"""

from coordd.core.ledger.rows import AttemptNumber, Record, Token, due_in, is_overdue, left_of
from coordd.core.ledger.words import OK, PENDING, RETRY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import Cursor, LedgerTime, Row


class Held(Record):
    """The holder of an attempt, as watchers see it: its token, and its last beat (0: the grant)."""

    wire = ("token", "beat")
    __slots__ = wire

    def __init__(self, *, token: Token, beat: int) -> None:
        self.token = token
        self.beat = beat


class Ended(Record):
    """An attempt that this very operation has ended (token 0: none was granted yet), with the definition, the policy
    and the lease of its row.
    """

    wire = ("attempt", "token", "nonce", "node", "reason", "digest", "policy", "lease_s")
    __slots__ = wire

    def __init__(
        self,
        *,
        attempt: AttemptNumber,
        token: Token,
        nonce: str,
        node: str,
        reason: str,
        digest: str,
        policy: str,
        lease_s: float,
    ) -> None:
        self.attempt = attempt
        self.token = token
        self.nonce = nonce
        self.node = node
        self.reason = reason
        self.digest = digest
        self.policy = policy
        self.lease_s = lease_s


class JobState(Record):
    """The state of a job: its horizon, which is the newest due time of its scheduled runs (0.0: none yet); whether it
    is suspended; and the highest issued token.
    """

    wire = ("horizon", "last_fire_at", "suspended", "fence")
    __slots__ = wire

    def __init__(self, *, horizon: float, last_fire_at: float, suspended: bool, fence: int) -> None:
        self.horizon = horizon
        self.last_fire_at = last_fire_at
        self.suspended = suspended
        self.fence = fence


class Current(Record):
    """The definition of a job that counts: activated as number ``sequence``, for runs that are due after
    ``counts_from``.
    """

    wire = ("sequence", "digest", "counts_from")
    __slots__ = wire

    def __init__(self, *, sequence: int, digest: str, counts_from: float) -> None:
        self.sequence = sequence
        self.digest = digest
        self.counts_from = counts_from


NOBODY = Held(token=Token(0), beat=0)


class Answer:
    """An answer: ``word``, and the fields that belong to the word (seconds are relative).

    ``held`` belongs to the word HELD. ``ended`` is set if this very operation has ended an attempt: the caller
    publishes it, so that the history knows, and a witness can restore it exactly.
    """

    __slots__ = ("args", "attempt", "by", "ended", "held", "in_s", "left_s", "state", "token", "word")

    def __init__(
        self,
        word: str,
        *,
        token: int = 0,
        left_s: float = 0.0,
        in_s: float = 0.0,
        by: str = "",
        attempt: int = 0,
        state: str = "",
        args: str = "",
        held: Held = NOBODY,
        ended: "Ended | None" = None,
    ) -> None:
        self.ended = ended
        self.word = word
        self.token = Token(token)
        self.left_s = left_s
        self.in_s = in_s
        self.by = by
        self.attempt = AttemptNumber(attempt)
        self.state = state
        self.args = args
        self.held = held

    def __repr__(self) -> str:
        fields = [
            f"{k}={getattr(self, k)!r}"
            for k in self.__slots__
            if k != "word" and getattr(self, k) not in ("", 0, None, NOBODY)
        ]
        return f"{self.word}({', '.join(fields)})"


class OpenRun:
    """A row that is not terminal, for the sweep."""

    __slots__ = (
        "args",
        "attempt",
        "beat",
        "digest",
        "due",
        "due_in_s",
        "fire_at",
        "job",
        "lease",
        "left_s",
        "node",
        "nonce",
        "overdue",
        "run",
        "scheduled",
        "state",
        "token",
    )

    def __init__(self, row: "Row", now: "LedgerTime") -> None:
        self.run = row.run
        self.job = row.job
        self.digest = row.digest
        self.args = row.args
        self.scheduled = row.scheduled
        self.fire_at = row.fire_at
        self.due = row.due
        self.state = row.state
        self.attempt = row.attempt
        self.due_in_s = due_in(row, now)  # by the ledger's clock: nodes' clocks may be off
        self.token = row.token
        self.nonce = row.nonce
        self.node = row.node
        self.lease = row.lease
        self.beat = row.beat
        self.left_s = left_of(row, now)
        self.overdue = row.state in (PENDING, RETRY) and is_overdue(row, now)  # nobody may launch it any more


class OpenAnswer:
    """One page of open rows, and the state of each job.

    ``identity_from`` tells which rules are in force (NEVER: the old ones). ``current`` has the definition of each job
    that counts, if there is one.

    ``recovering_s`` above 0.0: the ledger went back, and waits this long (seconds) for restorations. Each such event
    has a new ``epoch``. ``identity`` is the ledger's identity, ``predecessor`` the closed ledger that it continues, or
    "". ``after``: where the next page begins; None in the last page.

    ``bad`` names unusable rows of runs and jobs, with the reason for each; no other field contains them.
    """

    __slots__ = (
        "after",
        "bad",
        "current",
        "epoch",
        "identity",
        "identity_from",
        "jobs",
        "predecessor",
        "recovering_s",
        "runs",
        "wall",
        "word",
    )

    def __init__(
        self,
        runs: "list[OpenRun]",
        jobs: "dict[str, JobState]",
        wall: float,
        recovering_s: float = 0.0,
        epoch: str = "",
        identity: str = "",
        predecessor: str = "",
        bad: "dict[str, str] | None" = None,
        after: "Cursor | None" = None,
        identity_from: float = 0.0,
        current: "dict[str, Current] | None" = None,
    ) -> None:
        self.bad = bad or {}
        self.word = OK
        self.after = after
        self.identity = identity
        self.predecessor = predecessor
        self.identity_from = identity_from
        self.current = current or {}
        self.runs = runs
        self.jobs = jobs
        self.wall = wall
        self.recovering_s = recovering_s
        self.epoch = epoch
