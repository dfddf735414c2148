"""What the ledger says: the answer to a request, and the open rows that a sweep sees.

The runner loads this file before it starts a job, so it imports nothing but its neighbours.
"""

from coordd.core.ledger.rows import is_overdue, left_of
from coordd.core.ledger.words import OK, PENDING, RETRY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import LedgerTime, Row


class Answer:
    """What the ledger said: ``word`` and the fields that word carries (seconds are relative).

    ``ended`` is set when this very call has ended an attempt: (attempt, token, nonce, node, reason), and the digest,
    the policy and the lease (seconds) of its row. Whoever made the call tells it, so that the history knows, and a
    witness can put it back as it was.
    """

    __slots__ = ("args", "attempt", "by", "ended", "in_s", "left_s", "state", "token", "until_token", "word")

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
        until_token: "tuple[int, int]" = (0, 0),
        ended: "tuple[int, int, str, str, str, str, str, float] | None" = None,
    ) -> None:
        self.ended = ended
        self.word = word
        self.token = token
        self.left_s = left_s
        self.in_s = in_s
        self.by = by
        self.attempt = attempt
        self.state = state
        self.args = args
        self.until_token = until_token

    def __repr__(self) -> str:
        fields = [f"{k}={getattr(self, k)!r}" for k in self.__slots__ if k != "word" and getattr(self, k)]
        return f"{self.word}({', '.join(fields)})"


class OpenRun:
    """A row that is not terminal, as the sweep sees it."""

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
        self.due_in_s = max(0.0, row.not_before - now.wall)  # by the ledger's clock: nodes' clocks may be off
        self.token = row.token
        self.nonce = row.nonce
        self.node = row.node
        self.lease = row.lease
        self.beat = row.beat
        self.left_s = left_of(row, now)
        self.overdue = row.state in (PENDING, RETRY) and is_overdue(row, now)  # nobody may launch it any more


class OpenAnswer:
    """Open rows, one page of them, and per job (horizon, newest instant that a scheduled run was due, suspended,
    highest token).

    ``identity_from`` tells which rules are in force (NEVER: the old ones), ``current`` which definition of a job
    counts: (sequence, digest, counts from).

    ``recovering_s`` above 0.0: the ledger went back, and waits so long for what it forgot to be restored. Each time
    that it does has an ``epoch`` of its own. ``identity`` says which ledger it is, ``predecessor`` which closed one it
    continues; "" where it has none. ``after``: where the next page begins (``page``); None with the last one.

    ``bad`` names the rows that cannot be used, of runs and of jobs, and what is wrong with each; they are in none of
    the other fields.
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
        jobs: "dict[str, tuple[float, float, bool, int]]",
        wall: float,
        recovering_s: float = 0.0,
        epoch: str = "",
        identity: str = "",
        predecessor: str = "",
        bad: "dict[str, str] | None" = None,
        after: "tuple[float, str] | None" = None,
        identity_from: float = 0.0,
        current: "dict[str, tuple[int, str, float]] | None" = None,
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
