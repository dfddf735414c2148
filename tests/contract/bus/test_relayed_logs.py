"""Logs that one node reads from another, over each bus and sealed: whole, in pieces, and for those who may."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.small_cluster import job

from contract.bus.listeners import run, until
from contract.bus.test_bus import MakeBus, make_bus
from coordd.core.wire import codec
from coordd.core.wire.envelope import SIGN, Key, Keyring
from coordd.core.wire.events import PROTOCOL_MAJOR, Packet, PeerAnswer, PeerAsk
from coordd.errors import RefusedError
from coordd.services.audit import Audit
from coordd.services.logs.answering import Answering
from coordd.services.logs.files import log_path
from coordd.services.logs.questions import LOG, OPERATES, OWNS, Question, Reader, told_of
from coordd.services.logs.reading import Reading
from coordd.services.relay import Relay
from coordd.services.sealed_bus import SealedBus

assert make_bus  # the fixture
KEYRING = Keyring((Key("k1", SIGN, b"x" * 32),))
ANN = Reader("ann", 1000, OPERATES)
RUN = "sales#1"


class End:
    """One node: its bus, its relay, and the logs that it has."""

    def __init__(self, make_bus: MakeBus, name: str, path: Path, seals: Keyring = KEYRING) -> None:
        self.name = name
        inner = make_bus(name)
        self.bus = SealedBus(inner, seals, "contract", inbox=name)
        self.log_dir = str(path / name)
        self.records: list[dict[str, Any]] = []
        host = name.partition(".")[0]
        jobs = {"sales": job("sales", owner="sellers")}
        self.running: dict[str, tuple[int, int, bool]] = {}
        pursuits = SimpleNamespace(running=self.running)
        node: Any = SimpleNamespace(hostname=host, jobs=jobs, pursuits=pursuits, members={})
        self.node = node
        driver: Any = SimpleNamespace(say_to=self.say_to)
        self.relay = Relay(driver, {})
        self.driver = driver
        self.here = Answering(node, self.log_dir, Audit(self.records.append))
        self.relay.serve(LOG, self.here.answer)
        ledger: Any = None
        self.reading = Reading(node, self.relay, ledger, self.here)

    def knows(self, other: End) -> None:
        host = other.name.partition(".")[0]
        self.node.members[host] = SimpleNamespace(name=other.name, hostname=host, state="alive")

    def say_to(self, name: str, event: PeerAsk | PeerAnswer) -> None:
        event.clock, event.timestamp = 1, time.time()
        host, _, pid = self.name.rpartition(".")
        packet = Packet(PROTOCOL_MAJOR, "contract", host, int(pid), "1-a", 0, 0, [event])
        self.bus.send(name, codec.encode(packet))

    def deliver(self, data: bytes) -> None:
        for event in codec.decode(data)[0].events if data else ():
            if isinstance(event, (PeerAsk, PeerAnswer)):
                self.driver.on_peer(codec.decode(data)[0].sender, event)

    def writes(self, data: bytes, attempt: int = 0) -> Path:
        path = Path(log_path(self.log_dir, RUN, attempt))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path


@asynccontextmanager
async def together(*ends: End) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        for end in ends:
            nursery.start_soon(end.bus.receive, end.deliver, lambda _name: None)
            nursery.start_soon(end.relay.run)
        await until(lambda: all(end.bus.state == "connected" for end in ends))
        yield
        nursery.cancel_scope.cancel()


def pair(make_bus: MakeBus, path: Path, seals: Keyring = KEYRING) -> tuple[End, End]:
    a, b = End(make_bus, "a.1", path), End(make_bus, "b.2", path, seals)
    a.knows(b)
    return a, b


def test_the_end_of_a_log_comes_whole_from_the_node_that_has_it(make_bus: MakeBus, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = pair(make_bus, tmp_path)
        data = bytes(range(256)) * 400
        path = b.writes(b"older" + data)
        async with together(a, b):
            end = await a.reading._pieces(Question(RUN, 0, ANN, tail=len(data)), "b")
        assert end.data == data
        assert (end.path, end.host) == (str(path), "b")
        assert [(one["by"], one["subject"], one["outcome"]) for one in b.records] == [("ann on a", "sales#1/0", "done")]
        assert a.records == []

    run(main)


def test_the_node_that_is_asked_decides_who_may_read(make_bus: MakeBus, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = pair(make_bus, tmp_path)
        b.writes(b"secret")
        seller, other = Reader("sue", 7, OWNS, "sellers"), Reader("eve", 8, OWNS, "others")
        async with together(a, b):
            assert (await a.reading.piece(Question(RUN, 0, seller), "b")).piece.data == b"secret"
            for reader in (other, Reader("eve", 8, OWNS)):
                with pytest.raises(RefusedError, match="b shows the logs of sales to operators and the group sellers"):
                    await a.reading.piece(Question(RUN, 0, reader), "b")
            b.node.jobs = {}
            with pytest.raises(RefusedError, match="shows the logs of sales to operators"):
                await a.reading.piece(Question(RUN, 0, seller), "b")
            with pytest.raises(RefusedError, match="b has no log of sales#1/1"):
                await a.reading.piece(Question(RUN, 1, ANN), "b")
            b.here.unsigned = "messages are not signed"
            with pytest.raises(RefusedError, match="messages are not signed"):
                await a.reading.piece(Question(RUN, 0, ANN), "b")
        assert {one["outcome"] for one in b.records if one["by"] == "eve on a"} == {"refused"}

    run(main)


def test_a_stranger_without_the_key_gets_no_answer(make_bus: MakeBus, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = pair(make_bus, tmp_path, Keyring((Key("k1", SIGN, b"y" * 32),)))
        b.writes(b"secret")
        async with together(a, b):
            with trio.move_on_after(1.0):
                await a.relay.ask_one(LOG, Question(RUN, 0, ANN).pack(), "b.2", wait_s=30.0)
                raise AssertionError("it was answered")
            assert b.bus.refused["bad_mac"] == 1

    run(main)


def test_a_log_grows_while_it_is_read_and_ends(make_bus: MakeBus, tmp_path: Path) -> None:
    async def main() -> None:
        a, b = pair(make_bus, tmp_path)
        path = b.writes(b"one ")
        b.running[RUN] = (0, 1, False)
        async with together(a, b):
            told = await a.reading.piece(Question(RUN, 0, ANN), "b")
            assert (told.piece.data, told.over) == (b"one ", False)
            with path.open("ab") as file:
                file.write(b"two")
            del b.running[RUN]
            told = await a.reading.piece(Question(RUN, 0, ANN, told.piece.place), "b")
            assert (told.piece.data, told.over) == (b"two", True)
            raw = await a.relay.ask_one(LOG, Question(RUN, 0, ANN, told.piece.place).pack(), "b.2", wait_s=30.0)
            assert told_of(raw).piece.data == b""

    run(main)
