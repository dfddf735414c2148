"""The bus over Redis: pub/sub on one channel per cluster and one per node.

Redis stores nothing: a node that is not subscribed at the moment of a PUBLISH does not get the message. The answer is
the number of receivers; 0 proves that nobody listens at an inbox. Redis disconnects a subscriber that does not read
(client-output-buffer-limit pubsub), which bounds its waiting messages.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redis.asyncio import Connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthenticationWrongNumberOfArgsError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)

from coordd.adapters.bus.brokered_bus import BrokeredBus, Listener, Outgoing, Session
from coordd.adapters.bus.where import Where, of_redis
from coordd.adapters.tls_errors import tls_error, tls_sentence
from coordd.core.wire.envelope import SEALED_BYTES_MAX
from coordd.errors import ConfigError, CoorddError, UnavailableError

# A message starts with its sender's name, after one byte for the length.
NAME_BYTES_MAX = 255

# Timeout (seconds) of an answer; after it the message returns to its owner.
CONFIRM_S = 5.0
UNANSWERED_MAX = 20_000

# Of a server's error no more is shown.
TEXT_LENGTH_MAX = 300

# Timeout (seconds) for the answers to the last messages.
FLUSH_S = 0.5


class RedisBus(BrokeredBus):
    """The port's Bus over Redis."""

    def __init__(
        self,
        urls: Sequence[str],
        full_hostname: str,
        *,
        cluster: str,
        password: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        heartbeat_s: float = 5.0,
        rng: random.Random | None = None,
        uvloop: bool = True,
    ) -> None:
        """Nothing is connected before ``receive``.

        Args: urls: ``redis(s)://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]``, tried in turn, in random order.
        full_hostname: our name, ``hostname.pid``. cluster: its name is part of the channels' names. password: called at
        each attempt; unless it returns "", it replaces the URL's password. May raise UnavailableError. tls: for rediss;
        None: the system's certificates. May be replaced (``bus.tls``) for the next connection. heartbeat_s: after twice
        this silence the connection is closed. rng: for the order of addresses and the pauses. uvloop: use it if it is
        installed.

        Raises:
            ConfigError: a url or a name cannot be used.
        """
        super().__init__(
            urls,
            full_hostname,
            address=of_redis,
            password=password,
            tls=tls,
            heartbeat_s=heartbeat_s,
            rng=rng,
            uvloop=uvloop,
        )
        self._all = f"coordd:{{{cluster}}}:all"
        self._inbox = f"coordd:{{{cluster}}}:inbox:"
        if len(full_hostname.encode()) > NAME_BYTES_MAX:
            raise ConfigError(f"[node] name is too long for the Redis bus: {full_hostname}")

    async def _open(self, url: str) -> Session:
        credentials = self._credentials(url)
        names = (self._all, self._inbox, self.full_hostname)
        session = RedisSession(self._where[url], names, self, self._heartbeat_s, alone=len(self._urls) == 1)
        await session.open(*credentials)
        return session


