"""A run's life: the table of allowed moves, and the single steps that write it.

    pending -> received (claimed) -> started (past the gate) -> success | failure | revoked
                                     started -> retry -> received (attempt + 1)     [lost or failed, tries left]
                                     started -> unknown -> started | success | ...  [hold: nobody knows yet]
    pending -> rejected (overlap, breaker) | missed (start_within) | revoked | failure (breaker)

The operations in rules.py and people.py use these steps; nothing else writes a state. ``_put_back`` writes one without
the table: a restored grant replaces moves that the ledger forgot. The runner loads this file before it starts a job, so
it imports only its neighbours.
"""

from coordd.core.ledger.answers import Answer, Ended, Held
from coordd.core.ledger.breaker.rule import Breaking
from coordd.core.ledger.fires import SUCCEEDED
from coordd.core.ledger.marks.rule import Marking
from coordd.core.ledger.rows import (
    ATTEMPT_COLUMNS,
    OF_RERUN,
    AttemptRow,
    Hold,
    JobRow,
    LedgerTime,
    Row,
    due_in,
    left_of,
    was_set_back,
)
from coordd.core.ledger.runner_requests import Grant, Registration, Restore
from coordd.core.ledger.words import (
    DIFFERS,
    FAILURE,
    FINISHED,
    GRANTED,
    HELD,
    LOST,
    MISSED,
    PENDING,
    RECEIVED,
    RECOVERING,
    REJECTED,
    RELAUNCH_DOUBLINGS_MAX,
    RELAUNCH_PAUSE_S,
    RETRY,
    REVOKED,
    RHO,
    STARTED,
    SUCCESS,
    TERMINAL,
    UNKNOWN,
    AttemptNumber,
    Policy,
    Token,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Claim, Watched
    from coordd.core.ledger.rows import Store

# The run's life: the allowed moves. Every change of a state goes through ``_move``, except those of ``_put_back`` and
# of a person's ``replay``.
MOVES: "dict[str, frozenset[str]]" = {
    PENDING: frozenset((RECEIVED, REJECTED, MISSED, REVOKED, FAILURE)),  # failure: its breaker let it fail
    RETRY: frozenset((RECEIVED, MISSED, REVOKED)),
    RECEIVED: frozenset((RECEIVED, STARTED, FAILURE, REVOKED, LOST, RETRY, MISSED)),
    STARTED: frozenset((SUCCESS, FAILURE, REVOKED, LOST, RETRY, UNKNOWN)),
    UNKNOWN: frozenset((STARTED, SUCCESS, FAILURE, REVOKED, LOST, RETRY)),
}

# An attempt that was lost within this time (seconds) after its grant was short-lived. After the run's first loss, the
# next attempt starts at once, perhaps on a node where it works. If a later lost attempt was short-lived, a pause
# follows, which doubles with each loss: a job that dies at once on every node must not use up its relaunches before
# anybody has seen it.
SHORT_LIVED_S = 10.0

# Children of a re-run that have not run once more by then (seconds) do not any more: perhaps no node has their job.
CHILDREN_KEPT_S = 7 * 86400.0

# The recorded states of an attempt after each report: a repeated report is recognised by them.
REPORTED: "dict[str, frozenset[str]]" = {
    SUCCESS: frozenset((SUCCESS,)),
    FAILURE: frozenset((FAILURE,)),
    REVOKED: frozenset((REVOKED,)),
    LOST: frozenset((LOST, REVOKED)),  # revoked: it was cancelled, and then lost
    RETRY: frozenset((LOST, REVOKED)),
}

# An attempt has a holder, or had one when it was last heard of.
HOLDING = frozenset((RECEIVED, STARTED, UNKNOWN))


class Life(Breaking, Marking):
    """The single steps. ``store`` is one transaction; ``now`` is the ledger's time."""

    def _settled(self, job: "JobRow | None", due: float, now: LedgerTime) -> bool:
        """True if a run that is due then is behind the job's horizon. In quarantine nobody can tell: the horizon may be
        wrong.
        """
        return job is not None and due <= job.horizon and now.recovering_s <= 0

    def _new_row(self, of: Registration, now: LedgerTime) -> Row:
        # The ledger dates a trigger: the clock of the node that accepted it may be off by hours.
        fire_at = of.fire_at if of.scheduled else now.wall - of.age_s
        due = of.due if of.scheduled else fire_at
        # In the order of RUN_COLUMNS.
        return Row(
            (
                of.run,
                of.job,
                of.digest,
                of.args,
                of.policy.pack(),
                int(of.scheduled),
                fire_at,
                now.wall,
                of.by,
                PENDING,
                0,
                due,
                0,
                0,
                0,
                "",
                "",
                0.0,
                0.0,
                "",
                0,
                0,
                0,
                0.0,
                0.0,
                0.0,
                None,
                "",
                "",
                due,
            )
        )

    def _mine(self, store: "Store", grant: Grant) -> "Row | None":
        """The row, if exactly this grant is the current one. Token and nonce are compared together."""
        row = store.run(grant.run)
        return row if row is not None and self._is_of(row, grant) else None

    def _is_of(self, row: "Row | AttemptRow", grant: Grant) -> bool:
        return row.attempt == grant.attempt and row.token == grant.token and row.nonce == grant.nonce

    def _is_repeat(self, row: Row, claim: "Claim") -> bool:
        """True if the claimant has this very grant already: its reply was lost."""
        return row.state == RECEIVED and row.nonce == claim.nonce and row.node == claim.node

    def _is_older(self, row: Row, grant: Grant) -> bool:
        """True if the row is older than this grant, and not over.

        Only the token tells. The attempt's number does not: the ledger may have forgotten this grant, and an earlier
        holder, which it remembers, may then have returned the attempt. That raises the number.
        """
        return row.state not in TERMINAL and row.token < grant.token

    def _has_forgotten(self, store: "Store", row: "Row | None", grant: Grant) -> bool:
        """True if this ledger has lost the grant. Of a run that is over: a person had asked for that attempt, and no
        record of it is left, so its number would be given again.
        """
        if row is None or self._is_older(row, grant):
            return True
        return row.state in TERMINAL and row.token < grant.token and store.attempt(grant.run, grant.attempt) is None

    def _replaces(self, store: "Store", said: Restore, row: Row) -> bool:
        """True if the grant that a witness tells of takes the place of the row's grant.

        The newer token does. But a ledger that went back may grant the number of a forgotten attempt again; if it goes
        back once more, it hears of both. Then an attempt that was launched comes before one that perhaps was not: the
        gate answers ``early`` to that one in the quarantine, and ``stale`` after it.
        """
        grant, state = said.grant, said.state
        past = store.attempt(grant.run, grant.attempt)
        known = past is not None and self._is_of(past, grant)
        if row.state == RECEIVED and state != RECEIVED and row.attempt <= grant.attempt:
            return not self._is_of(row, grant)
        if row.state == RETRY and state not in (RECEIVED, LOST) and not known:
            return True
        if row.state == RETRY and past is None and self._is_held(said):
            return True
        if state in (RECEIVED, LOST) and (
            (row.state in (STARTED, UNKNOWN) and grant.attempt <= row.attempt)
            or (row.state == RETRY and past is not None and not known)
        ):
            return False
        return self._is_older(row, grant)

    def _unknown(self, store: "Store", grant: Grant, word: str, now: LedgerTime) -> Answer:
        """The answer to a grant that is not the current one: ``word``, or RECOVERING if the grant was forgotten."""
        if now.whole_s > 0 and self._has_forgotten(store, store.run(grant.run), grant):
            self._shows_loss(store, grant, now)
            return Answer(RECOVERING, left_s=now.whole_s, in_s=now.whole_s)
        return Answer(word)

    def _left(self, row: Row, now: LedgerTime) -> float:
        return left_of(row, now)

    def _past(self, row: Row, now: LedgerTime) -> bool:
        """True if the ledger's own time has passed the lease's end (certainly so after another boot)."""
        return row.boot != now.boot or now.lease >= row.until

    def _lapsed(self, row: Row, watched: "Watched | None", now: LedgerTime) -> bool:
        """True if it is past its end, by a clock that was not set back, AND the claimant has watched it without a beat
        for a whole lease.

        The ledger's time alone is not enough if it is a wall clock: one step of it would expire every lease at once.
        After another boot no watching is needed: nothing of it is alive. In a quarantine that has ended early none
        lapses: its last renewals may be forgotten.
        """
        if now.whole_s > 0:
            return False
        if not self._past(row, now) and not was_set_back(row, now):
            return False
        if row.boot != now.boot:
            return True
        return (
            watched is not None
            and watched.token == row.token
            and watched.beat == row.beat
            and watched.unchanged_s >= row.lease * (1 + 2 * RHO)
        )

    def _next_token(self, job: JobRow, now: LedgerTime) -> Token:
        """Strictly increasing per job, even if the ledger forgot its last writes: time is the lower bound."""
        return Token(max(job.fence + 1, int(now.wall * 1e6)))

    def _grant(self, store: "Store", job: JobRow, row: Row, claim: "Claim", now: LedgerTime) -> Answer:
        job.fence = row.token = self._next_token(job, now)
        self._put_job(store, job)
        self._move(row, RECEIVED)
        self._lend(row, claim.nonce, claim.node, claim.lease_s, claim.of.policy, now)
        row.started_at = 0.0
        row.application_id = row.reason = ""
        store.put_run(row)
        self._record(store, row)
        self._counted(store, now)
        return self._granted(row, now)

    def _lend(self, row: Row, nonce: str, node: str, lease_s: float, policy: Policy, now: LedgerTime) -> None:
        """That node holds the attempt from now on, for a whole lease."""
        row.nonce = nonce
        row.node = node
        row.lease = lease_s
        row.until = now.lease + lease_s
        row.boot = now.boot
        row.beat = 0
        row.policy = policy.pack()
        row.received_at = now.wall
        row.ended_at = 0.0
        row.exit_code = None

    def _granted(self, row: Row, now: LedgerTime) -> Answer:
        # The time until it is due, by the ledger's clock: the claimant's own may be minutes off.
        in_s = due_in(row, now)
        return Answer(
            GRANTED, token=row.token, left_s=self._left(row, now), in_s=in_s, args=row.args, attempt=row.attempt
        )

    def _granted_again(self, store: "Store", row: Row, claim: "Claim", now: LedgerTime) -> Answer:
        """The reply was lost: return the same grant again, only for the granted definition.

        It gets a whole lease again, with a new beat, so watchers start again. Only a clock that may have been set back
        could tell the rest of the first lease.
        """
        if claim.of.digest != row.digest:
            return Answer(DIFFERS, state=row.state)
        if row.boot == now.boot:
            row.until = now.lease + row.lease
            row.beat += 1
            store.put_run(row)
        return self._granted(row, now)

    def _ended_as(self, row: Row, reason: str) -> Ended:
        return Ended(
            attempt=row.attempt,
            token=row.token,
            nonce=row.nonce,
            node=row.node,
            reason=reason,
            digest=row.digest,
            policy=row.policy,
            lease_s=row.lease,
        )

    def _ended(self, row: Row) -> Answer:
        """This claim has ended the run."""
        return Answer(FINISHED, state=row.state, attempt=row.attempt, ended=self._ended_as(row, row.reason))

    def _held(self, row: Row, now: LedgerTime) -> Answer:
        left_s = self._left(row, now)
        return Answer(HELD, by=row.node, left_s=left_s, state=row.state, held=Held(token=row.token, beat=row.beat))

    def _move(self, row: Row, state: str) -> None:
        assert state in MOVES.get(row.state, ()), f"{row.run}: {row.state} -> {state}"
        row.state = state

    def _end(self, store: "Store", row: Row, state: str, reason: str, now: LedgerTime) -> None:
        """A terminal state: nothing leaves it (S5)."""
        held, begun = row.state in HOLDING, row.state != PENDING
        self._move(row, state)
        row.ended_at = now.wall
        row.reason = reason
        store.put_run(row)
        if state == SUCCESS:
            store.put_meta(SUCCEEDED + row.job, repr(now.wall))
        if held:
            self._record(store, row)
        if begun:
            self._end_counts(store, row, now)

    def _put_back(self, store: "Store", old: "Row | None", said: Restore, now: LedgerTime) -> Row:
        """Write a forgotten grant; the table of moves does not apply, because this replaces lost moves."""
        of, grant = said.of, said.grant
        row = old or self._new_row(of, now)
        # the running definition is the granted one, whatever was registered since
        row.digest, row.args = of.digest, of.args
        if row.state in HOLDING and row.attempt < grant.attempt:
            closed = self._attempt_row(row)  # its end was forgotten
            closed.state = LOST
            store.put_attempt(closed)
        # A held run is not tried again, whatever was launched since: a person looks at the unknown end first.
        policy = of.policy.held() if row.state == UNKNOWN else of.policy
        # The ends of earlier attempts are forgotten too: in no case are there more attempts than the job allows.
        tries = max(0, grant.attempt - row.failures - row.relaunches)
        failures = min(tries, max(0, policy.attempts - 1 - row.failures))
        row.failures += failures
        row.relaunches += tries - failures
        row.state = RECEIVED if said.state == RECEIVED else STARTED
        row.attempt = grant.attempt
        row.token = grant.token
        self._lend(row, grant.nonce, said.node, said.lease_s, policy, now)
        row.started_at = 0.0 if said.state == RECEIVED else now.wall
        row.application_id = said.application_id
        row.reason = row.reason if row.cancel else ""
        store.put_run(row)
        self._record(store, row)
        return row

    def _was_given(self, store: "Store", row: Row, said: Restore, now: LedgerTime) -> None:
        """A witness tells of an attempt under an older token, which the ledger has forgotten: its number is not given
        again.
        """
        grant, state, at = said.grant, said.state if said.state in REPORTED else LOST, now.wall
        given = (grant.run, grant.attempt, grant.token, grant.nonce, said.node, state)
        store.put_attempt(AttemptRow([*given, at, at, at, said.exit_code, said.application_id, said.reason]))
        if row.state == RETRY:
            row.attempt = self._unused(store, row.run, row.attempt)
            store.put_run(row)
        elif row.state in HOLDING and self._is_held(said):
            row.policy = Policy.unpack(row.policy).held().pack()
            store.put_run(row)

    def _is_held(self, said: Restore) -> bool:
        """True if a witness tells of a launched attempt whose end nobody knows, of a job that holds such runs."""
        return said.state in (STARTED, LOST) and said.of.policy.on_lost == "hold"

    def _launched_after_all(self, store: "Store", row: Row, lease_s: float, now: LedgerTime) -> Row:
        """The grant is known, but not that it passed the gate: it gets a whole lease again."""
        self._move(row, STARTED)
        row.started_at = now.wall
        row.until = now.lease + lease_s
        row.boot = now.boot
        row.beat += 1
        store.put_run(row)
        self._record(store, row)
        return row

    def _lose(self, store: "Store", row: Row, reason: str, now: LedgerTime) -> None:
        """A launched attempt with an unknown end: LOST and retried, or UNKNOWN and held for a person."""
        policy = Policy.unpack(row.policy)
        if policy.on_lost == "hold" and row.state != RECEIVED:
            if row.state != UNKNOWN:
                self._move(row, UNKNOWN)
                self._explain(row, reason)
                store.put_run(row)
                self._record(store, row)
                self._end_is_unknown(store, row, now)
            return
        row.relaunches += 1
        self._relaunch(store, row, policy, reason, now)

    def _explain(self, row: Row, reason: str) -> None:
        """Why its end is unknown; a cancellation, and by whom, stays in the text."""
        if not row.cancel:
            row.reason = reason
        elif reason not in row.reason:
            row.reason = f"{reason}; {row.reason}"

    def _relaunch(self, store: "Store", row: Row, policy: Policy, reason: str, now: LedgerTime) -> None:
        if row.cancel:
            self._end(store, row, REVOKED, row.reason, now)
        elif row.relaunches > policy.relaunches:
            self._end(store, row, LOST, f"{reason}; lost {row.relaunches} times, no relaunch left", now)
        else:
            self._again(store, row, LOST, self._pause(row, now), reason, now)

    def _pause(self, row: Row, now: LedgerTime) -> float:
        """Seconds before the next attempt after a lost one."""
        if row.relaunches < 2 or now.wall - row.received_at >= SHORT_LIVED_S:
            return 0.0
        return RELAUNCH_PAUSE_S * 2.0 ** min(row.relaunches - 2, RELAUNCH_DOUBLINGS_MAX)

    def _again(self, store: "Store", row: Row, ended: str, delay_s: float, reason: str, now: LedgerTime) -> None:
        """Close this attempt as ``ended`` and make the next one due."""
        row.ended_at = now.wall
        row.reason = reason
        closed = self._attempt_row(row)
        closed.state = ended
        store.put_attempt(closed)
        self._move(row, RETRY)
        row.attempt = self._unused(store, row.run, AttemptNumber(row.attempt + 1))
        # Never before its fire time: an attempt that was claimed ahead may be returned before that.
        row.not_before = max(row.due_at, now.wall + delay_s)
        store.put_run(row)

    def _with_children(self, store: "Store", row: Row, children: str, by: str, now: LedgerTime) -> None:
        """That run runs once more, as its present attempt, and after it these (core/ledger/rerun/plan.py; "": none)."""
        hold = None
        if children:
            hold = Hold(by=by, version=row.attempt, until=now.wall + CHILDREN_KEPT_S, at=now.wall, note=children)
        self._put_hold(store, OF_RERUN + row.run, hold)

    def _unused(self, store: "Store", run: str, number: AttemptNumber) -> AttemptNumber:
        """That number of an attempt, or the next one that was not given: a ledger that went back may have given it."""
        while store.attempt(run, number) is not None:
            number = AttemptNumber(number + 1)
        return number

    def _record(self, store: "Store", row: Row) -> None:
        store.put_attempt(self._attempt_row(row))

    def _attempt_row(self, row: Row) -> AttemptRow:
        return AttemptRow([getattr(row, column) for column in ATTEMPT_COLUMNS])
