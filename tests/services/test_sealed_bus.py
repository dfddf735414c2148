"""The bus of envelopes, over any bus: nodes with a key hear each other as before, and others are not heard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import structlog
import trio
import trio.testing
from support.memory import MemoryBus, MemoryExchange

from coordd.core.wire.envelope import HEADER_BYTES, SEALED_BYTES_MAX, Key, Keyring
from coordd.core.wire.events import MESSAGE_BYTES_MAX
from coordd.errors import LocalProtocolError
from coordd.services.sealed_bus import SealedBus

OLD = Key("k-old", "sign", b"o" * 32)
NEW = Key("k-new", "accept", b"n" * 32)
# A rotation, step by step.
STEPS = (
    Keyring((OLD,)),
    Keyring((OLD, NEW)),
    Keyring((OLD._replace(state="accept"), NEW._replace(state="sign"))),
    Keyring((OLD._replace(state="retired", secret=b""), NEW._replace(state="sign"))),
)


class Party:
    """Nodes on one exchange, with the messages that each has heard."""

    def __init__(self, names: Sequence[str], keyring: Keyring = STEPS[0], cluster: str = "prod") -> None:
        self.exchange = MemoryExchange()
        self.inner: dict[str, MemoryBus] = {name: self.exchange.bus(name) for name in names}
        self.buses = {name: SealedBus(bus, keyring, cluster, inbox=name) for name, bus in self.inner.items()}
        self.heard: dict[str, list[bytes]] = {name: [] for name in names}
        self.dead: list[str] = []

    def run(self, act: Callable[[], None]) -> None:
        """Call a function, and deliver all messages."""

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for name, bus in self.buses.items():
                    nursery.start_soon(bus.receive, self.heard[name].append, self.dead.append)
                await trio.testing.wait_all_tasks_blocked()
                act()
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()

        trio.run(main)


@contextmanager
def logged() -> Iterator[list[dict[str, object]]]:
    with structlog.testing.capture_logs() as records:
        yield records  # type: ignore[misc]  # what structlog calls its own dictionaries


def test_everybody_hears_what_was_published_and_one_what_was_sent() -> None:
    party = Party(("a.1", "b.2", "c.3"))

    def act() -> None:
        party.buses["a.1"].publish(b"to all")
        party.buses["a.1"].send("b.2", b"to one")

    party.run(act)
    assert party.heard == {"a.1": [], "b.2": [b"to all", b"to one", b""], "c.3": [b"to all", b""]}


def test_no_plain_byte_leaves() -> None:
    seen: list[bytes] = []
    party = Party(("a.1", "b.2"))

    def pass_on(_from: str, _to: str, data: bytes) -> bool:
        seen.append(data)
        return False

    party.exchange.drop = pass_on

    def act() -> None:
        party.buses["a.1"].publish(b"payload")
        party.buses["a.1"].send("b.2", b"payload")

    party.run(act)
    assert [data[:3] for data in seen] == [b"CD1", b"CD1"]
    assert seen[0] != seen[1], "the channel is in the MAC"


def test_confirmations_deaths_and_states_are_those_of_the_bus_inside() -> None:
    party = Party(("a.1", "b.2"))
    said: list[bool] = []

    def act() -> None:
        party.buses["a.1"].publish(b"payload", said.append)
        party.buses["a.1"].send("gone.9", b"payload")

    party.run(act)
    bus = party.buses["a.1"]
    assert (said, party.dead) == ([True], ["gone.9"])
    assert (bus.url, bus.state, bus.error, bus.peers()) == ("memory://a.1", "connected", "", ["b.2"])
    party.inner["a.1"].error = "no route"
    assert bus.error == "no route"
    bus.close()
    assert (bus.state, party.inner["a.1"].state) == ("disconnected", "disconnected")


def test_the_change_of_the_connection_is_passed_on() -> None:
    class Changing(MemoryBus):
        async def receive(
            self,
            deliver: Callable[[bytes], None],
            dead: Callable[[str], None],
            changed: Callable[[bool], None] = lambda _up: None,
        ) -> None:
            changed(True)
            changed(False)

    changes: list[bool] = []
    bus = SealedBus(Changing(MemoryExchange(), "a.1"), STEPS[0], "prod", inbox="a.1")
    trio.run(bus.receive, lambda _data: None, lambda _name: None, changes.append)
    assert changes == [True, False]


def test_the_largest_message_passes_and_a_larger_one_is_our_mistake() -> None:
    party = Party(("a.1", "b.2"))
    largest = b"x" * MESSAGE_BYTES_MAX
    party.run(lambda: party.buses["a.1"].publish(largest))
    assert party.heard["b.2"] == [largest, b""]
    for data in (b"", largest + b"x"):
        with pytest.raises(LocalProtocolError):
            party.buses["a.1"].publish(data)
        with pytest.raises(LocalProtocolError):
            party.buses["a.1"].send("b.2", data)


def test_what_no_key_sealed_is_dropped_counted_and_told() -> None:
    party = Party(("a.1", "b.2"))
    stranger = SealedBus(party.exchange.bus("x.9"), Keyring((OLD._replace(secret=b"?" * 32),)), "prod", inbox="x.9")
    other_cluster = SealedBus(party.exchange.bus("y.9"), STEPS[0], "test", inbox="y.9")
    raw = party.exchange.bus("z.9")

    def act() -> None:
        for _ in range(5):
            stranger.publish(b"forged")
        other_cluster.send("b.2", b"of another cluster")
        raw.publish(b"x" * 100)
        raw.publish(b"x")
        raw.publish(b"x" * (64 * 1024 * 1024))
        party.buses["a.1"].publish(b"good")

    with logged() as records:
        party.run(act)
    assert party.heard["b.2"] == [b"good", b""]
    bus = party.buses["b.2"]
    assert {kind: count for kind, count in bus.refused.items() if count} == {
        "bad_mac": 6,
        "not_sealed": 1,
        "too_short": 1,
        "too_large": 1,
    }
    assert bus.statistics()["refused_bad_mac"] == 6
    assert "refused_unknown_key" not in bus.statistics()
    assert bus.statistics()["delivered"] == 10
    told = [record for record in records if record["event"] == "envelope.refused" and record["kind"] == "bad_mac"]
    assert sorted([int(str(record["count"])) for record in told]) == [1, 1, 2, 2, 4, 4], "two nodes, each at 1, 2, 4"
    assert all("k-old" in str(record["reason"]) for record in told)


def test_a_letter_that_is_carried_to_another_inbox_stays_shut() -> None:
    party = Party(("a.1", "b.2", "c.3"))
    recorded: list[bytes] = []

    def record(_from: str, to: str, data: bytes) -> bool:
        if to == "b.2" and not recorded:
            recorded.append(data)
        return False

    party.exchange.drop = record
    party.run(lambda: party.buses["a.1"].send("b.2", b"for b"))
    party.run(lambda: party.inner["a.1"].send("c.3", recorded[0]))
    assert (party.heard["b.2"], party.heard["c.3"]) == ([b"for b", b""], [b""])
    assert party.buses["c.3"].refused["bad_mac"] == 1


def test_an_unsigned_node_is_named_as_such() -> None:
    party = Party(("a.1", "b.2"))
    with logged() as records:
        party.run(lambda: party.inner["a.1"].publish(b"\x88" + b"x" * HEADER_BYTES))
    assert "unsigned = true" in str(next(r for r in records if r["event"] == "envelope.refused")["reason"])


@pytest.mark.parametrize("step", range(3))
def test_a_rotation_has_no_gap(step: int) -> None:
    """In every step every node hears every other, whichever nodes have reloaded."""
    names = ("a.1", "b.2", "c.3")
    for reloaded in range(len(names) + 1):
        party = Party(names, STEPS[step])
        for name in names[:reloaded]:
            party.buses[name].use(STEPS[step + 1])

        def act(party: Party = party) -> None:
            for name, bus in party.buses.items():
                bus.publish(name.encode())

        party.run(act)
        for name in names:
            assert sorted(party.heard[name]) == [b"", *[other.encode() for other in names if other != name]]


def test_a_key_that_was_skipped_is_a_gap() -> None:
    party = Party(("a.1", "b.2"), STEPS[0])
    party.buses["a.1"].use(STEPS[2])
    party.run(lambda: party.buses["a.1"].publish(b"payload"))
    assert party.heard["b.2"] == [b""]
    assert party.buses["b.2"].refused["unknown_key"] == 1


def test_what_a_bus_must_carry() -> None:
    assert SEALED_BYTES_MAX == MESSAGE_BYTES_MAX + 44
