"""asyncio beside trio: one event loop in one second thread, and batched crossings between the two.

Trio owns the main thread. The libraries that need asyncio run here, so that a core that is busy or wedged
neither delays a broker's heartbeats nor, since the application's own come from trio, looks alive because of them.

It does not promise that a coroutine which was cancelled took no effect: what was sent may have arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import trio

from coordd.errors import UnavailableError

T = TypeVar("T")

# How long cancelled tasks may take to clean up before they count as stuck.
CLEANUP_S = 5.0

# What crosses in one turn of the receiving loop; the rest waits for the next, so that others get theirs.
BATCH_MAX = 256


class Crossing(Generic[T]):
    """A bounded queue from one thread to the other; ``wake`` is called once for all that waits.

    One thread puts, the other takes; single operations of a deque are atomic, so there is no lock.
    """

    def __init__(self, length_max: int, bytes_max: int, wake: Callable[[], None]) -> None:
        self._length_max = length_max
        self._bytes_max = bytes_max
        self._wake = wake
        self._items: deque[tuple[int, T]] = deque()
        self._woken = False
        self._bytes_in = 0  # of the putting thread
        self._bytes_out = 0  # of the taking thread

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size: int = 0) -> bool:
        """Queue it for the other thread; False when there is no room."""
        if not self._has_room(size):
            return False
        self._append(item, size)
        return True

    def put_newest(self, item: T, size: int = 0) -> int:
        """Queue it, at the cost of the oldest where there is no room; returns how many those were."""
        dropped = 0
        while not self._has_room(size):
            try:
                old, _ = self._items.popleft()
            except IndexError:  # the other thread has just taken them all
                break
            self._bytes_in -= old
            dropped += 1
        self._append(item, size)
        return dropped

    def take(self, count_max: int = BATCH_MAX) -> list[T]:
        """What waits, oldest first, ``count_max`` at the most; whoever leaves some comes back for it."""
        self._woken = False  # before we look: what is put from now on wakes again
        items = self._items
        taken: list[T] = []
        size = 0
        while len(taken) < count_max:
            try:
                length, item = items.popleft()
            except IndexError:
                break
            size += length
            taken.append(item)
        self._bytes_out += size
        return taken

    def _has_room(self, size: int) -> bool:
        return len(self._items) < self._length_max and self._bytes_in - self._bytes_out + size <= self._bytes_max

    def _append(self, item: T, size: int) -> None:
        self._bytes_in += size
        self._items.append((size, item))
        if not self._woken:
            self._woken = True
            self._wake()


class Aio:
    """The second thread, as ``open_aio`` hands it out. Each method says from which thread it is called."""

    def __init__(self, name: str, *, uvloop: bool) -> None:
        self._trio = trio.lowlevel.current_trio_token()
        self._to_trio: deque[Callable[[], object]] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._loop = _new_loop(uvloop)
        self._stop = asyncio.Event()
        self._ended = trio.Event()
        self._failed = trio.Event()
        self._failure: BaseException | None = None
        self._closing = False
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself holds them only weakly

    # ---- from the trio thread

    def to_aio(self, call: Callable[..., object], *args: Any) -> None:
        """Have something called in the asyncio thread; nothing happens once that has ended."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def start(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run a coroutine until the end; an exception of it is raised from ``open_aio``."""
        self.to_aio(self._spawn, function, args)

    async def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine and return what it returns.

        When it is cancelled it waits for the coroutine to clean up, and returns its result if it has one all
        the same. Raises what the coroutine raises; UnavailableError when it was cancelled by the asyncio side,
        or does not clean up in CLEANUP_S.
        """
        done = trio.Event()
        tasks: list[asyncio.Task[T]] = []
        cancelled = False
        context = contextvars.copy_context()

        def begin() -> None:
            if cancelled:
                self.to_trio(done.set)
                return
            task = self._loop.create_task(function(*args), context=context)
            tasks.append(task)
            task.add_done_callback(lambda _task: self.to_trio(done.set))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        self.to_aio(begin)
        try:
            await done.wait()
        except trio.Cancelled:
            cancelled = True
            self.to_aio(cancel)
            with trio.move_on_after(CLEANUP_S, shield=True):
                await done.wait()
            if not done.is_set():
                raise UnavailableError(
                    f"{function.__qualname__} was cancelled and did not end in {CLEANUP_S} s"
                ) from None
            if not tasks or tasks[0].cancelled():
                raise
        if tasks[0].cancelled():
            raise UnavailableError(f"{function.__qualname__} was cancelled by its own side")
        return tasks[0].result()

    def drain(self) -> None:
        """Make the calls that the asyncio thread has asked for; what they raise is raised from ``open_aio``."""
        for _ in range(len(self._to_trio)):
            call = self._to_trio.popleft()
            try:
                call()
            except Exception as exc:  # would otherwise be the end of trio itself
                self.fail(exc)

    def fail(self, exc: BaseException) -> None:
        """Let ``open_aio`` raise this."""
        if self._failure is None:
            self._failure = exc
        self._failed.set()

    # ---- from the asyncio thread

    def wake(self, call: Callable[[], object]) -> None:
        """Have something called in the trio thread, once however often this is asked for; it may not raise."""
        with contextlib.suppress(trio.RunFinishedError):  # trio has ended without us: nobody is left to be told
            self._trio.run_sync_soon(call, idempotent=True)

    def to_trio(self, call: Callable[[], object]) -> None:
        """Have something called in the trio thread, in order, together with what else waits."""
        self._to_trio.append(call)
        self.wake(self.drain)

    def _spawn(self, function: Callable[..., Coroutine[Any, Any, object]], args: tuple[Any, ...]) -> None:
        task = self._loop.create_task(function(*args))
        self._tasks.add(task)
        task.add_done_callback(self._spawned_ended)

    def _spawned_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if self._closing:
            exc = None if task.cancelled() else task.exception()
        elif task.cancelled():
            exc = UnavailableError(f"{task.get_coro()} was cancelled by its own side")
        else:
            exc = task.exception()
        if exc is not None:
            failure = exc
            self.to_trio(lambda: self.fail(failure))

    # ---- the life of the thread

    def _run(self) -> None:
        loop = self._loop
        loop.set_exception_handler(lambda _loop, _about: None)  # tasks tell their failures themselves
        try:
            loop.run_until_complete(self._main())
            loop.run_until_complete(loop.shutdown_asyncgens())
        except BaseException as exc:  # the end of this thread must be seen in the other one
            failure = exc
            self.to_trio(lambda: self.fail(failure))
        finally:
            loop.close()
            self.to_trio(self._ended.set)

    async def _main(self) -> None:
        await self._stop.wait()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            _, stuck = await asyncio.wait(tasks, timeout=CLEANUP_S)
            if stuck:
                raise UnavailableError(f"{len(stuck)} tasks did not end in {CLEANUP_S} s: {stuck}"[:500])

    def _end(self) -> None:
        self._closing = True
        self._stop.set()

    async def _shut_down(self) -> None:
        """Cancel every task, wait for their clean-up, end the thread; what it told last is heard."""
        self.to_aio(self._end)
        with trio.move_on_after(2 * CLEANUP_S, shield=True):
            await self._ended.wait()  # which is told behind all else that this thread had to tell
        if not self._ended.is_set():
            raise UnavailableError(f"the thread {self._thread.name} did not end in {2 * CLEANUP_S} s")

    async def _watch(self) -> None:
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure


def _new_loop(uvloop: bool) -> asyncio.AbstractEventLoop:
    if uvloop:
        try:
            import uvloop as faster
        except ImportError:
            return asyncio.new_event_loop()
        return faster.new_event_loop()
    return asyncio.new_event_loop()


@asynccontextmanager
async def open_aio(name: str, *, uvloop: bool = False) -> AsyncIterator[Aio]:
    """An asyncio loop in a thread of its own, for as long as the block lasts.

    The death of a task that was started in it is raised here, in an exception group. Leaving cancels every
    task and waits for their clean-up.

    Args:
        name: of the thread, for people who look at a dump.
        uvloop: take that loop where it is installed.
    """
    aio = Aio(name, uvloop=uvloop)
    aio._thread.start()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(aio._watch)
        try:
            yield aio
        finally:
            await aio._shut_down()
            nursery.cancel_scope.cancel()
