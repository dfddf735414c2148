"""One suite for every bus: the port's promises, kept by the fake and by the real one alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from contract.bus_ears import receiving, run, until

from coordd.adapters.memory import MemoryExchange
from coordd.adapters.unix_bus import UnixBus
from coordd.core.events import MESSAGE_BYTES_MAX
from coordd.ports import Bus

# More than any bus keeps for a node that does not read.
HUNG_MESSAGES = 12_000

MakeBus = Callable[[str], Bus]


@pytest.fixture(params=["memory", "unix"])
def make_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeBus]:
    buses: list[Bus] = []
    exchange = MemoryExchange()

    def make(name: str) -> Bus:
        bus: Bus
        bus = exchange.bus(name) if request.param == "memory" else UnixBus(f"unix://{tmp_path}/bus", name)
        buses.append(bus)
        return bus

    yield make
    for bus in buses:
        bus.close()


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
            sent = [b"%d" % n for n in range(200)]  # more than the kernel queues at a time
            async with receiving(a, b) as (_, heard_b):
                for n, data in enumerate(sent):
                    a.publish(data)
                    if n > 100:  # b reads in between, and makes room while others still wait
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
                a.publish(b"hello")
                await until(lambda: b"re:hello" in heard)
                nursery.cancel_scope.cancel()

        run(main)

    def test_peers_are_the_others(self, make_bus: MakeBus) -> None:
        a, b = make_bus("a.1"), make_bus("b.2")
        assert list(a.peers()) == ["b.2"]
        make_bus("c.3")
        assert sorted(a.peers()) == ["b.2", "c.3"]
        b.close()
        assert list(a.peers()) == ["c.3"]

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

    def test_a_node_that_does_not_read_blocks_nobody(self, make_bus: MakeBus) -> None:
        async def main() -> None:
            a, b, c = (make_bus(name) for name in ("a.1", "hung.2", "c.3"))
            async with receiving(a, c) as (_, heard_c):
                for n in range(HUNG_MESSAGES):
                    a.publish(b"%d" % n)
                    if n % 20 == 0:
                        await until(lambda n=n: len(heard_c.messages) > n)  # type: ignore[misc]
                await until(lambda: len(heard_c.messages) == HUNG_MESSAGES)
                assert a.statistics()["dropped"] > 0
                async with receiving(b) as (heard_b,):  # it thaws, and hears what is new
                    await until(lambda: heard_b.messages)
                    a.publish(b"welcome back")
                    await until(lambda: b"welcome back" in heard_b.messages)
                    assert len(heard_b.messages) < HUNG_MESSAGES

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
