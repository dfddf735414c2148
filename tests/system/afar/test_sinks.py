"""Copies of logs and segments, made by real daemons: after faults of the store, and after their own death."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.servers.hdfs import Hdfs

from coordd.services.logs.files import log_path
from system.afar.test_logs import holder, talker, write
from system.lab.cluster import CallError, Cluster, Node, cluster_of
from system.lab.processes import until


def configure(cluster: Cluster, **history: object) -> None:
    for node in cluster.nodes:
        node.settings = "\n".join(["[history]", *[f"{key} = {json.dumps(said)}" for key, said in history.items()], ""])


def copy_of(node: Node, run: str, attempt: int = 0) -> str:
    """The name of the copy, below the sink."""
    return f"{node.status()['cluster']}/{node.name}/{log_path('logs', run, attempt)}"


def letters(node: Node) -> list[dict[str, Any]]:
    return [one for one in node.call("deadletter.list") if one["kind"] == "sink"]


def state_of(node: Node, other: Node) -> str:
    return str(next(one["state"] for one in node.call("node.list") if one["hostname"] == other.name))


def doctor(node: Node) -> str:
    return " ".join(str(one["text"]) for one in node.call("doctor") if one["check"] == "log sink")


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_logs_and_segments_are_copied_and_read_while_their_node_is_away(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        there = cluster.path / "there"
        configure(cluster, log_sink=f"file://{there}", journal_sink=f"file://{there}")
        write(cluster, "hello", "hello from afar")
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="hello", id="1")
        cluster.becomes("hello#1", "success")
        owner = holder(cluster, "hello#1")
        (other,) = cluster.others(owner)
        copy = there / copy_of(owner, "hello#1")
        until(copy.exists, why="the log is copied")
        assert copy.read_text() == "hello from afar\n"
        assert copy.stat().st_mode & 0o777 == 0o640
        owner.stop()  # which closes its segment
        until(lambda: state_of(other, owner) == "left", why=f"{owner.name} has left")
        answer = other.call("run.logs", id="hello#1")
        assert (answer["text"], answer["copy"], answer["node"]) == ("hello from afar\n", True, owner.name)
        assert f"on {owner.name}, from its copy:" in other.coordctl("run", "logs", "hello#1", check=False).stderr
        owner.start()
        until(lambda: list(there.glob(f"*/{owner.name}/journal/00000001-*.jsonl")), why="its segment is copied")
        (segment,) = there.glob(f"*/{owner.name}/journal/00000001-*.jsonl")
        assert segment.read_bytes() == (owner.state_dir / "journal" / "00000001.jsonl").read_bytes()
        assert not list(there.rglob("*.part"))


def test_a_store_that_answers_503_loses_nothing_over_a_kill_of_the_daemon() -> None:
    with Hdfs() as hdfs, cluster_of(1) as cluster:
        (node,) = cluster.nodes
        configure(cluster, log_sink=hdfs.url)
        talker(cluster)
        write(cluster, "hello", "hello")
        cluster.start()
        hdfs.broken = 503
        node.call("run.trigger", job="hello", id="1")
        node.call("run.trigger", job="talk", id="1")
        cluster.becomes("hello#1", "success")
        holder(cluster, "talk#1")
        until(lambda: "answered 503" in doctor(node), why="doctor says it")
        wanted = {f"/logs/{copy_of(node, run)}" for run in ("hello#1", "talk#1")}
        node.kill()
        cluster.go("talk").touch()  # it ends while there is no daemon
        cluster.becomes("talk#1", "success")
        hdfs.broken = 0
        node.start()
        until(lambda: set(hdfs.files) == wanted, why="both are copied")
        texts = sorted(data.decode() for data in hdfs.files.values())
        assert texts == [f"attempt 0 on {node.name}\né: the end\n", "hello\n"]
        assert letters(node) == []


def test_a_copy_that_is_given_up_is_a_dead_letter_which_is_replayed() -> None:
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        fault, there = cluster.path / "fault", cluster.path / "there"
        copies = 'to="${1#s3:/}"; mkdir -p "${to%/*}"; cp "$0" "$to.up" && mv "$to.up" "$to"'
        put = f"[ ! -e {fault} ] || exit 3; {copies}"
        configure(cluster, log_sink=f"s3:/{there}", sink_put=["/bin/sh", "-c", put, "{source}", "{target}"])
        write(cluster, "hello", "hello")
        cluster.start()
        fault.touch()
        node.call("run.trigger", job="hello", id="1")
        cluster.becomes("hello#1", "success")
        until(lambda: "ended with 3" in doctor(node), why="doctor says it")
        path = Path(node.call("run.logs", id="hello#1")["path"])
        path.unlink()  # a file that is gone can never be copied: it is given up at once
        (letter,) = until(lambda: letters(node), why="the copy is given up")
        assert letter["id"] == "sink:log:logs/hello/hello_1.0.log"
        assert (letter["job"], letter["node"], "is gone" in letter["reason"]) == ("hello", node.name, True)
        assert "sink:log:logs/hello" in node.coordctl("deadletter", "list", check=False).stdout
        assert "is gone" in node.coordctl("deadletter", "show", letter["id"], check=False).stdout
        assert (
            '"copy-given-up"' in node.coordctl("events", "--type", "copy-given-up", "-o", "jsonl", check=False).stdout
        )
        with pytest.raises(CallError, match="nothing to copy any more"):
            node.call("deadletter.replay", id=letter["id"])
        path.write_text("hello\n")
        fault.unlink()
        done = node.coordctl("deadletter", "replay", letter["id"], check=False)
        assert (done.returncode, done.stdout) == (0, f"{letter['id']} is tried again\n")
        copy = there / copy_of(node, "hello#1")
        until(copy.exists, why="it is copied")
        assert copy.read_text() == "hello\n"
        assert letters(node) == []
        assert {one["method"] for one in node.call("audit")["records"]} >= {"deadletter.replay"}
