"""The gate ahead of the fire time: when it is asked, and what happens between its answer and the program's start."""

from __future__ import annotations

import math

import pytest

from coordd.core.actions import ASK_GATE, ASK_RENEW, ASK_REPORT, PET, AskGate, Exec
from coordd.core.attempt import (
    DONE,
    EARLY_MAX_S,
    FIRST_TRIP_S,
    HEAD_START_S,
    LEAD_S,
    MOVES,
    READY,
    REPORTING,
    RUNNING,
    TRIPS,
    WAITING,
)
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import CANCEL, EARLY, GATE_AHEAD_S, LOST, OK, RECOVERING, REVOKED, RHO, STALE
from core.attempt.one_runner import DEADLINE, GRACE_S, LEASE_S, START, Runner, left, renewed

LEFT_S = 0.1


def opens(in_s: float = LEFT_S) -> Answer:
    """The gate is open that long ahead of the fire time."""
    return Answer(OK, left_s=LEASE_S, in_s=in_s)


def ready(in_s: float = LEFT_S, *, trip_s: float = 0.02, **terms: object) -> Runner:
    runner = Runner(**terms)  # type: ignore[arg-type]  # typed where the keywords are made
    runner.answer(opens(in_s), after_s=trip_s)
    assert runner.attempt.phase == READY
    return runner


def executed_at(runner: Runner) -> float:
    (at,) = [action.at for action in runner.done if isinstance(action, Exec)]
    return at


def asked_ahead(runner: Runner) -> float:
    """How far ahead of the fire time the last gate could be answered."""
    return [action.ahead_s for action in runner.done if isinstance(action, AskGate)][-1]


def test_the_time_that_is_left_counts_from_the_receipt_of_the_answer() -> None:
    runner = ready(trip_s=0.02)
    received_at = runner.now

    runner.wait(1.0)

    assert executed_at(runner) == received_at + LEFT_S * (1 + 2 * RHO)


def test_the_program_is_told_a_little_ahead_of_its_instant_and_the_watcher_not_before() -> None:
    runner = ready()
    starts_at = runner.now + LEFT_S * (1 + 2 * RHO)

    assert runner.wait(starts_at - HEAD_START_S - 0.0001 - runner.now) == []
    assert runner.wait(0.0002) == [PET, "exec"]

    assert runner.attempt.phase == RUNNING
    assert executed_at(runner) == pytest.approx(starts_at)


def test_a_runner_that_wakes_late_starts_at_once_and_not_in_the_past() -> None:
    runner = ready()

    runner.sleep(2.0)

    assert executed_at(runner) == runner.now


def test_it_asks_ahead_by_the_measured_round_trip_and_a_little() -> None:
    runner = Runner(wait_s=12.0)
    trip_s = 0.02
    for _ in range(6):  # so that nothing is left of the first guess
        runner.attempt.renew_at = runner.now
        assert ASK_RENEW in runner.sleep(0.0)
        runner.answer(left(), after_s=trip_s)
    while ASK_GATE not in runner.wait(0.001):
        if runner.attempt.renewing:
            runner.answer(left(), after_s=trip_s)

    lead_s = LEAD_S + TRIPS * trip_s
    assert START + 12.0 - runner.now == pytest.approx(lead_s, abs=0.0015)
    assert asked_ahead(runner) == pytest.approx(2 * lead_s)


def test_it_asks_ahead_by_a_guess_if_nothing_was_measured() -> None:
    runner = Runner(wait_s=0.3)

    assert ASK_GATE not in runner.wait(0.3 - LEAD_S - TRIPS * FIRST_TRIP_S - 0.001)
    assert ASK_GATE in runner.wait(0.002)


def test_a_slow_ledger_is_asked_at_most_so_long_ahead() -> None:
    runner = Runner(wait_s=20.0)
    runner.wait(0.1)
    runner.answer(left(), after_s=1.5)
    while ASK_GATE not in runner.wait(0.01):
        if runner.attempt.renewing:
            runner.answer(left(), after_s=1.5)

    assert START + 20.0 - runner.now <= GATE_AHEAD_S
    assert asked_ahead(runner) == GATE_AHEAD_S


