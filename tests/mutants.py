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

from simulator.server import Server
from simulator.terms import LAG_S, LEASE

from coordd.core import attempt as life, pursuit as pursuing
from coordd.core.attempt import Attempt
from coordd.core.ledger import Rules
from coordd.core.node import Node
from coordd.core.pursuit import Pursuits
from coordd.core.rows import RECEIVED, STALE, STARTED, TERMINAL, UNAVAILABLE, Answer, LedgerTime
from coordd.core.witness import Witness


@dataclass(frozen=True)
class Mutant:
    """One mechanism less."""

    name: str
    rule: str
    caught_as: str  # the property that breaks
    patch: Callable[[], contextlib.AbstractContextManager[object]]
    faults: tuple[str, ...] | None = None
    forgets: bool = False  # only worlds whose ledger loses acknowledged writes


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
        run = self._asked.get(request, "")
        real(self, request, answer, sent_at, now)
        if answer.word == UNAVAILABLE:
            _give_up(self, run)

    with _never_again(), mock.patch.object(Pursuits, "claim_answered", once):
        yield


@contextlib.contextmanager
def _stop_on_received() -> Iterator[None]:
    def heard(self: Pursuits, event: Any, now: Any) -> None:  # noqa: ARG001
        if event.run in self.pursuits and self.pursuits[event.run].phase not in (pursuing.OWNED, pursuing.CLAIMING):
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
            if one.phase == pursuing.HELD_BY_OTHER and one.owner in gone:
                self.pursuits._next_attempt(one, one.attempt + 1, 0.0, now)

    def claim(self: Rules, store: Any, claim: Any, now: Any) -> Answer:
        row = store.run(claim.of.run)
        if row is not None and claim.attempt == row.attempt + 1 and row.state == STARTED:
            self._lose(store, row, "its node was lost", now)
        return real_claim(self, store, claim, now)

    with mock.patch.object(Node, "_members_changed", changed), mock.patch.object(Rules, "claim", claim):
        yield


@contextlib.contextmanager
def _gate_answers_once() -> Iterator[None]:
    real = Rules.gate

    def gate(self: Rules, store: Any, run: str, attempt: int, token: int, nonce: str, now: Any) -> Answer:
        row = self._mine(store, run, attempt, token, nonce)
        return (
            Answer(STALE)
            if row is not None and row.state == STARTED
            else real(self, store, run, attempt, token, nonce, now)
        )

    with mock.patch.object(Rules, "gate", gate):
        yield


@contextlib.contextmanager
def _the_ledgers_time_alone() -> Iterator[None]:
    """Neither the ledger asks for a watch, nor does a node keep one."""
    with (
        mock.patch.object(Rules, "_lapsed", lambda self, row, claim, now: self._past(row, now)),
        mock.patch.object(pursuing.LeaseWatch, "ripe_at", lambda self: self.since),
    ):
        yield


def _claim_on_unexpired() -> Any:
    real = Rules._lapsed
    return mock.patch.object(
        Rules, "_lapsed", lambda self, row, claim, now: row.state == RECEIVED or real(self, row, claim, now)
    )


@contextlib.contextmanager
def _gate_opens_in_quarantine() -> Iterator[None]:
    real = Rules.gate

    def gate(self: Rules, store: Any, run: str, attempt: int, token: int, nonce: str, now: Any) -> Answer:
        return real(self, store, run, attempt, token, nonce, LedgerTime(now.wall, now.lease, now.boot))

    with mock.patch.object(Rules, "gate", gate):
        yield


@contextlib.contextmanager
def _runner_does_not_restore() -> Iterator[None]:
    real = Attempt._forgotten

    def forgotten(self: Attempt, answer: Answer, now: float) -> None:
        real(self, answer, now)
        self.restoring = False
        self.ask_at = max(self.ask_at, now + 1.0)  # else it would ask without a pause
        self.renew_at = now + 1.0

    with mock.patch.object(Attempt, "_forgotten", forgotten):
        yield


