"""Which files of a job are missing here: those that its programs' user needs may be closed to the daemon's."""

from __future__ import annotations

import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordd.adapters import onhost
from coordd.core.jobs.job import Command, Job, SparkSubmit


def seen_by_daemon(job: Job) -> str:
    """What a daemon sees that is not root."""
    return onhost.as_user(pwd.getpwnam("nobody"), lambda: onhost.absent_file(job))


def spark(path: Path, key: str, run_as: str) -> Job:
    files = {"application": "local:///a.py", "keytab": "", "properties_file": "", key: str(path)}
    launch = SparkSubmit(
        application=files["application"], keytab=files["keytab"], properties_file=files["properties_file"]
    )
    return Job(name="j", digest="d", launch=launch, run_as=run_as)


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory that only its owner may enter. Others may enter the one above it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        above = Path(name)
        above.chmod(0o755)
        path = above / "home"
        path.mkdir(0o700)
        yield path


def test_a_file_that_only_the_jobs_user_reads_is_no_problem(closed: Path) -> None:
    for path in (closed / "etl.keytab", closed.parent / "etl.keytab"):
        path.touch(0o600)
        for key in ("application", "keytab"):
            assert seen_by_daemon(spark(path, key, run_as="etl")) == ""
            assert str(path) in seen_by_daemon(spark(path, key, run_as=""))


def test_a_program_that_only_the_jobs_user_may_execute_is_no_problem(closed: Path) -> None:
    program = closed.parent / "program"
    program.touch(0o700)
    launch = Command((str(program),))
    assert seen_by_daemon(Job(name="j", digest="d", launch=launch, run_as="etl")) == ""
    assert "not executable" in seen_by_daemon(Job(name="j", digest="d", launch=launch))


def test_what_is_not_there_and_what_the_daemon_reads_itself_is_a_problem(closed: Path) -> None:
    assert "is not there" in seen_by_daemon(spark(closed.parent / "none", "keytab", run_as="etl"))
    program = Command((str(closed.parent / "none"),))
    assert "is not there" in seen_by_daemon(Job(name="j", digest="d", launch=program, run_as="etl"))
    properties = closed.parent / "p.conf"
    properties.touch(0o600)
    assert "cannot be read" in seen_by_daemon(spark(properties, "properties_file", run_as="etl"))
