"""A table on a narrow terminal: the less important columns go, the id, the state and the reason stay."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from support.fake_daemon import RUN

from coordd.cli.show import narrow, tables

LONG = {
    **RUN,
    "id": "nightly@2026-10-03T02:00:00Z",
    "state": "failure",
    "exit_code": 1,
    "reason": "exit code 1: the table is locked by another session",
}


def drawn(width: int, monkeypatch: pytest.MonkeyPatch) -> str:
    into = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(tables, "console", lambda: into)
    into.print(tables.table(tables.RUNS, [LONG, RUN], now=0.0))
    assert isinstance(into.file, io.StringIO)
    return into.file.getvalue()


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (200, ["RUN", "STATE", "TRY", "NODE", "STARTED", "RUNTIME", "EXIT", "REASON"]),
        (80, ["RUN", "STATE", "NODE", "RUNTIME", "REASON"]),
        (60, ["RUN", "STATE", "REASON"]),
    ],
)
def test_columns_are_left_out_by_their_importance(
    width: int, titles: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = drawn(width, monkeypatch)
    heading = text.splitlines()[0].replace(" (UTC)", "").split()
    assert heading == titles
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert str(LONG["id"]) in text


@pytest.mark.parametrize("width", [30, 40])
def test_an_id_that_does_not_fit_is_wrapped_and_nothing_is_lost(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = drawn(width, monkeypatch)
    assert all(len(line.rstrip()) <= width for line in text.splitlines())
    assert set("nightly@2026-10-03T02:00:00Z") <= set(text)
    assert "REASON" in text
    assert "STATE" in text


def test_what_may_not_be_left_out_stays() -> None:
    columns = [
        tables.Column("A", lambda _row, _now: "", whole=True),
        tables.Column("B", lambda _row, _now: "", spare=1),
    ]
    assert narrow.kept(columns, [["a" * 30, "b"]], 10) == ([0], False)
    assert narrow.kept(columns, [["a" * 30, "b"]], 100) == ([0, 1], True)
    assert narrow.kept(columns, [], 100) == ([0, 1], True)
