"""Asks the real rules about each record of an incident: the election's order, the ledger's answer to each request.

The records say what the ledger granted and how attempts ended; the rules of core.ledger, on tables of their own, say
what they answer to the same requests at the same time. Where they differ, the step names the difference, and the tables
follow the record, so that one difference does not cause others.

The time of a grant is the ledger's own: a fencing token is microseconds since 1970. Other times are those of the node
that wrote the record, and may be off by ``skew_s``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from coordd.core.election import Election, rendezvous
from coordd.core.jobs.job import job_of
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Cancel, Claim, Register, Replay, Resolve, Revoke, Suspend, Watched
from coordd.core.ledger.rows import JobRow, LedgerTime, Row
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.runner_requests import Gate, Registration, Renew, Report, Restore
from coordd.core.ledger.words import (
    FAILURE,
    FINISHED,
    GATE_AHEAD_S,
    GRANTED,
    HELD,
    INSTANT_MAX,
    LIMITED,
    LOST,
    OK,
    RECEIVED,
    REJECTED,
    RESOLVED,
    RETRY,
    REVOKED,
    RHO,
    STARTED,
    SUCCESS,
    TERMINAL,
    UNKNOWN,
    Policy,
)
from coordd.core.names import host_of
from coordd.core.wire.chain import TYPE as CONTROL
from coordd.core.wire.events import Candidacy
from coordd.history.proof.acts import REFUSED, REPEATS, RERUN, is_of_job, until
from coordd.history.proof.judge import GRANT_ORDER_S
from coordd.history.replay import sentences
from coordd.history.replay.again import opened, opener
from coordd.history.replay.records import CANCEL_HEARD, ELECTED, OF_NODES, Incident, Record, by_another
from coordd.history.replay.store import MemoryStore

# A token tells the ledger's time if it is this near (seconds) to its node's; further off, the clocks were wrong.
CLOCK_MAX_S = 3600.0

# Maximum number of runs named in one step.
NAMED_MAX = 5

# The states of an end, as the holder reports it, by its record's type.
REPORTED = {"task-succeeded": SUCCESS, "task-failed": FAILURE, "task-revoked": REVOKED, "task-retried": LOST}

HEARD, DECIDED, DID, ASKED = "heard", "decided", "did", "asked"


class Step(NamedTuple):
    """One step: what a node heard, decided or did, and what the rules say of it.

    ``difference``: the kind of difference between the two; "" for none. ``assumed``: what no journal tells, and the
    rules needed.
    """

    record: Record
    verb: str
    said: str
    rules: str
    difference: str = ""
    assumed: str = ""


class Player:
    """Plays the records of one incident, in order. ``steps``: those of the run."""

    def __init__(self, incident: Incident, skew_s: float) -> None:
        self.steps: list[Step] = []
        self._incident = incident
        self._skew_s = skew_s
        self._index = 0  # of the next record
        self._rules = Rules()
        self._store = MemoryStore()
        self._store.put_meta("rules", "2")
        self._store.put_meta("identity_from", "0")
        self._defined = {one.run: one for one in reversed(incident.records) if one.text("digest")}
        self._orders: dict[int, Step] = {}  # attempt -> its election
        self._standing: dict[int, tuple[tuple[str, ...], Mapping[str, str]]] = {}
        self._openers: list[Record] = []  # what people asked for that may open runs beside its subject
        self._beat_at: dict[int, float] = {}  # token -> the last sign of life of its holder

    def play(self) -> None:
        """All records."""
        for record in self._incident.records:
            self._index += 1
            step = self._step(record)
            if step is not None and (record.is_about(self._incident.run) or record.kind in OF_NODES):
                self.steps.append(step)

    @property
    def row(self) -> Row | None:
        """The run, as the rules leave it."""
        return self._store.run(self._incident.run)

    def _step(self, record: Record) -> Step | None:
        kind = record.kind
        if kind in OF_NODES:
            return Step(record, DID, "starts and takes part" if kind == "worker-online" else "leaves", "")
        if kind == ELECTED:
            return self._elected(record) if record.run == self._incident.run else None
        if kind == CONTROL:
            return self._asked(record)
        if kind == CANCEL_HEARD:
            return Step(record, HEARD, record.text("reason") or "a cancellation", "a hint: the ledger has it already")
        if kind == "task-sent":
            return self._sent(record)
        if kind == "task-received":
            return self._received(record)
        if kind == "task-started":
            return self._started(record)
        if kind in REPORTED and not by_another(record) and record.count("token"):
            return self._ended(record)
        if kind in REPORTED or kind == "task-rejected":
            return self._taken(record)
        return None

    # ---- elections

    def _elected(self, record: Record) -> Step | None:
        """The order again, by core.election, from the stamps that the record has."""
        succession, abstained = record.names("succession"), record.texts("abstained")
        attempt = record.count("attempt")
        known = self._standing.get(attempt)
        self._standing.setdefault(attempt, (succession, abstained))
        stamps = {name: stamp for name, stamp in _stamps(record).items() if name not in abstained}
        heard = [sentences.stated(name, *stamp) for name, stamp in stamps.items() if name in succession]
        heard += [f"{host_of(name)} abstains: {why}" for name, why in abstained.items()]
        heard += [f"{host_of(name)} is silent" for name in record.names("silent")]
        order = ", then ".join(map(host_of, succession)) or "nobody"
        said = f"election for attempt {attempt}: {order}" + (f" ({'; '.join(heard)})" if heard else "")
        if known is not None:
            same = "the same order" if known[0] == succession else "another order: the views of two nodes may differ"
            return Step(record, DECIDED, said, same)
        if not stamps and succession:
            return Step(record, DECIDED, said, "not judged: an older version did not record the stamps")
        if set(succession) <= set(stamps):
            election = Election(record.text("id"), record.text("topic"), None, "", (), 0.0)
            for name, (load, clock) in stamps.items():
                election.state(name, Candidacy(load, clock, name))
            ruled, how = election.decide(0.0), "by load class, clock and name"
        else:
            ruled, how = rendezvous(record.text("id"), succession), "by hash"
        if ruled != succession:
            wanted = ", then ".join(map(host_of, ruled))
            return Step(record, DECIDED, said, f"{wanted}, {how}", "order")
        return Step(record, DECIDED, said, f"the same, {how}" if succession else "nobody stands")

    def _rank(self, record: Record) -> str:
        """Where the claimant stood in the election; never a difference: an election only orders who tries first."""
        known = self._standing.get(record.count("attempt"))
        if known is None:
            return "no journal has the election"
        succession, abstained = known
        holder = record.text("node") or record.full_hostname
        if holder in succession:
            rank = succession.index(holder)
            return (
                "first in the succession" if rank == 0 else f"rank {rank}; {host_of(succession[0])} had the first try"
            )
        why = abstained.get(holder)
        return f"not in the succession{f' ({why})' if why else ''}: eligible since"

    # ---- the ledger

    def _sent(self, record: Record) -> Step:
        answer = self._ask(Register(of=self._registration(record)), self._at(record))
        return Step(record, ASKED, "a trigger was recorded", sentences.told(answer))

    def _received(self, record: Record) -> Step:
        grant, granted_s = record.grant, record.count("token") / 1e6
        at = granted_s if abs(granted_s - record.at) <= CLOCK_MAX_S else record.at
        now = LedgerTime(at, at)
        said = f"was granted attempt {grant.attempt} under token {grant.token}; {self._rank(record)}"
        job = self._job(record.job)
        row = self._store.run(record.run)
        if 0 < grant.token <= job.fence:
            near = job.fence - grant.token <= GRANT_ORDER_S * 1e6 and (row is None or row.token < grant.token)
            if not near:
                self._follow(record, now)
                return Step(record, DID, said, f"a token above {job.fence}", "token")
            job.fence = grant.token - 1  # of another run: the journals do not tell which grant was first
            self._put_job(job)
        mark = self._opened_again(record, now)
        said += f"; opened by {mark}" if mark else ""
        assumed = self._unseen_before(record, now)
        answer, unseen = self._claimed(record, self._claim(record), now)
        assumed = unseen or assumed
        if answer.word != GRANTED:
            self._follow(record, now)
            return Step(record, DID, said, sentences.told(answer), "grant", assumed)
        row = self._store.run(record.run)
        assert row is not None, record.run
        row.token = grant.token  # the rule's own may be a microsecond off, because a float cannot hold it
        self._put(row)
        job = self._job(record.job)
        job.fence = grant.token
        self._put_job(job)
        self._beat_at[grant.token] = at
        rules = f"granted for {row.lease:g} s"
        return Step(record, DID, said, rules, "", assumed)

    def _opened_again(self, record: Record, now: LedgerTime) -> str:
        """Open the run once more if a backfill, or the re-run of its parent, has: which one; "" for none."""
        row, attempt = self._store.run(record.run), record.count("attempt")
        if attempt != (row.attempt if row is not None else 0) + 1:
            return ""
        mark = opener(self._openers, record.run, row)
        if mark and row is None:
            self._ask(Register(of=self._registration(record)), LedgerTime(INSTANT_MAX, INSTANT_MAX))
            row = self._store.run(record.run)
        if mark and row is not None:
            self._put(opened(row, mark, record, now))
        return mark

    def _unseen_before(self, record: Record, now: LedgerTime) -> str:
        """Assume the end of the attempt before, or all of the run so far, if no journal has it. Returns what was
        assumed.
        """
        row, attempt = self._store.run(record.run), record.count("attempt")
        if row is None and attempt > 0:
            self._ask(Register(of=self._registration(record)), LedgerTime(INSTANT_MAX, INSTANT_MAX))
            row = self._store.run(record.run)
            assert row is not None, record.run
            row.state, row.not_before, row.attempt = RETRY, now.wall, record.grant.attempt
            self._put(row)
            return f"no journal tells of the attempts before {attempt}"
        if row is None or row.state not in (RECEIVED, STARTED) or attempt <= row.attempt:
            return ""
        before = row.attempt
        self._ask(self._claim(record, attempt=before, row=row, now=now), now)
        after = self._store.run(record.run)
        if after is None or after.state != RETRY:
            return ""
        return f"no journal tells how attempt {before} ended; its lease could have lapsed by then"

    def _claimed(self, record: Record, claim: Claim, now: LedgerTime, wanted: str = "") -> tuple[Answer, str]:
        """The answer to a claim. If other runs prevent what is recorded, and no journal tells how they ended: they were
        over; then what was assumed is the second value.
        """
        self._job(record.job)
        answer = self._rules.answer(self._store, claim, now)
        as_recorded = answer.state == wanted if wanted else answer.word == GRANTED
        if not as_recorded and (answer.word == LIMITED or answer.ended is not None):
            self._store.rollback()
            unseen = self._end_unseen(record, now)
            answer = self._rules.answer(self._store, claim, now)
            if unseen and answer.word == GRANTED:
                self._store.commit()
                return answer, f"no journal tells how {unseen} ended"
        self._store.commit()
        return answer, ""

    def _end_unseen(self, record: Record, now: LedgerTime) -> str:
        """End other runs without a later record, also those that waited: they were over. Returns their names."""
        later = self._incident.records[self._index :]
        told = {one.run for one in later}
        ended = []
        for row in list(self._store.open.values()):
            if row.run not in told and row.run != record.run and row.state not in TERMINAL:
                over = row.copy()
                over.state, over.ended_at = REVOKED, now.wall
                self._put(over)
                ended.append(row.run)
        return ", ".join(sorted(ended)[:NAMED_MAX])

    def _started(self, record: Record) -> Step:
        grant = record.grant
        now = self._at(record, late=True)
        self._renew(record, now)
        answer = self._ask(Gate(grant=grant, ahead_s=GATE_AHEAD_S), now)
        said = f"started the program of attempt {grant.attempt}"
        if answer.word == OK:
            begun = self._beat_at.get(grant.token, record.at)
            row = self._store.run(record.run)
            if row is not None and record.at - begun < row.lease:
                self._beat_at[grant.token] = record.at  # later, it may be an old start that was journalled late
            return Step(record, DID, said, "the gate opens")
        why = f"the gate stays shut: {sentences.told(answer)}"
        row = self._store.run(record.run)
        if row is not None and (row.attempt, row.token) != (grant.attempt, grant.token):
            why += f"; attempt {row.attempt} of {host_of(row.node)} is current"
        self._follow(record, now, STARTED)
        return Step(record, DID, said, why, "gate")

    def _ended(self, record: Record) -> Step:
        """The holder says how its attempt ended."""
        grant, now = record.grant, self._at(record)
        state = REPORTED[record.kind]
        if state == LOST and record.text("result") == RETRY:
            state = RETRY
        self._renew(record, now)
        exit_code = record.data.get("exit_code")
        code = exit_code if isinstance(exit_code, int) else None
        given_up = state == FAILURE and not self._has_attempt(grant.attempt + 1, record.run)
        row = self._store.run(record.run)
        tries = row is not None and row.failures + 1 < Policy.unpack(row.policy).attempts
        answer = self._ask(
            Report(grant=grant, state=state, exit_code=code, reason=record.text("reason"), final=given_up), now
        )
        reason = record.text("reason")
        said = f"attempt {grant.attempt} ended: {state}" + (f", {reason}" if reason and state != SUCCESS else "")
        row = self._store.run(record.run)
        if answer.word == OK:
            assumed = "no later attempt is recorded: an exit code that is never tried again, or these journals end"
            return Step(record, DID, said, sentences.stands(row), "", assumed if given_up and tries else "")
        if row is not None and row.state in TERMINAL and row.state == state and row.token == grant.token:
            return Step(record, DID, said, f"it is {row.state} already")
        held = f"; attempt {row.attempt} of {host_of(row.node) or 'nobody'} counts" if row is not None else ""
        return Step(record, DID, said, f"refused, {answer.word}: the ledger has given this attempt up{held}")

    def _taken(self, record: Record) -> Step:
        """A claim of this node has ended an attempt, or the run: takeover, missed, rejected, revoked."""
        now = self._at(record, late=True)
        reason = record.text("reason")
        row = self._store.run(record.run)
        told = record.text("result") or {"task-rejected": REJECTED}.get(record.kind, REPORTED.get(record.kind, ""))
        if row is not None and row.state == told:
            return Step(record, DID, f"found it {told}: {reason}", "the same")
        answer, _ = self._claimed(record, self._claim(record, row=row, now=now), now, told)
        after = self._store.run(record.run)
        state = after.state if after is not None else ""
        if told == LOST and state in (RETRY, LOST):
            return Step(record, DID, self._takeover(record, reason), sentences.stands(after))
        if told == state or (told in (LOST, RETRY) and answer.word in (LOST, FINISHED)):
            return Step(record, DID, f"found it {told}: {reason}", sentences.told(answer))
        other = sentences.named(reason)
        if other and self._store.run(other) is None:
            return Step(record, DID, f"found it {told}: {reason}", f"not judged: no journal here has {other}")
        said = self._takeover(record, reason) if told == LOST else f"found it {told}: {reason}"
        rules, difference = sentences.told(answer), "end"
        if told == LOST and answer.word == HELD and row is not None:
            silent_s = record.at - self._beat_at.get(row.token, record.at)
            wanted_s = row.lease * (1 + 2 * RHO)
            rules = f"held: {silent_s:.1f} s after the last sign of its holder, and a lease of {wanted_s:.1f} s"
            difference = "lapse"
        self._follow(record, now, told)
        return Step(record, DID, said, rules, difference)

    def _takeover(self, record: Record, reason: str) -> str:
        holder = host_of(record.text("node"))
        last, back = self._incident.silence(holder, record.at)
        said = f"gives attempt {record.count('attempt')} up: {reason}"
        if last is not None:
            said += f"; {holder} wrote its last line {record.at - last:.1f} s before"
            said += f", and comes back {back - record.at:.1f} s after" if back is not None else " and no other since"
        return said

    # ---- people

    def _asked(self, record: Record) -> Step | None:
        method, by = record.text("method"), record.text("by")
        said = f"{by} asked for {method}" + (" and was refused" if record.text("outcome") == REFUSED else "")
        now, run = self._at(record), self._incident.run
        if record.text("outcome") == REFUSED or method == "run.trigger":
            return Step(record, ASKED, said, "")
        if not record.is_about(run):
            self._asked_beside(record, now)
            return None
        if method == "run.cancel":
            return Step(record, ASKED, said, sentences.told(self._ask(Cancel(run=run, by=by), now)))
        if method == "run.revoke":
            return Step(record, ASKED, said, sentences.told(self._ask(Revoke(run=run, by=by), now)))
        row = self._store.run(run)
        if method == "run.resolve":
            if row is not None and row.state in (RECEIVED, STARTED):
                row.state = UNKNOWN  # that its end became unknown is in no journal
                self._put(row)
            again = row is not None and self._has_attempt(row.attempt + 1, run)
            outcome = "relaunch" if again else self._resolved_as(run)
            request: Resolve | Replay = Resolve(run=run, outcome=outcome, by=by)
        elif method in REPEATS and row is not None:
            digest, policy = (self._granted_word(name, row.attempt + 1) for name in ("digest", "policy"))
            request = Replay(
                run=run,
                attempt=row.attempt,
                digest=digest or row.digest,
                policy=policy or row.policy,
                by=by,
                whole=method == RERUN,
            )
        else:
            return Step(record, ASKED, said, "")
        return Step(
            record, ASKED, said, f"{sentences.told(self._ask(request, now))}; {sentences.stands(self._store.run(run))}"
        )

    def _resolved_as(self, run: str) -> str:
        """As the end in the journal says that a person named; without one (an older version), success."""
        reasons = [one.text("reason") for one in self._incident.records if one.run == run]
        said = next((reason for reason in reasons if reason.startswith(RESOLVED)), "")
        return "failed" if said.startswith(f"{RESOLVED}failed") else "success"

    def _asked_beside(self, record: Record, now: LedgerTime) -> None:
        """An act about another run, or the job."""
        method, by, job = record.text("method"), record.text("by"), job_of(self._incident.run)
        if method not in ("job.suspend", "job.resume"):
            self._openers.append(record)
        elif is_of_job(record.text("subject"), job):
            end = until(record.text("subject"), job)
            self._ask(Suspend(job=job, suspended=method == "job.suspend", by=by, until=end), now)

    def _granted_word(self, name: str, attempt: int) -> str:
        """That field of the first grant of this attempt or a later one; "" if no journal has it."""
        mine = [one for one in self._incident.records if one.run == self._incident.run and one.text(name)]
        return next((one.text(name) for one in mine if one.count("attempt") >= attempt), "")

    # ---- the tables

    def _ask(self, request: Any, now: LedgerTime) -> Answer:
        of = getattr(request, "of", None)
        if isinstance(of, Registration):
            self._job(of.job)
        answer = self._rules.answer(self._store, request, now)
        self._store.commit()
        assert isinstance(answer, Answer), answer
        return answer

    def _job(self, name: str) -> JobRow:
        """The job's row. Its horizon is in no journal: nothing counts as settled."""
        row = self._store.standing(name)
        if row is None:
            row = JobRow(name)
            self._put_job(row)
        else:
            fence = self._store.job(name)
            row.fence = fence.fence if fence is not None else 0
        return row

    def _put_job(self, row: JobRow) -> None:
        self._store.put_job(row.copy())
        self._store.put_standing(row)
        self._store.commit()

    def _put(self, row: Row) -> None:
        self._store.put_run(row)
        self._store.commit()

    def _at(self, record: Record, *, late: bool = False) -> LedgerTime:
        """The record's time. ``late``: as late as it may have been by the ledger's clock."""
        at = record.at + (self._skew_s if late else 0.0)
        return LedgerTime(at, at)

    def _registration(self, record: Record) -> Registration:
        of = record if record.text("digest") else self._defined.get(record.run, record)
        fire_at = of.number("fire_at") or record.at
        return Registration(
            record.run,
            record.job,
            of.text("digest"),
            of.policy() or Policy(),
            fire_at,
            scheduled="#" not in record.run,
            args=record.text("kwargs") or "{}",
            due=of.number("due") or 0.0,
        )

    def _claim(
        self, record: Record, *, attempt: int | None = None, row: Row | None = None, now: LedgerTime | None = None
    ) -> Claim:
        """The claim behind a record. With ``row``: the claimant has watched its holder since its last sign of life."""
        watched = None
        if row is not None and now is not None and row.token:
            since = now.wall - self._beat_at.get(row.token, row.received_at)
            watched = Watched(token=row.token, beat=row.beat, unchanged_s=since)
        grant = record.grant
        if attempt is not None:
            grant.attempt = attempt  # type: ignore[assignment]  # a row's own
        claimant = record.full_hostname if row is not None else record.text("node") or record.full_hostname
        nonce = grant.nonce if row is None else "?"
        return Claim(
            of=self._registration(record),
            attempt=grant.attempt,
            nonce=nonce,
            node=claimant,
            lease_s=record.number("lease") or 60.0,
            watched=watched,
        )

    def _renew(self, record: Record, now: LedgerTime) -> None:
        """Renewals are in no journal: a holder that is heard of under its grant has renewed it."""
        row, grant = self._store.run(record.run), record.grant
        if row is not None and (row.attempt, row.token, row.nonce) == (grant.attempt, grant.token, grant.nonce):
            launched = row.state == STARTED
            self._ask(Renew(grant=grant, lease_s=row.lease, launched=launched), now)

    def _follow(self, record: Record, now: LedgerTime, state: str = RECEIVED) -> None:
        """The tables take over what the record says, whatever the rules say."""
        grant = record.grant
        granted = state in (RECEIVED, STARTED)
        if granted and self._store.run(record.run) is None:
            quarantine = LedgerTime(now.wall, now.lease, recovering_s=1.0)
            self._ask(
                Restore(
                    of=self._registration(record),
                    grant=grant,
                    node=record.text("node"),
                    lease_s=record.number("lease") or 60.0,
                    state=RECEIVED,
                ),
                quarantine,
            )
        row = self._store.run(record.run)
        if row is None:
            return
        if granted:
            row.attempt, row.token, row.nonce = grant.attempt, grant.token, grant.nonce
            row.node, row.lease = record.text("node"), record.number("lease") or 60.0
            row.until, row.state = now.lease + row.lease, state
            row.not_before = min(row.not_before, now.wall)
            job = self._job(record.job)
            job.fence = max(job.fence, grant.token)
            self._put_job(job)
            self._beat_at[grant.token] = record.at
        elif state == LOST:
            row.state, row.attempt, row.not_before = RETRY, grant.attempt + 1, now.wall  # type: ignore[assignment]  # a number
        else:
            row.state, row.ended_at = state, now.wall
        self._put(row)

    def _has_attempt(self, attempt: int, run: str) -> bool:
        return any(one.run == run and one.count("attempt") >= attempt for one in self._incident.records)


def _stamps(record: Record) -> dict[str, tuple[int, int]]:
    value = record.data.get("stamps")
    found = value.items() if isinstance(value, dict) else ()
    return {
        str(name): (stamp[0], stamp[1])
        for name, stamp in found
        if isinstance(stamp, list) and len(stamp) == 2 and all(type(part) is int for part in stamp)
    }
