"""The lane: a connection to RabbitMQ whose socket trio reads and writes, so that gossip crosses no thread.

aiormq needs asyncio, which has a thread of its own (aio.py). A message that crosses to that thread waits for a wake-up
there, and its answer for another one. On the lane, unconfirmed messages are written, and deliveries read, where the
core is. All else crosses as bytes: aiormq still makes the handshake, declares, confirms, and sends its heartbeats.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import trio

from coordd.adapters.bus.aio import Aio
from coordd.adapters.bus.amqp_frames import CLOSED_BY_BROKER, Frames, Tapped

READ_BYTES = 64 * 1024

# Of confirmed messages no more are written while this much (bytes) has not left yet; below the second they go on.
HIGH_BYTES, LOW_BYTES = 64 * 1024, 16 * 1024

# Unconfirmed messages beyond this much that has not left (bytes) are dropped: such old gossip helps nobody.
WAITING_BYTES_MAX = 16 * 1024 * 1024


class Lane:
    """One connection. Each method says to which thread it belongs; those of ``Tapped`` belong to trio's."""

    def __init__(
        self, aio: Aio, told: Tapped, own_end: bytes, bytes_max: int, deliver: Callable[[list[bytes]], None]
    ) -> None:
        """For the asyncio thread. ``deliver`` gets what was read at once, in the trio thread."""
        self.transport = LaneTransport(self, aio)
        self.crossed = 0  # bytes that came from the asyncio thread
        self.waiting = 0  # bytes that have not left yet
        self._aio = aio
        self._told = told
        self._deliver = deliver
        self._frames = Frames(self, own_end, bytes_max, time.monotonic)
        self._heard: list[bytes] = []
        self._parts: list[bytes] = []
        self._wake = trio.Event()
        self._scope = trio.CancelScope(shield=True)
        self._finishing = False
        self._paused = False

    @property
    def heard_at(self) -> float:
        """When the broker was heard last: seconds, monotonic."""
        return self._frames.heard_at

    # ---- in the asyncio thread

    async def open(
        self, host: str, port: int, tls: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect. Raises what the attempt raised in the other thread."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        made: asyncio.Future[None] = loop.create_future()
        protocol.connection_made(self.transport)
        self._aio.to_trio(lambda: self._aio.attend(partial(self._run, host, port, tls, made, protocol), self.abort))
        try:
            await made
        except asyncio.CancelledError:
            self._aio.to_trio(self.abort)
            raise
        return reader, asyncio.StreamWriter(self.transport, protocol, reader, loop)

    # ---- in the trio thread

    def put(self, parts: Sequence[bytes]) -> bool:
        """Write whole frames soon, together with others of this moment. False: there is no room."""
        size = sum(map(len, parts))
        if self.waiting + size > WAITING_BYTES_MAX:
            return False
        self._add(parts, size)
        return True

    def put_crossed(self, data: bytes) -> None:
        """The same for what aiormq wrote, and for confirmed messages: they have limits of their own."""
        self.crossed += len(data)
        self._add((data,), len(data))

    def finish(self) -> None:
        """Close once everything has left."""
        self._finishing = True
        self._wake.set()

    def abort(self) -> None:
        """Close at once. May be called twice."""
        self._scope.cancel()

    def _add(self, parts: Iterable[bytes], size: int) -> None:
        self.waiting += size
        self._parts += parts
        self._wake.set()
        if self.waiting > HIGH_BYTES and not self._paused:
            self._pause(True)

    def _pause(self, on: bool) -> None:
        self._paused = on
        self._aio.to_aio(self._told.paused, on)

    async def _run(
        self,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        made: asyncio.Future[None],
        protocol: asyncio.StreamReaderProtocol,
    ) -> None:
        """Connect, and read and write until the connection is over."""
        reason, failure = "it was closed", None
        with self._scope:  # its owner ends it: the last messages must leave although the caller is cancelled
            try:
                stream = await _connected(host, port, tls)
            except Exception as exc:  # a host that cannot be encoded raises ValueError
                self._aio.to_aio(_settle, made, exc)
                return
            try:
                self._aio.to_aio(_settle, made, None)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, stream, nursery.cancel_scope)
                    reason = await self._read(stream, protocol)
                    nursery.cancel_scope.cancel()
            except* (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as failures:
                failure = _cause(failures.exceptions[0])
                reason = str(failure)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)
        self.waiting, self._parts = 0, []
        self._aio.to_aio(protocol.connection_lost, failure)  # what the server said of our certificate, in TLS 1.3
        self._aio.to_aio(self._told.lost, reason)

    async def _read(self, stream: trio.abc.Stream, protocol: asyncio.StreamReaderProtocol) -> str:
        while True:
            data = bytes(await stream.receive_some(READ_BYTES))
            if not data:
                return CLOSED_BY_BROKER
            passed = self._frames.take(data)
            if passed:
                self._aio.to_aio(protocol.data_received, passed)
            if self._heard:
                heard, self._heard = self._heard, []
                self._deliver(heard)

    async def _write(self, stream: trio.abc.Stream, reading: trio.CancelScope) -> None:
        while True:
            if not self._parts:
                if self._finishing:
                    reading.cancel()
                    return
                self._wake = trio.Event()
                await self._wake.wait()
            parts, self._parts = self._parts, []
            data = b"".join(parts)
            await stream.send_all(data)
            self.waiting -= len(data)
            if self._paused and self.waiting < LOW_BYTES:
                self._pause(False)

    # ---- Tapped, in the trio thread; what is rare crosses

    def delivered(self, data: bytes) -> None:
        """A message from another node."""
        if data:
            self._heard.append(data)

    def echoed(self) -> None:
        """Our own broadcast came back."""
        self._told.echoed()

    def rejected(self) -> None:
        """A message that was too large."""
        self._aio.to_aio(self._told.rejected)

    def returned(self, routing_key: str) -> None:
        """Nobody listens at that inbox."""
        self._aio.to_aio(self._told.returned, routing_key)

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """The broker's answer to a confirmed publish."""
        self._aio.to_aio(self._told.confirmed, tag, multiple, taken)

    def blocked(self, reason: str) -> None:
        """The broker blocks publishers, or no longer does."""
        self._aio.to_aio(self._told.blocked, reason)

    def closed(self, code: int, text: str) -> None:
        """The broker closes something of ours."""
        self._aio.to_aio(self._told.closed, code, text)

    def lost(self, reason: str) -> None:
        """``_run`` tells this itself."""
        raise AssertionError(reason)

    def paused(self, on: bool) -> None:
        """``_pause`` tells this itself."""
        raise AssertionError(on)


