"""A job after two others, on real daemons: one child for each period, although nodes are killed."""

from __future__ import annotations

import pytest

from system.lab.cluster import cluster_of


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_child_runs_once_after_both_parents_although_nodes_are_killed(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        cluster.job("left", "until", cluster.go("left"))
        cluster.job("right", "until", cluster.go("right"))
        cluster.job("child", "sleep", 0.1, after=["left", "right"])
        cluster.job("early", "sleep", 0.1, after=["left"])
        cluster.start()
        first, second, _ = cluster.nodes
        for job in ("left", "right"):
            first.call("run.trigger", job=job, id="x")
            cluster.becomes(f"{job}#x", "started")
        cluster.go("left").touch()
        cluster.becomes("early#x", "success")  # so the end of the first parent was seen
        assert [row["run"] for row in cluster.rows() if row["job"] == "child"] == []
        assert "right" in second.why("child"), "it says which parent it waits for"

        victim = cluster.owner("right#x")
        victim.kill()  # its run goes on, and nobody is there who would tell its end at once
        cluster.go("right").touch()
        victim.launch()
        victim.ready()
        row = cluster.becomes("child#x", "success")
        assert len(cluster.starts("child#x")) == 1
        assert row["attempt"] == 0
        assert [one["run"] for one in cluster.rows() if one["job"] == "child"] == ["child#x"]
