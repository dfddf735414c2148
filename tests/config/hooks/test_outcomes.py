"""Sinks of outcomes: [sink.NAME] in coordd.toml, [[sink]] in a job file; what is read, refused, and what it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from plugins.written import written

from config.written import refused, write
from coordd.config.hooks.hook import of_lineage
from coordd.config.hooks.sink import SinkHook, shown
from coordd.config.hooks.sinks import sinks_of
from coordd.config.jobfile import load_job
from coordd.config.settings import load
from coordd.core.jobs.arguments import fill_launch
from coordd.core.jobs.job import Command, Job

JOB = '[command]\nargv = ["/bin/true"]\n'
WEB = '[sink.web]\nto = "https://receiver.example/outcomes"\n'


def job_of(tmp_path: Path, text: str, config: str = "") -> tuple[Job | None, list[str]]:
    job, problems = load_job(
        write(tmp_path / "etl.toml", JOB + text), load(write(tmp_path / "coordd.toml", config), {})
    )
    return job, [str(problem) for problem in problems]


def test_sections_and_what_job_files_add_to_them(tmp_path: Path) -> None:
    text = '[sink.q]\nto = "amqp://localhost/?queue=q"\non = "failure"\njobs = ["etl-*"]\n'
    text += '[sink.none]\nto = "file:///o/"\njobs = []\n'
    config = load(write(tmp_path / "coordd.toml", WEB + text), {})
    own = '[[sink]]\nto = "parquet:///o"\non = "success"\n[[sink]]\nto = "none"\n'
    one, problems = job_of(tmp_path, own, WEB + text)
    assert problems == []
    assert one is not None
    two = msgspec.structs.replace(one, name="other", sinks=one.sinks[:1])

    web, queue, none, parquet = sinks_of(config, {"etl": one, "other": two})

    assert (web.title, web.job_name, web.attempts) == ("web", "hook~sink.web", 8)
    assert [web.takes("run.success", "etl", ended=True), web.takes("run.lost", "etl", ended=False)] == [True, False]
    assert [queue.takes("run.failure", job, ended=True) for job in ("etl-1", "etl")] == [True, False]
    assert not queue.takes("run.success", "etl-1", ended=True)
    receiver = of_lineage("https://lineage.example/", "prod", "")
    assert [receiver.takes("run.lost", "etl", ended=ended) for ended in (True, False)] == [True, False]
    assert [none.takes("run.missed", job, ended=True) for job in ("etl", "other")] == [True, False]
    assert (parquet.to, parquet.jobs, parquet.on) == ("parquet:///o", frozenset(("etl", "other")), ("run.success",))
    assert sinks_of(config, {"etl": one})[3].digest == parquet.digest


def test_the_job_that_a_sink_is(tmp_path: Path) -> None:
    text = '[sink.r]\nto = "redis://u@localhost/1?hash=h"\nattempts = 2\ndelay = 1\ntimeout = "5s"\n'
    (sink,) = load(write(tmp_path / "coordd.toml", text), {}).sinks
    job = sink.job(60.0)

    assert (job.retry.attempts, job.retry.delay_s, job.retry.backoff, job.timeout_s) == (2, 1.0, "exponential", 35.0)
    filled = fill_launch(job.launch, {"event": "{}"})
    assert isinstance(filled, Command)
    assert json.loads(filled.env["COORDD_HOOK_SECRET"]) == {
        "name": "r", "to": sink.to, "timeout_s": 5.0, "password_file": "", "token_file": "", "tls_ca": "",
    }  # fmt: skip
    assert "u@" in sink.to
    assert len({sink.digest, *[msgspec.structs.replace(sink, **one).digest for one in CHANGES]}) == len(CHANGES) + 1


CHANGES: list[dict[str, Any]] = [
    {"to": "file:///o"}, {"on": ("run.failure",)}, {"args": True}, {"password_file": "/p"}, {"token_file": "/t"},
    {"tls_ca": "/c"}, {"attempts": 3}, {"delay": "2s"}, {"timeout": "6s"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[sink]]\n", "expected [sink.NAME], a table for each sink; [[sink]] is for job files"),
        ("[sink.a]\n", "sink.a.to: expected an address, found none"),
        ('[sink.a]\nto = "kafka://b/x"\n', "expected an address that begins with one of file://, parquet://, http://"),
        ('[sink.a]\nto = "plugin://a b/x"\n', "expected an address without spaces"),
        ('[sink.a]\nto = "plugin:///x"\n', "expected the name of an entry point, such as plugin://NAME/"),
        (
            '[sink.a]\nto = "plugin://nobody/x"\n',
            'expected a sink, found the text "nobody", which no installed package',
        ),
        ('[sink.a]\nto = "file://o"\n', "expected an absolute path, such as file:///srv/outcomes.jsonl"),
        ('[sink.a]\nto = "amqp://localhost/"\n', "expected ?queue=… or ?exchange=…&routing_key=…"),
        ('[sink.a]\nto = "amqp://localhost/?queue=a&exchange=b"\n', "expected ?queue=…"),
        ('[sink.a]\nto = "redis://localhost/x?stream=a"\n', "expected the number of a database"),
        ('[sink.a]\nto = "redis://localhost:0?stream=a"\n', "expected a host"),
        ('[sink.a]\nto = "https://u:p@h/x"\n', "expected an address without a password"),
        ('[sink.a]\nto = "amqp://h.example?queue=a"\n', "is not encrypted"),
        ('[sink.a]\nto = "file:///o"\non = "ended"\n', "sink.a.on: expected"),
        ('[sink.a]\nto = "file:///o"\ntoken_file = "/t"\n', "sink.a.token_file: file:// has no use for it"),
        ('[sink.a]\nto = "https://h/"\ntoken_file = "/nowhere"\n', "/nowhere: it cannot be read"),
        ('[sink.a]\nto = "file:///o"\nattempts = 0\n', "sink.a.attempts"),
        ('[sink.a]\nto = "file:///o"\ndelay = "2h"\n', "sink.a.delay: expected a duration up to an hour"),
        ('[sink."a b"]\nto = "file:///o"\n', "expected 1 to 64 of the characters"),
        ('[sink.a]\nto = "file:///o"\nformat = "x"\n', 'unknown key "format"'),
        ('[[hook]]\non = ["takeover"]\nargv = ["/x"]\nname = "sink.a"\n', "are those of sinks; choose another"),
    ],
)
def test_what_is_refused_in_the_configuration(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(write(tmp_path / "coordd.toml", text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[sink]]\n", "sink 1: to: expected an address, or the name of a [sink.NAME], found nothing"),
        ('[[sink]]\nto = "wab"\n', 'sink 1: to: there is no [sink.wab] in coordd.toml; did you mean "web"?'),
        ('[[sink]]\nto = "web"\non = "done"\n', "on and args of a sink by name are those of [sink.web]"),
        ('[[sink]]\nto = "rediss://u:p@h?stream=s"\n', "expected an address without a password"),
        ('[[sink]]\nto = "redis://far.example?stream=s"\n', "is not encrypted"),
        ('[sink]\nto = "file:///o"\n', "expected [[sink]], a list of tables"),
        ('[[sink]]\nto = "file:///o"\n' * 21, "expected at most 20 sinks, found 21"),
    ],
)
def test_what_is_refused_in_a_job_file(tmp_path: Path, text: str, problem: str) -> None:
    job, problems = job_of(tmp_path, text, WEB)

    assert job is None
    assert problem in problems[0]


def test_the_sink_of_a_package_is_found_and_its_runs_find_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(written(tmp_path / "site", "coordd.sinks", "", "here")))
    monkeypatch.setenv("PYTHONPATH", "/site/{x}")
    text = '[sink.a]\nto = "plugin://here/DB?table=ends"\n[sink.b]\nto = "file:///o"\n'
    plugged, other = load(write(tmp_path / "coordd.toml", text), {}).sinks

    launch = plugged.job(60.0).launch
    assert isinstance(launch, Command)
    assert launch.env["PYTHONPATH"] == "/site/{{x}}"
    assert plugged.to == "plugin://here/DB?table=ends"
    launch = other.job(60.0).launch
    assert isinstance(launch, Command)
    assert "PYTHONPATH" not in launch.env


def test_parquet_without_its_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordd.config.hooks.sinks.find_spec", lambda _: None)

    text = write(tmp_path / "coordd.toml", '[sink.a]\nto = "parquet:///o"\n')
    assert "parquet:// needs the package pyarrow, which is not installed" in refused(text)


def test_passwords_and_addresses_are_not_shown(tmp_path: Path) -> None:
    text = '[sink.a]\nto = "https://h.example/x/abc?y=abc"\n'
    config = load(write(tmp_path / "coordd.toml", text), {})

    assert config.redacted()["sinks"][0]["to"] == "https://h.example/***"
    assert "abc" not in config.sinks[0].job(60.0).description
    assert shown("https://h.example?abc") == "https://h.example***"
    assert shown("redis://u@h/0?stream=s") == "redis://u@h/0?stream=s"


def test_a_sink_of_a_job_is_part_of_its_definition(tmp_path: Path) -> None:
    plain, _ = job_of(tmp_path, "")
    sent, _ = job_of(tmp_path, '[[sink]]\nto = "file:///o"\n')

    assert plain is not None
    assert sent is not None
    assert plain.digest != sent.digest
    assert isinstance(sinks_of(load(None, {}), {"etl": sent})[0], SinkHook)
