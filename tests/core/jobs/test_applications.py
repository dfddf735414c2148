"""What an attempt does about the applications of its run that it finds."""

from __future__ import annotations

import pytest

from coordd.core.jobs.applications import (
    ADOPT,
    ALIVE,
    END,
    ENDED,
    FAILED,
    KILLED,
    REPORT,
    SUBMIT,
    SUCCEEDED,
    TAKE_END,
    UNSEEN,
    WAIT,
    Application,
    Earlier,
    Unknown,
    Verdict,
    cluster_mark,
    decide,
    judge,
    labels,
    needs_memory,
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
    assert decide([app("a", FAILED, 0)], [failed(1, "a")]).word == SUBMIT  # its marks do not say whose it is
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


# ---- a run whose end is unknown

DEAD = "the runner died"
LAPSED = "its lease lapsed; last held by edge-1"


def unknown(**changes: object) -> Unknown:
    usual = Unknown(1, 2, "", DEAD, cancelled=False, relaunches=0, relaunches_max=5, quiet_s=2000.0)
    return usual._replace(**changes)  # type: ignore[arg-type]  # as the class has them


def verdict(run: Unknown, *found: Application, earlier: tuple[Earlier, ...] = (), forgets: str | None = "") -> Verdict:
    return judge(run, found, earlier, settle_s=1200.0, forgets=forgets)


def test_a_living_application_leads_to_an_attempt_that_adopts_it() -> None:
    for run in (unknown(), unknown(reason=LAPSED), unknown(quiet_s=0.0)):
        said = verdict(run, app("a", ALIVE, 2), forgets="everything")
        assert (said.word, said.state, said.application_id) == (REPORT, "retry", "a")


def test_a_run_that_was_lost_too_often_keeps_its_application() -> None:
    assert verdict(unknown(relaunches=5), app("a", ALIVE, 2)).word == WAIT


@pytest.mark.parametrize(
    ("state", "code", "word", "reported"),
    [
        (SUCCEEDED, 0, REPORT, "success"),
        (FAILED, 7, REPORT, "failure"),
        (KILLED, None, REPORT, "failure"),
        (ENDED, None, WAIT, ""),
    ],
)
def test_an_end_that_is_shown_is_reported(state: str, code: int | None, word: str, reported: str) -> None:
    said = verdict(unknown(reason=LAPSED), app("a", state, 2)._replace(exit_code=code))

    assert (said.word, said.state) == (word, reported)
    assert said.exit_code == {"success": 0, "failure": code or 1, "": None}[reported]


def test_nothing_shown_is_no_proof() -> None:
    assert verdict(unknown()).state == "retry"
    assert verdict(unknown()).application_id == ""

    for run, why in (
        (unknown(reason=LAPSED), "whether its submitter is dead"),
        (unknown(reason=""), "whether its submitter is dead"),
        (unknown(quiet_s=1199.0), "for 1 s more"),
        (unknown(application_id="a"), "a was seen"),
    ):
        said = verdict(run)
        assert (said.word, why in said.why) == (WAIT, True), said
    assert "was seen" in verdict(unknown(), earlier=(lost(1, "a"),)).why
    assert verdict(unknown(), forgets="it was restarted").why.endswith("it was restarted")
    assert needs_memory(verdict(unknown(), forgets=None))
    assert not needs_memory(verdict(unknown(quiet_s=1.0), forgets=None))


def test_a_cancelled_run_ends_with_its_applications() -> None:
    run = unknown(cancelled=True, application_id="a")
    both = (app("a", ALIVE, 1), app("b", ALIVE, 2))

    assert verdict(run, *both) == Verdict(END, "b is being ended: the run is cancelled", applications=both)
    assert verdict(run, app("a", KILLED, 2)).state == "revoked"
    assert verdict(run, app("a", SUCCEEDED, 2)).state == "success"
    assert verdict(run).state == "revoked"
    assert verdict(unknown(cancelled=True)).state == "revoked"
    assert verdict(unknown(cancelled=True, quiet_s=0.0)).word == WAIT


TIMEOUT = "timeout after 7200 s; whether its application has ended is unknown"


def test_a_run_whose_timeout_is_over_ends_with_its_applications() -> None:
    run = unknown(reason=TIMEOUT, application_id="a", relaunches=5)
    both = (app("a", ALIVE, 1), app("b", ALIVE, 2))

    assert verdict(run, *both) == Verdict(END, "b is being ended: timeout after 7200 s", applications=both)
    assert verdict(run, app("a", KILLED, 2)) == (REPORT, "timeout after 7200 s: a killed", "failure", "a", 1, ())
    assert verdict(run, app("a", FAILED, 2)._replace(exit_code=143)).exit_code == 143
    assert verdict(run, app("a", SUCCEEDED, 2)).state == "success"
    assert verdict(run, app("a", ENDED, 2)).word == WAIT
    gone = verdict(run)
    assert (gone.word, gone.state, gone.application_id) == (REPORT, "failure", "a")
    assert gone.why == "timeout after 7200 s: a is not shown any more"


def test_a_timeout_before_anything_was_shown_is_a_failure_once_nothing_can_appear() -> None:
    assert verdict(unknown(reason=TIMEOUT, quiet_s=1199.0)).word == WAIT
    assert verdict(unknown(reason=TIMEOUT), forgets="it was restarted").word == WAIT
    said = verdict(unknown(reason=TIMEOUT))
    assert (said.word, said.state) == (REPORT, "failure")
    assert said.why.startswith("timeout after 7200 s: nothing was submitted")


def test_a_timeout_never_ends_the_application_of_a_later_attempt() -> None:
    said = verdict(unknown(reason=TIMEOUT, application_id="a"), app("a", KILLED, 2), app("b", ALIVE, 3))

    assert (said.word, said.state) == (REPORT, "retry")  # by the row's own token, which the ledger has not any more


def test_a_cancel_counts_more_than_the_timeout_before_it() -> None:
    run = unknown(reason=TIMEOUT, application_id="a", cancelled=True)

    assert "cancelled" in verdict(run, app("a", ALIVE, 2)).why
    assert verdict(run, app("a", KILLED, 2)).state == verdict(run).state == "revoked"
    assert verdict(unknown(reason=TIMEOUT, cancelled=True)).state == "revoked"


@pytest.mark.parametrize("token", [1, 2])
def test_an_end_that_an_earlier_attempt_has_reported_is_not_reported_again(token: int) -> None:
    said = verdict(unknown(token=9), app("a", FAILED, token), earlier=(failed(2, "a"),))

    assert (said.word, said.state) == (REPORT, "retry")
