"""The dead letters among the rows: the newest, and only as many rows are read as it takes."""

from __future__ import annotations

from typing import Any

import pytest
from support.memory import MemoryLedger
from support.small_cluster import EPOCH

from coordd.core.jobs.job import EXEC_DIGEST
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rows import LedgerTime, Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import AttemptNumber, Policy
from coordd.errors import RefusedError
from coordd.services.views.letters import dead_letters
from coordd.services.views.run_methods import RunMethods, _replayed_before


class Counting:
    """A ledger that counts the rows that it hands out."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows, self.read = rows, 0

    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]:
        found = [row for row in self.rows if row.state == state and job in ("", row.job)][:limit]
        self.read += len(found)
        return found


def row(number: int, state: str = "failure", **columns: Any) -> Row:
    made = Registration(f"sales#{number}", "sales", "d1", Policy(), EPOCH, scheduled=False)
    one = Life()._new_row(made, LedgerTime(EPOCH, 500.0))
    one.state, one.ended_at = state, EPOCH - number
    for column, value in columns.items():
        setattr(one, column, value)
    return one


def listed(ledger: Any, limit: int, **more: Any) -> list[str]:
    return [one.run for one in dead_letters(ledger, limit, **more)]


def test_the_newest_are_listed_of_both_kinds() -> None:
    ledger = Counting([row(1), row(2, "lost"), row(3), row(4, "success"), row(5, "missed"), row(6, "lost")])
    assert listed(ledger, 10) == ["sales#1", "sales#2", "sales#3", "sales#6"]
    assert listed(ledger, 2) == ["sales#1", "sales#2"]
    assert listed(ledger, 10, job="other") == []


def test_discarded_ones_and_those_of_exec_are_passed_over() -> None:
    others = [row(n, cancel=1) for n in range(1, 50)] + [row(50, digest=EXEC_DIGEST + "0"), row(51, attempt="x")]
    ledger = Counting([*others, row(52), row(53)])
    assert listed(ledger, 2) == ["sales#52", "sales#53"]
    assert listed(ledger, 2, searched=40) == []


def test_few_rows_are_read_for_a_short_list() -> None:
    ledger = Counting([row(n) for n in range(5000)])
    assert len(listed(ledger, 10)) == 10
    assert ledger.read == 10


def test_an_empty_ledger_has_none() -> None:
    assert dead_letters(MemoryLedger(clock=lambda: LedgerTime(EPOCH, 500.0)), 10) == []


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("exit code 1: ERROR x; replayed by ann", "was replayed before by ann, as attempt 1"),
        ("exit code 1; replayed by ann (run rerun)", "was replayed before by ann, as attempt 1"),
        ("exit code 1: ERROR cannot do it because x", "is not a dead letter: attempt 1 was its retry"),
        ("", "is not a dead letter: attempt 1 was its retry"),
    ],
)
def test_an_attempt_that_another_one_followed_is_replayed_no_more_and_the_refusal_says_why(
    reason: str, why: str
) -> None:
    refused = _replayed_before("j#1", AttemptNumber(0), Answer("exists", state="failure", by=reason))
    assert str(refused).startswith(f"j#1/0 {why}; j#1 is failure now")


def test_a_run_of_exec_is_called_again_by_another_id() -> None:
    """The same id would find the run over, and run nothing."""
    with pytest.raises(RefusedError) as caught:
        RunMethods._replayed_by(RunMethods.__new__(RunMethods), row(1, digest=EXEC_DIGEST + "0"))
    assert caught.value.kind == "not_available"
    assert "with another id" in caught.value.hint
