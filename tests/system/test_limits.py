"""Limits hold in a real cluster: by the programs' own record, never more are alive than a pool or a job allows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from system.lab.cluster import Cluster, Entry, cluster_of
from system.lab.processes import until
from system.test_policies import trigger

POOLS = "\n[pools]\nheavy = 2\n"
ONE_AT_A_TIME = "\n[pools]\nheavy = 1\n"


def most_alive(entries: list[Entry], killed: str = "", killed_at: float = 0.0) -> int:
    """How many programs were alive at once. Those of the killed node that wrote no end died at that instant."""
    changes = [(entry.at, {"start": 1, "end": -1}.get(entry.word, 0)) for entry in entries]
    ended = {(entry.run, entry.attempt) for entry in entries if entry.word == "end"}
    changes += [
        (killed_at, -1)
        for entry in entries
        if entry.word == "start" and entry.node == killed and (entry.run, entry.attempt) not in ended
    ]
    alive = most = 0
    for _, change in sorted(changes):
        alive += change
        most = max(most, alive)
    return most


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_a_pool_is_never_overfull_and_no_run_is_lost_when_an_owner_dies(backend: str) -> None:
    with cluster_of(3, backend=backend) as cluster:
        for node in cluster.nodes:
            node.settings = POOLS
        for job in ("etl", "ml"):
            cluster.job(job, "sleep", 0.5, overlap="allow", pool="heavy")
        cluster.job("held", "until", cluster.go("held"), overlap="allow", pool="heavy")
        cluster.start()
        one, two, three = cluster.nodes
        victim_run = trigger(one, "held")
        cluster.started(victim_run)
        victim = cluster.owner(victim_run)
        runs = [trigger(node, job, f"{n}") for n, node in enumerate((one, two, three) * 2) for job in ("etl", "ml")]
        other = next(node for node in cluster.nodes if node is not victim)
        until(lambda: any("pool heavy: 2 of 2 run" in other.why(run) for run in runs))
        [pool] = other.call("pool.list")
        assert (pool["name"], pool["size"]) == ("heavy", 2)

        victim.kill_family()
        killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        cluster.go("held").touch()
        for run in (victim_run, *runs):
            cluster.becomes(run, "success")

        assert most_alive(cluster.entries(), victim.name, killed_at) == 2
        assert len(cluster.starts(victim_run)) == 2


def test_a_pool_is_closed_and_opened_by_a_person_from_any_node() -> None:
    with cluster_of(3, backend="production") as cluster:
        for node in cluster.nodes:
            node.settings = POOLS
        cluster.job("etl", "sleep", 0, overlap="allow", pool="heavy")
        cluster.start()
        one, two, three = cluster.nodes

        one.call("pool.set", name="heavy", size=0)
        run = trigger(two, "etl")
        until(lambda: "pool heavy: 0 of 0 run" in three.why(run))
        until(lambda: [pool["size"] for pool in three.call("pool.list")] == [0])
        assert not cluster.starts(run)

        three.call("pool.unset", name="heavy")
        cluster.becomes(run, "success")


def test_one_at_a_time_of_each_customer_on_all_nodes() -> None:
    with cluster_of(3, backend="production") as cluster:
        cluster.job(
            "bill",
            "sleep",
            0.5,
            overlap="allow",
            params={"customer": "none"},
            concurrency={"per": "{customer}", "max": 1},
        )
        cluster.start()
        of = {
            customer: [
                trigger(node, "bill", f"{customer}{n}", customer=customer) for n, node in enumerate(cluster.nodes)
            ]
            for customer in ("ann", "bob")
        }

        for runs in of.values():
            for run in runs:
                cluster.becomes(run, "success")

        for runs in of.values():
            assert most_alive([entry for run in runs for entry in cluster.entries(run)]) == 1
        assert most_alive(cluster.entries()) == 2


def test_a_rate_holds_after_its_owner_is_killed() -> None:
    with cluster_of(3, backend="production") as cluster:
        cluster.job("mail", "sleep", 0, overlap="allow", rate="2/m")
        cluster.start()
        runs = [trigger(cluster.nodes[0], "mail", f"{n}") for n in range(3)]
        until(lambda: sum(cluster.row(run)["state"] == "success" for run in runs) == 2)
        waits = next(run for run in runs if cluster.row(run)["state"] != "success")
        cluster.nodes[0].kill()

        until(lambda: "rate: 2 started within 60 s" in cluster.nodes[1].why(waits))
        assert not cluster.starts(waits)


def test_a_strategy_that_a_package_brings_says_how_many_run(tmp_path: Path) -> None:
    """Its package is installed on both nodes. It allows two, on whatever machine."""
    package = tmp_path / "two-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: two\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[coordd.strategies]\ntwo = two:two\n")
    (tmp_path / "two.py").write_text("def two(room):\n    return 2 if room.most == 5 else 3\n")
    with cluster_of(2, backend="production") as cluster:
        for node in cluster.nodes:
            node.env["PYTHONPATH"] = str(tmp_path)
        cluster.job("etl", "sleep", 1, overlap="allow", concurrency={"min": 1, "max": 5, "by": "two"})
        cluster.start()
        runs = [trigger(node, "etl", f"{n}") for n, node in enumerate(cluster.nodes * 3)]

        for run in runs:
            cluster.becomes(run, "success")

        assert most_alive(cluster.entries()) == 2


def test_a_queue_has_its_length_after_the_owner_of_its_first_run_is_killed() -> None:
    with cluster_of(3, backend="production") as cluster:
        for keep in ("first", "last"):
            cluster.job(keep, "until", cluster.go(keep), overlap="queue", queue_max=1, queue_keep=keep)
        cluster.start()
        one = cluster.nodes[0]
        for job in ("first", "last"):
            cluster.started(trigger(one, job))
            trigger(one, job, "2")
            cluster.becomes(f"{job}#2", "pending")
        victim = cluster.owner("first#1")
        other, *_ = cluster.others(victim)
        victim.kill_family()
        for job in ("first", "last"):
            trigger(other, job, "3")

        assert "the queue is full: 1 wait" in cluster.becomes("first#3", "rejected")["reason"]
        assert "the last are kept" in cluster.becomes("last#2", "rejected")["reason"]
        for job in ("first", "last"):
            cluster.go(job).touch()
        for run in ("first#1", "first#2", "last#1", "last#3"):
            cluster.becomes(run, "success")
        assert not cluster.starts("first#3") + cluster.starts("last#2")


def test_no_node_runs_more_than_its_budget_after_another_one_is_killed() -> None:
    with cluster_of(3, backend="production", budget=2) as cluster:
        cluster.job("etl", "sleep", 1, overlap="allow")
        cluster.job("held", "until", cluster.go("held"), overlap="allow")
        cluster.start()
        held = trigger(cluster.nodes[0], "held")
        victim = cluster.owner(held)
        runs = [trigger(node, "etl", f"{n}") for n, node in enumerate(cluster.nodes * 4)]
        victim.kill_family()
        killed_at = time.clock_gettime(time.CLOCK_BOOTTIME)
        cluster.go("held").touch()

        for run in (held, *runs):
            cluster.becomes(run, "success")
        for node in cluster.nodes:
            here = [entry for entry in cluster.entries() if entry.node == node.name]
            assert most_alive(here, victim.name, killed_at) <= 2, node.name
        assert len(cluster.starts(held)) == 2


# ---- priorities across nodes


def order_of(cluster: Cluster, runs: list[str]) -> list[str]:
    """The order in which these runs started, each once."""
    for run in runs:
        cluster.becomes(run, "success")
    started = sorted((entry for entry in cluster.starts() if entry.run in runs), key=lambda entry: entry.at)
    assert len(started) == len(runs)
    return [entry.run for entry in started]


def wait_in_line(cluster: Cluster, runs: list[str]) -> None:
    """Wait until each node knows that these runs wait for the pool."""
    until(lambda: all("pool heavy" in node.why(run) for node in cluster.nodes for run in runs), why="they wait")


@pytest.mark.parametrize("backend", ["embedded", "production"])
def test_the_highest_priority_of_all_nodes_gets_the_free_slot(backend: str) -> None:
    with cluster_of(2, backend=backend) as cluster:
        for node in cluster.nodes:
            node.settings = ONE_AT_A_TIME
        cluster.job("holder", "until", cluster.go("on"), pool="heavy")
        for name, priority in (("low", -5), ("usual", 0), ("high", 5)):
            cluster.job(name, "sleep", 0.1, overlap="allow", pool="heavy", priority=priority)
        cluster.start()
        one, two = cluster.nodes
        cluster.started(trigger(one, "holder"))
        runs = [trigger(node, job, name) for job in ("low", "usual", "high") for name, node in (("1", one), ("2", two))]
        wait_in_line(cluster, runs)
        cluster.go("on").touch()

        jobs = [run.partition("#")[0] for run in order_of(cluster, runs)]
        assert jobs == ["high", "high", "usual", "usual", "low", "low"]


def test_the_strategy_orders_jobs_by_what_they_did() -> None:
    """The two jobs differ only in how long their earlier runs took."""
    with cluster_of(2, backend="production") as cluster:
        for node in cluster.nodes:
            node.settings, node.changes = ONE_AT_A_TIME, {"priority": "quick_first"}
        cluster.job("holder", "until", cluster.go("on"), pool="heavy", overlap="allow")
        for name, seconds in (("long", 2.0), ("quick", 0)):
            cluster.job(name, "sleep", seconds, overlap="allow", pool="heavy")
        cluster.start()
        for job in ("long", "quick"):
            cluster.becomes(trigger(cluster.nodes[0], job, "before"), "success")
        for node in cluster.nodes:  # at its start a node looks at the history at once
            node.stop()
        for node in cluster.nodes:
            node.launch()
        for node in cluster.nodes:
            node.ready()
        one, two = cluster.meet().nodes
        cluster.started(trigger(one, "holder"))
        runs = [trigger(node, job, name) for name, node in (("1", one), ("2", two)) for job in ("long", "quick")]
        wait_in_line(cluster, runs)
        cluster.go("on").touch()

        assert [run.partition("#")[0] for run in order_of(cluster, runs)] == ["quick", "quick", "long", "long"]
