"""A fake daemon with a table of answers, for the tests of the command lines. Also starts these command lines."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordd.services.control import rpc

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0

CTL = [sys.executable, "-c", "from coordd.cli.coordctl import main; main()"]
DAEMON = [sys.executable, "-m", "coordd"]

STATUS = {
    "node": "edge-1",
    "cluster": "default",
    "state": "ready",
    "version": "9",
    "pid": 7,
    "incarnation": "1-a",
    "clock": 12,
    "bus": {"url": "unix:///b", "state": "connected"},
    "ledger": {"url": "sqlite:///l", "state": "connected", "error": None},
    "members": {"alive": 2, "suspect": 1, "lost": 0},
    "runs": {"active": 0, "processed": 3, "jobs": []},
    "jobs": {"enabled": 2, "disabled": ["bad"]},
    "breakers_open": [],
    "checks": {},
    "uptime_s": 61.0,
}
RUN = {
    "id": "j#1", "job": "j", "fire_time": "2026-10-03T02:00:00Z", "state": "success", "attempt": 0,
    "node": "edge-1.7", "token": 5, "application_id": None, "exit_code": 0, "received_at": "2026-10-03T02:00:00Z",
    "started_at": "2026-10-03T02:00:01Z", "ended_at": "2026-10-03T02:00:03Z", "runtime_s": 2.0, "reason": None,
    "args": {"k": "[bold]v\x1b[31m"}, "by": "root",
}  # fmt: skip

EVENT = {"type": "task-started", "hostname": "edge-1", "pid": 7, "clock": 3, "timestamp": 1.5, "run": "j#1", "token": 9}


def environment(**more: str) -> dict[str, str]:
    """The environment of subprocesses, without settings of the machine's own coordd."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("COORDD_", "NO_COLOR"))}
    return {**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **more}


class FakeDaemon:
    """A daemon's answers as a table: method -> result, exception, or function of the params."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.answers: dict[str, Any] = {"status": STATUS, "ping": {"pong": True, "version": "9"}}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(16)
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE_S)
            assert not thread.is_alive()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._talk, args=(sock,))
            self._threads.append(thread)
            thread.start()

    def _talk(self, sock: socket.socket) -> None:
        sock.settimeout(DEADLINE_S)
        with sock, sock.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                call = rpc.parse(line)
                self.asked.append((call.method, call.params))
                answer = self.answers.get(call.method, rpc.RpcError(-32601, "no method", kind="unknown_method"))
                if callable(answer):
                    answer = answer(call.params)
                if isinstance(answer, bytes):
                    sock.sendall(answer)
                elif isinstance(answer, Stream):
                    sock.sendall(rpc.result_line(call.id, {"subscription": 1}))
                    for item in answer.items:
                        sock.sendall(rpc.notification_line(call.method, {"subscription": 1, **item}))
                elif isinstance(answer, rpc.RpcError):
                    sock.sendall(rpc.error_line(call.id, answer))
                elif answer is None:
                    return
                else:
                    sock.sendall(rpc.result_line(call.id, answer))


class Stream:
    def __init__(self, *items: dict[str, Any]) -> None:
        self.items = items


def refusal(kind: str, message: str = "no", hint: str = "", code: int = rpc.REFUSED) -> rpc.RpcError:
    return rpc.RpcError(code, message, kind=kind, hint=hint)


@contextlib.contextmanager
def open_directory() -> Iterator[str]:
    """A directory with a path short enough for a socket. Other users can enter it, unlike the directories of pytest."""
    with tempfile.TemporaryDirectory(prefix="coordd-", dir="/tmp") as path:
        os.chmod(path, 0o755)  # noqa: S103  # a program
        yield path


def configuration(directory: str, **sections: str) -> str:
    """Write a configuration of one node into a directory; returns its path."""
    os.makedirs(f"{directory}/jobs.d", exist_ok=True)
    text = f"""
[node]
name = "edge-1"
state_dir = "{directory}/state"
runtime_dir = "{directory}/run"
jobs_dir = "{directory}/jobs.d"
{sections.get("node", "")}
[cluster]
bus = "unix://{directory}/run/bus"
ledger = "sqlite:///{directory}/state/ledger.db"
heartbeat_interval = 0.5
{sections.get("cluster", "")}
[control]
socket = "{directory}/run/control.sock"
{sections.get("control", "")}
"""
    path = f"{directory}/coordd.toml"
    Path(path).write_text(text)
    return path


def write_job(directory: str, name: str, text: str) -> None:
    Path(f"{directory}/jobs.d/{name}.toml").write_text(text)
