"""Collects the rows of the report: every list here has a limit, however many runs there are."""

from __future__ import annotations

import contextlib
import glob
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping

from pyspark.sql import DataFrame, Row, SparkSession, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.ledger.words import SUCCESS
from coordd.errors import ConfigError
from coordd.history.figures import counting
from coordd.history.figures.learning import Limits, learn, warnings
from coordd.history.report import Report

# Maximum rows per table; the Parquet tables contain everything.
RUNS_SHOWN = 30
ATTEMPTS_SHOWN = 300
FINDINGS_SHOWN = 50

# Up to this number of runs, Spark need not compile a query.
QUICK_MAX = 300_000

# For each core, the runs are kept in this many parts.
PARTS_EACH = 2

SHUFFLE = "spark.sql.shuffle.partitions"


def collect(table: Callable[[str], DataFrame], limits: Mapping[str, Limits]) -> Report:
    """The report. ``table`` reads one, by its name."""
    runs, attempts, nodes, findings = table("runs"), table("attempts"), table("nodes"), table("audit")
    # In few parts: each of the queries below puts together a sketch of the quantiles of each of them.
    parts = runs.sparkSession.sparkContext.defaultParallelism * PARTS_EACH
    whole = counting.whole_runs(runs, attempts).coalesce(parts).persist()
    try:
        span = _span(whole)
        with _quick(whole.sparkSession, span.runs):
            step_s = counting.step_of((span.last or 0.0) - (span.first or 0.0))
            jobs = counting.jobs(whole)
            names = [row["job"] for row in jobs[: counting.TRENDS_SHOWN]]
            asked = jobs + counting.jobs_named(whole, limits.keys() - {row["job"] for row in jobs})
            learned = learn(whole, list(span.days), [row["job"] for row in asked])
            counted = counting.counts(
                nodes=(nodes, "hostname", F.sum("events")),
                states=(runs, "state", F.count(F.lit(1))),
                launches=(attempts, "hostname", F.count(F.lit(1))),
                kept=(counting.kept_by_breakers(whole), "job", F.count(F.lit(1))),
                problems=(table("corrupt"), "problem", F.count(F.lit(1))),
                severities=(findings, "severity", F.count(F.lit(1))),
                takeovers=(counting.taken_over(attempts).withColumn("all", F.lit("")), "all", F.count(F.lit(1))),
            )
            takeovers = sum(counted["takeovers"].values())
            latest = counting.rows(runs.orderBy(F.col("timestamp").desc(), "run").limit(RUNS_SHOWN))
            drawn = attempts.where(F.col("run").isin([row["run"] for row in latest if row["run"]]))
            worst = findings.orderBy(F.col("severity").desc(), "at", "run", "attempt", "kind")
            return Report(
                events=sum(counted["nodes"].values()),
                nodes=list(counted["nodes"]),
                states=counted["states"],
                launches=counted["launches"],
                corrupt=counted["problems"],
                takeovers=takeovers,
                severities=counted["severities"],
                findings=counting.rows(worst.limit(FINDINGS_SHOWN)) if counted["severities"] else [],
                runs=latest,
                attempts=counting.rows(drawn.orderBy(F.col("started").desc()).limit(ATTEMPTS_SHOWN)),
                step_s=step_s,
                over_time=counting.over_time(whole, step_s, span.last or 0.0),
                jobs=jobs,
                all_jobs=span.jobs,
                trends=counting.trends(whole, names),
                placed=counting.placed(attempts, names),
                handed_over=counting.takeovers(attempts) if takeovers else [],
                trouble=counting.trouble(whole),
                breakers=counting.breakers(table("breakers"), nodes, span.now or 0.0),
                kept=counted["kept"],
                hours=counting.hours(whole),
                learned=learned,
                warnings=warnings(learned, asked, limits, span.now or 0.0),
                first_at=span.first,
                last_at=span.now,
            )
    finally:
        whole.unpersist()


def _span(whole: DataFrame) -> Row:
    """How many runs of how many jobs, from when to when, and the days with successes."""
    day = F.floor(F.col("begun") / counting.DAY).cast("int")
    return whole.agg(
        F.count(F.lit(1)).alias("runs"),
        F.min("at").alias("first"),
        F.max("at").alias("last"),
        F.max("timestamp").alias("now"),
        F.countDistinct("job").alias("jobs"),
        F.sort_array(F.collect_set(F.when(F.col("state") == SUCCESS, day))).alias("days"),
    ).collect()[0]


@contextlib.contextmanager
def _quick(spark: SparkSession, runs: int) -> Iterator[None]:
    """For few runs, each of these queries takes longer to be compiled, planned again and cut in parts than to run."""
    quick = {"spark.sql.codegen.wholeStage": "false", "spark.sql.adaptive.enabled": "false", SHUFFLE: "1"}
    options = quick if runs <= QUICK_MAX else {}
    before = {option: str(spark.conf.get(option)) for option in options}
    try:
        for option, value in options.items():
            spark.conf.set(option, value)
        yield
    finally:
        for option, value in before.items():
            spark.conf.set(option, value)


def limits_of(directory: str | None) -> dict[str, Limits]:
    """``timeout`` and ``expect_within`` of each job file in a directory. Raises ConfigError if one is not valid."""
    if directory is None:
        return {}
    try:
        from coordd.core.jobs.schedule import parse_duration
    except ImportError as exc:
        raise ConfigError(f"--jobs {directory}: this Python lacks a library ({exc}); use coordd's own") from exc
    found = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(directory), "*.toml"))):
        try:
            with open(path, "rb") as file:
                keys = tomllib.load(file)
            spans = [parse_duration(keys[key]) if key in keys else None for key in ("timeout", "expect_within")]
        except (OSError, ValueError) as exc:
            raise ConfigError(f"{path}: {exc}") from exc
        found[os.path.basename(path).removesuffix(".toml")] = Limits(*spans)
    if not found:
        raise ConfigError(f"--jobs {directory}: there are no job files (*.toml)")
    return found
