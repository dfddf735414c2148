"""What check-config says of params, and of what names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.written import write
from coordd.config.jobfile import load_job
from coordd.config.settings import load

TRIGGER = '[[trigger]]\nkind = "command"\nargv = ["/bin/true"]\nargs = { ev = "{trigger.key}" }\n'


def told(tmp_path: Path, text: str) -> list[str]:
    path = write(tmp_path / "etl.toml", text)
    _, problems = load_job(path, load(None, {}))
    return [f"{problem.key}: {problem.message}" for problem in problems]


@pytest.mark.parametrize("wrong", ['{ date = "x", ev = "" }', "5", '{ "a b" = "" }'])
def test_nothing_follows_from_params_that_cannot_be_used(tmp_path: Path, wrong: str) -> None:
    """Each name that a template has was said to be not declared."""
    limits = 'concurrency = { max = 2, per = "{ev}" }\noverlap = "allow"\ndedupe = "{ev}"\n'
    command = '[command]\nargv = ["/bin/echo", "{ev}"]\n'
    (only,) = told(tmp_path, f"params = {wrong}\n{limits}{command}{TRIGGER}")
    assert only.startswith("params: ")


def test_nothing_follows_from_an_expand_that_cannot_be_used(tmp_path: Path) -> None:
    (only,) = told(tmp_path, 'expand = { day = [] }\n[command]\nargv = ["/bin/echo", "{day}"]\n')
    assert only.startswith("expand: ")


def test_a_key_without_schedule_says_how_the_job_runs(tmp_path: Path) -> None:
    command = '[command]\nargv = ["/bin/true"]\n'
    jitter = 'jitter = "1m"\n'
    assert told(tmp_path, jitter + command) == [
        "jitter: jitter has no effect without schedule: the job runs by hand only"
    ]
    (after,) = told(tmp_path, jitter + 'after = ["other"]\n' + command)
    assert "the job runs after its parents" in after
    (triggered,) = told(tmp_path, jitter + 'params = { ev = "" }\n' + command + TRIGGER)
    assert "when a trigger of its file starts it, or by hand" in triggered


def test_a_list_beside_tables_of_the_same_name_is_explained(tmp_path: Path) -> None:
    (only,) = told(tmp_path, 'check = ["room"]\n[[check]]\nname = "w"\n')
    assert "a file has either NAME = [...] or [[NAME]], not both" in only
