"""The runner's decisions, request by request: its questions, when it starts the program,
and when it ends the program.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from coordd.core import attempt as life
from coordd.core.actions import ASK_GATE, ASK_RENEW, ASK_REPORT, EXEC, EXIT, PET, Pet
from coordd.core.attempt import (
    ASK_AGAIN_S,
    DONE,
    ENDING,
    GATING,
    QUIET_S,
    READY,
    REPORTING,
    RUNNING,
    WAITING,
    lease_deadline,
)
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import CANCEL, EARLY, LOST, REVOKED, STALE
from core.attempt.one_runner import (
    DEADLINE,
    GRACE_S,
    LEASE_S,
    RENEW_S,
    START,
    TIMEOUT_S,
    Runner,
    left,
    renewed,
    running,
)

# ---- the gate


def test_a_run_that_is_due_asks_the_gate_at_once_and_starts_when_it_opens() -> None:
    runner = Runner()
    assert runner.words == [ASK_GATE]

    words = runner.answer(left(50.0))

    assert words == [PET, EXEC]  # the watcher comes first, so no program runs without one
    pet = runner.done[-2]
    assert isinstance(pet, Pet)
    assert pet.deadline == lease_deadline(START, LEASE_S)  # the deadline uses the whole granted lease


def test_a_lease_of_which_little_is_left_is_renewed_at_once() -> None:
    """The answer to the claim came late. A whole interval later, half of the rest would be
    gone (simulator, seed 1950).
    """
    runner = Runner()
    runner.answer(left(LEASE_S / 2))
    assert ASK_RENEW in runner.wait(0.0)


def test_it_waits_for_its_time_and_keeps_the_lease_meanwhile() -> None:
    runner = Runner(wait_s=12.0)
    asked = []
    while runner.attempt.phase == WAITING:
        for word in runner.wait(0.25):
            asked.append((word, round(runner.now - START, 2)))
            if word == ASK_RENEW:
                runner.answer(left())

    assert [word for word, _ in asked] == [ASK_RENEW, ASK_RENEW, ASK_RENEW, ASK_GATE]
    assert asked[0][1] == pytest.approx(
        0.25, abs=0.01
    )  # at the first timer, so that everything is ready when the gate is asked
    assert asked[-1][1] == pytest.approx(12.0, abs=0.1)


@pytest.mark.parametrize("late_s", [0.0, 0.2, 0.7])
def test_no_renewal_begins_shortly_before_the_gate_and_nothing_spins(late_s: float) -> None:
    runner = Runner(wait_s=RENEW_S + QUIET_S + 0.1)

    words = runner.sleep(RENEW_S + late_s)  # the runner was woken late

    assert words == ([ASK_RENEW] if late_s < 0.1 else [] if late_s < 0.6 else [ASK_GATE])
    assert runner.attempt.timer_at() > runner.now


def test_early_waits_by_the_ledgers_word() -> None:
    runner = Runner()

    runner.answer(Answer(EARLY, in_s=3.0))
    assert runner.attempt.phase == WAITING
    assert ASK_GATE not in runner.wait(2.98)
    words = runner.wait(2.0)

    assert ASK_GATE in words


@pytest.mark.parametrize("word", [STALE, LOST])
def test_a_gate_that_is_another_ones_ends_it_without_a_word(word: str) -> None:
    runner = Runner()

    assert runner.answer(Answer(word)) == [EXIT]
    assert runner.attempt.phase == DONE


def test_a_gate_that_was_revoked_is_reported() -> None:
    runner = Runner()

    runner.answer(Answer(REVOKED))

    assert runner.report == ("revoked", None, "cancelled before it started", False)


def test_an_unanswered_gate_is_asked_again_and_given_up_while_the_lease_holds() -> None:
    runner = Runner()

    words = runner.wait(DEADLINE - GRACE_S - START - 0.1)
    assert set(words) == {ASK_GATE}
    assert len(words) >= 20
    words = runner.wait(TIMEOUT_S)

    assert ASK_REPORT in words
    assert runner.report[0] == "retry"  # the program certainly never started


def test_a_gate_that_answers_too_late_starts_nothing() -> None:
    runner = Runner(deadline=START + GRACE_S + 1.0)

    words = runner.answer(left(GRACE_S), after_s=1.5)

    assert words == [ASK_REPORT]
    assert runner.report == ("retry", None, "refused: the gate's answer came too late to start", False)


def test_right_before_exec_the_deadline_is_looked_at_again() -> None:
    runner = running()
    assert runner.attempt.may_exec(DEADLINE - GRACE_S - 0.1)
    assert not runner.attempt.may_exec(DEADLINE - GRACE_S)
    runner.now = DEADLINE

    runner.do("refused_late")

    assert runner.report == ("retry", None, "refused: too late right before exec", False)


def test_a_program_that_died_before_exec_was_not_started() -> None:
    runner = running()

    runner.attempt.refused_late(now=runner.now, reason="its process died")
    assert ASK_REPORT in runner.take()

    assert runner.report == ("retry", None, "refused: its process died", False)


@pytest.mark.parametrize(
    ("how", "report"), [("cancel", ("revoked", "by ann")), ("shut_down", ("retry", "refused: too late"))]
)
def test_what_ends_it_right_before_exec_is_what_it_reports(how: str, report: tuple[str, str]) -> None:
    """It never ran. Only a cancellation forbids the next attempt."""
    runner = running()
    runner.do(how, "by ann")

    runner.do("refused_late")

    assert runner.report is not None
    state, _, reason, _ = runner.report
    assert state == report[0]
    assert str(reason).startswith(report[1])


@pytest.mark.parametrize("phase", [WAITING, GATING])
@pytest.mark.parametrize(("how", "state"), [("cancel", "revoked"), ("shut_down", "retry")])
def test_before_it_starts_it_can_be_called_off(phase: str, how: str, state: str) -> None:
    runner = Runner(wait_s=30.0 if phase == WAITING else 0.0)
    assert runner.attempt.phase == phase

    runner.do(how, "by ann")

    assert runner.report == (state, None, "by ann", False)
    assert EXEC not in runner.words


@pytest.mark.parametrize(
    ("answer", "phase"), [(left(word=CANCEL), REPORTING), (Answer(LOST), DONE)], ids=["cancelled", "lost"]
)
def test_while_it_waits_the_lease_may_be_taken(answer: Answer, phase: str) -> None:
    runner = Runner(wait_s=30.0)
    runner.wait(RENEW_S)

    runner.answer(answer)

    assert runner.attempt.phase == phase
    assert EXEC not in runner.words


# ---- the lease


def test_a_deadline_is_counted_from_when_the_question_left() -> None:
    runner = running()
    runner.wait(RENEW_S)
    sent_at = runner.asked_at

    words = runner.answer(left(), after_s=1.9)

    assert words == [PET]
    assert runner.attempt.deadline == lease_deadline(sent_at, LEASE_S)
    assert runner.attempt.deadline < runner.now + LEASE_S - 1.9


def test_a_deadline_never_moves_back() -> None:
    runner = running()
    before = runner.attempt.deadline
    runner.wait(RENEW_S)

    runner.answer(left(3.0))

    assert runner.attempt.deadline == before


def test_it_renews_every_interval_as_long_as_it_runs() -> None:
    runner = running()

    renewed(runner, times=100)

    assert runner.attempt.phase == RUNNING
    assert runner.now - START == pytest.approx(100 * RENEW_S, rel=0.01)


def test_an_unanswered_renewal_is_asked_again_as_soon_as_it_has_timed_out() -> None:
    runner = running()
    runner.wait(RENEW_S)

    runner.answer(None, after_s=TIMEOUT_S)  # the connection reports the timeout at this very moment

    assert runner.wait(0.0) == [ASK_RENEW]


def test_a_renewal_that_fails_at_once_is_not_repeated_in_a_circle() -> None:
    runner = running()
    runner.wait(RENEW_S)

    runner.answer(None, after_s=0.001)

    assert runner.wait(ASK_AGAIN_S - 0.01) == []
    assert runner.wait(0.02) == [ASK_RENEW]


def test_a_renewal_that_nobody_answers_is_asked_again_after_the_timeout() -> None:
    runner = running()
    runner.wait(RENEW_S)

    assert runner.wait(TIMEOUT_S - 0.02) == []
    assert runner.wait(0.04) == [ASK_RENEW]


def test_news_for_the_ledger_bring_the_renewal_forward() -> None:
    runner = running()

    runner.do("hurry")

    assert runner.wait(0.0) == [ASK_RENEW]


def test_news_that_come_while_a_renewal_is_out_are_not_left_behind() -> None:
    runner = running()
    runner.wait(RENEW_S)
    runner.do("hurry")  # for example because of the application id, which the pending renewal does not contain

    runner.answer(left())

    assert runner.wait(0.0) == [ASK_RENEW]
    runner.answer(left())
    assert runner.wait(RENEW_S - 0.1) == []


# ---- late answers


def test_a_late_renewal_does_not_pass_for_the_reports_answer() -> None:
    runner = running()
    runner.wait(RENEW_S)
    runner.do("ended", 0)

    runner.answer(left(), question=ASK_RENEW)

    assert runner.attempt.phase == REPORTING


def test_a_late_gate_does_not_pass_for_a_renewal() -> None:
    runner = Runner()
    runner.wait(TIMEOUT_S + 0.1)  # the request was sent twice
    runner.answer(left(), question=ASK_GATE)
    deadline = runner.attempt.deadline

    words = runner.answer(Answer(STALE), question=ASK_GATE)

    assert (words, runner.attempt.phase, runner.attempt.deadline) == ([], RUNNING, deadline)


def test_a_late_renewal_of_the_same_grant_still_counts() -> None:
    runner = Runner(wait_s=RENEW_S + 1.0)
    runner.wait(RENEW_S)
    sent_at = runner.asked_at
    runner.wait(TIMEOUT_S + 0.1)
    runner.answer(left(), question=ASK_GATE)
    assert runner.attempt.phase == RUNNING

    runner.attempt.answered(left(LEASE_S), sent_at=sent_at, now=runner.now, question=ASK_RENEW)

    assert runner.attempt.deadline == lease_deadline(sent_at, LEASE_S)


def test_no_renewal_is_believed_to_lend_more_than_a_lease() -> None:
    runner = running()
    runner.wait(RENEW_S)
    sent_at = runner.asked_at

    runner.answer(left(LEASE_S + 3600.0))

    assert runner.attempt.deadline == lease_deadline(sent_at, LEASE_S)


@pytest.mark.parametrize("left_s", [LEASE_S, LEASE_S + 60.0])
def test_the_gate_lends_nothing_its_ledgers_clock_may_have_been_set_back(left_s: float) -> None:
    runner = Runner()
    before = runner.attempt.deadline
    runner.wait(0.2)

    runner.answer(left(left_s), question=ASK_GATE)

    assert runner.attempt.phase == RUNNING
    assert runner.attempt.deadline == before


# ---- for every history


HAPPENS = ("wait", "ok", "early", "lost", "none", "stale", "cancel word", "cancel", "hurry", "shut_down", "ended")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(HAPPENS), st.floats(0.0, 8.0)), max_size=30),
    st.floats(0.0, 20.0),
    st.sampled_from(["relaunch", "hold"]),
)
def test_it_never_spins_never_starts_twice_and_never_outlives_its_lease(
    history: list[tuple[str, float]], wait_s: float, on_lost: str
) -> None:
    runner = Runner(wait_s=wait_s, on_lost=on_lost, timeout_s=30.0)
    answers = {
        "ok": left(),
        "early": Answer(EARLY, in_s=1.0),
        "lost": Answer(LOST),
        "none": None,
        "stale": Answer(STALE),
        "cancel word": left(word=CANCEL),
    }
    for word, seconds in history:
        runner.sleep(seconds)
        if word in answers:
            runner.answer(answers[word], after_s=0.0)
        elif word == "ended":
            if runner.attempt.phase in (RUNNING, ENDING):
                runner.do("ended", 0)
        elif word != "wait":
            runner.do(word, *([] if word == "hurry" else ["somebody"]))
        runner.attempt.timer(runner.now)
        runner.take()
        assert runner.attempt.timer_at() > runner.now, "woken again without anything to do"
        if runner.attempt.phase == RUNNING and on_lost == "relaunch":
            assert runner.now < runner.attempt.deadline - GRACE_S

    words = runner.words
    assert words.count(EXEC) <= 1
    assert words.count(EXIT) <= 1
    if EXEC in words and EXIT in words:
        assert ASK_REPORT in words


def test_the_phases_go_one_way() -> None:
    after = {WAITING: 0, GATING: 0, READY: 1, RUNNING: 2, ENDING: 3, REPORTING: 4, DONE: 5}

    for phase, nexts in life.MOVES.items():
        assert all(after[following] >= after[phase] for following in nexts)
