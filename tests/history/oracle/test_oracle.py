"""A small trial, in the Spark of the history tests; `make oracle` runs large ones by spark-submit."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from coordd.history import pipeline, schema, tables
from coordd.history.publishing import Owner, Staging
from coordd.history.segments import LIST, list_text, read_before, snapshot
from history.oracle.trial import CELERY, Plan, play

LEAST = {
    "events": 2_400,
    "runs": 300,
    "attempts": 400,
    "fires": 200,
    "elections": 60,
    "audit": 180,
    "corrupt": 20,
    "breakers": 5,
}


def add(spark: SparkSession, journals: Path, output: Path, keep_days: int = 0) -> None:
    """What the driver does, without its process and its report."""
    with Staging(str(output), Owner()) as staging:
        old = staging.readable(schema.LAYOUT)
        picture = snapshot([str(journals)], f"{staging.path}/_journals", read_before(old), found=True)
        made = pipeline.build(spark, picture, old, staging.path, 0.5, print)
        if keep_days:
            made.forget(keep_days, "2026-09-26")
        Path(staging.path, LIST).write_text(list_text(picture.read))
        staging.publish(schema.LAYOUT)


def days_of(output: Path) -> dict[str, set[str]]:
    return {name: {path.name for path in (output / name).glob("date=*")} for name in schema.TABLES}


def test_what_comes_late_twice_spoilt_and_in_any_order_leads_to_the_tables_of_the_reference(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "FILES_MAX", 1)
    nothing = tmp_path / "nothing"
    nothing.mkdir()

    def adding(journals: Path, output: Path) -> None:
        add(spark, journals, output)
        add(spark, nothing, output)  # as if all was pruned

    verdict = play(Plan(seed=5, events=2_500, parts=2, segment=120), tmp_path, adding)
    assert {name: tally.shown for name, tally in verdict.tallies.items() if tally.mismatches} == {}
    assert {name: verdict.tallies[name].rows for name in LEAST if verdict.tallies[name].rows < LEAST[name]} == {}
    assert verdict.tallies[CELERY].rows == verdict.tallies["runs"].rows

    output = tmp_path / "output"
    for day in (output / "events").glob("date=*"):
        assert len(list(day.glob("*.parquet"))) <= 2, "the files of earlier increments are one again"
    before = days_of(output)
    add(spark, nothing, output, keep_days=3)
    for name in ("elections", "audit", "corrupt"):  # of the others, days with open runs and living nodes stay
        assert days_of(output)[name] == {day for day in before[name] if day >= "date=2026-09-23"}
    assert {day for days in before.values() for day in days} >= {"date=2026-09-21", "date=2026-09-26"}
