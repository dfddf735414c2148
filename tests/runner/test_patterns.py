"""A job's patterns on the end of its output: none of them may keep the runner from its lease."""

from __future__ import annotations

import time

import pytest

from coordd.runner import patterns
from coordd.runner.patterns import found


@pytest.mark.parametrize(
    ("wanted", "text", "is_there"),
    [
        (("OutOfMemory.*",), "java.lang.OutOfMemoryError: heap", True),
        (("no", "error$"), "an\nerror", True),
        (("^x",), "y\nx", False),
        (("é+",), "caféé", True),
    ],
)
def test_what_is_found(wanted: tuple[str, ...], text: str, is_there: bool) -> None:
    assert found(wanted, text, "never_on") is is_there


def test_a_pattern_that_runs_away_is_given_up(capfd: pytest.CaptureFixture[str]) -> None:
    began = time.monotonic()
    assert not found(("(a+)+$",), "a" * 64 + "!", "never_on")
    assert time.monotonic() - began < 30.0, "it would take until the end of the sun"
    assert "took too long" in capfd.readouterr().err


def test_a_pattern_that_is_none_loses_no_run(capfd: pytest.CaptureFixture[str]) -> None:
    assert not found(("(",), "x", "never_on")
    assert "not a regular expression" in capfd.readouterr().err


def test_a_child_that_nobody_ends_is_ended_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "PATIENCE_S", 600.0)
    assert not found(("(a+)+$",), "a" * 64 + "!", "never_on")
