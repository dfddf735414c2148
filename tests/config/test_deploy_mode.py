"""Job files whose drivers run on a cluster: which combinations are refused, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordd.config.jobfile import load_job
from coordd.config.sections import Config, GuardConfig, SparkConfig
from coordd.core.jobs.job import Job

SPARK = '[spark]\napplication = "/opt/a.py"\n'
CLUSTER = SPARK + 'deploy_mode = "cluster"\n'
STANDALONE = 'master = "spark://m:7077"\n'


def load(directory: Path, text: str, master: str = "local[*]") -> tuple[Job | None, list[tuple[str, str]]]:
    """The job, and the key and text of each problem."""
    path = directory / "j.toml"
    path.write_text(text)
    job, problems = load_job(str(path), Config(spark=SparkConfig(master=master)))
    return job, [(problem.key, problem.message) for problem in problems]


@pytest.mark.parametrize("master", ["yarn", "k8s://https://api.example:6443", "spark://m:7077"])
def test_a_lost_attempt_is_tried_again_where_its_application_can_be_looked_up(tmp_path: Path, master: str) -> None:
    given = CLUSTER.replace(".py", ".jar")
    for text, of_site in ((given + f'master = "{master}"\n', "local[*]"), (given, master)):
        job, problems = load(tmp_path, text, of_site)

        assert problems == []
        assert job is not None
        assert job.on_lost == "relaunch"


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (CLUSTER + 'master = "local[2]"\n', "spark.deploy_mode", 'with master "local[2]": name a master'),
        ('on_lost = "hold"\n' + CLUSTER, "spark.deploy_mode", 'with master "local[*]": name a master'),
        (CLUSTER + 'master = "mesos://m:5050"\n', "on_lost", 'master "mesos://m:5050" has none'),
        (
            CLUSTER.replace(".py", ".jar") + STANDALONE + 'conf = { "spark.driver.supervise" = "true" }\n',
            "spark.conf",
            "write attempts under [retry]",
        ),
        ('on_lost = "hold"\n' + CLUSTER + STANDALONE, "spark.deploy_mode", "refuses Python programs"),
        (
            CLUSTER + 'master = "k8s://https://api"\nconf = { "spark.kubernetes.driver.pod.name" = "x" }\n',
            "spark.conf",
            "coordd finds a run's driver by it",
        ),
        (SPARK + 'conf = { "spark.yarn.submit.waitAppCompletion" = "x" }\n', "spark.conf", "follows the application"),
    ],
)
def test_what_cannot_be_kept_is_refused(tmp_path: Path, text: str, key: str, said: str) -> None:
    job, [(found, why)] = load(tmp_path, text)

    assert job is None
    assert found == key
    assert said in why


def test_in_client_mode_on_kubernetes_a_job_names_the_pod_that_its_executors_belong_to(tmp_path: Path) -> None:
    text = SPARK + 'master = "k8s://https://api"\nconf = { "spark.kubernetes.driver.pod.name" = "edge-1" }\n'

    job, problems = load(tmp_path, text)

    assert (job is not None, problems) == (True, [])


@pytest.mark.parametrize(
    ("listen", "number", "is_refused"), [("", "2", False), ("h:1", "1", False), ("h:1", "2", True)]
)
def test_with_a_guard_yarn_starts_no_second_driver_by_itself(
    tmp_path: Path, listen: str, number: str, is_refused: bool
) -> None:
    path = tmp_path / "j.toml"
    path.write_text(CLUSTER + f'master = "yarn"\nconf = {{ "spark.yarn.maxAppAttempts" = "{number}" }}\n')
    job, problems = load_job(str(path), Config(guard=GuardConfig(listen=listen)))

    assert (job is None) == is_refused
    assert [problem.key for problem in problems] == ["spark.conf"] * is_refused
