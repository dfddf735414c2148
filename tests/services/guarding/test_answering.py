"""What the rows of the ledger say to a driver: first, adopted, late, cancelled, over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordd.core.jobs.owner import COMMITTED
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.inputs.memory import INPUT, Told
from coordd.core.ledger.runner_requests import Commit
from coordd.core.ledger.words import OK, STALE, SUCCESS, UNKNOWN
from coordd.services.guarding.answering import COMMIT, MOVED, answer, nonce_of, question_of
from services.guarding.attempts import APP, Attempts, question

NOW = 1_790_000_000.0


@pytest.fixture
def attempts(tmp_path: Path) -> Iterator[Attempts]:
    made = Attempts(tmp_path)
    yield made
    made.ledger.close()


@pytest.mark.parametrize("known", ["", APP])
def test_the_driver_of_the_current_attempt_owns_the_run(known: str, attempts: Attempts) -> None:
    grant = attempts.begin(known)

    assert answer(attempts.ledger, question(grant))[::2] == (OK, grant.token)
    assert answer(attempts.ledger, question(grant, ask=COMMIT)).word == OK
    assert attempts.commit_token == grant.token


def test_a_submission_that_arrives_after_a_second_launch_owns_nothing(attempts: Attempts) -> None:
    late = attempts.begin()
    attempts.lose()
    attempts.begin("application_2_0002")

    said = answer(attempts.ledger, question(late, ask=COMMIT))

    assert said.word == STALE
    assert "the ledger has attempt 1 on edge-2, started" in said.why
    assert "application_2_0002" in said.why
    assert attempts.commit_token == 0


def test_an_adopted_driver_owns_the_run_and_publishes_under_the_token_of_who_adopted_it(attempts: Attempts) -> None:
    first = attempts.begin(APP)
    attempts.lose(APP)
    second = attempts.begin(APP)
    ledger = attempts.ledger

    assert answer(ledger, question(first))[::2] == (OK, second.token)
    assert answer(ledger, question(first, ask=COMMIT))[::2] == (MOVED, second.token)
    assert attempts.commit_token == 0
    assert answer(ledger, question(first, ask=COMMIT, holder=second.token))[::2] == (OK, second.token)
    assert attempts.commit_token == second.token
    assert answer(ledger, question(first, application="")).word == STALE, "it does not say which one it is"


def test_between_two_attempts_nobody_can_tell(attempts: Attempts) -> None:
    first = attempts.begin(APP)
    attempts.lose(APP)
    assert answer(attempts.ledger, question(first, ask=COMMIT)).word == UNKNOWN
    assert answer(attempts.ledger, question(first)).why.startswith("nobody holds the run now: the ledger has attempt 1")

    attempts.begin()
    said = answer(attempts.ledger, question(first, ask=COMMIT))
    assert (said.word, "has not said yet which application" in said.why) == (UNKNOWN, True)
    assert attempts.commit_token == 0


def test_of_two_applications_of_one_attempt_the_followed_one_counts(attempts: Attempts) -> None:
    grant = attempts.begin("application_1_0009")

    said = answer(attempts.ledger, question(grant, ask=COMMIT))

    assert (said.word, attempts.commit_token) == (STALE, 0)
    assert f"follows application_1_0009, not {APP}" in said.why


def test_what_an_earlier_attempt_has_committed_stays_committed(attempts: Attempts) -> None:
    first = attempts.begin(APP)
    assert answer(attempts.ledger, question(first, ask=COMMIT)).word == OK
    attempts.lose(APP)
    attempts.begin(APP)

    assert answer(attempts.ledger, question(first, ask=COMMIT))[::2] == (COMMITTED, first.token)


def test_a_run_that_is_cancelled_or_over_has_no_owner(attempts: Attempts) -> None:
    grant = attempts.begin(APP)
    attempts.cancel()
    assert answer(attempts.ledger, question(grant, ask=COMMIT)).why == "the run is being cancelled"
    attempts.report(SUCCESS)
    assert answer(attempts.ledger, question(grant)).word == STALE
    assert attempts.commit_token == 0


def test_a_run_that_has_ended_has_no_owner(attempts: Attempts) -> None:
    grant = attempts.begin(APP)
    attempts.report(SUCCESS)

    assert answer(attempts.ledger, question(grant)).word == STALE


def test_a_takeover_between_the_look_and_the_commit_is_seen(
    attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, ledger = attempts.begin(APP), attempts.ledger
    real = ledger.ask

    def ask(request: Commit) -> Answer:
        monkeypatch.setattr(ledger, "ask", real)
        attempts.lose(APP)
        attempts.begin("application_2_0002")
        return real(request)

    monkeypatch.setattr(ledger, "ask", ask)

    assert answer(ledger, question(first, ask=COMMIT)).word == STALE
    assert attempts.commit_token == 0


def test_the_nonce_of_each_attempt_is_known_and_of_no_other(attempts: Attempts) -> None:
    first = attempts.begin(APP)
    attempts.lose(APP)
    attempts.begin(APP)

    assert nonce_of(attempts.ledger, question(first)) == first.nonce
    assert nonce_of(attempts.ledger, question(first, token=first.token + 1)) == ""
    assert nonce_of(attempts.ledger, question(first, run="sales#2")) == ""


GOOD = {"ask": "owner", "run": "r#1", "attempt": 0, "token": 5, "id": "1", "application": "", "holder": 0}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ask": "history"}, "it asks for none of owner, gate, commit"),
        ({"run": 5}, "expected run to be a text"),
        ({"run": "\ud800"}, "expected run to be a text of up to 500 ASCII"),
        ({"id": "x" * 501}, "expected id to be a text"),
        ({"token": True}, "expected token to be a whole number"),
        ({"attempt": -1}, "expected attempt to be a whole number from 0"),
        ({"holder": 2**60}, "expected holder to be a whole number"),
    ],
)
def test_a_question_that_is_none_is_named(change: dict[str, object], why: str) -> None:
    assert not isinstance(question_of(GOOD), str)
    said = question_of({**GOOD, **change})
    assert isinstance(said, str)
    assert why in said


def test_failures_of_an_input_count_for_the_driver_that_holds_the_run_and_for_no_other(attempts: Attempts) -> None:
    about = Told("failed", "/in/a.csv", 2, "spoilt")
    first = attempts.begin(APP)
    asked = question(first, ask=INPUT, told=about)
    assert answer(attempts.ledger, asked, NOW) == (OK, "spoilt", 1)
    attempts.lose()
    attempts.begin("application_2_0002")

    assert answer(attempts.ledger, asked, NOW).word == STALE
    mine = question(attempts.grants[-1], ask=INPUT, told=about, application="application_2_0002")
    assert answer(attempts.ledger, mine, NOW) == (OK, "spoilt", 2)


def test_a_question_about_an_input_says_which_and_what() -> None:
    usual = {"run": "r", "id": "1", "application": "", "attempt": 0, "token": 1, "holder": 0, "ask": INPUT}
    about = {"input": "/in/a.csv", "says": "asked", "limit": 3, "reason": ""}
    found = question_of({**usual, **about})
    assert not isinstance(found, str)
    assert found.told is not None
    assert (found.told.what, found.told.input, found.told.limit) == ("asked", "/in/a.csv", 3)
    assert question_of({**usual, "ask": "owner"}) is not None
    assert question_of(usual) == "expected input to be a text of up to 300 printable ASCII characters"
