"""A cluster of the previous version is upgraded node by node as it works: each fire time runs once, no run is lost."""

from __future__ import annotations

from collections import Counter

import pytest
from versions import unpacked

from coordd.core.jobs.schedule import jitter_offset
from system.lab.cluster import CallError, Cluster, Entry, Node, cluster_of, fire_time
from system.lab.processes import ROOT, until

# The jitter is not a multiple of the interval, so a run's name tells which rules made it.
JOB, EVERY_S, JITTER_S = "pulse", 3.0, 20.0
OFFSET_S = jitter_offset(JOB, JITTER_S)


def of_version(node: Node, *, old: bool) -> Node:
    node.root = unpacked.directory() if old else ROOT
    return node


def is_nominal(entry: Entry) -> bool:
    return fire_time(entry.run) % EVERY_S == 0


def due(entry: Entry) -> float:
    """When a run was due, whether the old or the new rules have named it."""
    return fire_time(entry.run) + (OFFSET_S if is_nominal(entry) else 0.0)


def ticks(cluster: Cluster) -> list[Entry]:
    return [entry for entry in cluster.starts() if entry.run.startswith(f"{JOB}@")]


def more_ticks(cluster: Cluster, count: int, *, nominal: bool = False) -> None:
    seen = len(ticks(cluster))
    until(lambda: sum(is_nominal(e) or not nominal for e in ticks(cluster)[seen:]) >= count, why=f"{count} more runs")


def holds_that_it_would_not_obey_are_refused(first: Node, old: Node) -> None:
    for method, params in (("job.suspend", {"all": True}), ("node.drain", {"node": old.name})):
        with pytest.raises(CallError) as caught:
            first.call(method, **params)
        assert caught.value.kind == "old_version"


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_an_upgrade_node_by_node_runs_each_fire_time_once(backend: str) -> None:
    assert OFFSET_S % EVERY_S, "else old and new names cannot be told apart"
    with cluster_of(3, backend=backend) as cluster:
        cluster.job(
            JOB,
            "sleep",
            0.1,
            schedule=f"every {EVERY_S:.0f}s",
            jitter=f"{JITTER_S:.0f}s",
            misfire="all",
            overlap="allow",
        )
        cluster.job("long", "until", cluster.go("long"))
        for node in cluster.nodes:
            of_version(node, old=True)
        cluster.start()
        first = cluster.nodes[0]
        long = first.call("run.trigger", job="long", id="1", args={})["id"]
        cluster.started(long)
        more_ticks(cluster, 2)

        for node in cluster.nodes:
            assert node.stop() == 0
            of_version(node, old=False).start()
            more_ticks(cluster, 1)
            if node is not cluster.nodes[-1]:
                assert node.status()["rules"]["in_force"] == 1
                assert node.status()["rules"]["held_back_by"]
        cluster.meet()
        until(
            lambda: all(node.status()["rules"]["in_force"] == 2 for node in cluster.nodes), why="rules 2 are in force"
        )
        more_ticks(cluster, 3, nominal=True)

        # A node is started again with the previous version: it claims nothing, and says so.
        last = cluster.nodes[-1]
        assert last.stop() == 0
        of_version(last, old=True).start()
        began = len(ticks(cluster))
        more_ticks(cluster, 4)
        assert {entry.node for entry in ticks(cluster)[began + 1 :]} <= {node.name for node in cluster.nodes[:-1]}
        assert all(is_nominal(entry) for entry in ticks(cluster)[began:])
        listed = {job["name"]: job for job in last.call("job.list")}
        assert listed[JOB]["suspended"] is True
        assert "suspended" in last.why(JOB)
        assert first.status()["rules"] == {"in_force": 2, "held_back_by": [f"n3.{last.status()['pid']}"]}
        assert {job["name"]: job["suspended"] for job in first.call("job.list")} == {JOB: None, "long": None}
        holds_that_it_would_not_obey_are_refused(first, last)

        cluster.go("long").touch()
        assert cluster.becomes(long, "success")["attempt"] == 0
        assert len(cluster.starts(long)) == 1
        for node in cluster.nodes:
            assert node.stop() == 0
        counts = Counter(due(entry) for entry in ticks(cluster))
        assert set(counts.values()) == {1}, "a fire time ran twice"
        instants = sorted(counts)
        assert instants == [instants[0] + EVERY_S * number for number in range(len(instants))], "a fire time was lost"
