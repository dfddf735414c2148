"""A queue of RabbitMQ. The poller fetches messages one by one, as many as it may take, and no more wait in its memory.

A message without an acknowledgement returns to the queue when the connection ends. Messages that can start nothing go
to the queue `NAME.dead`, which is bounded; they are acknowledged when the broker has confirmed them there. Whatever
properties and headers a message has, it can be read and put aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ssl
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from aio_pika import DeliveryMode, Message
from aio_pika.exceptions import ChannelNotFoundEntity, PublishError

from coordd.adapters.bus.aio import Aio, ours
from coordd.adapters.bus.amqp_connect import connect, farewell
from coordd.adapters.bus.amqp_tolerant import UNREADABLE, Tolerant, header_bytes
from coordd.adapters.bus.where import of_amqp
from coordd.adapters.triggers import documents
from coordd.core.redaction import redact_text
from coordd.core.triggers.messages import Batch, Dead, Message as Found
from coordd.errors import CoorddError, UnavailableError

T = TypeVar("T")

# The timeout (seconds) of one call, and how long one read fetches.
TIMEOUT_S = 15.0
FETCH_S = 3.0

# After twice this silence (seconds) the broker gives the messages to another node.
HEARTBEAT_S = 10

# Bytes of messages that are held; one more message may be as large as the broker accepts.
HELD_BYTES_MAX = 16 * 2**20

# The queue of dead messages keeps the newest; that many of the oldest are shown.
DEAD_MAX = 1000
DEAD_BYTES_MAX = 64 * 2**20
SHOWN_MAX = 20
SHOWN_BYTES_MAX = 2**20

# How long (seconds) a queue of dead messages that is absent is not asked for again: each time is an error in the
# broker's log.
ABSENT_S = 60.0

REASON, QUEUE = "x-coordd-reason", "x-coordd-queue"
OWN = (REASON, QUEUE, UNREADABLE)

# What the library adds to the header frame of a message: an id for one without. It has 34 bytes.
ADDED_BYTES = 256


class AmqpQueue:
    """ports.MessageQueue."""

    def __init__(
        self,
        url: str,
        queue: str,
        name: str,
        *,
        aio: Callable[[], Awaitable[Aio]],
        password: Callable[[], str],
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """``name``: of the connection, for people. ``aio``: the thread of asyncio. ``password``, ``tls``: called at
        each connection; both may raise UnavailableError or ConfigError.
        """
        self._where = of_amqp(url)
        self._name, self._queue_name, self._dead_name = name, queue, f"{queue}.dead"
        self._aio = aio
        self._password = password
        self._tls = tls
        self._used = False
        # The rest belongs to the asyncio thread.
        self._number = 0  # of the connection
        self._connection: Any = None
        self._queue: Any = None
        self._channel: Any = None
        self._held: dict[str, Any] = {}  # place -> message
        self._dead: tuple[int, tuple[Dead, ...]] = (0, ())
        self._absent_until = 0.0  # on this connection, there was no queue of dead messages (monotonic)
        self._not_shown = -1  # the number of dead messages that could not be read; -1: they could

    async def read(self, most: int) -> Batch:
        """Those that are held, and new ones."""
        return await self._call(lambda: self._read(most))

    async def acknowledge(self, places: Sequence[str]) -> None:
        """One frame for each. If the connection is lost meanwhile, they come again."""
        if places:
            await self._call(lambda: self._acknowledge(places))

    async def put_aside(self, dead: Sequence[tuple[str, str]]) -> None:
        """Each is acknowledged when the broker has its copy."""
        if dead:
            await self._call(lambda: self._put_aside(dead))

    async def take_back(self, dead: str, *, again: bool) -> bool:
        """It leaves the dead ones when the broker has confirmed its copy."""
        return await self._call(lambda: self._take_back(dead, again))

    async def close(self) -> None:
        """The broker gives the messages without an acknowledgement to others."""
        if not self._used:
            return
        with contextlib.suppress(UnavailableError):
            await (await self._aio()).call(self._drop)

    async def _call(self, call: Callable[[], Awaitable[T]]) -> T:
        self._used = True
        return await (await self._aio()).call(self._within, call)

    # ---- the asyncio thread

    async def _within(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._be_open()
                return await call()
        except TimeoutError as exc:
            await self._drop()
            raise UnavailableError(f"{self._where.shown} did not answer within {TIMEOUT_S:g} s") from exc
        except CoorddError:
            await self._drop()
            raise
        except asyncio.CancelledError as exc:  # aiormq raises one where a connection is lost
            await self._drop()
            if ours():
                raise
            raise UnavailableError(f"{self._where.shown} closed the connection") from exc
        except Exception as exc:  # the library raises of many kinds
            await self._drop()
            raise UnavailableError(f"{self._where.shown}: {self._why(exc)}") from exc

    async def _be_open(self) -> None:
        if self._connection is not None and not self._connection.is_closed and not self._channel.is_closed:
            return
        await self._drop()
        tls = self._tls()
        self._connection = await connect(
            where=self._where,
            password=self._password() or self._where.password,
            tls=tls,
            name=self._name,
            heartbeat_s=HEARTBEAT_S,
            transport=Tolerant(tls),
        )
        self._number += 1
        self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        self._queue = await self._channel.declare_queue(self._queue_name, passive=True)
        self._dead = (-1, ())
        self._absent_until = 0.0

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._held.clear()
        if connection is not None:
            await farewell(connection)

    async def _read(self, most: int) -> Batch:
        behind = (await self._channel.declare_queue(self._queue_name, passive=True)).declaration_result.message_count
        until = time.monotonic() + FETCH_S
        size = sum(message.body_size for message in self._held.values())
        while behind and len(self._held) < most and size < HELD_BYTES_MAX and time.monotonic() < until:
            message = await self._queue.get(no_ack=False, fail=False)
            if message is None:
                behind = 0
                break
            behind = message.message_count or 0
            size += message.body_size
            self._held[f"{self._number}.{message.delivery_tag}"] = message
        dead, shown = await self._seen_dead()
        found = [_found(place, message) for place, message in list(self._held.items())[:most]]
        return Batch(found, behind + len(self._held), dead, shown)

    async def _acknowledge(self, places: Sequence[str]) -> None:
        for place in places:
            message = self._held.pop(place, None)
            if message is not None:
                await message.ack()

    async def _put_aside(self, dead: Sequence[tuple[str, str]]) -> None:
        self._absent_until = 0.0
        if await self._count_dead() is None:
            self._absent_until = 0.0
            bounds = {"x-max-length": DEAD_MAX, "x-max-length-bytes": DEAD_BYTES_MAX, "x-overflow": "drop-head"}
            await self._channel.declare_queue(self._dead_name, durable=True, arguments=bounds)
        for place, reason in dead:
            message = self._held.get(place)
            if message is None:
                continue
            copy = await _copy(self._channel, message, message.headers, {REASON: reason[:300], QUEUE: self._queue_name})
            await self._channel.default_exchange.publish(copy, self._dead_name, mandatory=True)
            await self._acknowledge([place])

    # ---- dead messages

    async def _count_dead(self) -> int | None:
        """None: there is no such queue yet."""
        if time.monotonic() < self._absent_until:
            return None
        channel = await self._connection.channel()
        try:
            queue = await channel.declare_queue(self._dead_name, passive=True)
        except ChannelNotFoundEntity:
            self._absent_until = time.monotonic() + ABSENT_S
            return None
        await channel.close()
        return int(queue.declaration_result.message_count)

    async def _seen_dead(self) -> tuple[int, tuple[Dead, ...]]:
        """How many there are, and the oldest. They are read again when their number has changed. Those that cannot be
        read hold nothing up.
        """
        try:
            count = await self._count_dead() or 0
            if count == self._not_shown:  # the last try to read them has failed, perhaps with the connection
                return count, ()
            if count != self._dead[0]:
                self._not_shown = count
                self._dead = (count, await self._oldest_dead() if count else ())
                self._not_shown = -1
        except Exception:  # the library raises of many kinds
            if self._connection.is_closed or self._channel.is_closed:
                raise
            return max(0, self._not_shown), ()
        return self._dead

    async def _oldest_dead(self) -> tuple[Dead, ...]:
        """They return to their places when the channel is closed."""
        channel = await self._connection.channel()
        queue = await channel.declare_queue(self._dead_name, passive=True)
        found: list[Dead] = []
        size = 0
        while len(found) < SHOWN_MAX and size < SHOWN_BYTES_MAX:
            message = await queue.get(no_ack=False, fail=False)
            if message is None:
                break
            size += message.body_size
            at = message.timestamp.timestamp() if message.timestamp is not None else 0.0
            reason = message.headers.get(REASON)
            said = reason if isinstance(reason, str) else "it was put there by others"
            found.append(Dead(at, _ident(message)[:100], redact_text(said[:300]), _place(message)))
        await channel.close()
        return tuple(found)

    async def _take_back(self, dead: str, again: bool) -> bool:
        """Those before it return to their places when the channel is closed."""
        channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
        try:
            queue = await channel.declare_queue(self._dead_name, passive=True)
        except ChannelNotFoundEntity:
            return False
        try:
            for _ in range(int(queue.declaration_result.message_count or 0)):
                message = await queue.get(no_ack=False, fail=False)
                if message is None:
                    return False
                if _place(message) != dead:
                    continue
                if again:
                    theirs = {name: one for name, one in message.headers.items() if name not in OWN}
                    copy = await _copy(channel, message, theirs, {})
                    await channel.default_exchange.publish(copy, self._queue_name, mandatory=True)
                await message.ack()
                return True
            return False
        finally:
            await channel.close()

    def _why(self, exc: Exception) -> str:
        text = redact_text(str(exc)) or type(exc).__name__
        if isinstance(exc, PublishError):
            return "the broker returned a copy: no queue takes it; the message stays where it was"
        if isinstance(exc, ChannelNotFoundEntity):
            return f"there is no queue {self._queue_name} in the virtual host {self._where.space}: declare it"
        return f"{text}; docs/jobs/triggers.md names the rights" if "ACCESS_REFUSED" in text else text


def _ident(message: Any) -> str:
    return str(message.message_id or "")


def _place(message: Any) -> str:
    """The name of a dead message: two that are equal have one name, and either of them is meant."""
    return hashlib.sha256(b"%b\0%b" % (_ident(message).encode(errors="replace"), message.body)).hexdigest()[:20]


async def _copy(channel: Any, message: Any, theirs: dict[str, Any], ours: dict[str, Any]) -> Message:
    """A copy with both headers; only with ours if the library cannot encode theirs, or no frame has room for both."""
    room = (await channel.get_underlay_channel()).max_content_size
    for headers in ({**theirs, **ours}, ours):
        copy = Message(
            message.body,
            headers=headers,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            message_id=message.message_id,
            timestamp=time.time(),
            delivery_mode=DeliveryMode.PERSISTENT,
        )
        with contextlib.suppress(Exception):  # the library raises of many kinds
            if header_bytes(copy) + ADDED_BYTES <= room or room <= 0:  # a broker without a limit says 0
                break
    return copy


def _found(place: str, message: Any) -> Found:
    if (why := message.headers.get(UNREADABLE)) is not None:
        return Found(place, "", problem=f"its properties cannot be read: {why!s:.200}")
    try:
        fields = documents.read(message.body, message.content_type or "", message.content_encoding or "")
    except ValueError as exc:
        return Found(place, _ident(message), problem=str(exc))
    return Found(place, _ident(message), hashlib.sha256(message.body).hexdigest(), fields)
