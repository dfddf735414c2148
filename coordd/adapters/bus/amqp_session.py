"""One connection to RabbitMQ: exchanges, queue, bindings and consumer, all declared again for each connection."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aio_pika import Connection, ExchangeType
from aiormq.connection import TransportFactory
from aiormq.exceptions import (
    IncompatibleProtocolError,
    InvalidFrameError,
    ProbableAuthenticationError,
    ProtocolSyntaxError,
)
from yarl import URL

from coordd.adapters.bus.aio import Aio
from coordd.adapters.bus.amqp_connect import url_of
from coordd.adapters.bus.amqp_frames import Publishing, Tap, Tapped, own_end
from coordd.adapters.bus.amqp_lane import Lane
from coordd.adapters.bus.brokered_bus import Listener, Outgoing, SayHere
from coordd.adapters.bus.where import Where
from coordd.adapters.tls_errors import tls_error, tls_sentence
from coordd.core.wire.envelope import SEALED_BYTES_MAX
from coordd.errors import CoorddError, UnavailableError

log = logging.getLogger(__name__)

# Limits of our queue at the broker. The consumer acknowledges nothing (prefetch has no meaning there), so these limits
# and the age bound the messages of a node that does not read.
QUEUE_LENGTH_MAX = 10_000
QUEUE_BYTES_MAX = 32 * 1024 * 1024
MESSAGE_AGE_MAX_S = 30.0

# Timeout (seconds) for closing: pending messages leave first, then the connection is closed properly.
FLUSH_S = 0.5
FAREWELL_S = 0.4

# Timeout (seconds) of a confirmation. After it the message returns to its owner: the broker is blocked, or too slow.
CONFIRM_S = 5.0
UNCONFIRMED_MAX = 10_000

# Number of inboxes whose frames are cached.
INBOXES_MAX = 512


class Names(NamedTuple):
    """The names of one cluster's exchanges and queue at the broker."""

    exchange: str
    inboxes: str
    full_hostname: str
    queue: str


class Lanes(NamedTuple):
    """What a lane needs of its bus."""

    aio: Aio
    deliver: Callable[[list[bytes]], None]


class _Transport(TransportFactory):
    """Connects with a tap between the socket and aiormq, or with a lane."""

    def __init__(self, told: Tapped, own: bytes, tls: ssl.SSLContext | None, lanes: Lanes | None) -> None:
        self._told = told
        self._own = own
        self._tls = tls
        self._lanes = lanes
        self.tap: Tap | None = None
        self.lane: Lane | None = None

    @property
    def transport(self) -> asyncio.Transport | None:
        """The end that is written to, once there is a connection."""
        end = self.tap or self.lane
        return end.transport if end is not None else None

    @property
    def heard_at(self) -> float:
        """When the broker was heard last: seconds, monotonic."""
        if self.lane is not None:
            return self.lane.heard_at
        assert self.tap is not None
        return self.tap.frames.heard_at

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        if self._lanes is not None:
            aio, deliver = self._lanes
            self.lane = Lane(aio, self._told, self._own, SEALED_BYTES_MAX, deliver)
            return await self.lane.open(url.host or "", url.port or 0, self._tls)
        reader = asyncio.StreamReader(loop=loop)
        tap = Tap(reader, self._told, self._own, SEALED_BYTES_MAX)
        transport, _ = await loop.create_connection(lambda: tap, url.host or "", url.port or 0, ssl=self._tls)
        self.tap = tap
        return reader, asyncio.StreamWriter(transport, tap, reader, loop)


class _Connection(Connection):
    """aio-pika's connection over our transport."""

    def __init__(self, url: URL, transport: _Transport) -> None:
        super().__init__(url)
        self.kwargs["transport_factory"] = transport


