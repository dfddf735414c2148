"""Listening on a bus, or reading a capture. A tap sends nothing, declares nothing that stays, and answers nobody."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import logging
import os
import secrets as randomness
import select
import socket
import time
from collections.abc import Iterator
from typing import IO, Any, Protocol

from coordd.adapters import secrets
from coordd.adapters.bus.where import Where, of_amqp, of_redis
from coordd.cli.wire.reading import EVERYBODY, Raw
from coordd.config.sections import ClusterConfig
from coordd.core.ledger.words import INSTANT_MAX
from coordd.core.redaction import redact_text
from coordd.errors import ConfigError, UnavailableError

# The users of nodes need not have them: COORDD_CLUSTER_BUS names another user for one command.
RIGHTS = "it needs the rights of a user for `coordctl wire`, deploy/acl/{} (docs/operate.md: least privilege)"

# Bounds: of a connection's start (seconds), of what waits for us at the broker, of inboxes, of a line of a capture.
CONNECT_S = 5.0
QUEUE = {"x-max-length": 10_000, "x-max-length-bytes": 32 * 2**20, "x-overflow": "drop-head", "x-message-ttl": 30_000}
INBOXES_MAX = 1024
NAME_BYTES_MAX = 255
LINE_BYTES_MAX = 256 * 1024
DATAGRAM_BYTES_MAX = 64 * 1024 + 1


class Tap(Protocol):
    """A bus on which we listen."""

    def read(self, timeout_s: float) -> Raw | None:
        """The next message; None after ``timeout_s``. Raises UnavailableError when the connection is lost."""

    def close(self) -> None: ...


def tap(cluster: ClusterConfig) -> Tap:
    """Listen as the configuration says. Raises UnavailableError or ConfigError."""
    if not cluster.gossip:
        raise ConfigError("[cluster] gossip = false: nodes send no messages")
    if cluster.is_embedded:
        return UnixTap(cluster.bus_path)
    kind = AmqpTap if cluster.bus_scheme.startswith("amqp") else RedisTap
    reasons = []
    for url in cluster.bus_urls:
        try:
            return kind(cluster, url)
        except UnavailableError as exc:
            reasons.append(f"{redact_text(url)}: {exc}")
    raise UnavailableError("; ".join(reasons))


class UnixTap:
    """A socket beside those of the nodes. Their broadcasts come here; messages to one node do not."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, f"wire-{randomness.token_hex(4)}.{os.getpid()}")
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._sock.bind(self._path)
        except OSError as exc:
            self._sock.close()
            why = f"{directory}: {exc.strerror or exc}"
            raise UnavailableError(f"{why}: is a node running, and are you its user, or root?") from exc
        os.chmod(self._path, 0o600)

    def read(self, timeout_s: float) -> Raw | None:
        """The next datagram; an empty one only asks whether somebody listens."""
        limit = time.monotonic() + timeout_s
        while (left_s := limit - time.monotonic()) > 0:
            if select.select([self._sock], [], [], left_s)[0]:
                data = self._sock.recv(DATAGRAM_BYTES_MAX)
                if data:
                    return Raw(time.time(), EVERYBODY, data)
        return None

    def close(self) -> None:
        self._sock.close()
        with contextlib.suppress(OSError):
            os.unlink(self._path)


