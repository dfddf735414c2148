"""`make test`: every test, in an order that shows failures early. No test is skipped.

make test ARGS="system -k takeover"    one phase, with pytest's own options after it
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from support import components

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent

# (phase, what it shows, pytest's arguments). A phase that starts Spark, daemons or a systemd runs alone on the machine.
PHASES = (
    ("check", "format, lint, types", None),
    (
        "core",
        "the core, ports and adapters, the simulator",
        ["-n", "auto", "--dist", "worksteal", "tests", "--ignore", "tests/history", "--ignore", "tests/system"],
    ),
    ("history", "the pipeline on Spark", ["tests/history"]),
    ("system", "real daemons, runners, Spark, systemd", ["tests/system", "-m", "not paired and not hosts"]),
    (
        "production",
        "daemons on RabbitMQ and Redis, and what harms them; others that wait most of the time",
        ["-n", "2", "--dist", "worksteal", "tests/system", "-m", "paired"],
    ),
)


def main() -> int:
    # A background job of a shell ignores ^C. The programs that the tests start would inherit that, and some need ^C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = sys.argv[1:2]
    if chosen and chosen[0] not in [name for name, _, _ in PHASES]:
        print(f"no phase {chosen[0]!r}; there are {', '.join(name for name, _, _ in PHASES)}", file=sys.stderr)
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
    for name, what, arguments in PHASES:
        if chosen and name != chosen[0]:
            continue
        console.rule(f"{name}: {what}")
        started = time.monotonic()
        code = check() if arguments is None else pytest([*arguments, *sys.argv[2:]])
        failed = failed or code != 0
        table.add_row(
            name, what, "[red]failed[/red]" if code else "[green]passed[/green]", f"{time.monotonic() - started:.0f}"
        )
    console.print(table)
    return int(failed)


def check() -> int:
    """Do the same as `make check`."""
    code = 0
    for command in (["ruff", "format", "--check", "-q"], ["ruff", "check", "-q"], ["mypy"]):
        places = [] if command[0] == "mypy" else ["coordd", "tests", "deploy", "docs"]
        code = subprocess.call([BIN / command[0], *command[1:], *places], cwd=ROOT) or code
    return code


def pytest(arguments: list[str]) -> int:
    """Run one pytest with a temporary directory on a short path, because sockets are made in it."""
    base = tempfile.mkdtemp(prefix="cdt-", dir="/tmp")
    try:
        command = [sys.executable, "-m", "pytest", "-q", f"--basetemp={base}/t", *arguments]
        return subprocess.call(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