class AmqpSession:
    """brokered_bus.Session over RabbitMQ; ``open`` makes it usable."""

    def __init__(
        self, where: Where, names: Names, listener: Listener, heartbeat_s: int, lanes: Lanes | None = None
    ) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._where = where
        self._names = names
        self._listener = listener
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._why_closed: tuple[int, str] | None = None
        self._can_write = True
        self._usable = False
        self._connection: _Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._lanes = lanes
        self._reads = False  # the trio thread has answered since the last look
        self._end_of: _Transport | None = None  # our end of the connection
        self._frame_bytes_max = 0
        self._plain_channel = 0
        self._watch: asyncio.TimerHandle | None = None
        self._watched_at = 0.0
        self._unechoed_at = 0.0  # send time of the oldest broadcast without an echo; 0.0: none
        self._to_all: Publishing
        self._to_all_confirmed: Publishing
        self._to_one: OrderedDict[str, Publishing] = OrderedDict()
        self._tag = 0
        self._unconfirmed: OrderedDict[int, tuple[float, Callable[[bool], None]]] = OrderedDict()

    @property
    def writable(self) -> bool:
        """Whether written data leaves soon."""
        return self._can_write

    # ---- opening

    async def open(self, password: str, tls: ssl.SSLContext | None) -> None:
        """Connect and declare.

        Raises UnavailableError with a sentence for people; after any exception, nothing is left open.
        """
        where = self._where
        own = own_end(self._names.exchange, self._names.full_hostname)
        self._end_of = _Transport(self, own, tls, self._lanes)
        try:
            url = url_of(where, password, tls, f"coordd {self._names.full_hostname}", self._heartbeat_s)
            self._connection = _Connection(url, self._end_of)
            await self._connection.connect()
            self._transport = self._end_of.transport
            await self._declare(self._connection)
        except BaseException as exc:
            await asyncio.shield(asyncio.ensure_future(self._abort()))
            if isinstance(exc, Exception) and not isinstance(exc, (CoorddError, TimeoutError)):
                raise UnavailableError(sentence(where, self._names, self._why_closed, exc)) from exc
            raise
        self._usable = True
        self._watched_at = self._loop.time()
        self._watch = self._loop.call_later(self._heartbeat_s / 2, self._look)
        if self._why_closed is not None:  # between the last answer and now
            self._end(sentence(where, self._names, self._why_closed, None))

    async def _declare(self, connection: _Connection) -> None:
        names = self._names
        channel = connection.channel(publisher_confirms=False)
        await channel.initialize()
        exchange = await channel.declare_exchange(names.exchange, ExchangeType.FANOUT, durable=True)
        inboxes = await channel.declare_exchange(names.inboxes, ExchangeType.DIRECT, durable=True)
        queue = await channel.declare_queue(
            names.queue,
            exclusive=True,
            auto_delete=True,
            arguments={
                "x-max-length": QUEUE_LENGTH_MAX,
                "x-max-length-bytes": QUEUE_BYTES_MAX,
                "x-overflow": "drop-head",
                "x-message-ttl": int(MESSAGE_AGE_MAX_S * 1000),
            },
        )
        await queue.bind(inboxes, names.full_hostname)
        await queue.bind(exchange)
        confirming = connection.channel(publisher_confirms=True)
        await confirming.initialize()
        plain, sure = await channel.get_underlay_channel(), await confirming.get_underlay_channel()
        self._frame_bytes_max = plain.connection.connection_tune.frame_max or 131_072
        self._plain_channel = plain.number
        self._to_all = self._publishing(plain.number, names.exchange, names.full_hostname)
        self._to_all_confirmed = self._publishing(sure.number, names.exchange, names.full_hostname)
        # Last: when the first message arrives, everything else is in place.
        await plain.basic_consume(names.queue, _never_called, no_ack=True)

    def _publishing(self, channel: int, exchange: str, key: str, *, mandatory: bool = False) -> Publishing:
        return Publishing(channel, self._frame_bytes_max, exchange, key, mandatory=mandatory)

    # ---- sending

    def write(self, batch: Sequence[Outgoing]) -> None:
        """Send all messages in one write."""
        if self._transport is None or self.over.done():
            for out in batch:
                self._settle_lost(out.confirmed)
            return
        parts: list[bytes] = []
        for name, data, confirmed in batch:
            if name:
                parts += self._inbox(name).frames(data)
                continue
            self._unechoed_at = self._unechoed_at or self._loop.time()
            if confirmed is None:
                parts += self._to_all.frames(data)
            elif len(self._unconfirmed) >= UNCONFIRMED_MAX:
                self._settle_lost(confirmed)
            else:
                self._tag += 1
                self._unconfirmed[self._tag] = (self._loop.time() + CONFIRM_S, confirmed)
                parts += self._to_all_confirmed.frames(data)
        self._transport.write(b"".join(parts))

    @property
    def say_here(self) -> SayHere | None:
        """How to send an unconfirmed message on the lane, if there is one."""
        return self._say_here if self._lanes is not None else None

    def _say_here(self, name: str, data: bytes) -> bool:
        assert self._end_of is not None
        assert self._end_of.lane is not None
        if not name:
            # The clock of the loop, which another thread may not ask.
            self._unechoed_at = self._unechoed_at or time.monotonic()
        return self._end_of.lane.put((self._inbox(name) if name else self._to_all).frames(data))

    def _inbox(self, name: str) -> Publishing:
        found = self._to_one.get(name)
        if found is None:
            if len(self._to_one) >= INBOXES_MAX:
                self._to_one.popitem(last=False)
            found = self._publishing(self._plain_channel, self._names.inboxes, name, mandatory=True)
            self._to_one[name] = found
        return found

    def _settle_lost(self, confirmed: Callable[[bool], None] | None) -> None:
        if confirmed is not None:
            self._listener.settled(confirmed, arrived=False)

    # ---- events of the tap

    def delivered(self, data: bytes) -> None:
        """A message from another node."""
        if data:
            self._listener.heard(data)

    def echoed(self) -> None:
        """Our own broadcast came back: our queue is still bound."""
        self._unechoed_at = 0.0

    def rejected(self) -> None:
        """A message that was too large."""
        self._listener.rejected()

    def returned(self, routing_key: str) -> None:
        """The inbox has no queue: the node's exclusive queue is gone, and so is the node."""
        self._listener.nobody_at(routing_key)

    def confirmed(self, tag: int, multiple: bool, taken: bool) -> None:
        """The broker's answer to a confirmed publish."""
        if multiple:
            tags = []
            for waiting in self._unconfirmed:
                if waiting > tag:
                    break
                tags.append(waiting)
        else:
            tags = [tag]
        for known in tags:
            entry = self._unconfirmed.pop(known, None)
            if entry is not None:  # otherwise it was given up already
                self._listener.settled(entry[1], arrived=taken)

    def blocked(self, reason: str) -> None:
        """The broker blocks publishers while it lacks memory or disk space."""
        self._unechoed_at = 0.0  # messages that are sent meanwhile are not read
        if not self._usable:
            return
        said = ""
        if reason:
            said = (
                f"{self._where.shown} blocks all publishers ({reason}): free memory or disk on the broker "
                "(rabbitmqctl status shows alarms)"
            )
        self._listener.blocked(said)

    def closed(self, code: int, text: str) -> None:
        """The broker closes the connection or a channel, or deletes our queue."""
        if self._why_closed is None:
            self._why_closed = (code, text)
        if self._usable:
            self._end(sentence(self._where, self._names, self._why_closed, None))

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        if self._why_closed is None:
            self._end(f"the connection to {self._where.shown} was lost: {reason}")

    def paused(self, on: bool) -> None:
        """The broker reads more slowly than we write."""
        self._can_write = not on
        if not on and self._usable:
            self._listener.writable()

    # ---- watching, ending

    def _look(self) -> None:
        """Every half heartbeat: is the broker silent, and which messages have waited too long for an answer?"""
        now = self._loop.time()
        on_time = now - self._watched_at < self._heartbeat_s  # otherwise it was this process that slept
        self._watched_at = now
        if self._lanes is not None:
            on_time = on_time and self._reads  # otherwise the core stands still, which reads the lane
            self._reads = False
            self._lanes.aio.to_trio(self._reader_is_there)
        while self._unconfirmed:
            tag, (until, confirmed) = next(iter(self._unconfirmed.items()))
            if until > now:
                break
            del self._unconfirmed[tag]
            self._listener.settled(confirmed, arrived=False)
        assert self._end_of is not None
        if on_time and now - self._end_of.heard_at > 2 * self._heartbeat_s:
            self._end(
                f"{self._where.shown} has sent nothing for {2 * self._heartbeat_s} s: the network fails, "
                "or the broker hangs"
            )
        elif on_time and self._unechoed_at and now - self._unechoed_at > 2 * self._heartbeat_s:
            # Without the binding this node hears nobody, and would win elections that it knows nothing of.
            self._end(
                f"{self._where.shown}: no echo of our own broadcast: the binding of queue {self._names.queue} is gone; "
                "reconnecting"
            )
        else:
            self._watch = self._loop.call_later(self._heartbeat_s / 2, self._look)

    def _reader_is_there(self) -> None:
        self._reads = True

    def _end(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)

    async def close(self) -> None:
        """Flush, then close properly; messages that are not confirmed by then count as lost."""
        if self._usable and self._transport is not None and not self._transport.is_closing():
            until = self._loop.time() + FLUSH_S
            while self._loop.time() < until and (self._unconfirmed or self._transport.get_write_buffer_size()):
                if self.over.done() and self._why_closed is not None:
                    break
                await asyncio.sleep(FLUSH_S / 50)
        await self._abort()

    async def _abort(self) -> None:
        self._usable = False
        if self._watch is not None:
            self._watch.cancel()
        self._end("it was closed")
        while self._unconfirmed:
            _, (_, confirmed) = self._unconfirmed.popitem(last=False)
            self._listener.settled(confirmed, arrived=False)
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                async with asyncio.timeout(FAREWELL_S):
                    await connection.close()
            except Exception as exc:  # errors of a connection that we close anyway do not matter
                log.debug("farewell: %r", exc)
        if self._end_of is not None and self._end_of.transport is not None:
            self._end_of.transport.abort()


