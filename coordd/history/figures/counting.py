"""The figures of the report: DataFrames in, a bounded number of rows out, however many runs there are."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.ledger.words import (
    FAILURE,
    MISSED,
    PENDING,
    RECEIVED,
    REJECTED,
    RETRY,
    REVOKED,
    STARTED,
    SUCCESS,
    UNKNOWN,
)

# How many rows of each kind the page has.
JOBS_SHOWN = 40
TRENDS_SHOWN = 20
TREND_LENGTH = 60
TAKEOVERS_SHOWN = 20
TROUBLE_SHOWN = 8
NODES_SHOWN = 12
BREAKERS_SHOWN = 20
BUCKETS_MAX = 48

HOUR, DAY = 3600, 86_400
# The width of a bar of the runs over time (seconds).
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, HOUR, 2 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 7 * DAY, 28 * DAY)

# How the reason of a run begins that a breaker rejected, or let fail (core/ledger/breaker/text.py).
PREVENTED_BY = "breaker"

# A run that started later than this (seconds) after its time is shown as late.
LATE_S = 30.0

# The state of a breaker that has opened by itself (core/ledger/breaker/text.py).
OPENED = "open"

LATE, BREAKER, OVERLAP, LIMIT, OTHER = "late", "breaker", "overlap", "limit", "rejected"

# Runs in these states have not ended.
OPEN = (PENDING, RECEIVED, STARTED, RETRY, UNKNOWN)

# The accuracy of quantiles: the rank of an estimate is right up to a thousandth; of few values it is exact.
ACCURACY = 1000

Rows = list[dict[str, Any]]


def whole_runs(runs: DataFrame, attempts: DataFrame) -> DataFrame:
    """One row per run with its launches: when it was due, began and was over, how long the success took.

    ``at``: its place in time. ``delay_s``: from its due time to the first launch; null if a backfill or a person opened
    that launch later. ``took_s``: of the attempt that succeeded; null if none did.
    """
    launched = attempts.groupBy("run").agg(
        F.min("started").alias("begun"),
        F.min_by("attempt", "started").alias("first"),
        F.max("started").alias("last_begun"),
        F.max("ended").alias("over"),
        F.count(F.lit(1)).alias("launches"),
        F.max_by("hostname", "started").alias("node"),
        F.max(F.when(F.col("outcome") == SUCCESS, F.col("ended") - F.col("started"))).alias("took_s"),
    )
    asked = F.greatest(*[F.when(F.col(name) > 0, F.col(name)) for name in ("fire_at", "due")])
    return (
        runs.where(F.col("run").isNotNull())
        .select(
            "job",
            "run",
            "state",
            "timestamp",
            "reason",
            "result",
            "rejected",
            "retried",
            F.coalesce(asked, "sent").alias("asked_at"),
        )
        .join(launched, "run", "left")
        .withColumn("at", F.coalesce("begun", "rejected", "timestamp"))
        # Attempt 0 is that of the fire time. Without a launch of it, or a node that gave it back, a person asked later.
        .withColumn("live", (F.col("first") == 0) | F.coalesce(F.col("retried") <= F.col("begun"), F.lit(False)))
        .withColumn("delay_s", F.when(F.col("live"), F.col("begun") - F.col("asked_at")))
        .withColumn("delay_s", F.when(F.col("delay_s") < 0, 0.0).otherwise(F.col("delay_s")))  # greatest() skips nulls
        .drop("first", "retried", "live")
    )


def step_of(span_s: float) -> int:
    """The width (seconds) of a bar, so that there are at most BUCKETS_MAX."""
    return next((step for step in STEPS if span_s / step < BUCKETS_MAX), STEPS[-1] * 12)


def over_time(whole: DataFrame, step_s: int, until: float) -> Rows:
    """Runs by state in each stretch of time; only the last BUCKETS_MAX stretches."""
    bucket = (F.floor(F.col("at") / step_s) * step_s).cast("double")
    return rows(
        whole.where(F.col("at") > until - step_s * BUCKETS_MAX)
        .groupBy(bucket.alias("at"), "state")
        .agg(F.count(F.lit(1)).alias("runs"))
        .orderBy("at", "state")
    )


def jobs(whole: DataFrame) -> Rows:
    """Each job in one row, those with most runs first."""
    return rows(_by_job(whole).orderBy(F.col("runs").desc(), "job").limit(JOBS_SHOWN))


def jobs_named(whole: DataFrame, names: Collection[str]) -> Rows:
    """The rows of these jobs, however few runs they have."""
    return rows(_by_job(whole.where(F.col("job").isin(*names))).orderBy("job")) if names else []


def _by_job(whole: DataFrame) -> DataFrame:
    """Quantiles of durations are of successes. ``again``: launches after the first one of a run."""
    took, delay = F.col("took_s"), F.col("delay_s")
    return whole.groupBy("job").agg(
        F.count(F.lit(1)).alias("runs"),
        F.sum((F.col("state") == SUCCESS).cast("long")).alias("succeeded"),
        F.sum((F.col("state") == FAILURE).cast("long")).alias("failed"),
        F.sum((F.col("state") == REJECTED).cast("long")).alias("rejected"),
        F.sum(F.col("state").isin(*OPEN).cast("long")).alias("open"),
        F.coalesce(F.sum(F.col("launches") - 1), F.lit(0)).alias("again"),
        F.count(took).alias("timed"),
        quantile(took, [0.1, 0.25, 0.5, 0.75, 0.9]).alias("took"),
        quantile(delay, [0.5, 0.95]).alias("delay"),
        F.max("at").alias("last_at"),
        F.min("at").alias("first_at"),
        F.max_by("state", "at").alias("last_state"),
        F.max(F.when(F.col("state") == SUCCESS, F.coalesce("over", "timestamp"))).alias("succeeded_at"),
    )


def trends(whole: DataFrame, names: list[str]) -> dict[str, Rows]:
    """The latest TREND_LENGTH launched runs of these jobs, oldest first."""
    latest = Window.partitionBy("job").orderBy(F.col("at").desc(), "run")
    found = rows(
        whole.where(F.col("job").isin(names) & F.col("begun").isNotNull())
        .select("job", "run", "state", "at", "took_s", "delay_s", "node", "launches", "begun", "over")
        .withColumn("n", F.row_number().over(latest))
        .where(F.col("n") <= TREND_LENGTH)
        .orderBy("job", "at", "run")
    )
    return {name: [row for row in found if row["job"] == name] for name in names}


def placed(attempts: DataFrame, names: list[str]) -> Rows:
    """How many launches of each of these jobs each node had."""
    return rows(
        attempts.where(F.col("job").isin(names))
        .groupBy("job", "hostname")
        .agg(F.count(F.lit(1)).alias("launches"))
        .orderBy("job", "hostname")
    )


def takeovers(attempts: DataFrame) -> Rows:
    """The latest attempts after one that was lost. ``gap_s``: from its end, if it is known."""
    return rows(
        _after_losses(attempts)
        .withColumn("gap_s", F.col("started") - F.col("gave_up_at"))
        .orderBy(F.col("started").desc(), "run")
        .limit(TAKEOVERS_SHOWN)
    )


def taken_over(attempts: DataFrame) -> DataFrame:
    """The runs of which an attempt was lost, and then taken over."""
    return _after_losses(attempts).select("run").distinct()


def _after_losses(attempts: DataFrame) -> DataFrame:
    """The attempts after one that was lost. After one that has ended a retry, a person or a backfill asks for more."""
    before = Window.partitionBy("run").orderBy("attempt", "started")
    return (
        attempts.select("job", "run", "attempt", "hostname", "started", "ended", "reason", "outcome")
        .withColumn("from", F.lag("hostname").over(before))
        .withColumn("why", F.lag("reason").over(before))
        .withColumn("gave_up_at", F.lag("ended").over(before))
        .withColumn("begun_before", F.lag("started").over(before))
        .withColumn("ended_as", F.coalesce(F.lag("outcome").over(before), F.lit("")))
        .where(F.col("begun_before").isNotNull() & ~F.col("ended_as").isin(SUCCESS, FAILURE, REVOKED))
        .drop("ended_as")
    )


def counts(**asked: tuple[DataFrame, str, Column]) -> dict[str, dict[str, int]]:
    """For each name: a number for each word of a column, in order of the words. One query for all of them."""
    tables = [
        table.groupBy(F.col(column).alias("word")).agg(number.alias("n")).select(F.lit(name).alias("name"), "word", "n")
        for name, (table, column, number) in asked.items()
    ]
    found: dict[str, dict[str, int]] = {name: {} for name in asked}
    for row in sorted(
        reduce(DataFrame.unionAll, tables).collect(), key=lambda row: (row["word"] is not None, row["word"])
    ):
        found[row["name"]][row["word"]] = row["n"]
    return found


def trouble(whole: DataFrame) -> Rows:
    """Missed, rejected and late runs: the latest of each kind, and (``of_kind``) how many there are."""
    of_kind = Window.partitionBy("kind")
    return rows(
        whole.withColumn("kind", _kind())
        .where(F.col("kind").isNotNull())
        .select("kind", "job", "run", "at", "delay_s", "reason", "asked_at")
        .withColumn("of_kind", F.count(F.lit(1)).over(of_kind))
        .withColumn("n", F.row_number().over(of_kind.orderBy(F.col("at").desc(), "run")))
        .where(F.col("n") <= TROUBLE_SHOWN)
        .orderBy(F.col("at").desc(), "run")
    )


def kept_by_breakers(whole: DataFrame) -> DataFrame:
    """The runs that a breaker rejected, or let fail."""
    return whole.where(_kind() == BREAKER)


def breakers(changes: DataFrame, nodes: DataFrame, now: float) -> Rows:
    """Each breaker that was not closed, those that were so last first: how often it opened, and for how long (seconds)
    it was not closed; ``open`` if it is not closed yet.

    A state ends with the next one, when a node sees it closed, or when the node whose own it is starts again.
    """
    key = ["breaker", "hostname"]
    starts = nodes.where(F.col("online_at").isNotNull()).select(F.col("hostname").alias("node"), "online_at")
    restarted = (F.col("node") == F.col("hostname")) & (F.col("online_at") > F.col("since"))
    ended = (
        changes.where(F.col("state").isNotNull())
        .withColumn("next", F.lead("since").over(Window.partitionBy(*key).orderBy("since")))
        .join(starts, restarted, "left")
        .groupBy(*key, "since", "state", "job", "reason", "closed_at", "next")
        .agg(F.min("online_at").alias("restarted_at"))
        .withColumn("until", F.least("closed_at", "next", "restarted_at"))
    )
    return rows(
        ended.groupBy(*key)
        .agg(
            F.max("job").alias("job"),
            F.sum((F.col("state") == OPENED).cast("long")).alias("opened"),
            F.sum(F.greatest(F.lit(0.0), F.coalesce("until", F.lit(now)) - F.col("since"))).alias("not_closed_s"),
            F.max("since").alias("last_at"),
            F.max_by(F.col("until").isNull(), "since").alias("open"),
            F.max_by("state", "since").alias("state"),
            F.max_by("reason", "since").alias("reason"),
        )
        .orderBy(F.col("last_at").desc(), *key)
        .limit(BREAKERS_SHOWN)
    )


def _kind() -> Column:
    """From the reason that the ledger gives: coordd/core/ledger/rules.py writes it."""
    reason = F.lower(F.coalesce("reason", F.lit("")))
    is_late = F.col("delay_s") > LATE_S
    return (
        F.when(
            F.col("state") == REJECTED,
            F.when((F.col("result") == MISSED) | reason.startswith("no node could launch"), MISSED)
            .when(reason.contains(PREVENTED_BY), BREAKER)
            .when(reason.startswith("overlap"), OVERLAP)
            .when(reason.startswith("queue"), LIMIT)
            .otherwise(OTHER),
        )
        .when((F.col("state") == FAILURE) & reason.startswith(PREVENTED_BY), BREAKER)
        .when(is_late, LATE)
    )


def hours(whole: DataFrame) -> Rows:
    """For each hour of the week (UTC; Monday is 0): starts, failures, and the 95 % quantile of the delay."""
    at = F.coalesce("begun", "at")
    return rows(
        whole.groupBy(weekday(at).alias("weekday"), hour(at).alias("hour"))
        .agg(
            F.count("begun").alias("starts"),
            F.sum((F.col("state") == FAILURE).cast("long")).alias("failed"),
            quantile("delay_s", 0.95).alias("delay_s"),
        )
        .orderBy("weekday", "hour")
    )


def weekday(at: Column) -> Column:
    """0: Monday; 1970-01-01 was a Thursday."""
    return ((F.floor(at / DAY) + 3) % 7).cast("int")


def hour(at: Column) -> Column:
    """The hour of the day in UTC."""
    return (F.floor(at / HOUR) % 24).cast("int")


def quantile(values: str | Column, of: float | list[float]) -> Column:
    """The quantile of these values, or several, each of them a value that there is; null without values."""
    return F.percentile_approx(values, of, ACCURACY)


def rows(table: DataFrame) -> Rows:
    """The rows of a table that is small by its query."""
    return [row.asDict(recursive=True) for row in table.collect()]
