"""What increments do with files that are read in place, and with tables of a newer version.

That segments may come late, twice and in any order is shown by oracle/test_oracle.py.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

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


def test_tables_of_a_newer_version_are_left_alone(tmp_path: Path) -> None:
    with Staging(str(tmp_path / "out"), Owner()) as staging:
        staging.publish(schema.LAYOUT + 1)
    with Staging(str(tmp_path / "out"), Owner()) as staging, pytest.raises(ConfigError, match="newer coordd"):
        staging.readable(schema.LAYOUT)
    assert (tmp_path / "out" / LAYOUT_FILE).read_text() == f"{schema.LAYOUT + 1}\n"
