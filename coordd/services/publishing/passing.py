"""The socket for the programs of messages' runs: their messages go over the connections that the node has.

Such a program runs as the daemon's user, and nobody else is answered. If the daemon is away, it connects itself.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog
import trio

from coordd.config.hooks.delivery import (
    LINE_BYTES_MAX,
    Delivered,
    Delivery,
    Question,
    Told,
    read_delivery,
    read_question,
    written,
)
from coordd.config.hooks.publisher import Publisher
from coordd.core.jobs.applications import REPLAYED
from coordd.errors import CoorddError
from coordd.services.ledger import LedgerService

log = structlog.get_logger("publishing")

# Calls at a time; a node starts fewer. Timeouts (seconds): of a question, of an answer that nobody reads.
CALLS_MAX = 32
QUESTION_S, SEND_S = 5.0, 5.0
READ_BYTES = 65_536

REFUSED = 1


class Brokers(Protocol):
    """The connections to brokers."""

    async def run(self) -> None:
        """Keep them for ever."""

    async def publish(self, delivery: Delivery) -> Delivered:
        """Send one message. Raises UnavailableError when this node stops."""

    def state(self, to: Sequence[str], password_file: str, tls_ca: str) -> tuple[int, Mapping[str, str]]:
        """Of the brokers with these addresses: how many connections are open, and why addresses are tried last."""


class Passing:
    """Answers the programs of messages' runs."""

    def __init__(self, path: str, make_pool: Callable[[], Brokers], ledger: LedgerService) -> None:
        """``path``: of the socket. ``make_pool``: called with the first message; a node without any loads no library
        for it.
        """
        self.pool: Brokers | None = None
        self._ledger = ledger
        self._path = path
        self._make_pool = make_pool
        self._calls = 0
        self._nursery: trio.Nursery

    def state(self, one: Publisher) -> tuple[int, Mapping[str, str]]:
        """Of its brokers: how many connections this node has open, and why it tries addresses last."""
        to = [address for address in one.to if address.startswith("amqp")]
        return self.pool.state(to, one.password_file, one.tls_ca) if self.pool is not None and to else (0, {})

    async def run(self, *, task_status: trio.TaskStatus[object] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve for ever."""
        with self._bind() as sock:
            async with trio.open_nursery() as self._nursery:
                await trio.serve_listeners(self._serve, [trio.SocketListener(sock)], task_status=task_status)

    def _connections(self) -> Brokers:
        if self.pool is None:
            self.pool = self._make_pool()
            self._nursery.start_soon(self.pool.run)
        return self.pool

    def _bind(self) -> trio.socket.SocketType:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
        sock.bind(self._path)
        os.chmod(self._path, 0o600)
        sock.listen(CALLS_MAX)
        return trio.socket.from_stdlib_socket(sock)

    async def _serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            if self._calls >= CALLS_MAX or _uid(stream) != os.geteuid():
                return
            self._calls += 1
            try:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self._answer(stream)
            finally:
                self._calls -= 1

    async def _answer(self, stream: trio.SocketStream) -> None:
        line = b""
        with trio.move_on_after(QUESTION_S):
            while not line.endswith(b"\n") and len(line) <= LINE_BYTES_MAX:
                if not (part := await stream.receive_some(READ_BYTES)):
                    break
                line += part
        try:
            asked = read_question(line) or read_delivery(line)
        except ValueError as exc:
            log.warning("publish.malformed", reason=str(exc)[:200])
            return
        said = await (self._told(asked) if isinstance(asked, Question) else self._delivered(asked))
        if said is not None:
            with trio.move_on_after(SEND_S):
                await stream.send_all(written(said))

    async def _delivered(self, delivery: Delivery) -> Delivered:
        try:
            return await self._connections().publish(delivery)
        except CoorddError as exc:
            return Delivered(REFUSED, (str(exc),), delivery.repeated)

    async def _told(self, of: Question) -> Told | None:
        """None: the ledger does not answer."""
        try:
            attempts = await self._ledger.query(lambda ledger: ledger.attempts(of.run))
        except CoorddError:
            return None
        return Told(any(REPLAYED in str(one.reason) for one in attempts))


def _uid(stream: trio.SocketStream) -> int:
    said = stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", said)[1])