class AmqpTap:
    """A queue of our own at RabbitMQ, bound to the cluster's exchange, and to the inboxes of senders."""

    def __init__(self, cluster: ClusterConfig, url: str) -> None:
        for name in ("aiormq", "aio_pika"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self._exchange = f"coordd.{cluster.name}"
        self._names: set[str] = set()
        self._waiting: asyncio.Queue[Any] = asyncio.Queue()
        self._loop = asyncio.new_event_loop()
        self._connection: Any = None
        self._queue: Any = None
        where = of_amqp(url)
        try:
            self._loop.run_until_complete(asyncio.wait_for(self._open(cluster, url, where), CONNECT_S))
        except UnavailableError:
            self.close()
            raise
        except Exception as exc:  # the library raises of many kinds
            self.close()
            raise UnavailableError(self._why(where, exc)) from exc

    async def _open(self, cluster: ClusterConfig, url: str, where: Where) -> None:
        from coordd.adapters.bus.amqp_connect import connect

        self._connection = await connect(
            where=where,
            password=secrets.bus_password(cluster) or where.password,
            tls=secrets.tls_of(url, cluster),
            name="coordctl wire",
        )
        channel = await self._connection.channel(publisher_confirms=False)
        exchange = await channel.get_exchange(self._exchange)  # it must be there: a look makes none
        name = f"{self._exchange}.wire.{randomness.token_hex(4)}"
        self._queue = await channel.declare_queue(name, exclusive=True, auto_delete=True, arguments=QUEUE)
        await self._queue.bind(exchange)
        await self._queue.consume(self._waiting.put, no_ack=True)

    def _why(self, where: Where, exc: Exception) -> str:
        if "NOT_FOUND" in str(exc) and "exchange" in str(exc):
            return f"{where.shown} has no exchange {self._exchange}: no node of this cluster has used this broker yet"
        if isinstance(exc, TimeoutError):
            return f"{where.shown} did not answer within {CONNECT_S:g} s"
        if str(exc).startswith("ACCESS_REFUSED - access to"):
            return f"{where.shown} refuses a right ({exc}): {RIGHTS.format('rabbitmq-wire.regex')}"
        return f"{where.shown} cannot be used: {str(exc) or type(exc).__name__}"

    def read(self, timeout_s: float) -> Raw | None:
        """The next message of the broker."""
        try:
            return self._loop.run_until_complete(asyncio.wait_for(self._next(), timeout_s))
        except TimeoutError:
            if self._connection.is_closed:
                raise UnavailableError("the broker closed the connection") from None
            return None

    async def _next(self) -> Raw:
        message = await self._waiting.get()
        key = message.routing_key or ""
        if message.exchange != self._exchange:
            return Raw(time.time(), key, message.body)
        if key not in self._names and len(self._names) < INBOXES_MAX and len(key.encode()) <= NAME_BYTES_MAX:
            self._names.add(key)
            await self._queue.bind(f"{self._exchange}.inbox", key)
        return Raw(time.time(), EVERYBODY, message.body)

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(Exception):  # whatever it says, we leave
                self._loop.run_until_complete(asyncio.wait_for(self._connection.close(), 1.0))
        self._loop.close()


class RedisTap:
    """A subscriber of the cluster's channel, and of the inbox of each sender that was heard."""

    def __init__(self, cluster: ClusterConfig, url: str) -> None:
        import redis

        self._errors = (redis.RedisError, OSError)
        self._all = f"coordd:{{{cluster.name}}}:all"
        self._inbox = f"coordd:{{{cluster.name}}}:inbox:"
        self._names: set[str] = set()
        where = of_redis(url)
        self._client = redis.Redis(
            host=where.host,
            port=where.port,
            db=int(where.space),
            username=where.user or None,
            password=secrets.bus_password(cluster) or where.password or None,
            socket_connect_timeout=CONNECT_S,
            protocol=2,
            **secrets.redis_tls(url, cluster),
        )
        self._heard = self._client.pubsub()  # type: ignore[no-untyped-call]  # redis-py left it out
        try:
            self._heard.subscribe(self._all)
            self._heard.get_message(timeout=CONNECT_S)  # the answer: now a refusal is known
        except self._errors as exc:
            self.close()
            if isinstance(exc, redis.exceptions.NoPermissionError):
                raise UnavailableError(
                    f"{where.shown} refuses a right ({exc}): {RIGHTS.format('redis-wire.rules')}"
                ) from exc
            raise UnavailableError(f"{where.shown} cannot be used: {exc}") from exc

    def read(self, timeout_s: float) -> Raw | None:
        """The next message; before its packet stands the sender's name."""
        limit = time.monotonic() + timeout_s
        try:
            while (left_s := limit - time.monotonic()) > 0:
                said = self._heard.get_message(timeout=left_s)
                if said is None or said["type"] != "message" or not said["data"]:
                    continue
                data, channel = bytes(said["data"]), said["channel"].decode(errors="replace")
                size = data[0]
                self._learn(data[1 : 1 + size].decode(errors="replace"))
                to = EVERYBODY if channel == self._all else channel.removeprefix(self._inbox)
                return Raw(time.time(), to, data[1 + size :])
        except self._errors as exc:
            raise UnavailableError(f"Redis closed the connection: {exc}") from exc
        return None

    def _learn(self, name: str) -> None:
        if name not in self._names and len(self._names) < INBOXES_MAX:
            self._names.add(name)
            self._heard.subscribe(self._inbox + name)

    def close(self) -> None:
        with contextlib.suppress(*self._errors):
            self._heard.close()
            self._client.close()


# ---- captures


def captured(file: IO[bytes], shown: str) -> Iterator[Raw]:
    """The messages of a capture, one JSON object a line. Raises ConfigError with the line that is wrong."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX):
        number += 1
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            raw = Raw(float(said["at"]), str(said["channel"]), base64.b64decode(said["data"], validate=True))
            if not 0 <= raw.at <= INSTANT_MAX:
                raise ValueError(f"at is {raw.at}")
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, binascii.Error) as exc:
            wanted = '{"at": SECONDS, "channel": "all" or NAME, "data": BASE64}, as --save writes it'
            raise ConfigError(f"{shown}: line {number}: expected {wanted}, found {line[:60]!r}: {exc}") from exc
        yield raw


def capture_line(raw: Raw) -> bytes:
    """The line of one message in a capture."""
    said = {"at": round(raw.at, 6), "channel": raw.channel, "data": base64.b64encode(raw.data).decode()}
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"