class RedisSession:
    """brokered_bus.Session over two connections to Redis: one subscribes, one publishes."""

    def __init__(
        self, where: Where, names: tuple[str, str, str], listener: Listener, heartbeat_s: float, *, alone: bool
    ) -> None:
        """``alone``: all nodes listen at this server, unless it belongs to a Redis Cluster."""
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[str] = self._loop.create_future()
        self.writable = True
        self.say_here = None
        self._where = where
        self._all, self._inbox, name = names
        self._full_hostname = name
        self._sender = bytes([len(name.encode())]) + name.encode()
        self._listener = listener
        self._heartbeat_s = heartbeat_s
        self._listening: Connection | None = None
        self._speaking: Connection | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: deque[_Waiting] = deque()  # for the answers of the publishing connection, in order
        self._heard_at = [0.0, 0.0]
        self._counts_all = alone  # whether the answer to a PUBLISH counts the listeners of every node

    async def open(self, password: str, tls: ssl.SSLContext | None) -> None:
        """Connect and subscribe.

        Raises UnavailableError with a sentence for people; after any exception, nothing is left open.
        """
        try:
            self._speaking = await self._connect(password, tls)
            await self._ask_what_it_is(self._speaking)
            self._listening = await self._connect(password, tls)
            await self._listening.send_command("SUBSCRIBE", self._all, self._inbox + self._full_hostname)
            for _ in range(2):
                await self._listening.read_response()
        except BaseException as exc:
            await asyncio.shield(asyncio.ensure_future(self._abort()))
            if isinstance(exc, Exception) and not isinstance(exc, (CoorddError, asyncio.TimeoutError)):
                raise UnavailableError(sentence(self._where, exc, password)) from exc
            raise
        self._heard_at = [self._loop.time()] * 2
        self._tasks = [
            self._loop.create_task(self._supervised(work())) for work in (self._listen, self._read_answers, self._beat)
        ]

    async def _connect(self, password: str, tls: ssl.SSLContext | None) -> Connection:
        where = self._where
        connection = _Connection(
            tls,
            host=where.host,
            port=where.port,
            db=int(where.space),
            username=where.user or None,
            password=password or None,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            client_name=_client_name(self._full_hostname),
        )
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py left it out
        return connection

    async def _ask_what_it_is(self, connection: Connection) -> None:
        """Raises UnavailableError for a replica: what is published there reaches no other server."""
        role = await _asked(connection, "ROLE")
        cluster = await _asked(connection, "INFO", "cluster")
        is_clustered = "cluster_enabled:1" in str(cluster)
        if isinstance(role, list) and role[:1] == [b"slave"] and not is_clustered:
            raise UnavailableError(
                f"{self._where.shown} is a replica: what is published there reaches nobody who listens at the primary; "
                "name the primary in [cluster] bus"
            )
        self._counts_all = self._counts_all and "cluster_enabled:0" in str(cluster)

    async def _supervised(self, work: Any) -> None:
        try:
            await work
        except (RedisError, OSError, EOFError) as exc:
            self._end(sentence(self._where, exc))

    def _end(self, reason: str) -> None:
        if not self.over.done():
            self.over.set_result(reason)

    # ---- publishing

    def write(self, batch: Sequence[Outgoing]) -> None:
        """Send all messages in one write."""
        parts: list[bytes] = []
        until = self._loop.time() + CONFIRM_S
        for name, data, confirmed in batch:
            if self.over.done() or len(self._waiting) >= UNANSWERED_MAX:
                if confirmed is not None:
                    self._listener.settled(confirmed, arrived=False)
                continue
            channel = (self._inbox + name if name else self._all).encode()
            parts.append(
                b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n%b%b\r\n"
                % (len(channel), channel, len(self._sender) + len(data), self._sender, data)
            )
            self._waiting.append(_Waiting(name, confirmed, until))
        if parts:
            self._send(b"".join(parts))

    def _send(self, packed: bytes) -> None:
        assert self._speaking is not None
        self.writable = False
        task = self._loop.create_task(self._supervised(self._sending(packed)))
        self._tasks[3:] = [task]  # only one at a time: the next starts after the end of the last

    async def _sending(self, packed: bytes) -> None:
        assert self._speaking is not None
        await self._speaking.send_packed_command(packed, check_health=False)
        self.writable = True
        self._listener.writable()

    async def _read_answers(self) -> None:
        assert self._speaking is not None
        while True:
            try:
                answer = await self._speaking.read_response(disable_decoding=True)
            except ResponseError as exc:
                answer = exc
            self._heard_at[0] = self._loop.time()
            asked = self._waiting.popleft()
            if asked.confirmed is not None:
                self._listener.settled(asked.confirmed, arrived=isinstance(answer, int))
            if isinstance(answer, ResponseError):
                raise answer
            if answer == 0 and asked.name and self._counts_all:
                self._listener.nobody_at(asked.name)

    # ---- subscribing

    async def _listen(self) -> None:
        assert self._listening is not None
        sender, listener = self._sender, self._listener
        while True:
            said = await self._listening.read_response(disable_decoding=True)
            self._heard_at[1] = self._loop.time()
            if not isinstance(said, list) or said[0] != b"message":
                continue  # the answer to a PING
            data = said[2]
            if data.startswith(sender) or not data:
                continue
            message = data[1 + data[0] :]
            if len(message) > SEALED_BYTES_MAX:
                listener.rejected()
            elif message:
                listener.heard(message)

    async def _beat(self) -> None:
        """Ping both connections, and give up messages without an answer in time."""
        assert self._listening is not None
        looked_at = self._loop.time()
        while True:
            await asyncio.sleep(self._heartbeat_s / 2)
            now = self._loop.time()
            on_time = now - looked_at < self._heartbeat_s  # otherwise it was this process that slept
            looked_at = now
            for asked in self._waiting:
                if asked.until > now:
                    break
                if asked.confirmed is not None:
                    self._listener.settled(asked.confirmed, arrived=False)
                    asked.confirmed = None
            if on_time and now - min(self._heard_at) > 2 * self._heartbeat_s:
                silent_s = 2 * self._heartbeat_s
                self._end(
                    f"{self._where.shown} has sent nothing for {silent_s:.0f} s: the network fails, or the server hangs"
                )
                return
            await self._listening.send_command("PING", check_health=False)
            if self.writable:  # otherwise a message is on its way, and its answer is a sign of life
                self._waiting.append(_Waiting("", None, now + CONFIRM_S))
                self._send(b"*1\r\n$4\r\nPING\r\n")

    # ---- the end

    async def close(self) -> None:
        """Wait a moment for the answers to the last messages, then close."""
        until = self._loop.time() + FLUSH_S
        lost = self._tasks[:2]
        while self._waiting and self._loop.time() < until and not any(t.done() for t in lost):  # noqa: ASYNC110  # brief
            await asyncio.sleep(FLUSH_S / 50)
        await self._abort()

    async def _abort(self) -> None:
        self._end("it was closed")
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        while self._waiting:
            asked = self._waiting.popleft()
            if asked.confirmed is not None:
                self._listener.settled(asked.confirmed, arrived=False)
        for connection in (self._speaking, self._listening):
            if connection is not None:
                await connection.disconnect(nowait=True)


