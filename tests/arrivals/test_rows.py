"""Arrivals as rows: a small round, and its judge notices each way in which it could go wrong."""

from __future__ import annotations

import pytest

from arrivals.rows import Plan, Sums, judge, play

LEFT = {"entries": 3, "pending": 0, "lag": 0, "dead": 0}


def test_each_arrival_is_one_row_although_the_nodes_that_poll_are_killed() -> None:
    verdict = play(Plan(seed=3, rows=1500, nodes=3, kill_every_s=0.5))
    assert verdict.violations == []
    assert verdict.counts["kills"] >= 1


def test_the_judge_accepts_rows_that_are_all_there() -> None:
    assert judge(3, Sums({"missed": 3}, 3, 3), LEFT, ["holder#0"]) == []


@pytest.mark.parametrize(
    ("sums", "left", "started", "said"),
    [
        (Sums({"missed": 2}, 2, 1), LEFT, [], ["3 arrivals are 2 rows of 2", "the numbers in the rows are 1"]),
        (Sums({"missed": 4}, 3, 4), LEFT, [], ["3 arrivals are 4 rows of 3", "the numbers in the rows are 4"]),
        (Sums({"missed": 3}, 3, 4), LEFT, [], ["the numbers in the rows are 4"]),
        (Sums({"missed": 2, "pending": 1}, 3, 3), LEFT, [], ["1 rows are pending"]),
        (Sums({"missed": 3}, 3, 3), {**LEFT, "pending": 1}, [], ["1 entries: pending"]),
        (Sums({"missed": 3}, 3, 3), LEFT, ["load#redis.1"], ["load#redis.1 was launched"]),
    ],
)
def test_a_violation_is_named(sums: Sums, left: dict[str, int], started: list[str], said: list[str]) -> None:
    found = judge(3, sums, left, started)
    assert len(found) == len(said)
    assert all(one.startswith(expected) for one, expected in zip(found, said, strict=True))
