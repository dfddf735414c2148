"""Safety mechanisms turned off, one at a time: the simulator must find each. The product has no such switches.

Each mutant replaces one small method of the real code by its literal opposite. ``faults`` narrows the worlds
to those in which the mechanism matters (None: any world), so that the first seed that shows it comes soon.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from support import memory

from coordd.core import attempt as life
from coordd.core.attempt import Attempt
from coordd.core.clock import LamportClock
from coordd.core.context import Context
from coordd.core.election import Election
from coordd.core.ledger import steps as running
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.identity import IS_FOREIGN, admit
from coordd.core.ledger.rows import LedgerTime, Policy
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.words import OK, RECEIVED, RHO, STALE, STARTED, TERMINAL, UNAVAILABLE
from coordd.core.node.brake import Brake
from coordd.core.node.definitions import Definitions
from coordd.core.node.elections import Ballots
from coordd.core.node.node import Node
from coordd.core.runs import lease_watch, pursuit as pursuing
from coordd.core.runs.leftovers import Leftovers
from coordd.core.runs.pursued import CLAIMING, HELD_BY_OTHER, OWNED
from coordd.core.runs.pursuit import Pursuits
from coordd.core.runs.sweep import Sweep
from coordd.core.runs.witness import Witness
from coordd.core.wire.envelope import _State
from coordd.core.wire.windows import DUPLICATE, LATE, _Window
from simulator.machines.server import Server
from simulator.plan import MISPLACED, PINNED
from simulator.terms import LAG_S, LEASE
from simulator.world import World

Patch = Callable[[], contextlib.AbstractContextManager[object]]


@dataclass(frozen=True)
class Mutant:
    """One mechanism less."""

    name: str
    rule: str
    caught_as: str  # the property that breaks
    patch: Patch
    faults: tuple[str, ...] | None = None
    forgets: bool = False  # only worlds whose ledger loses acknowledged writes


def instead(owner: type, name: str) -> Callable[[Callable[..., Any]], Patch]:
    """Makes a patch of a function: it is called instead of that method, which it gets as its first argument."""
    real = getattr(owner, name)

    def patch(function: Callable[..., Any]) -> Patch:
        return lambda: mock.patch.object(owner, name, lambda *args, **named: function(real, *args, **named))

    return patch


def _give_up(pursuits: Pursuits, run: str) -> None:
    """Stop pursuing, and never begin again."""
    pursuits.pursuits.pop(run, None)
    pursuits.epitaphs[run] = "given up"


@contextlib.contextmanager
def _never_again() -> Iterator[None]:
    """What was given up stays given up: the sweep and new elections pass it over."""
    real_seen, real_begin = Pursuits._row_seen, Pursuits.begin

    def seen(self: Pursuits, row: Any, now: Any) -> None:
        if self.epitaphs.get(row.run) != "given up":
            real_seen(self, row, now)

    def begin(self: Pursuits, action: Any, now: Any, **rest: Any) -> Any:
        return None if self.epitaphs.get(action.run) == "given up" else real_begin(self, action, now, **rest)

    with mock.patch.object(Pursuits, "_row_seen", seen), mock.patch.object(Pursuits, "begin", begin):
        yield


@contextlib.contextmanager
def _claim_once() -> Iterator[None]:
    real = Pursuits.claim_answered

    def once(self: Pursuits, request: int, answer: Answer, sent_at: float, now: Any) -> None:
        run = self._asked[request][1].of.run
        real(self, request, answer, sent_at, now)
        if answer.word == UNAVAILABLE:
            _give_up(self, run)

    with _never_again(), mock.patch.object(Pursuits, "claim_answered", once):
        yield


@contextlib.contextmanager
def _stop_on_received() -> Iterator[None]:
    def heard(self: Pursuits, event: Any, now: Any) -> None:  # noqa: ARG001
        if event.run in self.pursuits and self.pursuits[event.run].phase not in (OWNED, CLAIMING):
            _give_up(self, event.run)

    with _never_again(), mock.patch.object(Pursuits, "heard", heard):
        yield


@contextlib.contextmanager
def _abstention_is_final() -> Iterator[None]:
    real = Pursuits.decided

    def decided(self: Pursuits, election: Any, now: Any) -> None:
        real(self, election, now)
        run = election.action.run if election.action else ""
        if run in self.pursuits and self.pursuits[run].rank is None:
            _give_up(self, run)

    with _never_again(), mock.patch.object(Pursuits, "decided", decided):
        yield


@contextlib.contextmanager
def _a_lost_member_loses_its_attempts() -> Iterator[None]:
    real_lost, real_claim = Node._members_changed, Rules.claim

    def changed(self: Node, now: Any) -> None:
        gone = {m.name for what, m in self.ctx.membership.changes if what == "lost"}
        real_lost(self, now)
        for one in list(self.pursuits.pursuits.values()):
            if one.phase == HELD_BY_OTHER and one.owner in gone:
                self.pursuits._next_attempt(one, one.attempt + 1, 0.0, now)

    def claim(self: Rules, store: Any, claim: Any, now: Any) -> Answer:
        row = store.run(claim.of.run)
        if row is not None and claim.attempt == row.attempt + 1 and row.state == STARTED:
            self._lose(store, row, "its node was lost", now)
        return real_claim(self, store, claim, now)

    with mock.patch.object(Node, "_members_changed", changed), mock.patch.object(Rules, "claim", claim):
        yield


@instead(Rules, "gate")
def _gate_answers_once(
    real: Callable[..., Answer], self: Rules, store: Any, run: str, attempt: int, token: int, nonce: str, now: Any
) -> Answer:
    row = self._mine(store, run, attempt, token, nonce)
    return (
        Answer(STALE)
        if row is not None and row.state == STARTED
        else real(self, store, run, attempt, token, nonce, now)
    )


@contextlib.contextmanager
def _the_ledgers_time_alone() -> Iterator[None]:
    """Neither the ledger asks for a watch, nor does a node keep one."""
    with (
        mock.patch.object(Rules, "_lapsed", lambda self, row, watched, now: self._past(row, now)),
        mock.patch.object(lease_watch.LeaseWatch, "ripe_at", lambda self: self.since),
    ):
        yield


@instead(Rules, "_lapsed")
def _claim_on_unexpired(real: Callable[..., bool], self: Rules, row: Any, watched: Any, now: Any) -> bool:
    return row.state == RECEIVED or real(self, row, watched, now)


@instead(Rules, "gate")
def _gate_opens_in_quarantine(
    real: Callable[..., Answer], self: Rules, store: Any, run: str, attempt: int, token: int, nonce: str, now: Any
) -> Answer:
    row = self._mine(store, run, attempt, token, nonce)  # of a forgotten grant it says so, as ever
    known = row is not None and row.state in (RECEIVED, STARTED)
    then = LedgerTime(now.wall, now.lease, now.boot) if known else now
    return real(self, store, run, attempt, token, nonce, then)


@instead(Attempt, "_forgotten")
def _runner_does_not_restore(real: Any, self: Attempt, answer: Answer, now: float) -> None:
    real(self, answer, now)
    self.restoring = False
    self.ask_at = max(self.ask_at, now + 1.0)  # else it would ask without a pause
    self.renew_at = now + 1.0


@instead(Attempt, "answered")
def _report_is_not_repeated(real: Any, self: Attempt, answer: Answer | None, **how: Any) -> None:
    if self.phase == life.REPORTING and answer is not None and answer.word == OK:
        self.recovering_until, answer = 0.0, Answer(OK)
    real(self, answer, **how)


@instead(Witness, "ledger_says")
def _one_quarantine_passes_for_the_next(real: Any, self: Witness, left_s: float, _epoch: str) -> None:
    real(self, left_s, "")


@contextlib.contextmanager
def _quarantine_per_caller() -> Iterator[None]:
    """Each caller counts from when it finds it itself."""
    begun: dict[tuple[int, int, str], float] = {}

    def recovering_s(self: Server, wall: float) -> float:
        if not self.setbacks:
            return 0.0
        since = begun.setdefault((id(self), len(self.setbacks), self.caller), wall)
        return max(0.0, since + LEASE + LAG_S - wall)

    with mock.patch.object(Server, "recovering_s", recovering_s):
        yield


@contextlib.contextmanager
def _clocks_never_differ() -> Iterator[None]:
    with contextlib.ExitStack() as patches:
        for module in (life, lease_watch, pursuing, running):
            patches.enter_context(mock.patch.object(module, "RHO", 0.0))
        yield


@contextlib.contextmanager
def _the_tolerance_is_added() -> Iterator[None]:
    """A holder believes in its lease for longer than the ledger lends it."""
    with contextlib.ExitStack() as patches:
        for module in (life, pursuing):
            patches.enter_context(mock.patch.object(module, "RHO", -RHO))
        patches.enter_context(
            mock.patch.object(lease_watch.LeaseWatch, "ripe_at", lambda self: self.since + self.lease_s)
        )
        yield


@instead(Node, "_on_task")
def _peers_are_not_remembered(real: Any, self: Node, event: Any, now: Any) -> None:
    with mock.patch.object(Witness, "saw", lambda self, event: None):
        real(self, event, now)


def _older(self: Rules, row: Any, token: int) -> bool:  # noqa: ARG001  # whatever comes replaces it
    return row.state not in TERMINAL and row.token != token


@instead(Election, "state")
def _any_statement_counts(_real: Any, self: Election, name: str, candidacy: Any) -> bool:
    """Statements are counted, not who made them: as Celery counts acks."""
    if self.succession is not None:
        return False
    self.statements[name] = candidacy
    self.missing.discard(min(self.missing, default=name))
    return not self.missing


@instead(Ballots, "elect_heard")
def _own_view(real: Any, self: Ballots, event: Any, sender: str, now: Any) -> Any:
    """Whoever hears of an election waits for those whom it knows itself, not for the opener's view."""
    event.view = self._ctx.membership.view()
    return real(self, event, sender, now)


