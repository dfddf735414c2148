"""The ledger's rules: who may launch what, and when. Every adapter follows this file.

An election only orders the nodes; the ledger decides. Nothing here depends on an election, on gossip or on a node's
wall clock. One row per run, one attempt at a time; each operation is one atomic step over a ``Store`` and
answers in data. Each is idempotent for the same (token, nonce): after a lost reply, the caller repeats the request.

An attempt goes    (absent) -> RECEIVED -> STARTED -> SUCCESS | FAILURE | REVOKED | LOST
                                           STARTED -> UNKNOWN -> ...         (on_lost = hold)
A STARTED attempt is never granted again. It ends, and the *next* attempt is granted: that is S1, at most one
launch per (run, attempt), and it assumes no clock at all.

A ledger that went back (a failover that lost writes, an old backup) is in quarantine for a while
(``LedgerTime.recovering_s``): it grants and launches nothing. It asks the holder of an unknown grant to restore it
(RECOVERING), and accepts that through ``restore``.

Rows are in rows.py, requests in requests.py and runner_requests.py, answers in answers.py and open_answer.py, single
steps in steps.py, operations for people in people.py, those of a sweep in feed/rule.py. The runner of a SQLite ledger
loads this file before it starts a job, so it imports only its neighbours and the errors, and no requests but the
runner's.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.feed.rule import Sweeping
from coordd.core.ledger.people import People
from coordd.core.ledger.rerun.rule import Rerunning
from coordd.core.ledger.revision.rule import Adopting
from coordd.core.ledger.rows import (
    OF_JOB,
    JobRow,
    LedgerTime,
    Row,
    due_in,
    host_of,
    is_backfill,
    is_overdue,
    key_of_node,
)
from coordd.core.ledger.runner_requests import Commit, Gate, Renew, Report, Request, Restore
from coordd.core.ledger.steps import HOLDING, MOVES, REPORTED
from coordd.core.ledger.words import (
    ABSENT,
    CANCEL,
    CLAIM_AHEAD_S,
    CONFLICT,
    DIFFERS,
    EARLY,
    EXISTS,
    FAILURE,
    FINISHED,
    GATE_AHEAD_S,
    LIMITED,
    LOST,
    MISSED,
    OK,
    PENDING,
    RECEIVED,
    RECOVERING,
    REJECTED,
    RETRY,
    REVOKED,
    SETTLED,
    STALE,
    STARTED,
    SUCCESS,
    TERMINAL,
    UNKNOWN,
    UNRECORDED,
    Policy,
)
from coordd.errors import LocalProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from coordd.core.ledger.requests import Claim, Prune, Register, Settle
    from coordd.core.ledger.rows import Store

    A = TypeVar("A")

__all__ = ["MOVES", "OVERLAP_RETRY_S", "SUSPENDED_RETRY_S", "Rules"]

# How soon (seconds) a node asks again about a suspended job, and about a job that waits for another run's end.
SUSPENDED_RETRY_S = 5.0
OVERLAP_RETRY_S = 1.0


class Rules(People, Rerunning, Adopting, Sweeping):
    """The operations, each named by its request's word (requests.py). ``store`` is one transaction; ``now`` is the
    ledger's time, never a client's.
    """

    def answer(self, store: "Store", request: "Request[A]", now: LedgerTime) -> "A":
        """Perform one operation. Raises LocalProtocolError for an operation that only another kind of ledger has."""
        rule: Callable[[Store, Request[A], LedgerTime], A] | None = getattr(self, request.op, None)
        if rule is None:
            raise LocalProtocolError(f"the ledger has no operation {request.op!r}")
        if not now.epoch:  # it cannot go back
            return rule(store, request, now)
        answer: Any = rule(store, request, self._lived(store, now))
        answer.epoch, answer.grants = now.epoch, self._grants(store)
        return answer  # type: ignore[no-any-return]  # each rule answers as its request says

    # ---- before a launch

    def register(self, store: "Store", said: "Register", now: LedgerTime) -> Answer:
        """Write PENDING before a trigger is answered: ok, exists, or conflict (same id, other digest)."""
        of = said.of
        row = store.run(of.run)
        if row is None:
            job = self._known(store, of.job)
            if of.scheduled and self._settled(job, of.due, now):
                return Answer(EXISTS, state=SETTLED)
            job = job or self._job(store, of.job, now)
            refused = self._opens(store, job, of, now)
            if refused is not None:
                return refused
            row = self._new_row(of, now)
            if self._is_given_up(store, job, row, of, now):
                return Answer(EXISTS, state=SETTLED)
            store.put_run(row)
            return Answer(OK, state=PENDING)
        known = row.digest or row.state != REVOKED  # otherwise it was revoked by its id alone, before any trigger
        if known and (row.digest != of.digest or row.args != of.args):
            return Answer(CONFLICT, state=row.state)
        return Answer(EXISTS, state=row.state)

    def claim(self, store: "Store", claim: "Claim", now: LedgerTime) -> Answer:
        """Grant one attempt to one node, or say why not. The order of the checks is the contract."""
        of = claim.of
        row = store.run(of.run)
        if now.recovering_s > 0:
            if row is not None and row.attempt == claim.attempt and self._is_repeat(row, claim):
                return self._granted_again(store, row, claim, now)
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        job = self._job(store, of.job, now)
        if row is None:
            if claim.attempt != 0 or (of.scheduled and self._settled(job, of.due, now)):
                return Answer(FINISHED, state=SETTLED)
            if not claim.opens:
                return Answer(UNRECORDED)
            refused = self._opens(store, job, of, now)
            if refused is not None:
                return refused
            row = self._new_row(of, now)
            if self._is_given_up(store, job, row, of, now, claim.settled):
                return Answer(FINISHED, state=SETTLED)
        if row.state in TERMINAL:
            return Answer(FINISHED, state=row.state, attempt=row.attempt)
        if claim.attempt < row.attempt:
            return Answer(LOST, attempt=row.attempt, in_s=due_in(row, now))
        if claim.attempt > row.attempt:
            return self._held(row, now)
        if row.state in (PENDING, RETRY):
            return self._claim_due(store, job, row, claim, now)
        if row.state == RECEIVED:
            if self._is_repeat(row, claim):
                return self._granted_again(store, row, claim, now)
            if self._lapsed(row, claim.watched, now):
                # never launched: the same checks as for a first claim
                return self._claim_due(store, job, row, claim, now)
            return self._held(row, now)
        if row.state == STARTED and self._lapsed(row, claim.watched, now):
            return self._lease_lost(store, row, now)
        return self._held(row, now)

    def _lease_lost(self, store: "Store", row: Row, now: LedgerTime) -> Answer:
        """A started attempt without a living holder."""
        reason = f"its lease lapsed; last held by {row.node}"
        ended = self._ended_as(row, reason)
        self._lose(store, row, reason, now)
        if row.state == RETRY:
            return Answer(LOST, attempt=row.attempt, in_s=due_in(row, now), ended=ended)
        if row.state in TERMINAL:
            return Answer(FINISHED, state=row.state, attempt=row.attempt, ended=ended)
        return self._held(row, now)

    def settle(self, store: "Store", said: "Settle", now: LedgerTime) -> Answer:
        """End a run that nobody may launch any more, or whose holder is gone; any node may ask, even one without the
        job.

        It grants nothing. It judges by the row alone: its own policy, its own lease.
        """
        row = store.run(said.run)
        if row is None or row.state in TERMINAL:
            return Answer(FINISHED, state=row.state if row is not None else SETTLED)
        if now.recovering_s > 0:
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        if row.attempt != said.attempt:
            return self._held(row, now)
        nobodys = row.state in (RECEIVED, STARTED) and self._lapsed(row, said.watched, now)
        if row.state == STARTED and nobodys:
            return self._lease_lost(store, row, now)
        if (row.state in (PENDING, RETRY) or nobodys) and is_overdue(row, now):
            return self._missed(store, row, row.digest, now)
        return self._held(row, now)

    def _missed(self, store: "Store", row: Row, digest: str, now: LedgerTime) -> Answer:
        """No node could launch it in time; ``digest`` is the caller's definition. A run whose parents did not all come
        was to start never: the one who registered it said which.
        """
        if row.by.startswith(ABSENT):
            self._end(store, row, MISSED, row.by, now)
            return self._ended(row)
        within_s, late_s = Policy.unpack(row.policy).start_within_s, now.wall - row.not_before
        why = f"no node could launch it within {within_s:g} s of its time ({late_s:.0f} s late)"
        if row.digest != digest:
            why += "; the job's definition has changed since"
        self._end(store, row, MISSED, why + self._was_held_up(store, row, now), now)
        return self._ended(row)

    def _claim_due(self, store: "Store", job: JobRow, row: Row, claim: "Claim", now: LedgerTime) -> Answer:
        """A row that waits for a launch: may this node start it now?"""
        policy = claim.of.policy
        if row.cancel:
            self._end(store, row, REVOKED, row.reason or "cancelled before it started", now)
            return self._ended(row)
        if is_overdue(row, now):
            return self._missed(store, row, claim.of.digest, now)
        if row.digest != claim.of.digest:
            return Answer(DIFFERS, state=row.state)
        ahead_s = due_in(row, now)
        if ahead_s > CLAIM_AHEAD_S:
            return Answer(EARLY, in_s=ahead_s - CLAIM_AHEAD_S)
        if self._nothing_starts(store, job, now):
            return Answer(LIMITED, by="suspended", in_s=SUSPENDED_RETRY_S)
        if self._hold(store, key_of_node(claim.node), now) is not None:
            return Answer(LIMITED, by="drained", in_s=SUSPENDED_RETRY_S)
        newcomer_s = self._newcomer_s(store, host_of(claim.node), now)
        if newcomer_s > 0:
            return Answer(LIMITED, by="newcomer", in_s=newcomer_s)
        blocked = self._broken(store, row, policy, now)
        if blocked is None:
            blocked = self._overlap(store, row, policy, now)
        if blocked is None:
            blocked = self._limited(store, row, policy.limits, now)
        if blocked is not None:
            return blocked
        self._started(store, row, policy.limits, now)
        self._tries(store, row, policy, now)
        if claim.of.scheduled:
            # Not past the run itself: its later fire times are not known yet.
            self._settle(store, job, claim.settled, row.due_at)
        return self._grant(store, job, row, claim, now)

    def _overlap(self, store: "Store", row: Row, policy: Policy, now: LedgerTime) -> "Answer | None":
        """Applies the job's overlap policy to its other runs; None if nothing prevents the launch."""
        if policy.overlap == "allow" or row.state == RECEIVED:
            return None  # it was admitted
        if row.attempt > 0:  # a run that was admitted keeps its place
            return self._admitted_twice(store, row, now)
        first = store.first_waiting(row.job) if policy.overlap == "queue" else None
        if first is not None and (first.not_before, first.run) < (row.not_before, row.run):
            if self._overfull(store, row, policy.limits, now):
                return self._ended(row)
            return self._waits(store, row, f"queue: {first.run} is first", OVERLAP_RETRY_S)
        others = [other for other in store.active_runs(row.job) if other.run != row.run]
        # A backfilled run that has not begun gives way; one that has begun is waited for.
        others = [other for other in others if other.state != RETRY or not is_backfill(other)]
        if not others:
            return None
        live = [other for other in others if not is_backfill(other)]
        other = (live or others)[0]
        ahead_s = due_in(row, now)
        if ahead_s > 0:  # claimed ahead: other runs may be over by then, and are checked only then
            return Answer(LIMITED, by=f"overlap with {other.run}", in_s=min(ahead_s, OVERLAP_RETRY_S))
        if policy.overlap == "forbid" and live:
            self._end(store, row, REJECTED, f"overlap: {other.run} is {other.state} on {other.node or 'no node'}", now)
            return self._ended(row)
        if policy.overlap == "queue" and self._overfull(store, row, policy.limits, now):
            return self._ended(row)
        if policy.overlap == "replace":
            newer = next((one for one in live if one.due_at > row.due_at), None)
            if newer is not None:  # several wait for their turn, and are claimed in any order
                self._end(store, row, REVOKED, f"replaced by {newer.run}", now)
                return self._ended(row)
            for old in others:
                if not old.cancel:
                    old.cancel = 1
                    old.reason = f"replaced by {row.run}"
                    if old.state == RETRY:
                        self._end(store, old, REVOKED, old.reason, now)
                    else:
                        store.put_run(old)
        return self._waits(store, row, f"overlap with {other.run}", OVERLAP_RETRY_S)

    def _admitted_twice(self, store: "Store", row: Row, now: LedgerTime) -> "Answer | None":
        """A ledger that went back may have admitted another run meanwhile: a retry waits until that one is over. A
        backfilled run, which begins as a retry, waits for live runs too.
        """
        live = self._live_first(store, row, now)
        if live is not None:
            return Answer(LIMITED, by=f"overlap with {live.run}", in_s=OVERLAP_RETRY_S)
        for other in store.active_runs(row.job):
            if other.run != row.run and other.state != RETRY:
                return Answer(LIMITED, by=f"overlap with {other.run}", in_s=OVERLAP_RETRY_S)
        return None

    def gate(self, store: "Store", said: Gate, now: LedgerTime) -> Answer:
        """RECEIVED -> STARTED: the final check before exec. A repeat with the same token and nonce is allowed.

        It may open a little ahead of the fire time. Then ``in_s`` is what is left until it, and the run has begun: it
        is too late to revoke it.
        """
        row = self._mine(store, said.grant)
        if row is None:
            return self._unknown(store, said.grant, STALE, now)
        if row.cancel:
            if row.state == RECEIVED:
                self._end(store, row, REVOKED, row.reason or "cancelled before it started", now)
            return Answer(REVOKED)
        if row.state not in (RECEIVED, STARTED):
            return Answer(REVOKED if row.state == REVOKED else STALE)
        ahead_s = due_in(row, now)
        # Even if a witness restored it as started: it knew only of the grant.
        if ahead_s > max(0.0, min(GATE_AHEAD_S, said.ahead_s)):
            return Answer(EARLY, in_s=ahead_s)
        if row.state == RECEIVED and self._past(row, now):
            return Answer(STALE)
        if now.recovering_s > 0:
            # The holder of a later, forgotten grant has until then to restore it. A started row waits too: a witness
            # that knew only of the grant may have restored it so.
            return Answer(EARLY, in_s=now.recovering_s)
        if row.state == STARTED:
            return Answer(OK, left_s=self._left(row, now), in_s=ahead_s)
        if self._nothing_starts(store, self._job(store, row.job, now), now):
            return Answer(EARLY, in_s=SUSPENDED_RETRY_S)
        self._move(row, STARTED)
        row.started_at = now.wall + ahead_s
        row.beat += 1
        store.put_run(row)
        self._record(store, row)
        return Answer(OK, left_s=self._left(row, now), in_s=ahead_s)

    # ---- while it runs

    def renew(self, store: "Store", said: Renew, now: LedgerTime) -> Answer:
        """Extend the lease: ok(left_s), cancel (with left_s: a cancelled run still needs time to end), or lost.

        ``launched``: the attempt has passed the gate, which a ledger that went back may have forgotten.
        """
        row = self._mine(store, said.grant)
        if row is None:
            return self._unknown(store, said.grant, LOST, now)
        if row.state not in HOLDING:
            return Answer(LOST)
        if row.state == UNKNOWN:
            self._move(row, STARTED)  # the holder is back, and nothing was granted meanwhile
            if not row.cancel:
                row.reason = ""
            self._record(store, row)
        elif row.state == RECEIVED and said.launched:
            self._move(row, STARTED)
            row.started_at = now.wall
            self._record(store, row)
        row.lease = said.lease_s
        row.until = now.lease + said.lease_s
        row.boot = now.boot
        row.beat += 1
        if said.application_id:
            row.application_id = said.application_id
        store.put_run(row)
        return Answer(CANCEL if row.cancel else OK, left_s=said.lease_s)

    def report(self, store: "Store", said: Report, now: LedgerTime) -> Answer:
        """The end of an attempt: ok or stale. States only move forward.

        ``state`` is success, failure, revoked, lost (it may have run) or retry (it certainly never started). ``final``
        forbids another try after a failure (the job's ``never_on``). With ok, ``left_s`` is the rest of a quarantine:
        until then the ledger may go back once more, so the runner stays to repeat its report.
        """
        taken = Answer(OK, left_s=now.whole_s)
        state, reason = said.state, said.reason
        row = self._mine(store, said.grant)
        if row is None or row.state not in HOLDING:
            past = store.attempt(said.grant.run, said.grant.attempt)
            if past is not None and self._is_of(past, said.grant) and past.state in REPORTED[state]:
                return taken
            return self._unknown(store, said.grant, STALE, now)
        if row.state == RECEIVED and (state in (SUCCESS, FAILURE) or (state == LOST and now.whole_s > 0)):
            self._move(row, STARTED)  # it had passed the gate, or may have: a ledger that went back has forgotten it
        if said.application_id:
            row.application_id = said.application_id
        row.exit_code = said.exit_code
        policy = Policy.unpack(row.policy)
        if state == FAILURE:
            row.failures += 1
            if not said.final and not row.cancel and row.failures < policy.attempts:
                self._again(store, row, FAILURE, policy.retry_after(row.failures, row.run, row.attempt), reason, now)
                return taken
        elif state == LOST:
            self._lose(store, row, reason, now)
            return taken
        elif state == RETRY:
            row.relaunches += 1
            self._relaunch(store, row, policy, reason, now)
            return taken
        if state == REVOKED and row.cancel:
            reason = row.reason or reason  # by whom, or why
        self._end(store, row, state, reason, now)
        return taken

    def commit(self, store: "Store", said: Commit, now: LedgerTime) -> Answer:
        """Publish under the token: ok once per run, for the attempt that holds it; otherwise stale."""
        row = self._mine(store, said.grant)
        if row is None:
            return self._unknown(store, said.grant, STALE, now)
        if row.state != STARTED or row.commit_token not in (0, said.grant.token):
            return Answer(STALE)
        row.commit_token = said.grant.token
        store.put_run(row)
        return Answer(OK, left_s=self._left(row, now))

    # ---- after the ledger went back

    def restore(self, store: "Store", said: Restore, now: LedgerTime) -> Answer:
        """A witness restores a forgotten attempt: ok, or stale (no quarantine, or the ledger knows better).

        ``state`` is received or started (it gets a whole lease), or how the attempt ended (success, failure, revoked,
        lost), which then counts as if it were reported now. Newer or ended states are never moved back; a repeat is ok.
        The job's horizon stays: the row itself settles its fire time, and older ones may still be due.
        """
        if now.whole_s <= 0:
            return Answer(STALE)
        of, grant, state = said.of, said.grant, said.state
        job = self._job(store, of.job, now)
        if grant.token > job.fence:
            job.fence = grant.token
            self._put_job(store, job)
        row = store.run(of.run)
        if self._has_forgotten(store, row, grant):
            self._shows_loss(store, grant, now)
        if row is None or self._replaces(store, said, row):
            row = self._put_back(store, row, said, now)
            self._started(store, row, of.policy.limits, now)
        elif not self._is_of(row, grant):
            past = store.attempt(of.run, grant.attempt)
            if past is None:
                self._was_given(store, row, said, now)
            known = past is not None and self._is_of(past, grant)
            return Answer(OK if known else STALE, state=row.state)
        elif row.state == RECEIVED and state != RECEIVED:
            row = self._launched_after_all(store, row, said.lease_s, now)
        if state in REPORTED and row.state in HOLDING:
            ended = Report(
                grant=grant,
                state=state,
                exit_code=said.exit_code,
                reason=said.reason,
                application_id=said.application_id,
                final=said.final,
            )
            self.report(store, ended, now)
            row = store.run(of.run)
            assert row is not None
        return Answer(OK, left_s=self._left(row, now) if row.state in HOLDING else 0.0, state=row.state)

    # ---- the ledger as a whole

    def prune(self, store: "Store", said: "Prune", now: LedgerTime) -> Answer:
        """Forget runs that ended longer ago than ``keep_s``, oldest first: ok (token: how many).

        It uses the ledger's own time: a node whose clock is years ahead would forget all runs. The horizon moves past
        each scheduled one, so that forgetting a run never opens it again. A run that was revoked before its fire time
        stays until that time has passed too.
        """
        rows = store.ended_runs(now.wall - said.keep_s, said.limit)
        for row in rows:
            if row.scheduled:
                job = self._job(store, row.job, now)
                self._forget_fires(store, row.job, row.due_at)
                if row.due_at > job.horizon or job.fence == 0:
                    job.horizon = max(job.horizon, row.due_at)
                    self._stand(store, job)
            store.drop_run(row.run)
            if row.scheduled and store.last_fire_at(row.job, now.wall + CLAIM_AHEAD_S) < row.due_at:
                store.number(OF_JOB + row.job)
        return Answer(OK, token=len(rows))