@contextlib.contextmanager
def _report_is_not_repeated() -> Iterator[None]:
    real = Attempt._forgotten

    def forgotten(self: Attempt, answer: Answer, now: float) -> None:
        real(self, answer, now)
        self.recovering_until = 0.0

    with mock.patch.object(Attempt, "_forgotten", forgotten):
        yield


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


def _older(self: Rules, row: Any, token: int) -> bool:  # noqa: ARG001  # whatever comes replaces it
    return row.state not in TERMINAL and row.token != token


MUTANTS = (
    Mutant(
        "a lost member loses its attempts", "§4: a member being lost never makes an attempt lost", "S2",
        _a_lost_member_loses_its_attempts, ("bus_cut", "loss"),
    ),
    Mutant(
        "claim once", "§5.5: pursued until the ledger answers that it is over", "L",
        _claim_once, ("ledger_down", "lost_reply"),
    ),
    Mutant(
        "stop on task-received", "§5.5: received and held postpone, they never cancel", "L",
        _stop_on_received, ("gone",),
    ),
    Mutant(
        "an abstention is final", "§5.5: those that abstained and have become eligible since claim too", "L",
        _abstention_is_final, ("late_join", "gone"),
    ),
    Mutant(
        "tokens from a bare counter", "§6 Tokens: max(last + 1, the ledger's time)", "S3",
        lambda: mock.patch.object(Rules, "_next_token", lambda self, job, now: job.fence + 1), None, forgets=True,
    ),
    Mutant(
        "the ledger's time alone", "§6 Lapsed: and the claimant has itself watched a whole lease", "S2",
        _the_ledgers_time_alone, ("ledger_step",),
    ),
    Mutant(
        "a loose watchdog", "§7: a stopped runner must not leave Spark running", "S2",
        lambda: mock.patch.object(life, "watcher_kill_at", lambda deadline, grace: deadline + 10.0), ("pause_runner",),
    ),
    Mutant(
        "no deadline check before exec", "§7: right before exec the deadline is checked again", "S2",
        lambda: mock.patch.object(Attempt, "may_exec", lambda self, now: True), ("freeze",),
    ),
    Mutant(
        "the gate answers once", "§6: idempotent for the same token and nonce", "G",
        _gate_answers_once, ("lost_reply",),
    ),
    Mutant(
        "no quarantine", "§6: a ledger that went back grants nothing for a lease and the replica's lag", "Q",
        lambda: mock.patch.object(Server, "begin_quarantine", lambda self: None), None, forgets=True,
    ),
    Mutant(
        "a quarantine per caller", "§6: one quarantine, counted from the first operation that finds it", "Q",
        _quarantine_per_caller, None, forgets=True,
    ),
    Mutant(
        "the gate opens in quarantine", "§6: nothing is launched while the ledger recovers", "Q",
        _gate_opens_in_quarantine, None, forgets=True,
    ),
    Mutant(
        "no witness", "§6: nodes put back what they have seen", "S1",
        lambda: mock.patch.object(Witness, "_go_on", lambda self: None), None, forgets=True,
    ),
    Mutant(
        "the runner is no witness", "§6: runners put their own grant back", "S1",
        _runner_does_not_restore, ("crash", "broker_down"), forgets=True,
    ),
    Mutant(
        "a restored grant replaces a newer one", "§6: nothing newer is moved back", "S1",
        lambda: mock.patch.object(Rules, "_is_older", _older), None, forgets=True,
    ),
    Mutant(
        "a final report is said once", "§6: runners repeat their final report while the ledger recovers", "R",
        _report_is_not_repeated, None, forgets=True,
    ),
    Mutant(
        "late news is a sign of life", "§4: liveness is what is heard now", "M",
        lambda: mock.patch.object(Node, "receive_late", Node.receive), ("broker_down", "connection_lost"),
    ),
    Mutant("claim on an unexpired row", "§6 claim: absent, or claimed and lapsed", "C", _claim_on_unexpired, None),
)  # fmt: skip
