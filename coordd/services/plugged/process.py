"""One process of a service: from its start to its end, with its limits, its words and its output."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import structlog
import trio

from coordd import plugins
from coordd.config.plugged.services import ServiceTable
from coordd.core.redaction import redact_text
from coordd.core.visible import visible

log = structlog.get_logger("services")

# How long (seconds) it may take to end after TERM.
GRACE_S = 3.0

# Characters of a line of its output; a longer one is cut. Lines that the log takes within LINES_S seconds.
LINE_MAX = 1000
LINES_MAX, LINES_S = 100, 60.0

# How often (seconds) its silence is looked at, at least.
LOOK_S = 1.0

# It must not take processor time from the daemon and its runs.
NICE = 10
FILES_MAX = 1024

HOST = (sys.executable, "-P", "-m", "coordd.plugins.host", plugins.SERVICES)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Called with READY or STATUS, and a line for people.
Heard = Callable[[str, str], None]


async def served(table: ServiceTable, about: dict[str, str], heard: Heard) -> str:
    """Run it until it ends; returns why, in a sentence. ``about``: the fields of its context. Never raises for what the
    service does; when cancelled, the process is ended.
    """
    context = json.dumps({"name": table.name, **about})
    environ = {"PATH": PATH, "LANG": "C.UTF-8", "COORDD_SOCKET": about["socket"]}
    if "PYTHONPATH" in os.environ:  # it finds packages where the daemon does
        environ["PYTHONPATH"] = os.environ["PYTHONPATH"]
    pipe = subprocess.PIPE
    try:
        process = await trio.lowlevel.open_process(
            [*HOST, table.name, context],
            stdin=pipe,  # its end tells the process that the daemon is gone
            stdout=pipe,
            stderr=pipe,
            env=environ,
            cwd="/",
            start_new_session=True,
        )
    except OSError as exc:
        return f"no process for it: {exc.strerror or exc}"
    told = _Told(table, heard)
    try:
        _limit(process.pid, table.memory)
        async with trio.open_nursery() as nursery:
            assert process.stdout is not None
            assert process.stderr is not None
            nursery.start_soon(told.read, process.stdout)
            nursery.start_soon(_logged, table.name, process.stderr)
            nursery.start_soon(told.watch, nursery.cancel_scope)
            await process.wait()
            with trio.move_on_after(0.2):  # its last words
                await told.over.wait()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)
    return told.why or told.problem or _how(process.returncode)


class _Told:
    """What the process says on its standard output: a word and a text a line."""

    def __init__(self, table: ServiceTable, heard: Heard) -> None:
        self.over = trio.Event()
        self.why = ""  # why it was ended from here
        self.problem = ""  # what it says of its own end
        self._table = table
        self._heard = heard
        self._ready = False
        self._at = trio.current_time()  # when it said something last

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        async for line in lines(stream):
            word, _, text = line.partition(" ")
            if word == plugins.PROBLEM:
                self.problem = text
            elif word in (plugins.READY, plugins.STATUS):
                self._at = trio.current_time()
                self._ready = self._ready or word == plugins.READY
                self._heard(word, text)
        self.over.set()

    async def watch(self, scope: trio.CancelScope) -> None:
        """End it when it is not ready in time, or silent for too long."""
        table = self._table
        while True:
            limit_s = table.watchdog_s if self._ready else table.start_timeout_s
            left_s = self._at + limit_s - trio.current_time() if limit_s else LOOK_S
            if left_s <= 0:
                what = "it said nothing" if self._ready else "it was not ready"
                self.why = f"{what} within {limit_s:g} s"
                scope.cancel()
            await trio.sleep(max(0.01, min(left_s, LOOK_S)))


async def lines(stream: trio.abc.ReceiveStream) -> AsyncIterator[str]:
    """Its lines, cut to LINE_MAX, printable and without secrets."""
    rest = b""
    with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        async for piece in stream:
            *whole, rest = (rest + piece).split(b"\n")
            rest = rest[: 4 * LINE_MAX]
            for line in whole:
                yield visible(redact_text(line[: 4 * LINE_MAX].decode(errors="replace")))[:LINE_MAX]


async def _logged(name: str, stream: trio.abc.ReceiveStream) -> None:
    """Its output goes to the log, a bounded part of it."""
    began, count = trio.current_time(), 0
    async for line in lines(stream):
        if trio.current_time() - began > LINES_S:
            if count > LINES_MAX:
                log.warning("service.lines_dropped", service=name, lines=count - LINES_MAX)
            began, count = trio.current_time(), 0
        count += 1
        if count <= LINES_MAX and line:
            log.info("service.said", service=name, line=line)


async def _end(process: trio.Process) -> None:
    """TERM, and KILL to its whole session after GRACE_S. Whatever it started goes too."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with trio.move_on_after(GRACE_S):
            await process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with trio.move_on_after(1.0):
        await process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            await stream.aclose()


def _how(code: int | None) -> str:
    if code is None:
        return "it cannot be killed"
    return f"signal {-code} ended it" if code < 0 else f"it ended with exit code {code}"


def _limit(pid: int, memory: int) -> None:
    """Limits for what it does from now on, and for its children."""
    try:
        for what, most in (
            (resource.RLIMIT_DATA, memory),
            (resource.RLIMIT_NOFILE, FILES_MAX),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.prlimit(pid, what, (most, most))
        os.setpriority(os.PRIO_PROCESS, pid, NICE)
    except (OSError, ValueError) as exc:  # it has ended already, or the kernel forbids it
        log.debug("service.not_limited", pid=pid, reason=str(exc))