def test_an_older_ledger_that_opens_no_gate_ahead_is_asked_again_at_the_fire_time() -> None:
    runner = Runner(wait_s=1.0)
    while ASK_GATE not in runner.wait(0.01):
        if runner.attempt.renewing:
            runner.answer(left())
    in_s = asked_ahead(runner) * 0.8

    runner.answer(Answer(EARLY, in_s=in_s), after_s=0.0)
    told_at = runner.now

    assert ASK_GATE not in runner.wait(in_s - 0.0001)
    assert ASK_GATE in runner.wait(0.0002)
    assert runner.now == pytest.approx(told_at + in_s, abs=0.0002)
    runner.answer(left())
    assert runner.attempt.phase in (READY, RUNNING)


@pytest.mark.parametrize("in_s", [GATE_AHEAD_S + 0.01, 3600.0, math.inf, math.nan])
def test_a_rest_that_no_gate_can_have_is_no_leave(in_s: float) -> None:
    """The ledger's clock was set back between its decision and its answer, or the answer is damaged."""
    runner = Runner()

    assert runner.answer(opens(in_s)) == []
    assert runner.attempt.phase == WAITING
    asked_again_at = runner.now + min(EARLY_MAX_S, in_s)
    while ASK_GATE not in runner.wait(0.01):
        if runner.attempt.renewing:
            runner.answer(left())
    assert runner.now <= asked_again_at
    assert runner.answer(left()) == [PET, "exec"]


def test_it_starts_not_before_the_nodes_own_clock_shows_the_fire_time_either() -> None:
    """The ledger's clock is a little ahead."""
    runner = Runner(wait_s=1.0)
    while ASK_GATE not in runner.wait(0.001):
        if runner.attempt.renewing:
            runner.answer(left())

    assert runner.answer(left(), after_s=0.001) == []
    runner.wait(1.0)

    assert executed_at(runner) == START + 1.0


def test_a_rest_below_nothing_is_nothing() -> None:
    runner = Runner()

    assert runner.answer(opens(-5.0)) == [PET, "exec"]
    assert executed_at(runner) == runner.now


@pytest.mark.parametrize(("word", "state"), [("cancel", "revoked"), ("shut_down", "retry")])
def test_who_is_told_to_end_before_the_fire_time_executes_nothing(word: str, state: str) -> None:
    runner = ready()

    assert runner.do(word, "somebody") == [ASK_REPORT]
    assert runner.report == (state, None, "somebody", False)
    runner.wait(5.0)
    assert "exec" not in runner.words
    assert PET not in runner.words


@pytest.mark.parametrize(
    ("question", "word", "phase"),
    [
        (ASK_RENEW, CANCEL, REPORTING),
        (ASK_GATE, REVOKED, REPORTING),
        (ASK_RENEW, LOST, DONE),
        (ASK_GATE, STALE, DONE),
        (ASK_RENEW, OK, READY),
        (ASK_GATE, RECOVERING, READY),
    ],
)
def test_a_late_answer_that_says_no_counts_until_the_start(question: str, word: str, phase: str) -> None:
    runner = ready()

    runner.answer(Answer(word), question=question)

    assert runner.attempt.phase == phase
    runner.wait(0.2)
    assert ("exec" in runner.words) == (phase == READY)


def test_a_second_leave_does_not_move_the_instant() -> None:
    runner = ready()
    starts_at = runner.attempt.exec_at

    runner.answer(opens(0.001), question=ASK_GATE)

    assert runner.attempt.exec_at == starts_at


@pytest.mark.parametrize("on_lost", ["relaunch", "hold"])
def test_the_deadline_is_looked_at_again_while_it_waits(on_lost: str) -> None:
    near = START + GRACE_S + LEFT_S / 2
    runner = ready(on_lost=on_lost, deadline=near)

    assert runner.wait(LEFT_S / 2 + 0.01) == [ASK_REPORT]

    assert runner.report[0] == "retry"


def test_the_last_check_looks_at_the_instant_of_the_start() -> None:
    runner = ready()

    assert runner.attempt.may_exec(runner.attempt.exec_at)
    assert not runner.attempt.may_exec(DEADLINE - GRACE_S)


def test_the_lease_is_renewed_as_if_it_had_started_at_the_answer() -> None:
    runner = ready()
    runner.wait(LEFT_S * 2)
    renewed(runner)


def test_nothing_leads_back_from_an_open_gate() -> None:
    assert MOVES[READY] == {RUNNING, REPORTING, DONE}
