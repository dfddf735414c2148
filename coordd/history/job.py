"""The Spark driver of the history pipeline: the one module here that knows paths.

    spark-submit coordd/history/job.py --journals DIR [DIR...] --output DIR [--report FILE]

It takes a snapshot of the journals, rebuilds the tables (docs/history.md), audits them, and publishes them with a
report in one step: readers see the old output or the new one, never a mixture. Exit code 0: published; 1: failed, with
a sentence on stderr. Findings do not fail the job.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time

if __package__ in (None, ""):  # started by its path: coordd may not be installed in this Python
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from coordd.errors import CoorddError
from coordd.history.audit import CLOCK_SKEW_S
from coordd.history.figures.collecting import SHUFFLE, collect, limits_of
from coordd.history.pipeline import build
from coordd.history.publishing import Owner, Staging, local, write_file
from coordd.history.report import render
from coordd.history.schema import LAYOUT
from coordd.history.segments import LIST, list_text, read_before, snapshot
from coordd.history.streaming import find, follow, trigger

# Bytes of journal per shuffle partition: small input should not need 200 empty ones.
PARTITION_BYTES = 32 * 1024 * 1024

# What input of unknown size (not local) counts for, in bytes.
SIZE_UNKNOWN = 2 * 1024 * 1024 * 1024

# A longer retention is a mistake, and no calendar has its first day.
DAYS_MAX = 36_500

# Up to this number of files, Spark's driver lists them itself: segments are many and small, and a Spark job for it
# takes longer. Local ones take it no time; a job took 24 s for 12,000.
DISCOVERY = "spark.sql.sources.parallelPartitionDiscovery.threshold"
LISTED_MAX, LOCAL_LISTED_MAX = 10_000, 1_000_000

# Settings of this job, unless spark-submit says otherwise.
CONF = {
    "spark.sql.parquet.compression.codec": "lz4_raw",  # the fastest; tables are written more often than read
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "20000",  # the default (128 keys) sorts nearly always
    "spark.sql.icu.caseMappings.enabled": "false",  # hexadecimal digits need no rules of languages
    # Java never compiles a method of more than 8000 bytes. Spark's default lets it interpret them: half as fast.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    "spark.sql.session.timeZone": "UTC",
}


def main(argv: list[str] | None = None) -> int:
    """Parse the arguments, run, and report a failure in one sentence."""
    options = parse(argv)
    try:
        run(options)
    except (CoorddError, OSError) as exc:
        print(f"history: {exc}", file=sys.stderr)
        return 1
    except (PySparkException, Py4JError) as exc:
        print(f"history: Spark failed: {cause(exc)}; nothing is published, its log above says more", file=sys.stderr)
        return 1
    return 0


def cause(exc: Exception) -> str:
    """What Spark or Java says, without the stack."""
    lines = [line.strip().removeprefix(": ") for line in str(exc).splitlines()]
    told = [line for line in lines if line and not line.startswith(("An error occurred while calling", "at "))]
    return told[0].rstrip(".") if told else type(exc).__name__


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
        "--stream",
        metavar="now|SECONDS",
        type=trigger,
        help="follow the closed segments: 'now' reads what is there and ends, a number looks again after it, for ever",
    )
    parser.add_argument(
        "--keep-days",
        type=days,
        default=0,
        metavar="N",
        help="remove days of the tables that are older (default: keep all)",
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="read all segments again, and forget what came from others"
    )
    parser.add_argument(
        "--clock-skew-s",
        type=seconds,
        default=CLOCK_SKEW_S,
        metavar="S",
        help="overlaps up to this may be the difference of two machines' clocks (default %(default)s)",
    )
    parser.add_argument(
        "--pause-s",
        type=seconds,
        default=0.0,
        metavar="S",
        help="for demonstrations: a Spark task sleeps for this long before publishing,"
        " which leaves time to kill the owner",
    )
    options = parser.parse_args(argv)
    if options.rebuild and options.stream is not None:
        parser.error("--rebuild: a stream reads what is new; run once with --rebuild, then with --stream")
    return options


def days(text: str) -> int:
    """A number of days. Raises argparse.ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= DAYS_MAX):
        raise argparse.ArgumentTypeError(f"expected a number of days from 0 (keep all) to {DAYS_MAX}, found {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """A number of seconds; no NaN, with which no overlap would be a finding. Raises argparse.ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of seconds, 0 or more, found {text!r}")
    return number


def run(options: argparse.Namespace) -> None:
    """The whole pipeline. Raises ConfigError or RefusedError if there is nothing to read or no right to publish."""
    owner = Owner.of(os.environ)
    options.output = local("--output", options.output)
    options.report = local("--report", options.report) if options.report else None
    say(f"run {owner.run or '(by hand)'}, attempt {owner.attempt}, token {owner.token or '-'}")
    ours = SparkSession.getActiveSession() is None  # else another one made it, and stops it
    try:
        if options.stream is not None:
            follow(
                session(), options.journals, options.output, options.stream, lambda found: add(options, found, owner)
            )
        else:
            add(options, options.journals, owner)
    finally:
        active = SparkSession.getActiveSession()
        if ours and active is not None:
            active.stop()


def add(options: argparse.Namespace, journals: list[str], owner: Owner) -> None:
    """Add what these journals say to the output, and publish it. Those of a stream were found by Spark."""
    began = time.monotonic()
    with Staging(options.output, owner) as staging:
        old = "" if options.rebuild else staging.readable(LAYOUT)
        target, found = os.path.join(staging.path, "_journals"), options.stream is not None
        picture = snapshot(journals, target, read_before(old), found=found, lists=lambda uri: find(session(), uri))
        mb = f"{picture.size / 1e6:.1f} MB" if picture.size is not None else "of unknown size"
        say(f"{len(picture.paths)} journal segments to read ({mb}), {picture.known} were read before")
        spark = session(picture.size)
        tables = build(spark, picture, old, staging.path, options.clock_skew_s, say)
        if options.keep_days:
            tables.forget(options.keep_days, time.strftime("%Y-%m-%d", time.gmtime()))
        spark.sparkContext.setJobDescription("collect the report")
        report = collect(tables.after, limits_of(options.jobs))
        if options.pause_s > 0:
            pause(spark, options.pause_s)
        page = render(report, owner, made_at=time.time(), took_s=time.monotonic() - began)
        write_file(os.path.join(staging.path, "report.html"), page)
        write_file(os.path.join(staging.path, LIST), list_text(picture.read))
        staging.publish(LAYOUT)
    say(f"published {options.output}")
    if options.report:
        write_file(options.report, page)
        say(f"report {options.report}")
    say(report.verdict)
    say(f"done in {time.monotonic() - began:.1f} s")


def session(size: int | None = None) -> SparkSession:
    """The session; spark-submit's own settings override these. ``size``: bytes of input, None if unknown."""
    spark = SparkSession.builder.appName("coordd-history").getOrCreate()
    listed = LISTED_MAX if size is None else LOCAL_LISTED_MAX
    # The fewest partitions that are small enough: the journals of a few nodes need one.
    partitions = max(1, -(-(SIZE_UNKNOWN if size is None else size) // PARTITION_BYTES))
    for name, value in {**CONF, DISCOVERY: str(listed), SHUFFLE: str(partitions)}.items():
        if spark.sparkContext.getConf().get(name) is None:
            spark.conf.set(name, value)
    return spark


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
