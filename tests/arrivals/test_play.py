"""The judge of arrivals notices each way in which it could go wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from arrivals.play import PART_S, Bursts, judge

FILES = ["0.csv", "1.csv"]
BOTH = [("load#0", 0), ("load#1", 0)]


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"run": f"load#{number}", "args": f'{{"what": "{number}.csv"}}', "state": "success", "reason": "", **more}


def test_each_file_is_one_run_that_was_executed_once() -> None:
    found = judge(FILES, [row(0), row(1)], [("load#0", 0), ("load#1", 0)], (), {"kills": 3})
    assert found == ({"kills": 3, "runs": 2, "executions": 2, "of them in lost attempts": 0}, [])
    twice = judge(FILES, [row(0), row(1), row(1, run="load#x")], [*BOTH, ("load#x", 0)], (), {}, {"1.csv"})
    assert twice.violations == [], "the second part of that file came when the first one had settled"
    started = [("load#0", 0), ("load#1", 0), ("load#1", 1)]
    again = judge(FILES, [row(0), row(1)], started, {("load#1", 0)}, {})
    assert again == ({"runs": 2, "executions": 3, "of them in lost attempts": 1}, [])


@pytest.mark.parametrize(
    ("rows", "started", "said"),
    [
        ([row(0)], BOTH[:1], ["1.csv: 0 runs"]),
        ([row(0), row(1), row(1, run="load#x")], [*BOTH, ("load#x", 0)], ["1.csv: 2 runs"]),
        ([row(0), row(1)], [*BOTH, ("load#1", 1)], ["load#1: executed 2 times"]),
        ([row(0), row(1)], [*BOTH, BOTH[1]], ["load#1: executed 2 times", "load#1: attempt 0 was executed 2 times"]),
        ([row(0), row(1)], BOTH[:1], ["load#1: executed 0 times"]),
        ([row(0), row(1, state="lost", reason="r")], BOTH[:1], ["load#1: lost (r)"]),
        ([row(0), row(1), row(2)], [*BOTH, ("load#2", 0)], ["2.csv: a run without a file"]),
    ],
)
def test_a_violation_is_named(rows: list[dict[str, Any]], started: list[tuple[str, int]], said: list[str]) -> None:
    assert judge(FILES, rows, started, (), {}).violations == said


def test_all_files_appear_and_are_written_to_the_end(tmp_path: Path) -> None:
    bursts = Bursts(random.Random(1), tmp_path, 100)
    now = 0.0
    while not bursts.over:
        bursts.turn(now)
        now += PART_S
    texts = [path.read_text() for path in tmp_path.iterdir()]
    assert (len(texts), 0 < sum("second" in text for text in texts) < 100) == (100, True)
