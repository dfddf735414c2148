"""The judge of the kills notices each violation. Each test puts one into a good record."""

from __future__ import annotations

from typing import Any

import pytest
from system.lab.cluster import Entry

from kills.judge import Cut, Record, judge

RUN = "tick#1"
AT = 100.0


def said(word: str, at: float, *, run: str = RUN, attempt: int = 0, node: str = "n1") -> Entry:
    return Entry(run, attempt, 10 + attempt, node, word, at, at, 1)


GOOD = (said("start", 100.1), said("end", 101.1))
OF_IT = frozenset(("coordd", "exec", "--job", "tick"))
AGAIN = (said("start", 109.0, attempt=1, node="n2"), said("end", 110.0, attempt=1, node="n2"))


def record(*entries: Entry, cuts: tuple[Cut, ...] = (), state: str = "success", **more: Any) -> Record:
    return Record({RUN: AT}, entries, cuts, {RUN: state}, **more)


def test_one_success_is_what_is_expected() -> None:
    verdict = judge(record(*GOOD, decisions={RUN: ["launched"]}))
    assert verdict.violations == []
    assert verdict.counts["one success"] == 1


def test_a_run_that_was_killed_and_taken_over_is_one_success() -> None:
    verdict = judge(record(GOOD[0], *AGAIN, cuts=(Cut("n1", 1, 100.5, power=True),)))
    assert (verdict.violations, verdict.counts["taken over"]) == ([], 1)


@pytest.mark.parametrize(
    ("bad", "said_of_it"),
    [
        (record(), "no success"),
        (record(GOOD[0]), "no success"),
        (record(*GOOD, state="lost"), "ended and is lost"),
        (record(*GOOD, *AGAIN), "ended, and the run was started again"),
        (record(*GOOD, *AGAIN, cuts=(Cut("n1", 1, 101.2, power=True),)), "ended, and the run was started again"),
        (record(*GOOD, *AGAIN, cuts=(Cut("n1", 1, 112.0, True, OF_IT),)), "ended, and the run was started again"),
        (record(*GOOD, *AGAIN, cuts=(Cut("n2", 1, 101.2, True, OF_IT),)), "ended, and the run was started again"),
        (record(GOOD[0], *GOOD), "started 2 times"),
        (record(*GOOD, said("overlap", 100.2, attempt=1)), "overlap"),
        (record(*GOOD, said("crossed", 100.2)), "crossed"),
        (record(*GOOD, said("start", 5.0, run="tick#0")), "nobody wanted it"),
        (record(said("start", 99.5), GOOD[1]), "before its time"),
        (record(*GOOD, decisions={}), "job fires says []"),
        (record(*GOOD, decisions={RUN: ["launched", "skipped"]}), "job fires says"),
        (record(*GOOD, decisions={RUN: ["coalesced"]}), "job fires says"),
    ],
)
def test_a_violation_is_noticed(bad: Record, said_of_it: str) -> None:
    violations = judge(bad).violations
    assert len(violations) == 1
    assert said_of_it in violations[0]


@pytest.mark.parametrize(
    "cut", [Cut("n1", 1, 101.2, True, OF_IT), Cut("n1", 1, 100.5, power=False), Cut("n1", 1, 101.5, power=False)]
)
def test_an_end_that_could_not_be_reported_is_counted(cut: Cut) -> None:
    verdict = judge(record(*GOOD, *AGAIN, cuts=(cut,)))
    assert verdict.violations == []
    assert verdict.counts["ended again: killed before its end was reported"] == 1
