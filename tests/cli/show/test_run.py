"""What `run show` says of a run's commit."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_daemon import RUN

from coordd.cli.show import tables
from coordd.cli.show.phrases import rounded


@pytest.mark.parametrize(
    ("commit_token", "said"),
    [(5, "by this attempt"), (4, "by an earlier attempt (token 4)"), (None, ""), ("\x1b[31m", "by an earlier attempt")],
)
def test_it_says_which_attempt_has_the_commit(commit_token: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    tables.draw_run({**RUN, "commit_token": commit_token})

    out = capsys.readouterr().out
    assert said in out
    assert ("committed" in out) == bool(said)
    assert "\x1b[31m" not in out


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"state": "unknown", "ended_at": None, "runtime_s": None}, False),
        ({"state": "success", "runtime_s": None, "reason": "resolved as success by root", "exit_code": None}, False),
        ({"state": "started", "ended_at": None, "runtime_s": None}, True),
    ],
)
def test_a_run_whose_end_nobody_knows_has_no_runtime(
    fields: dict[str, Any], said: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tables.draw_run({**RUN, **fields})

    assert ("runtime" in capsys.readouterr().out) is said


@pytest.mark.parametrize(
    ("at", "digits", "shown"),
    [
        ("2026-12-01T02:00:00.740000Z", 3, "2026-12-01T02:00:00.740Z"),
        ("2026-12-01T02:00:00.740000Z", 0, "2026-12-01T02:00:00Z"),
        ("2026-12-01T02:00:00Z", 3, "2026-12-01T02:00:00Z"),
        ("", 3, ""),
    ],
)
def test_instants_are_as_long_as_people_need(at: str, digits: int, shown: str) -> None:
    assert rounded(at, digits) == shown
