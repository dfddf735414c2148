"""Clients of Spark Connect: what starts server and client, and what a node may lack."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from coordd.adapters.cluster.properties import parse
from coordd.adapters.faststart import connect
from coordd.adapters.spark import AttemptInfo, ProgramSpec, SparkDefaults, build
from coordd.core.jobs.job import Job, SparkSubmit
from coordd.errors import UnavailableError
from coordd.launching import connect_argv

ATTEMPT = AttemptInfo("j#1", 0, 1, "the-nonce", "edge-1", 0.0, "", "/run/x")


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A distribution of Spark with Spark Connect and pipelines, and a Java."""
    for path in (
        "spark/bin/spark-submit",
        "java/bin/java",
        "spark/jars/spark-connect_2.13-4.1.0.jar",
        "spark/python/pyspark/pipelines/cli.py",
        "spark/python/lib/py4j-1-src.zip",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch(mode=0o755)
    return {"SPARK_HOME": str(tmp_path / "spark"), "JAVA_HOME": str(tmp_path / "java"), "PATH": "/usr/bin:/bin"}


def program(environ: dict[str, str], **fields: object) -> ProgramSpec:
    launch = SparkSubmit(**fields)  # type: ignore[arg-type]  # as in a job file
    return build(Job(name="j", digest="d", launch=launch), launch, SparkDefaults(master="local[2]"), ATTEMPT, environ)


def test_a_server_is_started_for_the_client_and_no_setting_is_in_an_argv(environ: dict[str, str]) -> None:
    conf = {"fs.azure.account.key.x": "hidden-key", "spark.a": "hidden-value"}
    made = program(environ, application="/a.py", args=("1",), connect="pool", conf=conf, py_files=("/lib.zip",))
    home = environ["SPARK_HOME"]
    assert made.argv[:3] == [f"{home}/bin/spark-submit", "--master", "local[2]"]
    assert made.argv[-3:] == ["--class", connect.SERVER_CLASS, connect.NO_PROGRAM]
    assert made.client == ["python3", "/a.py", "1"]
    assert made.env["PYTHONPATH"] == f"/lib.zip:{home}/python:{home}/python/lib/py4j-1-src.zip"
    assert parse(made.secrets)["spark.connect.grpc.binding.address"] == "127.0.0.1"
    words = connect_argv(made, made.argv)
    assert "hidden" not in " ".join(words)
    assert "the-nonce" not in " ".join(words)
    at = words.index("--")
    assert (json.loads(words[at - 1]), words[at + 1 :]) == ({"client": made.client}, made.argv)


def test_the_program_of_pipelines_is_that_of_this_spark(environ: dict[str, str]) -> None:
    made = program(environ, pipeline="/p/spec.yml", args=("--full-refresh-all",), env={"PYSPARK_PYTHON": "/opt/python"})
    cli = f"{environ['SPARK_HOME']}/python/pyspark/pipelines/cli.py"
    assert made.client == ["/opt/python", cli, "run", "--spec", "/p/spec.yml", "--full-refresh-all"]


def test_a_spark_without_connect_or_pipelines_is_named(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "spark/python/pyspark/pipelines/cli.py").unlink()
    program(environ, application="/a.py", connect="pool")
    with pytest.raises(UnavailableError, match=r"has no declarative pipelines .*: they come with Spark 4\.1 and newer"):
        program(environ, pipeline="/s.yml")
    (tmp_path / "spark/jars/spark-connect_2.13-4.1.0.jar").unlink()
    with pytest.raises(UnavailableError, match=r"has no Spark Connect .*: it comes with Spark 4\.0 and newer"):
        program(environ, application="/a.py", connect="pool")


def test_a_python_that_lacks_modules_is_named(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    ours = {"PYSPARK_PYTHON": sys.executable}
    program(environ, pipeline="/s.yml", env=ours)
    monkeypatch.setattr(connect, "_is_there", lambda module: module not in ("google.rpc", "yaml"))
    with pytest.raises(UnavailableError, match=r"lacks googleapis-common-protos, which .*: install coordd\[connect\]"):
        program(environ, application="/a.py", connect="pool", env=ours)
    with pytest.raises(UnavailableError, match="lacks googleapis-common-protos, PyYAML, which"):
        program(environ, pipeline="/s.yml", env=ours)
