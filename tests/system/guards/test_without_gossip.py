"""`gossip = false`: no bus at all; nodes that do not know of each other launch each run once, by the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from system.lab.cluster import cluster_of
from system.lab.processes import until
from system.lab.secured import TIMING, never_twice, trigger

pytestmark = pytest.mark.production


def test_each_fire_time_is_launched_once_and_a_dead_node_s_run_is_taken_over() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        cluster.job("tick", "sleep", 0, schedule="every 2s", overlap="allow", misfire="all")
        cluster.job("long", "until", cluster.go("go"))
        for node in cluster.nodes:
            node.changes = {"bus": None, "keyring": None, "gossip": False}
            node.launch()
        for node in cluster.nodes:
            node.ready()
        cluster.use_their_ledger()

        def ticks() -> set[str]:
            return {entry.run for entry in cluster.starts() if entry.run.startswith("tick@")}

        def ended() -> dict[str, Any]:
            return {row["run"]: row for row in cluster.rows() if row["job"] == "tick" and row["state"] == "success"}

        run = trigger(cluster.nodes[0], "long", "1")
        owner = cluster.owner(run)
        assert trigger(cluster.others(owner)[0], "long", "1") == run
        until(lambda: len(ticks()) >= 3, why="fire times")
        before = ticks()
        owner.kill_family()
        again = cluster.started(run, attempt=1)
        assert again.node != owner.name
        until(lambda: len(ticks() - before) >= 3, why="fire times without the dead node")
        known = sorted(ticks())
        until(lambda: set(known) <= ended().keys(), why="all of them succeed")
        times = sorted(float(ended()[one]["fire_at"]) for one in known)
        assert times == [times[0] + 2.0 * step for step in range(len(times))], "none is left out"

        (third,) = cluster.others(owner, cluster.node(again.node))
        third.call("run.cancel", id=run)
        cluster.becomes(run, "revoked")
        never_twice(cluster)
        status, checks = third.status(), {one["check"]: one for one in third.call("doctor")}
        assert (status["bus"]["state"], status["members"]["alive"]) == ("off", 1)
        assert (checks["bus"]["state"], checks["bus"]["text"][:24]) == ("warn", "gossip = false: nodes do")
        assert "without gossip nodes do not know of each other" in third.log()
