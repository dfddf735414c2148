"""From the launch of a Spark job to the end of its first task: as by default, and with ``fast_start``, in turn."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from support.spark.class_archives import real_archive

from bench.figures import Figure, summary
from coordd.adapters.disk.files import write_atomic
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit

SECTION = "spark_start"

# One task, and when it ended.
FIRST_TASK = """
import sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.range(1).collect()
with open(sys.argv[1], "w") as file:
    print(time.time(), file=file)
spark.stop()
"""

# A driver takes 8 s on an idle machine.
LIMIT_S = 300.0


def measure(*, quick: bool) -> list[Figure]:
    """Each way in turn, each in a directory of its own."""
    rounds = 3 if quick else 10
    directory = tempfile.mkdtemp(prefix="coordd-bench-")
    try:
        archive = real_archive(f"{directory}/archives")
        ways = {
            "default": SparkSubmit(f"{directory}/app.py"),
            "fast_start": SparkSubmit(f"{directory}/app.py", fast_start=True),
        }
        Path(directory, "app.py").write_text(FIRST_TASK)
        took: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(rounds):
            for way, launch in ways.items():
                took[way].append(_took(f"{directory}/{way}-{number}", launch, os.path.dirname(archive.path)))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    middle = {way: statistics.median(times) for way, times in took.items()}
    text = ", ".join(f"{way} {seconds:.1f} s" for way, seconds in middle.items()) + f"; {rounds} of each in turn"
    samples = {"seconds": {way: summary(times) for way, times in took.items()}}
    ratio = middle["default"] / middle["fast_start"]
    return [Figure(SECTION, "to the first task: default ÷ fast_start", ratio, "x", 2.0, ">=", text, samples)]


def _took(directory: str, launch: SparkSubmit, archives: str) -> float:
    """Seconds from just before spark-submit is started to the end of the first task."""
    os.makedirs(directory, mode=0o700)
    attempt = AttemptInfo("bench#1", 0, 1, "nonce", "edge-1", 0.0, "", directory)
    job = Job(name="bench", digest="d", launch=launch)
    program = build(job, launch, SparkDefaults(master="local[2]", archives=archives), attempt)
    write_atomic(program.secrets_path, program.secrets.encode())
    began = time.time()
    done = subprocess.run(
        [*program.argv, f"{directory}/out"],
        env=program.env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return float(Path(directory, "out").read_text()) - began
