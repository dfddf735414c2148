"""What increments do with files that are read in place, and with tables of a newer version.

That segments may come late, twice and in any order is shown by oracle/test_oracle.py.
"""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.wire.journal_line import encode_line
from coordd.errors import ConfigError
from coordd.history import pipeline, schema
from coordd.history.publishing import LAYOUT_FILE, Owner, Staging
from coordd.history.segments import Picture, snapshot
from coordd.history.tables import Tables
from history.journals import busy_day


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


def test_a_cut_segment_does_not_end_the_run(spark: SparkSession, tmp_path: Path) -> None:
    records = busy_day(seed=22, runs=2).records()
    (tmp_path / "j").mkdir()
    packed = gzip.compress(b"".join(map(encode_line, records)))
    (tmp_path / "j" / "00000001.jsonl.gz").write_bytes(packed[:-8])  # its checksum and length are missing
    picture = snapshot([str(tmp_path / "j")], str(tmp_path / "picture"))
    made = Tables(spark, "", str(tmp_path / "new"))
    pipeline.parse(made, picture)
    assert made.read_fresh().count() == len(records)
    pipeline.corrupt(made, picture)
    (rest,) = made.after("corrupt").collect()
    assert (rest.source, rest.problem) == (f"{tmp_path}/j/00000001.jsonl.gz", "torn")
    assert bytes(rest.line).startswith(b"(the rest of this file cannot be read: ")


def written(tables: Tables, name: str, *rows: dict[str, Any]) -> None:
    """Rows of the next table. (To take Python's rows, Spark would start a Python.)"""
    kind = f"array<struct<{schema.ddl({**schema.TABLES[name], 'date': 'date'})}>>".replace("` ", "`: ")
    tables.write(name, tables.spark.range(1).select(F.inline(F.from_json(F.lit(json.dumps(rows)), kind))))


def days_of(tables: Tables) -> dict[str, list[str]]:
    return {name: sorted(tables.dates(f"{tables.new}/{name}")) for name in schema.TABLES}


def at(day: str) -> float:
    return datetime.fromisoformat(f"{day}T12:00:00+00:00").timestamp()


def test_retention_forgets_no_life_that_goes_on_or_ended_lately(spark: SparkSession, tmp_path: Path) -> None:
    """A daemon and a run stand in the day of their first event, however long they live."""
    made = Tables(spark, "", str(tmp_path / "new"))
    fates = [
        ("2026-09-01", "started", "2026-09-01"),  # open
        ("2026-09-02", "success", "2026-09-03"),  # over
        ("2026-09-04", "failure", "2026-09-29"),  # ended lately
        ("2026-09-28", "success", "2026-09-28"),
    ]
    runs = [{"date": on, "uuid": on, "run": on, "state": state, "timestamp": at(end)} for on, state, end in fates]
    for name in ("runs", "attempts", "events"):
        written(made, name, *runs)
    lives = (("2026-09-01", "2026-09-29"), ("2026-09-02", "2026-09-03"), ("2026-09-29", "2026-09-29"))
    written(made, "nodes", *({"date": on, "hostname": "edge-1", "last_at": at(last)} for on, last in lives))
    written(made, "elections", {"date": "2026-09-01"}, {"date": "2026-09-23"})
    made.forget(7, "2026-09-30")
    by_run = ["date=2026-09-01", "date=2026-09-04", "date=2026-09-28"]
    assert days_of(made) == {
        **{name: [] for name in schema.TABLES},
        **dict.fromkeys(("events", "runs", "attempts"), by_run),
        "nodes": ["date=2026-09-01", "date=2026-09-29"],
        "elections": ["date=2026-09-23"],
    }


def test_the_first_day_of_the_epoch_is_a_day(spark: SparkSession, tmp_path: Path) -> None:
    """A board without a clock starts on it. The partition of a table without rows must be another one."""
    first = Tables(spark, "", str(tmp_path / "one"))
    written(first, "runs", {"date": "1970-01-01", "run": "j@1"})
    for name in ("runs", "nodes"):
        first.complete(name)
    then = Tables(spark, first.new, str(tmp_path / "two"))
    for name in ("runs", "nodes"):
        then.keep(name)
        then.complete(name)
    assert [row.run for row in then.after("runs").collect()] == ["j@1"]
    assert (then.before("nodes"), then.after("nodes").count()) == (None, 0)


def test_tables_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    with Staging(str(tmp_path / "out"), Owner()) as staging:
        staging.publish(schema.LAYOUT + 1)
    with Staging(str(tmp_path / "out"), Owner()) as staging, pytest.raises(ConfigError, match="newer coordd"):
        staging.readable(schema.LAYOUT)
    assert (tmp_path / "out" / LAYOUT_FILE).read_text() == f"{schema.LAYOUT + 1}\n"


def test_tables_of_an_older_version_are_rebuilt_only_when_asked(tmp_path: Path) -> None:
    """They were made again from the segments that were left: what came from pruned ones was lost without a word."""
    with Staging(str(tmp_path / "out"), Owner()) as staging:
        staging.publish(schema.LAYOUT - 1)
    with Staging(str(tmp_path / "out"), Owner()) as staging, pytest.raises(ConfigError) as refused:
        staging.readable(schema.LAYOUT)
    assert str(refused.value).startswith(
        f"{tmp_path}/out: expected tables of layout {schema.LAYOUT}, found layout {schema.LAYOUT - 1} of an older"
        " coordd; give another --output, or --rebuild"
    )
    (tmp_path / "out" / LAYOUT_FILE).unlink()  # the first tables said no layout
    with Staging(str(tmp_path / "out"), Owner()) as staging, pytest.raises(ConfigError, match="found layout 0 of"):
        staging.readable(schema.LAYOUT)
    (tmp_path / "empty").mkdir()
    for name in ("empty", "none"):
        with Staging(str(tmp_path / name), Owner()) as staging:
            assert staging.readable(schema.LAYOUT) == ""


def test_rows_without_a_later_column_stay(spark: SparkSession, tmp_path: Path) -> None:
    """``hosts`` came later than the table."""
    old = Tables(spark, "", str(tmp_path / "old"))
    written(old, "attempts", {"date": "2026-09-01", "run": "j@1"}, {"date": "2026-09-02", "run": "j@2"})
    there = old.after("attempts").drop("hosts")
    there.write.partitionBy("date").parquet(f"file://{tmp_path}/older/attempts")
    new = Tables(spark, str(tmp_path / "older"), str(tmp_path / "new"))
    touched = new.affected({"attempts": spark.range(1).select(F.lit("j@1").alias("run"))})["attempts"]
    hosts = F.array(F.lit("edge-1"))
    fresh = there.where("run = 'j@1'").withColumn("hosts", hosts)
    new.replace("attempts", fresh, touched)
    found = {row.run: row.hosts for row in new.after("attempts").collect()}
    assert found == {"j@1": ["edge-1"], "j@2": None}