@instead(Attempt, "answered")
def _lease_from_the_answer(real: Any, self: Attempt, answer: Any, *, now: float, **how: Any) -> None:
    real(self, answer, **{**how, "sent_at": now}, now=now)


@instead(Rules, "_mine")
def _any_holder(_real: Any, _rules: Rules, store: Any, run: str, attempt: int, _token: int, _nonce: str) -> Any:
    """Whoever names the attempt is taken for its holder."""
    row = store.run(run)
    return row if row is not None and row.attempt == attempt else None


@instead(Rules, "report")
def _terminal_states_are_left(
    real: Any, self: Rules, store: Any, run: str, attempt: int, token: int, nonce: str, state: str, *rest: Any
) -> Any:
    row = self._mine(store, run, attempt, token, nonce)
    if row is not None and row.state in TERMINAL and state in TERMINAL:
        row.state = state
        store.put_run(row)
    return real(self, store, run, attempt, token, nonce, state, *rest)


@instead(Rules, "prune")
def _retention_forgets_the_horizon(_real: Any, _rules: Rules, store: Any, keep_s: float, limit: int, now: Any) -> int:
    rows = store.ended_runs(now.wall - keep_s, limit)
    for row in rows:
        store.drop_run(row.run)
    return len(rows)


@instead(Rules, "_job")
def _a_new_job_starts_at_the_epoch(real: Any, self: Rules, store: Any, name: str, *rest: Any) -> Any:
    new = store.job(name) is None
    row = real(self, store, name, *rest)
    if new:
        row.horizon = 0.0
        self._put_job(store, row)
    return row


