"""The breaker of a job: the ends of runs open and close it, and a claim is judged by it.

    closed --enough runs in a row ended as the job's breaker counts--> open
    open --its time is over: the next run that is granted tries--> half_open
    half_open --that run succeeded--> closed
    half_open --that run failed, was lost, or nobody knows its end--> open, for longer if the job says so
    half_open --that run was cancelled, revoked or came too late: it proves nothing--> open, and the next run tries
    any --a person resets it--> closed

It counts runs, not attempts: each end of a run is counted in the same step that ends the run, so no end is counted
twice or lost, and a run's further attempts are never stopped. Half-open is one run: nobody else starts until it has
ended. A run whose end nobody knows (``unknown``), or that a ledger which went back has forgotten, counts as lost. So no
breaker stays half-open. While it is open, the ends of runs that were granted before count nothing.

``Breaking`` is a part of the rules (steps.py). The runner loads this file before it starts a job, so text.py is
imported only where a job has a breaker.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import Fires
from coordd.core.ledger.rows import OF_BREAKER, OF_ISOLATED, Hold, LedgerTime, Row, due_in, is_backfill
from coordd.core.ledger.words import (
    BREAKER,
    FAILURE,
    LIMITED,
    LOST,
    RECEIVED,
    REJECTED,
    RETRY,
    STARTED,
    SUCCESS,
    Policy,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.breaker.text import Rule, State
    from coordd.core.ledger.rows import Store

# How soon (seconds) a node asks again about a run that waits for its job's breaker.
BREAKER_RETRY_S = 1.0

# A run in one of these states may still tell whether the job works again.
TRYING = (RECEIVED, STARTED, RETRY)


class Breaking(Fires):
    """Breakers of jobs. ``store`` is one transaction; ``now`` is the ledger's time."""

    # ---- the ends of runs

    def _end_counts(self, store: "Store", row: Row, now: LedgerTime) -> None:
        """The run has ended, after an attempt: what that means for its job's breaker. Success is the usual case."""
        if BREAKER not in row.policy:
            return
        from coordd.core.ledger.breaker import text

        rule = text.rule_in(Policy.unpack(row.policy).limits)
        kept = self._breaker(store, row.job)
        if rule is None or kept.state == text.OPEN:
            return
        tries = kept.state == text.HALF_OPEN
        if tries and kept.probe != row.run:
            return
        if row.state not in (SUCCESS, FAILURE, LOST):
            if tries:  # it proves nothing: the next one tries
                kept.state, kept.probe, kept.since, kept.retry_at = text.OPEN, text.NOBODY, now.wall, now.wall
                self._put_breaker(store, row.job, kept, now)
            return
        groups = rule.groups_of(row.state, row.exit_code, row.reason)
        if row.state == SUCCESS or (not groups and not (tries and row.state == LOST)):
            self._put_breaker(store, row.job, None, now)
            return
        kept.last = row.run
        full = kept.count(rule, groups, int(now.wall * 1000))
        if tries or full:
            self._trip(kept, rule, now)
        self._put_breaker(store, row.job, kept, now)

    def _end_is_unknown(self, store: "Store", row: Row, now: LedgerTime) -> None:
        """A person has to look at the run: it must not keep its job's breaker half-open until then."""
        if BREAKER not in row.policy:
            return
        from coordd.core.ledger.breaker import text

        rule = text.rule_in(Policy.unpack(row.policy).limits)
        kept = self._breaker(store, row.job)
        if rule is not None and kept.state == text.HALF_OPEN and kept.probe == row.run:
            kept.last = row.run
            self._trip(kept, rule, now)
            self._put_breaker(store, row.job, kept, now)

    def _trip(self, kept: "State", rule: "Rule", now: LedgerTime) -> None:
        from coordd.core.ledger.breaker import text

        kept.state, kept.probe = text.OPEN, text.NOBODY
        kept.trips += 1
        kept.prevented = 0
        kept.since = now.wall
        kept.retry_at = now.wall + rule.stays_open_s(kept.trips)

    # ---- claims

    def _broken(self, store: "Store", row: Row, policy: Policy, now: LedgerTime) -> "Answer | None":
        """The answer to a claim that the job's breaker stops; None if it does not.

        A run that was admitted goes on. One that a backfill opened waits: its plan would take a rejection for its end.
        """
        if BREAKER not in policy.limits or row.state == RECEIVED or (row.state == RETRY and not is_backfill(row)):
            return None
        from coordd.core.ledger.breaker import text

        rule = text.rule_in(policy.limits)
        if rule is None:
            return None
        kept = self._breaker(store, row.job)
        at = max(now.wall, row.not_before)
        isolated = self._hold(store, OF_ISOLATED + row.job, now) is not None
        if kept.state == text.HALF_OPEN and kept.probe != row.run:
            tries = store.run(kept.probe)
            if tries is None or tries.state not in TRYING:  # a ledger that went back has forgotten it
                kept.last = kept.probe
                self._trip(kept, rule, now)
                self._put_breaker(store, row.job, kept, now)
        shut = kept.state == text.OPEN and at < kept.retry_at
        shut = shut or (kept.state == text.HALF_OPEN and kept.probe != row.run)
        if not shut and not isolated:
            return None
        ahead_s = due_in(row, now)
        if ahead_s > 0:  # claimed ahead: it may be closed by then, and is judged only then
            return Answer(LIMITED, by=text.PREVENTED_BY, in_s=min(ahead_s, BREAKER_RETRY_S))
        stops = isolated or rule.enforce
        if row.state == RETRY and stops:
            return Answer(LIMITED, by=text.PREVENTED_BY, in_s=BREAKER_RETRY_S)
        if shut:
            kept.prevented += 1
            self._put_breaker(store, row.job, kept, now)
        if not stops:
            return None
        self._end(store, row, FAILURE if rule.when_open == text.FAIL else REJECTED, text.PREVENTED_BY, now)
        return self._ended(row)

    def _tries(self, store: "Store", row: Row, policy: Policy, now: LedgerTime) -> None:
        """The run is granted: if its job's breaker was open, it is the one that tries."""
        if BREAKER not in policy.limits or row.state == RECEIVED or (row.state == RETRY and not is_backfill(row)):
            return
        from coordd.core.ledger.breaker import text

        kept = self._breaker(store, row.job)
        if kept.state == text.OPEN and kept.retry_at <= max(now.wall, row.not_before):
            kept.state, kept.probe, kept.since = text.HALF_OPEN, row.run, now.wall
            self._put_breaker(store, row.job, kept, now)

    # ---- its row

    def _breaker(self, store: "Store", job: str) -> "State":
        from coordd.core.ledger.breaker.text import State

        return State.read(self._note(store, OF_BREAKER + job))

    def _put_breaker(self, store: "Store", job: str, kept: "State | None", now: LedgerTime) -> None:
        """Write it; None: it is closed, and nothing has failed."""
        hold = Hold(by="", at=now.wall, note=kept.text()) if kept is not None else None
        self._put_hold(store, OF_BREAKER + job, hold)

    if TYPE_CHECKING:

        def _end(self, store: "Store", row: Row, state: str, reason: str, now: LedgerTime) -> None: ...
        def _ended(self, row: Row) -> Answer: ...
