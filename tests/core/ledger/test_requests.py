"""Requests to the ledger: types that mypy distinguishes, and invalid words."""

from __future__ import annotations

import pytest
from support.ledger_calls import grant_of
from support.small_cluster import asked_for

from coordd.core.ledger.requests import Activate, Resolve
from coordd.core.ledger.runner_requests import Commit, Gate, Grant, Report, Restore
from coordd.core.ledger.words import AttemptNumber, Token

GRANT = grant_of("sales#1", 0, 7, "n")


def test_mypy_tells_a_token_from_an_attempt() -> None:
    """If mypy did not distinguish them, the ignores below would be unused, and mypy reports an unused ignore."""
    swapped = Grant(
        run="sales#1",
        attempt=Token(7),  # type: ignore[arg-type]  # mypy must see an error here
        token=AttemptNumber(0),  # type: ignore[arg-type]  # here too
        nonce="n",
    )

    assert swapped != GRANT


def test_requests_are_equal_by_kind_and_values() -> None:
    assert Gate(grant=GRANT) == Gate(grant=grant_of("sales#1", 0, 7, "n"))
    assert Gate(grant=GRANT) != Gate(grant=grant_of("sales#1", 0, 8, "n"))
    assert Gate(grant=GRANT) != Commit(grant=GRANT)
    assert repr(Gate(grant=GRANT)) == "Gate(grant=Grant(run='sales#1', attempt=0, token=7, nonce='n'), ahead_s=0.0)"


def test_a_request_says_no_word_that_the_ledger_does_not_know() -> None:
    with pytest.raises(AssertionError, match="a report cannot say pending"):
        Report(grant=GRANT, state="pending")
    with pytest.raises(AssertionError, match="restored as retry"):
        Restore(of=asked_for("sales#1"), grant=GRANT, node="a.1", lease_s=60.0, state="retry")
    with pytest.raises(AssertionError, match="a grant of sales#1"):
        Restore(of=asked_for("sales#2"), grant=GRANT, node="a.1", lease_s=60.0, state="started")
    with pytest.raises(AssertionError, match="resolved as lost"):
        Resolve(run="sales#1", outcome="lost", by="ann")
    with pytest.raises(AssertionError, match="activated as old"):
        Activate(job="sales", digest="d", schedule="s", how="old", by="ann")
