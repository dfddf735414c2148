"""The driver as spark-submit runs it: by its path, from elsewhere, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from coordd.core.wire.merge import merge
from coordd.history import job
from coordd.history.schema import TABLES
from coordd.history.segments import LIST
from history.journals import busy_day

RUN_TIMEOUT_S = 240
DRIVER = os.path.abspath(job.__file__)


def command(paths: list[str], output: str, *more: str) -> list[str]:
    """The driver's command line."""
    return [
        os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit"),
        *("--master", "local[2]", "--conf", "spark.ui.enabled=false"),
        *("--driver-java-options", "-XX:TieredStopAtLevel=1"),
        *(DRIVER, "--journals", *paths, "--output", output, *more),
    ]


def environment(tmp_path: Path) -> dict[str, str]:
    """What coordd gives to it."""
    java = {"JAVA_HOME": os.environ["JAVA_HOME"]} if "JAVA_HOME" in os.environ else {}
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "COORDD_JOB": "history",
        "COORDD_RUN": "history@1",
        "COORDD_TOKEN": "17",
        "COORDD_ATTEMPT": "1",
        **java,
    }


@contextlib.contextmanager
def following(tmp_path: Path, paths: list[str], output: Path) -> Iterator[Callable[[str], list[str]]]:
    """The driver as a stream that looks every second. Yields a reader: all lines up to one that begins so."""
    with (
        open(tmp_path / "stderr", "wb") as errors,
        subprocess.Popen(
            command(paths, str(output), "--stream", "1"),
            env=environment(tmp_path),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as stream,
    ):
        assert stream.stdout is not None
        limit = threading.Timer(RUN_TIMEOUT_S, os.killpg, (stream.pid, signal.SIGKILL))
        limit.start()

        def until(beginning: str) -> list[str]:
            said = []
            for line in stream.stdout or ():
                said.append(line)
                if line.startswith(beginning):
                    return said
            raise AssertionError(f"it ended: {''.join(said)}\n{(tmp_path / 'stderr').read_text()[-3000:]}")

        try:
            yield until
        finally:
            with contextlib.suppress(ProcessLookupError):  # it ended
                os.killpg(stream.pid, signal.SIGTERM)
            stream.wait()
            limit.cancel()


def columns_are_as_documented(spark: SparkSession, output: Path) -> None:
    """Also those of tables without rows."""
    for name, columns in TABLES.items():
        found = {one.name: one.dataType.simpleString() for one in spark.read.parquet(f"file://{output}/{name}").schema}
        assert found == {**columns, "date": "date"}, name
        assert {path.name[:5] for path in (output / name).iterdir() if path.is_dir()} == {"date="}


def submitted(tmp_path: Path, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """A run of spark-submit, until its end."""
    return subprocess.run(
        argv,
        env=environment(tmp_path),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )


def test_spark_submit_publishes_tables_and_a_report(tmp_path: Path, spark: SparkSession) -> None:
    cluster = busy_day(seed=21, runs=8)
    paths = cluster.write(str(tmp_path / "journals"))
    whole = Path(paths[0], "current.jsonl").read_bytes().splitlines()
    with open(os.path.join(paths[0], "current.jsonl"), "ab") as current:
        current.write(b'{"type":"task-sta')
    output, report = tmp_path / "out", tmp_path / "report.html"
    done = submitted(tmp_path, command(paths, f"file://{output}", "--report", f"file://{report}", "--pause-s", "0.1"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "pausing for 0.1 s in a Spark task" in done.stdout
    counts = {name: spark.read.parquet(f"file://{output}/{name}").count() for name in TABLES}
    reference = merge(cluster.records())
    launches = sum(record["type"] == "task-started" for record in cluster.records())
    assert (counts["events"], counts["runs"]) == (len(cluster.records()), len(reference))
    assert (counts["attempts"], counts["corrupt"]) == (launches, 1)
    assert (counts["nodes"], counts["elections"], counts["audit"]) == (3, 0, counts["audit"])
    columns_are_as_documented(spark, output)
    (torn,) = spark.read.parquet(f"file://{output}/corrupt").collect()
    assert (torn.source, torn.line_number) == (f"{paths[0]}/current.jsonl", len(whole) + 1)
    assert (torn.problem, bytes(torn.line)) == ("torn", b'{"type":"task-sta')
    states = {row.uuid: row.state for row in spark.read.parquet(f"file://{output}/runs").collect()}
    assert states == {uuid: run.state for uuid, run in reference.items()}
    page = report.read_text(encoding="utf-8")
    assert page == (output / "report.html").read_text(encoding="utf-8")
    assert "history@1" in page
    left = sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".out"))
    assert left == [".out.staging-lock"]

    # The open segment of one node is closed; later, while the stream looks for more, that of another: each is added.
    os.rename(f"{paths[1]}/current.jsonl", f"{paths[1]}/00000002.jsonl")
    with following(tmp_path, paths[1:], output) as until:
        assert "history: 1 journal segments to read" in "".join(until("history: done in"))
        os.rename(f"{paths[2]}/current.jsonl", f"{paths[2]}/00000002.jsonl")
        assert "history: 1 journal segments to read" in "".join(until("history: done in"))
    assert {name: spark.read.parquet(f"file://{output}/{name}").count() for name in TABLES} == counts
    closed = {json.loads(line)[0] for line in (output / LIST).read_text().splitlines()}
    assert {f"{paths[1]}/00000002.jsonl", f"{paths[2]}/00000002.jsonl"} <= closed


def test_nothing_to_read_is_one_sentence_and_exit_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert job.main(["--journals", str(tmp_path / "none"), "--output", str(tmp_path / "out")]) == 1
    assert "no journal segments (*.jsonl, *.jsonl.gz)" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def executors_elsewhere(tmp_path: Path) -> list[str]:
    """Options for executors of another machine: in a mount namespace of their own, "here" is another disk."""
    java = shutil.which("java") or ""
    home = tmp_path / "java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(
        f'#!/bin/sh\nexec unshare -m sh -c \'mount -t tmpfs none {tmp_path}/here && exec "$@"\' - {java} "$@"\n'
    )
    (home / "bin" / "java").chmod(0o755)
    settings = {
        "spark.executorEnv.JAVA_HOME": str(home),
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(tmp_path / "local"),
        # A file system that all of them have.
        "spark.hadoop.fs.viewfs.mounttable.shared.link./journals": f"file://{tmp_path}/journals",
    }
    return ["--master", "local-cluster[1,1,512]", *(f"--conf={name}={value}" for name, value in settings.items())]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: another disk is mounted")
def test_an_output_that_executors_write_elsewhere_is_not_published_empty(tmp_path: Path) -> None:
    """Spark succeeds: each executor has written to its own disk. The report said that nothing was launched."""
    busy_day(seed=21, runs=2).write(str(tmp_path / "journals"))
    (tmp_path / "here").mkdir()
    argv = command(["viewfs://shared/journals/edge-*"], str(tmp_path / "here" / "out"))
    argv[1:3] = executors_elsewhere(tmp_path)
    done = submitted(tmp_path, argv)
    told = done.stdout + done.stderr[-3000:]
    assert not (tmp_path / "here" / "out").exists(), told
    assert done.returncode == 1, told
    assert re.search(
        rf"history: {tmp_path}/here: expected the [1-9]\d* rows that Spark's executors wrote there, found 0: they"
        " write to disks that the driver does not see; give an --output on a file system that",
        told,
    )


def test_a_failure_of_spark_is_a_sentence_and_exit_1(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    for journals, said in (("nosuch://place/j", 'No FileSystem for scheme "nosuch"'), ("file1://a", "file1")):
        assert job.main(["--journals", journals, "--output", str(tmp_path / "out")]) == 1
        lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("history: ")]
        assert len(lines) == 1
        assert lines[0].startswith("history: Spark failed: ")
        assert said in lines[0]
    assert not (tmp_path / "out").exists()
    assert spark.range(1).count() == 1, "the session of another one goes on"


def test_a_report_elsewhere_is_refused_before_anything_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ["--journals", str(tmp_path), "--output", str(tmp_path / "out"), "--report", "s3a://bucket/report.html"]
    assert job.main(options) == 1
    assert "--report s3a://bucket/report.html: expected a local path" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--stream", "now", "--rebuild"], "--rebuild: a stream reads what is new"),
        (["--stream", "0"], "--stream: expected now, or a number of seconds from 1 to 86400, found '0'"),
        (["--stream", "nan"], "--stream: expected now, or a number of seconds from 1 to 86400, found 'nan'"),
        (["--keep-days", "-1"], "--keep-days: expected a number of days from 0 (keep all) to 36500, found '-1'"),
        (
            ["--keep-days", "800000"],
            "--keep-days: expected a number of days from 0 (keep all) to 36500, found '800000'",
        ),
        (["--keep-days", "9" * 5000], "--keep-days: expected a number of days from 0 (keep all) to 36500, found '999"),
        (["--clock-skew-s", "nan"], "--clock-skew-s: expected a number of seconds, 0 or more, found 'nan'"),
        (["--clock-skew-s", "-1"], "--clock-skew-s: expected a number of seconds, 0 or more, found '-1'"),
        (["--clock-skew-s", "inf"], "--clock-skew-s: expected a number of seconds, 0 or more, found 'inf'"),
        (["--pause-s", "x"], "--pause-s: expected a number of seconds, 0 or more, found 'x'"),
    ],
)
def test_options_that_would_lose_rows_are_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        job.parse(["--journals", "j", "--output", "o", *options])
    assert said in capsys.readouterr().err


def test_it_imports_nothing_of_the_daemon() -> None:
    code = (
        "import sys; import coordd.history.job;"
        "print(sorted({'trio', 'structlog', 'click', 'coordd.daemon', 'coordd.config.settings'} & set(sys.modules)))"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(DRIVER)))
    environ = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
