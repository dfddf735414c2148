"""Attempts of one run, each with a fake runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from coordd import guard
from guard.fake_runner import FakeRow, FakeRunner

Begin = Callable[..., FakeRunner]


@pytest.fixture
def row() -> FakeRow:
    return FakeRow(5)


@pytest.fixture
def begin(row: FakeRow, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Start an attempt: this process, and every program it starts, is its program from then on."""
    made: list[FakeRunner] = []

    def begin(token: int = 5, **other: Any) -> FakeRunner:
        runner = FakeRunner(row, token, **other)
        made.append(runner)
        row.token = token
        for name, value in runner.environ.items():
            monkeypatch.setenv(name, value)
        guard._published.clear()
        return runner

    yield begin
    for runner in made:
        runner.close()