@instead(Rules, "_first_counts_from")
def _a_new_schedule_counts_from_before(_: Any, self: Rules, store: Any, job: Any, how: Any, now: Any) -> float:  # noqa: ARG001
    return float(job.horizon)


@contextlib.contextmanager
def _half_a_lease_is_watched() -> Iterator[None]:
    def lapsed(self: Rules, row: Any, watched: Any, now: Any) -> bool:
        return self._past(row, now) and watched is not None and watched[:2] == (row.token, row.beat)

    with (
        mock.patch.object(Rules, "_lapsed", lapsed),
        mock.patch.object(lease_watch.LeaseWatch, "ripe_at", lambda self: self.since + self.lease_s / 2),
    ):
        yield


@instead(Pursuits, "_observe")
def _a_watch_outlives_a_new_beat(
    real: Any, self: Pursuits, pursuit: Any, token: int, beat: int, lease_s: float, now: Any
) -> None:
    """That the holder has renewed meanwhile is not looked at."""
    watch = pursuit.watch
    if watch is not None and watch.token == token:
        watch.beat, watch.last_at = beat, now.mono
    else:
        real(self, pursuit, token, beat, lease_s, now)


@instead(Rules, "gate")
def _the_gate_knows_no_time(
    real: Callable[..., Answer], self: Rules, store: Any, run: str, attempt: int, token: int, nonce: str, now: Any
) -> Answer:
    row = self._mine(store, run, attempt, token, nonce)
    if row is not None and row.state == RECEIVED and row.not_before > now.wall:
        row.not_before = now.wall
        store.put_run(row)
    return real(self, store, run, attempt, token, nonce, now)