class LaneTransport(asyncio.Transport):
    """aiormq's end of a lane, in the asyncio thread."""

    def __init__(self, lane: Lane, aio: Aio) -> None:
        super().__init__()
        self._lane = lane
        self._aio = aio
        self._closing = False
        self._written = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write whole frames."""
        if not self._closing and data:
            self._written += len(data)
            self._aio.to_trio(partial(self._lane.put_crossed, bytes(data)))

    def get_write_buffer_size(self) -> int:
        """Bytes that have not left yet."""
        return self._written - self._lane.crossed + self._lane.waiting

    def is_closing(self) -> bool:
        """Whether nothing more is written."""
        return self._closing

    def can_write_eof(self) -> bool:
        """AMQP says good-bye by frames."""
        return False

    def close(self) -> None:
        """Close once everything has left."""
        self._closing = True
        self._aio.to_trio(self._lane.finish)

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._aio.to_trio(self._lane.abort)


async def _connected(host: str, port: int, tls: ssl.SSLContext | None) -> trio.abc.Stream:
    """A connected stream. Raises OSError or ssl.SSLError, as asyncio would."""
    try:
        tcp = await trio.open_tcp_stream(host, port)
    except OSError as exc:
        raise _cause(exc) from exc
    if tls is None:
        return tcp
    stream = trio.SSLStream(tcp, tls, server_hostname=host)
    try:
        await stream.do_handshake()
    except trio.BrokenResourceError as exc:
        await trio.aclose_forcefully(stream)
        raise _cause(exc) from exc
    except BaseException:
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(stream)
        raise
    return stream


def _cause(exc: BaseException) -> OSError:
    """The error of the socket behind trio's own. ssl.SSLError is an OSError."""
    inner = exc.__cause__
    while isinstance(inner, BaseExceptionGroup):
        inner = inner.exceptions[0]
    if isinstance(inner, OSError):
        return inner
    return exc if isinstance(exc, OSError) else ConnectionError(str(exc) or type(exc).__name__)


def _settle(made: asyncio.Future[None], exc: BaseException | None) -> None:
    if made.done():
        return
    if exc is None:
        made.set_result(None)
    else:
        made.set_exception(exc)
