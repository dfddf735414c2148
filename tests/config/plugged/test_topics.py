"""[topic] of a job file: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugins.written import written

from config.written import write
from coordd.config.jobfile import load_job
from coordd.config.sections import Config
from coordd.core.jobs.arguments import fill_launch
from coordd.core.jobs.job import Command, Job

TOPIC = '[topic]\nname = "pack"\n'


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(written(tmp_path / "site", "coordd.topics", "", "pack")))


def job_of(tmp_path: Path, text: str) -> tuple[Job | None, list[str]]:
    job, problems = load_job(write(tmp_path / "etl.toml", text), Config())
    return job, [str(problem) for problem in problems]


def test_a_topic_has_arguments_from_the_run(tmp_path: Path) -> None:
    text = 'params = { region = "eu" }\n' + TOPIC + 'args = { where = "{region}/in", n = 3 }\ncwd = "/srv"\n'
    job, problems = job_of(tmp_path, text + 'memory = "1G"\nenv = { A = "{region}" }\n')
    assert problems == []
    assert job is not None
    assert job.launch == Command(("pack", "where={region}/in", "n=3"), {"A": "{region}"}, "/srv", True, 2**30)
    filled = fill_launch(job.launch, {"region": 'a" b'})
    assert filled == Command(("pack", 'where=a" b/in', "n=3"), {"A": 'a" b'}, "/srv", True, 2**30)


def test_a_job_has_another_digest_with_another_topic_or_limit(tmp_path: Path) -> None:
    texts = (TOPIC, TOPIC + 'memory = "1G"\n', '[command]\nargv = ["pack"]\n')
    assert len({job.digest for text in texts if (job := job_of(tmp_path, text)[0])}) == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("topic = 3\n", "topic: expected a table"),
        ("[topic]\n", "topic.name: expected the name of an entry point of the group coordd.topics, found nothing"),
        ('[topic]\nname = "pick"\n', 'expected a topic, found the text "pick", which no installed package brings'),
        (TOPIC + '[command]\nargv = ["/bin/true"]\n', "found [command] and [topic]"),
        (TOPIC + 'argv = ["x"]\n', 'unknown key "argv"'),
        (TOPIC + 'args = { "a=b" = "x" }\n', "topic.args: expected names of a letter"),
        (TOPIC + 'args = { a = "{x}" }\n', 'topic.args: "{x}" is not declared under params'),
        (TOPIC + 'env = { PATH = "{x}" }\n', "topic.env.PATH"),
        (TOPIC + 'memory = "1M"\n', "topic.memory: expected 64M to 64G"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, problem: str) -> None:
    job, problems = job_of(tmp_path, text)
    assert job is None
    assert problem in problems[0]