@instead(Rules, "commit")
def _commit_twice(
    real: Callable[..., Answer], self: Rules, store: Any, run: str, attempt: int, token: int, nonce: str, now: Any
) -> Answer:
    row = self._mine(store, run, attempt, token, nonce)
    if row is not None:
        row.commit_token = 0
        store.put_run(row)
    return real(self, store, run, attempt, token, nonce, now)


@instead(Rules, "_lose")
def _hold_is_relaunched(_real: Any, self: Rules, store: Any, row: Any, reason: str, now: Any) -> None:
    row.relaunches += 1
    self._relaunch(store, row, Policy.unpack(row.policy), reason, now)


@instead(Context, "record")
def _intents_are_not_synced(real: Any, self: Context, event: Any, now: Any, **_sync: bool) -> None:
    real(self, event, now)


@instead(World, "mono")
def _bus_and_ledger_by_wall_clock(real: Callable[..., float], self: World, host: Any) -> float:
    """What must never step does."""
    return real(self, host) + float(host.skew)


@instead(_Window, "_hear_late")
def _the_backlog_acts(real: Any, self: Any, seq: int) -> str:
    return "" if real(self, seq) == LATE else DUPLICATE


def _never_a_duplicate(self: Any, seq: int) -> str:
    self.high = max(self.high, seq)
    return ""


@instead(Context, "definition")
def _a_reload_changes_what_is_launched(_real: Any, self: Context, job: str, _digest: str) -> Any:
    return self.jobs.get(job)


@instead(Sweep, "_page")
def _a_cut_sweep_means_over(real: Any, self: Sweep, answer: Any, sent_at: float, now: Any) -> None:
    answer.after = None
    real(self, answer, sent_at, now)


@contextlib.contextmanager
def _nobody_settles() -> Iterator[None]:
    """As if only those who may launch a job cared for its rows."""
    with mock.patch.object(Leftovers, "row_seen", lambda self, row, now: None):
        yield


def _no_identity_is_compared(self: Brake, now: Any) -> None:
    """Every node uses the ledger that it sees first."""
    ctx, braked = self._ctx, self._ctx.braked
    if self._seen and not ctx.pinned:
        self._pin(ctx.ledger)
    if self._seen or ctx.pinned:
        ctx.braked, ctx.split = "", False
    if braked and not ctx.braked:
        self._released(now)


