"""`dedupe` in a job file: the readers, the checks beside other keys, and its place in the definition."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.written import write
from coordd.config.jobfile import load_job
from coordd.config.settings import load
from coordd.core.jobs.job import Dedupe, Job

JOB = '[params]\ncustomer = ""\n[command]\nargv = ["/bin/true"]\n'


def read(tmp_path: Path, said: str, more: str = "") -> tuple[Job | None, str]:
    job, problems = load_job(write(tmp_path / "etl.toml", f"dedupe = {said}\n{JOB}{more}"), load(None, {}))
    return job, str(problems)


@pytest.mark.parametrize(
    ("said", "dedupe"),
    [
        ('"{customer}"', Dedupe("{customer}")),
        ('{ key = "x-{customer}", then = "refuse" }', Dedupe("x-{customer}", 0.0, "refuse")),
        ('{ key = "all", period = "1h" }', Dedupe("all", 3600.0)),
    ],
)
def test_the_forms(tmp_path: Path, said: str, dedupe: Dedupe) -> None:
    job, _ = read(tmp_path, said)

    assert job is not None
    assert job.dedupe == dedupe
    assert job.digest != (load_job(write(tmp_path / "etl.toml", JOB), load(None, {}))[0] or job).digest


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ('"all"', "expected a template that names a parameter, or a period"),
        ('"{who}"', 'there is no param "who"'),
        ('"{customer}-{date}"', "{date} is set only when a run is launched, too late for this"),
        ('"{customer"', "key: a single"),
        ("5", "expected a text, found the number 5"),
        ('{ period = "1h" }', "key, period, then }, found"),
        ('{ key = "{customer}", within = "1h" }', "key, period, then }, found"),
        ('{ key = "{customer}", period = "0s" }', "expected a duration above zero"),
        ('{ key = "{customer}", period = "99d" }', "shorter than the time for which the ledger keeps runs"),
        ('{ key = "{customer}", then = "drop" }', "expected"),
    ],
)
def test_bad_ones_are_refused(tmp_path: Path, said: str, problem: str) -> None:
    job, problems = read(tmp_path, said)

    assert job is None
    assert problem in problems


def test_a_period_beside_a_trigger_is_refused(tmp_path: Path) -> None:
    more = '[[trigger]]\nkind = "command"\nargv = ["/bin/true"]\n'

    assert read(tmp_path, '"{customer}"', more)[0] is not None
    assert "period cannot stand beside [[trigger]]" in read(tmp_path, '{ key = "{customer}", period = "1h" }', more)[1]
