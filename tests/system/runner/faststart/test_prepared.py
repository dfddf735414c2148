"""Prepared servers of Spark Connect under the real runner: who has them, and when they end. A stand-in plays Spark."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordd.adapters.faststart.prepared import Prepared, new_directory
from coordd.adapters.spark import ProgramSpec
from coordd.launching import connect_argv
from coordd.runner.kernel import label_of
from system.lab.processes import exists, until
from system.lab.runner_lab import Attempt, World, kill, kill_together, world_in

# In place of spark-submit: it listens where it is told, prints a line when somebody connects, and ignores TERM.
SERVER = """#!{python}
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
port = int(sys.argv[2].partition("spark.connect.grpc.binding.port=")[2])
with open({directory!r} + "/server-" + str(os.getpid()), "w"):
    pass
listener = socket.create_server(("127.0.0.1", port))
while True:
    listener.accept()[0].close()
    print("somebody has connected", flush=True)
"""

# In place of a client: it says which server it has, and stays if it is told.
CLIENT = """
import os, socket, sys, time
port = int(os.environ["SPARK_REMOTE"].removeprefix("sc://localhost:").rstrip("/"))
socket.create_connection(("127.0.0.1", port)).close()
with open(sys.argv[1], "w") as file:
    print(port, len(os.environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"]), file=file)
if sys.argv[2] == "stay":
    time.sleep(600)
"""


class Site:
    """A world, a stand-in for Spark, and prepared servers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.path = world.path
        self.submit = str(world.path / "submit")
        Path(self.submit).write_text(SERVER.format(python=sys.executable, directory=str(world.path)))
        Path(self.submit).chmod(0o755)
        (world.path / "client.py").write_text(CLIENT)
        self.prepared: list[Prepared] = []
        self.wrapper = str(world.path / "wrapper")  # as a distribution has it, but without exec
        Path(self.wrapper).write_text(f'#!/bin/sh\n"{self.submit}" "$@"\nexit $?\n')
        Path(self.wrapper).chmod(0o755)

    def prepare(self) -> Prepared:
        directory = new_directory(str(self.path / "connect"))
        env = {"PATH": os.environ["PATH"]}
        server = Prepared(directory, [self.submit], env, "/bin/false", "a=b\n", f"{directory}/secrets.properties")
        self.prepared.append(server)
        until(lambda: server.ready)
        return server

    def servers(self) -> list[int]:
        """The servers that live."""
        return [pid for pid in (int(each.name.partition("-")[2]) for each in self.path.glob("server-*")) if exists(pid)]

    def start(self, given: dict[str, Any], then: str = "end") -> Attempt:
        spec, attempt = self.world.spec([])
        client = [sys.executable, str(self.path / "client.py"), str(attempt.out), then]
        argv = connect_argv(ProgramSpec([self.submit], {}, client=client), [self.submit])
        self.world.launcher.start({**spec, **given, "argv": argv})
        return attempt


@pytest.fixture(params=["with cgroups", "without cgroups"])
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Site]:
    with world_in(tmp_path, use_cgroups=request.param == "with cgroups") as world:
        site = Site(world)
        yield site
        for server in site.prepared:
            server.close()
        until(lambda: all(server.ended() for server in site.prepared))
        assert site.servers() == []
        assert os.listdir(site.path / "connect") == []


def test_an_attempt_takes_its_server_which_ends_with_it(site: Site) -> None:
    given = site.prepare().give()
    [server] = site.servers()
    attempt = site.start(given)
    row = attempt.over()
    log = Path(attempt.directory, "log").read_text()
    assert (row.state, row.exit_code) == ("success", 0), log
    assert attempt.lines()[1] == "64"
    assert len(list(site.path.glob("server-*"))) == 1, "the prepared server was used"
    assert "somebody has connected" in log, "what the server prints is in the log of the run"
    assert not exists(server), "it has ended before the runner did"


@pytest.mark.parametrize("victims", ["runner", "runner and watcher"])
def test_a_server_that_was_taken_never_outlives_its_attempt(site: Site, victims: str) -> None:
    given = site.prepare().give()
    attempt = site.start(given, "stay").begun()
    [server] = site.servers()
    for each in site.prepared:
        each.close()  # the daemon is gone
    time.sleep(0.3)
    assert exists(server), "a restart of the daemon does not touch it"
    if victims == "runner":
        kill(attempt.runner())
    else:
        kill_together(attempt.runner(), attempt.watcher())
    until(lambda: not exists(server))
    until(lambda: not site.world.launcher.alive(attempt.directory))


def test_a_server_whose_keeper_is_stopped_is_ended_as_any_process_of_the_attempt(site: Site) -> None:
    attempt = site.start(site.prepare().give(), "stay").begun()
    [server] = site.servers()
    limits = Path(f"/proc/{server}/limits").read_text()
    assert str(label_of(attempt.fact("adopted")["nonce"])) in limits
    cgroup = attempt.fact("adopted")["cgroup"]
    if cgroup:
        assert str(server) in Path(cgroup, "cgroup.procs").read_text().split()
    stat = Path(f"/proc/{server}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGSTOP)
    site.world.launcher.command(attempt.directory, "cancel", "not wanted")
    attempt.over(60.0)
    assert not exists(server)


def test_a_cancel_ends_the_server_too(site: Site) -> None:
    attempt = site.start(site.prepare().give(), "stay").begun()
    [server] = site.servers()
    site.world.launcher.command(attempt.directory, "cancel", "not wanted")
    attempt.over(60.0)
    assert not exists(server)


def test_a_server_that_is_gone_is_replaced_by_one_of_the_attempts_own(site: Site) -> None:
    given = site.prepare().give()
    kill(*site.servers())
    until(site.prepared[0].ended)
    row = site.start(given).over()
    assert (row.state, row.exit_code) == ("success", 0)
    assert len(list(site.path.glob("server-*"))) == 2


def test_a_server_that_nobody_takes_ends_with_the_daemon(site: Site) -> None:
    prepared = site.prepare()
    [server] = site.servers()
    mode = os.stat(prepared.directory).st_mode & 0o777
    assert mode == 0o700
    prepared.close()
    until(lambda: not exists(server))


def test_a_server_is_taken_once(site: Site) -> None:
    given = site.prepare().give()
    first = site.start(given, "stay").begun()
    second = site.start(given)
    assert second.over().state == "success"
    assert len(list(site.path.glob("server-*"))) == 2, "the second attempt has started one of its own"
    site.world.launcher.command(first.directory, "cancel", "over")
    first.over(60.0)


def test_a_wrapper_that_stays_beside_its_server_changes_nothing(site: Site) -> None:
    site.submit = site.wrapper
    unused = site.prepare()
    [server] = site.servers()
    unused.close()
    until(lambda: not exists(server), why="a server that nobody takes, below its wrapper")

    attempt = site.start(site.prepare().give(), "stay").begun()
    [server] = site.servers()
    assert str(label_of(attempt.fact("adopted")["nonce"])) in Path(f"/proc/{server}/limits").read_text()
    site.world.launcher.command(attempt.directory, "cancel", "not wanted")
    attempt.over(60.0)
    assert not exists(server)

    row = site.start({}).over(60.0)
    assert (row.state, row.exit_code) == ("success", 0), "a server of its own"
    assert site.servers() == []
