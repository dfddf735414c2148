"""The ledger's answer to a sweep: the open rows, and the state of each job.

No runner sweeps, so this file is not loaded before a job is started.
"""

from coordd.core.ledger.rows import due_in, is_overdue, late_in, left_of
from coordd.core.ledger.words import ABSENT, OK, OPENED, PENDING, RETRY, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.rows import Cursor, Hold, LedgerTime, Row


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


class OpenRun:
    """A row that is not terminal, for the sweep; or one that is, for those who follow ends (``ended``)."""

    __slots__ = (
        "args",
        "attempt",
        "beat",
        "digest",
        "due",
        "due_in_s",
        "ended_at",
        "fire_at",
        "job",
        "late_in_s",
        "lease",
        "left_s",
        "node",
        "nonce",
        "of_parents",
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
        self.ended_at = row.ended_at
        self.attempt = row.attempt
        self.due_in_s = due_in(row, now)  # by the ledger's clock: nodes' clocks may be off
        self.token = row.token
        self.nonce = row.nonce
        self.node = row.node
        self.lease = row.lease
        self.beat = row.beat
        self.left_s = left_of(row, now)
        self.of_parents = row.by.startswith((OPENED, ABSENT))  # they have opened it, or it is missed for them
        waits = row.state in (PENDING, RETRY)
        self.late_in_s = late_in(row, now) if waits else float("inf")
        self.overdue = waits and is_overdue(row, now)  # nobody may launch it any more


class OpenAnswer:
    """One page of open rows, or what has changed since a cursor; and the state of each job.

    ``cursor``: what changes from now on, a later sweep can ask for ("": in a further page). ``whole``: this is a page
    of all open rows. Otherwise ``runs`` has those that have changed since the caller's cursor, and those asked for by
    name; ``gone`` names the runs of both kinds that have no open row; ``jobs`` has only states that have changed, and
    those asked for. ``more``: further changes follow the new cursor.

    ``identity_from`` tells which rules are in force (NEVER: the old ones). ``current`` has the definition of each job
    that counts, if there is one.

    ``recovering_s`` above 0.0: the ledger went back, and waits this long (seconds) for restorations. Each such event
    has a new ``epoch``. ``identity`` is the ledger's identity, ``predecessor`` the closed ledger that it continues, or
    "". ``after``: where the next page begins; None in the last page.

    ``holds``: what people have stopped (rows.Hold), by key: all jobs, nodes, and the asked jobs.

    ``bad`` names unusable rows of runs and jobs, with the reason for each; no other field contains them.
    """

    __slots__ = (
        "after",
        "bad",
        "current",
        "cursor",
        "epoch",
        "gone",
        "grants",
        "holds",
        "identity",
        "identity_from",
        "jobs",
        "more",
        "predecessor",
        "recovering_s",
        "runs",
        "wall",
        "whole",
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
        holds: "dict[str, Hold] | None" = None,
        *,
        cursor: str = "",
        gone: "list[str] | None" = None,
        more: bool = False,
    ) -> None:
        """``gone`` None: a page of all open rows."""
        self.cursor = cursor
        self.whole = gone is None
        self.gone = gone or []
        self.more = more
        self.bad = bad or {}
        self.word = OK
        self.after = after
        self.identity = identity
        self.predecessor = predecessor
        self.identity_from = identity_from
        self.current = current or {}
        self.holds = holds or {}
        self.runs = runs
        self.jobs = jobs
        self.wall = wall
        self.recovering_s = recovering_s
        self.epoch = epoch
        self.grants = 0  # as in Answer

    def __repr__(self) -> str:
        """Short, and the same in every process: the simulator compares its transcripts."""
        gone = f"; gone: {', '.join(self.gone)}" if self.gone else ""
        return f"{self.word}({', '.join(f'{one.run} {one.state}' for one in self.runs)}{gone})"
