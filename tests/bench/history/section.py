"""The driver of the history as spark-submit runs it, on two cores, and Celery's State on the same events.

Celery neither parses, checks, stores nor reports: only its fold is timed, on events that are in memory.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from celery.events.state import State
from history.oracle.trial import Plan, play
from pyspark.sql import SparkSession

from bench.figures import Figure
from bench.history.events import Busy
from coordd.adapters.spark import CODE_CACHE, FAST_COMPILER
from coordd.core.wire.journal_line import decode_line
from coordd.history import job

INCREMENT = 100_000
DRIVER_MEMORY = "3g"

# Java's options are those of docs/history.md: this one for millions of events, and ``fast_start`` for an increment.
COLLECTOR = "-XX:+UseParallelGC"

# The maximum number of events on which Celery's fold is timed, before the pipeline and after it.
FOLD_MAX = 200_000

# The maximum number of runs whose states are compared with Celery's.
COMPARED_MAX = 50_000


class Driven(NamedTuple):
    """One run of the driver: real and processor time in seconds, and the most memory (MB) of one process so far."""

    took_s: float
    cpu_s: float
    memory_mb: float


def measure(*, quick: bool) -> list[Figure]:
    """10^6 events, and 10^5 with ``quick``; a fifth as many in disorder."""
    return measured(100_000 if quick else 1_000_000, disorderly=20_000 if quick else 200_000)


def measured(events: int, *, disorderly: int) -> list[Figure]:
    """All figures, for this number of events."""
    with tempfile.TemporaryDirectory(prefix="coordd-bench-") as scratch:
        journals, output = os.path.join(scratch, "j"), os.path.join(scratch, "out")
        cluster = Busy()
        count = cluster.write(journals, events)
        folds = [celery_fold(journals)]
        whole = drive(journals, output, scratch, "--driver-java-options", COLLECTOR)
        folds.append(celery_fold(journals))
        more = cluster.write(journals, INCREMENT)
        increment = drive(journals, output, scratch, "--driver-java-options", f"{FAST_COMPILER} {CODE_CACHE}")
        wrong, compared = against_celery(journals, output)
        shutil.rmtree(output)
        mistakes, held = against_reference(scratch, disorderly)
    fold = sum(folds) / len(folds)
    rate = count / whole.took_s
    told = f"load {os.getloadavg()[0]:.1f}, Celery folds {fold:,.0f} events/s"
    spent = f"{count:,} events in {whole.took_s:.0f} s, {whole.cpu_s:.0f} s of CPU"
    added = f"{more:,} events, {increment.cpu_s:.0f} s of CPU"
    return [
        Figure("history", "events a second, lines to report", rate, "/s", detail=spent),
        Figure("history", "of Celery's fold alone", rate / fold, "x", 1.0, ">=", detail=told),
        Figure("history", "memory of driver and Spark", whole.memory_mb, "MB", detail=f"heap {DRIVER_MEMORY}"),
        Figure("history", "an increment, Spark's start included", increment.took_s, "s", 20.0, detail=added),
        Figure("history", "runs that differ from Celery's State", wrong, "", 0, "=", detail=f"of {compared:,}"),
        Figure(
            "history", "rows in disorder that differ from the reference", mistakes, "", 0, "=", detail=f"of {held:,}"
        ),
    ]


def drive(journals: str, output: str, scratch: str, *options: str) -> Driven:
    """Run it once, with more options of spark-submit. Raises RuntimeError if it fails."""
    environ = {"PATH": os.environ["PATH"], "HOME": scratch, "PYSPARK_PYTHON": sys.executable}
    command = [
        os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit"),
        *("--master", "local[2]", "--driver-memory", DRIVER_MEMORY),
        *("--conf", "spark.ui.enabled=false", "--conf", f"spark.local.dir={scratch}/local"),
        *("--conf", "spark.ui.showConsoleProgress=false"),
        *options,
        os.path.abspath(job.__file__),
        *("--journals", journals, "--output", output),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    with open(os.path.join(scratch, "log"), "ab") as log:
        done = subprocess.run(command, env=environ, stdout=log, stderr=log, cwd=scratch, check=False)
    took_s = time.monotonic() - began
    if done.returncode:
        raise RuntimeError(f"the pipeline failed: {Path(scratch, 'log').read_text()[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Driven(took_s, cpu_s, after.ru_maxrss / 1024)


def events_of(journals: str) -> Iterator[dict[str, Any]]:
    """All events, one segment after the other, in time."""
    for path in sorted(glob(f"{journals}/**/*.jsonl", recursive=True), key=lambda path: path.rsplit("/", 1)[1]):
        with open(path, "rb") as file:
            for event in filter(None, map(decode_line, file)):
                yield {**event, "local_received": event["timestamp"]}  # a receiver of Celery adds it


def celery_fold(journals: str) -> float:
    """Events a second of Celery's State, on one core, on events that are in memory."""
    loaded = [event for event, _ in zip(events_of(journals), range(FOLD_MAX), strict=False)]
    state = State(max_tasks_in_memory=len(loaded))
    began = time.monotonic()
    for event in loaded:
        state.event(event)
    return len(loaded) / (time.monotonic() - began)


def against_celery(journals: str, output: str) -> tuple[int, int]:
    """How many runs have another state than in Celery's State, and how many were compared."""
    state = State(max_tasks_in_memory=4 * COMPARED_MAX)
    for event, _ in zip(events_of(journals), range(4 * COMPARED_MAX), strict=False):
        state.event(dict(event))
    expected = {uuid: task.state.lower() for uuid, task in state.tasks.items() if task.state in ("SUCCESS", "FAILURE")}
    found = {row.uuid: row.state for row in rows(output, "uuid", "state") if row.uuid in expected}
    return sum(found.get(uuid) != word for uuid, word in expected.items()), len(expected)


def against_reference(scratch: str, events: int) -> tuple[int, int]:
    """How many rows of all tables differ from the plain reference, in every kind of disorder (history.oracle)."""

    def add(journals: Path, output: Path) -> None:
        drive(str(journals), str(output), scratch)

    verdict = play(Plan(seed=9, events=events, parts=2), Path(scratch, "disorder"), add)
    return verdict.mismatches, sum(tally.rows for tally in verdict.tallies.values())


def rows(output: str, *columns: str) -> list[Any]:
    """Rows of the table ``runs``."""
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        return spark.read.parquet(f"file://{output}/runs").select(*columns).collect()
    finally:
        spark.stop()
