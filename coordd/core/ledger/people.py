"""The operations for people: revoke, cancel and resolve a run, replay or discard one that was given up, suspend a job,
hold all jobs or a node, close the ledger.

The runner loads this file before it starts a job, so it imports only its neighbours and the errors.
"""

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.identity import CLOSED
from coordd.core.ledger.rows import ALL, OF_JOB, Cursor, Hold, LedgerTime
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import (
    EXISTS,
    FAILURE,
    FINISHED,
    GATE_AHEAD_S,
    HELD,
    LOST,
    OK,
    OPEN_PAGE,
    OPENED,
    PENDING,
    RECEIVED,
    RECOVERING,
    REPEATED,
    RERUN,
    RESOLVED,
    RETRY,
    REVOKED,
    SETTLED,
    STARTED,
    SUCCESS,
    TERMINAL,
    UNKNOWN,
    AttemptNumber,
    Policy,
)
from coordd.errors import BadRowError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coordd.core.ledger.requests import Cancel, Close, Discard, Keep, Replay, Resolve, Revoke, Suspend
    from coordd.core.ledger.rows import Row, Store


# How many runs an answer names that are past their gate.
BEGUN_MAX = 10

# How many runs a sentence names.
NAMED_MAX = 10


class People(Life):
    """The operations for people; rules.py adds those for nodes and runners."""

    def revoke(self, store: "Store", said: "Revoke", now: LedgerTime) -> Answer:
        """Forbid a run that has not started, whether it has a row or not. A bad row is replaced by a revoked one.

        After the run is forgotten, the horizon is the due time that the caller gives; a later run would be opened
        again.
        """
        run, of, why = said.run, said.of, f"revoked by {said.by}"
        try:
            row = store.run(run)
            bad = False
        except BadRowError as exc:  # revocation is the way out for people, whatever its state was
            store.drop_run(run)
            row, bad, why = None, True, f"{why}; {exc}"
        if row is None:
            if not bad and of.scheduled and self._is_over(store, self._known(store, of.job), of.due, now):
                return Answer(FINISHED, state=SETTLED)
            row = self._new_row(of, now)
        if row.state in TERMINAL or row.state in (STARTED, UNKNOWN):
            return Answer(FINISHED, state=row.state)
        self._end(store, row, REVOKED, why, now)
        return Answer(OK, state=REVOKED)

    def cancel(self, store: "Store", said: "Cancel", now: LedgerTime) -> Answer:
        """End a running attempt: its holder learns it with the next renewal at the latest."""
        row = store.run(said.run)
        if row is None or row.state in TERMINAL:
            return Answer(FINISHED, state=row.state if row else "")
        if row.state in (PENDING, RETRY):
            self._end(store, row, REVOKED, f"cancelled by {said.by}", now)
            return Answer(OK, state=REVOKED)
        if row.state != UNKNOWN:
            row.reason = f"cancelled by {said.by}"
        elif not row.cancel:  # a person must still see why its end is not known
            row.reason = f"{row.reason}; cancelled by {said.by}"
        row.cancel = 1
        store.put_run(row)
        return Answer(OK, state=row.state, by=row.node, attempt=row.attempt)

    def resolve(self, store: "Store", said: "Resolve", now: LedgerTime) -> Answer:
        """A person resolves an UNKNOWN run: success, failed or relaunch."""
        row = store.run(said.run)
        if row is None or row.state != UNKNOWN:
            return Answer(FINISHED, state=row.state if row else "")
        why = f"{RESOLVED}{said.outcome} by {said.by}"
        why += f"; its own end is not known, because {row.reason}" if row.reason else ""
        if said.outcome == "relaunch":
            row.cancel = 0  # the last request counts
            self._again(store, row, LOST, 0.0, why, now)
        else:
            self._end(store, row, SUCCESS if said.outcome == "success" else FAILURE, why, now)
        return Answer(OK, state=row.state)

    def replay(self, store: "Store", said: "Replay", now: LedgerTime) -> Answer:
        """One more attempt of a dead letter, or of any run that has ended (``whole``): ok (``attempt``), exists (it was
        replayed before; ``by`` is the reason in the record of that attempt, which names who), finished (it is not one),
        or recovering.

        The table of moves does not apply, because a person asks for it. If the attempt of a dead letter fails too, the
        run is given up again, whatever its policy allows. ``children``: the runs that follow it, which run once more
        too.
        """
        if now.recovering_s > 0:
            return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
        row = store.run(said.run)
        if row is not None and row.attempt > said.attempt:
            past = store.attempt(said.run, said.attempt)
            return Answer(EXISTS, state=row.state, by=past.reason if past is not None else "", attempt=row.attempt)
        if row is None or row.attempt != said.attempt or not (is_over(row) if said.whole else is_dead_letter(row)):
            return Answer(FINISHED, state=row.state if row is not None else "")
        by = f"{said.by} (run rerun)" if said.whole else said.by
        row.reason = f"{row.reason}; replayed by {by}" if row.reason else f"replayed by {by}"
        self._record(store, row)
        row.digest = said.digest
        row.policy = said.policy
        if said.whole:
            row.failures = row.relaunches = row.cancel = row.commit_token = 0
            row.by = repeats(row, said.by)
        else:
            row.failures = max(row.failures, Policy.unpack(said.policy).attempts - 1)
        row.state = RETRY
        row.attempt = self._unused(store, row.run, AttemptNumber(row.attempt + 1))
        row.not_before = max(row.due_at, now.wall)  # the ledger's clock may have been ahead when the run was launched
        store.put_run(row)
        self._with_children(store, row, said.children, said.by, now)
        return Answer(OK, state=RETRY, attempt=row.attempt)

    def discard(self, store: "Store", said: "Discard", now: LedgerTime) -> Answer:
        """Nobody needs this dead letter: ok, or finished if it is not one (any more)."""
        row = store.run(said.run)
        if row is None or row.attempt != said.attempt or not is_dead_letter(row):
            return Answer(FINISHED, state=row.state if row is not None else "")
        row.cancel = 1
        row.reason = f"{row.reason}; discarded by {said.by}: {said.note}"
        store.put_run(row)
        return Answer(OK, state=row.state)

    def suspend(self, store: "Store", said: "Suspend", now: LedgerTime) -> Answer:
        """Suspend a job, or resume it: ok, or finished if ``until`` is over, or it is not as ``given``. A bad row of
        the job is replaced by a valid one. A job that is suspended already gets the new end and note. ``by`` names the
        runs that start nevertheless: they are past their gate.
        """
        if said.suspended and 0.0 < said.until <= now.wall:
            return Answer(FINISHED)
        if said.given and not said.suspended:
            mine = self._hold(store, OF_JOB + said.job, now)
            if mine is None or mine.by != said.by or not self._is_as_given(store, said, now):
                return Answer(FINISHED)
        row = self._mended_job(store, said.job, now)
        self._is_suspended(store, row, now)
        if row.suspended != int(said.suspended):
            row.suspended = int(said.suspended)
            row.version += 1
            row.changed_by = said.by
            self._put_job(store, row)
        self._put_hold(store, OF_JOB + row.job, _hold(said, row.version, now) if said.suspended else None)
        return Answer(OK, token=row.version, by=self._begun(store, row.job, now) if said.suspended else "")

    def keep(self, store: "Store", said: "Keep", now: LedgerTime) -> Answer:
        """Hold all jobs or a node, or end that: ok, or finished if ``until`` is over, or it is not as ``given``.
        ``by``: as in ``suspend``.
        """
        if said.held and 0.0 < said.until <= now.wall:
            return Answer(FINISHED)
        if said.given and not self._is_as_given(store, said, now):
            return Answer(FINISHED)
        self._put_hold(store, said.key, _hold(said, 0, now) if said.held else None)
        return Answer(OK, by=self._begun(store, "", now) if said.held and said.key == ALL else "")

    def _is_as_given(self, store: "Store", said: "Keep | Suspend", now: LedgerTime) -> bool:
        there = self._hold(store, said.given, now)
        return (there.note if there is not None else "") == said.noted

    def _begun(self, store: "Store", job: str, now: LedgerTime) -> str:
        """The runs that are past their gate ahead of their fire time, of one job or of all (""); at most BEGUN_MAX."""
        rows, _ = store.open_runs(OPEN_PAGE, Cursor(not_before=now.wall, run=""))
        soon = [row for row in rows if now.wall < row.not_before <= now.wall + GATE_AHEAD_S]
        begun = [row.run for row in soon if row.state == STARTED and job in ("", row.job)]
        return " ".join(begun[:BEGUN_MAX])

    def close(self, store: "Store", said: "Close", now: LedgerTime) -> Answer:
        """Refuse every request from now on, because the rows move elsewhere: ok, recovering, or held (``by`` names the
        runs).

        An attempt with a lease could not be renewed or reported any more; ``force`` accepts that.
        """
        if not said.force:
            if now.recovering_s > 0:
                return Answer(RECOVERING, left_s=now.recovering_s, in_s=now.recovering_s)
            held: list[str] = []
            rows, after = store.open_runs(OPEN_PAGE)
            held += [row.run for row in rows if row.state in (RECEIVED, STARTED)]
            while after is not None:
                rows, after = store.open_runs(OPEN_PAGE, after)
                held += [row.run for row in rows if row.state in (RECEIVED, STARTED)]
            if held:
                more = f" and {len(held) - NAMED_MAX} more" if len(held) > NAMED_MAX else ""
                return Answer(HELD, by=", ".join(sorted(held)[:NAMED_MAX]) + more)
        store.put_meta(CLOSED, f"by {said.by} at {now.wall:.0f}")
        return Answer(OK)


def is_dead_letter(row: "Row") -> bool:
    """True for a run that was given up after all its attempts. ``cancel``: a person did not want it (any more).

    Not a run that was missed: nothing of it ever ran.
    """
    return row.state in (FAILURE, LOST) and not row.cancel


def is_over(row: "Row") -> bool:
    """True for a run that a person may run once more: it has ended, and nobody has forbidden it."""
    return row.state in TERMINAL and row.state != REVOKED


def repeats(row: "Row", by: str) -> str:
    """Who asked for the run that is run once more now; the parents that have opened it stay named."""
    opened = row.by.partition(RERUN)[0] + "; " if row.by.startswith(OPENED) else ""
    return f"{opened}{REPEATED}{row.run}/{row.attempt} by {by}"


def _hold(said: "Suspend | Keep", version: int, now: LedgerTime) -> Hold:
    return Hold(version=version, until=said.until, at=now.wall, uid=said.uid, by=said.by, note=said.note)
