"""The same tables as datasets of a declarative pipeline (Spark 4.1 and newer): Spark finds the order, and writes them.

A spec names a file that calls ``declare``, as deploy/pipeline does. The tables are materialized views: each run of the
pipeline reads all closed segments again. job.py reads each segment once and publishes all tables in one step with a
report; a pipeline puts them into a catalog, beside what else the site declares there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession

from coordd.errors import ConfigError
from coordd.history import audit, cluster, transforms
from coordd.history.schema import TABLES
from coordd.history.streaming import CLOSED

# Settings of the spec. JOURNALS: directories with closed segments at any depth, as URIs or paths, separated by commas.
JOURNALS = "spark.coordd.journals"
CLOCK_SKEW_S = "spark.coordd.clockSkewS"

# Computed on the way, and not kept.
_CHECKED, _GRANTED = "checked_lines", "granted"


def declare(spark: SparkSession) -> None:
    """Declare every table of ``schema.TABLES``, partitioned by ``date``. Raises ConfigError without journals."""
    paths = [path.strip() for path in (spark.conf.get(JOURNALS, None) or "").split(",") if path.strip()]
    if not paths:
        raise ConfigError(f"the spec's configuration has no {JOURNALS}: name the directories with closed segments")
    skew_s = float(spark.conf.get(CLOCK_SKEW_S, None) or audit.CLOCK_SKEW_S)

    def lines() -> DataFrame:
        return transforms.lines(spark, paths, recursiveFileLookup="true", pathGlobFilter=CLOSED)

    def table(name: str) -> DataFrame:
        return spark.read.table(name)

    def select(name: str, flow: Callable[[], DataFrame]) -> DataFrame:
        return flow().select(*TABLES[name], "date")

    flows: dict[str, Callable[[], DataFrame]] = {
        "events": lambda: transforms.events(table(_CHECKED)),
        "corrupt": lambda: transforms.corrupt(table(_CHECKED), lines()),
        "runs": lambda: transforms.runs(table("events")),
        "attempts": lambda: transforms.attempts(table(_GRANTED)),
        "grants": lambda: transforms.grants(table(_GRANTED)),
        "nodes": lambda: cluster.nodes(table("events")),
        "elections": lambda: cluster.elections(table("events")),
        "breakers": lambda: cluster.breakers(table("events")),
        "fires": lambda: cluster.fires(table("runs"), table("attempts")),
        "audit": lambda: audit.findings(table("grants"), audit.several(table("attempts")), skew_s),
    }
    pipelines.temporary_view(name=_CHECKED)(lambda: transforms.checked(lines()))
    pipelines.temporary_view(name=_GRANTED)(lambda: transforms.granted(table("events")))
    for name in TABLES:
        pipelines.materialized_view(name=name, partition_cols=["date"])(partial(select, name, flows[name]))
