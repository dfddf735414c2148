"""[[hook]] in coordd.toml: what is read, what is refused, and the job that it becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from config.written import write
from coordd.config.hooks.events import EVENTS
from coordd.config.hooks.hook import Hook, jobs_of
from coordd.config.settings import load, read_config
from coordd.core.jobs.arguments import fill_launch
from coordd.core.jobs.job import HOOK, Command, jobs_digest

PAGE = 'on = ["run.failure"]\nargv = ["/usr/local/bin/page", "{event}"]\n'


def said(tmp_path: Path, text: str) -> list[str]:
    return [str(problem) for problem in read_config(write(tmp_path / "coordd.toml", text), {})[1]]


def read(tmp_path: Path, text: str) -> tuple[Hook, ...]:
    return load(write(tmp_path / "coordd.toml", text), {}).hooks


def test_what_is_read(tmp_path: Path) -> None:
    one, two, three = read(
        tmp_path,
        f'[[hook]]\n{PAGE}timeout = 5\n[[hook]]\non = ["run.*", "job.late"]\nurl = "https://chat.example/1"\n'
        '[[hook]]\nname = "own"\non = ["takeover"]\ncall = "site.hooks:Pager.page"\ntimeout = "2m"\n',
    )

    assert (one.argv, one.timeout_s) == (("/usr/local/bin/page", "{event}"), 5.0)
    assert (two.url, two.timeout_s) == ("https://chat.example/1", 30.0)
    assert (three.call, three.timeout_s, three.job_name) == ("site.hooks:Pager.page", 120.0, "hook~own")
    assert one.job_name.startswith(HOOK + "x")
    assert len({one.job_name, two.job_name, three.job_name}) == 3


def test_the_events_that_a_hook_wants() -> None:
    assert [event for event in EVENTS if Hook(on=("run.*",)).wants(event)] == [
        e for e in EVENTS if e.startswith("run.")
    ]
    assert [event for event in EVENTS if Hook(on=("job.late", "takeover")).wants(event)] == ["takeover", "job.late"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[hook]\n", "expected [[hook]], a list of tables"),
        ("[[hook]]\n", "hook 1: argv: expected one of argv, url and call, found none"),
        ('[[hook]]\nargv = ["/bin/x"]\n', "hook 1: on: expected a list of events, found none; known: run.success"),
        (f'[[hook]]\n{PAGE}url = "https://x"\n', "expected one of argv, url and call, found argv and url"),
        ('[[hook]]\non = ["run.failed"]\nargv = ["/bin/x"]\n', 'did you mean "run.failure"?'),
        ('[[hook]]\non = ["check.disk"]\nargv = ["/bin/x"]\n', 'expected events, found the text "check.disk"'),
        ('[[hook]]\non = ["takeover"]\nargv = ["page"]\n', "expected a program with its absolute path"),
        ('[[hook]]\non = ["takeover"]\nurl = "file:///etc/passwd"\n', "expected an address such as https://"),
        ('[[hook]]\non = ["takeover"]\nurl = "https://x/a b"\n', "expected an address without spaces"),
        ('[[hook]]\non = ["takeover"]\nurl = " https://x/a"\n', "expected an address without spaces"),
        ('[[hook]]\non = ["takeover"]\nurl = "https://x/\\u00a0"\n', "expected an address without spaces"),
        ('[[hook]]\non = ["takeover"]\nurl = "https://x/a\\nb"\n', "found the control character"),
        ('[[hook]]\non = ["takeover"]\ncall = "os.system"\n', "expected package.module:function"),
        (f'[[hook]]\n{PAGE}timeout = "2h"\n', "expected a duration up to 3600 s"),
        (f'[[hook]]\n{PAGE}timeout = "soon"\n', "timeout"),
        (f'[[hook]]\n{PAGE}name = "openlineage"\n', '"openlineage" is the name of [lineage]; choose another'),
        (f'[[hook]]\n{PAGE}name = "1000"\n', "expected a letter and up to 58"),
        (f"[[hook]]\n{PAGE}every = 1\n", 'unknown key "every"'),
        (f"[[hook]]\n{PAGE}[[hook]]\n{PAGE}", "hook 2: name: there is another hook"),
        (f"[[hook]]\n{PAGE}" * 51, "expected at most 50 hooks, found 51"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    (line,) = said(tmp_path, text)

    assert problem in line


def test_an_address_is_a_secret(tmp_path: Path) -> None:
    config_path = tmp_path / "coordd.toml"
    config_path.write_text('[[hook]]\non = ["takeover"]\nurl = "https://chat.example/SECRET"\n')

    assert "SECRET" not in json.dumps(load(str(config_path), {}).redacted())


def test_a_program_that_others_could_change_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "page"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o777)
    (line,) = said(tmp_path, f'[[hook]]\non = ["takeover"]\nargv = ["{program}"]\n')

    assert str(program) in line
    program.chmod(0o755)
    assert said(tmp_path, f'[[hook]]\non = ["takeover"]\nargv = ["{program}"]\n') == []


# ---- the job


def test_the_job_of_a_hook() -> None:
    hook = Hook(on=("run.failure",), argv=("/bin/page", "{event} {x}"), timeout="5s", name="page")
    (job,) = jobs_of([hook], 60.0).values()

    assert (job.name, job.waits, job.overlap, job.retry.attempts) == ("hook~page", True, "allow", 3)
    assert job.schedule is None
    assert job.timeout_s > hook.timeout_s
    document = '{"event": "run.failure", "reason": "{braces}"}'
    filled = fill_launch(job.launch, {"event": document})
    assert isinstance(filled, Command)
    assert json.loads(filled.env["COORDD_HOOK_SECRET"])["argv"] == ["/bin/page", "{event} {x}"]
    assert filled.env["COORDD_EVENT"] == document
    assert "page" not in " ".join(filled.argv), "everybody can read a command line"


@pytest.mark.parametrize(
    "changes", [{"argv": ("/bin/b",)}, {"on": ("takeover",)}, {"timeout": "1s"}, {"argv": (), "url": "http://x"}]
)
def test_the_digest_tells_different_hooks_apart(changes: dict[str, Any]) -> None:
    hook: dict[str, Any] = {"on": ("run.failure",), "argv": ("/bin/a",)}

    assert Hook(**hook).digest == Hook(**hook).digest
    assert Hook(**hook).digest != Hook(**{**hook, **changes}).digest


def test_hooks_are_no_difference_between_the_job_files_of_two_nodes() -> None:
    hooks = jobs_of([Hook(on=("takeover",), argv=("/bin/a",))], 60.0)
    etl = {"etl": msgspec.structs.replace(next(iter(hooks.values())), name="etl")}

    assert jobs_digest({**etl, **hooks}) == jobs_digest(etl) != ""
    assert jobs_digest(hooks) == jobs_digest({}) == ""
