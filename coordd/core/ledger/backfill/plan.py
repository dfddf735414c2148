"""The plan of a backfill, as a ledger keeps it: one line of words, the note of the hold ``backfill:JOB``.

    ID STATE FROM TO ORDER AT_MOST REDO STOP_AFTER ENDED_AT CURSOR OPENED SUCCEEDED FAILED OPEN

Instants are Unix seconds with three decimals; 0.000 where there is none. OPEN has the runs that this plan opened and
that have not ended, separated by commas, or "-". A job has one plan. A plan that has ended stays for KEPT_S.
"""

from coordd.core.ledger.words import INSTANT_MAX, Record

RUNNING, DONE, STOPPED, CANCELLED = "running", "done", "stopped", "cancelled"
STATES = (RUNNING, DONE, STOPPED, CANCELLED)
OLDEST, NEWEST = ORDERS = ("oldest", "newest")
NONE, FAILED, EVERY = REDO = ("none", "failed", "all")

# A plan that has ended can be looked at for this time (seconds).
KEPT_S = 30 * 86400.0

# How many runs of one plan may be alive at a time, at the most.
AT_MOST_MAX = 100

NOTHING_OPEN = "-"


class Plan(Record):
    """A range of fire times (``begin`` included, ``end`` not; nominal, Unix seconds), and how far it has come.

    ``at_most``: how many of its runs may be alive at a time. ``stop_after``: it stops after that number of its runs
    has ended without success; 0: never. ``cursor``: the fire time that it opened last. ``open``: its runs that have not
    ended.
    """

    __slots__ = (
        "at_most",
        "begin",
        "cursor",
        "end",
        "ended_at",
        "failed",
        "id",
        "open",
        "opened",
        "order",
        "redo",
        "state",
        "stop_after",
        "succeeded",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - the word that people see
        begin: float,
        end: float,
        order: str = OLDEST,
        at_most: int = 1,
        redo: str = NONE,
        stop_after: int = 0,
        state: str = RUNNING,
    ) -> None:
        self.id = id
        self.state = state
        self.begin = begin
        self.end = end
        self.order = order
        self.at_most = at_most
        self.redo = redo
        self.stop_after = stop_after
        self.ended_at = 0.0
        self.cursor = 0.0
        self.opened = 0
        self.succeeded = 0
        self.failed = 0
        self.open: list[str] = []

    def text(self) -> str:
        """As a ledger keeps it."""
        words = (
            self.id,
            self.state,
            f"{self.begin:.3f}",
            f"{self.end:.3f}",
            self.order,
            self.at_most,
            self.redo,
            self.stop_after,
            f"{self.ended_at:.3f}",
            f"{self.cursor:.3f}",
            self.opened,
            self.succeeded,
            self.failed,
            ",".join(self.open) or NOTHING_OPEN,
        )
        return " ".join([str(word) for word in words])

    @classmethod
    def read(cls, text: str) -> "Plan | None":
        """The inverse of ``text``; None for a damaged one, which opens nothing."""
        try:
            ident, state, begin, end, order, at_most, redo, stop, ended, cursor, opened, won, lost, runs = text.split(
                " "
            )
            plan = cls(ident, float(begin), float(end), order, int(at_most), redo, int(stop), state)
            plan.ended_at, plan.cursor = float(ended), float(cursor)
            plan.opened, plan.succeeded, plan.failed = int(opened), int(won), int(lost)
        except ValueError:
            return None
        times = (plan.begin, plan.end, plan.ended_at, plan.cursor)
        if not all(0.0 <= at <= INSTANT_MAX for at in times) or 0.0 < plan.cursor < plan.begin:  # also for NaN
            return None
        plan.open = runs.split(",") if runs != NOTHING_OPEN else []
        return plan if state in STATES and order in ORDERS and redo in REDO else None

    def is_past(self, fire_at: float) -> bool:
        """True if the plan has opened that fire time, or has gone by it, or does not contain it."""
        if not self.begin <= fire_at < self.end:
            return True
        if not self.cursor:
            return False
        return fire_at <= self.cursor if self.order == OLDEST else fire_at >= self.cursor
