"""A cluster of real daemons launches each run once, at its time, as long as one node lives."""

from __future__ import annotations

import signal

import pytest

from system.lab.cluster import Cluster, cluster_of, fire_time
from system.lab.processes import until


def nominal_times(cluster: Cluster, job: str) -> list[float]:
    """The nominal times that were launched, in order. Fails if one was launched twice or before its time."""
    starts = [entry for entry in cluster.starts() if entry.run.startswith(f"{job}@")]
    assert all(entry.wall >= fire_time(entry.run) for entry in starts), "none before its time"
    first = sorted(fire_time(entry.run) for entry in starts if entry.attempt == 0)
    assert len(set(first)) == len(first), "no nominal time is launched twice"
    return first


@pytest.mark.parametrize(
    ("backend", "size"),
    [
        ("embedded", 1),
        ("embedded", 2),
        ("embedded", 3),
        ("production", 1),
        ("production", 2),
        ("production", 3),
        ("production", 5),
    ],
)
def test_a_trigger_is_launched_once_and_all_nodes_agree(backend: str, size: int) -> None:
    with cluster_of(size, backend=backend) as cluster:
        cluster.job("hello", "sleep", 0.1)
        cluster.start()
        answers = [node.call("run.trigger", job="hello", id="one") for node in cluster.nodes]
        assert [answer["id"] for answer in answers] == ["hello#one"] * size
        assert {answer["durable"] for answer in answers} == {"ledger"}
        cluster.becomes("hello#one", "success")
        (start,) = cluster.starts()
        shown = [node.call("run.show", id="hello#one") for node in cluster.nodes]
        assert [run["state"] for run in shown] == ["success"] * size
        assert {run["node"].partition(".")[0] for run in shown} == {start.node}
        assert {run["token"] for run in shown} == {start.token}
        for node in cluster.nodes:
            status = node.status()
            assert (status["state"], status["bus"]["state"], status["ledger"]["state"]) == (
                "ready",
                "connected",
                "connected",
            )
            assert status["members"] == {"alive": size, "suspect": 0, "lost": 0}
            assert node.process is not None
            listed = node.call("node.list")
            assert {(one["hostname"], one["state"]) for one in listed} == {
                (other.name, "alive") for other in cluster.nodes
            }
            assert [(one["hostname"], one["pid"]) for one in listed if one["self"]] == [(node.name, node.process.pid)]
            assert len({one["jobs_digest"] for one in listed}) == 1
            assert "succeeded" in node.why("hello#one")


@pytest.mark.parametrize(("backend", "size"), [("embedded", 3), ("production", 3), ("production", 5)])
def test_each_fire_time_is_launched_once_also_when_all_but_one_node_are_lost(backend: str, size: int) -> None:
    with cluster_of(size, backend=backend) as cluster:
        cluster.job("tick", "sleep", 0.05, schedule="every 2s", overlap="allow", misfire="all")
        cluster.start()
        until(lambda: len(nominal_times(cluster, "tick")) >= 3)
        assert {entry.attempt for entry in cluster.starts()} == {0}
        *going, last = cluster.nodes
        for node in going:
            node.kill_family()
        died = len(nominal_times(cluster, "tick"))
        # If a dead node had claimed a run ahead, that run must wait for the lease to end. Then every run is launched.
        until(lambda: len(nominal_times(cluster, "tick")) >= died + 6)

        def missing() -> set[float]:
            times = nominal_times(cluster, "tick")
            return {times[0] + 2.0 * step for step in range(int((times[-1] - times[0]) / 2))} - set(times)

        until(lambda: not missing(), why="no nominal time is left out")
        assert {entry.node for entry in cluster.starts()[-3:]} == {last.name}
        again = {entry.run for entry in cluster.starts() if entry.attempt > 0}
        assert {cluster.starts(run)[0].node for run in again} <= {node.name for node in going}, "only what was cut off"
        until(lambda: last.status()["members"] == {"alive": 1, "suspect": 0, "lost": size - 1})
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"]


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_cluster_that_is_stopped_as_a_whole_finishes_what_was_open(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        cluster.job("long", "until", cluster.go("long"))
        cluster.job("line", "until", cluster.go("line"), overlap="queue")
        cluster.start()
        first, second, third = cluster.nodes
        first.call("run.trigger", job="long", id="1")
        first.call("run.trigger", job="line", id="1")
        cluster.started("long#1")
        cluster.started("line#1")
        second.call("run.trigger", job="line", id="2")
        assert [node.stop() for node in cluster.nodes] == [0, 0, 0]
        cluster.go("long").touch()
        cluster.becomes("long#1", "success")  # its runner needs no daemon
        assert cluster.row("line#2")["state"] == "pending"
        third.start()
        assert third.status()["members"]["alive"] == 1
        cluster.go("line").touch()
        cluster.becomes("line#1", "success")
        cluster.becomes("line#2", "success")
        first.start()
        second.start()
        assert sorted(entry.run for entry in cluster.starts()) == ["line#1", "line#2", "long#1"]


@pytest.mark.parametrize(("backend", "size"), [("embedded", 3), ("production", 3), ("production", 5)])
def test_a_cluster_that_loses_its_power_finishes_what_was_open(backend: str, size: int) -> None:
    with cluster_of(size, backend=backend) as cluster:
        cluster.job("again", "until", cluster.go("again"))
        cluster.job("held", "until", cluster.go("held"), on_lost="hold")
        cluster.job("line", "until", cluster.go("again"), overlap="queue")
        cluster.start()
        for job in ("again", "held", "line"):
            cluster.nodes[0].call("run.trigger", job=job, id="1")
            cluster.started(f"{job}#1")
        cluster.nodes[0].call("run.trigger", job="line", id="2")
        for node in cluster.nodes:
            node.signal(signal.SIGSTOP)
        for node in cluster.nodes:
            node.kill_family()
        assert not cluster.processes()
        cluster.go("again").touch()
        cluster.start()
        cluster.becomes("held#1", "unknown")
        for run, attempt in (("again#1", 1), ("line#1", 1), ("line#2", 0)):
            assert cluster.becomes(run, "success")["attempt"] == attempt
        assert sorted((entry.run, entry.attempt) for entry in cluster.starts()) == [
            ("again#1", 0),
            ("again#1", 1),
            ("held#1", 0),
            ("line#1", 0),
            ("line#1", 1),
            ("line#2", 0),
        ]
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"]
        assert cluster.attempts("again#1")[0]["state"] == "lost"
