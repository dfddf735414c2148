"""From segments that were not read before to all tables: reads lines, merges with what is published, writes.

A segment is read once. Its events join those that are there; an event that came before, in whatever segment, is left
out. Then the runs, grants, nodes, elections and fire times that the new events touch are computed again from all their
events, and all others stay. So neither order nor repetition matters, and a segment that was pruned since has left its
rows here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from datetime import timedelta

from pyspark.sql import DataFrame, SparkSession, Window, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.core.wire.merge import TASK
from coordd.history import cluster, transforms
from coordd.history.audit import audit, several
from coordd.history.schema import TABLES
from coordd.history.segments import Picture
from coordd.history.tables import Affected, Tables

Say = Callable[[str], None]


def build(spark: SparkSession, picture: Picture, old: str, new: str, clock_skew_s: float, say: Say) -> Tables:
    """Write all tables under ``new``: the published ones under ``old`` ("": none), and what ``picture`` adds. Nothing
    is forgotten yet.
    """
    tables = Tables(spark, old, new)
    if not picture.paths:
        for name in TABLES:
            tables.keep(name)
            tables.complete(name)
        return tables
    parse(tables, picture)
    drop_repeated(tables)
    say("the lines are read")
    fresh = tables.read_fresh()
    touch(tables, fresh)
    corrupt(tables, picture)
    tables.append_events()
    say("runs and attempts are put together")
    tables.spark.sparkContext.setJobDescription("look for runs with several launches")
    suspects = several(tables.after("attempts"))
    with kept(suspects):
        tables.write("audit", audit(tables.after("grants"), suspects, clock_skew_s))
    tables.complete("audit")
    return tables


def parse(tables: Tables, picture: Picture) -> None:
    """One pass over the lines: events by day, and the rejected lines beside them."""
    spark = tables.spark
    spark.sparkContext.setJobDescription("read the lines")
    transforms.whole_files(spark, picture.largest)
    checked = transforms.checked(transforms.lines(spark, picture.paths))
    tables.put(tables.fresh, checked.hint("rebalance", "kind", "date"), "kind", "date")


def drop_repeated(tables: Tables) -> None:
    """Leave out fresh events that were there before, or are there twice. Only days with such ones are rewritten."""
    days = tables.dates(tables.fresh_events)
    if not days:
        return
    tables.spark.sparkContext.setJobDescription("look for repeated events")
    same = ["date", "id", "clock"]
    fresh = tables.read_fresh()
    known = fresh.groupBy(*same).count().where("count > 1").select(*same, F.lit(False).alias("before"))
    before = tables.before("events")
    if before is not None:
        there = before.where(F.col("date").isin([day.removeprefix("date=") for day in days])).select(*same)
        again = there.join(fresh, same, "left_semi").select(*same, F.lit(True).alias("before"))
        known = known.union(again).groupBy(*same).agg(F.max("before").alias("before"))
    with kept(known):
        changed = sorted(row.date.isoformat() for row in known.select("date").distinct().collect())
        if not changed:
            return
        tables.spark.sparkContext.setJobDescription("drop repeated events")
        place = ["file", "row"]
        placed = fresh.where(F.col("date").isin(changed)).select(
            "*", F.col("_metadata.file_path").alias("file"), F.col("_metadata.row_index").alias("row")
        )
        number = F.row_number().over(Window.partitionBy(*same).orderBy(*place))
        numbered = placed.select(*same, *place).join(known, same).withColumn("number", number)
        repeated = numbered.where(F.col("before") | (F.col("number") > 1))
        tables.rewrite_fresh(placed.join(repeated.select(*place), place, "left_anti"), changed)


def touch(tables: Tables, fresh: DataFrame) -> None:
    """Compute again what the fresh events are about, from all their events."""
    # An election names a run, too, and is not an event of its life.
    about_runs = fresh.where(F.col("type").startswith(TASK))
    runs = about_runs.select("uuid").distinct()
    names = about_runs.where(F.col("run").isNotNull()).select("run").distinct()
    lives = fresh.select("hostname", "incarnation").distinct()
    breakers = cluster.breakers(fresh)
    kinds = breakers.select(*cluster.OF_BREAKER)
    first = tables.before("runs") is None  # then all runs are touched
    with kept(*([] if first else [runs, names, breakers])):
        by_run = dict.fromkeys(("attempts", "grants", "fires"), names)
        affected = tables.affected({"runs": runs, **by_run, "nodes": lives, "breakers": kinds})
        everything = of_runs(tables, fresh, affected["runs"])
        tables.replace("runs", transforms.runs(everything), affected["runs"])
        granted = transforms.granted(everything)
        with kept(granted):
            tables.replace("attempts", transforms.attempts(granted), affected["attempts"])
            tables.replace("grants", transforms.grants(granted), affected["grants"])
        touched_runs, launches = tables.after("runs"), tables.after("attempts")
        if not first:
            touched_runs = touched_runs.join(names, "run", "left_semi")
            launches = launches.join(names, "run", "left_semi")
        tables.replace("fires", cluster.fires(touched_runs, launches), affected["fires"])
        known = tables.before("breakers")
        if known is not None:
            known = known.join(kinds, list(cluster.OF_BREAKER), "left_semi")
            tables.replace("breakers", cluster.joined_breakers(known, breakers), affected["breakers"])
        else:
            tables.replace("breakers", breakers, affected["breakers"])
    nodes = cluster.nodes(fresh)
    known = tables.before("nodes")
    if known is not None:
        nodes = cluster.joined(known.join(lives, ["hostname", "incarnation"], "left_semi"), nodes)
    tables.replace("nodes", nodes, affected["nodes"])
    elections(tables, fresh)


def of_runs(tables: Tables, fresh: DataFrame, runs: Affected) -> DataFrame:
    """The fresh events, and the published ones of the same runs. A run's day is that of its first event."""
    events = tables.before("events")
    if events is None or not runs.days:
        return fresh
    since = min(runs.days).removeprefix("date=")
    return fresh.unionByName(events.where(F.col("date") >= F.lit(since)).join(runs.keys, "uuid", "left_semi"))