async def _never_called(_message: object) -> None:
    raise AssertionError("the tap takes deliveries before aiormq sees them")


def sentence(where: Where, names: Names, closed: tuple[int, str] | None, exc: Exception | None) -> str:
    """The error as a sentence for people, with advice.

    Args:
        where: the address.
        names: the names of our exchanges and queue.
        closed: code and text of the broker's Close, if it sent one.
        exc: the library's exception, if any.
    """
    shown = where.shown
    code, text = closed or (0, "")
    tls = tls_error(exc)
    if tls is not None:
        return tls_sentence(shown, tls, "bus")
    if (code == 403 and "login" in text.lower()) or isinstance(exc, ProbableAuthenticationError):
        return f"{shown} refused the user {where.user!r}: check the user in [cluster] bus, and bus_password_file"
    if code == 403:
        return (
            f"{shown} refuses the user {where.user!r} a right ({text}): rabbitmqctl set_permissions -p {where.space}, "
            "with the rights of deploy/acl/rabbitmq.regex (docs/operate.md: least privilege)"
        )
    if code == 530 and "not found" in text:
        add = f"rabbitmqctl add_vhost {where.space}"
        return f"{shown} has no virtual host {where.space!r}: {add}, or correct [cluster] bus"
    if code == 530:
        return f"{shown} refuses {where.user!r} the virtual host {where.space!r} ({text}): rabbitmqctl set_permissions"
    if code == 406 and "type" in text:
        return (
            f"{shown} has an exchange with our name but another type ({text}): delete it, or choose another "
            "[cluster] name"
        )
    if code == 0 and text:
        return f"{shown}: {text} (queue {names.queue}); reconnecting"
    if code:
        return f"{shown} closed the connection: {code} {text}"
    if isinstance(exc, (IncompatibleProtocolError, InvalidFrameError, ProtocolSyntaxError)):
        return f"{shown} does not speak AMQP 0-9-1: is this the broker's address and port?"
    if isinstance(exc, OSError):
        return f"{shown} cannot be reached: {exc.strerror or exc}"
    if isinstance(exc, UnicodeError):  # from the encoding of the host
        return f"{shown} cannot be looked up ({exc}): correct the host in [cluster] bus"
    return f"{shown} cannot be used: {type(exc).__name__}: {exc}"
