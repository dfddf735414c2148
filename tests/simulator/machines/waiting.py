"""Services that are written for trio, in a world without it: each of their waits is a question to the world.

A coroutine runs until it waits, in one step of the world. The world answers later, by its own clock, and the coroutine
goes on. If its daemon was paused meanwhile, it goes on after the pause; if the daemon is dead, it never does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Self
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


class Task:
    """A coroutine of a daemon. ``done`` gets its result, or the error that it raised; None if it was ended."""

    def __init__(self, daemon: Daemon, coroutine: Coroutine[Any, Any, Any], done: Then) -> None:
        self.daemon, self._coroutine, self._done = daemon, coroutine, done
        self.over = False

    def step(self, said: Any) -> Question | None:
        """Go on until the next question; None: it is over."""
        try:
            question: Question = (
                self._coroutine.throw(said) if isinstance(said, Exception) else self._coroutine.send(said)
            )
        except StopIteration as exc:
            self._finish(exc.value)
        except CoorddError as exc:
            self._finish(exc)
        else:
            return question
        return None

    def end(self) -> None:
        """End it where it waits, as trio does with a cancelled task. What it does then must not wait."""
        if not self.over:
            self.drop()
            self._done(None)

    def drop(self) -> None:
        """Its daemon is dead, or the world is over: nobody is told."""
        self.over = True
        self._coroutine.close()

    def _finish(self, result: Any) -> None:
        self.over = True
        self._done(result)


class Scope:
    """In place of ``trio.CancelScope``: around all of a task. Nothing here takes longer than trio's deadlines allow."""

    cancelled_caught = False

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._task: Task | None = None

    def __enter__(self) -> Self:
        self._task = self._turns.task
        return self

    def __exit__(self, *_: object) -> None: ...

    def cancel(self) -> None:
        """End the task."""
        if self._task is not None:
            self._task.end()


class Lock:
    """In place of ``trio.Lock``: who finds it held asks again a little later."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._held = False

    async def __aenter__(self) -> None:
        while self._held:
            await self._turns.sleep(CALL_S[1])
        self._held = True

    async def __aexit__(self, *_: object) -> None:
        self._held = False


class Nursery:
    """In place of ``trio.open_nursery``: its tasks begin a little later, and its block waits for all of them."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._daemon = turns, turns.present
        self._tasks: list[Task] = []
        self._then: Then | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, exc: object, _: object) -> None:
        try:
            if kind is None and self._left():
                await Question(self._wait)
        finally:
            for task in self._left():
                task.end()

    def start_soon(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> None:
        """Begin a task."""
        task = self._turns.made(self._daemon, function(*args), self._ended)
        self._tasks.append(task)
        self._daemon.world.at(0.0, self._turns.go_on, task, None)

    def _left(self) -> list[Task]:
        return [task for task in self._tasks if not task.over]

    def _wait(self, then: Then) -> None:
        self._then = then

    def _ended(self, result: Any) -> None:
        if isinstance(result, Exception):
            self._daemon.world.at(0.0, self._daemon.world.violate, f"X a task has raised {result!r}")
        if self._then is not None and not self._left():
            self._daemon.world.at(0.0, self._then, None)


class Turns:
    """Whose coroutine runs at present: a clock or a thread in it belongs to that daemon."""

    def __init__(self) -> None:
        self.daemon: Daemon | None = None
        self.task: Task | None = None
        self._tasks: dict[Task, None] = {}  # that are not over

    def made(self, daemon: Daemon, coroutine: Coroutine[Any, Any, Any], done: Then) -> Task:
        """A task that has not begun."""

        def over(result: Any) -> None:
            self._tasks.pop(task, None)
            done(result)

        task = Task(daemon, coroutine, over)
        self._tasks[task] = None
        return task

    def drop_all(self) -> None:
        """The world is over."""
        for task in list(self._tasks):
            task.drop()
        self._tasks.clear()

    @property
    def present(self) -> Daemon:
        assert self.daemon is not None, "no coroutine runs"
        return self.daemon

    def boottime(self) -> float:
        """The clock of the machine whose turn it is; also in place of ``trio.current_time``."""
        return self.present.time().mono

    async def sleep(self, seconds: float) -> None:
        """In place of ``trio.sleep``."""
        daemon = self.present
        await Question(lambda then: daemon.world.at(seconds / daemon.host.rate, then, None))

    async def sleep_until(self, deadline: float) -> None:
        """In place of ``trio.sleep_until``."""
        await self.sleep(max(0.0, deadline - self.boottime()))

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
    def of(self, daemon: Daemon, task: Task | None = None) -> Generator[None]:
        """It is this daemon's turn."""
        before, self.daemon, self.task = (self.daemon, self.task), daemon, task
        try:
            yield
        finally:
            self.daemon, self.task = before

    def begin(self, daemon: Daemon, coroutine: Coroutine[Any, Any, Any], done: Then) -> None:
        """Run a coroutine to its end; then ``done`` gets its result, or the error that it raised."""
        self.go_on(self.made(daemon, coroutine, done), None)

    def go_on(self, task: Task, said: Any) -> None:
        """What the task waited for has come."""
        daemon = task.daemon
        if task.over:
            return
        if not daemon.alive:
            with self.of(daemon, task):
                task.drop()
            self._tasks.pop(task, None)
            return
        if daemon._late(self.go_on, task, said):
            return
        with self.of(daemon, task):
            question = task.step(said)
        if question is not None:
            question.put(partial(self.go_on, task))

    def patched(self, *modules: Any) -> contextlib.ExitStack:
        """Patches: the clock of these modules; trio's threads, pauses, locks, nurseries and scopes."""
        patches = contextlib.ExitStack()
        patches.enter_context(mock.patch.object(trio.to_thread, "run_sync", self.run_sync))
        patches.enter_context(mock.patch.object(trio, "sleep", self.sleep))
        patches.enter_context(mock.patch.object(trio, "sleep_until", self.sleep_until))
        patches.enter_context(mock.patch.object(trio, "current_time", self.boottime))
        patches.enter_context(mock.patch.object(trio, "open_nursery", lambda: Nursery(self)))
        patches.enter_context(mock.patch.object(trio, "Lock", lambda: Lock(self)))
        patches.enter_context(mock.patch.object(trio, "CancelScope", lambda: Scope(self)))
        patches.enter_context(mock.patch.object(trio, "move_on_after", lambda *_, **__: Scope(self)))
        for module in modules:
            patches.enter_context(mock.patch.object(module, "boottime", self.boottime))
        patches.callback(self.drop_all)
        return patches
