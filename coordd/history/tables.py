"""Partitioned tables on a local file system: the present ones are read, the next ones are put together beside them.

A partition that does not change is linked, not copied. What changes is written again, so a partition of a table has few
files. Only ``events`` is appended to; its partitions are rewritten when they have many files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - what PySpark's users call it

from coordd.history.schema import TABLES, ddl

# The partition of a table without rows: one file without rows, so that readers find the columns.
EMPTY = "date=1970-01-01"

# A partition of ``events`` with more files is written as one again.
FILES_MAX = 12


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

    def write(self, name: str, rows: DataFrame) -> set[str]:
        """Write rows into the next table. Returns its partitions."""
        path = os.path.join(self.new, name)
        self.spark.sparkContext.setJobDescription(f"write {name}")
        ordered = rows.select(*TABLES[name], "date").hint("rebalance", "date")
        ordered.write.mode("append").partitionBy("date").parquet(f"file://{path}")
        return self.dates(path)

    def replace(self, name: str, rows: DataFrame, affected: DataFrame, *key: str) -> None:
        """The next table is the published one, without the rows of the ``affected`` keys, and with ``rows``.

        ``affected``: the columns ``key``, each value once.
        """
        changed = self.write(name, rows)
        before = self.before(name)
        if before is not None:
            gone = before.join(affected, [*key], "left_semi").select("date").distinct().collect()
            changed |= {f"date={row.date.isoformat()}" for row in gone}
            here = changed & self.dates(os.path.join(self.old, name))
            if here:
                dates = [date.removeprefix("date=") for date in here]
                self.write(name, before.where(F.col("date").isin(dates)).join(affected, [*key], "left_anti"))
            self.keep(name, changed)
        self.complete(name)

    def keep(self, name: str, changed: Iterable[str] = ()) -> None:
        """Link the partitions of the published table that have not changed."""
        for date in self.dates(os.path.join(self.old, name)).difference(changed):
            link_tree(os.path.join(self.old, name, date), os.path.join(self.new, name, date))

    def rewrite_fresh(self, unique: DataFrame, changed: list[str]) -> None:
        """Fresh events of these days (YYYY-MM-DD), without repeated ones."""
        aside = os.path.join(self.fresh, "unique")
        ordered = unique.select(*TABLES["events"], "date").hint("rebalance", "date")
        ordered.write.partitionBy("date").parquet(f"file://{aside}")
        for day in changed:
            shutil.rmtree(os.path.join(self.fresh_events, f"date={day}"))
            if os.path.isdir(os.path.join(aside, f"date={day}")):
                os.rename(os.path.join(aside, f"date={day}"), os.path.join(self.fresh_events, f"date={day}"))

    def append_events(self) -> None:
        """The next ``events``: the published ones and the fresh ones."""
        target = os.path.join(self.new, "events")
        os.makedirs(target, exist_ok=True)
        for date in self.dates(self.fresh_events):
            os.rename(os.path.join(self.fresh_events, date), os.path.join(target, date))
        many = []
        for date in self.dates(os.path.join(self.old, "events")):
            source = os.path.join(self.old, "events", date)
            if os.path.isdir(os.path.join(target, date)) and len(os.listdir(source)) > FILES_MAX:
                many.append(date.removeprefix("date="))
            else:
                link_tree(source, os.path.join(target, date))
        if many:
            before = self.before("events")
            assert before is not None
            self.write("events", before.where(F.col("date").isin(many)))
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
            self.nothing(name).drop("date").write.parquet(f"file://{path}/{EMPTY}")

    def nothing(self, name: str) -> DataFrame:
        """The table without rows. (To make it of Python's rows, Spark would start a Python.)"""
        kinds = {**TABLES[name], "date": "date"}
        columns = [F.lit(None).cast(kind).alias(column) for column, kind in kinds.items()]
        return self.spark.range(0, numPartitions=1).select(*columns)

    def forget(self, keep_days: int, today: str) -> None:
        """Retention: remove what is older, in days before ``today`` (YYYY-MM-DD)."""
        limit = f"date={_days_before(today, keep_days)}"
        for name in TABLES:
            path = os.path.join(self.new, name)
            for date in self.dates(path):
                if date < limit:
                    shutil.rmtree(os.path.join(path, date))
            self.complete(name)


def link_tree(source: str, target: str) -> None:
    """The files of a partition under another name, on the same file system."""
    os.makedirs(target, exist_ok=True)
    for name in os.listdir(source):
        if name.endswith(".parquet") and not name.startswith((".", "_")):
            _link(os.path.join(source, name), os.path.join(target, name))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except PermissionError:  # a file system without links
        shutil.copy2(source, target)


def _days_before(today: str, days: int) -> str:
    from datetime import date, timedelta

    return (date.fromisoformat(today) - timedelta(days=days)).isoformat()
