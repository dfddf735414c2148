"""coordd.single and coordd.client on real daemons: plain code, asyncio and trio."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from coordd import client, guard
from coordd.errors import LeaseLostError, NotElectedError
from coordd.single import Held, single
from system.lab.cluster import Node, cluster_of
from system.lab.processes import LIMIT_S, ROOT, exists, until

BACKENDS = ("asyncio", "trio")

# A process that enters a block. Its arguments: how it waits, the file that it writes to, and the file that ends it.
BLOCK = """
import os, sys, time
from coordd.single import single
how, log, go = sys.argv[1:4]
def body(held):
    with open(log, "a") as file:
        file.write(f"start {held.attempt} {os.environ['NODE']} {os.getpid()}\\n")
    while not os.path.exists(go):
        if how == "hold": time.sleep(0.02)
        else: (lambda: [None for _ in range(1000)])()
    with open(log, "a") as file:
        file.write(f"end {held.attempt} {os.environ['NODE']} {os.getpid()}\\n")
try:
    with single("block", id="1") as held:
        body(held)
except Exception as exc:
    sys.exit(type(exc).__name__)
"""


def here(node: Node, name: str, **options: Any) -> single:
    return single(name, socket=str(node.socket), **options)


def process(node: Node, log: Path, go: Path, how: str = "hold") -> subprocess.Popen[bytes]:
    env = {"PYTHONPATH": str(ROOT), "COORDD_SOCKET": str(node.socket), "PATH": "/usr/bin:/bin", "NODE": node.name}
    return subprocess.Popen([sys.executable, "-c", BLOCK, how, str(log), str(go)], env=env, stderr=subprocess.PIPE)


def lines(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def said(one: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, err = one.communicate(timeout=LIMIT_S)
    return one.returncode, err.decode().strip()


def test_plain_code_runs_once() -> None:
    with cluster_of(2) as cluster:
        one, two = cluster.start().nodes
        seen: list[Held] = []

        @here(one, "f", id="1")
        def function(number: int) -> int:
            """Documented."""
            with here(two, "lock", id="other") as held:
                assert held is not None
                seen.append(held)
            return number + 1

        assert (function(1), function.__doc__) == (2, "Documented.")
        with pytest.raises(NotElectedError, match="success"):
            function(1)
        with here(two, "f", id="1", skip=True) as held:
            assert held is None
        with pytest.raises(ZeroDivisionError), here(two, "g", id="1") as held:
            assert held is not None
            assert held.run == "g#1"
            assert cluster.row("g#1")["state"] == "started"
            with pytest.raises(NotElectedError), here(one, "g", id="2"), here(two, "h"), here(one, "h"):
                pass
            1 / 0  # noqa: B018 - it raises
        row = cluster.row("g#1")
        assert (row["state"], row["reason"]) == ("failure", "exit code 1: ZeroDivisionError")
        assert (seen[0].run, seen[0].attempt) == ("lock#other", 0)


def test_a_block_publishes_by_its_own_environment(tmp_path: Path) -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.start().nodes
        target = str(tmp_path / "target")
        with here(node, "block", id="1") as held:
            assert held is not None
            assert guard.still_owner(environ=held.environ)
            staged = Path(guard.staging(target, environ=held.environ))
            staged.write_text("new")
            (done,) = guard.publish(str(staged), target, environ=held.environ)
            assert (done.how, done.token) == ("now", held.token)
        assert guard.still_owner(1.0, environ=held.environ) is False
        row = cluster.row("block#1")
        assert (row["state"], row["commit_token"]) == ("success", held.token)


@pytest.mark.parametrize("backend", BACKENDS)
def test_coroutines_run_once(backend: str) -> None:
    with cluster_of(2) as cluster:
        one, two = cluster.start().nodes
        entered: list[str] = []

        async def main() -> None:
            @here(two, "f", every="1h", skip=True)
            async def second() -> str:
                entered.append("second")
                return "second"

            async def first() -> None:
                async with here(one, "f", every="1h") as held:
                    assert held is not None
                    entered.append("first")
                    begun.set()
                    async with client.connect(one.socket) as coordd:
                        runs = await coordd.run_list(job="f")
                        assert [(run["id"], run["state"]) for run in runs] == [(held.run, "started")]

            begun = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(first)
                await begun.wait()
                assert await second() is None

        anyio.run(main, backend=backend)
        assert entered in (["first"], ["first", "second"]), "the hour may just have begun"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_that_is_cancelled_cancels_its_code(backend: str) -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.start().nodes

        async def main() -> None:
            async with here(node, "f", id="1") as held:
                assert held is not None
                node.call("run.cancel", id="f#1")
                await anyio.sleep(LIMIT_S)

        with pytest.raises(LeaseLostError, match="f#1"):
            anyio.run(main, backend=backend)
        assert cluster.row("f#1")["state"] == "revoked"


def test_a_caller_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.start().nodes

        async def main() -> None:
            with here(node, "f", id="1"), anyio.move_on_after(0.3):
                async with here(node, "f", id="1"):
                    raise AssertionError("it was entered twice")

        anyio.run(main)
        assert cluster.row("f#1")["state"] == "success"


def test_another_machine_takes_over_from_one_that_dies(tmp_path: Path) -> None:
    with cluster_of(2) as cluster:
        log, go = tmp_path / "log", tmp_path / "go"
        callers = {node.name: process(node, log, go) for node in cluster.start().nodes}
        owner = until(lambda: lines(log))[0][2]
        callers[owner].kill()
        heir = until(lambda: lines(log)[1:])[0]
        go.touch()

        assert (heir[1], said(callers[heir[2]])) == ("1", (0, ""))
        assert said(callers[owner])[0] == -signal.SIGKILL
        assert [line[0] for line in lines(log)] == ["start", "start", "end"]


@pytest.mark.parametrize("victim", ["keeper", "keeper stopped", "daemon"])
def test_code_that_does_not_stop_is_killed_before_its_lease_ends(tmp_path: Path, victim: str) -> None:
    with cluster_of(2) as cluster:
        log, go = tmp_path / "log", tmp_path / "go"
        callers = {node.name: process(node, log, go, "busy") for node in cluster.start().nodes}
        _, _, owner, pid = until(lambda: lines(log))[0]
        path = Path(f"/proc/{pid}/task/{pid}/children")
        (keeper,) = [int(child) for child in path.read_text().split()]
        if victim == "daemon":
            cluster.node(owner).kill()
        else:
            os.kill(keeper, signal.SIGSTOP if "stopped" in victim else signal.SIGKILL)
        heir = until(lambda: lines(log)[1:])[0]

        assert not exists(int(pid)), "it was dead before the other began"
        go.touch()
        assert (heir[1], said(callers[heir[2]])) == ("1", (0, ""))
        if victim == "keeper stopped":
            os.kill(keeper, signal.SIGKILL)
        assert said(callers[owner])[0] == -signal.SIGKILL
        if victim == "daemon":  # the keeper would repeat its report
            os.kill(keeper, signal.SIGKILL)


def test_without_a_daemon_nothing_is_entered(tmp_path: Path) -> None:
    with cluster_of(1) as cluster:
        log = tmp_path / "log"

        assert said(process(cluster.nodes[0], log, tmp_path / "go")) == (1, "UnavailableError")
        assert lines(log) == []
