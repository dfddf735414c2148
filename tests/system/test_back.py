"""A node dies with everything that runs on it and comes back: others take its runs over long before the lease ends."""

from __future__ import annotations

import pytest

from system.lab.cluster import cluster_of
from system.lab.processes import boottime, until

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
