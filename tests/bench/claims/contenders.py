"""The benchmark's side of the processes that claim."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[3]


class ContenderError(Exception):
    """A process that claims has failed, or has ended."""


class Process:
    """One contender. ``tell`` and ``heard`` are separate, so that many work at the same time."""

    def __init__(self, name: str, directory: str) -> None:
        self.name = name
        with open(f"{directory}/{name}.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.claims.contender", name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=directory,
                env={**os.environ, "PYTHONPATH": f"{TOP}{os.pathsep}{TOP}/tests"},
            )

    def tell(self, do: str, **fields: Any) -> None:
        """Send a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._process.stdin.flush()

    def heard(self) -> Any:
        """The answer to the oldest command without one. Raises ContenderError."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError(f"{self.name} has ended with {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContenderError(f"{self.name}: {answer['error']}")
        return answer["ok"]

    def ask(self, do: str, **fields: Any) -> Any:
        """Send a command, and wait for its answer."""
        self.tell(do, **fields)
        return self.heard()

    def kill(self) -> None:
        """End it with SIGKILL."""
        self._process.kill()
        self._process.communicate()


def ask_all(processes: Sequence[Process], do: str, **fields: Any) -> list[Any]:
    """The answers of all of them, which work at the same time."""
    for process in processes:
        process.tell(do, **fields)
    return [process.heard() for process in processes]
