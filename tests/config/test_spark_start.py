"""Keys of [spark] that say how its program is started: fast_start, pipeline, connect."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config.jobfile import load_job
from coordd.config.sections import Config
from coordd.core.jobs.job import SparkSubmit

SPARK = '[spark]\napplication = "/opt/a.py"\n'
PIPELINE = '[spark]\npipeline = "/s.yml"\n'

BAD = [
    # text, key, what else is said
    (SPARK + 'pipeline = "/s.yml"\n', "spark.pipeline", "found both: a run has one program"),
    ('[spark]\npipeline = "s.yml"\n', "spark.pipeline", "absolute path"),
    (PIPELINE + 'deploy_mode = "cluster"\nmaster = "yarn"\n', "spark.pipeline", 'needs deploy_mode = "client"'),
    (PIPELINE + 'class = "x.Y"\n', "spark.class", "a client in Python"),
    (PIPELINE + 'connect = "pool"\n', "spark.connect", "leave connect out"),
    (PIPELINE + 'conf."spark.connect.grpc.binding.port" = "7"\n', "spark.conf", "coordd sets it for each run"),
    (SPARK + 'connect = "yes"\n', "spark.connect", "pool"),
    ('[spark]\napplication = "/a.jar"\nconnect = "pool"\n', "spark.connect", 'found application "/a.jar"'),
    (SPARK + 'fast_start = true\ndeploy_mode = "cluster"\nmaster = "yarn"\n', "spark.fast_start", "Leave it out"),
]


@pytest.mark.parametrize(("text", "key", "said"), BAD)
def test_what_is_impossible_is_named(tmp_path: Path, text: str, key: str, said: str) -> None:
    (tmp_path / "j.toml").write_text(text)
    job, [problem] = load_job(str(tmp_path / "j.toml"), Config())
    assert job is None
    assert (problem.key, problem.severity) == (key, "error")
    assert said in problem.message


def test_a_class_path_that_keeps_java_from_the_archive_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "j.toml").write_text(f'{SPARK}fast_start = true\nconf."spark.driver.extraClassPath" = "/x.jar"\n')
    job, [problem] = load_job(str(tmp_path / "j.toml"), Config())
    assert job is not None
    assert (problem.key, problem.severity) == ("spark.fast_start", "warning")


def test_a_file_elsewhere_that_a_client_cannot_import_is_a_warning(tmp_path: Path) -> None:
    files = 'py_files = ["/opt/lib.zip", "hdfs:///lib/helper.py"]\n'
    (tmp_path / "j.toml").write_text(f'{SPARK}connect = "pool"\n{files}')
    job, [problem] = load_job(str(tmp_path / "j.toml"), Config())
    assert job is not None
    assert (problem.key, problem.severity) == ("spark.py_files", "warning")
    assert 'found "hdfs:///lib/helper.py"' in problem.message
    (tmp_path / "j.toml").write_text(SPARK + files)
    assert load_job(str(tmp_path / "j.toml"), Config())[1] == []


@pytest.mark.parametrize(
    ("text", "launch"),
    [
        (f"{SPARK}fast_start = true\n", SparkSubmit("/opt/a.py", fast_start=True)),
        (f'{SPARK}connect = "pool"\n', SparkSubmit("/opt/a.py", connect="pool")),
        (f'{PIPELINE}args = ["--refresh", "a"]\n', SparkSubmit(pipeline="/s.yml", args=("--refresh", "a"))),
    ],
)
def test_they_are_read(tmp_path: Path, text: str, launch: SparkSubmit) -> None:
    (tmp_path / "j.toml").write_text(text)
    job, problems = load_job(str(tmp_path / "j.toml"), Config())
    assert problems == []
    assert job is not None
    assert job.launch == launch
