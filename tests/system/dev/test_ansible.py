"""The Ansible role, run by the real ansible-playbook on the nodes of a real cluster: one drained node at a time.

The commands that change a machine (apt-get, systemctl) are only recorded: tests/system/packages installs the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from system.dev.running import Dev, dev
from system.lab.processes import LIMIT_S, ROOT, until

PLAYBOOK = ROOT / "deploy/ansible/upgrade.yml"

# A command of a node: it notes when it was called, and in which states both nodes were.
NOTES = """\
#!{python}
import json, os, subprocess, sys
def state(node):
    done = subprocess.run(["{here}/" + node + "/coordctl", "-o", "json", "status"], capture_output=True, text=True)
    return json.loads(done.stdout)["state"]
with open("{here}/calls", "a") as file:
    file.write(json.dumps(["{node}", os.path.basename(sys.argv[0]), *sys.argv[1:], [state("n1"), state("n2")]]) + "\\n")
sys.exit({code})
"""
CTL = """\
#!{python}
import sys
sys.path.insert(0, "{root}")
sys.argv[1:1] = ["--socket", "{socket}"]
from coordd.cli.coordctl import main
main()
"""


def machines(cluster: Dev, here: Path, *, failing: str = "") -> None:
    """A directory of commands for each node, and the inventory that puts it into the PATH."""
    lines = []
    for node in ("n1", "n2"):
        (here / node).mkdir()
        ctl = CTL.format(python=sys.executable, root=ROOT, socket=f"{cluster.place}/{node}/coordd.sock")
        scripts = {"coordctl": ctl}
        for name in ("apt-get", "systemctl", "coordd"):
            code = int(failing == f"{node} {name}")
            scripts[name] = NOTES.format(python=sys.executable, here=here, node=node, code=code)
        for name, text in scripts.items():
            (here / node / name).write_text(text)
            (here / node / name).chmod(0o755)
        lines.append(f"{node} ansible_connection=local ansible_python_interpreter={sys.executable}")
    hosts(here, lines)


def hosts(here: Path, lines: list[str]) -> None:
    """The inventory, a package, and the playbook with the commands of each node before those of this machine."""
    (here / "inventory").write_text("\n".join(lines) + "\n")
    (here / "package.deb").write_text("a package")
    play = PLAYBOOK.read_text()
    assert "  roles:\n" in play
    path = f"{here}/{{{{ inventory_hostname }}}}:{os.environ['PATH']}"
    (here / "play.yml").write_text(play.replace("  roles:\n", f'  environment:\n    PATH: "{path}"\n  roles:\n'))


def play(here: Path, *args: str, playbook: Path | None = None) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(here),
        "ANSIBLE_ROLES_PATH": str(ROOT / "deploy/ansible/roles"),
        "ANSIBLE_NOCOLOR": "1",
        "LC_ALL": "C.UTF-8",
    }
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(here / "inventory"), *args]
    argv += ["-e", f"coordd_package={here}/package.deb", "-e", "coordd_become=false", "-e", "coordd_ready_pause=1"]
    return subprocess.run(
        [*argv, str(playbook or here / "play.yml")],
        cwd=here, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=4 * LIMIT_S, check=False,
    )  # fmt: skip


def calls(here: Path) -> list[list[object]]:
    return [json.loads(line) for line in (here / "calls").read_text().splitlines()]


def test_the_playbook_as_it_is_has_no_mistake_of_syntax(tmp_path: Path) -> None:
    (tmp_path / "inventory").write_text("edge-1\n")
    done = play(tmp_path, "--syntax-check", playbook=PLAYBOOK)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_secrets_that_are_brought_are_given_to_the_daemons_group_before_it_is_checked(tmp_path: Path) -> None:
    """The copy belongs to root alone; the package's tmpfiles.d gives *.password and keys.toml to the group."""
    config, target = tmp_path / "config", tmp_path / "etc"
    config.mkdir()
    (config / "keys.toml").write_text("secret")
    (config / "keys.toml").chmod(0o600)
    commands = tmp_path / "edge-1"
    commands.mkdir()
    for name in ("apt-get", "systemctl", "coordd", "systemd-tmpfiles", "coordctl"):
        note = f'echo "{name} $* $(cat {target}/keys.toml)" >> {tmp_path}/calls\n' if name != "coordctl" else ""
        (commands / name).write_text(f'#!/bin/sh\n{note}echo \'{{"state": "ready", "drained": null}}\'\n')
        (commands / name).chmod(0o755)
    hosts(tmp_path, [f"edge-1 ansible_connection=local ansible_python_interpreter={sys.executable}"])
    done = play(tmp_path, "-e", f"coordd_config={config}", "-e", f"coordd_config_to={target}/")

    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "calls").read_text().splitlines()[1:] == [
        "systemd-tmpfiles --create coordd.conf secret",
        "coordd check-config --as-service secret",
        "systemctl restart coordd secret",
        "systemctl enable coordd secret",
    ]


