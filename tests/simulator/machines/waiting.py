"""Services that are written for trio, in a world without it: each of their waits is a question to the world.

A coroutine runs until it waits, in one step of the world. The world answers later, by its own clock, and the coroutine
goes on. If its daemon was paused meanwhile, it goes on after the pause; if the daemon is dead, it never does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import trio

from coordd.errors import CoorddError

if TYPE_CHECKING:
    from simulator.machines.daemon import Daemon

# What the question is handed: the result, or an error to raise.
Then = Callable[[Any], None]

# Seconds that a thread or a call takes: there, and back.
CALL_S = (0.0005, 0.02)


class Question:
    """What a coroutine waits for. ``put``: tell the world how to answer it."""

    def __init__(self, put: Callable[[Then], None]) -> None:
        self.put = put

    def __await__(self) -> Generator[Question, Any, Any]:
        return (yield self)


class Turns:
    """Whose coroutine runs at present: a clock or a thread in it belongs to that daemon."""

    def __init__(self) -> None:
        self.daemon: Daemon | None = None

    @property
    def present(self) -> Daemon:
        assert self.daemon is not None, "no coroutine runs"
        return self.daemon

    def boottime(self) -> float:
        """The clock of the machine whose turn it is."""
        return self.present.time().mono

    async def run_sync(self, function: Callable[..., Any], *args: Any, **_options: Any) -> Any:
        """In place of ``trio.to_thread.run_sync``: the thread runs at one instant, a little later."""
        return await Question(partial(self._threaded, self.present, partial(function, *args)))

    def _threaded(self, daemon: Daemon, function: Callable[[], Any], then: Then) -> None:
        there, back = daemon.call_s(), daemon.call_s()
        daemon.world.at(there, self._in_thread, daemon, function, back, then)

    def _in_thread(self, daemon: Daemon, function: Callable[[], Any], back_s: float, then: Then) -> None:
        if not daemon.alive:
            return
        result: Any
        with self.of(daemon):
            try:
                result = function()
            except (CoorddError, ValueError) as exc:
                result = exc
        daemon.world.at(back_s, then, result)

    @contextlib.contextmanager
    def of(self, daemon: Daemon) -> Generator[None]:
        """It is this daemon's turn."""
        before, self.daemon = self.daemon, daemon
        try:
            yield
        finally:
            self.daemon = before

    def begin(self, daemon: Daemon, coroutine: Coroutine[Any, Any, Any], done: Then) -> None:
        """Run a coroutine to its end; then ``done`` gets its result, or the error that it raised."""
        self._go_on(daemon, coroutine, done, None)

    def _go_on(self, daemon: Daemon, coroutine: Coroutine[Any, Any, Any], done: Then, said: Any) -> None:
        if not daemon.alive:
            coroutine.close()
            return
        if daemon._late(self._go_on, daemon, coroutine, done, said):
            return
        with self.of(daemon):
            try:
                question = coroutine.throw(said) if isinstance(said, Exception) else coroutine.send(said)
            except StopIteration as exc:
                done(exc.value)
                return
            except CoorddError as exc:
                done(exc)
                return
        question.put(partial(self._go_on, daemon, coroutine, done))

    def patched(self, *modules: Any) -> contextlib.ExitStack:
        """Patches: the clock of these modules, and trio's threads."""
        patches = contextlib.ExitStack()
        patches.enter_context(mock.patch.object(trio.to_thread, "run_sync", self.run_sync))
        for module in modules:
            patches.enter_context(mock.patch.object(module, "boottime", self.boottime))
        return patches
