"""Real spark-submit, real PySpark drivers, under the runner."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.disk.files import write_atomic
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit
from system.lab.processes import exists
from system.lab.runner_lab import Attempt, World, kill, world_in

COUNTING = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
with open(sys.argv[1], "w") as file:
    print(spark.sparkContext.applicationId, spark.range(10).count(), spark.conf.get("spark.coordd.token"), file=file)
spark.stop()
sys.exit(int(sys.argv[2]))
"""

# Busy in Python: it does not notice that its JVM is gone.
BUSY = """
import os, sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
spark.range(10).count()
with open(sys.argv[1], "w") as file:
    while True:
        print(os.getpid(), file=file, flush=True)
        time.sleep(0.05)
"""

# Two JVMs load their classes, on a machine that does other work too.
SPARK_LIMIT_S = 240.0

CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture(params=["a program", "warm parent"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    with world_in(tmp_path, warm=request.param == "warm parent") as world:
        yield world


def submit(world: World, script: str, *args: str) -> Attempt:
    """Start a PySpark script the way a daemon does."""
    application = world.path / "application.py"
    application.write_text(script)
    spec, attempt = world.spec([])
    launch = SparkSubmit(str(application), args=(str(attempt.out), *args), conf=CONF)
    job = Job(name=spec["job"], digest="digest", launch=launch)
    attempt_info = AttemptInfo(
        spec["run"], 0, spec["token"], spec["nonce"], "edge-1", spec["fire_at"], "", attempt.directory
    )
    program = build(job, launch, SparkDefaults(master="local[1]"), attempt_info)
    os.makedirs(attempt.directory, mode=0o700, exist_ok=True)
    write_atomic(program.secrets_path, program.secrets.encode())
    env: dict[str, Any] = {**program.env, "MARK": spec["env"]["MARK"]}
    world.launcher.start({**spec, "argv": program.argv, "env": env})
    return attempt


def test_a_driver_ends_and_its_application_id_is_known(world: World) -> None:
    attempt = submit(world, COUNTING, "7")
    row = attempt.over(SPARK_LIMIT_S)
    said, count, token = attempt.out.read_text().split()
    assert (row.state, row.exit_code) == ("failure", 7)
    assert (count, token) == ("10", str(row.token))
    assert said.startswith("local-")
    assert row.application_id == said
    assert attempt.fact("application")["application_id"] == said
    assert said not in Path(attempt.directory, "log").read_text(), "it came by the back-channel, not by the log"
    assert attempt.pids() == []


def test_the_jvm_is_killed_and_the_busy_driver_does_not_stay(world: World) -> None:
    attempt = submit(world, BUSY).begun(SPARK_LIMIT_S)
    jvm = attempt.fact("started")["program"]
    assert os.readlink(f"/proc/{jvm}/exe").endswith("java")
    driver = int(attempt.lines()[0])
    assert exists(driver)
    assert driver != jvm
    kill(jvm)
    row = attempt.over()
    assert (row.state, row.exit_code) == ("failure", -9)
    assert attempt.pids() == []
    assert not exists(driver)
