"""The tests' own servers: the properties that a test needs when it kills one. No server outlives the tests."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import servers
from support.components import Component, MissingError, ensure, no_service_starts

LIMIT_S = 60.0

SERVE = """
import sys
from support import servers
one, other = servers.Redis(), servers.PortMapper()
one.start(), other.start()
print(one.pid, other.pid, flush=True)
sys.stdin.read()
"""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_server_that_was_killed_comes_back_on_its_port_with_its_data() -> None:
    with servers.redis() as server:
        port = server.port
        server.cli("SET", "key", "value")
        server.kill()
        assert not server.up
        server.start()
        assert (server.port, server.cli("GET", "key")) == (port, "value")
    assert not server.up
    assert not server.directory.exists()


def test_servers_do_not_outlive_the_tests_not_even_when_these_are_killed() -> None:
    tests = str(Path(__file__).parent)
    with subprocess.Popen(
        [sys.executable, "-c", SERVE], cwd=tests, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 2
        owner.kill()
    limit = time.monotonic() + LIMIT_S
    while not all(gone(pid) for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_a_server_that_does_not_start_says_why() -> None:
    server = servers.Redis(maxmemory_policy="nonsense")
    try:
        with pytest.raises(servers.ServerError, match=r"(?s)redis-server ended with 1:.*maxmemory-policy"):
            server.start()
    finally:
        server.close()


def test_two_runs_of_the_tests_never_get_the_same_port() -> None:
    ports = {servers.free_port() for _ in range(50)}

    assert len(ports) == 50


def test_a_component_that_cannot_be_installed_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Component("no-such-program", "no-such-package")
    monkeypatch.setattr("support.components.os.getuid", lambda: 1000)

    with pytest.raises(MissingError) as caught:
        ensure((absent, Component("sh", "dash")))

    text = str(caught.value)
    assert text == "no-such-program (Debian: apt-get install no-such-package); only root can install it"


def test_no_service_is_started_by_an_installation(tmp_path: Path) -> None:
    policy = tmp_path / "policy-rc.d"

    with no_service_starts(policy) as wrapped:
        assert subprocess.call([*wrapped, policy, "some-service", "start"]) == 101
    assert not policy.exists()

    policy.write_text("#!/bin/sh\nexit 0\n")  # this machine allows services to start
    policy.chmod(0o755)
    with no_service_starts(policy) as wrapped:
        assert subprocess.call([*wrapped, policy, "some-service", "start"]) == 101
        assert subprocess.call([policy, "some-service", "start"]) == 0, "for everybody else it is as it was"
