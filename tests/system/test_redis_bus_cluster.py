"""A cluster without a broker: one Redis carries the gossip and holds the ledger."""

from __future__ import annotations

import pytest

from system.lab.cluster import cluster_of
from system.lab.processes import until
from system.lab.secured import TIMING, connected, never_twice, trigger

pytestmark = pytest.mark.production


def test_a_cluster_on_redis_alone_elects_launches_and_takes_over() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        cluster.job("long", "until", cluster.go("go"))
        cluster.job("short", "sleep", 0, overlap="allow")
        redis = cluster.production.redis
        for node in cluster.nodes:
            node.changes["bus"] = redis.url
        cluster.start()
        assert all(node.status()["bus"]["url"].startswith("redis://") for node in cluster.nodes)
        asked = cluster.nodes[0]
        run = trigger(asked, "long", "1")
        owner = cluster.owner(run)

        def decided() -> list[dict[str, object]]:
            return [said for said in asked.call("election.list") if str(said["id"]).startswith(run) and said["decided"]]

        (election,) = until(decided, why="the election is decided")
        assert len(election["statements"]) == 3, "everybody was heard"  # type: ignore[arg-type]  # a table
        assert len(election["succession"]) == 3  # type: ignore[arg-type]  # a list
        assert owner.kill_family() >= 4
        left = cluster.others(owner)
        until(lambda: all(node.status()["members"]["lost"] == 1 for node in left), why="it is lost to the others")
        again = cluster.started(run, attempt=1)
        assert again.node != owner.name
        cluster.go("go").touch()
        assert cluster.becomes(run, "success")["attempt"] == 1
        owner.start()
        cluster.meet()
        before = [node.status()["bus"]["connections"] for node in cluster.nodes]
        redis.cli("CLIENT", "KILL", "TYPE", "pubsub")
        until(
            lambda: all(n.status()["bus"]["connections"] > b for n, b in zip(cluster.nodes, before, strict=True)),
            why="all listen again",
        )
        connected(cluster)
        runs = [
            trigger(node, "short", f"{number}") for node in cluster.nodes for number in range(3)
        ]  # each id on all three nodes
        for each in runs:
            cluster.becomes(each, "success")
        assert len(set(runs)) == 3
        never_twice(cluster)
