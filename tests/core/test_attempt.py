"""The runner's decisions, question by question: what it asks and when, what it starts, and when it ends it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from coordd.core import attempt as life
from coordd.core.attempt import (
    ASK_AGAIN_S,
    ASK_GATE,
    ASK_RENEW,
    ASK_REPORT,
    DONE,
    ENDING,
    EXEC,
    EXIT,
    GATING,
    KILL,
    KILL_PART,
    PET,
    QUIET_S,
    REPORT_LIMIT_S,
    REPORTING,
    RUNNING,
    TERM,
    WAITING,
    Attempt,
    Terms,
    lease_deadline,
    watcher_kill_at,
)
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import CANCEL, EARLY, LOST, OK, REVOKED, RHO, STALE

START = 1000.0
LEASE_S, RENEW_S, TIMEOUT_S, GRACE_S = 60.0, 5.0, 2.0, 10.0
DEADLINE = START + LEASE_S * (1 - 2 * RHO)


class Runner:
    """An attempt, its clock, and what it was told to do."""

    def __init__(self, *, wait_s: float = 0.0, deadline: float = DEADLINE, **terms: object) -> None:
        self.now = START
        held = {"on_lost": "relaunch", **terms}
        self.attempt = Attempt(
            Terms(
                deadline=deadline,
                lease_s=LEASE_S,
                renew_interval_s=RENEW_S,
                ledger_timeout_s=TIMEOUT_S,
                kill_grace_s=GRACE_S,
                **held,  # type: ignore[arg-type]
            ),
            wait_s=wait_s,
            now=START,
        )
        self.done: list[tuple[object, ...]] = []
        self.asked_at = START
        self.attempt.timer(START)
        self.take()

    def take(self) -> list[object]:
        """The words of what is to be done now."""
        actions = self.attempt.take_actions()
        self.done += actions
        if any(str(action[0]).startswith("ask") for action in actions):
            self.asked_at = self.now
        return [action[0] for action in actions]

    def wait(self, seconds: float) -> list[object]:
        """Time passes and nobody answers; everything that it wants done meanwhile."""
        end = self.now + seconds
        words = []
        while (at := self.attempt.timer_at()) <= end:
            self.now = max(self.now, at)
            self.attempt.timer(self.now)
            words += self.take()
        self.now = end
        return words

    def sleep(self, seconds: float) -> list[object]:
        """The process stands still so long; then its timer is looked at."""
        self.now += seconds
        self.attempt.timer(self.now)
        return self.take()

    def answer(self, answer: Answer | None, *, after_s: float = 0.01, question: str = "") -> list[object]:
        """The answer to what was asked last, so much later."""
        self.now = max(self.now, self.asked_at + after_s)
        self.attempt.answered(answer, sent_at=self.asked_at, now=self.now, question=question)
        return self.take()

    def do(self, what: str, *args: object, **more: object) -> list[object]:
        getattr(self.attempt, what)(*args, now=self.now, **more)
        return self.take()

    @property
    def report(self) -> tuple[object, ...]:
        """(state, exit code, reason, final) of the first report."""
        return next(action[1:] for action in self.done if action[0] == ASK_REPORT)


def left(seconds: float = LEASE_S, word: str = OK) -> Answer:
    return Answer(word, left_s=seconds)


def running(**terms: object) -> Runner:
    """Past the gate, at START and a little."""
    runner = Runner(**terms)  # type: ignore[arg-type]
    runner.answer(left())
    assert runner.attempt.phase == RUNNING
    return runner


def renewed(runner: Runner, times: int = 1) -> None:
    for _ in range(times):
        assert ASK_RENEW in runner.wait(RENEW_S)
        runner.answer(left())


# ---- the gate


def test_a_run_that_is_due_asks_the_gate_at_once_and_starts_when_it_opens() -> None:
    runner = Runner()
    assert runner.done == [(ASK_GATE,)]

    words = runner.answer(left(50.0))

    assert words == [PET, EXEC]  # the watcher first: nothing runs unwatched
    assert runner.done[-2] == (PET, lease_deadline(START, LEASE_S))  # what was granted is not shortened


def test_a_lease_of_which_little_is_left_is_renewed_at_once() -> None:
    """The claim was answered late; a whole interval later half of what is left would be gone (simulator, seed 1950)."""
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
    assert asked[0][1] == pytest.approx(0.25, abs=0.01)  # at the first look: the gate's call is to find all warm
    assert asked[-1][1] == pytest.approx(12.0, abs=0.1)


@pytest.mark.parametrize("late_s", [0.0, 0.2, 0.7])
def test_no_renewal_begins_shortly_before_the_gate_and_nothing_spins(late_s: float) -> None:
    runner = Runner(wait_s=RENEW_S + QUIET_S + 0.1)

    words = runner.sleep(RENEW_S + late_s)  # it was woken late

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
    assert runner.report[0] == "retry"  # it certainly never started


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


@pytest.mark.parametrize("phase", [WAITING, GATING])
@pytest.mark.parametrize(("how", "state"), [("cancel", "revoked"), ("shut_down", "retry")])
def test_before_it_starts_it_can_be_called_off(phase: str, how: str, state: str) -> None:
    runner = Runner(wait_s=30.0 if phase == WAITING else 0.0)
    assert runner.attempt.phase == phase

    runner.do(how, "by ann")

    assert runner.report == (state, None, "by ann", False)
    assert (EXEC,) not in runner.done


@pytest.mark.parametrize(
    ("answer", "phase"), [(left(word=CANCEL), REPORTING), (Answer(LOST), DONE)], ids=["cancelled", "lost"]
)
def test_while_it_waits_the_lease_may_be_taken(answer: Answer, phase: str) -> None:
    runner = Runner(wait_s=30.0)
    runner.wait(RENEW_S)

    runner.answer(answer)

    assert runner.attempt.phase == phase
    assert (EXEC,) not in runner.done


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

    runner.answer(None, after_s=TIMEOUT_S)  # the connection says so at the very moment

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
    runner.do("hurry")  # the application id, say: that renewal left without it

    runner.answer(left())

    assert runner.wait(0.0) == [ASK_RENEW]
    runner.answer(left())
    assert runner.wait(RENEW_S - 0.1) == []


# ---- the end of the lease


def test_without_renewals_it_is_ended_while_the_lease_still_holds() -> None:
    runner = running()

    words = runner.wait(DEADLINE - START)

    done = [word for word in words if word in (TERM, KILL)]
    assert done == [TERM, KILL]
    assert runner.attempt.ended_by == "the lease could not be renewed"


def test_term_leaves_at_the_grace_and_kill_well_before_the_watchers() -> None:
    runner = running()
    instants: dict[object, float] = {}
    while runner.now < DEADLINE:
        for word in runner.wait(0.01):
            instants.setdefault(word, runner.now)

    assert instants[TERM] == pytest.approx(DEADLINE - GRACE_S, abs=0.02)
    assert instants[KILL] == pytest.approx(DEADLINE - GRACE_S * KILL_PART, abs=0.02)
    assert instants[KILL] < watcher_kill_at(DEADLINE, GRACE_S) < DEADLINE


def test_a_runner_that_stood_still_past_its_deadline_kills_at_once_without_term() -> None:
    runner = running()

    words = runner.sleep(DEADLINE - START + 5.0)

    assert KILL in words
    assert TERM not in words
    runner.do("ended", -9)
    assert runner.report == ("lost", -9, "the lease deadline had passed when the runner could act again", False)


def test_a_job_that_is_held_is_never_killed_for_want_of_a_ledger() -> None:
    runner = running(on_lost="hold")

    words = runner.wait(10 * LEASE_S)

    assert TERM not in words
    assert KILL not in words
    assert words.count(ASK_RENEW) > 100  # and goes on asking


@pytest.mark.parametrize("on_lost", ["relaunch", "hold"])
def test_an_attempt_that_the_ledger_has_given_up_is_ended(on_lost: str) -> None:
    runner = running(on_lost=on_lost)
    runner.wait(RENEW_S)

    assert runner.answer(Answer(LOST)) == [TERM]
    runner.do("ended", -15)

    assert runner.report == ("lost", -15, "the ledger has given this attempt up", False)


# ---- cancel, timeout, shut down


@pytest.mark.parametrize(
    ("how", "state", "reason"),
    [("ledger", "revoked", "cancelled"), ("cancel", "revoked", "by ann"), ("shut_down", "lost", "by ann")],
)
def test_what_ends_a_program_is_what_is_reported(how: str, state: str, reason: str) -> None:
    runner = running()
    if how == "ledger":
        runner.wait(RENEW_S)
        words = runner.answer(left(word=CANCEL))
    else:
        words = runner.do(how, "by ann")
    assert TERM in words

    runner.do("ended", -15)

    assert runner.report == (state, -15, reason, False)


def test_a_timeout_is_a_failure() -> None:
    runner = running(timeout_s=12.0)
    renewed(runner, 2)
    assert TERM not in runner.wait(1.9)

    assert TERM in runner.wait(0.2)
    runner.do("ended", 0)  # it was told to go, and went

    assert runner.report == ("failure", 0, "timeout after 12 s", False)


def test_who_ignores_term_is_killed_when_the_grace_is_over_and_the_lease_is_kept_until_then() -> None:
    runner = running()
    runner.do("cancel", "by ann")

    words = runner.wait(GRACE_S * (1 - KILL_PART) - 0.05)
    assert KILL not in words
    assert ASK_RENEW in words
    words = runner.wait(0.1)

    assert words.count(KILL) == 1


def test_kill_does_not_wait_for_the_grace_where_the_lease_ends_sooner() -> None:
    runner = running()
    runner.wait(DEADLINE - GRACE_S - runner.now - 0.5)
    runner.do("cancel", "by ann")

    assert runner.attempt.kill_at == pytest.approx(min(runner.now + 7.0, DEADLINE - GRACE_S * KILL_PART))


def test_the_first_reason_counts() -> None:
    runner = running()
    runner.do("cancel", "by ann")
    runner.do("cancel", "by bob")
    runner.do("shut_down", "the machine goes down")
    runner.do("ended", -15)

    assert runner.report == ("revoked", -15, "by ann", False)


def test_the_first_reason_counts_also_when_the_lease_runs_out_over_it() -> None:
    runner = running()
    runner.do("cancel", "by ann")

    assert KILL in runner.sleep(2 * LEASE_S)
    runner.do("ended", -9)

    assert runner.report == ("revoked", -9, "by ann", False)


# ---- the end of the program


@pytest.mark.parametrize(
    ("exit_code", "state", "reason"),
    [(0, "success", ""), (3, "failure", "exit code 3"), (-9, "failure", "ended by signal 9")],
)
def test_the_exit_code_decides(exit_code: int, state: str, reason: str) -> None:
    runner = running()

    runner.do("ended", exit_code)

    assert runner.report == (state, exit_code, reason, False)


@pytest.mark.parametrize(
    ("exit_code", "says", "final"), [(65, False, True), (3, True, True), (3, False, False), (0, True, False)]
)
def test_a_failure_may_forbid_another_try(exit_code: int, says: bool, final: bool) -> None:
    runner = running(final_exit_codes=(65,))

    runner.do("ended", exit_code, final=says)

    assert runner.report[3] is final


def test_a_program_that_cannot_be_executed_is_a_failure() -> None:
    runner = running()

    runner.do("exec_failed", "no such file")

    assert runner.report == ("failure", 127, "no such file", False)


# ---- the report


@pytest.mark.parametrize("word", [OK, STALE])
def test_it_leaves_when_the_ledger_has_taken_the_report(word: str) -> None:
    runner = running()
    runner.do("ended", 0)

    assert runner.answer(Answer(word)) == [EXIT]
    assert runner.attempt.timer_at() == float("inf")


def test_a_report_is_repeated_until_it_is_taken() -> None:
    runner = running()
    runner.do("ended", 0)

    for _ in range(20):
        assert runner.answer(None, after_s=TIMEOUT_S) == []
        assert runner.wait(RENEW_S + 0.01) == [ASK_REPORT]

    assert runner.answer(Answer(OK)) == [EXIT]


def test_a_report_that_nobody_takes_is_given_up_in_the_end() -> None:
    runner = running()
    runner.do("ended", 0)

    words = runner.wait(REPORT_LIMIT_S + 2 * TIMEOUT_S)

    assert words[-1] == EXIT
    assert words.count(ASK_REPORT) > 100


def test_nothing_moves_an_attempt_that_is_over() -> None:
    runner = running()
    runner.do("ended", 0)
    runner.do("cancel", "by ann")
    runner.do("shut_down", "down")
    runner.do("hurry")
    runner.answer(Answer(OK))
    runner.do("cancel", "by ann")

    assert runner.report == ("success", 0, "", False)
    assert runner.sleep(1e6) == []


# ---- late answers


def test_a_late_renewal_does_not_pass_for_the_reports_answer() -> None:
    runner = running()
    runner.wait(RENEW_S)
    runner.do("ended", 0)

    runner.answer(left(), question=ASK_RENEW)

    assert runner.attempt.phase == REPORTING


def test_a_late_gate_does_not_pass_for_a_renewal() -> None:
    runner = Runner()
    runner.wait(TIMEOUT_S + 0.1)  # asked twice
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

    words = [action[0] for action in runner.done]
    assert words.count(EXEC) <= 1
    assert words.count(EXIT) <= 1
    if EXEC in words and EXIT in words:
        assert ASK_REPORT in words


def test_the_phases_go_one_way() -> None:
    after = {WAITING: 0, GATING: 0, RUNNING: 1, ENDING: 2, REPORTING: 3, DONE: 4}

    for phase, nexts in life.MOVES.items():
        assert all(after[following] >= after[phase] for following in nexts)
