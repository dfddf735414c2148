"""Strategies and configuration backends of packages on real daemons: the examples of deploy/plugins, and bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.test_daemon import running
from plugins.written import installed, written
from support.fake_daemon import open_directory, write_job

from coordd import client
from coordd.plugins import CONFIG_BACKENDS, STRATEGIES
from system.lab.cluster import cluster_of
from system.lab.probe import probed
from system.lab.processes import ROOT
from system.plugged.test_plugins import says
from system.test_policies import trigger

# What `leaks` does is in tests/services/strategies: on a busy machine a gibibyte takes longer than a second.
BAD = """
import os, re, sys

def exits(of): sys.exit(3)
def ends(of): os._exit(3)
def holds(of): return re.match("(a*)*b", "a" * 64)
"""

JOB = """
overlap = "allow"
concurrency = { min = 2, max = 5, by = "NAME" }
[command]
argv = ["/bin/true"]
"""

PROBLEMS = {
    "exits": "it called exit(3)",
    "ends": "its process has ended: it ended with exit code 3",
    "holds": "no answer within 1 s",
    "loops": "no answer within 1 s",
}


def test_the_example_of_a_strategy_is_asked_and_listed(tmp_path: Path) -> None:
    site = installed(tmp_path, "strategy")
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        node.env["PYTHONPATH"] = str(site)
        cluster.job("etl", "sleep", 0, overlap="allow", concurrency={"min": 1, "max": 5, "by": "night"})
        cluster.start()
        cluster.becomes(trigger(node, "etl"), "success")

        assert says(node, "plug-in night") == ("ok", "a strategy of coordd-night 1.0")
        assert "strategy.absurd" not in node.log()


def test_the_example_of_a_configuration_backend_brings_jobs(tmp_path: Path) -> None:
    site, table = installed(tmp_path, "config_backend"), tmp_path / "customers.csv"
    table.write_text("name,hour\nann,3\nbob,4\n")
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        node.env |= {"PYTHONPATH": str(site), "CUSTOMERS": str(table)}
        node.settings = '[jobs]\nbackend = "customers"\n'
        cluster.start()

        assert {job["name"]: job["schedule"] for job in node.call("job.list")} == {
            "bill-ann": "0 3 * * *",
            "bill-bob": "0 4 * * *",
        }
        cluster.becomes(trigger(node, "bill-ann"), "success")
        assert says(node, "plug-in customers") == ("ok", "a configuration backend of coordd-customers 1.0")


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_a_bad_strategy_holds_no_daemon_and_is_named(name: str, tmp_path: Path) -> None:
    """The daemon's loop is never held for 100 ms, and `doctor` neither ends it nor waits."""
    site = written(tmp_path / "bad", STRATEGIES, BAD, *PROBLEMS)
    (site / "ends_all.py").write_text("import os; os._exit(1)")
    points = site / "bad-0.7.dist-info" / "entry_points.txt"
    points.write_text(f"{points.read_text()}[{CONFIG_BACKENDS}]\nunused = ends_all:jobs\n")
    with open_directory() as directory:
        Path(directory, "jobs.d").mkdir()
        write_job(directory, "etl", JOB.replace("NAME", name))
        held = Path(directory, "held")
        argv = ["env", f"PYTHONPATH={site}:{ROOT}", *probed(held)]
        with running(directory, argv) as node, client.blocking(node.socket) as coordd:
            Path(f"{held}.go").touch()
            node.wait_until(lambda: PROBLEMS[name] in Path(directory, "log").read_text())

            said = {one["check"]: (one["state"], one["text"]) for one in coordd.doctor()}
            assert said["plug-in unused"] == ("ok", "a configuration backend of bad 0.7")
            if name != "exits":  # its process lives, and is asked again
                assert said[f"plug-in {name}"] == ("warn", PROBLEMS[name])
            run = node.ctl("run", "trigger", "etl").stdout.strip()
            node.wait_until(lambda: node.json("run", "show", run)["state"] == "success")
            assert node.process.poll() is None
        assert float(held.read_text()) < 0.1
