"""The in-memory bus, which replaces a broker in other tests: which node hears which, and what is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from support import memory
from support.memory import MemoryBus, MemoryExchange

from coordd.errors import LocalProtocolError
from coordd.ports import Bus


class Listener:
    """A listener on one bus, and what it heard."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus: Bus = bus
        self.heard: list[bytes] = []
        self.dead: list[str] = []

    async def listen(self) -> None:
        await self.bus.receive(self.heard.append, self.dead.append)


def run(play: Callable[[MemoryExchange, list[Listener]], Awaitable[None]], names: str = "abc") -> None:
    async def main() -> None:
        exchange = MemoryExchange()
        listeners = [Listener(exchange.bus(name)) for name in names]
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(listener.listen)
                await play(exchange, listeners)
                nursery.cancel_scope.cancel()

    trio.run(main)


async def settled() -> None:
    await trio.testing.wait_all_tasks_blocked()


def test_everybody_else_hears_what_is_published_and_when_the_burst_is_over() -> None:
    async def play(_: MemoryExchange, listeners: list[Listener]) -> None:
        a, b, c = listeners
        a.bus.publish(b"1")
        a.bus.publish(b"2")
        b.bus.send("c", b"3")
        await settled()
        assert (a.heard, b.heard, c.heard) == ([], [b"1", b"2", b""], [b"1", b"2", b"3", b""])
        assert a.bus.peers() == ["b", "c"]
        assert a.bus.statistics() == {"published": 2, "delivered": 0, "bytes": 4, "dropped": 0}
        assert c.bus.statistics()["delivered"] == 3

    run(play)


def test_a_message_to_who_is_gone_proves_a_death_but_not_across_a_partition() -> None:
    async def play(exchange: MemoryExchange, listeners: list[Listener]) -> None:
        a, b, c = listeners
        c.bus.close()
        a.bus.send("c", b"?")
        exchange.partition("a", "bc")
        a.bus.send("b", b"?")
        a.bus.publish(b"?")
        b.bus.publish(b"?")
        await settled()
        assert (a.dead, a.heard, b.heard) == (["c"], [], [])
        assert a.bus.statistics()["dropped"] == 2
        exchange.heal()
        a.bus.publish(b"!")
        await settled()
        assert b.heard == [b"!", b""]
        c.bus.publish(b"from the grave")
        await settled()
        assert b.heard == [b"!", b""]

    run(play)


def test_a_node_that_is_cut_off_hears_nobody_and_knows_it() -> None:
    async def play(exchange: MemoryExchange, listeners: list[Listener]) -> None:
        a, b, c = listeners
        exchange.partition("ab")
        assert [listener.bus.state for listener in listeners] == ["connected", "connected", "disconnected"]
        a.bus.publish(b"1")
        c.bus.publish(b"2")
        c.bus.send("nobody", b"3")
        await settled()
        assert (a.heard, b.heard, c.heard, c.dead) == ([], [b"1", b""], [], [])

    run(play)


def test_messages_can_be_dropped_one_by_one() -> None:
    async def play(exchange: MemoryExchange, listeners: list[Listener]) -> None:
        a, b, c = listeners
        exchange.drop = lambda sender, receiver, data: (sender, receiver, data) == ("a", "b", b"1")
        a.bus.publish(b"1")
        a.bus.publish(b"2")
        await settled()
        assert (b.heard, c.heard) == ([b"2", b""], [b"1", b"2", b""])

    run(play)


def test_a_slow_receiver_loses_what_it_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "INBOX_LENGTH_MAX", 3)

    async def play(_: MemoryExchange, listeners: list[Listener]) -> None:
        a, b = listeners[:2]
        for number in range(5):
            a.bus.send("b", b"%d" % number)
        await settled()
        assert b.heard == [b"0", b"1", b"2", b""]
        assert a.bus.statistics()["dropped"] == 2

    run(play)


def test_a_name_is_taken_once() -> None:
    exchange = MemoryExchange()
    exchange.bus("a").close()
    exchange.bus("a")
    with pytest.raises(LocalProtocolError, match="already"):
        exchange.bus("a")
