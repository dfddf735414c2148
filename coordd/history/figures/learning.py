"""What past runs tell of coming ones: durations by quantiles, their error on days that were held back, collisions.

No model: the quantiles of a job's own successes, of the same weekday and hour where there are enough of them. Where
there are too few, the answer is that there is not enough data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Window, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.ledger.words import RECEIVED, STARTED
from coordd.history.figures.counting import DAY, Rows, hour, quantile, rows, weekday

# Least numbers of successes for a quantile: of a job, and of one of its hours of the week.
JOB_MIN = 8
SLOT_MIN = 8

# The share of the days with runs that is held back to measure the error, and the least number of days for that.
HELD_BACK = 0.25
DAYS_MIN = 4

RUNNING_SHOWN = 20
ADVICE_SHOWN = 10

# Two jobs collide if this share of the runs of the rarer one begins at the instants of the other, and at least that
# many.
TOGETHER_SHARE = 0.5
TOGETHER_MIN = 5
# A shorter wait (seconds) is not a reason to move a job.
COST_S = 1.0
# At an instant with more jobs than this, pairs tell nothing.
TOGETHER_MAX = 12

# A run comes near its timeout above this share of it.
NEAR = 0.9


class Limits(NamedTuple):
    """A job's ``timeout`` and ``expect_within`` (seconds); None: it has none, or its file was not given."""

    timeout_s: float | None = None
    expect_within_s: float | None = None


class Learned(NamedTuple):
    """``quantiles``: per job. ``errors``: per job, and the whole under None. ``running``: with their expected end.

    ``held_back``: how many days the error was measured on; 0: there are too few days. ``newest``: as ``running``, for
    each job the run that started last, if ``running`` has not all of them.
    """

    quantiles: dict[str, dict[str, Any]]
    errors: dict[str | None, dict[str, Any]]
    running: Rows
    collisions: Rows
    held_back: int
    days: int
    newest: Sequence[dict[str, Any]] = ()


NOTHING = Learned({}, {}, [], [], 0, 0)


def learn(whole: DataFrame, days: list[int], names: Collection[str]) -> Learned:
    """``days``: the days with successes (days since 1970), in order. ``names``: the jobs that are asked about."""
    timed = whole.where(F.col("took_s").isNotNull()).select(
        "job", "took_s", "begun", _slot().alias("slot"), F.floor(F.col("begun") / DAY).alias("day")
    )
    held = max(1, round(len(days) * HELD_BACK)) if len(days) >= DAYS_MIN else 0
    errors = rows(_errors(timed, days[-held]).where(F.col("job").isNull() | F.col("job").isin(*names))) if held else []
    running = _running(whole)
    shown = rows(running.orderBy("last_begun", "run").limit(RUNNING_SHOWN))
    newest = _newest(running.where(F.col("job").isin(*names))) if len(shown) == RUNNING_SHOWN else []
    known = {row["job"]: row for row in rows(_quantiles(timed.where(F.col("job").isin(*names, *_jobs(shown))), "job"))}
    enough = {job: row for job, row in known.items() if row["n"] >= JOB_MIN}
    by_slot = _of_slots(timed, [*shown, *newest])
    return Learned(
        quantiles={job: row for job, row in enough.items() if job in names},
        errors={row["job"]: row for row in errors},
        running=[_foreseen(row, by_slot, enough) for row in shown],
        newest=[_foreseen(row, by_slot, enough) for row in newest],
        collisions=collisions(whole),
        held_back=held,
        days=len(days),
    )


def _slot() -> Column:
    """The hour of the week in which a run is due."""
    at = F.coalesce("asked_at", "at")
    return weekday(at) * 24 + hour(at)


def _quantiles(timed: DataFrame, *keys: str) -> DataFrame:
    found = quantile("took_s", [0.1, 0.5, 0.9])
    return (
        timed.groupBy(*keys)
        .agg(F.count(F.lit(1)).alias("n"), found.alias("q"), F.avg("took_s").alias("mean"))
        .select(*keys, "n", F.col("q")[0].alias("p10"), F.col("q")[1].alias("p50"), F.col("q")[2].alias("p90"), "mean")
    )


def _jobs(runs: Rows) -> set[str]:
    return {row["job"] for row in runs}


def _newest(running: DataFrame) -> Rows:
    """The run of each job that started last."""
    last = Window.partitionBy("job").orderBy(F.col("last_begun").desc(), "run")
    return rows(running.withColumn("n", F.row_number().over(last)).where("n = 1").drop("n"))


