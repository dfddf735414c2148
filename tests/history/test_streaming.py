"""Spark's stream finds each closed segment once, and what it finds is one increment."""

from __future__ import annotations

import argparse
import glob
import os
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordd.errors import ConfigError, RefusedError
from coordd.history.segments import LIST
from coordd.history.streaming import NOW, checkpoint, follow, trigger
from history.test_segments import journal


def test_each_closed_segment_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    one = journal(tmp_path / "sink" / "edge-1", **{"00000001": "a", "current": "open"})
    two = journal(tmp_path / "sink" / "edge 2", **{"00000001-89abcdef0123": "b"})
    batches: list[list[str]] = []

    def add(paths: list[str]) -> None:
        batches.append(paths)
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / LIST).touch()

    def look() -> None:
        follow(spark, [str(one), f"file://{tmp_path}/sink/*2"], str(tmp_path / "out"), NOW, add)

    look()
    assert batches == [sorted([f"{one}/00000001.jsonl", f"{two}/00000001-89abcdef0123.jsonl"])]
    (one / "current.jsonl").rename(one / "00000002.jsonl")
    look()
    assert batches[1:] == [[f"{one}/00000002.jsonl"]]
    assert Path(checkpoint(str(tmp_path / "out"))).parent == tmp_path
    look()
    assert len(batches) == 2
    (tmp_path / "out" / LIST).unlink()
    look()
    assert len(batches[2]) == 3, "the output is gone: all is found again"


def test_a_batch_that_failed_is_found_again_without_pruned_segments(spark: SparkSession, tmp_path: Path) -> None:
    one = journal(tmp_path / "edge-[1]", **{"00000001": "a", "00000002": "b"})
    output = journal(tmp_path / "out")
    (output / LIST).touch()

    def fails(_paths: list[str]) -> None:
        raise RefusedError("another one published")

    with pytest.raises(RefusedError, match="another one published"):
        follow(spark, [str(tmp_path)], str(output), NOW, fails)
    (one / "00000001.jsonl").unlink()
    batches: list[list[str]] = []
    follow(spark, [str(tmp_path)], str(output), NOW, batches.append)
    assert [glob.glob(path) for path in batches[0]] == [[f"{one}/00000002.jsonl"]]


def test_a_segment_that_comes_late_is_followed_however_old_it_is(spark: SparkSession, tmp_path: Path) -> None:
    one = journal(tmp_path / "edge-1", **{"00000002": "new"})
    (journal(tmp_path / "out") / LIST).touch()
    batches: list[list[str]] = []
    follow(spark, [str(one)], str(tmp_path / "out"), NOW, batches.append)
    (one / "00000001.jsonl").write_text("of a node that was away for a year")
    year_ago = time.time() - 365 * 86_400
    os.utime(one / "00000001.jsonl", (year_ago, year_ago))
    follow(spark, [str(one)], str(tmp_path / "out"), NOW, batches.append)
    assert batches == [[f"{one}/00000002.jsonl"], [f"{one}/00000001.jsonl"]]


def test_a_copy_in_progress_is_not_followed(spark: SparkSession, tmp_path: Path) -> None:
    one = journal(tmp_path / "edge-1", **{"00000001": "a"})
    for name in ("00000002.jsonl.part", "00000003.jsonl.gz.part", "00000004.jsonl.gz"):
        (one / name).write_text("half")
    batches: list[list[str]] = []
    follow(spark, [str(one)], str(tmp_path / "out"), NOW, batches.append)
    assert batches == [[f"{one}/00000001.jsonl", f"{one}/00000004.jsonl.gz"]]


def test_journals_that_cannot_be_followed_are_said(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot follow .*/none"):
        follow(spark, [str(tmp_path / "none")], str(tmp_path / "out"), NOW, print)
    one = journal(tmp_path / "edge-1", **{"00000001": "a"})
    with pytest.raises(ConfigError, match=r"cannot follow .*/none, .*/edge-\[2-9\]: there is nothing"):
        follow(spark, [str(one), f"{tmp_path}/none", f"{tmp_path}/edge-[2-9]"], str(tmp_path / "out"), NOW, print)
    with pytest.raises(ConfigError, match="one URI or local directories"):
        follow(spark, [str(tmp_path), "hdfs://name/journals"], str(tmp_path / "out"), NOW, print)


def test_what_the_option_says() -> None:
    assert (trigger("now"), trigger("30")) == (NOW, 30.0)
    for bad in ("0", "never", "1e9"):
        with pytest.raises(argparse.ArgumentTypeError, match="expected now, or a number of seconds"):
            trigger(bad)
