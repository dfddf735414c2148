"""Shared by the tests of buses: listeners that record messages, and a wait with a limit."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import trio
import trio.testing

from coordd.ports import Bus

DEADLINE_S = 20.0


class Listener:
    """The messages that one bus delivered. ``bursts`` counts the ends of bursts."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.dead: list[str] = []
        self.ups: list[bool] = []  # the values that ``changed`` got
        self.bursts = 0
        self.unfinished = 0  # messages since the last end of a burst

    def deliver(self, data: bytes) -> None:
        if data:
            self.messages.append(data)
            self.unfinished += 1
        else:
            self.bursts += 1
            self.unfinished = 0


class Hung:
    """The core of a node, in a thread of its own: it stands still inside ``deliver`` until it may go on."""

    def __init__(self, bus: Bus) -> None:
        self.heard: list[bytes] = []
        self.caught, self.go_on = threading.Event(), threading.Event()
        self._bus = bus

    async def run(self) -> None:
        """Receive until the word ``last`` is heard."""
        await trio.to_thread.run_sync(trio.run, self._receive)

    async def _receive(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._bus.receive, self._deliver, lambda _name: None)
            await until(lambda: b"last" in self.heard)
            nursery.cancel_scope.cancel()

    def _deliver(self, data: bytes) -> None:
        if data:
            self.heard.append(data)
            self.caught.set()
            self.go_on.wait(60)


@asynccontextmanager
async def _receiving(*buses: Bus) -> AsyncIterator[list[Listener]]:
    """Let each bus receive. Yields, when all are connected, one listener for each bus."""
    heard = [Listener() for _ in buses]
    async with trio.open_nursery() as nursery:
        for bus, listener in zip(buses, heard, strict=True):
            nursery.start_soon(bus.receive, listener.deliver, listener.dead.append, listener.ups.append)
        await trio.testing.wait_all_tasks_blocked()
        await until(lambda: all(bus.state == "connected" for bus in buses))
        yield heard
        nursery.cancel_scope.cancel()


def receiving(*buses: Bus) -> AbstractAsyncContextManager[list[Listener]]:
    return _receiving(*buses)


async def until(true: Callable[[], object]) -> None:
    """Wait until something is true. Fails the test after a time limit."""
    with trio.fail_after(DEADLINE_S):
        while not true():  # no event tells when it becomes true
            await trio.sleep(0.001)


async def talk(a: Bus, heard_b: Listener, word: bytes) -> None:
    """Send a message again and again until it is heard, because gossip may be lost."""

    def said() -> bool:
        if word not in heard_b.messages:
            a.publish(word)
        return word in heard_b.messages

    await until(said)


def run(main: Callable[[], Any]) -> Any:
    return anyio.run(main, backend="trio")