def _of_slots(timed: DataFrame, runs: Rows) -> dict[tuple[str, int], dict[str, Any]]:
    """The quantiles of the hours of the week in which these runs were due, where they have enough successes."""
    if not runs:
        return {}
    slots = F.col("slot").isin(*{row["slot"] for row in runs})
    found = _quantiles(timed.where(F.col("job").isin(*_jobs(runs)) & slots), "job", "slot")
    return {(row["job"], row["slot"]): row for row in rows(found.where(F.col("n") >= SLOT_MIN))}


def _foreseen(
    run: dict[str, Any], by_slot: Mapping[tuple[str, int], dict[str, Any]], by_job: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """As ``_expected``, for one run."""
    of_hour, of_job = by_slot.get((run["job"], run["slot"])), by_job.get(run["job"])
    told = of_hour or of_job or {}
    quantiles = {name: told.get(name) for name in ("p10", "p50", "p90")}
    return {**run, "mean": of_job and of_job["mean"], "by_hour": of_hour is not None, **quantiles}


def _expected(asked: DataFrame, by_slot: DataFrame, by_job: DataFrame) -> DataFrame:
    """``asked`` (job, slot) with p10, p50, p90: of the hour of the week if it has enough, else of the job, or null."""
    slots = by_slot.where(F.col("n") >= SLOT_MIN).select(
        "job", "slot", *[F.col(name).alias(f"s_{name}") for name in ("p10", "p50", "p90")]
    )
    known = by_job.where(F.col("n") >= JOB_MIN).select(
        "job", "mean", *[F.col(name).alias(f"j_{name}") for name in ("p10", "p50", "p90")]
    )
    joined = asked.join(slots, ["job", "slot"], "left").join(known, "job", "left")
    picked = [F.coalesce(f"s_{name}", f"j_{name}").alias(name) for name in ("p10", "p50", "p90")]
    return joined.select(*asked.columns, "mean", F.col("s_p50").isNotNull().alias("by_hour"), *picked)


def _errors(timed: DataFrame, first_held: int) -> DataFrame:
    """The error on the days from ``first_held`` on, with what only the days before it tell; per job and in all.

    ``median_error``: of |actual - expected| / expected. ``of_mean``: the same for the job's plain mean. ``inside``: the
    share between the 10 % and the 90 % quantile, which should be 0.8.
    """
    before = timed.where(F.col("day") < first_held)
    held = timed.where(F.col("day") >= first_held)
    told = _expected(held, _quantiles(before, "job", "slot"), _quantiles(before, "job"))
    floor_s = F.lit(0.001)
    off = F.abs(F.col("took_s") - F.col("p50")) / F.greatest("p50", floor_s)
    of_mean = F.abs(F.col("took_s") - F.col("mean")) / F.greatest("mean", floor_s)
    return (
        told.withColumn("off", off)
        .withColumn("of_mean", of_mean)
        .withColumn("inside", F.col("took_s").between(F.col("p10"), F.col("p90")).cast("int"))
        .rollup("job")
        .agg(
            F.count(F.lit(1)).alias("runs"),
            F.count("off").alias("judged"),
            quantile("off", 0.5).alias("median_error"),
            quantile("of_mean", 0.5).alias("mean_error"),
            F.avg("inside").alias("inside"),
        )
    )


def _running(whole: DataFrame) -> DataFrame:
    """Runs whose end is in no journal."""
    return whole.where(F.col("state").isin(STARTED, RECEIVED) & F.col("last_begun").isNotNull()).select(
        "job", "run", "node", "last_begun", _slot().alias("slot")
    )


def collisions(whole: DataFrame) -> Rows:
    """Pairs of jobs that are often due at the same instant, and how long their launches then waited.

    ``other`` is the shorter one: it can wait for ``took_s``, the median of ``job``.
    """
    due = whole.where(F.col("run").contains("@") & F.col("begun").isNotNull()).select(
        "job", F.col("asked_at").alias("due"), "delay_s", "took_s"
    )
    each = due.groupBy("job").agg(
        F.count(F.lit(1)).alias("runs"),
        quantile("took_s", 0.5).alias("took"),
        quantile("delay_s", 0.5).alias("usual_delay"),
    )
    # Most instants have one job: they are left out before anything is collected. All of this needs one shuffle.
    by_instant = due.repartition("due")
    several = by_instant.groupBy("due").agg(F.min("job").alias("a"), F.max("job").alias("b")).where("a < b")
    crowd = (
        by_instant.join(several.select("due"), "due", "left_semi")
        .groupBy("due")
        .agg(F.sort_array(F.collect_set("job")).alias("jobs"), quantile("delay_s", 0.9).alias("delay_s"))
    )
    crowd = crowd.where(F.size("jobs").between(2, TOGETHER_MAX))
    pairs = (
        crowd.select("delay_s", F.explode("jobs").alias("a"), "jobs")
        .select("delay_s", "a", F.explode("jobs").alias("b"))
        .where(F.col("a") < F.col("b"))
        .groupBy("a", "b")
        .agg(F.count(F.lit(1)).alias("together"), quantile("delay_s", 0.5).alias("delay_s"))
    )
    a, b = each.alias("first"), each.alias("second")
    rarer = F.least("first.runs", "second.runs")
    a_longer = F.coalesce("first.took", F.lit(0.0)) >= F.coalesce("second.took", F.lit(0.0))
    return rows(
        pairs.join(a, F.col("a") == F.col("first.job"))
        .join(b, F.col("b") == F.col("second.job"))
        .where((F.col("together") >= TOGETHER_MIN) & (F.col("together") >= rarer * TOGETHER_SHARE))
        .where(pairs["delay_s"] >= COST_S)
        .select(
            F.when(a_longer, F.col("a")).otherwise(F.col("b")).alias("job"),
            F.when(a_longer, F.col("b")).otherwise(F.col("a")).alias("other"),
            "together",
            rarer.alias("runs"),
            "delay_s",
            F.when(a_longer, F.col("first.took")).otherwise(F.col("second.took")).alias("took_s"),
        )
        .orderBy((F.col("together") * F.coalesce("took_s", F.lit(0.0))).desc(), "job", "other")
        .limit(ADVICE_SHOWN)
    )


def warnings(learned: Learned, jobs: Rows, limits: Mapping[str, Limits], now: float) -> Rows:
    """What will probably, or may, miss ``expect_within`` or ``timeout``: job, run, what, when (Unix seconds), why."""
    found: Rows = []
    running = {row["job"]: row for row in [*learned.running, *learned.newest]}
    for row in jobs:
        name = row["job"]
        limit, known, alive = limits.get(name), learned.quantiles.get(name), running.get(name)
        if limit is None or known is None:
            continue
        if limit.timeout_s is not None:
            found += _of_timeout(name, known, alive, limit.timeout_s)
        if limit.expect_within_s is not None and row["succeeded_at"] is not None:
            found += _of_success(row, known, alive, limit.expect_within_s, now)
    return found


def _of_timeout(job: str, known: dict[str, Any], alive: dict[str, Any] | None, timeout_s: float) -> Rows:
    if alive is not None and alive["p90"] is not None and alive["p90"] >= timeout_s:
        sure = "will probably" if alive["p50"] >= timeout_s else "may"
        why = f"{sure} reach its timeout of {_span(timeout_s)}: half of its runs take {_span(alive['p50'])} or longer"
        return [{"job": job, "run": alive["run"], "at": alive["last_begun"] + timeout_s, "why": why}]
    if alive is None and known["p90"] >= timeout_s * NEAR:
        why = f"1 of 10 runs takes {_span(known['p90'])} or longer, and its timeout is {_span(timeout_s)}"
        return [{"job": job, "run": "", "at": None, "why": why}]
    return []


def _of_success(
    row: dict[str, Any], known: dict[str, Any], alive: dict[str, Any] | None, within_s: float, now: float
) -> Rows:
    """When the next success is expected, and whether that is within the limit."""
    until = row["succeeded_at"] + within_s
    apart_s = (row["last_at"] - row["first_at"]) / (row["runs"] - 1) if row["runs"] > 1 else None
    if alive is not None and alive["p50"] is not None:
        begins, of, run = alive["last_begun"], alive, alive["run"]
    elif apart_s is not None:
        begins, of, run = row["last_at"] + apart_s, known, ""
    else:
        return []
    likely, late = max(now, begins + of["p50"]), max(now, begins + of["p90"])
    if late <= until:
        return []
    sure = "will probably" if likely > until else "may"
    said = f"{sure} have no success within {_span(within_s)}: the next one is expected {_span(abs(likely - until))}"
    return [
        {"job": row["job"], "run": run, "at": until, "why": f"{said} {'after' if likely > until else 'before'} that"}
    ]


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
