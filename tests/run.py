"""`make test`: every test, in an order that shows failures early. No test is skipped.

make test ARGS="system -k takeover"    one phase, with pytest's own options after it
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table
from support import components

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

# One process more than there are processors: there is always a test that waits for a server or a deadline.
PROCESSES = str((os.cpu_count() or 1) + 1)

# phase -> (what it shows, pytest's arguments)
PHASES: dict[str, tuple[str, list[str] | None]] = {
    "check": ("format, lint, types", None),
    "core": (
        "the core, ports and adapters, the simulator",
        ["-n", PROCESSES, "--dist", "worksteal", "tests", "--ignore", "tests/history", "--ignore", "tests/system"],
    ),
    "history": ("the pipeline on Spark", ["tests/history"]),
    "system": ("real daemons, runners, Spark, systemd", ["tests/system", "-m", "not paired and not hosts"]),
    "production": (
        "daemons on RabbitMQ and Redis, and what harms them; others that wait most of the time",
        ["-n", "3", "--dist", "worksteal", "tests/system", "-m", "paired"],
    ),
}

# Phases of one round run at the same time. These two wait most of the time; each has its own files, processes, ports.
ROUNDS = (("check",), ("core",), ("history",), ("system", "production"))


def main() -> int:
    # A background job of a shell ignores ^C. The programs that the tests start would inherit that, and some need ^C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = sys.argv[1:2]
    if chosen and chosen[0] not in PHASES:
        print(f"no phase {chosen[0]!r}; there are {', '.join(PHASES)}", file=sys.stderr)
        return 2
    try:
        components.ensure()
    except components.MissingError as exc:
        print(f"make test needs {exc}", file=sys.stderr)
        return 1
    if os.getuid() != 0:
        print(
            "make test needs root: the tests make namespaces, small file systems and other users' processes",
            file=sys.stderr,
        )
        return 1
    console = Console()
    table = Table("phase", "what", "result", "seconds", title="make test")
    failed = False
    for phases in [tuple(chosen)] if chosen else ROUNDS:
        for name in phases:
            console.rule(f"{name}: {PHASES[name][0]}")
        for name, (code, seconds) in zip(phases, run(phases, sys.argv[2:]), strict=True):
            failed = failed or code != 0
            table.add_row(
                name, PHASES[name][0], "[red]failed[/red]" if code else "[green]passed[/green]", f"{seconds:.0f}"
            )
    console.print(table)
    return int(failed)


def run(phases: tuple[str, ...], options: list[str]) -> list[tuple[int, float]]:
    """Run phases at the same time; returns the exit code and the seconds of each.

    What the first prints is seen at once, what another prints after all have ended: lines of two would mix.
    """

    def one(name: str, output: IO[bytes] | None) -> tuple[int, float]:
        started = time.monotonic()
        arguments = PHASES[name][1]
        code = check() if arguments is None else pytest([*arguments, *options], output)
        return code, time.monotonic() - started

    with contextlib.ExitStack() as stack:
        kept = {name: stack.enter_context(tempfile.TemporaryFile()) for name in phases[1:]}
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(len(phases)))
        results = list(pool.map(lambda name: one(name, kept.get(name)), phases))
        for name, output in kept.items():
            output.seek(0)
            print(f"\n{name}:\n{output.read().decode(errors='replace')}", flush=True)
    return results


def check() -> int:
    """Do the same as `make check`."""
    code = 0
    for command in (["ruff", "format", "--check", "-q"], ["ruff", "check", "-q"], ["mypy"]):
        places = [] if command[0] == "mypy" else ["coordd", "tests", "deploy", "docs"]
        code = subprocess.call([BIN / command[0], *command[1:], *places], cwd=ROOT) or code
    return code


def pytest(arguments: list[str], output: IO[bytes] | None = None) -> int:
    """Run one pytest with a temporary directory on a short path, because sockets are made in it."""
    base = tempfile.mkdtemp(prefix="cdt-", dir="/tmp")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "--durations=20", f"--basetemp={base}/t", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.call(command, cwd=ROOT, env=environment, stdout=output, stderr=output and subprocess.STDOUT)
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
