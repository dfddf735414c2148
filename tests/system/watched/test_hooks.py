"""Hooks of real clusters: each event is told once, also if nodes die; what a hook does wrong harms nobody else."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from system.lab.cluster import Cluster, cluster_of
from system.lab.processes import until


def script(cluster: Cluster, name: str, body: str) -> Path:
    """A hook that first writes its event as a line into the file of its name."""
    path = cluster.path / f"{name}.hook"
    told = cluster.path / f"{name}.told"
    path.write_text(f"#!/bin/sh\ncat >> {told}\n{body}\n")
    path.chmod(0o755)
    return path


def configure(cluster: Cluster, *hooks: str) -> None:
    for node in cluster.nodes:
        node.settings = "".join([f"[[hook]]\n{hook}\n" for hook in hooks])


def hook(cluster: Cluster, name: str, body: str = "", *, on: str = "run.failure", timeout: str = "20s") -> str:
    path = script(cluster, name, body)
    return f'name = "{name}"\non = ["{on}"]\nargv = ["{path}", "{{event}}"]\ntimeout = "{timeout}"'


def told(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    path = cluster.path / f"{name}.told"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def runs_of(cluster: Cluster, name: str) -> list[dict[str, Any]]:
    return [row for row in cluster.rows() if row["job"] == f"hook~{name}"]


def over(cluster: Cluster, name: str, count: int) -> None:
    """Wait until that many runs of a hook have ended."""

    def look() -> bool:
        rows = runs_of(cluster, name)
        return len(rows) == count and all(row["state"] in ("success", "failure") for row in rows)

    until(look, why=f"{count} runs of {name} are over")


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_each_event_is_told_once_in_the_cluster(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        configure(
            cluster, hook(cluster, "page"), hook(cluster, "all", on="run.*"), hook(cluster, "none", on="run.missed")
        )
        cluster.job("bad", "sleep", 0.1, code=3, overlap="allow")
        cluster.job("good", "sleep", 0.1, overlap="allow")
        cluster.start()
        for number, node in enumerate(cluster.nodes):
            for job in ("bad", "good"):
                node.call("run.trigger", job=job, id=str(number))
        over(cluster, "page", 3)
        over(cluster, "all", 6)
        assert Counter(event["run"] for event in told(cluster, "page")) == dict.fromkeys(("bad#0", "bad#1", "bad#2"), 1)
        assert Counter(event["event"] for event in told(cluster, "all")) == {"run.failure": 3, "run.success": 3}
        event = next(event for event in told(cluster, "page") if event["run"] == "bad#1")
        row = cluster.row("bad#1")
        assert event == {
            **event,
            "event": "run.failure", "cluster": event["cluster"], "node": row["node"].partition(".")[0], "job": "bad",
            "attempt": 0, "state": "failure", "reason": "exit code 3", "sentence": "bad#1 failed: exit code 3",
        }  # fmt: skip
        assert told(cluster, "none") == []
        assert [one["name"] for one in cluster.nodes[0].call("job.list")] == ["bad", "good"]


def test_a_hook_that_fails_is_tried_three_times_and_is_a_dead_letter_then() -> None:
    with cluster_of(2) as cluster:
        mended = cluster.path / "mended"
        configure(cluster, hook(cluster, "page", f"test -e {mended}"))
        cluster.job("bad", "sleep", 0.1, code=3)
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="bad", id="1")
        over(cluster, "page", 1)
        assert len(told(cluster, "page")) == 3
        letters = [one for one in cluster.nodes[1].call("deadletter.list") if one["kind"] == "hook"]
        assert [(one["job"], one["attempts"], one["reason"]) for one in letters] == [("hook~page", 3, "exit code 1")]
        mended.touch()
        cluster.nodes[1].call("deadletter.replay", id=letters[0]["id"])
        cluster.becomes(letters[0]["run"], "success")
        assert len(told(cluster, "page")) == 4
        assert [one for one in cluster.nodes[0].call("deadletter.list") if one["kind"] == "hook"] == []


def test_hooks_that_hang_flood_or_fork_harm_nobody() -> None:
    with cluster_of(1) as cluster:
        escaped = cluster.path / "escaped"
        escape = f"setsid sh -c 'echo $$ >> {escaped}; sleep 1000'"
        configure(
            cluster,
            hook(cluster, "hangs", "trap '' TERM; sleep 1000 & wait", timeout="1s"),
            hook(cluster, "floods", "head -c 300000000 /dev/zero"),
            hook(cluster, "forks", f"for n in 1 2 3; do {escape} & done; sleep 1"),
            hook(cluster, "page"),
        )
        cluster.job("bad", "sleep", 0.1, code=3)
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="bad", id="1")
        over(cluster, "page", 1)
        over(cluster, "forks", 1)
        over(cluster, "floods", 1)
        over(cluster, "hangs", 1)
        assert (len(told(cluster, "page")), len(told(cluster, "hangs"))) == (1, 3)
        (row,) = runs_of(cluster, "hangs")
        assert "124" in row["reason"]
        logs = cluster.nodes[0].state_dir / "logs"
        assert all(path.stat().st_size < 100_000 for path in logs.rglob("*.log"))
        left = [pid for pid in escaped.read_text().split() if Path(f"/proc/{pid}/stat").exists()]
        until(lambda: not [pid for pid in left if Path(f"/proc/{pid}").exists()], why="nothing of a hook is left")


def test_production_the_node_that_knew_of_the_end_dies_before_it_tells() -> None:
    """Its runner reports to the ledger by itself; the other nodes tell it, once."""
    with cluster_of(3, backend="production") as cluster:
        configure(cluster, hook(cluster, "page"))
        cluster.job("bad", "until", cluster.go("bad"), code=3)
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="bad", id="1")
        owner = cluster.owner("bad#1")
        owner.kill()  # only the daemon: nobody publishes how the run ends
        cluster.go("bad").touch()
        cluster.becomes("bad#1", "failure")
        over(cluster, "page", 1)
        assert [event["run"] for event in told(cluster, "page")] == ["bad#1"]
        (row,) = runs_of(cluster, "page")
        assert not row["node"].startswith(f"{owner.name}.")
        owner.start()
        cluster.meet()
        time.sleep(3)  # it reads the ledger, and may not tell it again
        assert len(told(cluster, "page")) == 1


def test_production_the_node_that_calls_dies_and_another_one_calls() -> None:
    with cluster_of(3, backend="production") as cluster:
        go = cluster.path / "go"
        configure(
            cluster, hook(cluster, "page", f'echo "$COORDD_NODE" >> {cluster.path}/nodes; test -e {go} || sleep 1000')
        )
        cluster.job("bad", "sleep", 0.1, code=3)
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="bad", id="1")
        nodes = cluster.path / "nodes"
        until(nodes.exists, why="the hook is called")
        first = cluster.node(nodes.read_text().split()[0])
        go.touch()
        first.kill_family()
        over(cluster, "page", 1)
        assert [event["run"] for event in told(cluster, "page")] == ["bad#1", "bad#1"], (
            "once more, and not a third time"
        )
        assert nodes.read_text().split()[1] != first.name
        assert cluster.attempts(runs_of(cluster, "page")[0]["run"])[-1]["state"] == "success"


def test_production_a_lost_node_and_a_takeover_are_told_once() -> None:
    with cluster_of(3, backend="production") as cluster:
        configure(cluster, hook(cluster, "lost", on="node.lost"), hook(cluster, "over", on="takeover"))
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        cluster.nodes[0].call("run.trigger", job="long", id="1")
        owner = cluster.owner("long#1")
        owner.kill_family()
        over(cluster, "lost", 1)
        over(cluster, "over", 1)
        assert [(event["event"], event["node"]) for event in told(cluster, "lost")] == [("node.lost", owner.name)]
        (event,) = told(cluster, "over")
        assert (event["run"], event["attempt"], event["node"]) == ("long#1", 0, owner.name)
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")


TRIGGER = '[[trigger]]\nkind = "event"\n'


def test_what_happens_to_nodes_is_told_once_and_starts_runs() -> None:
    with cluster_of(3, backend="embedded") as cluster:
        configure(cluster, hook(cluster, "nodes", on="node.*"))
        moves = f'overlap = "allow"\n[command]\nargv = ["/bin/true"]\n{TRIGGER}on = "node.drained"\n'
        cluster.job_file("moves", moves)
        cluster.start()
        first, last = cluster.nodes[0], cluster.nodes[2]

        def events(name: str = "") -> list[tuple[str, str]]:
            return sorted((one["event"], one["node"]) for one in told(cluster, "nodes") if name in one["event"])

        first.coordctl("node", "drain", "--note", "its disk is full")
        until(lambda: events("drained") == [("node.drained", first.name)], why="the drain is told")
        (run,) = until(lambda: [row for row in cluster.rows() if row["job"] == "moves"], why="the drain starts a run")
        first.coordctl("node", "resume")
        until(lambda: events("resumed") == [("node.resumed", first.name)], why="its end is told")
        joined = events("joined")  # those that started while others were there already
        last.stop()
        until(lambda: events("left") == [("node.left", last.name)], why="a stop is told")
        last.start()
        until(lambda: events("joined") == sorted([*joined, ("node.joined", last.name)]), why="a start is told")

        cluster.becomes(run["run"], "success")
        assert len(events("drained")) == len(events("resumed")) == len(events("left")) == 1
        assert events("lost") == []
