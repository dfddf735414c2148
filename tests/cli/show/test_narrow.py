"""A table on a narrow terminal: the less important columns go, the id, the state and the reason stay."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import Any

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


ALERT = "suspended until 2026-12-01T02:00:00Z by root (the disk is being exchanged)"
NODE = {
    "hostname": "edge-1.prod-frankfurt.example.com", "state": "alive", "says": "draining", "last_seen_s": 1.7,
    "active": 12, "pid": 32107, "clock": 326_000, "tags": ["spark", "hdfs", "gpu"], "jobs_digest": "7f71062e0011",
    "version": "0.1.0", "drained": {"by": "root", "note": "maintenance of the rack"},
}  # fmt: skip
JOB = {
    "name": "nightly-sales-report", "enabled": True, "schedule": "*/5 2-4 * * *", "timezone": "Europe/Berlin",
    "next": "2126-11-29T01:00:00Z", "last_success_at": "2026-10-03T02:00:03Z", "on_lost": "relaunch",
    "starts": "/opt/spark/bin/spark-submit", "problems": [ALERT],
}  # fmt: skip


def drawn(
    width: int,
    monkeypatch: pytest.MonkeyPatch,
    columns: Sequence[tables.Column] = tables.RUNS,
    rows: Sequence[dict[str, Any]] = (LONG, RUN),
    *,
    blocks: bool = False,
) -> str:
    into = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr(tables, "console", lambda: into)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)  # then it has the box that people see
    into.print(tables.table(columns, rows, now=0.0, blocks=blocks))
    assert isinstance(into.file, io.StringIO)
    return into.file.getvalue()


def words(text: str) -> str:
    """A text without its breaks: a cell of one column may be on several lines."""
    return "".join(text.split())


@pytest.mark.parametrize(
    ("columns", "row", "whole"),
    [
        (tables.NODES, NODE, [NODE["hostname"], "draining by root", "12"]),
        (tables.JOBS, JOB, [JOB["name"], "warn", "2126-11-29 01:00:00"]),
        (tables.JOBS, {**JOB, "problems": []}, [JOB["name"], "enabled", "*/5 2-4 * * *", "2126-11-29 01:00:00"]),
        (
            tables.DECISIONS,
            {"fire_time": "2026-12-01T02:00:00Z", "decision": "launched", "run": "tick@x", "reason": "it is pending"},
            ["2026-12-01T02:00:00Z", "launched", "it is pending"],
        ),
    ],
)
def test_a_table_can_be_read_at_80_columns(
    columns: Sequence[tables.Column], row: dict[str, Any], whole: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = drawn(80, monkeypatch, columns, [row])
    assert len([line for line in text.splitlines()[2:] if line.strip()]) <= 4  # a row, its problem on three lines more
    for cell in whole:
        assert cell in text


@pytest.mark.parametrize("width", range(50, 140, 3))
def test_what_people_copy_is_never_broken(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, row, key in ((tables.RUNS, LONG, "id"), (tables.NODES, NODE, "hostname"), (tables.JOBS, JOB, "name")):
        assert str(row[key]) in drawn(width, monkeypatch, columns, [row], blocks=True)


def test_a_row_that_fits_no_line_is_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {**LONG, "id": "nightly-sales-report-of-the-region@2026-10-03T02:00:00Z"}
    text = drawn(72, monkeypatch, rows=[long, RUN], blocks=True)
    assert f"RUN            {long['id']}" in text
    assert all(len(line.rstrip()) <= 72 for line in text.splitlines())
    for cell in ("edge-1", "EXIT           1", "j#1", str(LONG["reason"])):
        assert words(cell) in words(text)
    assert text.splitlines().count("") + sum(line.isspace() for line in text.splitlines()) == 1  # between the two


def test_columns_that_say_nothing_go_first() -> None:
    columns = [
        tables.Column("A", lambda _row, _now: "", whole=True),
        tables.Column("B", lambda _row, _now: ""),
        tables.Column("C", lambda _row, _now: "", spare=1),
    ]
    assert narrow.kept(columns, [["a" * 30, "", "c"]], 33) == ([0, 2], True)
    assert narrow.kept(columns, [["a" * 30, "", "c"]], 40) == ([0, 1, 2], True)
    assert narrow.kept(columns, [["a" * 30, "", "c"]], 31) == ([0], True)


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
