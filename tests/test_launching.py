"""The runner's spec is made from the granted definition, and from no other."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from support.small_cluster import EPOCH, MONO, Lone, job
from system.lab.processes import until

from coordd.adapters.process import _submits
from coordd.cli.checking import of_machine
from coordd.config import ownership
from coordd.config.jobfile import JobSet
from coordd.config.sections import Config, LineageConfig, NodeConfig, SparkConfig
from coordd.core.jobs.job import Command, Job, SparkSubmit
from coordd.core.ledger.rows import RUN_COLUMNS, Row
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


def site(tmp_path: Path, *files: str) -> Config:
    """A node with a Spark and a Java that do nothing. ``files``: more of that Spark's."""
    for path in ("java/bin/java", "spark/bin/spark-submit", *[f"spark/{path}" for path in files]):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("#!/bin/sh\nexec sleep 60\n")
        (tmp_path / path).chmod(0o755)
    env = {"JAVA_HOME": str(tmp_path / "java"), "PYSPARK_PYTHON": "/bin/false"}
    return Config(
        node=NodeConfig(name="edge-9", runtime_dir=str(tmp_path / "run")),
        spark=SparkConfig(submit=f"{tmp_path}/spark/bin/spark-submit", env=env),
    )


@pytest.mark.parametrize("launch", [SparkSubmit("hdfs:///a.py", connect="pool"), SparkSubmit(pipeline="hdfs:///p.yml")])
@pytest.mark.parametrize("first", [True, False])
def test_what_only_a_client_of_spark_connect_needs_is_its_problem_alone(
    tmp_path: Path, launch: SparkSubmit, first: bool
) -> None:
    client, plain = Job(name="client", digest="d", launch=launch), Job(name="plain", digest="d", launch=PLAIN)
    jobs = (client, plain) if first else (plain, client)
    builder = LaunchBuilder(site(tmp_path), Lone().node, lambda *_: "/nowhere", cast(Any, None))

    problems = Startable(builder.asking).take({job.name: job for job in jobs}, 60.0)

    assert set(problems) == {"client"}
    assert "spark-connect" in problems["client"]


def test_doctor_and_check_config_name_settings_of_the_site_that_a_job_does_not_have(tmp_path: Path) -> None:
    config = site(tmp_path)
    jobs = {"plain": Job(name="plain", digest="d", launch=PLAIN), "shell": job("shell")}
    builder = LaunchBuilder(config, Lone(*jobs.values()).node, lambda *_: "/nowhere", cast(Any, None))

    [told] = builder.remarks(())
    assert (told["check"], told["text"].partition(",")[0]) == (
        "job plain",
        f"{config.spark.submit} is outside its Spark",
    )
    [warned] = of_machine(JobSet(jobs), config)
    assert (warned.severity, warned.file) == ("warning", f"{config.node.jobs_dir}/plain.toml")
    assert "set SPARK_HOME in [spark] env" in warned.message


@pytest.mark.parametrize(
    ("program", "expected"),
    [("/usr/bin/spark-submit", True), ("/usr/bin/spark3-submit", True), ("/usr/bin/spark-shell", False), ("sh", False)],
)
def test_a_driver_tells_its_id_by_whatever_name_spark_submit_has(program: str, expected: bool) -> None:
    assert _submits({"argv": [program, "--master", "yarn"]}) == expected


PLAIN = SparkSubmit("hdfs:///a.py")
TEAMS = SparkSubmit(
    "local:///a.py",
    master="k8s://http://{node}.example:1",
    deploy_mode="cluster",
    conf={"spark.kubernetes.namespace": "team-{team}", "spark.app.day": "{date}"},
)


def row_of(args: str) -> Row:
    row = Row([0] * len(RUN_COLUMNS))
    row.run, row.args, row.node, row.fire_at = "nightly@x", args, "edge-1.example.4711", EPOCH
    return row


def test_applications_are_looked_up_where_their_run_has_them(tmp_path: Path) -> None:
    builder = LaunchBuilder(site(tmp_path), Lone().node, lambda *_: "/nowhere", cast(Any, None))
    nightly = Job(name="nightly", digest="d", launch=TEAMS, params={"team": "a"})

    default, given = builder.applications(nightly, row_of("{}")), builder.applications(nightly, row_of('{"team": "b"}'))

    assert [one and one.place for one in (default, given)] == [
        f"http://edge-1.example.example:1, namespace team-{team}" for team in "ab"
    ]
    launch = Launch(
        "nightly#1", "nightly", AttemptNumber(0), Token(7), "n7", EPOCH, '{"team": "b"}', MONO + 58.0, 60.0, digest="d"
    )
    program = builder._program(nightly, launch, {"team": "b"}, write=False)
    options = json.loads(builder._argv(nightly, "nightly#1", program, program.argv)[-len(program.argv) - 2])
    assert options["master"] == "k8s://http://edge-9.example:1", "the tracker's own, as spark-submit gets it"


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("spark.master", {"master": "k8s://http://{node}.example:1"}),
        ("spark.conf.spark.kubernetes.namespace", {"conf": {"spark.kubernetes.namespace": "{team}"}}),
        ("spark.env.KUBECONFIG", {"env": {"KUBECONFIG": "/k/{team}"}}),
        ("", {"conf": {"spark.kubernetes.namespace": "{{a}}", "spark.app.day": "{date}"}, "env": {"DAY": "{date}"}}),
    ],
)
def test_without_a_run_only_what_is_the_same_for_all_is_looked_up(
    tmp_path: Path, key: str, changes: dict[str, Any]
) -> None:
    builder = LaunchBuilder(site(tmp_path), Lone().node, lambda *_: "/nowhere", cast(Any, None))
    launch = SparkSubmit("local:///a.py", **{"master": "k8s://http://api:1", "deploy_mode": "cluster", **changes})
    nightly = Job(name="nightly", digest="d", launch=launch, params={"team": "a"})

    if not key:
        found = builder.applications(nightly)
        assert found is not None
        assert found.place == "http://api:1, namespace {a}"
        return
    with pytest.raises(UnavailableError, match=f"cannot be looked up without a run: {key} has placeholders"):
        builder.applications(nightly)


def test_nothing_is_prepared_for_a_job_that_its_tags_leave_to_other_nodes(tmp_path: Path) -> None:
    config = site(tmp_path, "jars/spark-connect_2.13-4.3.0.jar")
    launch = SparkSubmit("/a.py", connect="pool", fast_start=True)
    far = job("far", launch=launch, tags=("gpu",), every_s=3600.0)
    builder = LaunchBuilder(config, Lone(far).node, lambda *_: "/nowhere", cast(Any, None))

    builder.pool.look(3600.0 - 10)
    assert builder.pool.counts["prepared"] == 0
    assert builder.pool.checks() == []
    assert builder.archives() == []
    mine = job("mine", launch=SparkSubmit("/a.py", fast_start=True))
    builder = LaunchBuilder(config, Lone(far, mine).node, lambda *_: "/nowhere", cast(Any, None))
    assert len(builder.archives()) == 1


def test_a_spec_has_the_server_that_was_prepared_for_its_job(tmp_path: Path) -> None:
    config = site(tmp_path, "jars/spark-connect_2.13-4.3.0.jar")
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
