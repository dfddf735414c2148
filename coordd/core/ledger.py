"""The ledger's rules: who may launch what, and when. Every adapter obeys this one file.

The election proposes, the ledger disposes: nothing here depends on an election, on gossip or on a node's
wall clock. One row per run, one attempt at a time; each operation is one atomic step over a ``Store`` and
answers in data. Each is idempotent for the same (token, nonce): a lost reply is asked again.

An attempt goes    (absent) -> RECEIVED -> STARTED -> SUCCESS | FAILURE | REVOKED | LOST
                                           STARTED -> UNKNOWN -> ...         (on_lost = hold)
A STARTED attempt is never granted again. It ends, and the *next* attempt is granted: that is S1, at most one
launch per (run, attempt), and it assumes no clock at all.

Rows, requests and answers are in rows.py. Like that file this one is loaded by the runner and imports nothing else.
"""

from coordd.core.rows import (
    ATTEMPT_COLUMNS, CANCEL, CLAIM_AHEAD_S, CONFLICT, DIFFERS, EARLY, EXISTS, FAILURE, FINISHED, GRANTED,
    HELD, LIMITED, LOST, MISSED, OK, PENDING, RECEIVED, REJECTED, RETRY, REVOKED, RHO, STALE, STARTED, SUCCESS,
    TERMINAL, UNKNOWN, Answer, AttemptRow, Claim, JobRow, LedgerTime, OpenAnswer, OpenRun, Policy, Registration, Row,
)  # fmt: skip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.rows import Store

# The run's life as one table: who may follow whom. Every write of a state goes through ``_move``.
MOVES: "dict[str, frozenset[str]]" = {
    PENDING: frozenset((RECEIVED, REJECTED, MISSED, REVOKED)),
    RETRY: frozenset((RECEIVED, MISSED, REVOKED, LOST, FAILURE)),
    RECEIVED: frozenset((RECEIVED, STARTED, FAILURE, REVOKED, LOST, RETRY)),
    STARTED: frozenset((SUCCESS, FAILURE, REVOKED, LOST, RETRY, UNKNOWN)),
    UNKNOWN: frozenset((STARTED, SUCCESS, FAILURE, REVOKED, LOST, RETRY)),
}

# How soon a node asks again about a suspended job, and about one that waits for another run to end.
SUSPENDED_RETRY_S = 5.0
OVERLAP_RETRY_S = 1.0


