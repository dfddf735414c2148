"""Boot steps on a real daemon: the example of deploy/plugins, installed by pip, and bad ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plugins.written import environ, installed, written

from system.lab.cluster import CallError, Node, cluster_of
from system.lab.processes import ROOT, until
from system.plugged.test_plugins import says
from system.test_policies import trigger

STEPS = """
import os, time

def flag(of):
    while not os.path.exists(of.args["file"]):
        of.status("waits for its file")
        time.sleep(0.05)

def absent(of):
    if not os.path.exists(of.args["file"]):
        raise OSError("no file")
    return "there"
"""


def table(name: str, *lines: str, **args: object) -> str:
    said = ", ".join(f'{key} = "{value}"' for key, value in args.items())
    return "\n".join(["[[boot]]", f'name = "{name}"', *lines, f"args = {{ {said} }}", ""])


def steps_of(node: Node) -> dict[str, dict[str, Any]]:
    return {step["name"]: step for step in node.status()["boot"]}


def test_the_node_is_ready_after_its_mandatory_steps_and_tries_the_others_again(tmp_path: Path) -> None:
    site = installed(tmp_path, "boot_step")
    bad = written(tmp_path / "bad", "coordd.boot_steps", STEPS, "flag", "absent", "loops", "leaks")
    with cluster_of(1) as cluster:
        cluster.job("sales", "until", cluster.go("open"))
        cluster.go("open").touch()
        (node,) = cluster.nodes
        node.env["PYTHONPATH"] = os.pathsep.join(map(str, (site, bad)))
        optional = "mandatory = false"
        node.settings = (
            table("flag", 'requires = ["mounted"]', 'timeout = "5m"', file=tmp_path / "flag")
            + table("mounted", path="/proc")
            + table("absent", optional, 'timeout = "1m"', file=tmp_path / "absent")
            + table("loops", optional, 'timeout = "1s"')
            + table("leaks", optional, 'timeout = "1m"', 'memory = "128M"')
            + table("last", 'step = "mounted"', optional, 'requires = ["absent"]', path="/proc")
        )
        node.launch()
        until(lambda: bool(node.try_call("status")), why="it answers while it starts")
        until(lambda: steps_of(node)["flag"]["text"] == "waits for its file", why="the step is taken")
        assert (node.status()["state"], steps_of(node)["mounted"]["text"]) == ("starting", "/proc mounted")
        assert steps_of(node)["absent"]["state"] == "waiting"
        with pytest.raises(CallError, match="it waits for the boot steps flag") as refused:
            node.call("run.trigger", job="sales", id="early")
        assert refused.value.kind == "try_later"
        (tmp_path / "flag").touch()
        node.ready()

        cluster.becomes(trigger(node, "sales", "one"), "success")
        until(lambda: steps_of(node)["absent"]["attempts"] > 1, why="it is tried again")
        assert steps_of(node)["last"]["state"] == "waiting"
        until(lambda: "it did not end within 1 s" in says(node, "boot step loops")[1], why="what loops is ended")
        until(lambda: "it failed: MemoryError" in says(node, "boot step leaks")[1], why="what leaks fails alone")
        assert says(node, "boot step loops")[0] == "warn"
        assert "OSError: no file" in node.log()
        (tmp_path / "absent").touch()
        until(lambda: steps_of(node)["last"]["state"] == "done", why="the step and the one that requires it are done")
        assert says(node, "boot step absent")[0] == "ok"
        assert says(node, "plug-in mounted") == ("ok", "a boot step of coordd-mounted 1.0")


def test_a_mandatory_step_that_fails_ends_the_start_and_a_signal_does_too(tmp_path: Path) -> None:
    bad = written(tmp_path / "bad", "coordd.boot_steps", STEPS, "flag", "absent")
    with cluster_of(1) as cluster:
        (node,) = cluster.nodes
        node.env["PYTHONPATH"] = str(bad)
        node.settings = table("absent", file=tmp_path / "absent")
        node.launch()
        assert node.wait() == 69
        assert 'coordd: the boot step "absent" failed: it failed: OSError: no file\n' in node.log()
        assert not node.socket.exists()

        node.settings = table("flag", file=tmp_path / "flag", other="x")
        node.launch()
        until(lambda: bool(node.try_call("status")), why="it answers while it starts")
        assert node.stop() == 0
        assert not node.socket.exists()

        node.settings = table("flag", 'requires = ["absent"]') + table("absent", 'requires = ["flag"]')
        node.write_config()
        argv = [sys.executable, "-m", "coordd", "check-config", str(node.config_path)]
        checked = subprocess.run(
            argv, cwd=ROOT, env=environ(bad), capture_output=True, text=True, check=False, timeout=60
        )
        assert checked.returncode == 78
        assert "boot steps require each other in a circle" in checked.stdout