async def _asked(connection: Connection, *command: str) -> Any:
    """The answer; None if it is refused, as rights or a proxy may do."""
    await connection.send_command(*command)
    try:
        return await connection.read_response()
    except ResponseError:
        return None


class _Waiting:
    """An expected answer."""

    __slots__ = ("confirmed", "name", "until")

    def __init__(self, name: str, confirmed: Callable[[bool], None] | None, until: float) -> None:
        self.name = name
        self.confirmed = confirmed
        self.until = until


class _Connection(Connection):
    """redis-py's connection with a TLS context of ours."""

    def __init__(self, tls: ssl.SSLContext | None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._tls = tls

    def _connection_arguments(self) -> Mapping[str, Any]:
        arguments = dict(super()._connection_arguments())
        if self._tls is not None:
            arguments["ssl"] = self._tls
        return arguments


def _client_name(full_hostname: str) -> str:
    """The name in CLIENT LIST; Redis needs printable ASCII without spaces."""
    return "coordd:" + "".join([c if "!" <= c <= "~" else "?" for c in full_hostname])


def sentence(where: Where, exc: BaseException, password: str = "") -> str:
    """The error as a sentence for people, with advice. ``password``: what a server may quote."""
    shown, text = where.shown, str(exc).partition(", with args")[0]
    if password:
        text = text.replace(password, "…")
    text = text[:TEXT_LENGTH_MAX]
    tls = tls_error(exc)
    if tls is not None:
        return tls_sentence(shown, tls, "bus")
    if isinstance(exc, (AuthenticationError, AuthenticationWrongNumberOfArgsError)) or "NOAUTH" in text:
        return f"{shown} refused the password ({text}): check [cluster] bus and bus_password_file"
    if isinstance(exc, NoPermissionError) or "NOPERM" in text:
        rights = f"ACL SETUSER {where.user or 'default'}, with the rights of deploy/acl/redis.rules"
        return f"{shown} refuses a right ({text}): {rights} (docs/operate.md: least privilege)"
    if text.startswith("DENIED"):
        return f"{shown} is in protected mode, and takes no connection from another machine: set requirepass there"
    if "DB index" in text:
        return f"{shown} has no database {where.space}: correct [cluster] bus"
    if isinstance(exc, BusyLoadingError):
        return f"{shown} is still loading its data: retrying"
    if isinstance(exc, InvalidResponse):
        return f"{shown} does not speak Redis' protocol: is this the server's address and port?"
    if isinstance(exc, EOFError) or "closed by server" in text.lower():
        return f"{shown} closed the connection"
    return f"{shown} cannot be used: {text}"
