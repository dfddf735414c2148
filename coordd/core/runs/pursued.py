"""One pursued run: its phase, what it waits for, and the steps that put it off."""

from __future__ import annotations

from coordd.core.context import Context
from coordd.core.jobs.job import Job
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Settled
from coordd.core.ledger.words import AttemptNumber, Token
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

# The bounds (seconds) of the delay after an unanswered or limited claim; it doubles each time.
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 10.0

# So many of the runs that wait for the same slots ask every time.
FIRST = 4


class Pursuit:
    """One run that this node pursues."""

    __slots__ = (
        "action",
        "alone",
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
        "settled",
        "slots",
        "unanswered",
        "watch",
        "why",
    )

    def __init__(self, action: Action, settled: Settled) -> None:
        self.action = action
        self.attempt = AttemptNumber(action.attempt)
        self.settled = settled  # older fire times that its launch settles
        self.phase = ELECTING
        self.at = 0.0
        self.rank: int | None = None
        self.alone = False  # no node stood in its election
        self.nonce = ""
        self.claimed: Job | None = None  # the definition of the nonce: each repeated claim uses the same one
        self.floor = 0  # the job's highest token when the nonce was drawn: a grant must be above it
        self.late_at = float("inf")  # from then on, even an ineligible node makes sure that the run has a row
        self.unanswered = False  # the last claim had no answer: it may have been granted all the same
        self.backoff_s = BACKOFF_MIN_S
        self.row_at = float("inf")  # since when we know that the ledger has a row for it
        self.slots = ""  # what it waits for, if the last answer was that no slot is free (Line)
        self.limited = False  # the last answer was: not while others run
        self.owner = ""
        self.watch: LeaseWatch | None = None
        self.why = ""


class Phases:
    """The steps that put a run off; pursuit.py builds on them."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def _held(self, pursuit: Pursuit, by: str, left_s: float, now: Now) -> None:
        """Another node holds it: try again when its lease has been watched to its end."""
        pursuit.phase = HELD_BY_OTHER
        pursuit.owner = by
        pursuit.nonce = ""
        pursuit.why = f"held by {by}"
        if pursuit.watch is None:
            pursuit.at = float("inf")  # the next sweep starts a watch
            return
        ripe_at = max(pursuit.watch.ripe_at(), now.mono + max(0.0, left_s))
        pursuit.at = ripe_at + (pursuit.rank or 0) * self._ctx.stagger_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _observe(self, pursuit: Pursuit, token: Token, beat: int, lease_s: float, now: Now) -> None:
        """An answer shows the holder's (token, beat): continue the watch, or start again."""
        if not token:
            pursuit.watch = None
            return
        pursuit.watch = watched_on(pursuit.watch, token, beat, lease_s, self._ctx.settings, now.mono)

    def _leave_to_people(self, pursuit: Pursuit, node: str) -> None:
        """Its end is unknown: no node launches it until a person resolves it, or its holder is back."""
        pursuit.phase, pursuit.at, pursuit.nonce = SLEEPING, float("inf"), ""
        pursuit.why = f"unknown: {node} was lost while it ran; say `run resolve`"

    def _again(self, pursuit: Pursuit, in_s: float, why: str, now: Now) -> None:
        pursuit.phase = DUE
        pursuit.why = why
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _wait(self, pursuit: Pursuit, now: Now, in_s: float) -> None:
        """Not eligible now; checked again then, at every sweep, and when a slot becomes free."""
        pursuit.phase = WAITING
        pursuit.nonce = ""
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _aside(self, pursuit: Pursuit, job: Job, now: Now) -> str:
        """Why this node leaves it to the others for now, because its runs fail (elsewhere.py); "" if it does not."""
        in_time = now.mono < pursuit.late_at - job.start_within_s / 2
        return self._ctx.aside if in_time and not pursuit.alone else ""

    def _be_patient(self, pursuit: Pursuit, in_s: float, now: Now) -> None:
        """Set the time after which even an ineligible node claims; the run is due in ``in_s`` seconds."""
        job = self._ctx.definition_for(pursuit.action)
        if job is not None:
            pursuit.late_at = now.mono + max(0.0, in_s) + job.start_within_s


class Line(Phases):
    """The pursued runs, and who of those that wait for each other asks the ledger again, and when.

    The ledger decides whether a run may start. But hundreds may wait for the slots of one pool, on every node. So only
    the first few of them ask every second, by priority, then by fire time; the others ask seldom, until they are among
    the first.
    """

    __slots__ = ("pursuits",)

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.pursuits: dict[str, Pursuit] = {}

    def run_ended(self, job: str, now: Now) -> None:
        """A run of a job is over: the first run in its queue, and the first that wait for its pool, ask soon."""
        queued = [p for p in self.pursuits.values() if p.limited and p.phase in (DUE, CLAIMING) and p.action.job == job]
        if queued:
            first = min(queued, key=lambda p: (p.action.fire_at, p.action.run))
            first.backoff_s = BACKOFF_MIN_S  # the event may come before the ledger knows the end: then try again soon
            if first.phase == DUE:
                self._again(first, (1 + (first.rank or 0)) * self._ctx.stagger_s, first.why, now)
        known = self._ctx.jobs.get(job)
        if known is not None and known.pool:
            for pursuit in self._first(f"pool {known.pool}"):
                self._sooner(pursuit, (1 + (pursuit.rank or 0)) * self._ctx.stagger_s, now)

    def _limited(self, pursuit: Pursuit, answer: Answer, now: Now) -> None:
        """The ledger said: not now."""
        pursuit.slots = _slots(answer.by, pursuit.action.job)
        if pursuit.slots and pursuit in self._first(pursuit.slots):
            pursuit.backoff_s = BACKOFF_MIN_S
        self._again(pursuit, max(answer.in_s, pursuit.backoff_s), f"{answer.word}: {answer.by}", now)
        pursuit.backoff_s = min(2 * pursuit.backoff_s, BACKOFF_MAX_S)

    def _left_line(self, pursuit: Pursuit, now: Now) -> None:
        """It does not wait for slots any more: others are among the first now."""
        slots, pursuit.slots = pursuit.slots, ""
        for other in self._first(slots) if slots else ():
            self._sooner(other, BACKOFF_MIN_S, now)

    def _first(self, slots: str) -> list[Pursuit]:
        """The first of the runs that wait for these slots."""
        waiting = [p for p in self.pursuits.values() if p.slots == slots and p.phase in (DUE, CLAIMING, WAITING)]
        return sorted(waiting, key=lambda p: (-self._priority(p), p.action.fire_at, p.action.run))[:FIRST]

    def _sooner(self, pursuit: Pursuit, in_s: float, now: Now) -> None:
        pursuit.backoff_s = BACKOFF_MIN_S
        if pursuit.phase in (DUE, WAITING) and pursuit.at > now.mono + in_s:
            self._again(pursuit, in_s, pursuit.why, now)

    def _priority(self, pursuit: Pursuit) -> int:
        return job.priority if (job := self._ctx.definition_for(pursuit.action)) else 0


def _slots(by: str, job: str) -> str:
    """The slots that an answer names: those of a pool, or of a job's concurrency; "" if it names none."""
    kind = by.partition(":")[0]
    if kind.startswith("pool "):
        return kind
    return f"job {job}" if kind == "concurrency" else ""