@instead(Brake, "_judge_first_start")
def _a_tie_launches(real: Any, self: Brake, others: Any, differing: Any, now: Any) -> None:
    ours = 1 + sum(member.ledger == self._ctx.ledger for member in others)
    if 2 * ours == 1 + len(others) and all(member.ledger for member in others):
        self._pin(self._ctx.ledger)
        self._become("", split=False)
    else:
        real(self, others, differing, now)


def _a_flush_is_another_ledger(store: Any, known: Any, *, recovering: bool) -> str:
    """An identity that is absent is refused, also where the pinned one was."""
    if known.pin and not store.meta("identity"):
        return IS_FOREIGN
    return admit(store, known, recovering=recovering)


MUTANTS = (
    Mutant(
        "an identity is not compared",
        "§6 Brake: a strict majority before the first launch",
        "B",
        lambda: mock.patch.object(Brake, "judge", _no_identity_is_compared),
        (MISPLACED,),
    ),
    # Both halves have pinned their ledger then, and stop each other.
    Mutant("a tie launches", "§6 Brake: a tie launches nothing", "L", _a_tie_launches, (MISPLACED,)),
    Mutant(
        "a flush is another ledger",
        "§6 Whose ledger: absent at the same address, the pin is written",
        "W",
        lambda: mock.patch.object(memory, "admit", _a_flush_is_another_ledger),
        (PINNED, "crash"),
        forgets=True,
    ),
    Mutant(
        "a lost member loses its attempts",
        "§4: a member being lost never makes an attempt lost",
        "C",
        _a_lost_member_loses_its_attempts,
        ("bus_cut", "loss"),
    ),
    Mutant(
        "a reload changes what is launched",
        "§7: what is executed is the definition of the row's digest",
        "D",
        _a_reload_changes_what_is_launched,
        ("lost_reply", "slow", "crash"),
    ),
    Mutant(
        "a cut sweep means over",
        "§6: absence from a page says nothing, only from a whole pass",
        "U",
        _a_cut_sweep_means_over,
        ("kill_runner", "gone"),
    ),
    Mutant(
        "nobody settles what nobody may launch",
        "§6 settle: every row past its start_within ends",
        "U",
        _nobody_settles,
        ("lost_reply", "ledger_down"),
    ),
    Mutant(
        "claim once",
        "§5.5: pursued until the ledger answers that it is over",
        "L",
        _claim_once,
        ("ledger_down", "lost_reply"),
    ),
    Mutant(
        "stop on task-received",
        "§5.5: received and held postpone, they never cancel",
        "L",
        _stop_on_received,
        ("gone",),
    ),
    Mutant(
        "an abstention is final",
        "§5.5: those that abstained and have become eligible since claim too",
        "L",
        _abstention_is_final,
        ("late_join", "gone"),
    ),
    Mutant(
        "tokens from a bare counter",
        "§6 Tokens: max(last + 1, the ledger's time)",
        "S3",
        lambda: mock.patch.object(Rules, "_next_token", lambda self, job, now: job.fence + 1),
        None,
        forgets=True,
    ),
    Mutant(
        "the ledger's time alone",
        "§6 Lapsed: and the claimant has itself watched a whole lease",
        "C",
        _the_ledgers_time_alone,
        ("ledger_step", "connection_lost"),
    ),
    Mutant(
        "a loose watchdog",
        "§7: a stopped runner must not leave Spark running",
        "S2",
        lambda: mock.patch.object(life, "watcher_kill_at", lambda deadline, grace: deadline + 10.0),
        ("pause_runner",),
    ),
    Mutant(
        "no deadline check before exec",
        "§7: right before exec the deadline is checked again",
        "S2",
        lambda: mock.patch.object(Attempt, "may_exec", lambda self, now: True),
        ("freeze", "targeted"),
    ),
    Mutant(
        "the gate answers once", "§6: idempotent for the same token and nonce", "G", _gate_answers_once, ("lost_reply",)
    ),
    Mutant(
        "no quarantine",
        "§6: a ledger that went back grants nothing for a lease and the replica's lag",
        "R",
        lambda: mock.patch.object(Server, "begin_quarantine", lambda self: None),
        None,
        forgets=True,
    ),
    Mutant(
        "a quarantine per caller",
        "§6: one quarantine, counted from the first operation that finds it",
        "Q",
        _quarantine_per_caller,
        None,
        forgets=True,
    ),
    Mutant(
        "the gate opens in quarantine",
        "§6: nothing is launched while the ledger recovers",
        "Q",
        _gate_opens_in_quarantine,
        None,
        forgets=True,
    ),
    Mutant(
        "no witness",
        "§6: nodes put back what they have seen",
        "W",
        lambda: mock.patch.object(Witness, "_go_on", lambda self: None),
        None,
        forgets=True,
    ),
    Mutant(
        "a witness forgets everything",
        "§6: nodes put back what they have seen",
        "W",
        lambda: mock.patch.object(Witness, "saw", lambda self, event: None),
        None,
        forgets=True,
    ),
    Mutant(
        "what peers say is not witnessed",
        "§6: witnesses are the journal and the gossip",
        "S1",
        _peers_are_not_remembered,
        None,
        forgets=True,
    ),
    Mutant(
        "clocks never differ",
        "§7: less the clock-rate error of both sides",
        "I13",
        _clocks_never_differ,
        ("ledger_cut", "pause_runner"),
    ),
    Mutant(
        "the clock-rate error is added",
        "§7: less the clock-rate error of both sides",
        "I13",
        _the_tolerance_is_added,
        ("ledger_cut", "pause_runner"),
    ),
    Mutant(
        "the runner is not a witness",
        "§6: runners put their own grant back",
        "W",
        _runner_does_not_restore,
        ("crash", "broker_down"),
        forgets=True,
    ),
    Mutant(
        "a restored grant replaces a newer one",
        "§6: nothing newer is moved back",
        "S1",
        lambda: mock.patch.object(Rules, "_is_older", _older),
        None,
        forgets=True,
    ),
    Mutant(
        "a final report is said once",
        "§6: runners repeat their final report while the ledger recovers",
        "R",
        _report_is_not_repeated,
        None,
        forgets=True,
    ),
    Mutant(
        "one quarantine passes for the next",
        "§6: anew when the ledger has gone back again",
        "S1",
        _one_quarantine_passes_for_the_next,
        None,
        forgets=True,
    ),
    Mutant(
        "late news is a sign of life",
        "§4: liveness is what is heard now",
        "M",
        lambda: mock.patch.object(Node, "receive_late", Node.receive),
        ("broker_down", "connection_lost"),
    ),
    Mutant("claim on an unexpired row", "§6 claim: absent, or claimed and lapsed", "C", _claim_on_unexpired, None),
    Mutant(
        "any statement counts for any member",
        "§5.2: one statement a node, known by its name",
        "A",
        _any_statement_counts,
        ("duplication", "slow", "late_join"),
    ),
    Mutant(
        "everybody decides on its own view",
        "§5.1, 5.3: the view is frozen in the election",
        "A",
        _own_view,
        ("late_join", "loss", "mute"),
    ),
    Mutant(
        "a lease counts from its answer",
        "§7: from when the request was sent",
        "I13",
        _lease_from_the_answer,
        ("pause_runner", "ledger_cut", "ledger_deaf"),
    ),
    Mutant(
        "token and nonce are not compared",
        "§6: (token, nonce) is compared, never one alone",
        "G",
        _any_holder,
        ("freeze", "targeted", "ledger_cut"),
    ),
    Mutant("a terminal state is left", "§9 S5", "S5", _terminal_states_are_left),
    Mutant(
        "a settled fire time is opened again",
        "§6 Horizon: older ones are finished",
        "S5",
        lambda: mock.patch.object(Rules, "_settled", lambda *_: False),
        ("pause_daemon", "freeze", "late_join", "step"),
    ),
    Mutant(
        "retention forgets the horizon",
        "§6 Horizon: retention never re-opens a run",
        "S5",
        _retention_forgets_the_horizon,
        ("pause_daemon", "freeze", "late_join", "step"),
    ),
    Mutant(
        "a new job starts at the epoch",
        "§6 Horizon: a new job starts at its first registration",
        "N",
        _a_new_job_starts_at_the_epoch,
    ),
    Mutant(
        "a new schedule counts from before",
        "§6 Definitions: it counts from its activation",
        "N",
        _a_new_schedule_counts_from_before,
        ("edit", "pause_daemon"),
    ),
    Mutant(
        "what returns was never away",
        "§6 Definitions: a job that returns counts from its return",
        "N",
        lambda: mock.patch.object(Definitions, "_look", lambda self: None),
        ("remove", "ledger_down"),
    ),
    Mutant(
        "a lease may be longer",
        "§6: nobody lends more than a lease",
        "K",
        lambda: mock.patch.object(running, "left_of", lambda row, now: row.until - now.lease),
        ("ledger_glitch", "ledger_step", "connection_lost"),
    ),
    Mutant(
        "half a lease is watched",
        "§6 Lapsed: a whole lease, and more",
        "C",
        _half_a_lease_is_watched,
        ("ledger_step", "ledger_cut", "ledger_deaf", "connection_lost"),
    ),
    Mutant(
        "a watch outlives a new beat",
        "§6 Lapsed: the same (token, beat)",
        "C",
        _a_watch_outlives_a_new_beat,
        ("ledger_step", "connection_lost"),
    ),
    Mutant(
        "the runner does not fence itself",
        "§7: ended when the lease cannot be renewed",
        "F",
        lambda: mock.patch.object(Attempt, "_fences", lambda self: False),
        ("ledger_cut",),
    ),
    Mutant(
        "the wall clock for CLOCK_BOOTTIME",
        "§7: deadlines on CLOCK_BOOTTIME",
        "F",
        _bus_and_ledger_by_wall_clock,
        ("step", "ledger_cut"),
    ),
    Mutant(
        "a backlog replays elections",
        "§3, S8: backlog messages never launch anything",
        "S6",
        _the_backlog_acts,
        ("straggler", "broker_down", "forged"),
    ),
    Mutant(
        "a message counts twice",
        "§3: a window against replay",
        "S6",
        lambda: mock.patch.object(_Window, "hear", _never_a_duplicate),
        ("forged", "duplication"),
    ),
    Mutant(
        "no MAC",
        "§3 Envelope",
        "S6",
        lambda: mock.patch.object(_State, "mac", lambda self, payload: bytes(32)),
        ("forged",),
    ),
    Mutant("the gate opens early", "§6 gate: not before the fire time", "E", _the_gate_knows_no_time),
    Mutant(
        "overlap is not looked at",
        "§6 claim: within the job's limits",
        "O",
        lambda: mock.patch.object(Rules, "_overlap", lambda *_: None),
    ),
    Mutant("a run is published twice", "§6 commit: no commit yet", "S4", _commit_twice),
    Mutant("a held run is launched again", "§6 claim: UNKNOWN under hold", "H", _hold_is_relaunched),
    Mutant("intents are not synced", "§7: journal the intent, fsync", "I12", _intents_are_not_synced),
    Mutant(
        "the clock's mark is not kept",
        "§2: a node that restarts never goes back",
        "I8",
        lambda: mock.patch.object(LamportClock, "reserve", lambda self: None),
        ("crash", "power"),
    ),
)
