"""The examples of deploy/plugins, installed by pip, on a real daemon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugins.written import environ, installed

from system.lab.cluster import CallError, Node, cluster_of
from system.lab.processes import ROOT, until
from system.test_policies import trigger


def run(argv: list[str], *folders: Path) -> subprocess.CompletedProcess[str]:
    env = environ(*folders)
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=60)


def check_state(node: Node) -> tuple[str, str]:
    (found,) = node.call("check.list")
    return found["state"], found["output"] or ""


def says(node: Node, name: str) -> tuple[str, str]:
    """State and text of a line of doctor; ("", "") if there is none."""
    return next(((one["state"], one["text"]) for one in node.call("doctor") if one["check"] == name), ("", ""))


def test_commands_checks_and_services_of_packages_work_on_a_daemon_and_are_listed(tmp_path: Path) -> None:
    site, data = installed(tmp_path, "command", "check", "service"), tmp_path / "data"
    data.mkdir()
    with cluster_of(1) as cluster:
        cluster.job("sales", "until", cluster.go("open"))
        cluster.go("open").touch()
        (node,) = cluster.nodes
        node.env["PYTHONPATH"] = str(site)
        table = 'kind = "newest-file"\nevery = "1s"\ntimeout = "60s"\nfail_after = 1\npass_after = 1\n'
        node.settings = f'[[check]]\nname = "arrivals"\npath = "{data}"\n{table}'
        node.settings += '[[service]]\nname = "ready-file"\nstart_timeout = "60s"\n'
        cluster.start()

        until(lambda: check_state(node) == ("degraded", f"{data} is empty"), why="the check is looked at")
        (data / "one").touch()
        until(lambda: check_state(node)[0] == "healthy", why="a file is there")
        os.utime(data / "one", (0, time.time() - 7200))
        until(lambda: check_state(node)[0] == "unhealthy", why="the file is old")

        said = {found["check"]: (found["state"], found["text"]) for found in node.call("doctor")}
        assert said["plug-in newest-file"] == ("ok", "a check of coordd-newest-file 1.0")
        assert said["plug-in slowest"] == ("ok", "a command of coordd-slowest 1.0")

        assert said["plug-in ready-file"] == ("ok", "a service of coordd-ready-file 1.0")

        file = Path(f"{node.socket}.ready")
        until(lambda: "the daemon is ready" in says(node, "service ready-file")[1], why="the service is ready")
        until(file.exists)
        (pid,) = [
            int(line) for line in run(["pgrep", "-f", f"coordd.services ready-file .*{node.socket}"]).stdout.split()
        ]
        os.kill(pid, signal.SIGKILL)
        until(lambda: "ready, started 2 times" in says(node, "service ready-file")[1], why="it is started again")
        (breaker,) = [one for one in node.call("breaker.list") if one["kind"] == "service"]
        assert (breaker["name"], breaker["state"]) == ("service:ready-file", "closed")
        assert node.call("breaker.reset", name="service:ready-file")["failures"] == 0
        with pytest.raises(CallError, match=r"the breaker of the service ready-file cannot be held open by hand"):
            node.call("breaker.isolate", name="service:ready-file")

        cluster.becomes(trigger(node, "sales", "one"), "success")
        program = [sys.executable, "-c", "from coordd.cli.coordctl import main; main()"]
        argv = [*program, "slowest", "sales", "--socket", str(node.socket)]
        shown = run(argv, site)
        assert shown.stdout.split()[1:] == ["s", "success", "sales#one"], shown.stderr
        config = [sys.executable, "-m", "coordd", "check-config", str(node.config_path)]
        checked = run(config, site)
        assert "newest-file (coordd-newest-file 1.0)" in checked.stdout, checked
        without = run(config)
        assert without.returncode == 78
        assert "newest-file" in without.stdout
        assert ", which no installed package brings; known: amqp, bus, command" in without.stdout
