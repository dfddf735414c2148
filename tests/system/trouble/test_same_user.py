"""A job of the daemon's own user looks into the daemon's memory. Neither of them is root."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.test_daemon import Node, running
from support.fake_daemon import open_directory, write_job

from system.lab import peeping
from system.lab.ordinary import NOBODY, as_user
from system.lab.processes import kill_at_once, processes, until

DAEMON = [*as_user(), sys.executable, "-m", "coordd"]
TIMING = "lease = 8.0\nrenew_interval = 1.0\nledger_timeout = 1.0\nkill_grace = 3.0"
LONG = '[command]\nargv = ["/bin/sh", "-c", "until [ -e %s/go ]; do sleep 0.1; done; exit 7"]\n'


@pytest.fixture
def directory() -> Iterator[str]:
    with open_directory() as path:
        os.mkdir(f"{path}/jobs.d")
        for part in ("state", "run"):
            os.mkdir(f"{path}/{part}")
            os.chown(f"{path}/{part}", NOBODY, NOBODY)
        yield path
        kill_at_once(lambda: processes([f"{path}/"]))


def daemon_of(node: Node) -> int:
    pid: int = node.json("status")["pid"]
    return pid


def test_a_job_of_the_same_user_cannot_open_the_daemons_memory(directory: str) -> None:
    write_job(directory, "peeps", peeping.job_file(sys.executable, f"{directory}/peep.py"))
    Path(directory, "peep.py").write_text(peeping.PROGRAM)
    with running(directory, DAEMON, cluster=TIMING) as node:
        pid = daemon_of(node)
        node.ctl("run", "trigger", "peeps", "--id", "1", "--arg", f"pid={pid}", "--wait")
        daemon, child = peeping.said(node.ctl("run", "logs", "peeps#1").stdout)
        checks = {check["check"]: check for check in node.json("doctor")}

    assert os.stat(f"{directory}/state/ledger.db").st_uid == NOBODY
    assert child == dict.fromkeys(peeping.WAYS, True), "the program would see an open process"
    assert daemon == dict.fromkeys(peeping.WAYS, False)
    assert checks["memory"]["text"] == f"closed to other processes of uid {NOBODY}"


def test_a_closed_daemon_without_roots_rights_finds_its_runs_again(directory: str) -> None:
    """It reads /proc to know its runners and callers. That must work for a process that is closed to its own user."""
    write_job(directory, "long", LONG % directory)
    with running(directory, DAEMON, cluster=TIMING) as node:
        node.ctl("run", "trigger", "long", "--id", "1")
        until(lambda: node.json("run", "show", "long#1")["state"] == "started")
        os.kill(daemon_of(node), signal.SIGKILL)
        node.process.wait(60)
        with running(directory, DAEMON, cluster=TIMING) as again:
            until(lambda: again.json("status")["runs"]["active"] == 1)
            Path(directory, "go").touch()
            until(lambda: again.json("run", "show", "long#1")["state"] == "failure")
            found = again.json("run", "show", "long#1")

    assert (found["exit_code"], found["attempt"]) == (7, 0)
