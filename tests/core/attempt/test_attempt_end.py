"""How an attempt ends: by its lease, a person, its timeout or its program. Also what is reported, and for how long."""

from __future__ import annotations

import pytest

from coordd.core.actions import ASK_RENEW, ASK_REPORT, EXIT, KILL, TERM
from coordd.core.attempt import KILL_PART, REPORT_LIMIT_S, watcher_kill_at
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import CANCEL, LOST, OK, STALE
from core.attempt.one_runner import DEADLINE, GRACE_S, LEASE_S, RENEW_S, START, TIMEOUT_S, left, renewed, running

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
    assert words.count(ASK_RENEW) > 100  # and the runner continues to ask


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
    runner.do("ended", 0)  # the program was told to end, and ended

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

    runner.do("exec_failed", "no such file", 127)

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
