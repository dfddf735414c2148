"""One suite for every bus: the in-memory bus and the real ones keep the same promises of the port."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from support import servers
from support.memory import MemoryExchange

from contract.bus.listeners import Hung, receiving, run, talk, until
from coordd.adapters.bus.amqp_bus import AmqpBus
from coordd.adapters.bus.redis_bus import RedisBus
from coordd.adapters.bus.unix_bus import UnixBus
from coordd.core.wire.events import MESSAGE_BYTES_MAX
from coordd.errors import LocalProtocolError
from coordd.ports import Bus

# More messages than any bus keeps for a node that does not read.
HUNG_MESSAGES = 12_000

LOCAL = ["memory", "unix"]
BROKERED = ["amqp", "amqp by thread", "redis"]
URLS = {"amqp": "rabbit_url", "amqp by thread": "rabbit_url", "redis": "redis_url"}
by_thread = functools.partial(AmqpBus, lane=False)

MakeBus = Callable[[str], Bus]


_clusters = itertools.count()


def maker(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBus]:
    """Makes the buses of one separate cluster."""
    buses: list[Bus] = []
    exchange = MemoryExchange()
    cluster = f"contract-{next(_clusters)}"
    url = request.getfixturevalue(URLS[kind]) if kind in BROKERED else ""

    def make(name: str) -> Bus:
        bus: Bus
        if kind == "memory":
            bus = exchange.bus(name)
        elif kind == "unix":
            bus = UnixBus(f"unix://{tmp_path}/bus", name)
        else:
            bus = KINDS_OF_SERVER[kind][1]([url], name, cluster=cluster)
        buses.append(bus)
        return bus

    yield make
    for bus in buses:
        bus.close()


@pytest.fixture(params=[*LOCAL, *BROKERED])
def make_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBus]:
    yield from maker(request.param, request, tmp_path)


@pytest.fixture(params=LOCAL)
def make_local_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBus]:
    yield from maker(request.param, request, tmp_path)


@pytest.fixture(params=[kind for kind in BROKERED if kind != "amqp"])
def make_crossing_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBus]:
    """Its messages cross from asyncio's thread to trio's."""
    yield from maker(request.param, request, tmp_path)


@pytest.fixture(params=BROKERED)
def make_brokered_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBus]:
    yield from maker(request.param, request, tmp_path)


KINDS_OF_SERVER: dict[str, tuple[str, Callable[..., AmqpBus | RedisBus]]] = {
    "amqp": ("own_rabbit", AmqpBus),
    "amqp by thread": ("own_rabbit", by_thread),
    "redis": ("own_redis", RedisBus),
}


@pytest.fixture(params=BROKERED)
def breakable(request: pytest.FixtureRequest) -> tuple[servers.Rabbit | servers.Redis, MakeBus]:
    """A server that the test may break, and buses that use it."""
    fixture, kind = KINDS_OF_SERVER[request.param]
    server = request.getfixturevalue(fixture)
    cluster = f"contract-{next(_clusters)}"
    return server, lambda name: kind([server.url], name, cluster=cluster)


class TestEveryBus:
    def test_publish_reaches_every_other_node_and_not_oneself(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b, c = (make_bus(name) for name in ("a.1", "b.2", "c.3"))
            async with receiving(a, b, c) as (heard_a, heard_b, heard_c):
                a.publish(b"one")
                b.publish(b"two")
                await until(lambda: len(heard_c.messages) == 2 and heard_a.messages and heard_b.messages)
                assert heard_a.messages == [b"two"]
                assert heard_b.messages == [b"one"]
                assert sorted(heard_c.messages) == [b"one", b"two"]

        run(main)

    def test_send_reaches_one_node_alone(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b, c = (make_bus(name) for name in ("a.1", "b.2", "c.3"))
            async with receiving(a, b, c) as (_, heard_b, heard_c):
                a.send("b.2", b"for b")
                a.publish(b"for all")
                await until(lambda: heard_c.messages and len(heard_b.messages) == 2)
                assert heard_b.messages == [b"for b", b"for all"]
                assert heard_c.messages == [b"for all"]

        run(main)

    def test_messages_of_one_sender_keep_their_order(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b = make_bus("a.1"), make_bus("b.2")
            sent = [b"%d" % n for n in range(200)]  # more than the kernel queues at one time
            async with receiving(a, b) as (_, heard_b):
                for n, data in enumerate(sent):
                    a.publish(data)
                    if n > 100:  # b reads in between, which makes room while others still wait
                        await trio.lowlevel.checkpoint()
                await until(lambda: len(heard_b.messages) == len(sent))
                assert heard_b.messages == sent

        run(main)

    def test_every_burst_ends_with_an_empty_message(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b = make_bus("a.1"), make_bus("b.2")
            async with receiving(a, b) as (_, heard_b):
                for n in range(5):
                    a.publish(b"%d" % n)
                await until(lambda: len(heard_b.messages) == 5 and not heard_b.unfinished)
                assert 1 <= heard_b.bursts <= 5

        run(main)

    def test_what_is_delivered_may_be_answered_from_within(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b = make_bus("a.1"), make_bus("b.2")
            heard: list[bytes] = []
            async with trio.open_nursery() as nursery:
                nursery.start_soon(a.receive, heard.append, lambda _name: None)
                nursery.start_soon(b.receive, lambda d: b.publish(b"re:" + d) if d else None, lambda _name: None)
                await trio.testing.wait_all_tasks_blocked()
                await until(lambda: a.state == b.state == "connected")
                a.publish(b"hello")
                await until(lambda: b"re:hello" in heard)
                nursery.cancel_scope.cancel()

        run(main)

    def test_sending_to_one_who_has_gone_tells_his_death(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b, c = (make_bus(name) for name in ("a.1", "b.2", "c.3"))
            async with receiving(a, c) as (heard_a, heard_c):
                a.publish(b"all here")
                b.close()
                a.send("b.2", b"anybody?")
                await until(lambda: heard_a.dead)
                assert heard_a.dead == ["b.2"]
                a.publish(b"still here")
                await until(lambda: b"still here" in heard_c.messages)

        run(main)

    def test_one_who_was_never_there_is_dead_too(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a = make_bus("a.1")
            async with receiving(a) as (heard_a,):
                a.send("nobody.9", b"anybody?")
                await until(lambda: heard_a.dead == ["nobody.9"])

        run(main)

    def test_messages_of_the_largest_size_pass(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b = make_bus("a.1"), make_bus("b.2")
            async with receiving(a, b) as (_, heard_b):
                largest = b"x" * MESSAGE_BYTES_MAX
                for _ in range(20):
                    a.publish(largest)
                await until(lambda: len(heard_b.messages) == 20)
                assert heard_b.messages[19] == largest

        run(main)

    def test_the_counters_count(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b, c = (make_bus(name) for name in ("a.1", "b.2", "c.3"))
            async with receiving(a, b, c) as (_, heard_b, heard_c):
                a.publish(b"four")
                await until(lambda: heard_b.messages and heard_c.messages)
                said = a.statistics()
                assert {"published", "delivered", "bytes", "dropped"} <= set(said)
                assert said["published"] == 1
                assert said["dropped"] == 0

        run(main)

    def test_its_state_is_a_word(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a = make_bus("a.1")
            async with receiving(a):
                assert a.state == "connected"
            a.close()
            a.close()
            assert a.state == "disconnected"

        run(main)

    def test_what_must_arrive_is_confirmed_once(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b = make_bus("a.1"), make_bus("b.2")
            said: list[bool] = []
            async with receiving(a, b) as (_, heard_b):
                for n in range(50):
                    a.publish(b"%d" % n, said.append)
                await until(lambda: len(said) == 50 and len(heard_b.messages) == 50)
                assert heard_b.messages == [b"%d" % n for n in range(50)]
                assert said == [True] * 50
            assert len(said) == 50

        run(main)


class TestEveryLocalBus:
    def test_peers_are_the_others(self, make_local_bus: MakeBus) -> None:
        a, b = make_local_bus("a.1"), make_local_bus("b.2")
        assert list(a.peers() or ()) == ["b.2"]
        make_local_bus("c.3")
        assert sorted(a.peers() or ()) == ["b.2", "c.3"]
        b.close()
        assert list(a.peers() or ()) == ["c.3"]

    def test_a_node_that_does_not_read_blocks_nobody(self, make_local_bus: MakeBus) -> None:
        async def main() -> None:
            a, b, c = (make_local_bus(name) for name in ("a.1", "hung.2", "c.3"))
            async with receiving(a, c) as (_, heard_c):
                for n in range(HUNG_MESSAGES):
                    a.publish(b"%d" % n)
                    if n % 20 == 0:
                        await until(lambda n=n: len(heard_c.messages) > n)  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                await until(lambda: len(heard_c.messages) == HUNG_MESSAGES)
                assert a.statistics()["dropped"] > 0
                async with receiving(b) as (heard_b,):  # it thaws, and hears the new messages
                    await until(lambda: heard_b.messages)
                    a.publish(b"welcome back")
                    await until(lambda: b"welcome back" in heard_b.messages)
                    assert len(heard_b.messages) < HUNG_MESSAGES

        run(main)


class TestEveryBrokeredBus:
    def test_who_is_there_is_not_known(self, make_brokered_bus: MakeBus) -> None:
        assert make_brokered_bus("a.1").peers() is None

    def test_what_is_said_before_there_is_a_connection_is_dropped(self, make_brokered_bus: MakeBus) -> None:
        bus = make_brokered_bus("a.1")
        said: list[bool] = []
        bus.publish(b"gossip")
        bus.publish(b"must arrive", said.append)
        assert said == [False]
        assert bus.state == "starting"
        assert bus.statistics()["dropped"] == 2

    def test_a_message_that_is_too_large_or_empty_is_refused_at_once(self, make_brokered_bus: MakeBus) -> None:
        bus = make_brokered_bus("a.1")
        for data in (b"", b"x" * (2 * MESSAGE_BYTES_MAX)):
            with pytest.raises(LocalProtocolError):
                bus.publish(data)
            with pytest.raises(LocalProtocolError):
                bus.send("b.2", data)

    def test_a_connection_is_told(self, make_brokered_bus: MakeBus) -> None:
        async def main() -> None:
            a = make_brokered_bus("a.1")
            async with receiving(a) as (heard_a,):
                assert heard_a.ups == [True]
                assert a.error == ""
                a.close()
                assert a.state == "disconnected"
                a.publish(b"too late")
                assert a.statistics()["dropped"] == 1

        run(main)

    def test_a_core_that_hangs_loses_the_oldest_and_keeps_its_connection(self, make_crossing_bus: MakeBus) -> None:
        """The trio thread of the hung node is stopped inside ``deliver``; the waiting messages are bounded."""
        a, b = make_crossing_bus("a.1"), make_crossing_bus("hung.2")
        hung = Hung(b)

        async def main() -> None:
            async with receiving(a), trio.open_nursery() as nursery:
                nursery.start_soon(hung.run)
                try:
                    await until(lambda: b.state == "connected")

                    def has_heard() -> bool:
                        a.publish(b"first")
                        return hung.caught.is_set()

                    await until(has_heard)
                    for n in range(HUNG_MESSAGES):
                        a.publish(b"%d" % n)
                        if n % 500 == 0:
                            await until(lambda: a.statistics()["waiting"] == 0)
                    a.publish(b"last")
                    await until(lambda: b.statistics()["overrun"] > HUNG_MESSAGES - 10_000)
                finally:
                    hung.go_on.set()
            assert b"0" not in hung.heard
            assert b"%d" % (HUNG_MESSAGES - 1) in hung.heard
            assert b.statistics()["connections"] == 1
            assert b.statistics()["dropped"] >= b.statistics()["overrun"]

        run(main)

    def test_what_is_delivered_may_fail_and_is_heard_of(self, make_brokered_bus: MakeBus) -> None:
        async def main() -> None:
            a, b = make_brokered_bus("a.1"), make_brokered_bus("b.2")

            def fail(data: bytes) -> None:
                raise ZeroDivisionError(data)

            async def speak() -> None:
                while True:
                    a.publish(b"x")
                    await trio.sleep(0.01)

            async with receiving(a), trio.open_nursery() as nursery:
                nursery.start_soon(speak)
                with pytest.RaisesGroup(ZeroDivisionError), trio.fail_after(20):
                    await b.receive(fail, lambda _name: None)
                nursery.cancel_scope.cancel()

        run(main)

    def test_a_killed_server_that_comes_back(self, breakable: tuple[servers.Rabbit | servers.Redis, MakeBus]) -> None:
        server, make = breakable

        async def main() -> None:
            a, b = make("a.1"), make("b.2")
            said: list[bool] = []
            async with receiving(a, b) as (heard_a, heard_b):
                await talk(a, heard_b, b"before")
                server.pause()
                a.publish(b"lost", said.append)
                await until(lambda: not a.statistics()["waiting"])
                server.kill()
                await until(lambda: "disconnected" == a.state == b.state)
                assert a.error
                assert heard_a.ups == [True, False]
                a.publish(b"lost too", said.append)
                await until(lambda: len(said) == 2)
                assert said == [False, False]
                # in this thread, because the server lives as long as its thread: the core stands still meanwhile
                server.start()
                await until(lambda: "connected" == a.state == b.state)
                assert a.error == ""
                assert heard_a.ups == [True, False, True]
                await talk(a, heard_b, b"after")
                await talk(b, heard_a, b"after too")
                a.send("b.2", b"to one")
                a.publish(b"sure", said.append)
                await until(lambda: b"to one" in heard_b.messages and said[2:] == [True])
            assert len(said) == 3

        run(main)

    @pytest.mark.parametrize(
        ("kind", "there", "nobody"),
        [
            (AmqpBus, "rabbit_url", "amqp://guest:guest@{}:{}/"),
            (by_thread, "rabbit_url", "amqp://guest:guest@{}:{}/"),
            (RedisBus, "redis_url", "redis://{}:{}/0"),
        ],
        ids=BROKERED,
    )
    def test_a_second_address_is_used_when_the_first_is_dead(
        self, kind: Callable[..., AmqpBus | RedisBus], there: str, nobody: str, request: pytest.FixtureRequest
    ) -> None:
        urls = [nobody.format(servers.HOST, servers.free_port()), request.getfixturevalue(there)]
        cluster = f"contract-{next(_clusters)}"

        async def main() -> None:
            buses = [kind(urls, f"n.{n}", cluster=cluster) for n in range(4)]
            async with receiving(*buses) as heard:
                await talk(buses[0], heard[3], b"hello")

        run(main)
