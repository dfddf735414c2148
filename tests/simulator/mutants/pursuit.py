"""Pursuits and sweeps: a run is tried until the ledger says that it is over."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import UNAVAILABLE
from coordd.core.runs import sweep
from coordd.core.runs.leftovers import Leftovers
from coordd.core.runs.pursued import CLAIMING, OWNED
from coordd.core.runs.pursuit import Pursuits
from coordd.core.runs.sweep import Sweep
from simulator.mutants.mutant import Mutant, instead


def _give_up(pursuits: Pursuits, run: str) -> None:
    """Stop pursuing, and never begin again."""
    pursuits.pursuits.pop(run, None)
    pursuits.epitaphs[run] = "given up"


@contextlib.contextmanager
def _never_again() -> Iterator[None]:
    """A pursuit that was given up is never taken up again, not even by a sweep or a new election."""
    real_seen, real_begin = Pursuits._row_seen, Pursuits.begin

    def seen(self: Pursuits, row: Any, now: Any) -> None:
        if self.epitaphs.get(row.run) != "given up":
            real_seen(self, row, now)

    def begin(self: Pursuits, action: Any, now: Any, *more: Any, **rest: Any) -> Any:
        return None if self.epitaphs.get(action.run) == "given up" else real_begin(self, action, now, *more, **rest)

    with mock.patch.object(Pursuits, "_row_seen", seen), mock.patch.object(Pursuits, "begin", begin):
        yield


@contextlib.contextmanager
def _claim_once() -> Iterator[None]:
    real = Pursuits.claim_answered

    def once(self: Pursuits, pursuit: Any, claim: Any, answer: Answer, sent_at: float, now: Any) -> None:
        real(self, pursuit, claim, answer, sent_at, now)
        if answer.word == UNAVAILABLE:
            _give_up(self, claim.of.run)

    with _never_again(), mock.patch.object(Pursuits, "claim_answered", once):
        yield


@contextlib.contextmanager
def _stop_on_received() -> Iterator[None]:
    def heard(self: Pursuits, event: Any, now: Any) -> None:  # noqa: ARG001  # same signature as the replaced method
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


@instead(Sweep, "_page")
def _a_cut_sweep_means_over(real: Any, self: Sweep, answer: Any, sent_at: float, now: Any) -> None:
    answer.after = None
    real(self, answer, sent_at, now)


@contextlib.contextmanager
def _silence_is_an_end() -> Iterator[None]:
    """A run that the feed does not mention is over, and no whole pass begins it again."""
    real = Sweep._fed

    def silent(self: Sweep, answer: Any, sent_at: float, now: Any) -> None:
        answer.gone = sorted(self._pursuits.pursuits.keys() - {row.run for row in answer.runs})
        real(self, answer, sent_at, now)

    with mock.patch.object(Sweep, "_fed", silent), mock.patch.object(sweep, "WHOLE_EVERY", 1_000_000):
        yield


@instead(Sweep, "_named")
def _watched_rows_are_not_named(_real: Any, _sweep: Sweep) -> list[str]:
    return []


@contextlib.contextmanager
def _nobody_settles() -> Iterator[None]:
    """Only nodes that may launch a job look after its rows."""
    with mock.patch.object(Leftovers, "row_seen", lambda self, row, now: None):
        yield


@instead(Claim, "__init__")
def _an_election_is_enough(real: Any, self: Claim, **fields: Any) -> None:
    real(self, **{**fields, "opens": True})


@instead(Pursuits, "_comes_sooner")
def _not_before_its_date(_: Any, _self: Pursuits, *_rest: Any) -> None:
    return None


@contextlib.contextmanager
def _nothing_was_refused() -> Iterator[None]:
    with mock.patch.object(Pursuits, "_was_refused", lambda self, pursuit, now: False):
        yield


MUTANTS = (
    Mutant(
        "an election makes a run",
        "§5: a claim by a node that knows a trigger only from its election makes no row",
        "S8",
        _an_election_is_enough,
    ),
    Mutant(
        "a proposal is pursued for ever",
        "§5: the wait for the record of a trigger is bounded",
        "S8",
        _nothing_was_refused,
        ("ledger_cut", "disk_full", "crash"),
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
        "a cut sweep means over",
        "§6: absence from a page says nothing, only from a whole pass",
        "U",
        _a_cut_sweep_means_over,
        ("kill_runner", "gone"),
    ),
    Mutant(
        "silence in the feed is an end",
        "§6 the feed: a row that it does not mention is not over",
        "U L",
        _silence_is_an_end,
        ("gone", "crash", "kill_runner"),
    ),
    Mutant(
        "watched rows are not named",
        "§6 the feed: silence in it is not watching",
        "L U",
        _watched_rows_are_not_named,
        ("gone",),
    ),
    Mutant(
        "nobody settles what nobody may launch",
        "§6 settle: every row past its start_within ends",
        "U",
        _nobody_settles,
        ("lost_reply", "ledger_down"),
    ),
    Mutant(
        "a run that was not due is asked for at its date only",
        "§5.5: a sweep that says that a run is due sooner moves the question",
        "FS",
        _not_before_its_date,
        near=2228,
    ),
)