@pytest.mark.parametrize("code", [0, 1])
def test_the_package_lies_where_nobody_else_can_change_it_and_is_removed(tmp_path: Path, code: int) -> None:
    commands = tmp_path / "edge-1"
    commands.mkdir()
    install = f'for package; do :; done\nstat -c "%a %u" "${{package%/*}}" > {tmp_path}/mode\n'
    install += f'echo "$package" > {tmp_path}/package\ncat "$package" > {tmp_path}/content\nexit {code}\n'
    for name in ("apt-get", "systemctl", "coordd", "coordctl"):
        does = install if name == "apt-get" else 'echo \'{"state": "ready", "drained": null}\'\n'
        (commands / name).write_text(f"#!/bin/sh\n{does}")
        (commands / name).chmod(0o755)
    hosts(tmp_path, [f"edge-1 ansible_connection=local ansible_python_interpreter={sys.executable}"])
    done = play(tmp_path)

    assert (done.returncode == 0) == (code == 0), done.stdout + done.stderr
    assert (tmp_path / "mode").read_text().split() == ["700", str(os.getuid())]
    assert (tmp_path / "content").read_text() == "a package"
    assert not Path((tmp_path / "package").read_text().strip()).parent.exists()


def test_one_node_after_the_other_is_drained_upgraded_and_ready(place: Path, tmp_path: Path) -> None:
    with dev(place, "--nodes", "2") as cluster:
        cluster.ready()
        machines(cluster, tmp_path)
        run = cluster.call("n1", "run.trigger", job="long", id="x")["id"]
        until(lambda: cluster.row("n2", run)["state"] == "started", why="a run is active")
        cluster.call("n1", "run.cancel", id=run)
        done = play(tmp_path)

        assert done.returncode == 0, done.stdout + done.stderr
        told = [(node, name, verb, states) for node, name, verb, *_, states in calls(tmp_path)]
        one, two = ["draining", "ready"], ["ready", "draining"]
        assert told == [
            *[("n1", name, verb, one) for name, verb in (("apt-get", "install"), ("coordd", "check-config"))],
            *[("n1", "systemctl", verb, one) for verb in ("restart", "enable")],
            *[("n2", name, verb, two) for name, verb in (("apt-get", "install"), ("coordd", "check-config"))],
            *[("n2", "systemctl", verb, two) for verb in ("restart", "enable")],
        ]
        assert [cluster.call(node, "status")["drained"] for node in ("n1", "n2")] == [None, None]


def test_a_node_that_fails_stops_the_play_and_takes_runs_again(place: Path, tmp_path: Path) -> None:
    with dev(place, "--nodes", "2") as cluster:
        cluster.ready()
        machines(cluster, tmp_path, failing="n1 apt-get")
        done = play(tmp_path)

        assert done.returncode != 0
        assert [call[:2] for call in calls(tmp_path)] == [["n1", "apt-get"]], "n2 was not touched"
        assert cluster.call("n1", "status")["drained"] is None


def test_the_drain_of_a_person_stays(place: Path, tmp_path: Path) -> None:
    with dev(place, "--nodes", "2") as cluster:
        cluster.ready()
        machines(cluster, tmp_path)
        cluster.call("n2", "node.drain", note="disk is replaced")
        until(lambda: cluster.call("n2", "status")["state"] == "draining")
        done = play(tmp_path)

        assert done.returncode == 0, done.stdout + done.stderr
        assert cluster.call("n2", "status")["drained"]["note"] == "disk is replaced"
        assert cluster.call("n1", "status")["drained"] is None
