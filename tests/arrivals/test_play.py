"""The judge of arrivals notices each way in which it could go wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from arrivals.play import PART_S, Bursts, judge

FILES = ["0.csv", "1.csv"]


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"run": f"load#{number}", "args": f'{{"what": "{number}.csv"}}', "state": "success", "reason": "", **more}


def test_each_file_is_one_run_that_was_executed_once() -> None:
    found = judge(FILES, [row(0), row(1)], {"load#0": 1, "load#1": 1}, {"kills": 3})
    assert found == ({"kills": 3, "runs": 2, "executions": 2}, [])


@pytest.mark.parametrize(
    ("rows", "starts", "said"),
    [
        ([row(0)], {"load#0": 1}, "1.csv: 0 runs"),
        ([row(0), row(1), row(1, run="load#x")], {"load#0": 1, "load#1": 1, "load#x": 1}, "1.csv: 2 runs"),
        ([row(0), row(1)], {"load#0": 1, "load#1": 2}, "load#1: executed 2 times"),
        ([row(0), row(1)], {"load#0": 1}, "load#1: executed 0 times"),
        ([row(0), row(1, state="lost", reason="r")], {"load#0": 1}, "load#1: lost (r)"),
        ([row(0), row(1), row(2)], {f"load#{n}": 1 for n in range(3)}, "2.csv: a run without a file"),
    ],
)
def test_a_violation_is_named(rows: list[dict[str, Any]], starts: dict[str, int], said: str) -> None:
    assert judge(FILES, rows, starts, {}).violations == [said]


def test_all_files_appear_and_are_written_to_the_end(tmp_path: Path) -> None:
    bursts = Bursts(random.Random(1), tmp_path, 100)
    now = 0.0
    while not bursts.over:
        bursts.turn(now)
        now += PART_S
    texts = [path.read_text() for path in tmp_path.iterdir()]
    assert (len(texts), 0 < sum("second" in text for text in texts) < 100) == (100, True)
