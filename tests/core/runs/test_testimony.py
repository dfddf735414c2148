"""Testimonies: a node that is back tells the ledger that attempts of its earlier daemons are over."""

from __future__ import annotations

import pytest
from support.small_cluster import Lone, job

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Report
from coordd.core.ledger.words import OK, RECOVERING, STALE, UNAVAILABLE, AttemptNumber, Token
from coordd.core.ready import Launch
from coordd.core.wire.events import TaskRetried, TaskSucceeded

LAUNCH = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "nonce", 0.0, "{}", 100.0, 60.0)
WHY = "its machine has restarted"


def back_again() -> Lone:
    lone = Lone(job()).ready()
    lone.do(lone.node.testimonies.over, "x", LAUNCH, WHY)
    return lone


def test_the_ledger_is_told_at_once_with_token_and_nonce() -> None:
    lone = back_again()
    [said] = lone.waiting(Report)
    assert (said.state, said.reason, said.final) == ("lost", WHY, False)
    assert (said.grant.run, said.grant.attempt, said.grant.token, said.grant.nonce) == ("sales#1", 0, 7, "nonce")
    assert lone.said == [], "the others hear of it once the ledger has it"


def test_an_end_that_the_ledger_has_taken_is_published_once() -> None:
    lone = back_again()
    lone.answer("report", Answer(OK))
    [event] = lone.heard_said("task-retried")
    assert isinstance(event, TaskRetried)
    assert (event.run, event.token, event.nonce, event.reason) == ("sales#1", 7, "nonce", WHY)
    assert lone.node.testimonies.waiting == {}
    assert lone.waiting(Report) == []


def test_an_attempt_that_is_not_ours_any_more_is_not_spoken_of() -> None:
    """It may have ended in success, and only the ledger knows."""
    lone = back_again()
    lone.answer("report", Answer(STALE))
    assert lone.said == []
    assert lone.node.testimonies.waiting == {}


@pytest.mark.parametrize("word", [UNAVAILABLE, RECOVERING])
def test_a_ledger_that_does_not_know_yet_is_asked_again(word: str) -> None:
    lone = back_again()
    lone.do(lone.node.testimonies.again)
    assert len(lone.waiting(Report)) == 1, "one request at a time"
    lone.answer("report", Answer(word))
    assert lone.said == []
    assert "x" in lone.node.testimonies.waiting
    lone.do(lone.node.testimonies.again)
    lone.answer("report", Answer(OK))
    assert len(lone.heard_said("task-retried")) == 1


def test_in_quarantine_it_is_repeated_until_the_end() -> None:
    lone = back_again()
    lone.answer("report", Answer(OK, left_s=5.0))
    assert "x" in lone.node.testimonies.waiting, "the ledger may go back once more"
    lone.do(lone.node.testimonies.again)
    lone.answer("report", Answer(OK))
    assert lone.node.testimonies.waiting == {}
    assert len(lone.heard_said("task-retried")) == 1


def test_an_end_in_the_journal_is_reported_as_it_was() -> None:
    lone = Lone(job()).ready()
    event = TaskSucceeded(
        uuid="u", run="sales#1", name="sales", attempt=0, token=7, nonce="nonce", exit_code=0, result="success"
    )
    lone.do(lone.node.testimonies.ended, "x", event)
    [said] = lone.waiting(Report)
    assert (said.state, said.exit_code, said.grant.token, said.grant.nonce) == ("success", 0, 7, "nonce")
    lone.answer("report", Answer(OK))
    assert lone.said == [], "it was published then"
    assert lone.node.testimonies.waiting == {}


def test_what_is_asked_again_has_the_order_of_its_names() -> None:
    """A simulated world must be the same in every process, whatever Python's hashes are."""
    lone = Lone(job()).ready()
    for number in range(9):
        launch = Launch(f"sales#{number}", "sales", AttemptNumber(0), Token(7), "nonce", 0.0, "{}", 100.0, 60.0)
        lone.do(lone.node.testimonies.over, f"x{number}", launch, WHY)
    for _ in range(9):
        lone.answer("report", Answer(UNAVAILABLE))
    lone.do(lone.node.testimonies.again)
    assert [said.grant.run for said in lone.waiting(Report)] == [f"sales#{number}" for number in range(9)]