@contextlib.contextmanager
def kept(*frames: DataFrame) -> Iterator[None]:
    """Spark keeps these frames in the block, and computes them once.

    They are released after it, also when it fails: Spark would use their rows for each later frame of the same paths,
    and the next increment of a stream has the same ones.
    """
    for frame in frames:
        frame.persist()
    try:
        yield
    finally:
        for frame in frames:
            frame.unpersist()


def elections(tables: Tables, fresh: DataFrame) -> None:
    """Two nodes record an election within moments; the second record may come in another segment."""
    about = cluster.elections(fresh)
    ids = about.select("id").distinct()
    before = tables.before("elections")
    events = tables.before("events")
    if before is not None and events is not None:
        first = about.agg(F.min("date")).first()
        if first is not None and first[0] is not None:
            near = events.where(
                (F.col("date") >= F.lit(first[0] - timedelta(days=1))) & (F.col("type") == cluster.DECIDED)
            )
            about = cluster.elections(fresh.unionByName(near)).join(ids, "id", "left_semi")
    tables.replace("elections", about, tables.affected({"elections": ids})["elections"])


def corrupt(tables: Tables, picture: Picture) -> None:
    """The rejected lines of this picture. Those of a segment that is read again (an open one, a URI) are replaced."""
    if not tables.has_bad():
        rows = tables.nothing("corrupt")
        if tables.before("corrupt") is None:
            tables.complete("corrupt")
            return
    else:
        rows = transforms.corrupt(tables.read_bad(), transforms.lines(tables.spark, picture.paths), picture.below)
    again = listed(tables.spark, picture.replaced, "source")
    sources = again.union(rows.select("source")).distinct()
    tables.replace("corrupt", rows, tables.affected({"corrupt": sources})["corrupt"])


def listed(spark: SparkSession, values: list[str], name: str) -> DataFrame:
    """One column of texts. (To take Python's rows, Spark would start a Python.)"""
    return spark.range(1).select(F.explode(F.from_json(F.lit(json.dumps(values)), "array<string>")).alias(name))
