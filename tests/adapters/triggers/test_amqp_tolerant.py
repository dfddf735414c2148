"""Messages of any sender: whatever properties and headers they have, they block no queue and can be put aside."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import aio_pika
import pytest
from aiormq.abc import ChannelFrame
from pamqp.commands import Basic
from pamqp.frame import marshal, unmarshal
from pamqp.header import ContentHeader
from support import servers

from coordd.adapters.bus.amqp_tolerant import UNREADABLE, Readable
from coordd.adapters.triggers import amqp_queue as module
from coordd.adapters.triggers.amqp_queue import AmqpQueue
from coordd.core.triggers.messages import Batch
from coordd.errors import UnavailableError

from .test_amqp_queue import idents, told, with_queue

ID, TIMESTAMP, HEADERS, MODE = 0x80, 0x40, 0x2000, 0x1000
MICROSECONDS = struct.pack(">Q", 1_795_854_905_720_000)


def short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def table(name: bytes, value: bytes) -> bytes:
    """Headers: one, a text."""
    said = short(name) + b"S" + struct.pack(">I", len(value)) + value
    return struct.pack(">I", len(said)) + said


READABLE = ("a header that is not UTF-8", "headers as large as a frame")
STRANGE = {
    "an id that is not UTF-8": (ID, short(b"\xff\xfe")),
    "a time in microseconds": (ID | TIMESTAMP, short(b"m1") + MICROSECONDS),
    "a header that is not UTF-8": (HEADERS, table(b"h", b"\xff\xfe")),
    "a header's name that is not UTF-8": (HEADERS, table(b"\xff", b"x")),
    "headers as large as a frame": (HEADERS, table(b"h", b"a" * 130_950)),
}


def header(flags: int, properties: bytes, channel: int = 1) -> bytes:
    payload = struct.pack(">HHQH", 60, 0, 2, flags) + properties
    return struct.pack(">BHI", 2, channel, len(payload)) + payload + b"\xce"


@pytest.fixture(scope="module")
def vhost_url(rabbit_server: servers.Rabbit) -> Iterator[str]:
    rabbit_server.ctl("add_vhost", "strange")
    rabbit_server.ctl("set_permissions", "-p", "strange", "guest", ".*", ".*", ".*")
    yield rabbit_server.url.rstrip("/") + "/strange"
    rabbit_server.ctl("delete_vhost", "strange")


async def publish_raw(url: str, queue: str, flags: int, properties: bytes) -> None:
    """Publish `{}` with these properties, which no library would write."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        under: Any = await channel.get_underlay_channel()
        method = marshal(Basic.Publish(exchange="", routing_key=queue), under.number)
        body = struct.pack(">BHI", 3, under.number, 2) + b"{}" + b"\xce"
        frames = method + header(flags, properties, under.number) + body
        await under.write_queue.put(ChannelFrame(should_close=False, payload=frames))
        while not (await channel.declare_queue(queue, passive=True)).declaration_result.message_count:
            await asyncio.sleep(0.05)


def assert_both_come(again: Batch) -> None:
    """The good message, and the strange one that was taken back. The library gives one without an id another one."""
    assert (idents(again)[0], [one.problem for one in again.messages]) == ("good", ["", ""])


@pytest.mark.parametrize("what", STRANGE)
def test_a_message_with_strange_properties_blocks_no_queue_and_is_put_aside(vhost_url: str, what: str) -> None:
    asyncio.run(told(vhost_url, []))
    asyncio.run(publish_raw(vhost_url, "orders", *STRANGE[what]))
    asyncio.run(told(vhost_url, [(b'{"what": 1}', {"message_id": "good"})], purge=False))

    async def act(queue: AmqpQueue) -> Batch:
        found = await queue.read(10)
        assert [one.ident for one in found.messages[1:]] == ["good"]
        assert ("cannot be read" in found.messages[0].problem) == (what not in READABLE)
        await queue.put_aside([(found.messages[0].place, "it can start nothing")])
        left = await queue.read(10)
        assert (idents(left), left.dead, left.dead_last[0].reason) == (["good"], 1, "it can start nothing")
        assert await queue.take_back(left.dead_last[0].place, again=True)
        return await queue.read(10)

    assert_both_come(with_queue(vhost_url, act))


@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_message_that_others_have_put_aside_holds_nothing_up(vhost_url: str, what: str) -> None:
    async def declared() -> None:
        async with await aio_pika.connect(vhost_url) as connection:
            await (await connection.channel()).declare_queue("orders.dead", durable=True)

    asyncio.run(told(vhost_url, [(b'{"what": 1}', {"message_id": "good"})]))
    asyncio.run(declared())
    asyncio.run(publish_raw(vhost_url, "orders.dead", *STRANGE[what]))

    async def act(queue: AmqpQueue) -> Batch:
        found = await queue.read(10)
        assert (idents(found), found.dead, found.dead_last[0].reason) == (["good"], 1, "it was put there by others")
        assert await queue.take_back(found.dead_last[0].place, again=True)
        return await queue.read(10)

    assert_both_come(with_queue(vhost_url, act))


@pytest.mark.parametrize("closes", [False, True])
def test_dead_messages_that_cannot_be_read_hold_nothing_up(
    vhost_url: str, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    bad = [(b"{", {"message_id": "bad"}), (b'{"what": 1}', {"message_id": "good"})]
    asyncio.run(told(vhost_url, bad))

    async def oldest(queue: AmqpQueue) -> None:
        if closes:
            await queue._connection.close()
        raise ValueError("of the library")

    async def act(queue: AmqpQueue) -> Batch:
        found = await queue.read(10)
        await queue.put_aside([(found.messages[0].place, "bad")])
        monkeypatch.setattr(module.AmqpQueue, "_oldest_dead", oldest)
        if closes:
            with pytest.raises(UnavailableError):
                await queue.read(10)
        return await queue.read(10)

    left = with_queue(vhost_url, act)
    assert (idents(left), left.dead, left.dead_last) == (["good"], 1, ())


def test_frames_pass_in_pieces_and_unchanged_unless_they_cannot_be_decoded() -> None:
    good = header(ID, short(b"m1"))
    bad = header(MODE | ID, b"\x07" + short(b"m1"))
    body = struct.pack(">BHI", 3, 1, 2) + b"{}" + b"\xce"
    stream, told = Readable(), b""
    data = good + body + bad + body
    for at in range(len(data)):
        told += stream.take(data[at : at + 1])
    assert told.startswith(good + body)
    instead = told[len(good + body) : -len(body)]
    head = unmarshal(instead)[2]
    assert isinstance(head, ContentHeader)
    assert (head.body_size, list(head.properties.headers or {})) == (2, [UNREADABLE])
    assert stream.take(b"AMQP\x00\x00\x09\x01") == b"AMQP\x00\x00\x09\x01"
    assert stream.take(b"more") == b"more"
