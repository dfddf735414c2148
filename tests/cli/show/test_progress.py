"""How far a Spark run is, for the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_daemon import RUN

from coordd.cli.show import tables

PROGRESS = {"stages": 3, "stages_done": 1, "tasks": 40, "tasks_done": 14, "tasks_failed": 0, "left_s": None, "ui": "u"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "███░░░░░░░ 35 %, 14 of 40 tasks, 1 of 3 stages"),
        (
            {"tasks_failed": 2, "left_s": 130.4},
            "███░░░░░░░ 35 %, 14 of 40 tasks, 1 of 3 stages, 2 tasks failed, about 2 min 10 s left",
        ),
        ({"left_s": 0.0}, "███░░░░░░░ 35 %, 14 of 40 tasks, 1 of 3 stages, longer than usual"),
        ({"tasks": 0, "tasks_done": 0}, "░░░░░░░░░░ 0 %, 0 of 0 tasks, 1 of 3 stages"),
        ({"tasks_done": 900}, "██████████ 100 %, 900 of 40 tasks, 1 of 3 stages"),
        ({"tasks": "\x1b[31m", "stages": None}, "░░░░░░░░░░ 0 %, 14 of 0 tasks, 1 of 0 stages"),
    ],
)  # fmt: skip
def test_a_bar_and_its_words(more: dict[str, Any], said: str) -> None:
    assert tables.bar({**PROGRESS, **more}) == said
    assert tables.bar(None) == ""


def test_run_show_has_the_bar_and_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    tables.draw_run(
        {**RUN, "state": "started", "progress": {**PROGRESS, "ui": "http://edge-1:4040"}, "no_progress": None}
    )
    assert "35 %, 14 of 40 tasks" in (said := capsys.readouterr().out)
    assert "http://edge-1:4040" in said
    tables.draw_run({**RUN, "state": "started", "progress": None, "no_progress": "its UI is \x1b[31moff"})
    assert "its UI is " in (said := capsys.readouterr().out)
    assert "\x1b[31m" not in said
