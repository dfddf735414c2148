"""Partitioned tables on a local file system: the present ones are read, the next ones are put together beside them.

A partition that does not change is linked, not copied. What changes is written again, so a partition of a table has few
files. Only ``events`` is appended to; its partitions are rewritten when they have many files.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from datetime import date, timedelta
from functools import reduce
from typing import NamedTuple

from pyspark.sql import (
    Column,
    DataFrame,
    Observation,
    SparkSession,
    functions as F,  # noqa: N812 - what PySpark's users call it
)

from coordd.errors import ConfigError
from coordd.history.figures.counting import OPEN
from coordd.history.schema import DIFFERENT, TABLES, ddl
from coordd.history.segments import link

# The partition of a table without rows: one file without rows, so that readers find the columns. No row is of that day:
# no event is older than 1970.
EMPTY = "date=1900-01-01"

# Tables about runs, and what tells their run.
OF_RUNS = {"events": "uuid", "runs": "uuid", "attempts": "run", "grants": "run", "fires": "run"}

NO_DICTIONARY = {f"parquet.enable.dictionary#{column}": "false" for column in DIFFERENT}

# A partition with more files is written as one again when it gets more rows.
FILES_MAX = 12


class Affected(NamedTuple):
    """Rows of a table that are computed again. ``keys``: their keys; ``days``: the published partitions with some."""

    keys: DataFrame
    days: set[str]


class Tables:
    """The tables of one output. ``old``: the published ones (may not exist); ``new``: those that will replace them."""

    def __init__(self, spark: SparkSession, old: str, new: str) -> None:
        self.spark = spark
        self.old = old
        self.new = new
        self.fresh = os.path.join(new, "_fresh")

    # ---- reading

    def before(self, name: str) -> DataFrame | None:
        """The published table; None if there is none, or it has no rows."""
        path = os.path.join(self.old, name)
        return self.read(path, name) if self.old and self.dates(path) else None

    def after(self, name: str) -> DataFrame:
        """The next table, once it is complete."""
        return self.read(os.path.join(self.new, name), name)

    def read(self, path: str, name: str) -> DataFrame:
        """The table in a directory, by the columns of this version: those that older files lack are null."""
        return self.spark.read.schema(ddl(TABLES[name], "`date` date")).parquet(f"file://{path}")

    def read_fresh(self) -> DataFrame:
        """The events of the segments that were not read before."""
        return self._read_fresh("events")

    def read_bad(self) -> DataFrame:
        """The rejected lines of the same segments, in borrowed columns (see ``transforms.checked``)."""
        return self._read_fresh("corrupt").withColumn("kind", F.lit("corrupt"))

    def has_bad(self) -> bool:
        """Are there rejected lines?"""
        return bool(self.dates(os.path.join(self.fresh, "kind=corrupt")))

    def _read_fresh(self, kind: str) -> DataFrame:
        path = os.path.join(self.fresh, f"kind={kind}")
        os.makedirs(path, exist_ok=True)
        return self.read(path, "events")

    def dates(self, path: str) -> set[str]:
        """The partitions in a directory."""
        try:
            names = os.listdir(path)
        except FileNotFoundError:
            return set()
        return {name for name in names if name.startswith("date=") and name != EMPTY}

    # ---- writing

    def write(self, name: str, rows: DataFrame) -> None:
        """Write rows into the next table."""
        path = os.path.join(self.new, name)
        self.spark.sparkContext.setJobDescription(f"write {name}")
        self.put(path, rows.select(*TABLES[name], "date").hint("rebalance", "date"), "date")

    def put(self, path: str, rows: DataFrame, *by: str) -> None:
        """Add rows to the files of a directory, in partitions. Raises ConfigError if they do not arrive: Spark itself
        succeeds where each executor has written to a disk of its own, and the next table would be empty.
        """
        afar = re.fullmatch(r"local(\[.*\])?", self.spark.sparkContext.master or "") is None
        before = _files(path) if afar else set()
        told = Observation()
        seen = rows.observe(told, F.count(F.lit(1)).alias("rows")) if afar else rows
        seen.write.options(**NO_DICTIONARY).mode("append").partitionBy(*by).parquet(f"file://{path}")
        if not afar:
            return
        written, files = int(told.get.get("rows") or 0), _files(path) - before
        found = sum(self._rows_of(file) for file in files)
        if found != written or not (by or files):
            raise ConfigError(
                f"{os.path.dirname(self.new)}: expected the {written} rows that Spark's executors wrote there, found"
                f" {found}: they write to disks that the driver does not see; give an --output on a file system that"
                " the driver and all executors have mounted at the same path, or run it with --master local[*]"
            )

    def _rows_of(self, file: str) -> int:
        """What the footer of a file says, read by the driver: an executor may see another directory."""
        java, context = self.spark.sparkContext._jvm, self.spark.sparkContext._jsc
        assert java is not None
        place = java.org.apache.hadoop.fs.Path(f"file://{file}")
        source = java.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(place, context.hadoopConfiguration())
        reader = java.org.apache.parquet.hadoop.ParquetFileReader.open(source)
        try:
            return int(reader.getRecordCount())
        finally:
            reader.close()

    def affected(self, keys: Mapping[str, DataFrame]) -> dict[str, Affected]:
        """For each of these tables: the rows of the given keys (each value once), and the days that have some."""
        found = []
        for name, key in keys.items():
            before = self.before(name)
            if before is not None:
                rows = before.join(key, key.columns, "left_semi")
                found.append(rows.select(F.lit(name).alias("name"), "date").distinct())
        self.spark.sparkContext.setJobDescription("look for days that change")
        days = _days(found)
        return {name: Affected(key, days.get(name, set())) for name, key in keys.items()}

    def replace(self, name: str, rows: DataFrame, affected: Affected) -> None:
        """The next table is the published one, without the ``affected`` rows, and with ``rows``."""
        before = self.before(name)
        if before is not None and affected.days:
            others = before.where(_on(affected.days)).join(affected.keys, affected.keys.columns, "left_anti")
            columns = [*TABLES[name], "date"]
            rows = rows.select(*columns).unionByName(others.select(*columns))
        self.write(name, rows)
        self.keep(name, affected.days)
        self.complete(name)

    def keep(self, name: str, changed: Iterable[str] = ()) -> None:
        """Link the partitions of the published table that have not changed; those that become too many files are
        written as one.
        """
        if not self.old:
            return
        target = os.path.join(self.new, name)
        many = set()
        for day in self.dates(os.path.join(self.old, name)).difference(changed):
            source = os.path.join(self.old, name, day)
            if os.path.isdir(os.path.join(target, day)) and len(os.listdir(source)) > FILES_MAX:
                many.add(day)
            else:
                link_tree(source, os.path.join(target, day))
        if many:
            before = self.before(name)
            assert before is not None
            self.write(name, before.where(_on(many)))

    def rewrite_fresh(self, unique: DataFrame, changed: list[str]) -> None:
        """Fresh events of these days (YYYY-MM-DD), without repeated ones."""
        aside = os.path.join(self.fresh, "unique")
        self.put(aside, unique.select(*TABLES["events"], "date").hint("rebalance", "date"), "date")
        for day in changed:
            shutil.rmtree(os.path.join(self.fresh_events, f"date={day}"))
            if os.path.isdir(os.path.join(aside, f"date={day}")):
                os.rename(os.path.join(aside, f"date={day}"), os.path.join(self.fresh_events, f"date={day}"))

    def append_events(self) -> None:
        """The next ``events``: the published ones and the fresh ones."""
        target = os.path.join(self.new, "events")
        os.makedirs(target, exist_ok=True)
        for day in self.dates(self.fresh_events):
            os.rename(os.path.join(self.fresh_events, day), os.path.join(target, day))
        self.keep("events")
        self.complete("events")

    @property
    def fresh_events(self) -> str:
        """Where the events of the segments that were not read before are."""
        return os.path.join(self.fresh, "kind=events")

    def complete(self, name: str) -> None:
        """A table without rows has a file without rows."""
        path = os.path.join(self.new, name)
        if not self.dates(path):
            shutil.rmtree(path, ignore_errors=True)
            self.put(os.path.join(path, EMPTY), self.nothing(name).drop("date"))

    def nothing(self, name: str) -> DataFrame:
        """The table without rows. (To make it of Python's rows, Spark would start a Python.)"""
        kinds = {**TABLES[name], "date": "date"}
        columns = [F.lit(None).cast(kind).alias(column) for column, kind in kinds.items()]
        return self.spark.range(0, numPartitions=1).select(*columns)

    def forget(self, keep_days: int, today: str) -> None:
        """Retention: remove what is older, in days before ``today`` (YYYY-MM-DD). A day stays as long as one of its
        daemons or runs lives, or ended since.
        """
        first = date.fromisoformat(today) - timedelta(days=keep_days)
        limit = f"date={first.isoformat()}"
        old = {name: {day for day in self.dates(os.path.join(self.new, name)) if day < limit} for name in TABLES}
        since = (first - date(1970, 1, 1)).total_seconds()
        self.spark.sparkContext.setJobDescription("look for days that may be forgotten")
        living = _days(self._living(old, since))
        for name, days in old.items():
            for day in days.difference(living.get(name, ())):
                shutil.rmtree(os.path.join(self.new, name, day))
            self.complete(name)

    def _living(self, old: Mapping[str, set[str]], since: float) -> list[DataFrame]:
        """Those of these days that have rows of nodes and runs that live, or ended since (Unix seconds)."""
        over = ~F.col("state").isin(*OPEN) & (F.col("timestamp") < since)
        runs = self.after("runs").where(~over)
        found = []
        for name, days in old.items():
            if not days:
                continue
            rows = self.after(name).where(_on(days))
            if name in OF_RUNS:
                rows = rows.join(runs.select(OF_RUNS[name]), OF_RUNS[name], "left_semi")
            elif name == "nodes":
                rows = rows.where(F.col("last_at") >= since)
            else:
                continue
            found.append(rows.select(F.lit(name).alias("name"), "date").distinct())
        return found


def _days(found: list[DataFrame]) -> dict[str, set[str]]:
    """Partitions by table, from rows of (name, date)."""
    days: dict[str, set[str]] = {}
    for row in reduce(DataFrame.unionByName, found).collect() if found else ():
        days.setdefault(row["name"], set()).add(f"date={row.date.isoformat()}")
    return days


def _files(path: str) -> set[str]:
    """The Parquet files in a directory and in its partitions."""
    return set(glob.glob(os.path.join(glob.escape(path), "**", "*.parquet"), recursive=True))


def _on(dates: Iterable[str]) -> Column:
    """True for rows in these partitions."""
    return F.col("date").isin([date.removeprefix("date=") for date in dates])


def link_tree(source: str, target: str) -> None:
    """The files of a partition under another name, on the same file system."""
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source):
        if name.endswith(".parquet") and not name.startswith((".", "_")):
            link(os.path.join(source, name), os.path.join(target, name))
