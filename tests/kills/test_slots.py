"""The judge of a pool: the number of programs alive, and how long a free slot was not used."""

from __future__ import annotations

import pytest
from system.lab.cluster import Entry

from kills.judge import Cut
from kills.slots import Change, Idle, alive, quantile, read, unused


def change(at: float, holders: str, waiting: str) -> Change:
    """Runs have one letter each."""
    return Change(at, frozenset(holders), frozenset(waiting))


def said(run: str, word: str, at: float, node: str = "n1", attempt: int = 0) -> Entry:
    return Entry(run, attempt, 1, node, word, at, at, 1)


@pytest.mark.parametrize(
    ("changes", "idle"),
    [
        ([change(0, "ab", "cd"), change(1, "bc", "d"), change(2, "cd", "")], []),
        ([change(0, "ab", "cd"), change(1, "b", "cd"), change(2, "b", "c"), change(3, "bc", "")], [Idle(1, 2, 0)]),
        ([change(0, "ab", "c"), change(1, "b", "c"), change(5, "b", "cd")], [Idle(1, 4, 2)]),
        ([change(0, "ab", ""), change(1, "b", ""), change(2, "b", "")], []),
        ([change(0, "a", ""), change(5, "a", "b"), change(6, "ab", "")], [Idle(5, 1, 0)]),
        (
            [change(0, "", "c"), change(1, "", "cd"), change(2, "c", "d"), change(4, "cd", "")],
            [Idle(0, 2, 1), Idle(1, 3, 0)],
        ),
        ([change(0, "b", "c"), change(1, "b", ""), change(2, "b", "")], [Idle(0, 1, 0)]),
        ([change(0, "ab", "c"), change(1, "b", "c"), change(1, "bc", "c"), change(1, "bc", "")], []),
    ],
)
def test_how_long_a_slot_of_two_was_not_used(changes: list[Change], idle: list[Idle]) -> None:
    assert unused(changes, 2) == idle


def test_the_changes_that_redis_tells() -> None:
    told = """
+1763881057.1 [0 lua] "ZADD" "{coordd:c}:list:pending:" "1763881057.0" "job#1"
+1763881057.1 [0 lua] "ZADD" "{coordd:c}:list:pending:job" "1763881057.0" "job#1"
+1763881057.5 [0 127.0.0.1:40000] "EVALSHA" "x" "1" "{coordd:c}:slots:pool/heavy" "job#1"
+1763881057.5 [0 lua] "ZADD" "{coordd:c}:slots:pool/heavy" "0" "job#1"
+1763881057.5 [0 lua] "ZREM" "{coordd:c}:list:pending:" "job#1"
+1763881058.0 [0 lua] "ZREM" "{coordd:c}:slots:pool/heavy" "job#1"
"""
    states = [
        (one.at, "".join(one.holders), "".join(one.waiting)) for one in read(told.splitlines(), "{coordd:c}:", "heavy")
    ]
    assert states == [
        (1763881057.1, "", "job#1"),
        (1763881057.5, "job#1", "job#1"),
        (1763881057.5, "job#1", ""),
        (1763881058.0, "", ""),
    ]


def test_programs_alive_by_their_own_record() -> None:
    lives = [said("a", "start", 1), said("b", "start", 2, "n2"), said("a", "end", 3), said("c", "start", 4)]
    lives += [said("c", "start", 6, attempt=1), said("c", "end", 7, attempt=1)]
    power = [Cut("n2", 1, 5.0, True), Cut("n1", 1, 5.5, False), Cut("n2", 1, 1.0, True)]
    counts = [(1, 1), (2, 2), (3, 1), (4, 2), (5.0, 1), (6, 0), (6, 1), (7, 0)]
    assert alive(lives, power) == counts, "one without an end died with its power, or before the next attempt"


def test_a_quantile() -> None:
    assert (quantile([3.0, 1.0, 2.0], 0.5), quantile([1.0, 2.0], 1.0), quantile([], 0.5)) == (2.0, 2.0, 0.0)
