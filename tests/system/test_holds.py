"""A real cluster: one node drains another, also over a restart; and runs that only one node may launch."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from system.lab.cluster import CallError, cluster_of
from system.lab.processes import until


def test_a_node_is_drained_and_resumed_from_another_one() -> None:
    with cluster_of(2) as cluster:
        cluster.job("tick", "sleep", 0, overlap="allow")
        cluster.start()
        asked, target = cluster.nodes
        said = asked.call("node.drain", node=target.name, note="a new disk")
        assert (said["node"], said["self"], said["kept"]) == (target.name, False, True)
        until(lambda: target.status()["state"] == "draining", why="its sweep tells it")
        target.kill()
        target.launch()
        until(lambda: (target.try_call("status") or {}).get("state") == "draining", why="the ledger keeps it")
        for number in range(4):
            asked.call("run.trigger", job="tick", id=str(number))
            cluster.becomes(f"tick#{number}", "success")
            assert cluster.owner(f"tick#{number}") is asked
        shown = {node["hostname"]: node["drained"] for node in asked.call("node.list")}
        assert shown[asked.name] is None
        assert shown[target.name]["note"] == "a new disk"
        asked.call("node.drain")
        target.call("run.trigger", job="tick", id="held")
        both = [f"{node.name} is drained by" for node in cluster.nodes]
        until(lambda: all(words in asked.why("tick#held") for words in both), why="both are named")
        assert "(a new disk)" in target.why("tick#held")
        asked.call("node.resume", node=target.name)
        cluster.becomes("tick#held", "success")
        assert cluster.owner("tick#held") is target


def test_who_waits_for_the_drain_of_another_node_waits_until_its_runs_have_ended() -> None:
    with cluster_of(2) as cluster:
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        asked, target = cluster.nodes
        asked.call("run.trigger", job="long", id="1", node=target.name)
        cluster.becomes("long#1", "started")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(
                asked.coordctl, "node", "drain", target.name, "--wait", "--timeout", "60s", check=False
            )
            until(lambda: waiting.done() or target.status()["state"] == "draining", why="it is told")
            time.sleep(1.0)  # in which it looks again, and must not end
            ended_early = waiting.done()
            cluster.go("long").touch()
        assert (ended_early, waiting.result().returncode) == (False, 0), waiting.result().stderr
        cluster.becomes("long#1", "success")


def test_only_the_named_node_launches_a_run_and_it_must_be_alive() -> None:
    with cluster_of(3) as cluster:
        cluster.job("here", "sleep", 0, overlap="allow")
        cluster.job("long", "until", cluster.go("long"))
        cluster.start()
        first, *_, named = cluster.nodes
        for number in range(6):
            first.call("run.trigger", job="here", id=str(number), node=named.name)
            cluster.becomes(f"here#{number}", "success")
            assert cluster.owner(f"here#{number}") is named
        first.call("run.trigger", job="long", id="1", node=named.name)
        cluster.becomes("long#1", "started")
        named.kill_family()
        cluster.becomes("long#1", "retry")
        said = f"Only {named.name} may launch it, as `run trigger --node` asked; {named.name} is lost."
        until(lambda: said in first.why("long#1"), why="nobody else takes it")
        with pytest.raises(CallError) as caught:
            first.call("run.trigger", job="here", id="late", node=named.name)
        assert caught.value.kind == "node_not_alive"
        cluster.go("long").touch()
        named.start()
        cluster.becomes("long#1", "success")
        assert {start.node for start in cluster.starts("long#1")} == {named.name}
