"""A `coordd dev` under test: started, asked, and in any case ended."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from system.lab.processes import ROOT, processes, until


class Dev:
    """One `coordd dev` under test. ``output`` holds all that it has printed."""

    def __init__(self, process: subprocess.Popen[bytes], place: Path, reading: int) -> None:
        self.process = process
        self.place = place
        self.output = b""
        self._reading = reading
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # a terminal whose other side is closed
            while part := os.read(self._reading, 65536):
                self.output += part

    def ready(self) -> Dev:
        until(lambda: b"\nready: " in self.output.replace(b"\r", b"") or self.ended, 120, f"ready: {self.said}")
        assert self.process.poll() is None, self.said
        return self

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def said(self) -> str:
        return self.output.decode(errors="replace")

    def call(self, name: str, method: str, **params: Any) -> Any:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(f"{self.place}/{name}/coordd.sock")
            sock.sendall(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
            answer = json.loads(sock.makefile().readline())
        assert "error" not in answer, answer
        return answer["result"]

    def row(self, name: str, run: str) -> dict[str, Any]:
        return next((dict(row) for row in self.call(name, "run.list", limit=50) if row["id"] == run), {"state": ""})

    def family(self) -> set[int]:
        return processes([f"{self.place}/"]) - {self.process.pid}

    def wait(self) -> int:
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@contextlib.contextmanager
def dev(place: Path, *args: str, terminal: bool = False) -> Iterator[Dev]:
    argv = [sys.executable, "-m", "coordd", "dev", "--dir", str(place), *args]
    env = {key: value for key, value in os.environ.items() if not key.startswith("COORDD_")} | {"TERM": "xterm"}
    reading, writing = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen(
        argv,
        cwd=ROOT,
        env=env,
        stdin=writing if terminal else subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
        start_new_session=True,
    )
    os.close(writing)
    started = Dev(process, place, reading)
    try:
        yield started
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
        for pid in started.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(reading)
