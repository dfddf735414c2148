"""The frames of RabbitMQ that our own code reads and writes."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from pamqp import commands, header
from pamqp.body import ContentBody
from pamqp.frame import unmarshal
from support.samples import delivery, frames

from coordd.adapters.bus import amqp_frames
from coordd.adapters.bus.amqp_frames import HEARTBEAT, Publishing, Tap, own_end


class Told:
    """A listener of a tap. It records what it hears."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.events: list[tuple[Any, ...]] = []

    def delivered(self, data: bytes) -> None:
        self.data.append(data)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **named: self.events.append((name, *args, *named.values()))


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def tapped(chunks: list[bytes], told: Told, bytes_max: int = 1000) -> bytes:
    """Feed a tap; returns the bytes that it passed on."""

    async def main() -> bytes:
        reader = asyncio.StreamReader()
        tap = Tap(reader, told, own_end("coordd.x", "a.1"), bytes_max)
        for chunk in chunks:
            tap.data_received(chunk)
        reader.feed_eof()
        return await reader.read()

    return asyncio.run(main())


class TestTap:
    STREAM = (
        frames(commands.Channel.OpenOk())
        + delivery(b"one")
        + delivery(b"own", "a.1")
        + delivery(b"to my inbox", "a.1", "coordd.x.inbox")
        + frames(commands.Basic.Ack(3, True), commands.Basic.Nack(4, False), channel=2)
        + delivery(b"x" * 450)
        + delivery(b"y" * 1001)
        + frames(
            commands.Basic.Return(312, "NO_ROUTE", "coordd.x.inbox", "c.3"),
            header.ContentHeader(0, 3, commands.Basic.Properties()),
            ContentBody(b"???"),
        )
        + delivery(b"")
        + HEARTBEAT
        + frames(commands.Connection.Blocked("low on memory"), commands.Connection.Unblocked(), channel=0)
        + frames(commands.Channel.Close(404, "NOT_FOUND", 60, 40))
    )

    @pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 64, 1000, 100_000])
    def test_however_the_stream_is_cut(self, size: int) -> None:
        told = Told()
        rest = tapped([self.STREAM[at : at + size] for at in range(0, len(self.STREAM), size)], told)
        assert told.data == [b"one", b"to my inbox", b"x" * 450, b""]
        assert told.events == [
            ("echoed",),
            ("confirmed", 3, True, True),
            ("confirmed", 4, False, False),
            ("rejected",),
            ("returned", "c.3"),
            ("blocked", "low on memory"),
            ("blocked", ""),
            ("closed", 404, "NOT_FOUND"),
        ]
        passed = frames(commands.Channel.OpenOk()) + HEARTBEAT
        passed += frames(commands.Connection.Blocked("low on memory"), commands.Connection.Unblocked(), channel=0)
        assert rest == passed + frames(commands.Channel.Close(404, "NOT_FOUND", 60, 40))

    def test_what_is_not_amqp_goes_on_as_it_is(self) -> None:
        assert tapped([b"HTTP/1.1 400 Bad", b" Request"], Told()) == b"HTTP/1.1 400 Bad Request"

    @pytest.mark.parametrize(
        "bad",
        [
            frame(2, b"\0\x3c"),
            frame(1, b"\0\x3c\0\x50\0\0"),
            frame(1, b"\0\x3c\0\x78"),
            frame(1, b"\0\x3c\0\x1e\2\xff\xff"),
            frame(1, b"\0\x3c\0\x32\1\x38\3abc"),
            b"\3\0\1\xff\xff\xff\xff" + b"x" * 100,
        ],
        ids=["header", "ack", "nack", "cancel", "return", "endless"],
    )
    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_a_frame_that_is_not_what_its_head_says_is_for_aiormq(self, bad: bytes, size: int) -> None:
        told, stream = Told(), delivery(b"one") + bad + delivery(b"two")
        rest = tapped([stream[at : at + size] for at in range(0, len(stream), size)], told)
        assert (told.data, rest) == ([b"one"], bad + delivery(b"two"))

    @pytest.mark.parametrize("size", [1, 10, 1000])
    def test_a_method_is_not_looked_for_beyond_its_frame(self, size: int) -> None:
        told, stream = Told(), frame(1, b"\0")[:-1] + b"\x3c" + b"\0\x3c\0" * 20
        rest = tapped([stream[at : at + size] for at in range(0, len(stream), size)], told)
        assert (told.data, told.events, rest[:9]) == ([], [], stream[:9])

    def test_aiormq_hears_a_sign_of_life_though_all_is_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(amqp_frames, "SIGN_OF_LIFE_S", -1.0)
        assert tapped([delivery(b"one"), delivery(b"two")], Told()) == HEARTBEAT * 2
        assert tapped([delivery(b"half")[:20]], Told()) == b"", "nothing has come yet, least of all to a handshake"

    @pytest.mark.parametrize("size", [1, 4088, 4089, 65_536])
    def test_what_we_write_is_amqp(self, size: int) -> None:
        data = bytes(range(256)) * (size // 256 + 1)
        data = data[:size]
        written = b"".join(Publishing(5, 4096, "coordd.x", "b.2", mandatory=True).frames(data))
        body, at, found = b"", 0, []
        while at < len(written):
            consumed, channel, frame = unmarshal(written[at:])
            at += consumed
            assert channel == 5
            found.append(frame)
            if isinstance(frame, ContentBody):
                assert len(frame.value) <= 4096 - 8
                body += frame.value
        assert isinstance(found[0], commands.Basic.Publish)
        assert (found[0].exchange, found[0].routing_key, found[0].mandatory) == ("coordd.x", "b.2", True)
        assert isinstance(found[1], header.ContentHeader)
        assert found[1].body_size == size
        assert body == data
