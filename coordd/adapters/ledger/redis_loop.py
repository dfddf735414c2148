"""The Redis ledger on trio's own loop: an operation crosses no thread.

A thread opens the connection, with the code that a runner uses too: host names, TLS, the login, Sentinel and Redis
Cluster. Only commands and replies are exchanged here, on the same socket.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import trio

from coordd.adapters.ledger.redis_ledger import RedisLedger, answers_of, together
from coordd.adapters.ledger.redis_scripts import packed
from coordd.adapters.ledger.redis_server import connect_failed
from coordd.adapters.ledger.resp import READ_BYTES, Connection, packed_all
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.runner_requests import Request
from coordd.errors import ForeignLedgerError, LedgerClosedError, UnavailableError

Command = Sequence[str | bytes | int]


class RedisLoopLedger(RedisLedger):
    """ports.OnLoop over one Redis. Its other methods block, and take turns with ``ask_here``."""

    @property
    def is_open(self) -> bool:
        return self._server.connection is not None and not self._closed

    async def ask_here(self, batch: Sequence[Request[Answer | OpenAnswer]]) -> list[Answer | OpenAnswer]:
        """As ``ask_all``, but in trio's own thread, and on an open connection only. If it is cancelled, the connection
        is closed: a reply may still be on its way.
        """
        questions = together([(request.op, packed(request)) for request in batch])
        if not self._turn.acquire(blocking=False):
            raise connect_failed(self.url, "a thread is asking it")
        try:
            if self._closed:
                raise connect_failed(self.url, "it was closed")
            with trio.move_on_after(self.timeout_s):
                return answers_of(questions, await self._ask_here(questions))
            raise connect_failed(self.url, "no answer in time")
        finally:
            if self._closed:
                self._server.drop()
            self._turn.release()

    async def _ask_here(self, questions: list[tuple[str, list[bytes]]]) -> list[Any]:
        steps = self._steps(questions, self._server.deadline())
        try:
            commands = next(steps)
            while True:
                commands = steps.send(await self._exchange_here(commands))
        except StopIteration as over:
            replies: list[Any] = over.value
            return replies

    async def _exchange_here(self, commands: Sequence[Command]) -> list[Any]:
        server = self._server
        connection = server.connection
        if connection is None:
            raise connect_failed(self._url, "not connected")
        try:
            replies = await exchange(connection, commands)
        except UnavailableError as exc:
            server.drop()
            raise connect_failed(self._url, str(exc)) from exc
        except BaseException:
            server.drop()
            raise
        if server.moved(replies):
            raise connect_failed(self._url, "another server of the Redis Cluster has its slot now")
        try:
            return server.judged(replies)
        except (ForeignLedgerError, LedgerClosedError) as exc:
            raise self._refused(exc) from exc


async def exchange(connection: Connection, commands: Sequence[Command]) -> list[Any]:
    """As ``Connection.exchange``; the caller has the deadline. Raises UnavailableError when the connection fails."""
    await trio.lowlevel.checkpoint_if_cancelled()
    link, count = connection.socket, len(commands)
    replies: list[Any] = []
    try:
        link.settimeout(0)
        data = memoryview(packed_all(commands))
        while data:
            try:
                data = data[link.send(data) :]
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as exc:
                await _wait(link, exc, writes=True)
        while len(replies) < count:
            try:
                received = link.recv(READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError) as exc:
                await _wait(link, exc, writes=False)
            else:
                connection.take(received, replies, count)
    except (OSError, ValueError, IndexError) as exc:
        raise connection.failed(exc) from exc
    return replies


async def _wait(link: Any, exc: OSError, *, writes: bool) -> None:
    """Wait until the socket may go on. TLS may have to read in order to write, and the other way round."""
    if isinstance(exc, ssl.SSLWantReadError):
        writes = False
    elif isinstance(exc, ssl.SSLWantWriteError):
        writes = True
    await (trio.lowlevel.wait_writable if writes else trio.lowlevel.wait_readable)(link)
