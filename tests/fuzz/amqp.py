"""A broker's bytes go through the tap. However they are cut, the result is the same; the buffer is bounded.

The first two bytes of an input say how the rest is cut into pieces; with FLOOD the last frame never ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, SupportsIndex

from pamqp import commands, header
from pamqp.body import ContentBody
from support.samples import delivery, frames

from coordd.adapters.bus.amqp_frames import FRAME_BYTES_MAX, HEARTBEAT, Tap, own_end
from fuzz.mutate import Pool
from fuzz.trial import Try, check

BODY_BYTES_MAX = 1000
OWN = own_end("coordd.x", "a.1")
FLOOD = 1
FLOOD_BYTES = 20 * 2**20
FLOOD_PIECE = 256 * 1024

# What the tap may hold back of a stream that goes on: the frame that is not complete yet, and the piece just read.
HELD_BYTES_MAX = FRAME_BYTES_MAX + FLOOD_PIECE


class Told:
    """amqp_frames.Tapped: what was told, in order."""

    def __init__(self) -> None:
        self.words: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **named: self.words.append((name, *args, *named.values()))


class Passed(asyncio.StreamReader):
    """aiormq's reader: what reaches it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self.data = bytearray()

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.data.extend(data)


class AmqpTarget:
    """adapters.bus.amqp_frames.Tap."""

    name = "amqp"
    what = "AMQP frames: the tap"
    limit_s = 2.0

    def __init__(self) -> None:
        words = [
            HEARTBEAT,
            OWN,
            b"\xce",
            b"\x03\x00\x01\xff\xff\xff\xff",
            b"\x01\x00\x01\x00\x00\x00\x04",
            b"\x00\x3c\x00\x3c",
            b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + b"\xff" * 8,
            b"\x00\x14\x00\x28",
        ]
        self._pool = Pool(seeds(), words)

    def make(self, rng: random.Random) -> bytes:
        """A stream, spoilt."""
        return bytes((int(rng.random() * 256), rng.random() < 0.001)) + self._pool.make(rng)

    @asynccontextmanager
    async def world(self) -> AsyncIterator[Try]:
        """A loop that does not run, but is there: the tap only asks it for the time.

        That stands still: on a busy machine a real clock shows a long time between two pieces, and the tap then gives a
        sign of life that it does not give for one piece.
        """
        loop = asyncio.new_event_loop()
        loop.time = lambda: 0.0  # type: ignore[method-assign]  # the only question it is asked
        asyncio._set_running_loop(loop)
        try:

            async def attempt(data: bytes) -> str:
                return judged(loop, data)

            yield attempt
        finally:
            asyncio._set_running_loop(None)
            loop.close()


def judged(loop: asyncio.AbstractEventLoop, data: bytes) -> str:
    """One stream, in one piece and in several."""
    cut, flood, stream = (data[0], data[1], data[2:]) if len(data) > 1 else (0, 0, data)
    told, passed, tap = tapped(loop, [stream])
    size = 1 + cut % 64 if len(stream) < 2000 else 1 + 16 * cut
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    told_in_pieces, passed_in_pieces, _ = tapped(loop, pieces)
    check(told_in_pieces == told, f"in pieces of {size} bytes the same stream says something else")
    check(passed_in_pieces == passed, f"in pieces of {size} bytes something else is passed on")
    check(len(passed) <= len(stream), "more is passed on than came")
    if flood == FLOOD:
        for _ in range(FLOOD_BYTES // FLOOD_PIECE):
            tap.data_received(b"\xce" * FLOOD_PIECE)
            held = len(tap.frames._rest) + sum(map(len, tap.frames._parts))
            check(held <= HELD_BYTES_MAX, f"{held} bytes of a stream are held back")
    return "not amqp" if tap.frames._strange else f"told {min(3, len(told))}" if told else "nothing"


def tapped(loop: asyncio.AbstractEventLoop, pieces: list[bytes]) -> tuple[list[tuple[Any, ...]], bytes, Tap]:
    """What the tap told about a stream, the bytes that it passed on, and the tap itself."""
    told, reader = Told(), Passed(loop)
    tap = Tap(reader, told, OWN, BODY_BYTES_MAX)
    for piece in pieces:
        tap.data_received(piece)
    return told.words, bytes(reader.data), tap


def seeds() -> list[bytes]:
    """Streams of a good broker."""
    returned = frames(
        commands.Basic.Return(312, "NO_ROUTE", "coordd.x.inbox", "c.3"),
        header.ContentHeader(0, 3, commands.Basic.Properties()),
        ContentBody(b"???"),
    )
    closed = frames(commands.Channel.Close(404, "NOT_FOUND", 60, 40))
    ended = frames(commands.Connection.Close(320, "CONNECTION_FORCED", 0, 0), channel=0)
    blocked = frames(commands.Connection.Blocked("low on memory"), commands.Connection.Unblocked(), channel=0)
    confirmed = frames(commands.Basic.Ack(3, True), commands.Basic.Nack(4, False), channel=2)
    single = [
        frames(commands.Channel.OpenOk()),
        delivery(b"one"),
        delivery(b"own", "a.1"),
        delivery(b""),
        returned,
        confirmed,
        delivery(b"x" * 450),
        delivery(b"y" * 1001),
        delivery(b"z" * 990, part=2000),
        blocked,
        closed,
        ended,
        HEARTBEAT,
        frames(commands.Basic.Cancel("tag")),
        frames(commands.Basic.ConsumeOk("tag")),
    ]
    return [*single, b"".join(single), single[1] + confirmed + single[6] + returned]
