"""What a job file may say of keytab, principal and proxy_user, and of places by scheme."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config.jobfile import load_job
from coordd.config.sections import Config, SparkConfig

SPARK = '[spark]\napplication = "/opt/a.py"\n'


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ('keytab = "/k"\n', "spark.keytab", "name its principal too"),
        ('principal = "p@R"\n', "spark.principal", "name its keytab too"),
        (
            'proxy_user = "etl"\nconf = { "spark.kerberos.principal" = "p@R" }\n',
            "spark.proxy_user",
            "keytab (spark.kerberos.principal in conf): spark-submit refuses both",
        ),
    ],
)
def test_an_impossible_combination_is_refused_with_its_key(tmp_path: Path, text: str, key: str, said: str) -> None:
    (tmp_path / "j.toml").write_text(SPARK + text)
    job, [problem] = load_job(str(tmp_path / "j.toml"), Config())

    assert job is None
    assert (problem.key, problem.severity) == (key, "error")
    assert said in problem.message


@pytest.mark.parametrize(
    "text",
    [
        'keytab = "/k"\nconf = { "spark.kerberos.principal" = "p@R" }\n',
        'principal = "p@R"\nconf = { "spark.kerberos.keytab" = "/k" }\n',
        'keytab = "/k"\nproperties_file = "/p"\n',
    ],
)
def test_the_other_half_may_stand_in_conf_or_a_properties_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "j.toml").write_text(SPARK + text)

    assert load_job(str(tmp_path / "j.toml"), Config())[1] == []
    (tmp_path / "j.toml").write_text(SPARK + 'keytab = "/k"\n')
    assert load_job(str(tmp_path / "j.toml"), Config(spark=SparkConfig(properties_file="/p")))[1] == []


ALLOWED = Config(spark=SparkConfig(conf_allow=("spark.executor.*", "spark.sql.shuffle.partitions")))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('conf = { "spark.jars.packages" = "a:b:1" }\n', "spark.conf"),
        ('conf = { "spark.executor.memory" = "1g", "spark.executorenv.A" = "1" }\n', "spark.conf"),
        ('conf = { "spark.SQL.shuffle.partitions" = "1" }\n', "spark.conf"),
        ('properties_file = "/p"\n', "spark.properties_file"),
    ],
)
def test_a_job_sets_only_what_the_site_allows(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "j.toml").write_text(SPARK + text)
    job, [problem] = load_job(str(tmp_path / "j.toml"), ALLOWED)

    assert job is None
    assert (problem.key, problem.severity) == (key, "error")
    assert "[spark] conf_allow of coordd.toml lets job files set spark.executor.*" in problem.message
    assert load_job(str(tmp_path / "j.toml"), Config())[1] == []


def test_what_the_site_allows_is_set(tmp_path: Path) -> None:
    (tmp_path / "j.toml").write_text(
        SPARK + 'conf = { "spark.executor.memory" = "1g", "spark.sql.shuffle.partitions" = "8" }\n'
    )
    assert load_job(str(tmp_path / "j.toml"), ALLOWED)[1] == []


@pytest.mark.parametrize("text", ['keytab = "/k"\nprincipal = "p@R"\n', 'proxy_user = "etl"\n'])
def test_a_job_under_another_user_may_have_an_identity(tmp_path: Path, text: str) -> None:
    (tmp_path / "j.toml").write_text('run_as = "etl"\n' + SPARK + text)
    job, problems = load_job(str(tmp_path / "j.toml"), Config())

    assert problems == []
    assert job is not None
    assert job.run_as == "etl"


@pytest.mark.parametrize(
    ("places", "said"),
    [
        ('application = "foo:///a.py"\n', ["spark.application: no file system that Spark brings is called foo:"]),
        (
            'application = "HDFS://nn/a.py"\njars = ["/a.jar", "s3://b/a.jar", "hdsf:///b.jar"]\n',
            ["spark.jars: no file system that Spark brings is called hdsf:"],
        ),
        ('application = "foo:///a.py"\nconf = { "spark.hadoop.fs.foo.impl" = "org.Foo" }\n', []),
        ('application = "local:///a.py"\nfiles = ["gs://b/a", "abfss://c@d/a", "https://e/a"]\n', []),
    ],
)
def test_a_scheme_that_nobody_knows_is_warned_of(tmp_path: Path, places: str, said: list[str]) -> None:
    """Spark says so only when the job runs: the file passed without a word."""
    (tmp_path / "j.toml").write_text(f"[spark]\n{places}")
    job, problems = load_job(str(tmp_path / "j.toml"), Config())

    assert job is not None
    assert {problem.severity for problem in problems} <= {"warning"}
    found = [f"{problem.key}: {problem.message}" for problem in problems]
    assert len(found) == len(said)
    assert all(one.startswith(beginning) for one, beginning in zip(found, said, strict=True)), found
