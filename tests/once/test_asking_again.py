"""A caller that was granted the run, and could not start it in time, waits on: the run is not over."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import DEADLINE_S, FakeDaemon, environment

TERMS = {
    "lease_s": 60.0, "renew_interval_s": 5.0, "ledger_timeout_s": 2.0, "kill_grace_s": 10.0, "on_lost": "relaunch",
    "timeout_s": 0.0,
}  # fmt: skip
HELD = {"run": "j#1", "lease": 60.0, "fire_at": 1.0, "policy": "relaunch forbid 1 5 0 fixed 3600"}
TOLD = {"word": "ok", "left_s": 60.0, "in_s": 0.0, "state": ""}
REPORTED = {**TOLD, "left_s": 0.0}  # nothing is left of a quarantine
CLOSED = {**TOLD, "word": "stale", "left_s": 0.0}

SINGLE = """
import asyncio, sys
from coordd.single import single
path, way, socket = sys.argv[1:]
def touch():
    open(path, "x").close()
if way == "plain":
    with single("j", id="1", socket=socket):
        touch()
else:
    async def main():
        async with single("j", id="1", socket=socket):
            touch()
    asyncio.run(main())
"""


def granted() -> dict[str, Any]:
    """The answer that grants the run."""
    named = {"run": "j#1", "job": "j", "ident": "1", "attempt": 0, "word": "granted"}
    more = {"token": 7, "left_s": 60.0, "node": "n1", "fire_time": "2026-11-23T00:00:00Z", "why": "", "state": ""}
    return {**named, **more, "in_s": 0.0, "held": HELD, "terms": TERMS}


def finished() -> dict[str, Any]:
    named = {"run": "j#1", "job": "j", "ident": "1", "attempt": 1, "word": "finished", "state": "success"}
    return {**named, "in_s": 0.0, "why": "it is over"}


def serve(daemon: FakeDaemon, *answers: dict[str, Any]) -> None:
    """Answer claims so; the gate is closed for the first attempt, and open for the next one."""
    left, gates = list(answers), [CLOSED, TOLD]
    daemon.answers |= {"exec.renew": TOLD, "exec.report": REPORTED, "exec.gate": lambda _params: gates.pop(0)}
    daemon.answers["exec"] = lambda _params: left.pop(0) if len(left) > 1 else left[0]


def nonces(daemon: FakeDaemon) -> list[str]:
    return [params["nonce"] for method, params in daemon.asked if method == "exec"]


def exec_of(daemon: FakeDaemon, path: Path, *options: str) -> subprocess.Popen[str]:
    line = [sys.executable, "-m", "coordd", "exec", "--socket", daemon.path, "--job", "j", *options, "--", "touch"]
    return subprocess.Popen([*line, str(path)], env=environment(), stderr=subprocess.PIPE, text=True)


def test_a_grant_that_came_to_nothing_is_asked_for_again(daemon: FakeDaemon, tmp_path: Path) -> None:
    serve(daemon, granted(), granted())
    caller = exec_of(daemon, tmp_path / "ran", "--id", "1")
    assert caller.communicate(timeout=DEADLINE_S)[1] == ""
    assert (caller.returncode, (tmp_path / "ran").exists()) == (0, True)
    first, second = nonces(daemon)
    assert first != second, "the old grant must not be used again"
    assert [params["state"] for method, params in daemon.asked if method == "exec.report"] == ["success"]


def test_another_machine_may_have_run_it_meanwhile(daemon: FakeDaemon, tmp_path: Path) -> None:
    serve(daemon, granted(), finished())
    caller = exec_of(daemon, tmp_path / "ran", "--id", "1")
    caller.communicate(timeout=DEADLINE_S)
    assert (caller.returncode, (tmp_path / "ran").exists()) == (75, False)


def test_a_lock_that_does_not_wait_is_not_asked_for_again(daemon: FakeDaemon, tmp_path: Path) -> None:
    serve(daemon, granted(), granted())
    caller = exec_of(daemon, tmp_path / "ran")
    assert "was not run here" in caller.communicate(timeout=DEADLINE_S)[1]
    assert (caller.returncode, (tmp_path / "ran").exists(), len(nonces(daemon))) == (75, False, 1)


def test_a_signal_ends_a_caller_that_asks_again(daemon: FakeDaemon, tmp_path: Path) -> None:
    """While COMMAND runs, signals are passed on to it; a caller that waits again has no COMMAND."""
    waits = {**finished(), "word": "held", "state": "started"}
    serve(daemon, granted(), waits)
    caller = exec_of(daemon, tmp_path / "ran", "--id", "1")
    limit = time.monotonic() + DEADLINE_S
    while len(nonces(daemon)) < 3 and time.monotonic() < limit:
        time.sleep(0.02)
    caller.terminate()
    caller.communicate(timeout=DEADLINE_S)
    assert caller.returncode == -signal.SIGTERM


@pytest.mark.parametrize("way", ["plain", "asyncio"])
def test_single_asks_again_too(daemon: FakeDaemon, tmp_path: Path, way: str) -> None:
    serve(daemon, granted(), granted())
    line = [sys.executable, "-c", SINGLE, str(tmp_path / "ran"), way, daemon.path]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stderr, (tmp_path / "ran").exists()) == (0, "", True)
    assert len(set(nonces(daemon))) == 2
