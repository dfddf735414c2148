"""A job after two others, on real daemons: one child for each period, although nodes are killed."""

from __future__ import annotations

import pytest

from system.lab.cluster import cluster_of
from system.lab.processes import until
from system.lab.secured import TIMING, never_twice


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


def test_a_group_is_waited_for_as_a_whole_although_a_node_is_killed() -> None:
    with cluster_of(3, backend="production") as cluster:
        parts = {"part": ["1", "2", "3", "4", "5"]}
        cluster.job("many", "until", cluster.go("many"), chunk=2, expand=parts, params={"day": "1"})
        cluster.job("all", "sleep", 0.1, after=["many"])
        cluster.start()
        first, second, _ = cluster.nodes
        assert first.call("run.trigger", job="many", id="x")["members"] == 3
        for number in range(3):
            cluster.becomes(f"many#x~{number}", "started")
        assert second.call("run.show", id="many#x~1")["args"] == {"day": "1", "part": '["3", "4"]'}
        shown = second.call("run.show", id="many#x")
        assert (shown["state"], shown["members"]["states"]) == ("started", {"started": 3})
        assert "group of 3 runs: 3 started" in second.why("many#x")

        victim = cluster.owner("many#x~0")
        victim.kill()
        cluster.go("many").touch()
        victim.launch()
        victim.ready()
        cluster.becomes("all#x", "success")
        assert len(cluster.starts("all#x")) == 1
        assert [len(cluster.starts(f"many#x~{number}")) for number in range(3)] == [1, 1, 1]
        shown = victim.call("run.show", id="many#x")
        assert (shown["state"], shown["children"]) == ("success", [{"id": "all#x", "state": "success", "again": False}])


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_parent_is_replayed_with_its_children_although_its_node_is_killed_before_they_run(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        cluster.job("parent", "until", cluster.go("parent"), code=3)
        cluster.job("child", "sleep", 0.1, after={"all": ["parent"], "on": "done"})
        cluster.job("grand", "sleep", 0.1, after=["child"])
        cluster.job("aside", "sleep", 0.1, after=["parent"])
        cluster.start()
        first, second, _ = cluster.nodes
        cluster.go("parent").touch()
        first.call("run.trigger", job="parent", id="x")
        cluster.becomes("grand#x", "success")

        cluster.go("parent").unlink()
        said = second.call("deadletter.replay", id="parent#x/0", with_children=True)
        assert (said["attempt"], said["children"]) == (1, ["aside#x", "child#x", "grand#x"])
        victim = cluster.owner("parent#x", 1)
        left = cluster.others(victim)
        until(lambda: "runs parent#x again, with its children" in left[0].why("child#x"))
        left[0].call("job.suspend", job="child")
        cluster.go("parent").touch()
        until(lambda: [one["state"] for one in cluster.attempts("parent#x")] == ["failure", "failure"])
        victim.kill()  # the parent has ended, and its child has not run once more
        left[1].call("job.resume", job="child")

        cluster.started("grand#x", 1)
        cluster.becomes("grand#x", "success")
        victim.launch()
        victim.ready()
        for run in ("parent#x", "child#x", "grand#x"):
            assert [one.attempt for one in cluster.starts(run)] == [0, 1], run
        assert cluster.starts("aside#x") == [], "its parent has not succeeded"
        shown = victim.call("run.show", id="child#x")
        assert (shown["parents"], shown["rerun_of"]) == (["parent#x"], "parent#x/1")
        assert "It has run once more after child#x" in victim.why("grand#x")
        assert "ran parent#x/1 again, with its children" in victim.why("grand#x")


@pytest.mark.production
def test_a_run_is_run_again_with_its_children_although_its_node_loses_power() -> None:
    with cluster_of(3, backend="production", **TIMING) as cluster:
        cluster.job("parent", "until", cluster.go("parent"))
        cluster.job("child", "sleep", 0.1, after=["parent"])
        cluster.job("grand", "sleep", 0.1, after=["child"])
        first = cluster.start().nodes[0]
        cluster.go("parent").touch()
        first.call("run.trigger", job="parent", id="x")
        cluster.becomes("grand#x", "success")

        cluster.go("parent").unlink()
        said = first.coordctl("run", "rerun", "parent#x", "--with-children").stdout
        assert said.splitlines() == ["parent#x is tried again: attempt 1", "then child#x", "then grand#x"]
        victim = cluster.owner("parent#x", 1)
        victim.kill_family()
        assert cluster.owner("parent#x", 2) is not victim
        assert (len(cluster.starts("child#x")), len(cluster.starts("grand#x"))) == (1, 1), "their parent has not ended"
        cluster.go("parent").touch()

        cluster.started("grand#x", 1)
        cluster.becomes("grand#x", "success")
        victim.start()
        left = cluster.meet().nodes[-1]
        for run, attempts in (("parent#x", [0, 1, 2]), ("child#x", [0, 1]), ("grand#x", [0, 1])):
            assert [one.attempt for one in cluster.starts(run)] == attempts, run
            assert cluster.row(run)["state"] == "success", run
        ends = {(one.run, one.attempt): one.at for one in cluster.entries() if one.word == "end"}
        assert ends["parent#x", 2] < cluster.started("child#x", 1).at
        assert ends["child#x", 1] < cluster.started("grand#x", 1).at
        assert [one["state"] for one in cluster.attempts("parent#x")] == ["success", "lost", "success"]
        assert left.call("run.show", id="child#x")["rerun_of"] == "parent#x/1"
        never_twice(cluster)
