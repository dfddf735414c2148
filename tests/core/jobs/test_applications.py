"""What an attempt does about the applications of its run that it finds."""

from __future__ import annotations

import pytest

from coordd.core.jobs.applications import (
    ADOPT,
    ALIVE,
    ENDED,
    FAILED,
    SUBMIT,
    SUCCEEDED,
    TAKE_END,
    UNSEEN,
    Application,
    Earlier,
    cluster_mark,
    decide,
    labels,
    number,
    pod_name,
    run_mark,
    yarn_tags,
)

RUN = "nightly@2026-12-01T02:00:00Z"


def app(ident: str, state: str, token: int, **more: float) -> Application:
    return Application(ident, state, run_mark("prod", RUN), token, **more)  # type: ignore[arg-type]  # instants


def lost(token: int, ident: str = "", reason: str = "") -> Earlier:
    return Earlier(token, token, "lost", ident, reason)


def failed(token: int, ident: str = "") -> Earlier:
    return Earlier(token, token, "failure", ident, "exit code 1")


def test_the_first_attempt_submits() -> None:
    assert decide([], []).word == SUBMIT


def test_a_living_application_is_adopted_whoever_submitted_it() -> None:
    assert decide([app("a", ALIVE, 1)], [lost(1, "a")]) == (ADOPT, app("a", ALIVE, 1), ())
    # also one of an attempt that the ledger has forgotten, or that appeared after its attempt had failed
    assert decide([app("a", ALIVE, 1)], []).word == ADOPT
    assert decide([app("a", ALIVE, 1)], [failed(1)]).word == ADOPT


def test_of_two_the_newest_token_is_adopted_and_the_others_are_ended() -> None:
    old, new, ended = app("b", ALIVE, 1), app("a", ALIVE, 2), app("c", SUCCEEDED, 3)

    assert decide([new, old, ended], [lost(1), lost(2)]) == (ADOPT, new, (old,))


def test_without_marks_the_newest_application_counts() -> None:
    old, new = app("b", ALIVE, 0, started_at=1.0), app("a", ALIVE, 0, started_at=2.0)

    assert decide([new, old], []).application == new


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED, ENDED])
def test_the_end_of_a_lost_attempts_application_is_taken(state: str) -> None:
    assert decide([app("a", state, 1)], [lost(1, "a")]) == (TAKE_END, app("a", state, 1), ())


def test_an_end_that_the_ledger_has_is_not_taken_again() -> None:
    assert decide([app("a", FAILED, 1)], [failed(1, "a")]).word == SUBMIT
    # the application of a lost attempt whose successor adopted it, and reported its end
    assert decide([app("a", FAILED, 1)], [lost(1, "a"), failed(2, "a")]).word == SUBMIT
    # one that was ended because a newer one was adopted
    assert decide([app("a", FAILED, 1), app("b", FAILED, 2)], [lost(1), lost(2, "b"), failed(3, "b")]).word == SUBMIT


def test_an_application_that_appeared_after_its_submission_was_called_a_failure_counts() -> None:
    assert decide([app("a", SUCCEEDED, 1)], [failed(1)]) == (TAKE_END, app("a", SUCCEEDED, 1), ())


def test_an_application_that_was_seen_and_is_gone_is_never_launched_again() -> None:
    assert decide([], [lost(1, "a")]).word == UNSEEN
    assert decide([], [lost(1, "a"), lost(2)]).word == UNSEEN


def test_an_attempt_that_certainly_submitted_nothing_is_followed_by_a_submission() -> None:
    assert decide([], [lost(1), lost(2)]).word == SUBMIT


def test_a_persons_decision_settles_everything_before_it() -> None:
    resolved = lost(2, "b", "resolved as relaunch by alice")

    assert decide([app("a", FAILED, 1), app("b", FAILED, 2)], [lost(1, "a"), resolved]).word == SUBMIT
    assert decide([app("b", ALIVE, 2)], [resolved]).word == ADOPT
    replayed = Earlier(2, 2, "lost", "b", "no relaunch left; replayed by alice")
    assert decide([], [replayed]).word == SUBMIT


def test_a_pods_name_changes_only_when_the_work_before_it_is_settled() -> None:
    mark = run_mark("prod", RUN)

    assert pod_name(mark, []) == pod_name(mark, [lost(1), lost(2, "a"), failed(3)]) == f"{mark}-0"
    assert pod_name(mark, [failed(1, "a")]) == pod_name(mark, [failed(1, "a"), lost(2)]) == f"{mark}-1"


def test_marks_are_what_yarn_and_kubernetes_take() -> None:
    tags = yarn_tags("prod", RUN, 3, 1795226523254506)

    assert all(tag == tag.lower() and len(tag) <= 100 and "," not in tag for tag in tags)
    assert tags[0] == run_mark("prod", RUN) != run_mark("test", RUN)
    assert all(len(value) <= 63 for value in labels("prod", RUN, 3, 1795226523254506).values())
    assert cluster_mark("prod") != cluster_mark("test")


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "9" * 30, "²", None])
def test_a_mark_that_is_no_number_counts_as_missing(text: object) -> None:
    assert number(text, missing=-1) == -1
