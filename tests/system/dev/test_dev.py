"""coordd dev: a cluster that works, and that leaves no process and no file behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from system.dev.running import dev
from system.lab.processes import exists, processes, until


def test_an_interrupt_leaves_no_process_and_no_file(place: Path) -> None:
    with dev(place) as cluster:
        cluster.ready()
        assert cluster.call("n2", "status")["members"]["alive"] == 3
        run = cluster.call("n1", "run.trigger", job="long", id="x")["id"]
        until(lambda: cluster.row("n3", run)["state"] == "started", why="the run starts")
        until(lambda: "task-started" in cluster.said, why="the run's start is printed")
        family = cluster.family()
        assert len(family) >= 3 * 2 + 3, "three daemons with their warm parents; watcher, runner and program"

        cluster.process.send_signal(signal.SIGINT)

        assert cluster.wait() == 0, cluster.said
        assert [pid for pid in family if exists(pid)] == []
        assert cluster.family() == set()
        assert not place.exists()


def test_a_directory_that_was_there_stays_and_is_empty(place: Path) -> None:
    place.mkdir()
    with dev(place, "--nodes", "1") as cluster:
        cluster.ready()
        cluster.process.send_signal(signal.SIGTERM)

        assert cluster.wait() == 0, cluster.said
        assert list(place.iterdir()) == []


def test_with_a_broker_everything_is_signed_and_encrypted(place: Path) -> None:
    with dev(place, "--bus", "amqp", "--nodes", "2") as cluster:
        cluster.ready()
        status = cluster.call("n1", "status")
        assert status["bus"]["url"].startswith("amqps://")
        assert status["bus"]["state"] == "connected"
        assert status["ledger"]["url"].startswith("rediss://")
        assert "unsigned" not in (place / "n1" / "coordd.log").read_text()
        run = cluster.call("n2", "run.trigger", job="long", id="x")["id"]
        until(lambda: cluster.row("n1", run)["state"] == "started", why="the run starts")
        assert {b"epmd", b"redis-server"} <= {
            Path(f"/proc/{pid}/comm").read_bytes().strip() for pid in cluster.family()
        }

        cluster.process.send_signal(signal.SIGINT)

        assert cluster.wait() == 0, cluster.said
        assert cluster.family() == set()
        assert not place.exists()


def test_a_key_cuts_the_power_of_a_node_and_another_takes_its_run(place: Path) -> None:
    with dev(place, "--nodes", "2", terminal=True) as cluster:
        cluster.ready()
        run = cluster.call("n1", "run.trigger", job="long", id="x")["id"]
        first = until(lambda: (row := cluster.row("n1", run))["state"] == "started" and row, why="the run starts")
        owner = first["node"].split(".")[0]
        other = {"n1": "n2", "n2": "n1"}[owner]
        there = processes([f"{place}/{owner}/"]) - {cluster.process.pid}

        os.write(cluster._reading, owner[1:].encode())

        until(lambda: not [pid for pid in there if exists(pid)], why=f"everything of {owner} is killed")
        again = until(
            lambda: (row := cluster.row(other, run))["state"] == "started" and row["attempt"] > first["attempt"] and row
        )
        assert again["node"].startswith(f"{other}.")

        os.write(cluster._reading, owner[1:].encode())
        until(lambda: cluster.call(other, "status")["members"]["alive"] == 2, why=f"{owner} is back")
        os.write(cluster._reading, b"q")

        assert cluster.wait() == 0, cluster.said
        assert cluster.family() == set()
        assert not place.exists()


def test_a_cluster_that_cannot_start_says_why_and_leaves_nothing(place: Path) -> None:
    with dev(Path(f"{place}{'x' * 120}")) as cluster:
        assert cluster.wait() == 78

        assert "n1" in cluster.said
        assert "bytes" in cluster.said
        assert not cluster.place.exists()


def test_files_of_others_are_not_removed(place: Path) -> None:
    place.mkdir()
    (place / "thesis").write_text("mine")
    with dev(place) as cluster:
        assert cluster.wait() == 69

        assert "is not empty (thesis)" in cluster.said
        assert (place / "thesis").read_text() == "mine"
