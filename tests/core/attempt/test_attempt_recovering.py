"""The runner's decisions after the ledger lost writes: it restores its grant, and stays until its report is safe."""

from __future__ import annotations

import pytest

from coordd.core.actions import AskReport, AskRestore, Terms
from coordd.core.attempt import Attempt
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import OK, RECOVERING


def recovering(left_s: float = 30.0) -> Answer:
    return Answer(RECOVERING, left_s=left_s, in_s=left_s)


def at_its_gate() -> Attempt:
    attempt = Attempt(
        Terms(
            deadline=160.0,
            lease_s=60.0,
            renew_interval_s=5.0,
            ledger_timeout_s=2.0,
            kill_grace_s=10.0,
            on_lost="relaunch",
        ),
        wait_s=0.0,
        now=100.0,
    )
    attempt.timer(100.0)
    return attempt


def started() -> Attempt:
    attempt = at_its_gate()
    attempt.answered(Answer(OK, left_s=60.0), sent_at=100.0, now=100.0)
    attempt.take_actions()
    return attempt


def words(attempt: Attempt) -> list[object]:
    return [action.word for action in attempt.take_actions()]


def test_a_grant_that_the_ledger_forgot_is_put_back_and_renewed() -> None:
    attempt = started()
    attempt.timer(105.0)
    assert words(attempt) == ["ask_renew"]

    attempt.answered(recovering(), question="ask_renew", sent_at=105.0, now=105.0)
    attempt.timer(105.0)
    assert [action.state for action in attempt.take_actions() if isinstance(action, AskRestore)] == ["started"]
    attempt.answered(Answer(OK), question="ask_restore", sent_at=105.0, now=105.0)
    attempt.timer(105.0)

    assert words(attempt) == ["ask_renew"]
    assert attempt.phase == "running"
    assert attempt.deadline == pytest.approx(100.0 + 60.0 * 0.98, abs=2)  # only a renewal changes the deadline


def test_a_restoration_that_is_not_answered_is_asked_again_and_the_lease_still_ends() -> None:
    attempt = started()
    attempt.timer(105.0)
    attempt.answered(recovering(), question="ask_renew", sent_at=105.0, now=105.0)
    attempt.timer(105.0)
    attempt.answered(None, question="ask_restore", sent_at=105.0, now=107.0)
    attempt.take_actions()

    attempt.timer(107.0)
    assert [action.state for action in attempt.take_actions() if isinstance(action, AskRestore)] == ["started"]
    attempt.timer(attempt.deadline - 9.9)

    assert "term" in words(attempt)


def test_an_end_that_the_ledger_cannot_place_is_restored_and_then_reported_again_while_it_recovers() -> None:
    attempt = started()
    attempt.ended(0, now=110.0)
    assert words(attempt) == ["ask_report"]

    attempt.answered(recovering(30.0), question="ask_report", sent_at=110.0, now=110.0)
    attempt.timer(110.0)
    assert [action.state for action in attempt.take_actions() if isinstance(action, AskRestore)] == ["started"]
    attempt.answered(Answer(OK), question="ask_restore", sent_at=110.0, now=110.0)
    attempt.timer(110.0)
    assert words(attempt) == ["ask_report"]
    attempt.answered(Answer(OK), question="ask_report", sent_at=110.0, now=110.0)
    assert attempt.phase == "reporting"  # the ledger may forget the restoration too

    attempt.timer(attempt.timer_at())
    assert words(attempt) == ["ask_report"]
    attempt.answered(Answer(OK), question="ask_report", sent_at=141.0, now=141.0)

    assert words(attempt) == ["exit"]


def test_an_attempt_that_never_ran_is_put_back_as_one_that_was_not_launched() -> None:
    attempt = at_its_gate()
    attempt.take_actions()
    attempt.shut_down("the machine stops", now=105.0)
    attempt.answered(recovering(30.0), question="ask_report", sent_at=105.0, now=105.0)
    attempt.timer(105.0)
    assert [action.state for action in attempt.take_actions() if isinstance(action, AskRestore)] == ["received"]


def test_the_gate_of_a_forgotten_grant_stays_shut_until_it_is_put_back() -> None:
    attempt = at_its_gate()
    assert words(attempt) == ["ask_gate"]

    attempt.answered(recovering(), question="ask_gate", sent_at=100.0, now=100.0)
    asked: list[object] = []
    now = 100.0
    for _ in range(6):
        attempt.timer(now)
        for action in attempt.take_actions():
            asked.append(action.word)
            if isinstance(action, AskRestore):
                assert action.state == "received"
            if action.word == "ask_restore":
                attempt.answered(Answer(OK), question="ask_restore", sent_at=now, now=now)
            elif action.word == "ask_gate":
                attempt.answered(Answer(OK, left_s=60.0), question="ask_gate", sent_at=now, now=now)
        now = min(attempt.timer_at(), now + 1.0)

    assert asked.index("ask_restore") < asked.index("ask_gate") < asked.index("exec")


def test_a_late_word_of_a_quarantine_is_remembered_when_the_end_is_reported() -> None:
    attempt = started()
    attempt.timer(105.0)
    attempt.ended(0, now=106.0)
    attempt.answered(recovering(30.0), question="ask_renew", sent_at=105.0, now=106.5)

    attempt.answered(Answer(OK), question="ask_report", sent_at=106.0, now=107.0)

    assert attempt.phase == "reporting", "a ledger that recovers may forget once more what it has taken"
    attempt.answered(Answer(OK), question="ask_report", sent_at=137.0, now=137.0)
    assert attempt.phase == "done"


def test_who_reports_to_a_ledger_that_recovers_stays_to_say_it_again_until_that_is_over() -> None:
    attempt = started()
    attempt.ended(0, now=106.0)
    attempt.take_actions()

    attempt.answered(Answer(OK, left_s=30.0), question="ask_report", sent_at=106.0, now=106.1)

    assert attempt.phase == "reporting"
    attempt.timer(attempt.timer_at())
    (end,) = [action for action in attempt.take_actions() if isinstance(action, AskReport)]
    assert (end.state, end.exit_code, end.reason, end.final) == ("success", 0, "", False)
    attempt.answered(Answer(OK), question="ask_report", sent_at=136.0, now=136.2)
    assert attempt.phase == "done"
