"""The mirror on RabbitMQ: a bounded queue, a thread, and a connection that is made again for ever."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import trio
from aio_pika import DeliveryMode, ExchangeType, Message

from coordd.adapters.bus.aio import Aio, Crossing, open_aio, ours
from coordd.adapters.bus.amqp_connect import FAREWELL_S, connect, farewell
from coordd.adapters.bus.where import Where, of_amqp
from coordd.core.redaction import redact_text

# What waits for the broker; beyond it the oldest are dropped, because only newest events help a person who looks.
LENGTH_MAX = 2000
BYTES_MAX = 4 * 1024 * 1024

# Seconds: an attempt to connect, one message (a broker that blocks publishers takes none), the pauses between attempts.
ATTEMPT_S = 5.0
SEND_S = 10.0
PAUSE_FIRST_S, PAUSE_MAX_S = 1.0, 30.0

# Messages that are taken from the queue together; if the connection is lost meanwhile, they are lost with it.
BATCH = 32

NOT_YET = "not connected yet"


class Told(NamedTuple):
    """One event. ``key``: its routing key. ``body``: JSON."""

    key: str
    body: bytes


class AmqpMirror:
    """ports.Mirror. ``put`` is called from the trio thread, and never waits."""

    def __init__(
        self,
        urls: Sequence[str],
        exchange: str,
        hostname: str,
        *,
        password: Callable[[], str],
        tls: Callable[[str], ssl.SSLContext | None],
    ) -> None:
        """``hostname``: in the header of each message. ``password``: "" leaves that of the URL. ``tls``: the context of
        a URL, or None; both are called at each attempt, and may raise UnavailableError or ConfigError. Raises
        ConfigError when a url cannot be used.
        """
        self.exchange = exchange
        self.error = NOT_YET
        self._where = {url: of_amqp(url) for url in urls}
        self._hostname = hostname
        self._password = password
        self._tls = tls
        self._queue: Crossing[Told] = Crossing(LENGTH_MAX, BYTES_MAX, self._wake)
        self._aio: Aio | None = None
        self._woken: asyncio.Event | None = None
        self._connected: Callable[[], None] = lambda: None
        self._dropped = 0  # by the trio thread
        self._seen = {"sent": 0, "lost": 0, "connections": 0}  # by the other thread

    def put(self, key: str, body: bytes) -> None:
        """Queue one event; if there is no room, the oldest are dropped and counted."""
        self._dropped += self._queue.put_newest(Told(key, body), len(body))

    def statistics(self) -> dict[str, int]:
        """sent, dropped (the queue was full), lost (on their way when the connection broke), waiting, connections."""
        return {**self._seen, "dropped": self._dropped, "waiting": len(self._queue)}

    async def run(self, connected: Callable[[], None]) -> None:
        """Publish for ever. Calls ``connected`` (in the trio thread) with each new connection."""
        self._connected = connected
        async with open_aio("mirror") as self._aio:
            self._aio.start(self._stay_connected)
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(FAREWELL_S, shield=True):
                    await self._aio.call(self._flush)

    def _wake(self) -> None:
        if self._aio is not None:
            self._aio.to_aio(self._set)

    # ---- the asyncio thread

    def _set(self) -> None:
        if self._woken is not None:
            self._woken.set()

    async def _flush(self) -> None:
        """Wait until the queue is empty, at a clean end."""
        while len(self._queue) and not self.error:  # noqa: ASYNC110  # brief
            await asyncio.sleep(FAREWELL_S / 50)
        await asyncio.sleep(FAREWELL_S / 50)  # the last one is on its way

    async def _stay_connected(self) -> None:
        self._woken = asyncio.Event()
        pause_s = PAUSE_FIRST_S
        while True:
            for url, where in self._where.items():
                try:
                    async with asyncio.timeout(ATTEMPT_S):
                        connection, exchange = await self._open(url, where)
                except TimeoutError:
                    self.error = f"{where.shown} did not answer within {ATTEMPT_S:g} s"
                    continue
                except asyncio.CancelledError:
                    if ours():
                        raise
                    self.error = f"{where.shown} closed the connection while it was made"
                    continue
                except Exception as exc:  # the library raises of many kinds; nothing here may end the daemon
                    self.error = _why(where, exc)
                    continue
                self.error, pause_s = "", PAUSE_FIRST_S
                self._seen["connections"] += 1
                try:
                    await self._publish(connection, exchange)
                finally:
                    await farewell(connection)
                break
            await asyncio.sleep(pause_s)
            pause_s = min(PAUSE_MAX_S, 2 * pause_s)

    async def _open(self, url: str, where: Where) -> tuple[Any, Any]:
        connection = await connect(
            where=where,
            password=self._password() or where.password,
            tls=self._tls(url),
            name=f"coordd mirror {self._hostname}",
        )
        try:
            channel = await connection.channel(publisher_confirms=False)
            # As Celery declares its own, so the order of Celery and nodes does not matter.
            return connection, await channel.declare_exchange(self.exchange, ExchangeType.TOPIC, durable=True)
        except BaseException:
            await farewell(connection)
            raise

    async def _publish(self, connection: Any, exchange: Any) -> None:
        """Publish until the connection is lost; its reason is in ``error``."""
        assert self._aio is not None
        assert self._woken is not None
        self._aio.to_trio(self._connected)
        while True:
            self._woken.clear()
            batch = self._queue.take(BATCH)
            for done, told in enumerate(batch):
                message = Message(
                    told.body,
                    content_type="application/json",
                    content_encoding="utf-8",
                    headers={"hostname": self._hostname},
                    delivery_mode=DeliveryMode.NOT_PERSISTENT,
                )
                try:
                    async with asyncio.timeout(SEND_S):
                        await exchange.publish(message, told.key, mandatory=False)
                except (Exception, asyncio.CancelledError) as exc:  # as above
                    if isinstance(exc, asyncio.CancelledError) and ours():
                        raise
                    self._seen["lost"] += len(batch) - done
                    what = (
                        f"takes no messages for {SEND_S:g} s"
                        if isinstance(exc, TimeoutError)
                        else f"failed: {redact_text(str(exc)) or type(exc).__name__}"
                    )
                    self.error = f"the mirror's broker {what}"
                    return
                self._seen["sent"] += 1
            if connection.is_closed:
                self.error = "the mirror's broker closed the connection"
                return
            if not batch:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SEND_S):
                        await self._woken.wait()


def _why(where: Where, exc: Exception) -> str:
    text = redact_text(str(exc))
    if text.startswith("ACCESS_REFUSED - access to"):
        text += "; the user needs the rights of deploy/acl/rabbitmq.regex (docs/operate.md: least privilege)"
    return f"{where.shown} cannot be used: {text or type(exc).__name__}"
