"""One process of a service or of a boot step: from its start to its end, with its limits, its words and its output."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import structlog
import trio

from coordd import plugins
from coordd.config.plugged.services import ServiceTable
from coordd.services.programs.child import environment, host, how, killed, limit, lines

log = structlog.get_logger("services")

# How long (seconds) it may take to end after TERM.
GRACE_S = 3.0

# Lines of its output that the log takes within LINES_S seconds.
LINES_MAX, LINES_S = 100, 60.0

# How often (seconds) its silence is looked at, at least.
LOOK_S = 1.0

# It must not take processor time from the daemon and its runs.
NICE = 10
LIMITS = {resource.RLIMIT_NOFILE: 1024, resource.RLIMIT_CORE: 0}

# The name of one in the log, and its events there.
_FIELD = {
    plugins.SERVICES: "service",
    plugins.BOOT_STEPS: "step",
    plugins.STRATEGIES: "strategy",
    plugins.TOPICS: "topic",
}
_SAID = {
    plugins.SERVICES: "service.said",
    plugins.BOOT_STEPS: "boot.said",
    plugins.STRATEGIES: "strategy.said",
    plugins.TOPICS: "topic.said",
}
_DROPPED = {
    plugins.SERVICES: "service.lines_dropped",
    plugins.BOOT_STEPS: "boot.lines_dropped",
    plugins.STRATEGIES: "strategy.lines_dropped",
    plugins.TOPICS: "topic.lines_dropped",
}

# Called with READY or STATUS, and a line for people.
Heard = Callable[[str, str], None]


class Plugged(NamedTuple):
    """What runs: a plug-in of a group. ``title``: its name in the configuration. ``memory``: bytes of its data."""

    group: str
    point: str
    title: str
    memory: int


async def hosted(of: Plugged, context: dict[str, Any], heard: Heard, watch: Callable[[], Awaitable[str]]) -> str:
    """Run it until it ends, or until ``watch`` says why it must; returns why, in a sentence. ``context``: as the host
    wants it. Never raises for what the plug-in does; when cancelled, the process is ended.
    """
    pipe = subprocess.PIPE
    try:
        process = await trio.lowlevel.open_process(
            host(of.group, of.point, json.dumps(context)),
            stdin=pipe,  # its end tells the process that the daemon is gone
            stdout=pipe,
            stderr=pipe,
            env=environment(finds_packages=True, COORDD_SOCKET=context["socket"]),
            cwd="/",
            start_new_session=True,
        )
    except (OSError, RuntimeError) as exc:  # no thread is free to start it
        return f"no process for it: {getattr(exc, 'strerror', None) or exc}"
    told = _Told(heard)
    try:
        limit(process.pid, {resource.RLIMIT_DATA: of.memory, **LIMITS})
        with contextlib.suppress(OSError):  # it has ended already, or the kernel forbids it
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        async with trio.open_nursery() as nursery:
            assert process.stdout is not None
            assert process.stderr is not None
            nursery.start_soon(told.read, process.stdout)
            nursery.start_soon(logged, of, process.stderr)
            nursery.start_soon(told.look, watch, nursery.cancel_scope)
            await process.wait()
            with trio.move_on_after(0.2):  # its last words
                await told.over.wait()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await _end(process)
    return told.why or told.problem or how(process.returncode)


async def finished(of: Plugged, context: dict[str, Any], timeout_s: float, heard: Heard) -> tuple[bool, str]:
    """One that ends by itself: True and what it returned, for people; or False and why it failed. As ``hosted``."""
    done: list[str] = []

    def hear(word: str, text: str) -> None:
        heard(word, text)
        if word == plugins.READY:
            done.append(text)

    async def watch() -> str:
        await trio.sleep(timeout_s)
        return f"it did not end within {timeout_s:g} s"

    why = await hosted(of, context, hear, watch)
    return (True, done[0]) if done else (False, why)


async def served(table: ServiceTable, about: dict[str, str], heard: Heard) -> str:
    """A service: as ``hosted``. ``about``: the fields of its context."""
    watchdog = _Watchdog(table, heard)
    of = Plugged(plugins.SERVICES, table.name, table.name, table.memory)
    return await hosted(of, {"name": table.name, **about}, watchdog.heard, watchdog.watch)


class _Told:
    """What the process says on its standard output: a word and a text a line."""

    def __init__(self, heard: Heard) -> None:
        self.over = trio.Event()
        self.why = ""  # why it was ended from here
        self.problem = ""  # what it says of its own end
        self._heard = heard

    async def read(self, stream: trio.abc.ReceiveStream) -> None:
        async for line in lines(stream):
            word, _, text = line.partition(" ")
            if word == plugins.PROBLEM:
                self.problem = text
            elif word in (plugins.READY, plugins.STATUS):
                self._heard(word, text)
        self.over.set()

    async def look(self, watch: Callable[[], Awaitable[str]], scope: trio.CancelScope) -> None:
        self.why = await watch()
        scope.cancel()


class _Watchdog:
    """Ends a service that is not ready in time, or silent for too long."""

    def __init__(self, table: ServiceTable, heard: Heard) -> None:
        self._table = table
        self._heard = heard
        self._ready = False
        self._at = trio.current_time()  # when it said something last

    def heard(self, word: str, text: str) -> None:
        self._at = trio.current_time()
        self._ready = self._ready or word == plugins.READY
        self._heard(word, text)

    async def watch(self) -> str:
        table = self._table
        while True:
            limit_s = table.watchdog_s if self._ready else table.start_timeout_s
            left_s = self._at + limit_s - trio.current_time() if limit_s else LOOK_S
            if left_s <= 0:
                return f"{'it said nothing' if self._ready else 'it was not ready'} within {limit_s:g} s"
            await trio.sleep(max(0.01, min(left_s, LOOK_S)))


async def logged(of: Plugged, stream: trio.abc.ReceiveStream) -> None:
    """The output of a process goes to the log, a bounded part of it."""
    began, count = trio.current_time(), 0
    async for line in lines(stream):
        if trio.current_time() - began > LINES_S:
            if count > LINES_MAX:
                log.warning(_DROPPED[of.group], lines=count - LINES_MAX, **{_FIELD[of.group]: of.title})
            began, count = trio.current_time(), 0
        count += 1
        if count <= LINES_MAX and line:
            log.info(_SAID[of.group], line=line, **{_FIELD[of.group]: of.title})


async def _end(process: trio.Process) -> None:
    """TERM, and KILL to its whole session after GRACE_S. Whatever it started goes too."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with trio.move_on_after(GRACE_S):
            await process.wait()
    await killed(process)
