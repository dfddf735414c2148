"""asyncio beside trio: one event loop in one second thread, and batched crossings between the two.

Trio owns the main thread. The libraries that need asyncio run in the second thread. So a busy or stuck core does not
delay the broker's heartbeats. It does not look alive because of them either: coordd's own heartbeats come from trio.

A cancelled coroutine may still have had an effect: a message that was sent may have arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import trio

from coordd.errors import UnavailableError

T = TypeVar("T")

# How long (seconds) cancelled tasks may clean up before they count as stuck.
CLEANUP_S = 5.0

# Maximum number of items per turn of the receiving loop; the rest waits for the next turn, so that other tasks get
# theirs.
BATCH_MAX = 256


class Crossing(Generic[T]):
    """A bounded queue from one thread to the other; ``wake`` is called once for all waiting items.

    One thread puts, the other takes. Single operations of a deque are atomic, so there is no lock.
    """

    def __init__(self, length_max: int, bytes_max: int, wake: Callable[[], None]) -> None:
        self._length_max = length_max
        self._bytes_max = bytes_max
        self._wake = wake
        self._items: deque[tuple[int, T]] = deque()
        self._woken = False
        self._bytes_in = 0  # written by the putting thread
        self._bytes_out = 0  # written by the taking thread

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size: int = 0) -> bool:
        """Queue an item for the other thread; False when there is no room."""
        if not self._has_room(size):
            return False
        self._append(item, size)
        return True

    def put_newest(self, item: T, size: int = 0) -> int:
        """Queue an item; if there is no room, drop the oldest ones. Returns how many were dropped."""
        dropped = 0
        while not self._has_room(size):
            try:
                old, _ = self._items.popleft()
            except IndexError:  # the other thread has just taken all of them
                break
            self._bytes_in -= old
            dropped += 1
        self._append(item, size)
        return dropped

    def take(self, count_max: int = BATCH_MAX) -> list[T]:
        """Take waiting items, oldest first, at most ``count_max``. The caller must call again if items remain."""
        self._woken = False  # before taking: an item that is put from now on wakes again
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
        self._nursery: trio.Nursery
        self._attended: list[Callable[[], object]] = []  # what ends each
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself has only weak references to them

    # ---- from the trio thread

    def to_aio(self, call: Callable[..., object], *args: Any) -> None:
        """Call something in the asyncio thread; nothing happens once that thread has ended."""
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def start(self, function: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Run a coroutine to its end; its exception is raised from ``open_aio``."""
        self.to_aio(self._spawn, function, args)

    async def call(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine and return what it returns.

        When cancelled, it waits for the coroutine's clean-up, and returns the result if there is one. Raises the
        coroutine's exception. Raises UnavailableError when the asyncio side cancelled it, or the clean-up takes longer
        than CLEANUP_S.
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

    def attend(self, task: Callable[[], Awaitable[object]], end: Callable[[], object]) -> None:
        """Run a task in the trio thread for something in the asyncio thread. A task that shields itself goes on while
        ``open_aio`` is cancelled. ``end`` ends it, at the latest when the asyncio thread has ended.
        """

        async def attended() -> None:
            try:
                await task()
            finally:
                self._attended.remove(end)

        self._attended.append(end)
        self._nursery.start_soon(attended)

    def drain(self) -> None:
        """Make the calls that the asyncio thread has requested; their exceptions are raised from ``open_aio``."""
        for _ in range(len(self._to_trio)):
            call = self._to_trio.popleft()
            try:
                call()
            except Exception as exc:  # it would end trio itself
                self.fail(exc)

    def fail(self, exc: BaseException) -> None:
        """Let ``open_aio`` raise this exception."""
        if self._failure is None:
            self._failure = exc
        self._failed.set()

    # ---- from the asyncio thread

    def wake(self, call: Callable[[], object]) -> None:
        """Call something in the trio thread, once even if it is requested several times. It must not raise."""
        with contextlib.suppress(trio.RunFinishedError):  # trio has ended: nobody is left to call
            self._trio.run_sync_soon(call, idempotent=True)

    def to_trio(self, call: Callable[[], object]) -> None:
        """Call something in the trio thread, in order, together with the other waiting calls."""
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
        except BaseException as exc:  # the other thread must notice the end of this one
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
        """Cancel every task, wait for their clean-up, end the thread. Its last calls are still made."""
        self.to_aio(self._end)
        with trio.move_on_after(2 * CLEANUP_S, shield=True):
            await self._ended.wait()  # queued behind all other calls of that thread
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

    The exception of a task is raised here, in an exception group. Leaving the block cancels every task and waits for
    their clean-up.

    Args:
        name: the thread's name, for people who read a dump.
        uvloop: use that loop if it is installed.
    """
    aio = Aio(name, uvloop=uvloop)
    aio._thread.start()
    async with trio.open_nursery() as nursery:
        aio._nursery = nursery
        nursery.start_soon(aio._watch)
        try:
            yield aio
        finally:
            try:
                await aio._shut_down()
            finally:
                for end in aio._attended:
                    end()
                nursery.cancel_scope.cancel()


def ours() -> bool:
    """True if somebody has cancelled this task. aiormq cancels too, where a connection is lost."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class OnDemand:
    """The second thread of those who may never need it: it begins with the first ``get``."""

    def __init__(self, name: str) -> None:
        """``name``: the thread's, for people who read a dump."""
        self._name = name
        self._wanted, self._there = trio.Event(), trio.Event()
        self._aio: Aio | None = None
        self._over = False

    async def run(
        self,
        forever: Callable[[], Coroutine[Any, Any, object]] | None = None,
        last: Callable[[], Coroutine[Any, Any, object]] | None = None,
    ) -> None:
        """Keep it for ever. ``forever`` runs in it, ``last`` before its end, for at most CLEANUP_S."""
        await self._wanted.wait()
        async with open_aio(self._name) as self._aio:
            if forever is not None:
                self._aio.start(forever)
            self._there.set()
            try:
                await trio.sleep_forever()
            finally:
                self._over = True
                if last is not None:
                    with trio.move_on_after(CLEANUP_S, shield=True):
                        await self._aio.call(last)

    async def get(self) -> Aio:
        """The thread. Raises UnavailableError if it has ended."""
        if self._over:
            raise UnavailableError("this node stops")
        self._wanted.set()
        await self._there.wait()
        assert self._aio is not None
        return self._aio
