"""A ledger that went back: its quarantine, and the witnesses that restore what it has forgotten."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from coordd.core import attempt as life
from coordd.core.attempt import Attempt
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.marks.rule import FOUNDING, Marking
from coordd.core.ledger.rows import LedgerTime
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import OK, RECEIVED, STARTED, TERMINAL
from coordd.core.node.node import Node
from coordd.core.runs.witness import Witness
from simulator.machines.server import Server
from simulator.mutants.mutant import Mutant, instead
from simulator.plan import UNHEARD
from simulator.terms import LAG_S, LEASE


@instead(Rules, "gate")
def _gate_opens_in_quarantine(real: Callable[..., Answer], self: Rules, store: Any, said: Any, now: Any) -> Answer:
    row = self._mine(store, said.grant)  # for a forgotten grant, the gate's answer stays the same
    known = row is not None and row.state in (RECEIVED, STARTED)
    then = LedgerTime(now.wall, now.lease, now.boot) if known else now
    return real(self, store, said, then)


@instead(Attempt, "_forgotten")
def _runner_does_not_restore(real: Any, self: Attempt, answer: Answer, now: float) -> None:
    real(self, answer, now)
    self.restoring = False
    self.ask_at = max(self.ask_at, now + 1.0)  # otherwise it would ask without a pause
    self.renew_at = now + 1.0


@instead(Attempt, "answered")
def _report_is_not_repeated(real: Any, self: Attempt, answer: Answer | None, **how: Any) -> None:
    if self.phase == life.REPORTING and answer is not None and answer.word == OK:
        self.recovering_until, answer = 0.0, Answer(OK)
    real(self, answer, **how)


@instead(Witness, "ledger_says")
def _one_quarantine_passes_for_the_next(real: Any, self: Witness, left_s: float, _epoch: str) -> None:
    real(self, left_s, "")


@instead(Witness, "ledger_says")
def _none_after_an_early_end(real: Any, self: Witness, left_s: float, epoch: str) -> None:
    if left_s > 0 or self.recovering:
        real(self, left_s, epoch)
    if left_s <= 0:
        self._answers, self._todo = False, []


@contextlib.contextmanager
def _quarantine_per_caller() -> Iterator[None]:
    """Each caller counts the quarantine from its own first call."""
    begun: dict[tuple[int, int, str], float] = {}

    def whole_s(self: Server, wall: float) -> float:
        if not self.setbacks:
            return 0.0
        since = begun.setdefault((id(self), len(self.setbacks), self.caller), wall)
        return max(0.0, since + LEASE + LAG_S - wall)

    with mock.patch.object(Server, "whole_s", whole_s):
        yield


@instead(Node, "_on_task")
def _peers_are_not_remembered(real: Any, self: Node, event: Any, now: Any) -> None:
    with mock.patch.object(Witness, "saw", lambda self, event: None):
        real(self, event, now)


def _older(self: Rules, row: Any, grant: Grant) -> bool:  # noqa: ARG001  # any grant replaces the row
    return row.state not in TERMINAL and row.token != grant.token


@instead(Marking, "_went_back")
def _a_new_ledger_is_like_any(real: Any, self: Marking, store: Any, before: str, now: LedgerTime) -> Any:
    store.put_meta(FOUNDING, "")
    return real(self, store, before, now)


@instead(Marking, "_kept")
def _the_first_to_vouch_does(real: Any, self: Marking, store: Any, now: LedgerTime) -> Any:
    kept = real(self, store, now)
    if kept is not None and len(kept.awaited) < 3:  # the nodes of these worlds
        kept.awaited.clear()
    return kept


MUTANTS = (
    Mutant(
        "a registration is lost with its grant",
        "§6: a newcomer does not claim for ten seconds",
        "S1",
        lambda: mock.patch.object(Marking, "_newcomer_s", lambda self, store, host, now: 0.0),
        (UNHEARD,),
        forgets=True,
    ),
    Mutant(
        "the first ten seconds are like any",
        "§6: a ledger that was founding keeps its whole quarantine",
        "S1",
        _a_new_ledger_is_like_any,
        (UNHEARD,),
        forgets=True,
    ),
    Mutant(
        "silence is a good mark",
        "§6: each node that was there must vouch",
        "S1 Q",
        _the_first_to_vouch_does,
        (UNHEARD,),
        forgets=True,
    ),
    Mutant(
        "no quarantine",
        "§6: a ledger that went back grants nothing for a lease and the replica's lag",
        "Q R",
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
        "the runner is not a witness",
        "§6: runners put their own grant back",
        "W S1",
        _runner_does_not_restore,
        ("crash", "broker_down"),
        forgets=True,
    ),
    Mutant(
        "a restored grant replaces a newer one",
        "§6: nothing newer is moved back",
        "S1 S2 H",
        lambda: mock.patch.object(Rules, "_is_older", _older),
        ("crash", "kill_runner", "lost_reply"),
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
        "§6: again, when the ledger has gone back again",
        "S1",
        _one_quarantine_passes_for_the_next,
        None,
        forgets=True,
    ),
    Mutant(
        "nothing is put back after an early end",
        "§6: restorations are taken until the whole quarantine is over",
        "W",
        _none_after_an_early_end,
        None,
        forgets=True,
        near=16087485,
    ),
)
