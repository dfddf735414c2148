"""A node's warm parent is killed and stopped while the node launches: each run runs once, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from system.lab.cluster import Node, cluster_of
from system.lab.processes import exists, until, warm_parents

RUNS = 40


def warm_of(node: Node) -> int:
    """Wait until the node has a warm parent; returns its pid."""
    assert node.process is not None
    daemon = node.process.pid
    return next(iter(until(lambda: warm_parents(daemon), why=f"{node.name} has a warm parent")))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_waiting(warm: int) -> bool:
    """True if it has loaded everything, has shortened its command line, and sleeps."""
    state = Path(f"/proc/{warm}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S" and "...." not in Path(f"/proc/{warm}/cmdline").read_text()


@contextmanager
def harassed(node: Node, chance: random.Random) -> Iterator[list[int]]:
    """While this context is open, each warm parent of the node is killed or stopped after a few milliseconds. Yields
    the pids."""
    over = threading.Event()
    harmed: list[int] = []

    def harass() -> None:
        assert node.process is not None
        while not over.wait(chance.uniform(0.0, 0.05)):
            for pid in warm_parents(node.process.pid) - set(harmed):
                over.wait(chance.uniform(0.0, 0.3))
                os.kill(pid, chance.choice((signal.SIGKILL, signal.SIGSTOP)))
                harmed.append(pid)

    thread = threading.Thread(target=harass)
    thread.start()
    try:
        yield harmed
    finally:
        over.set()
        thread.join()


def test_a_warm_parent_that_is_killed_and_stopped_while_a_node_launches_costs_no_run() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.start()
        first = warm_of(node)
        with harassed(node, random.Random(7)) as harmed:
            runs = [str(node.call("run.trigger", job="hello", id=str(number))["id"]) for number in range(RUNS)]
            for run in runs:
                assert cluster.becomes(run, "success")["attempt"] == 0
        assert first in harmed
        assert sorted(entry.run for entry in cluster.starts()) == sorted(runs), "each run began once"
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"]
        assert "runner.warm_parent_lost" in node.log()
        assert "Traceback" not in node.log()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_daemon_that_ends_leaves_its_runs_and_no_warm_parent(how: str) -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        cluster.job("hello", "until", cluster.go("on"))
        cluster.start()
        warm = warm_of(node)
        until(lambda: is_waiting(warm), why="the warm parent waits for a request")
        run = str(node.call("run.trigger", job="hello", id="1")["id"])
        cluster.started(run)
        said = node.runner(run)
        assert parent_of(said["watcher"]) == warm
        if how == "stopped":
            node.stop()
        else:
            node.kill()
        until(lambda: not exists(warm), why="the warm parent is gone")
        assert exists(said["pid"])
        assert exists(said["watcher"])
        node.start()
        assert warm_of(node) != warm
        cluster.go("on").touch()
        assert cluster.becomes(run, "success")["attempt"] == 0


def test_without_fast_start_there_is_no_warm_parent() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        node.env["COORDD_NODE_FAST_START"] = "false"
        cluster.job("hello", "sleep", 0)
        cluster.start()
        run = str(node.call("run.trigger", job="hello", id="1")["id"])
        cluster.becomes(run, "success")
        assert node.process is not None
        assert warm_parents(node.process.pid) == set()
