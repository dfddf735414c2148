"""Retries and dead letters of a real cluster: another node tries again, and what is given up is replayed once."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from coordd.core.members.elsewhere import ASIDE_S
from system.lab.cluster import CallError, Node, cluster_of
from system.lab.processes import until
from system.lab.secured import TIMING
from system.test_policies import trigger


def replay(node: Node, letter: str) -> dict[str, Any] | str:
    """The answer, or the refusal."""
    try:
        answer: dict[str, Any] = node.call("deadletter.replay", id=letter)
    except CallError as exc:
        return str(exc)
    return answer


def test_a_dead_letter_is_replayed_once_although_all_nodes_ask_at_once() -> None:
    with cluster_of(3, backend="production") as cluster:
        cluster.job("broken", "until", cluster.go("open"), code=3, overlap="allow")
        cluster.start()
        for number in range(3):
            cluster.go("open").touch()
            run = trigger(cluster.nodes[0], "broken", f"{number}")
            cluster.becomes(run, "failure")
            letters = [node.call("deadletter.list")[0] for node in cluster.nodes]
            assert {letter["id"] for letter in letters} == {f"{run}/0"}

            cluster.go("open").unlink()
            with ThreadPoolExecutor(3) as threads:
                said = list(threads.map(replay, cluster.nodes, [f"{run}/0"] * 3))
            done = [one for one in said if isinstance(one, dict)]
            assert [one["attempt"] for one in done] == [1], said
            assert all(f"{run}/0 was replayed before by" in one for one in said if isinstance(one, str)), said

            cluster.started(run, 1)
            cluster.go("open").touch()
            cluster.becomes(run, "failure")
            assert [start.attempt for start in cluster.starts(run)] == [0, 1]
            assert [one["id"] for one in cluster.nodes[1].call("deadletter.list")][:1] == [f"{run}/1"]

        for number in range(3):
            cluster.nodes[number].call("deadletter.discard", id=f"broken#{number}/1", note="seen")
        until(lambda: all(not node.call("deadletter.list") for node in cluster.nodes))


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_retry_is_on_another_node(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        cluster.job("flaky", "first", "0", code=3, overlap="allow", retry={"attempts": 2, "delay": "1s", "jitter": 0.5})
        cluster.start()
        for number in range(5):
            run = trigger(cluster.nodes[number % 3], "flaky", f"{number}")
            assert cluster.becomes(run, "success")["attempt"] == 1
            first, second = cluster.starts(run)
            assert first.node != second.node
            assert second.at - first.at >= 1.0


def test_a_node_on_which_fails_what_succeeds_elsewhere_stands_aside_for_a_while() -> None:
    """Of four nodes one may, also when the owner of a run is killed meanwhile."""
    with cluster_of(4, backend="production", **TIMING) as cluster:
        cluster.job("picky", "not_on", "n1", code=3, overlap="allow", retry={"attempts": 3, "delay": "1s"})
        cluster.job("long", "until", cluster.go("end"), overlap="allow")
        sick, *sound = cluster.start().nodes
        numbers = itertools.count()

        def strikes() -> bool:
            run = trigger(sick, "picky", f"{next(numbers)}")
            assert cluster.becomes(run, "success")["attempt"] <= 1, "the retry is elsewhere"
            return sick.status()["stands_aside"] is not None

        until(strikes, limit_s=120.0, why="n1 stands aside")
        failed = [entry.run for entry in cluster.starts() if entry.node == "n1"]
        assert len(failed) >= 3
        assert "leaves runs to other nodes for a while" in json.dumps(sick.call("why", id="picky"))
        assert all(one.status()["stands_aside"] is None for one in sound)

        runs = [trigger(sick, "long", f"{number}") for number in range(3)]
        owners = [cluster.owner(run) for run in runs]
        assert sick not in owners
        owners[0].kill_family()
        assert cluster.started(runs[0], 1).node not in ("n1", owners[0].name)
        cluster.go("end").touch()
        for run in runs:
            cluster.becomes(run, "success")

        until(lambda: sick.status()["stands_aside"] is None, limit_s=2 * ASIDE_S, why="n1 is back")
        assert "node.stands_aside_no_more" in sick.log()

        def takes_one() -> bool:
            run = trigger(sick, "long", f"later-{next(numbers)}")
            cluster.becomes(run, "success")
            return cluster.starts(run)[0].node == "n1"

        until(takes_one, limit_s=60.0, why="n1 takes runs again")