class Rules:
    """The operations. ``store`` is one transaction; ``now`` is the ledger's time, never a client's."""

    # ---- before a launch

    def register(self, store: "Store", of: Registration, now: LedgerTime) -> Answer:
        """Write PENDING before a trigger is answered: ok, exists, or conflict (same id, other digest)."""
        row = store.run(of.run)
        if row is None:
            self._job(store, of.job, now)
            store.put_run(self._new_row(of, now))
            return Answer(OK, state=PENDING)
        if row.digest != of.digest or row.args != of.args:
            return Answer(CONFLICT, state=row.state)
        return Answer(EXISTS, state=row.state)

    def claim(self, store: "Store", claim: Claim, now: LedgerTime) -> Answer:
        """Grant one attempt to one node, or say why not. The order of the checks is the contract."""
        of = claim.of
        job = self._job(store, of.job, now)
        row = store.run(of.run)
        if row is None:
            if claim.attempt != 0 or (of.scheduled and of.fire_at <= job.horizon):
                return Answer(FINISHED, state="settled")
            row = self._new_row(of, now)
        if row.state in TERMINAL:
            return Answer(FINISHED, state=row.state, attempt=row.attempt)
        if claim.attempt < row.attempt:
            return Answer(LOST, attempt=row.attempt, in_s=max(0.0, row.not_before - now.wall))
        if claim.attempt > row.attempt:
            return self._held(row, now)
        if row.state in (PENDING, RETRY):
            return self._claim_due(store, job, row, claim, now)
        if row.state == RECEIVED:
            if row.nonce == claim.nonce and row.node == claim.node:
                return self._granted(row, now)  # the reply was lost: the same grant, what is left of it
            if self._lapsed(row, claim, now):
                return self._grant(store, job, row, claim, now)
            return self._held(row, now)
        if row.state == STARTED and self._lapsed(row, claim, now):
            self._lose(store, row, f"its lease lapsed; last held by {row.node}", now)
            if row.state == RETRY:
                return Answer(LOST, attempt=row.attempt, in_s=max(0.0, row.not_before - now.wall))
            if row.state in TERMINAL:
                return Answer(FINISHED, state=row.state, attempt=row.attempt)
        return self._held(row, now)

    def _claim_due(self, store: "Store", job: JobRow, row: Row, claim: Claim, now: LedgerTime) -> Answer:
        """A row that waits for a launch: may it start now, here?"""
        policy = claim.of.policy
        if now.wall > row.not_before + policy.start_within_s:
            late = now.wall - row.not_before
            why = f"no node could launch it within {policy.start_within_s:g} s of its time ({late:.0f} s late)"
            if row.digest != claim.of.digest:
                why += "; the job's definition has changed since"
            self._end(store, row, MISSED, why, now)
            return Answer(FINISHED, state=row.state)
        if row.digest != claim.of.digest:
            return Answer(DIFFERS, state=row.state)
        if row.not_before - now.wall > CLAIM_AHEAD_S:
            return Answer(EARLY, in_s=row.not_before - now.wall - CLAIM_AHEAD_S)
        if job.suspended:
            return Answer(LIMITED, by="suspended", in_s=SUSPENDED_RETRY_S)
        blocked = self._overlap(store, row, policy, now)
        if blocked is not None:
            return blocked
        if claim.settled_to > job.horizon:
            job.horizon = claim.settled_to
        return self._grant(store, job, row, claim, now)

    def _overlap(self, store: "Store", row: Row, policy: Policy, now: LedgerTime) -> "Answer | None":
        """What the job's overlap policy says of other runs of the job; None when nothing is in the way."""
        if policy.overlap == "allow" or row.attempt > 0:
            return None
        others = [other for other in store.active_runs(row.job) if other.run != row.run]
        if not others:
            return None
        other = others[0]
        if policy.overlap == "forbid":
            self._end(store, row, REJECTED, f"overlap: {other.run} is {other.state} on {other.node or 'no node'}", now)
            return Answer(FINISHED, state=REJECTED)
        if policy.overlap == "replace":
            for other in others:
                if not other.cancel:
                    other.cancel = 1
                    other.reason = f"replaced by {row.run}"
                    if other.state == RETRY:
                        self._end(store, other, REVOKED, other.reason, now)
                    else:
                        store.put_run(other)
        if store.run(row.run) is None:
            store.put_run(row)  # it waits where people and the sweep can see it
        return Answer(LIMITED, by=f"overlap with {other.run}", in_s=OVERLAP_RETRY_S)

    def gate(self, store: "Store", run: str, attempt: int, token: int, nonce: str, now: LedgerTime) -> Answer:
        """RECEIVED -> STARTED: the last word before exec. The same token and nonce may ask again."""
        row = self._mine(store, run, attempt, token, nonce)
        if row is None:
            return Answer(STALE)
        if row.cancel:
            if row.state == RECEIVED:
                self._end(store, row, REVOKED, row.reason or "cancelled before it started", now)
            return Answer(REVOKED)
        if row.state == STARTED:
            return Answer(OK, left_s=row.until - now.lease)
        if row.state != RECEIVED:
            return Answer(STALE)
        if now.wall < row.not_before:
            return Answer(EARLY, in_s=row.not_before - now.wall)
        if self._past(row, now):
            return Answer(STALE)
        self._move(row, STARTED)
        row.started_at = now.wall
        row.beat += 1
        store.put_run(row)
        self._record(store, row)
        return Answer(OK, left_s=row.until - now.lease)

    # ---- while it runs

    def renew(
        self,
        store: "Store",
        run: str,
        attempt: int,
        token: int,
        nonce: str,
        lease_s: float,
        application_id: str,
        now: LedgerTime,
    ) -> Answer:
        """Extend the lease: ok(left_s), cancel (with left_s: a cancelled run still ends in order), or lost."""
        row = self._mine(store, run, attempt, token, nonce)
        if row is None or row.state not in (RECEIVED, STARTED, UNKNOWN):
            return Answer(LOST)
        if row.state == UNKNOWN:
            self._move(row, STARTED)  # the holder is back, and nobody was granted anything meanwhile
            row.reason = ""
        row.lease = lease_s
        row.until = now.lease + lease_s
        row.boot = now.boot
        row.beat += 1
        if application_id:
            row.application_id = application_id
        store.put_run(row)
        return Answer(CANCEL if row.cancel else OK, left_s=lease_s)

    def report(
        self,
        store: "Store",
        run: str,
        attempt: int,
        token: int,
        nonce: str,
        state: str,
        exit_code: "int | None",
        reason: str,
        application_id: str,
        final: bool,
        now: LedgerTime,
    ) -> Answer:
        """The end of an attempt: ok or stale. States only move forward.

        ``state`` is success, failure, revoked, lost (it may have run) or retry (it certainly never started).
        ``final`` forbids another try after a failure (the job's ``never_on``).
        """
        row = self._mine(store, run, attempt, token, nonce)
        if row is None or row.state not in (RECEIVED, STARTED, UNKNOWN):
            past = store.attempt(run, attempt)
            said = past is not None and (past.token, past.nonce, past.state) == (token, nonce, state)
            return Answer(OK if said else STALE)
        if application_id:
            row.application_id = application_id
        row.exit_code = exit_code
        policy = Policy.unpack(row.policy)
        if state == FAILURE:
            row.failures += 1
            if not final and row.failures < policy.attempts:
                self._again(store, row, FAILURE, policy.delay_after(row.failures), reason, now)
                return Answer(OK)
        elif state == LOST:
            self._lose(store, row, reason, now)
            return Answer(OK)
        elif state == RETRY:
            row.relaunches += 1
            self._relaunch(store, row, policy, reason, now)
            return Answer(OK)
        self._end(store, row, state, reason, now)
        return Answer(OK)

    def commit(self, store: "Store", run: str, attempt: int, token: int, nonce: str, now: LedgerTime) -> Answer:
        """Publish under the token: ok once per run, for the attempt that holds it; else stale."""
        row = self._mine(store, run, attempt, token, nonce)
        if row is None or row.state != STARTED or row.commit_token not in (0, token):
            return Answer(STALE)
        row.commit_token = token
        store.put_run(row)
        return Answer(OK, left_s=row.until - now.lease)

    # ---- for people

    def revoke(self, store: "Store", run: str, by: str, now: LedgerTime) -> Answer:
        """Forbid a run that has not started, known or not yet."""
        row = store.run(run)
        if row is None:
            job = run.partition("#")[0].partition("@")[0]
            of = Registration(run, job, "", Policy(), now.wall, scheduled="@" in run, by=by)
            row = self._new_row(of, now)
        if row.state in TERMINAL or row.state in (STARTED, UNKNOWN):
            return Answer(FINISHED, state=row.state)
        self._end(store, row, REVOKED, f"revoked by {by}", now)
        return Answer(OK, state=REVOKED)

    def cancel(self, store: "Store", run: str, by: str, now: LedgerTime) -> Answer:
        """End an attempt that runs: its holder hears of it with the next renewal at the latest."""
        row = store.run(run)
        if row is None or row.state in TERMINAL:
            return Answer(FINISHED, state=row.state if row else "")
        if row.state in (PENDING, RETRY):
            self._end(store, row, REVOKED, f"cancelled by {by}", now)
            return Answer(OK, state=REVOKED)
        row.cancel = 1
        row.reason = f"cancelled by {by}"
        store.put_run(row)
        return Answer(OK, state=row.state, by=row.node, attempt=row.attempt)

    def resolve(self, store: "Store", run: str, outcome: str, by: str, now: LedgerTime) -> Answer:
        """A person says what became of an UNKNOWN run: success, failed or relaunch."""
        row = store.run(run)
        if row is None or row.state != UNKNOWN:
            return Answer(FINISHED, state=row.state if row else "")
        why = f"resolved as {outcome} by {by}"
        if outcome == "relaunch":
            self._again(store, row, LOST, 0.0, why, now)
        else:
            self._end(store, row, SUCCESS if outcome == "success" else FAILURE, why, now)
        return Answer(OK, state=row.state)

    def suspend(self, store: "Store", job: str, suspended: bool, by: str, now: LedgerTime) -> Answer:
        """Stop granting a job's runs, or go on."""
        row = self._job(store, job, now)
        row.suspended = int(suspended)
        row.version += 1
        row.changed_by = by
        store.put_job(row)
        return Answer(OK, token=row.version)

    def open(self, store: "Store", jobs: "tuple[str, ...]", now: LedgerTime) -> OpenAnswer:
        """Rows that are not terminal, for the sweep; a job never seen before starts here, at the ledger's time."""
        known: dict[str, tuple[float, float, bool, int]] = {}
        for name in jobs:
            job = self._job(store, name, now)
            known[name] = (job.horizon, store.last_fire_at(name), bool(job.suspended), job.fence)
        return OpenAnswer([OpenRun(row, now) for row in store.open_runs()], known, now.wall)

    # ---- the single steps

    def _job(self, store: "Store", name: str, now: LedgerTime) -> JobRow:
        job = store.job(name)
        if job is None:
            job = JobRow(name, horizon=now.wall)
            store.put_job(job)
        return job

    def _new_row(self, of: Registration, now: LedgerTime) -> Row:
        # In the order of RUN_COLUMNS.
        return Row((
            of.run, of.job, of.digest, of.args, of.policy.pack(), int(of.scheduled), of.fire_at, now.wall, of.by,
            PENDING, 0, of.fire_at, 0, 0,
            0, "", "", 0.0, 0.0, "", 0, 0, 0,
            0.0, 0.0, 0.0, None, "", "",
        ))  # fmt: skip

    def _mine(self, store: "Store", run: str, attempt: int, token: int, nonce: str) -> "Row | None":
        """The row, if this very grant is still its current one. (token, nonce) is compared, never one alone."""
        row = store.run(run)
        if row is None or row.attempt != attempt or row.token != token or row.nonce != nonce:
            return None
        return row

    def _past(self, row: Row, now: LedgerTime) -> bool:
        """The ledger's own time has passed the lease's end (another boot: certainly)."""
        return row.boot != now.boot or now.lease >= row.until

    def _lapsed(self, row: Row, claim: Claim, now: LedgerTime) -> bool:
        """Past its end AND watched in silence for a whole lease by the claimant itself.

        The ledger's time alone does not do where it is a wall clock: one step of it would expire every lease
        at once. Another boot needs no watching: nothing of it is alive.
        """
        if not self._past(row, now):
            return False
        if row.boot != now.boot:
            return True
        watched = claim.watched
        return (
            watched is not None
            and watched[0] == row.token
            and watched[1] == row.beat
            and watched[2] >= row.lease * (1 + 2 * RHO)
        )

    def _next_token(self, job: JobRow, now: LedgerTime) -> int:
        """Strictly increasing per job, even where the ledger forgot its last writes: time bounds it from below."""
        return max(job.fence + 1, int(now.wall * 1e6))

    def _grant(self, store: "Store", job: JobRow, row: Row, claim: Claim, now: LedgerTime) -> Answer:
        job.fence = self._next_token(job, now)
        store.put_job(job)
        self._move(row, RECEIVED)
        row.token = job.fence
        row.nonce = claim.nonce
        row.node = claim.node
        row.lease = claim.lease_s
        row.until = now.lease + claim.lease_s
        row.boot = now.boot
        row.beat = 0
        row.policy = claim.of.policy.pack()
        row.received_at = now.wall
        row.started_at = row.ended_at = 0.0
        row.exit_code = None
        row.application_id = row.reason = ""
        store.put_run(row)
        self._record(store, row)
        return self._granted(row, now)

    def _granted(self, row: Row, now: LedgerTime) -> Answer:
        return Answer(GRANTED, token=row.token, left_s=row.until - now.lease, args=row.args, attempt=row.attempt)

    def _held(self, row: Row, now: LedgerTime) -> Answer:
        left_s = row.until - now.lease if row.boot == now.boot else 0.0
        return Answer(HELD, by=row.node, left_s=left_s, state=row.state, until_token=(row.token, row.beat))

    def _move(self, row: Row, state: str) -> None:
        assert state in MOVES[row.state], f"{row.run}: {row.state} -> {state}"
        row.state = state

    def _end(self, store: "Store", row: Row, state: str, reason: str, now: LedgerTime) -> None:
        """A terminal state: nothing leaves it (S5)."""
        held = row.state in (RECEIVED, STARTED, UNKNOWN)
        self._move(row, state)
        row.ended_at = now.wall
        row.reason = reason
        store.put_run(row)
        if held:
            self._record(store, row)

    def _lose(self, store: "Store", row: Row, reason: str, now: LedgerTime) -> None:
        """A launched attempt whose end nobody knows: LOST and tried again, or UNKNOWN and held for a person."""
        policy = Policy.unpack(row.policy)
        if policy.on_lost == "hold" and row.state != RECEIVED:
            if row.state != UNKNOWN:
                self._move(row, UNKNOWN)
                row.reason = reason
                store.put_run(row)
                self._record(store, row)
            return
        row.relaunches += 1
        self._relaunch(store, row, policy, reason, now)

    def _relaunch(self, store: "Store", row: Row, policy: Policy, reason: str, now: LedgerTime) -> None:
        if row.cancel:
            self._end(store, row, REVOKED, row.reason, now)
        elif row.relaunches > policy.relaunches:
            self._end(store, row, LOST, f"{reason}; lost {row.relaunches} times, no relaunch left", now)
        else:
            self._again(store, row, LOST, 0.0, reason, now)

    def _again(self, store: "Store", row: Row, ended: str, delay_s: float, reason: str, now: LedgerTime) -> None:
        """Close this attempt as ``ended`` and make the next one due."""
        row.ended_at = now.wall
        row.reason = reason
        closed = self._attempt_row(row)
        closed.state = ended
        store.put_attempt(closed)
        self._move(row, RETRY)
        row.attempt += 1
        row.not_before = now.wall + delay_s
        store.put_run(row)

    def _record(self, store: "Store", row: Row) -> None:
        store.put_attempt(self._attempt_row(row))

    def _attempt_row(self, row: Row) -> AttemptRow:
        return AttemptRow([getattr(row, column) for column in ATTEMPT_COLUMNS])
