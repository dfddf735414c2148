"""Logs of attempts on other nodes: read and followed from any node, with bounds; an error while the node is away."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from coordd.cli.client import Client
from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import LIMIT_S, until

HUGE = 10 * 2**30

# Neither daemon may grow by more than this (KiB) while such a log is read.
GROWTH_KB_MAX = 40_000


def talker(cluster: Cluster, name: str = "talk", **keys: str) -> None:
    """A job that prints who it is, waits for its go, and prints that it ends."""
    script = f'echo "attempt $COORDD_ATTEMPT on $COORDD_NODE"; until [ -e {cluster.go(name)} ]; do sleep 0.05; done; '
    argv = ["/bin/sh", "-c", script + 'echo "é: the end"']
    lines = [f'{key} = "{value}"' for key, value in keys.items()]
    cluster.job_file(name, "\n".join([*lines, "[command]", f"argv = {json.dumps(argv)}"]) + "\n")


def write(cluster: Cluster, name: str, text: str) -> None:
    cluster.job_file(name, f'[command]\nargv = ["/bin/echo", "{text}"]\n')


def holder(cluster: Cluster, run: str, attempt: int = 0) -> Node:
    rows = until(
        lambda: [row for row in cluster.attempts(run) if row["attempt"] == attempt and row["started_at"]],
        why=f"{run}/{attempt} is started",
    )
    return cluster.node(str(rows[0]["node"]).rpartition(".")[0])


class Follower(threading.Thread):
    """Follows a run's log on one node, until the stream ends."""

    def __init__(self, node: Node, run: str) -> None:
        super().__init__(daemon=True)
        self._node, self._run = node, run
        self.messages: list[dict[str, Any]] = []
        self.error = ""
        self.start()

    def run(self) -> None:
        try:
            with Client(str(self._node.socket)) as client:
                for message in client.stream("run.logs", {"id": self._run, "follow": True}):
                    self.messages.append(message)
        except Exception as exc:
            self.error = str(exc)

    @property
    def texts(self) -> list[tuple[int, str, str]]:
        return [(one["attempt"], one["node"], one["text"]) for one in self.messages if "text" in one]

    def ended(self) -> Follower:
        self.join(LIMIT_S)
        assert not self.is_alive()
        return self


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_the_log_of_an_attempt_is_read_on_any_node(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        write(cluster, "hello", "hello from afar")
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="hello", id="1")
        cluster.becomes("hello#1", "success")
        owner = holder(cluster, "hello#1")
        for node in cluster.nodes:
            answer = node.call("run.logs", id="hello#1")
            assert (answer["text"], answer["node"], answer["attempt"]) == ("hello from afar\n", owner.name, 0)
            assert answer["path"].startswith(str(owner.state_dir))
        (other, third) = cluster.others(owner)
        done = other.coordctl("run", "logs", "hello", check=False)
        assert done.stdout == "hello from afar\n"
        assert f"hello#1, attempt 0, on {owner.name}:" in done.stderr
        looks = {one["by"] for one in owner.call("audit")["records"] if one["method"] == "run.logs"}
        assert looks == {"root", f"root on {other.name}", f"root on {third.name}"}
        with pytest.raises(CallError, match="has no attempt 5"):
            third.call("run.logs", id="hello#1", attempt=5)
        owner.stop()
        until(lambda: _refusal(other) == "node_not_alive", why=f"{other.name} says that {owner.name} has left")
        with pytest.raises(CallError, match=f"the log of hello#1/0 is on {owner.name}, which is left"):
            other.call("run.logs", id="hello#1")


def _refusal(node: Node) -> str:
    try:
        node.call("run.logs", id="hello#1")
    except CallError as exc:
        return str(exc.kind)
    return ""


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_follower_goes_on_through_a_takeover(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        talker(cluster)
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="talk", id="1")
        owner = holder(cluster, "talk#1")
        reader = next(node for node in cluster.others(owner))
        follower = Follower(reader, "talk#1")
        until(lambda: follower.texts, why="the first attempt is heard")
        owner.kill_family()
        until(lambda: len(follower.texts) > 1, why="the second attempt is heard")
        cluster.go("talk").touch()
        second = holder(cluster, "talk#1", 1)
        cluster.becomes("talk#1", "success")
        follower.ended()
        assert follower.error == ""
        whole = "".join(text for _, _, text in follower.texts)
        assert whole == f"attempt 0 on {owner.name}\nattempt 1 on {second.name}\né: the end\n"
        assert {(attempt, node) for attempt, node, _ in follower.texts} == {(0, owner.name), (1, second.name)}
        notes = " ".join(one["note"] for one in follower.messages if "note" in one)
        assert f"the log of talk#1/0 is on {owner.name}" in notes
        assert f"attempt 1 is on {second.name}" in notes


def test_a_follower_that_comes_before_the_first_attempt_waits_for_it() -> None:
    with cluster_of(2) as cluster:
        talker(cluster)
        cluster.go("talk").touch()
        cluster.start()
        cluster.nodes[0].call("job.suspend", job="talk")
        cluster.nodes[0].call("run.trigger", job="talk", id="1")
        follower = Follower(cluster.nodes[1], "talk#1")
        until(follower.is_alive, why="it follows")
        cluster.nodes[1].call("job.resume", job="talk")
        assert "é: the end\n" in "".join(text for _, _, text in follower.ended().texts)
        assert follower.error == ""


@pytest.mark.parametrize("backend", ["production"])
def test_ten_gigabytes_on_another_node_cost_no_memory(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        write(cluster, "hello", "the beginning")
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="hello", id="1")
        cluster.becomes("hello#1", "success")
        owner = holder(cluster, "hello#1")
        (reader,) = cluster.others(owner)
        path = reader.call("run.logs", id="hello#1")["path"]
        with Path(path).open("r+b") as file:
            file.truncate(HUGE)
            file.seek(0, os.SEEK_END)
            file.write(b"the end\n")
        before = memory_kb(owner), memory_kb(reader)
        assert reader.call("run.logs", id="hello#1", bytes=8)["text"] == "the end\n"
        assert len(reader.call("run.logs", id="hello#1", bytes=2**40)["text"]) == 768 * 1024
        with Client(str(reader.socket)) as client:  # a reader that takes some of it, and goes away
            stream = client.stream("run.logs", {"id": "hello#1", "follow": True})
            taken = sum(len(next(stream).get("text", "")) for _ in range(100))
        assert taken > 1_000_000
        assert reader.call("run.logs", id="hello#1", bytes=8)["text"] == "the end\n"
        grown = memory_kb(owner) - before[0], memory_kb(reader) - before[1]
        assert max(grown) < GROWTH_KB_MAX, grown


def memory_kb(node: Node) -> int:
    assert node.process is not None
    text = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0])
