"""The Spark driver of the history pipeline: the one module here that knows paths.

    spark-submit coordd/history/job.py --journals DIR [DIR...] --output DIR [--report FILE]

It takes a snapshot of the journals, rebuilds the tables (docs/history.md), audits them, and publishes them with a
report in one step: readers see the old output or the new one, never a mixture. Exit code 0: published; 1: failed, with
a sentence on stderr. Findings do not fail the job.
"""

from __future__ import annotations

import argparse
import glob
import os
import sys
import time

if __package__ in (None, ""):  # started by its path: coordd may not be installed in this Python
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from pyspark.sql import DataFrame, SparkSession

from coordd.errors import CoorddError
from coordd.history import cluster, transforms
from coordd.history.audit import CLOCK_SKEW_S, audit
from coordd.history.figures.collecting import collect, limits_of
from coordd.history.figures.learning import Limits
from coordd.history.publishing import Owner, Staging, snapshot, write_file
from coordd.history.report import Report, render
from coordd.history.schema import TABLES, ddl

# Bytes of journal per shuffle partition: small input should not need 200 empty ones.
PARTITION_BYTES = 32 * 1024 * 1024

# The partition of a table without rows: one file without rows, so that readers find the columns.
EMPTY = "date=1970-01-01"


def main(argv: list[str] | None = None) -> int:
    """Parse the arguments, run, and report a failure in one sentence."""
    options = parse(argv)
    try:
        run(options)
    except (CoorddError, OSError) as exc:
        print(f"history: {exc}", file=sys.stderr)
        return 1
    return 0


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="job.py", description="Rebuild the run history from the nodes' journals.")
    parser.add_argument(
        "--journals", nargs="+", required=True, metavar="DIR", help="journal directories, globs or URIs"
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="a local directory; replaced in one step")
    parser.add_argument("--report", metavar="FILE", help="a copy of the report (it is OUTPUT/report.html anyway)")
    parser.add_argument(
        "--jobs",
        metavar="DIR",
        help="job files: by their timeout and expect_within the report warns (needs coordd's Python)",
    )
    parser.add_argument(
        "--clock-skew-s",
        type=float,
        default=CLOCK_SKEW_S,
        metavar="S",
        help="overlaps up to this may be the difference of two machines' clocks (default %(default)s)",
    )
    parser.add_argument(
        "--pause-s",
        type=float,
        default=0.0,
        metavar="S",
        help="for demonstrations: a Spark task sleeps for this long before publishing,"
        " which leaves time to kill the owner",
    )
    return parser.parse_args(argv)


def run(options: argparse.Namespace) -> None:
    """The whole pipeline. Raises ConfigError or RefusedError if there is nothing to read or no right to publish."""
    began = time.monotonic()
    owner = Owner.of(os.environ)
    say(f"run {owner.run or '(by hand)'}, attempt {owner.attempt}, token {owner.token or '-'}")
    with Staging(options.output, owner) as staging:
        picture = snapshot(options.journals, os.path.join(staging.path, "_journals"))
        say(f"{len(picture.paths)} journal segments, {(picture.size or 0) / 1e6:.1f} MB here")
        spark = session(picture.size)
        transforms.whole_files(spark, picture.largest)
        try:
            report = build(spark, picture.paths, staging.path, options.clock_skew_s, limits_of(options.jobs))
            if options.pause_s > 0:
                pause(spark, options.pause_s)
        finally:
            spark.stop()
        page = render(report, owner, made_at=time.time(), took_s=time.monotonic() - began)
        write_file(os.path.join(staging.path, "report.html"), page)
        staging.publish()
    say(f"published {options.output}")
    if options.report:
        write_file(options.report, page)
        say(f"report {options.report}")
    say(report.verdict)
    say(f"done in {time.monotonic() - began:.1f} s")


def session(size: int | None) -> SparkSession:
    """The session; spark-submit's own settings override these. ``size``: bytes of input, None if unknown."""
    spark = SparkSession.builder.appName("coordd-history").getOrCreate()
    if size is not None and spark.sparkContext.getConf().get("spark.sql.shuffle.partitions") is None:
        # One partition needs no sampling before a sort, and is the fastest for the journals of a few nodes.
        spark.conf.set("spark.sql.shuffle.partitions", str(max(1, -(-size // PARTITION_BYTES))))
    return spark


def build(
    spark: SparkSession, paths: list[str], target: str, clock_skew_s: float, limits: dict[str, Limits] | None = None
) -> Report:
    """Write every table under ``target`` and collect the rows for the report."""

    def write(name: str, table: DataFrame) -> DataFrame:
        path = f"file://{target}/{name}"
        spark.sparkContext.setJobDescription(f"write {name}")
        table.hint("rebalance", "date").write.partitionBy("date").parquet(path)
        schema = ddl(TABLES[name])
        if not glob.glob(f"{glob.escape(target)}/{name}/date=*"):
            spark.createDataFrame([], schema).coalesce(1).write.parquet(f"{path}/{EMPTY}")
        written = spark.read.schema(f"{schema}, `date` date").parquet(path)  # later steps read this, not the lines
        say(f"{name}: {written.count()} rows")
        return written

    lines = transforms.lines(spark, paths)
    checked = transforms.checked(lines)
    events = write("events", transforms.events(checked))
    corrupt = write("corrupt", transforms.corrupt(checked, lines, f"{target}/_journals"))
    runs = write("runs", transforms.runs(events))
    granted = transforms.granted(events).persist()
    attempts = write("attempts", transforms.attempts(granted))
    grants = write("grants", transforms.grants(granted))
    granted.unpersist()
    nodes = write("nodes", cluster.nodes(events))
    write("elections", cluster.elections(events))
    write("fires", cluster.fires(runs, attempts))
    findings = write("audit", audit(grants, attempts, clock_skew_s))
    spark.sparkContext.setJobDescription("collect the report")
    return collect(runs, attempts, nodes, findings, corrupt, limits or {})


def pause(spark: SparkSession, seconds: float) -> None:
    """A Spark task that only sleeps: a demonstration has time to kill the owner."""
    say(f"pausing for {seconds:g} s in a Spark task, as --pause-s asks (for demonstrations)")
    spark.sparkContext.setJobDescription(f"--pause-s {seconds:g}")
    spark.sparkContext.parallelize([seconds], 1).map(time.sleep).count()


def say(text: str) -> None:
    """Progress, line by line, visible at once in the log."""
    print(f"history: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
