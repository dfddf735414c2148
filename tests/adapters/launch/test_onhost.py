"""Which files of a job are missing here: those that its programs' user needs may be closed to the daemon's."""

from __future__ import annotations

import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from support.small_cluster import Lone

from coordd.adapters import onhost
from coordd.adapters.spark import SparkDefaults, command_problem
from coordd.cli.checking import of_machine
from coordd.config.jobfile import JobSet
from coordd.config.sections import Config, SparkConfig
from coordd.core.jobs.job import Command, Job, SparkSubmit
from coordd.launching import LaunchBuilder
from coordd.services.checks.startable import Startable


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


def named(
    closed: Path, *, env: dict[str, str] | None = None, site: str = "", run_as: str = "", name: str = "etl"
) -> str:
    """What a daemon sees that is not root."""
    launch = Command((name,), env=env or {})
    defaults = SparkDefaults(env={"PATH": site} if site else {})
    daemon = {"PATH": f"{closed.parent}/none:{closed.parent}"}
    return onhost.as_user(pwd.getpwnam("nobody"), lambda: command_problem(launch, run_as, defaults, daemon))


def test_a_program_named_without_a_directory_is_looked_for_where_the_runner_looks(closed: Path) -> None:
    program = closed.parent / "etl"
    assert "etl" in named(closed)
    program.touch(0o755)
    assert named(closed) == ""
    assert f'"other" is in no directory of the PATH ({closed.parent}/none:{closed.parent})' in named(
        closed, name="other"
    )
    assert "is in no directory of the PATH (/usr/bin)," in named(closed, env={"PATH": "/usr/bin"})
    assert "is in no directory of the PATH (/usr/bin)," in named(closed, site="/usr/bin")
    assert named(closed, site="/usr/bin", env={"PATH": str(closed.parent)}) == ""
    assert "of the PATH (/a:/b:/c:/d and 2 more)," in named(closed, env={"PATH": "/a:/b:/c:/d:/e:/f"})
    program.chmod(0o644)
    assert "not executable" in named(closed)


def test_what_is_not_known_before_the_launch_is_no_problem(closed: Path) -> None:
    assert named(closed, name="{value}") == ""
    assert named(closed, name="bin/etl") == "", "below the directory that the run starts in"
    assert named(closed, env={"PATH": "{value}"}) == ""
    (closed / "etl").touch(0o755)
    assert named(closed, env={"PATH": str(closed)}) != ""
    assert named(closed, env={"PATH": str(closed)}, run_as="daemon") == "", "only that user may look there"


def test_each_node_knows_which_commands_it_cannot_start(tmp_path: Path) -> None:
    launches = {
        "bad": Command(("no-such-program",)),
        "good": Command(("true",)),
        "else": Command(("true",), {"PATH": "/"}),
    }
    jobs = [Job(name=name, digest="d", launch=launch) for name, launch in launches.items()]
    config = Config(spark=SparkConfig(env={"LANG": "C"}))
    builder = LaunchBuilder(config, Lone(*jobs).node, lambda *_: str(tmp_path), cast(Any, None))
    problems = Startable(builder.asking).take({job.name: job for job in jobs}, 60.0)
    assert set(problems) == {"bad", "else"}
    assert '"no-such-program" is in no directory' in problems["bad"]
    warned = of_machine(JobSet({job.name: job for job in jobs}), config)
    assert [(problem.severity, problem.file) for problem in warned] == [
        ("warning", f"{config.node.jobs_dir}/{name}.toml") for name in ("bad", "else")
    ]


def test_the_kernel_names_the_file_system_of_a_path_without_asking_it() -> None:
    mounts = ["/", "/mnt/nfs", "/mnt/nfs/deep", "/mnt/n"]
    assert onhost.place_of("/mnt/nfs/a/b.py", mounts) == onhost.place_of("/mnt/nfs/c.py", mounts) == "/mnt/nfs"
    assert onhost.place_of("/mnt/nfs/deep/a.py", mounts) == "/mnt/nfs/deep"
    assert onhost.place_of("/mnt/nfs2/a.py", mounts) == "/mnt/nfs2", "a directory of /, which may be a link"
    assert onhost.place_of("/a.py", []) == "/"
    assert {"/", "/proc"} <= set(onhost.mount_points())
