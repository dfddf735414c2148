"""``fast_start`` with the real Spark and the real Java: the driver maps the archive, or starts without it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.spark.class_archives import real_archive

from coordd.adapters.disk.files import write_atomic
from coordd.adapters.faststart.archive import Archive
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit

# The driver of a Python program is a child of its JVM.
ASKING = """
import os, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
jvm = f"/proc/{os.getppid()}"
with open(f"{jvm}/maps") as maps, open(f"{jvm}/cmdline") as words, open(sys.argv[1], "w") as out:
    print(spark.range(10).count(), sys.argv[2] in maps.read(), "TieredStopAtLevel=1" in words.read(), file=out)
spark.stop()
"""

LIMIT_S = 240.0


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return real_archive(str(tmp_path_factory.mktemp("archives", numbered=True)))


def driver(tmp_path: Path, archive: Archive, conf: dict[str, str]) -> tuple[str, str]:
    """What a driver with fast_start found, and its output."""
    (tmp_path / "app.py").write_text(ASKING)
    launch = SparkSubmit(
        str(tmp_path / "app.py"),
        args=(str(tmp_path / "out"), archive.path),
        conf={"spark.driver.host": "127.0.0.1", **conf},
        fast_start=True,
    )
    attempt = AttemptInfo("j#1", 0, 1, "nonce", "edge-1", 0.0, "", str(tmp_path))
    defaults = SparkDefaults(master="local[1]", archives=os.path.dirname(archive.path))
    program = build(Job(name="j", digest="d", launch=launch), launch, defaults, attempt)
    write_atomic(program.secrets_path, program.secrets.encode())
    done = subprocess.run(program.argv, env=program.env, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "out").read_text().strip(), done.stdout


def test_a_driver_starts_from_the_archive(tmp_path: Path, archive: Archive) -> None:
    found, _ = driver(tmp_path, archive, {})
    assert found == "10 True True"


def test_a_driver_whose_java_refuses_the_archive_starts_without(tmp_path: Path, archive: Archive) -> None:
    found, said = driver(tmp_path, archive, {"spark.driver.extraClassPath": str(tmp_path)})
    assert found == "10 False True"
    assert "Unable to use shared archive" in said, "the log of the run says why"
