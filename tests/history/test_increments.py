"""Segments that come one after the other, late, twice or in any order lead to the same tables as all at once."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from coordd.core.wire.journal_line import encode_line
from coordd.core.wire.merge import merge
from coordd.errors import ConfigError
from coordd.history import pipeline, schema, tables
from coordd.history.publishing import LAYOUT_FILE, Owner, Staging
from coordd.history.segments import LIST, Picture, list_text, read_before, snapshot
from coordd.history.tables import Tables
from history.journals import busy_day

KEYS = {name: columns for name, columns in schema.TABLES.items() if name != "corrupt"}


def add(spark: SparkSession, output: Path, journals: Path, keep_days: int = 0) -> None:
    """What the driver does, without its process and its report."""
    with Staging(str(output), Owner()) as staging:
        old = staging.readable(schema.LAYOUT)
        picture = snapshot([str(journals)], f"{staging.path}/_journals", read_before(old))
        built = pipeline.build(spark, picture, old, staging.path, 0.5, print)
        if keep_days:
            built.tables.forget(keep_days, "2026-09-22")
        Path(staging.path, LIST).write_text(list_text(picture.read))
        staging.publish(schema.LAYOUT)


def contents(spark: SparkSession, output: Path) -> dict[str, list[Any]]:
    """The rows of all tables, each in one order."""
    written = Tables(spark, "", str(output))
    found = {}
    for name in schema.TABLES:
        rows = [tuple(sorted(row.asDict().items(), key=str)) for row in written.after(name).collect()]
        if name == "corrupt":  # each run reads the files elsewhere
            rows = [tuple(cell for cell in row if cell[0] not in ("source", "date")) for row in rows]
        found[name] = sorted(rows, key=str)
    return found


class Days:
    """Three days of a cluster in segments of a few lines."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        cluster = busy_day(seed=seed, runs=14)
        cluster.now += 86_400.0
        for _ in range(3):
            cluster.run("nightly-sales", ["lost", "success"])
        self.records = cluster.records()
        self.segments: list[tuple[str, list[bytes]]] = []
        for node, journal in cluster.journals.items():
            lines = [encode_line(record) for record in journal]
            for number, at in enumerate(range(0, len(lines), 25), 1):
                part = lines[at : at + 25]
                if rng.random() < 0.3:
                    part.insert(rng.randrange(len(part)), b'{"type":"task-' + node.encode() + b"\n")
                self.segments.append((f"{node}/{number:08d}.jsonl", part))

    def write(self, top: Path, names: list[str]) -> None:
        for name, part in self.segments:
            if name in names:
                (top / name).parent.mkdir(parents=True, exist_ok=True)
                (top / name).write_bytes(b"".join(part))

    @property
    def first_at(self) -> float:
        return min(float(record["timestamp"]) for record in self.records)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.segments]


@pytest.fixture(scope="module")
def days() -> Days:
    return Days(seed=4)


@pytest.fixture(scope="module")
def whole(spark: SparkSession, days: Days, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """All at once."""
    top = tmp_path_factory.mktemp("whole")
    days.write(top / "j", days.names)
    add(spark, top / "out", top / "j")
    return contents(spark, top / "out")


def test_all_at_once_is_what_the_reference_says(days: Days, whole: dict[str, list[Any]]) -> None:
    assert {dict(row)["uuid"]: dict(row)["state"] for row in whole["runs"]} == {
        uuid: run.state for uuid, run in merge(days.records).items()
    }
    assert len(whole["events"]) == len(days.records)
    assert whole["corrupt"]
    assert {dict(row)["line_number"] for row in whole["corrupt"]} <= set(range(1, 27))


def test_any_order_twice_late_and_pruned(
    spark: SparkSession, days: Days, whole: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FILES_MAX", 1)
    rng = random.Random(6)
    names = rng.sample(days.names, len(days.names))
    output, journals = tmp_path / "out", tmp_path / "j"
    for at in (0, 1, 2):
        part = names[at::3]
        days.write(journals, part)
        if at == 1:  # delivered again under another name, and once more with an altered line
            days.write(journals / "again", part[:2])
            (journals / "again" / part[0]).rename(journals / "again" / "00000099-abcd.jsonl")
        if at == 2:  # the first third was pruned
            for name in names[0::3]:
                (journals / name).unlink()
            one = days.segments[days.names.index(part[0])]
            (journals / "edge-1" / "current.jsonl").parent.mkdir(exist_ok=True)
            (journals / "edge-1" / "current.jsonl").write_bytes(b"".join(one[1]) + b'{"open')
        add(spark, output, journals)
    for day in (output / "events").glob("date=*"):
        assert len(list(day.glob("*.parquet"))) <= 2, "the files of earlier increments are one again"
    found = contents(spark, output)
    open_ones = [row for row in found["corrupt"] if bytes(dict(row)["line"]) == b'{"open']
    assert len(open_ones) == 1
    torn = {bytes(dict(row)["line"]) for row in whole["corrupt"]}
    assert {bytes(dict(row)["line"]) for row in found["corrupt"]} == torn | {b'{"open'}
    (journals / "edge-1" / "current.jsonl").unlink()
    add(spark, output, journals)  # nothing is new
    shutil.rmtree(journals)
    (journals / "edge-1").mkdir(parents=True)
    add(spark, output, journals)  # nothing is there
    found = contents(spark, output)
    for name in KEYS:
        assert found[name] == whole[name], name


def test_rejected_lines_of_files_that_are_read_in_place_are_there_once(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "00000001.jsonl"
    path.write_text("half\nhalf of another\n")
    picture = Picture([f"file://{path}"], [], 0, [], str(tmp_path / "nowhere"), None, path.stat().st_size)
    old = ""
    for new in ("one", "two"):
        made = Tables(spark, old, str(tmp_path / new))
        pipeline.parse(made, picture)
        pipeline.corrupt(made, picture)
        old = made.new
        assert sorted(row.line_number for row in made.after("corrupt").collect()) == [1, 2]


def test_days_that_are_too_old_are_forgotten(spark: SparkSession, days: Days, tmp_path: Path) -> None:
    days.write(tmp_path / "j", days.names)
    for path in (tmp_path / "j").rglob("*.jsonl"):  # the date of a rejected line is that of its file
        os.utime(path, (days.first_at, days.first_at))
    add(spark, tmp_path / "out", tmp_path / "j", keep_days=0)
    assert {path.name for path in (tmp_path / "out" / "runs").iterdir()} >= {"date=2026-09-21", "date=2026-09-22"}
    add(spark, tmp_path / "out", tmp_path / "j", keep_days=-1)  # what is from before tomorrow
    for name in schema.TABLES:
        assert {path.name for path in (tmp_path / "out" / name).iterdir() if path.is_dir()} == {"date=1970-01-01"}


def test_tables_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    with Staging(str(tmp_path / "out"), Owner()) as staging:
        staging.publish(schema.LAYOUT + 1)
    with Staging(str(tmp_path / "out"), Owner()) as staging, pytest.raises(ConfigError, match="newer coordd"):
        staging.readable(schema.LAYOUT)
    assert (tmp_path / "out" / LAYOUT_FILE).read_text() == f"{schema.LAYOUT + 1}\n"
