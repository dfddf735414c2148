"""A backfill in a real cluster: a run's owner and the node that began it die, and each fire time runs to its end."""

from __future__ import annotations

import time
from typing import Any

import pytest

from coordd.core.jobs.job import iso, scheduled_run
from system.lab.cluster import Cluster, Entry, Node, cluster_of
from system.lab.processes import until

HOUR_S = 3600.0


def most_alive(entries: list[Entry]) -> int:
    """How many programs were alive at once, by their own record."""
    alive = most = 0
    for _, change in sorted((entry.at, {"start": 1, "end": -1}.get(entry.word, 0)) for entry in entries):
        alive += change
        most = max(most, alive)
    return most


def begin(node: Node, hours: int, **more: Any) -> tuple[dict[str, Any], list[str]]:
    """A backfill of the last hours, and the runs of their fire times."""
    end = time.time() // HOUR_S * HOUR_S - 24 * HOUR_S
    fires = [end - (hours - number) * HOUR_S for number in range(hours)]
    until(lambda: not node.status()["stale_jobs"], why="its definition counts")
    told = node.call("job.backfill", job="etl", **{"from": iso(fires[0]), "to": iso(end)}, **more)
    return told, [scheduled_run("etl", at) for at in fires]


def plan(node: Node) -> dict[str, Any]:
    (found,) = node.call("job.backfills", job="etl")
    assert isinstance(found, dict)
    return found


def becomes(cluster: Cluster, state: str) -> dict[str, Any]:
    living = next(node for node in cluster.nodes if node.up)
    until(lambda: plan(living)["state"] == state, why=f"the plan is {state}")
    return plan(living)


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_backfill_goes_on_although_its_owner_and_the_node_that_began_it_die(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        cluster.job("etl", "until", cluster.go("etl"), schedule="0 * * * *", overlap="allow")
        cluster.start()
        first = cluster.nodes[0]
        told, runs = begin(first, 6, at_most=2)
        assert (told["runs"], told["states"]) == (6, {"none": 6})
        for run in runs[:2]:
            cluster.becomes(run, "started")
        assert [row["run"] for row in cluster.rows() if row["run"] in runs[2:]] == []

        victims = {cluster.owner(runs[0], 1).name, first.name}
        killed = [node for node in cluster.nodes if node.name in victims]
        for node in killed:
            node.kill_family()
        cluster.go("etl").touch()
        done = becomes(cluster, "done")

        assert (done["succeeded"], done["failed"], done["opened"], done["passed"]) == (6, 0, 6, 0)
        for run in runs:
            cluster.becomes(run, "success")
        starts = [(entry.run, entry.attempt) for entry in cluster.starts() if entry.run in runs]
        assert len(starts) == len(set(starts)), "no attempt is launched twice"
        assert all(attempt >= 1 for _, attempt in starts)
        living = [entry for entry in cluster.entries() if entry.run in runs and entry.node not in victims]
        assert most_alive(living) <= 2


def test_runs_follow_each_other_live_first_and_are_run_again() -> None:
    with cluster_of(3, backend="production") as cluster:
        cluster.job("etl", "sleep", 0.3, schedule="0 * * * *")
        cluster.start()
        one, two, three = cluster.nodes
        _, runs = begin(one, 4)
        live = str(two.call("run.trigger", job="etl", id="live")["id"])
        becomes(cluster, "done")
        cluster.becomes(live, "success")
        assert most_alive(cluster.entries()) == 1

        begin(three, 4, redo="all", order="newest")
        becomes(cluster, "done")
        assert [entry.run for entry in cluster.starts() if entry.attempt == 2] == runs[::-1]
        assert "A backfill (" in two.why(runs[0])
