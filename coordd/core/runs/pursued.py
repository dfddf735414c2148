"""One run that a node is after: how far it has come, what it waits for, and the steps to where it waits."""

from __future__ import annotations

from coordd.core.context import Context
from coordd.core.jobs.job import Job
from coordd.core.ledger.rows import AttemptNumber, Token
from coordd.core.ready import Now
from coordd.core.runs.lease_watch import LeaseWatch, watched_on
from coordd.core.wire.events import Action

ELECTING = "electing"
DUE = "due"
CLAIMING = "claiming"
WAITING = "waiting"
HELD_BY_OTHER = "held"
SLEEPING = "sleeping"
OWNED = "owned"

# An unanswered or limited claim is repeated with a delay that doubles between these bounds.
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 10.0


class Pursuit:
    """One run that this node is after."""

    __slots__ = (
        "action",
        "at",
        "attempt",
        "backoff_s",
        "claimed",
        "floor",
        "late_at",
        "limited",
        "nonce",
        "owner",
        "phase",
        "rank",
        "row_at",
        "settled_to",
        "unanswered",
        "watch",
        "why",
    )

    def __init__(self, action: Action, settled_to: float) -> None:
        self.action = action
        self.attempt = AttemptNumber(action.attempt)
        self.settled_to = settled_to
        self.phase = ELECTING
        self.at = 0.0
        self.rank: int | None = None
        self.nonce = ""
        self.claimed: Job | None = None  # the definition that the nonce was drawn for: each repeat names the same one
        self.floor = 0  # the job's highest token when the nonce was drawn: what that nonce is granted is above it
        self.late_at = float("inf")  # from then on even a node that cannot take it sees to it that it has a row
        self.unanswered = False  # the last claim was not: it may have been granted all the same
        self.backoff_s = BACKOFF_MIN_S
        self.row_at = float("inf")  # since when we know that the ledger has a row for it
        self.limited = False  # the last answer was: not while others run
        self.owner = ""
        self.watch: LeaseWatch | None = None
        self.why = ""


class Phases:
    """The steps that put a run off; the pursuit of all runs (pursuit.py) is made of them."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def _held(self, pursuit: Pursuit, by: str, left_s: float, now: Now) -> None:
        """Somebody has it: come back when its lease has been watched to its end."""
        pursuit.phase = HELD_BY_OTHER
        pursuit.owner = by
        pursuit.nonce = ""
        pursuit.why = f"held by {by}"
        if pursuit.watch is None:
            pursuit.at = float("inf")  # the next sweep begins a watch
            return
        ripe_at = max(pursuit.watch.ripe_at(), now.mono + max(0.0, left_s))
        pursuit.at = ripe_at + (pursuit.rank or 0) * self._ctx.stagger_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _observe(self, pursuit: Pursuit, token: Token, beat: int, lease_s: float, now: Now) -> None:
        """An answer shows the holder's (token, beat): go on watching, or begin again."""
        if not token:
            pursuit.watch = None
            return
        pursuit.watch = watched_on(pursuit.watch, token, beat, lease_s, self._ctx.settings, now.mono)

    def _leave_to_people(self, pursuit: Pursuit, node: str) -> None:
        """Its end is unknown: nobody launches it until somebody says what became of it, or its holder is back."""
        pursuit.phase, pursuit.at, pursuit.nonce = SLEEPING, float("inf"), ""
        pursuit.why = f"unknown: {node} was lost while it ran; say `run resolve`"

    def _again(self, pursuit: Pursuit, in_s: float, why: str, now: Now) -> None:
        pursuit.phase = DUE
        pursuit.why = why
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _wait(self, pursuit: Pursuit, now: Now, in_s: float) -> None:
        """Not eligible now; looked at again then, at every sweep, and when a slot is freed."""
        pursuit.phase = WAITING
        pursuit.nonce = ""
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _be_patient(self, pursuit: Pursuit, in_s: float, now: Now) -> None:
        """Set the time from which even a node that cannot take the run asks for it; it is due in ``in_s`` seconds."""
        job = self._ctx.jobs.get(pursuit.action.job)
        if job is not None:
            pursuit.late_at = now.mono + max(0.0, in_s) + job.start_within_s
