"""What events tell beyond runs: the nodes' lives, elections, and what became of fire times. DataFrame in and out."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.ledger.fires import GIVEN_UP, HELD_BY_OTHERS, HELD_BY_SUSPENSION, SUSPENDED
from coordd.core.ledger.rows import OF_JOB
from coordd.core.ledger.words import INSTANT_MAX, MISSED, REJECTED, REVOKED
from coordd.history.schema import BREAKERS, ELECTIONS, FIRES, LAUNCH_ORDER, NODES, ddl
from coordd.history.transforms import date_of

# What a node says of itself, and what an election's record has: read from the line, for these few events alone.
_SELF = ddl({"sw_ver": "string", "sw_sys": "string", "tags": "array<string>"})
_ELECTION = ddl(
    {
        "id": "string",
        "topic": "string",
        "opened_by": "string",
        "succession": "array<string>",
        "abstained": "map<string,string>",
        "silent": "array<string>",
        "duration": "double",
    }
)
_BREAKER = ddl({"breaker": "string", "state": "string", "since": "double", "trips": "bigint", "reason": "string"})
ONLINE, OFFLINE, DECIDED, CHANGED = "worker-online", "worker-offline", "election-decided", "breaker-changed"

# The state of a breaker that ends its row.
CLOSED = "closed"
# What a row of ``breakers`` is called by.
OF_BREAKER = ("breaker", "hostname", "since")

# Decisions about fire times, as `job fires` names them.
LAUNCHED, LIMITED = "launched", "limited"


def nodes(all_events: DataFrame) -> DataFrame:
    """One row per life of a daemon: (hostname, incarnation). It says what it is when it comes online."""
    kind = F.col("type")
    said = F.from_json("line", _SELF)
    online = F.struct(F.col("timestamp").alias("at"), said.sw_ver, said.sw_sys, said.tags)
    return (
        all_events.select(
            "hostname", "incarnation", "pid", "type", "timestamp", F.when(kind == ONLINE, online).alias("online")
        )
        .groupBy("hostname", "incarnation")
        .agg(
            F.max("pid").alias("pid"),
            F.min("timestamp").alias("first_at"),
            F.max("timestamp").alias("last_at"),
            F.min("online").alias("online"),
            F.max(F.when(kind == OFFLINE, F.col("timestamp"))).alias("offline_at"),
            F.count(F.lit(1)).alias("events"),
            F.count(F.when(kind == "task-started", 1)).alias("launches"),
        )
        .withColumn("online_at", F.col("online.at"))
        .withColumn("version", F.col("online.sw_ver"))
        .withColumn("system", F.col("online.sw_sys"))
        .withColumn("tags", F.col("online.tags"))
        .select(*NODES, date_of("first_at").alias("date"))
    )


def joined(before: DataFrame, more: DataFrame) -> DataFrame:
    """Rows of ``nodes`` of different events, one row per life."""
    online = F.struct("online_at", "version", "system", "tags")
    return (
        before.unionByName(more)
        .groupBy("hostname", "incarnation")
        .agg(
            F.max("pid").alias("pid"),
            F.min("first_at").alias("first_at"),
            F.max("last_at").alias("last_at"),
            F.min(F.when(F.col("online_at").isNotNull(), online)).alias("online"),
            F.max("offline_at").alias("offline_at"),
            F.sum("events").alias("events"),
            F.sum("launches").alias("launches"),
        )
        .select("*", "online.*")
        .select(*NODES, date_of("first_at").alias("date"))
    )


def elections(all_events: DataFrame) -> DataFrame:
    """One row per election about a run. The node that opened it and the first of its succession both record it."""
    return (
        all_events.where(F.col("type") == DECIDED)
        .select(
            "hostname",
            "clock",
            "timestamp",
            "full_hostname",
            "run",
            F.coalesce("attempt", F.lit(0)).alias("attempt"),
            F.from_json("line", _ELECTION).alias("said"),
        )
        .where(F.col("said.id").isNotNull())
        .groupBy("said.id")
        .agg(
            # The first record; maps cannot be compared, so the key stands beside the value.
            F.min_by(
                F.struct("run", "attempt", "timestamp", "said"), F.struct("clock", "timestamp", "full_hostname")
            ).alias("one"),
            F.sort_array(F.collect_set("hostname")).alias("told_by"),
        )
        .select(
            "id",
            F.regexp_extract("one.run", "^[^#@]*", 0).alias("job"),
            "one.run",
            "one.attempt",
            "one.said.topic",
            "one.said.opened_by",
            F.col("one.timestamp").alias("decided_at"),
            F.col("one.said.duration").alias("duration_s"),
            F.get("one.said.succession", 0).alias("first"),
            "one.said.succession",
            "one.said.abstained",
            "one.said.silent",
            "told_by",
        )
        .select(*ELECTIONS, date_of("decided_at").alias("date"))
    )


def breakers(all_events: DataFrame) -> DataFrame:
    """One row for each time that a breaker was open, half-open or held open: (breaker, hostname, since).

    All nodes tell of a job's breaker, each when it has seen it; ``closed_at`` is when the first one saw that.
    """
    said = (
        all_events.where(F.col("type") == CHANGED)
        .select("hostname", "timestamp", F.from_json("line", _BREAKER).alias("said"))
        .where((F.col("said.since") > 0) & (F.col("said.since") < INSTANT_MAX))
        .where(F.col("said.breaker").isNotNull() & F.col("said.state").isNotNull())
        .select("hostname", "timestamp", "said.*")
    )
    of_job = F.col("breaker").startswith(OF_JOB)
    closed = F.col("state") == CLOSED
    return _joined_breakers(
        said.select(
            "breaker",
            F.when(of_job, "").otherwise(F.col("hostname")).alias("hostname"),
            F.when(of_job, F.substr("breaker", F.lit(len(OF_JOB) + 1))).alias("job"),
            "since",
            *[F.when(~closed, F.col(name)).alias(name) for name in ("state", "trips", "reason")],
            F.when(closed, F.col("timestamp")).alias("closed_at"),
            F.array("hostname").alias("told_by"),
        )
    )


def joined_breakers(before: DataFrame, more: DataFrame) -> DataFrame:
    """Rows of ``breakers`` of different events, one row per key."""
    return _joined_breakers(before.unionByName(more))


def _joined_breakers(rows: DataFrame) -> DataFrame:
    told = F.when(F.col("state").isNotNull(), F.struct("state", "trips", "reason"))
    return (
        rows.groupBy(*OF_BREAKER)
        .agg(
            F.max("job").alias("job"),
            F.max(told).alias("told"),  # all of one key tell the same
            F.min("closed_at").alias("closed_at"),
            F.array_sort(F.array_distinct(F.flatten(F.collect_list("told_by")))).alias("told_by"),
        )
        .select("*", "told.*")
        .select(*BREAKERS, date_of("since").alias("date"))
    )


def fires(all_runs: DataFrame, all_attempts: DataFrame) -> DataFrame:
    """One row per fire time that has a run (JOB@TIME): its decision, and how late it was launched.

    Fire times without a run (coalesced, skipped, in a blackout) are in no journal: `coordctl job fires` knows them.
    """
    first = all_attempts.groupBy("run").agg(
        F.min("started").alias("launched_at"), F.min_by("hostname", F.struct(*LAUNCH_ORDER)).alias("by")
    )
    due = F.greatest("fire_at", "due")
    return (
        all_runs.where(F.col("run").contains("@") & (F.col("fire_at") > 0) & (F.col("fire_at") < INSTANT_MAX))
        .select("job", "run", "fire_at", "due", "state", "reason", "result", "token")
        .join(first, "run", "left")
        .select(
            "job",
            "run",
            "fire_at",
            due.alias("due"),
            _decision().alias("decision"),
            "reason",
            F.col("launched_at").alias("started"),
            (F.col("launched_at") - due).alias("delay_s"),
            F.col("by").alias("hostname"),
            "state",
        )
        .select(*FIRES, date_of("fire_at").alias("date"))
    )


def _decision() -> Column:
    """services.views.fires, as a column; null: not decided yet, as far as journals tell."""
    reason = F.coalesce("reason", F.lit(""))
    missed = (
        F.when(reason.contains(HELD_BY_SUSPENSION), SUSPENDED)
        .when(reason.contains(HELD_BY_OTHERS), LIMITED)
        .otherwise(GIVEN_UP)
    )
    return (
        F.when(F.col("launched_at").isNotNull() | (F.col("token") > 0), LAUNCHED)
        .when((F.col("state") == REJECTED) & (F.col("result") == MISSED), missed)
        .when(F.col("state").isin(REJECTED, REVOKED), REJECTED)
    )
