"""A run asks the daemon that started it: it may look but not control, also from detached processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from support.fake_daemon import DAEMON, open_directory, write_job

from cli.test_daemon import Node, running
from coordd.adapters.kernel import descent, proc


def job(directory: str, kind: str) -> str:
    """A job whose program, or a detached child of it, asks the daemon; its file is in ``directory``."""
    script = f"{directory}/ask.py"
    Path(script).write_text(PROGRAM)
    wrap = {"plain": [], "env": ["/usr/bin/env", "-i"], "setsid": ["/usr/bin/setsid", "--wait"]}.get(kind, [])
    argv = [*wrap, sys.executable, "-I", script, f"{directory}/run/control.sock", f"{directory}/said-{kind}", kind]
    return f"[command]\nargv = {json.dumps(argv)}\n"


PROGRAM = """
import json, os, socket, sys, time
path, out, kind = sys.argv[1:4]
if kind in ("daemonised", "wiped") and len(sys.argv) == 4:
    child = os.fork()
    if child:
        time.sleep(3)
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.5)  # until the parents are gone
    os.execve(sys.executable, [sys.executable, "-I", *sys.argv, "again"], {} if kind == "wiped" else dict(os.environ))
def ask(method):
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30)
        if kind == "handed":  # a child connects, and is gone before anybody looks
            child = os.fork()
            if not child:
                sock.connect(path)
                os._exit(0)
            os.waitpid(child, 0)
        else:
            sock.connect(path)
        sock.sendall(json.dumps({"id": 1, "method": method}).encode() + b"\\n")
        return json.loads(sock.makefile().readline())
said = [ask("node.drain"), ask("status")]
with open(out + ".new", "w") as file:
    json.dump(said, file)
os.rename(out + ".new", out)
"""

KINDS = ("plain", "env", "setsid", "daemonised", "wiped", "handed")


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with open_directory() as directory:
        os.makedirs(f"{directory}/jobs.d")
        for kind in KINDS:
            write_job(directory, f"asks-{kind}", job(directory, kind))
        with running(directory, DAEMON) as made:
            yield made


@pytest.mark.parametrize("kind", KINDS)
def test_what_runs_inside_a_run_may_look_and_no_more(node: Node, kind: str) -> None:
    node.ctl("run", "trigger", f"asks-{kind}")
    path = Path(node.directory, f"said-{kind}")
    node.wait_until(path.exists)
    drain, status = json.loads(path.read_text())
    assert drain["error"]["data"]["kind"] == "not_permitted"
    assert "inside a run may not call node.drain" in drain["error"]["message"]
    assert status["result"]["state"] == "ready"
    assert node.json("status")["state"] == "ready"


def test_who_is_not_inside_a_run_keeps_its_role(node: Node) -> None:
    node.ctl("run", "trigger", "asks-plain", "--wait")
    node.ctl("node", "drain")
    node.ctl("node", "resume")


def test_a_process_that_is_gone_cannot_be_told() -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert descent.in_a_run(child.pid, os.getuid())
    assert not descent.in_a_run(os.getpid(), os.getuid())


def test_a_process_that_ends_while_it_is_looked_at_cannot_be_told() -> None:
    """Nothing of it can be read any more, and its ancestors are not found."""
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        real = proc.read

        def ends(pid: int, file: str) -> bytes:
            if pid == child.pid and child.returncode is None:
                child.kill()
                child.wait()
            return real(pid, file)

        with mock.patch.object(proc, "read", ends):
            assert descent.in_a_run(child.pid, os.getuid())


def test_an_operator_whose_process_is_hidden_from_the_daemon_keeps_its_role() -> None:
    """As under ProtectProc=invisible, which the packaged unit has."""
    child = subprocess.Popen(["/bin/true"])
    child.wait()
    assert not descent.in_a_run(child.pid, os.getuid() + 1)
