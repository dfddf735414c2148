"""Clients of Spark Connect under the real runner: a server of their own, which ends with them, and a pipeline."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from history.journals import busy_day
from pyarrow import parquet

from coordd.adapters.disk.files import write_atomic
from coordd.adapters.faststart.prepared import Prepared, new_directory
from coordd.adapters.process import ROOT
from coordd.adapters.spark import AttemptInfo, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.history import job
from coordd.history.schema import TABLES
from coordd.launching import connect_argv
from system.lab.processes import exists, until
from system.lab.runner_lab import Attempt, World, kill, world_in

# A plain client. It says which environment it has, and whether a stranger without the token is let in.
CLIENT = """
import os, sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
count = spark.range(10).count()
token = os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]
import grpc
from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc
channel = grpc.insecure_channel(os.environ["SPARK_REMOTE"].removeprefix("sc://").rstrip("/"))
try:
    request = base_pb2.ConfigRequest(session_id="0" * 8 + "-0000-4000-8000-" + "0" * 12)
    base_pb2_grpc.SparkConnectServiceStub(channel).Config(request, timeout=30)
    stranger = "let in"
except grpc.RpcError as exc:
    stranger = exc.code().name
words = open(f"/proc/{os.getppid()}/cmdline").read() + open("/proc/self/cmdline").read()
with open(sys.argv[1] + ".part", "w") as file:
    print(count, os.environ["COORDD_TOKEN"], stranger, token in words, len(token), file=file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
if len(sys.argv) > 2:
    time.sleep(600)
"""

SPEC = """
name: numbers
storage: file://{path}/storage
libraries:
  - glob:
      include: transformations/**
"""

# The pipeline that comes with coordd.
DECLARED = Path(ROOT, "deploy/pipeline")

LIMIT_S = 300.0
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with world_in(tmp_path) as world:
        yield world


def submit(world: World, launch: SparkSubmit, given: Mapping[str, object] | None = None) -> Attempt:
    """Start it the way a daemon does. ``given``: what the spec says of a prepared server."""
    spec, attempt = world.spec([])
    job = Job(name=spec["job"], digest="digest", launch=launch)
    info = AttemptInfo(spec["run"], 0, spec["token"], spec["nonce"], "edge-1", spec["fire_at"], "", attempt.directory)
    program = build(job, launch, SparkDefaults(master="local[1]"), info)
    os.makedirs(attempt.directory, mode=0o700, exist_ok=True)
    write_atomic(program.secrets_path, program.secrets.encode())
    env: dict[str, Any] = {**program.env, "MARK": spec["env"]["MARK"]}
    argv = connect_argv(program, program.argv) if program.client else program.argv
    world.launcher.start({**spec, **(given or {"submits": True}), "argv": argv, "env": env})
    return attempt


@contextlib.contextmanager
def prepared(world: World, launch: SparkSubmit) -> Iterator[Prepared]:
    """A server that has answered its first query."""
    directory = new_directory(str(world.path / "connect"))
    info = AttemptInfo("", 0, 0, "", "", 0.0, directory=directory)
    program = build(Job(name="j", digest="digest", launch=launch), launch, SparkDefaults(master="local[1]"), info)
    server = Prepared(directory, program.argv, program.env, program.client[0], program.secrets, program.secrets_path)
    try:
        until(lambda: server.ready or server.ended(), LIMIT_S)
        assert not server.ended()
        yield server
    finally:
        server.close()
        until(server.ended)


def the_client(world: World, *words: str) -> SparkSubmit:
    application = world.path / "client.py"
    application.write_text(CLIENT)
    return SparkSubmit(str(application), args=(str(world.path / "found"), *words), conf=CONF, connect="pool")


def test_a_client_has_a_prepared_server_of_its_own_which_ends_with_it(world: World) -> None:
    launch = the_client(world)
    with prepared(world, launch) as server:
        attempt = submit(world, launch, server.give())
        row = attempt.over(LIMIT_S)
    assert (row.state, row.exit_code) == ("success", 0), Path(attempt.directory, "log").read_text()[-3000:]
    found = (world.path / "found").read_text().split()
    assert found == ["10", str(row.token), "UNAUTHENTICATED", "False", "64"]
    assert attempt.pids() == []
    log = Path(attempt.directory, "log").read_text()
    assert log.count("SparkConnectServer: Starting Spark session") == 1, "the prepared server, and no other, has run it"
    assert "Successfully stopped SparkContext" in log


def test_a_server_that_dies_ends_its_client_and_a_kill_leaves_nothing(world: World) -> None:
    attempt = submit(world, the_client(world, "stay"))
    deadline = time.monotonic() + LIMIT_S
    while not (world.path / "found").exists():
        assert time.monotonic() < deadline, Path(attempt.directory, "log").read_text()[-3000:]
        time.sleep(0.05)
    [server] = [pid for pid in attempt.pids() if os.readlink(f"/proc/{pid}/exe").endswith("/java")]
    kill(server)
    row = attempt.over()
    assert (row.state, row.exit_code) == ("failure", 69)
    assert row.application_id.startswith("local-"), "by the launcher's back-channel"
    assert "has ended (exit code -9) before its client" in Path(attempt.directory, "log").read_text()
    assert attempt.pids() == []
    assert not exists(server)


def test_a_pipeline_is_run(world: World) -> None:
    (world.path / "transformations").mkdir()
    (world.path / "transformations/numbers.sql").write_text(
        "CREATE MATERIALIZED VIEW numbers AS SELECT id, id % 3 AS rest FROM range(9)"
    )
    (world.path / "spec.yml").write_text(SPEC.format(path=world.path))
    warehouse = world.path / "warehouse"
    conf = {**CONF, "spark.sql.warehouse.dir": str(warehouse)}
    attempt = submit(world, SparkSubmit(pipeline=str(world.path / "spec.yml"), conf=conf))
    succeeds(attempt)
    assert list((warehouse / "numbers").glob("*.parquet"))


def test_the_history_is_declared_as_a_pipeline_with_the_tables_of_its_driver(world: World) -> None:
    day = busy_day(seed=22, runs=12)
    for number, path in enumerate(day.write(str(world.path / "journals"))):
        os.rename(f"{path}/current.jsonl", f"{path}/0000000{number + 2}.jsonl")
    torn = world.path / "journals/00000009.jsonl"
    torn.write_bytes(b'\n{"type":"task-sta')
    spec = DECLARED.joinpath("spark-pipeline.yml").read_text()
    spec = spec.replace("/srv/coordd/journals", str(world.path / "journals"))
    spec = spec.replace("/var/lib/coordd-history/pipeline", str(world.path / "storage"))
    (world.path / "spark-pipeline.yml").write_text(spec)
    shutil.copy(DECLARED / "tables.py", world.path)
    quick = {
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
    }
    conf = {**CONF, **quick, "spark.sql.warehouse.dir": str(world.path / "warehouse")}
    succeeds(submit(world, SparkSubmit(pipeline=str(world.path / "spark-pipeline.yml"), conf=conf)))
    words = ("--journals", str(world.path / "journals"), "--output", str(world.path / "output"))
    succeeds(submit(world, SparkSubmit(job.__file__, args=words, conf=conf)))
    declared, published = (
        {name: rows(world.path / place / name) for name in TABLES} for place in ("warehouse", "output")
    )
    assert declared == published
    assert len({record["uuid"] for record in day.records() if "uuid" in record}) == len(published["runs"]) > 10
    assert [row["source"] for row in published["corrupt"]] == [str(torn)]


def rows(table: Path) -> list[dict[str, Any]]:
    """Every row with its day, in an order of their texts."""
    found = parquet.read_table(table, partitioning="hive").to_pylist()
    return sorted(({**row, "date": str(row["date"])} for row in found), key=str)


def succeeds(attempt: Attempt) -> None:
    row = attempt.over(LIMIT_S)
    assert (row.state, row.exit_code) == ("success", 0), Path(attempt.directory, "log").read_text()[-3000:]
    assert attempt.pids() == []
