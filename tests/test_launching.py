"""The runner's spec is made from the granted definition, and from no other."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from support.small_cluster import EPOCH, MONO, Lone, job
from system.lab.processes import until

from coordd.config import ownership
from coordd.config.sections import Config, LineageConfig, NodeConfig, SparkConfig
from coordd.core.jobs.job import Command, Job, SparkSubmit
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.lineage import parent_properties
from coordd.core.ready import Launch
from coordd.errors import UnavailableError
from coordd.launching import LaunchBuilder
from coordd.services.checks.startable import Startable


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        ((job(digest="d2", on_lost="hold"),), "was changed .* expected digest d1, found d2"),
        ((), "was removed .* expected digest d1, found no such job"),
    ],
)
def test_a_definition_that_was_changed_since_the_grant_is_not_launched(jobs: tuple[Any, ...], said: str) -> None:
    builder = LaunchBuilder(Config(), Lone(*jobs).node, lambda *_: "/nowhere", cast(Any, None))
    launch = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n7", EPOCH, "{}", MONO + 58.0, 60.0, digest="d1")

    with pytest.raises(UnavailableError, match=said):
        builder.spec(launch)


@pytest.mark.parametrize(
    ("site", "of_job", "wanted"), [(False, None, False), (True, None, True), (True, False, False), (False, True, True)]
)
def test_a_spark_job_is_told_of_its_parent_if_the_site_or_the_job_says_so(
    site: bool, of_job: bool | None, wanted: bool
) -> None:
    config = Config(lineage=LineageConfig(namespace="prod", spark=site))
    builder = LaunchBuilder(config, Lone().node, lambda *_: "/nowhere", cast(Any, None))
    launch = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n7", EPOCH, "{}", MONO + 58.0, 60.0, digest="d1")
    spark = Job(name="sales", digest="d1", launch=SparkSubmit("/a.py", lineage=of_job))

    assert builder._parent(spark, launch) == (parent_properties("prod", "sales#1") if wanted else {})
    assert builder._parent(job(), launch) == {}, "no Spark job"
    assert builder._traceparent(launch) == "", "no traces"


def test_a_file_that_hangs_costs_its_own_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe without a writer stands for a file on a mount that hangs: to open it waits."""
    for name in ("spark/bin/spark-submit", "java/bin/java", "keys/hung", "local/a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "keys/hung").unlink()
    os.mkfifo(tmp_path / "keys/hung")
    monkeypatch.setattr(ownership, "fault", lambda *_: "")
    env = {"SPARK_HOME": str(tmp_path / "spark"), "JAVA_HOME": str(tmp_path / "java")}
    keytab, application = str(tmp_path / "keys/hung"), str(tmp_path / "local/a.py")
    jobs = {
        "hung": job("hung", launch=SparkSubmit(application, keytab=keytab, principal="bob")),
        "beside": job("beside", launch=SparkSubmit(str(tmp_path / "keys/a.py"))),
        "sound": job("sound", launch=SparkSubmit(application)),
        "absent": job("absent", launch=SparkSubmit(str(tmp_path / "local/b.py"))),
        "command": job("command", launch=Command(("true",))),
    }
    config = Config(spark=SparkConfig(env=env))
    builder = LaunchBuilder(config, Lone(*jobs.values()).node, lambda *_: str(tmp_path), cast(Any, None))
    startable = Startable(builder.asking, answer_s=0.5)
    silent = "its file system did not answer within 0.5 s:"
    try:
        assert startable.take(jobs, 60.0) == {
            "hung": f"{silent} keytab {keytab}",
            "beside": f"{silent} application {tmp_path}/keys/a.py",
            "absent": f"application {tmp_path}/local/b.py is not there (No such file or directory)",
        }
    finally:
        os.close(os.open(keytab, os.O_WRONLY))  # it answers
    (tmp_path / "keys/hung").unlink()
    until(lambda: startable.again(60.0)["hung"].startswith("keytab"))
    assert startable.found()["beside"] == f"application {tmp_path}/keys/a.py is not there (No such file or directory)"


def test_a_spec_has_the_server_that_was_prepared_for_its_job(tmp_path: Path) -> None:
    home = tmp_path / "spark"
    for path in ("spark/jars/spark-connect_2.13-4.3.0.jar", "java/bin/java", "spark/bin/spark-submit"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / path).chmod(0o755)
    env = {"JAVA_HOME": str(tmp_path / "java"), "PYSPARK_PYTHON": "/bin/false"}
    config = Config(
        node=NodeConfig(runtime_dir=str(tmp_path / "run")),
        spark=SparkConfig(submit=f"{home}/bin/spark-submit", env=env),
    )
    of = job("sales", launch=SparkSubmit("/a.py", connect="pool", conf={"spark.a": "1"}), every_s=3600.0)
    connections: Any = type("Connections", (), {"ledger_url": "sqlite:////x", "ledger_options": lambda _: {}})()
    builder = LaunchBuilder(config, Lone(of).node, lambda *_: str(tmp_path / "attempt"), connections)
    launch = Launch("sales#1", "sales", AttemptNumber(0), Token(7), "n7", EPOCH, "{}", MONO + 58.0, 60.0, digest="d1")

    builder.pool.look(3600.0 - 10)
    [directory] = (tmp_path / "run/connect").iterdir()
    assert (directory / "secrets.properties").read_text().splitlines() == [
        "spark.a=1",
        "spark.connect.grpc.binding.address=127.0.0.1",
    ], "it knows nothing of the run"
    spec = builder.spec(launch)
    assert spec["connect"] == {"address": f"{directory}/sock"}
    assert spec["born_ticks"] > 0
    assert spec["argv"][0] == sys.executable
    assert "submits" not in spec

    another = builder.spec(launch)
    assert "connect" not in another, "it was taken"
    assert another["submits"]
    [server] = builder.pool._leaving
    server.close()
    until(server.ended)
