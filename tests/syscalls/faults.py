"""The memory page that faults.c and a test share, and a function that compiles the C files."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent

ROLES = ("daemon", "watcher", "runner", "program", "burial", "warm")
FAIL, KILL = 1, 2

# The same layout as struct page in faults.c.
PAGE = struct.Struct("<8i24s7i")


class Plan(NamedTuple):
    """A fault at the n-th call of a role; with n = 0 there is no fault."""

    role: str = "daemon"
    n: int = 0
    action: int = FAIL
    pick: int = 0  # which of the errors that this call may have
    repeat: int = 1  # how many calls of this kind fail

    def __str__(self) -> str:
        what = "killed" if self.action == KILL else f"error {self.pick}, {self.repeat} times"
        return f"{self.role} call {self.n}: {what}"


class Seen(NamedTuple):
    """The result of one case."""

    fired: int
    error: int
    call: str
    counts: dict[str, int]


class Page:
    """A memory page that is shared with every process of one daemon's family."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)

    def set(self, plan: Plan, *, armed: bool = True) -> None:
        """Use this plan from now on. All counts start from 0 again."""
        self._map[: PAGE.size] = bytes(PAGE.size)
        fields = (plan.action, plan.pick, plan.repeat, 0, 0, b"", *[0] * 7)
        self._map[: PAGE.size] = PAGE.pack(0, ROLES.index(plan.role), plan.n, *fields)
        self._map[:4] = struct.pack("<i", armed)

    def clear(self) -> None:
        """No further faults; the counts stay."""
        self._map[:12] = bytes(12)

    def seen(self) -> Seen:
        fields = PAGE.unpack(self._map[: PAGE.size])
        counts = dict(zip(ROLES, fields[9:15], strict=True))
        return Seen(fields[6], fields[7], fields[8].rstrip(b"\0").decode(), counts)


def compile_c(name: str, directory: Path, *, library: bool) -> Path:
    """Build a C file of this directory."""
    compiler = shutil.which("cc")
    assert compiler is not None, "faults are made by a small C library: a C compiler is needed (Debian: gcc, libc6-dev)"
    target = directory / (f"{name}.so" if library else name)
    how = ["-shared", "-fPIC"] if library else []
    argv = [compiler, "-O2", "-Wall", *how, "-o", str(target), str(HERE / f"{name}.c"), "-ldl"]
    subprocess.run(argv, check=True, env={**os.environ, "LC_ALL": "C"})
    return target
