"""A disk is full or read-only, a ledger is locked, damaged or gone: coordd says so, survives and recovers by itself."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from system.lab.backends import locked
from system.lab.cluster import CallError, Node, cluster_of
from system.lab.disks import fill, small_disk
from system.lab.processes import boottime, exists, kill_at_once, until

EXIT_UNAVAILABLE = 69


def trigger(node: Node, job: str, ident: str = "1") -> str:
    return str(node.call("run.trigger", job=job, id=ident)["id"])


# ---- disks


def test_a_node_whose_disk_is_full_abstains_until_there_is_room() -> None:
    with small_disk() as disk, cluster_of(2) as cluster:
        full, other = cluster.nodes
        full.state_dir = disk
        cluster.job("hello", "sleep", 0, overlap="allow", params={"pad": ""})
        cluster.start()
        trigger(full, "hello", "before")
        cluster.becomes("hello#before", "success")
        ballast = full.state_dir / "ballast"
        with ballast.open("wb") as file, pytest.raises(OSError, match="No space left"):
            while True:
                os.write(file.fileno(), b"x" * 1024)
        other.call("node.drain")
        # The argument is too long for the free part of the journal's last page.
        first = other.call("run.trigger", job="hello", id="first", args={"pad": "x" * 4096})["id"]
        impaired = until(lambda: full.status()["impaired"])  # for as long as it does not try again
        assert "its journal cannot be written" in impaired
        assert "No space left" in impaired
        assert "journal.failed" in full.log()
        until(lambda: cluster.row(first)["attempt"] == 1)
        assert cluster.attempts(first)[0]["reason"] == "the journal cannot be written"
        assert not cluster.starts(first), "what cannot be written down is not begun"
        launched = len(cluster.starts())
        stuck = trigger(other, "hello", "stuck")
        until(lambda: "journal cannot be written" in full.why(stuck))
        until(lambda: "journal cannot be written" in other.why(stuck), why="those who ask elsewhere are told, too")
        assert len(cluster.starts()) == launched
        assert not cluster.starts(stuck)
        other.call("node.resume")
        cluster.becomes(stuck, "success")
        for number in range(10):
            trigger(other, "hello", str(number))
        for number in range(10):
            cluster.becomes(f"hello#{number}", "success")
        assert cluster.becomes(first, "success")["attempt"] == 1
        # It tries again after a while. A short record may fit into the last page: then it takes part again and says so.
        took_part = {entry.node for entry in cluster.starts()[launched:]}
        assert took_part == {other.name} or "journal.restored" in full.log()
        ballast.unlink()
        until(lambda: not full.status()["impaired"])
        other.call("node.drain")
        trigger(full, "hello", "after")
        cluster.becomes("hello#after", "success")
        assert cluster.starts("hello#after")[0].node == full.name


def test_a_state_directory_that_cannot_be_written_is_said_at_the_start() -> None:
    with small_disk() as disk, cluster_of(2) as cluster:
        broken, other = cluster.nodes
        broken.state_dir = disk
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        cluster.job("hello", "sleep", 0)
        broken.launch()
        assert broken.wait() == EXIT_UNAVAILABLE
        assert f"{disk} cannot be written: Read-only file system" in broken.log()
        other.start()
        trigger(other, "hello")
        cluster.becomes("hello#1", "success")


@pytest.mark.parametrize("on_lost", ["relaunch", "hold"])
def test_a_full_runtime_directory_is_said_and_costs_no_run(on_lost: str) -> None:
    """A runner writes there for people and for the next daemon. The ledger keeps how a run ends."""
    with cluster_of(1, budget=1) as cluster, small_disk(Path(f"{cluster.path}/n1.run")) as disk:
        (node,) = cluster.nodes
        cluster.job("hello", "until", cluster.go("on"), overlap="allow", on_lost=on_lost)
        cluster.start()
        run = trigger(node, "hello")
        cluster.started(run)
        ballast = fill(disk)
        until(lambda: node.status()["impaired"])
        assert f"its runtime directory {disk} cannot be written: No space left" in node.status()["impaired"]
        waits = trigger(node, "hello", "waits")
        until(lambda: "cannot be written" in node.why(waits))
        cluster.go("on").touch()
        row = cluster.becomes(run, "success")
        assert row["attempt"] == 0
        assert not cluster.starts(waits)
        ballast.unlink()
        until(lambda: not node.status()["impaired"])
        assert cluster.becomes(waits, "success")["attempt"] == 0, "the one slot of the budget is free again"
        assert len(cluster.starts()) == 2
        assert "runtime_dir.failed" in node.log()


@pytest.mark.parametrize("what", ["its attempt's", "all of it"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_runtime_directory_that_is_removed_costs_no_slot(what: str, dies: bool) -> None:
    with cluster_of(1, budget=1) as cluster:
        (node,) = cluster.nodes
        cluster.job("hello", "until", cluster.go("on"), overlap="allow", on_lost="hold")
        cluster.start()
        run = trigger(node, "hello")
        program = cluster.started(run)
        said = node.runner(run)
        until(lambda: any(fact["fact"] == "started" for fact in node.facts(run)))
        shutil.rmtree(node.runtime_dir / "runs")
        if what == "all of it":
            (node.runtime_dir / "facts.sock").unlink()
        if dies:
            kill_at_once(lambda: {pid for pid in (said["pid"], said["watcher"]) if exists(pid)})
            cluster.becomes(run, "unknown")
            assert not exists(program.pid)
        cluster.go("on").touch()
        if not dies:
            cluster.becomes(run, "success")
        after = trigger(node, "hello", "after")
        cluster.becomes(after, "success")
        until(lambda: not list((node.runtime_dir / "runs").iterdir()))
        assert node.log().count("runner.not_buried") == 0


# ---- the ledger


def test_the_ledger_is_locked_for_longer_than_a_lease() -> None:
    with cluster_of(2) as cluster:
        cluster.job("fenced", "until", cluster.go("on"), overlap="allow")
        cluster.job("held", "until", cluster.go("on"), on_lost="hold")
        cluster.start()
        one = cluster.nodes[0]
        trigger(one, "fenced")
        trigger(one, "held")
        fenced, held = cluster.started("fenced#1"), cluster.started("held#1")
        with locked(cluster.ledger_path):
            lease_end = cluster.row("fenced#1")["until"]
            assert one.call("run.trigger", job="fenced", id="2")["durable"] == "node"
            status = one.status()["ledger"]
            assert status["state"] == "unavailable"
            assert "locked by another process" in status["error"]
            until(lambda: not exists(fenced.pid), why="it may not outlive its lease")
            assert held.at < lease_end
            until(lambda: boottime() > lease_end)
            assert exists(held.pid), "a job that says hold goes on without a ledger"
            assert len(cluster.starts()) == 2, "nothing new is launched"
        cluster.go("on").touch()
        assert cluster.becomes("held#1", "success")["attempt"] == 0
        assert cluster.becomes("fenced#1", "success")["attempt"] == 1
        cluster.becomes("fenced#2", "success")
        for node in cluster.nodes:
            node.ledger_is("connected")
        assert not [entry for entry in cluster.entries() if entry.word == "overlap"]
        assert max(entry.at for entry in cluster.entries("fenced#1") if entry.attempt == 0) < lease_end


@pytest.mark.parametrize("harm", ["deleted", "corrupt"])
def test_the_ledger_is_lost_in_mid_run_and_comes_back(harm: str) -> None:
    with cluster_of(2) as cluster:
        cluster.job("hello", "sleep", 0, overlap="allow")
        cluster.job("held", "until", cluster.go("on"), on_lost="hold")
        cluster.start()
        trigger(cluster.nodes[0], "hello", "before")
        cluster.becomes("hello#before", "success")
        held = cluster.started(trigger(cluster.nodes[1], "held"))
        aside = cluster.ledger_path.with_suffix(".aside")
        header = cluster.ledger_path.read_bytes()[:4096]
        if harm == "deleted":
            cluster.ledger_path.rename(aside)
        else:
            _write(cluster.ledger_path, random.Random(1).randbytes(4096))
        for node in cluster.nodes:
            said = node.ledger_is("unavailable")["error"]
            assert "the file is gone" in said if harm == "deleted" else "damaged" in said
        at = next(node for node in cluster.nodes if node.name == held.node)
        assert at.why("held#1").startswith("held#1 has a runner that lives on this node (attempt 0).")
        for node in set(cluster.nodes) - {at}:
            assert node.why("held#1").startswith(f"held#1 was held by {at.name} (attempt 0) when this node last heard")
        for number, node in enumerate(cluster.nodes):
            assert node.call("run.trigger", job="hello", id=str(number))["durable"] == "node"
            assert "the ledger does not answer" in node.why(f"hello#{number}")
            with pytest.raises(CallError) as caught:
                node.call("run.list")
            assert caught.value.kind == "unavailable"
        assert len(cluster.starts()) == 2
        assert harm == "corrupt" or not cluster.ledger_path.exists(), "nobody begins a new one"
        if harm == "deleted":
            aside.rename(cluster.ledger_path)
        else:
            _write(cluster.ledger_path, header)
        for number in range(2):
            cluster.becomes(f"hello#{number}", "success")
        for node in cluster.nodes:
            node.ledger_is("connected")
        assert exists(held.pid)
        cluster.go("on").touch()
        assert cluster.becomes("held#1", "success")["attempt"] == 0
        assert len(cluster.starts()) == 4


def _write(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)
        os.fsync(file.fileno())
