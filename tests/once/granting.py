"""A daemon that grants every run of coordd exec and coordd.single, and what it is asked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from support.fake_daemon import ROOT, FakeDaemon

DEADLINE_S = 60.0


def answer(word: str = "ok", **more: Any) -> dict[str, Any]:
    return {"word": word, "left_s": 60.0, "in_s": 0.0, "state": "", **more}


def grants(daemon: FakeDaemon, **terms: Any) -> FakeDaemon:
    """``terms``: what differs from the terms of an ordinary run."""
    lease_s = terms.get("lease_s", 60.0)
    ordinary = {
        "lease_s": lease_s, "renew_interval_s": 0.5, "ledger_timeout_s": 2.0, "kill_grace_s": 5.0,
        "on_lost": "relaunch", "timeout_s": 0.0,
    }  # fmt: skip
    daemon.answers["exec"] = lambda _params: {
        "run": "j#1", "job": "j", "ident": "1", "attempt": 0, "word": "granted", "token": 7, "left_s": lease_s,
        "node": "edge-1", "fire_time": "", "why": "", "state": "",
        "held": {"run": "j#1", "lease": lease_s, "fire_at": 0.0, "policy": "{}"}, "terms": {**ordinary, **terms},
    }  # fmt: skip
    for method in ("exec.gate", "exec.renew"):
        daemon.answers[method] = lambda _params: answer(left_s=lease_s)
    daemon.answers["exec.report"] = lambda _params: answer(left_s=0.0)
    return daemon


def reports(daemon: FakeDaemon) -> list[tuple[str, int | None, str]]:
    """State, exit code and reason of each report."""
    asked = [params for method, params in list(daemon.asked) if method == "exec.report"]
    return [(params["state"], params["exit_code"], params["reason"]) for params in asked]


def environ() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


def program(text: str, *args: str, **more: Any) -> subprocess.Popen[str]:
    """A Python program, whose output is read."""
    more = {"env": environ(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    return subprocess.Popen([sys.executable, "-c", text, *args], **more)


# Below nohup, and in the background of a shell, programs inherit that they ignore these signals.
OBEYS_SIGNALS = ("env", "--default-signal=HUP,INT,QUIT")


def command(daemon: FakeDaemon, *argv: str, **more: Any) -> subprocess.Popen[str]:
    """coordd exec with that command, in a session of its own."""
    more = {"env": environ(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more}
    call = [
        *OBEYS_SIGNALS,
        sys.executable,
        "-m",
        "coordd",
        "exec",
        f"--socket={daemon.path}",
        "--job",
        "j",
        "--",
        *argv,
    ]
    return subprocess.Popen(call, start_new_session=True, **more)


def until(found: Callable[[], Any]) -> Any:
    limit = time.monotonic() + DEADLINE_S
    while not (value := found()):
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.01)
    return value
