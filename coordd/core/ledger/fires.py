"""Fire times without a row: what was decided about them, in the order of time.

A fire time ends in exactly one decision. If its run has a row, the row tells it. All others are settled by stretches:
each move of a job's horizon is recorded with one word, from where the horizon was to where it went. So two stretches
never overlap, a repeated request records nothing, and it does not matter which node asked. ``settled`` reads them.

The runner loads this file before it starts a job, so it imports only its neighbours.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rows import JobRow, LedgerTime, is_backfill, is_overdue
from coordd.core.ledger.standing import FIRST_HEARD, Holds
from coordd.core.ledger.words import (
    ABSENT,
    DIFFERS,
    EARLY,
    FINISHED,
    NEVER,
    OK,
    OPENED,
    OUTDATED,
    RECOVERING,
    SETTLED,
    Policy,
    Token,
)
from coordd.errors import BadRowError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Activate, PassOver, Settled
    from coordd.core.ledger.rows import Activation, Row, Store
    from coordd.core.ledger.runner_requests import Registration

# The words of a stretch.
COALESCED = "coalesced"  # the next run with a row stands for these fire times
SKIPPED = "skipped"  # misfire = skip
GIVEN_UP = "missed"  # no node launched them within start_within
SUSPENDED = "suspended"  # start_within passed while the job was suspended
REDEFINED = "changed"  # another definition was activated before a node launched them
STRETCH_WORDS = (COALESCED, SKIPPED, GIVEN_UP, SUSPENDED, REDEFINED)

# What held up a run that was missed, in its reason; views tell `suspended` and `limited` by it.
HELD_BY_SUSPENSION = "; its job is suspended"
HELD_BY_OTHERS = "; it waited for "

# How many stretches of one job the ledger keeps. Equal neighbours are one stretch.
STRETCHES_MAX = 100

# The ledger's own values that have the stretches of a job, and the end of its last success, begin so.
FIRES = "fires:"
SUCCEEDED = "succeeded:"


class Stretch:
    """The fire times that are due after ``after``, up to ``upto`` (Unix seconds), and have no row: one decision."""

    __slots__ = ("after", "decision", "upto")

    def __init__(self, after: float, upto: float, decision: str) -> None:
        self.after = after
        self.upto = upto
        self.decision = decision


def stretches(text: str) -> "list[Stretch]":
    """The stretches that a ledger keeps as text, oldest first. A damaged line is left out: nothing is known of it."""
    found = []
    for line in text.splitlines():
        try:
            after, upto, decision = line.split(" ")
            found.append(Stretch(float(after), float(upto), decision))
        except ValueError:
            continue
    return found


def as_text(kept: "list[Stretch]") -> str:
    """The inverse of ``stretches``."""
    return "\n".join([f"{one.after!r} {one.upto!r} {one.decision}" for one in kept])


class Decided:
    """What a ledger keeps about the fire times of a job: its horizon, the stretches and the remembered definitions,
    both oldest first.
    """

    __slots__ = ("activations", "horizon", "stretches")

    def __init__(self, horizon: float, stretches: "list[Stretch]", activations: "list[Activation]") -> None:
        self.horizon = horizon
        self.stretches = stretches
        self.activations = activations


class Fires(Holds):
    """Records what becomes of fire times without a row. ``store`` is one transaction; ``now`` is the ledger's time."""

    def activate(self, store: "Store", said: "Activate", now: LedgerTime) -> Answer:
        """As in ``Standing``. What the earlier definition had to launch up to now, and nobody launched, is settled.

        If the earlier one was dated by a clock that was ahead, its fire times after this instant are not settled.
        A definition of an earlier revision than the one in force is not restored: that one has withdrawn the job, or
        has another definition of it.
        """
        if said.how == "restored" and 0 < said.revision < self._revision(store, now).number:
            known = self._job(store, said.job, now)
            if known.digest != said.digest:
                return Answer(DIFFERS, token=known.sequence)
        before = self._known(store, said.job)
        answer = super().activate(store, said, now)
        job = self._known(store, said.job)
        if answer.word != OK or before is None or job is None or job.sequence == before.sequence:
            return answer
        if before.digest and said.how != "restored" and job.counts_from > before.counts_from:
            self._settle_to(store, job, job.counts_from, REDEFINED)
        self._clock_is_right(store, job)  # the clock that dated the earlier one may have been ahead
        return answer

    def _told(self, store: "Store", name: str) -> "JobRow | None":
        """As in ``Standing``, with what is recorded about its fire times."""
        row = super()._told(store, name)
        if row is not None:
            row.fires = store.meta(FIRES + name)
            row.succeeded_at = float(store.meta(SUCCEEDED + name) or 0.0)
            row.first_heard = float(store.meta(FIRST_HEARD + name) or 0.0)
        return row

    def _settle_to(
        self, store: "Store", job: JobRow, upto: float, decision: str, after: float = -1.0, count: int = -1
    ) -> None:
        """The job's fire times up to ``upto`` get no row any more, and those without one have this decision.

        ``count``: how many fire times are due after ``after``, up to ``upto``, as the caller knows its schedule. If all
        of them have a row, nothing needs a record; but rows from before the definition's activation may be of other
        fire times. The caller moves the horizon.
        """
        kept = stretches(store.meta(FIRES + job.job))
        last = kept[-1] if kept else None
        begin = max(job.horizon, last.upto) if last is not None else job.horizon
        if upto <= begin or not decision:
            return
        adjoins = last is not None and last.upto == begin
        own = count == 0 or job.activated_at <= begin
        if after == begin and own and 0 <= count <= store.count_fired(job.job, begin, upto):
            if not adjoins:
                return
        elif not adjoins or (last is not None and last.decision != decision):
            kept.append(Stretch(begin, upto, decision))
        kept[-1].upto = upto
        store.put_meta(FIRES + job.job, as_text(kept[-STRETCHES_MAX:]))

    def _clock_is_right(self, store: "Store", job: JobRow) -> None:
        kept = stretches(store.meta(FIRES + job.job))
        end = max(job.horizon, job.counts_from)
        if kept and kept[-1].upto > end:
            kept[-1].upto = end
            store.put_meta(FIRES + job.job, as_text([one for one in kept if one.after < one.upto]))

    def _forget_fires(self, store: "Store", job: str, upto: float) -> None:
        """Retention has forgotten a run that was due then: nobody can tell rows from stretches before that. The horizon
        settles it from now on, whatever clock has set that.
        """
        if store.meta(FIRST_HEARD + job):
            store.put_meta(FIRST_HEARD + job, "")
        text = store.meta(FIRES + job)
        kept = [one for one in stretches(text) if one.upto > upto]
        if kept:
            kept[0].after = max(kept[0].after, upto)
        if text:
            store.put_meta(FIRES + job, as_text(kept))

    def _decided(self, store: "Store", name: str) -> Decided:
        job = self._known(store, name)
        kept = stretches(store.meta(FIRES + name))
        return Decided(job.horizon if job is not None else 0.0, kept, store.activations(name))

    def _settle(self, store: "Store", job: JobRow, settled: "Settled", most: float) -> None:
        """Settle these fire times, up to ``most``; the caller writes the job's row."""
        upto = min(settled.upto, most)
        self._settle_to(
            store, job, upto, settled.decision, settled.after, settled.count if upto == settled.upto else -1
        )
        job.horizon = max(job.horizon, upto)

    def pass_over(self, store: "Store", said: "PassOver", now: LedgerTime) -> Answer:
        """Fire times that no node launches any more: ok, finished (settled already), early (not overdue), differs,
        outdated or recovering.
        """
        if now.recovering_s > 0:
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        begin = self._identity_from(store)
        if begin == NEVER or said.identity_from != begin:
            return Answer(OUTDATED)
        job = self._job(store, said.job, now)
        if job.digest != said.digest:
            return Answer(DIFFERS)
        ahead_s = said.settled.upto + said.start_within_s - now.wall
        if ahead_s >= 0:
            return Answer(EARLY, in_s=ahead_s)
        if said.settled.upto <= job.horizon:
            return Answer(FINISHED, state=SETTLED)
        self._settle(store, job, said.settled, said.settled.upto)
        self._stand(store, job)
        return Answer(OK)

    def _is_given_up(
        self,
        store: "Store",
        job: JobRow,
        row: "Row",
        of: "Registration",
        now: LedgerTime,
        settled: "Settled | None" = None,
    ) -> bool:
        """True if a scheduled run without a row is overdue, and its job suspended: its fire time ends without a row.

        Otherwise each fire time of a suspended job would leave a row. A run that its parents have opened, or that was
        missed for them, keeps its row: it says so, and no schedule tells of it.
        """
        if not of.scheduled or not is_overdue(row, now) or now.recovering_s > 0:
            return False
        if of.by.startswith((OPENED, ABSENT)):
            return False
        if not self._nothing_starts(store, job, now):
            return False
        if settled is not None:
            self._settle(store, job, settled, row.due_at)
        self._settle_to(store, job, row.due_at, SUSPENDED)
        job.horizon = max(job.horizon, row.due_at)
        self._stand(store, job)
        return True

    def _stand(self, store: "Store", job: JobRow) -> None:
        """A horizon that settles something is not moved back when the clock was ahead (_swept_job)."""
        job.fence = Token(max(job.fence, 1))
        self._put_job(store, job)

    def _was_held_up(self, store: "Store", row: "Row", now: LedgerTime) -> str:
        """What held up a run that is missed: its suspended job, or a run that it waited for."""
        try:
            job = self._known(store, row.job)
        except BadRowError:
            job = None  # it ends all the same
        if job is not None and self._nothing_starts(store, job, now):
            return HELD_BY_SUSPENSION
        overlap = Policy.unpack(row.policy).overlap
        if row.attempt == 0 and overlap != "allow":
            for other in store.active_runs(row.job):
                if other.run != row.run and (overlap in ("queue", "replace") or is_backfill(other)):
                    return HELD_BY_OTHERS + other.run
        return ""
