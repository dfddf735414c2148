"""A node dies with everything that runs on it and comes back: others take its runs over long before the lease ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from system.lab.cluster import Node, cluster_of
from system.lab.processes import ROOT, boottime, until

# No takeover may wait for this lease (seconds); the deadline of a takeover is generous for a loaded machine.
LEASE = {"lease": 60.0, "renew": 10.0, "ledger_timeout": 2.0, "kill_grace": 10.0}
SOON_S = 20.0


@pytest.mark.parametrize("backend", ["embedded", "production"])
@pytest.mark.parametrize("on_lost", ["relaunch", "hold"])
def test_a_daemon_that_is_back_tells_of_an_attempt_that_died_with_it(backend: str, on_lost: str) -> None:
    with cluster_of(2, backend=backend, budget=1, **LEASE) as cluster:
        cluster.job("hello", "until", cluster.go("on"), on_lost=on_lost)
        cluster.start()
        run = str(cluster.nodes[0].call("run.trigger", job="hello", id="1")["id"])
        first = cluster.started(run)
        holder = next(node for node in cluster.nodes if node.name == first.node)
        holder.runner(run)
        records = list((holder.state_dir / "attempts").iterdir())
        assert len(records) == 1
        assert holder.kill_family() >= 4, "daemon, watcher, runner and program"
        lease_ends = boottime() + LEASE["lease"] - LEASE["renew"]
        assert cluster.row(run)["state"] == "started"
        holder.launch()
        ended = "unknown" if on_lost == "hold" else "retry"
        until(lambda: cluster.attempts(run)[0]["state"] in ("lost", "unknown"), SOON_S, f"{run}/0 {ended}")
        assert boottime() < lease_ends
        holder.ready()
        if on_lost == "hold":
            assert cluster.row(run)["state"] == "unknown"
            assert len(cluster.starts(run)) == 1
        else:
            second = until(lambda: [entry for entry in cluster.starts(run) if entry.attempt == 1], SOON_S)[0]
            assert second.at < lease_ends
            cluster.go("on").touch()
            assert cluster.becomes(run, "success")["attempt"] == 1
        until(lambda: not list((holder.state_dir / "attempts").iterdir()), why="its record is not needed any more")


# Loaded by a daemon of these tests at its start: a machine outside of containers, whose boot id is in a file.
MACHINE = """
import sys
sys.path.insert(0, {root!r})
from coordd.adapters import place
real = place.here
place.here = lambda: {{**real(), "boot": open({boot!r}).read(), "container": ""}}
"""


def machine_of(node: Node) -> Path:
    """Give a node such a machine; returns the file of its boot id."""
    site = Path(f"{node.state_dir}.site")
    site.mkdir()
    boot = site / "boot"
    boot.write_text("first")
    (site / "sitecustomize.py").write_text(MACHINE.format(root=str(ROOT), boot=str(boot)))
    node.env["PYTHONPATH"] = str(site)
    return boot


@pytest.mark.parametrize("restarted", ["the machine", "nothing: somebody has removed RUNTIME_DIR"])
def test_a_machine_that_has_restarted_has_nothing_of_its_attempts(restarted: str) -> None:
    with cluster_of(2, backend="production", budget=1, **LEASE) as cluster:
        boots = {node.name: machine_of(node) for node in cluster.nodes}
        cluster.job("hello", "until", cluster.go("on"))
        cluster.start()
        run = str(cluster.nodes[0].call("run.trigger", job="hello", id="1")["id"])
        first = cluster.started(run)
        holder = next(node for node in cluster.nodes if node.name == first.node)
        holder.kill_family()
        lease_ends = boottime() + LEASE["lease"] - LEASE["renew"]
        shutil.rmtree(holder.runtime_dir)  # it was in memory
        if restarted == "the machine":
            boots[holder.name].write_text("second")
        holder.start()
        if restarted == "the machine":
            second = until(lambda: [entry for entry in cluster.starts(run) if entry.attempt == 1], SOON_S)[0]
            assert second.at < lease_ends
            assert cluster.attempts(run)[0]["reason"] == "its machine has restarted"
            cluster.go("on").touch()
            assert cluster.becomes(run, "success")["attempt"] == 1
            until(lambda: not list((holder.state_dir / "attempts").iterdir()), why="its record is not needed any more")
        else:
            until(lambda: "runner.end_not_known" in holder.log())
            assert cluster.row(run)["state"] == "started", "nobody knows: the lease decides"
            assert cluster.attempts(run)[0]["reason"] == ""
