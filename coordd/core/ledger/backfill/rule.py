"""The rule of a backfill: may this fire time run now, for this plan?

The ledger keeps the plan (plan.py), so it survives the command, the daemon and the node. Each node asks for the next
fire time; the ledger opens each of them once, and at most ``at_most`` of them are alive at a time. A backfilled run is
a further attempt of the run of that fire time, so no attempt is launched twice. ``Backfilling`` is a part of the rules
(rules.py). The runner loads this file before it starts a job, so plan.py is imported where a request needs it.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S, Limiting
from coordd.core.ledger.rows import BACKFILLED, OF_BACKFILL, Hold, LedgerTime, Row, is_backfill
from coordd.core.ledger.words import (
    CONFLICT,
    DIFFERS,
    EARLY,
    EXISTS,
    FAILURE,
    FINISHED,
    LIMITED,
    LOST,
    MISSED,
    NEVER,
    OK,
    OUTDATED,
    RECOVERING,
    REJECTED,
    RETRY,
    SUCCESS,
    TERMINAL,
    AttemptNumber,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.backfill.plan import Plan
    from coordd.core.ledger.requests import Fill, PlanBackfill
    from coordd.core.ledger.rows import Store
    from coordd.core.ledger.runner_requests import Registration

# How soon (seconds) a node asks again about a fire time that the schedule may still open.
UNSETTLED_RETRY_S = 5.0


class Backfilling(Limiting):
    """The operations of a backfill. ``store`` is one transaction; ``now`` is the ledger's time."""

    def plan(self, store: "Store", said: "PlanBackfill", now: LedgerTime) -> Answer:
        """Begin a plan: ok, or conflict (``by``: the id of the one that runs). Without ``text``, cancel the plan: ok,
        or finished if none runs.
        """
        from coordd.core.ledger.backfill.plan import CANCELLED, RUNNING, Plan

        key = OF_BACKFILL + said.job
        hold = self._hold(store, key, now)
        known = Plan.read(hold.note) if hold is not None else None
        runs = known is not None and known.state == RUNNING
        if not said.text:
            if hold is None or known is None or not runs:
                return Answer(FINISHED)
            self._end_plan(store, said.job, hold, known, CANCELLED, now)
            return Answer(OK, by=known.id)
        if known is not None and runs:
            return Answer(CONFLICT, by=known.id)
        self._put_hold(store, key, Hold(by=said.by, uid=said.uid, at=now.wall, note=said.text))
        return Answer(OK)

    def fill(self, store: "Store", said: "Fill", now: LedgerTime) -> Answer:
        """Open one fire time for that plan: ok (``attempt``), exists (nothing to do for it), limited (not now), early
        (the schedule may still open it), finished (the plan has ended, ``state``), differs, outdated or recovering.

        ``left`` 0: the plan has no further fire time. ``of`` then tells only the job.
        """
        from coordd.core.ledger.backfill.plan import DONE, RUNNING, STOPPED, Plan

        if now.recovering_s > 0:
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        hold = self._hold(store, OF_BACKFILL + said.of.job, now)
        plan = Plan.read(hold.note) if hold is not None else None
        if hold is None or plan is None or plan.id != said.plan or plan.state != RUNNING:
            return Answer(FINISHED)
        changed = self._count_ended(store, plan)
        if plan.stop_after and plan.failed >= plan.stop_after:
            self._end_plan(store, said.of.job, hold, plan, STOPPED, now)
        elif not said.left and not plan.open:
            self._end_plan(store, said.of.job, hold, plan, DONE, now)
        if plan.state != RUNNING:
            return Answer(FINISHED, state=plan.state)
        if said.left:
            answer = self._fill_one(store, plan, f"{BACKFILLED}{plan.id} by {hold.by}", said, now)
        else:
            answer = Answer(LIMITED, by="its last runs have not ended", in_s=LIMIT_RETRY_S)
        if changed or answer.word == OK:
            hold.note = plan.text()
            self._put_hold(store, OF_BACKFILL + said.of.job, hold)
        return answer

    def _fill_one(self, store: "Store", plan: "Plan", mark: str, said: "Fill", now: LedgerTime) -> Answer:
        of = said.of
        begin = self._identity_from(store)
        if begin == NEVER or of.identity_from != begin:
            return Answer(OUTDATED)
        job = self._job(store, of.job, now)
        if job.digest != of.digest:
            return Answer(DIFFERS)
        if plan.is_past(of.fire_at):
            return Answer(EXISTS)
        row = store.run(of.run)
        if row is not None and (row.by == mark or not is_wanted(row, plan.redo)):
            return Answer(EXISTS, state=row.state)
        if row is None and self._was_a_group(store, of.run):
            return Answer(EXISTS)
        # The ledger's clock may have been set back since the run ended.
        if of.due > now.wall or (row is None and not self._is_over(store, job, of.due, now)):
            return Answer(EARLY, in_s=UNSETTLED_RETRY_S)
        if len(plan.open) >= plan.at_most:
            return Answer(LIMITED, by=f"at most {plan.at_most}", in_s=LIMIT_RETRY_S)
        if self._nothing_starts(store, job, now):
            return Answer(LIMITED, by="suspended", in_s=UNSETTLED_RETRY_S)
        other = self._in_the_way(store, of)
        if other is not None:
            return Answer(LIMITED, by=f"overlap with {other.run}", in_s=LIMIT_RETRY_S)
        opened = self._open_once_more(store, row, of, mark, now)
        plan.cursor = of.fire_at
        plan.opened += 1
        plan.open.append(of.run)
        return Answer(OK, state=RETRY, attempt=opened.attempt)

    @staticmethod
    def _was_a_group(store: "Store", run: str) -> bool:
        """True if the job had `expand` then: the fire time has run as members, or will."""
        from coordd.core.groups.expand import member

        return store.run(member(run, 0)) is not None

    def _in_the_way(self, store: "Store", of: "Registration") -> "Row | None":
        """A run of the job that is active or pending, if the policy does not allow another one beside it."""
        if of.policy.overlap == "allow":
            return None
        others = store.active_runs(of.job)
        return others[0] if others else store.first_waiting(of.job)

    def _open_once_more(self, store: "Store", row: "Row | None", of: "Registration", mark: str, now: LedgerTime) -> Row:
        """The next attempt of that run is due now. The table of moves does not apply: a person asks for it.

        A run that never had a row begins with attempt 1: attempt 0 is that of the fire time itself, which nobody made.
        So the run is never pending, and older versions let it wait where a live run is in its way.
        """
        if row is None:
            row = self._new_row(of, now)
        else:
            store.put_attempt(self._attempt_row(row))
            row.digest, row.args, row.policy = of.digest, of.args, of.policy.pack()
            row.failures = row.relaunches = row.cancel = row.commit_token = 0
        row.state = RETRY
        row.attempt = self._unused(store, row.run, AttemptNumber(row.attempt + 1))
        row.by = mark
        row.reason = "opened by " + mark
        row.not_before = max(row.due_at, now.wall)  # as of a replay: the clock may have been set back since
        store.put_run(row)
        return row

    def _count_ended(self, store: "Store", plan: "Plan") -> bool:
        """Count the runs of the plan that have ended since; True if there are some."""
        left = []
        for run in plan.open:
            row = store.run(run)
            if row is not None and row.state not in TERMINAL:
                left.append(run)
            elif row is None or row.state == SUCCESS:  # retention forgets only what has ended
                plan.succeeded += 1
            else:
                plan.failed += 1
        changed = len(left) < len(plan.open)
        plan.open = left
        return changed

    def _end_plan(self, store: "Store", job: str, hold: Hold, plan: "Plan", state: str, now: LedgerTime) -> None:
        from coordd.core.ledger.backfill.plan import KEPT_S

        plan.state = state
        plan.ended_at = now.wall
        hold.until = now.wall + KEPT_S
        hold.note = plan.text()
        self._put_hold(store, OF_BACKFILL + job, hold)

    def _live_first(self, store: "Store", row: Row, now: LedgerTime) -> "Row | None":
        """The live run that a backfilled one waits for: it is active, or due and waiting."""
        if not is_backfill(row):
            return None
        for other in store.active_runs(row.job):
            if other.run != row.run and not is_backfill(other):
                return other
        first = store.first_waiting(row.job)
        return first if first is not None and first.not_before <= now.wall else None


def is_wanted(row: Row, redo: str) -> bool:
    """True if a plan with this ``redo`` runs that run once more: it has ended, and

    none      nobody ever launched it
    failed    it ended without success, and no person wanted that
    all       in any way
    """
    if row.state not in TERMINAL:
        return False
    if redo == "all":
        return True
    if redo == "failed":
        return row.state in (FAILURE, LOST, MISSED, REJECTED) and not row.cancel
    return row.token == 0 and row.attempt == 0 and row.state in (MISSED, REJECTED)
