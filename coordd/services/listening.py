"""Listens on a TCP address for as long as the daemon runs. An address that cannot be bound is tried again: jobs do not
depend on it.
"""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import Awaitable, Callable

import structlog
import trio

from coordd.errors import CoorddError

# How soon (seconds) an address that could not be bound is tried again.
AGAIN_S = 10.0

# Timeout of a TLS handshake (seconds).
HANDSHAKE_S = 5.0

MakeTls = Callable[[], ssl.SSLContext]


class Listening:
    """One address. ``connected`` serves a connection, and closes it."""

    def __init__(
        self, name: str, address: tuple[str, int], connected: Callable[[trio.SocketStream], Awaitable[None]]
    ) -> None:
        """``name`` of it in the log."""
        self._name = name
        self._address = address
        self._serves = connected
        self._log = structlog.get_logger(name)
        self.problem = "" if address[1] else "no address"  # why it does not listen

    async def run(self) -> None:
        """Listen for ever."""
        host, port = self._address
        while True:
            what = "cannot be bound"
            try:
                listeners = await trio.open_tcp_listeners(port, host=host)
                self.problem, what = "", "accepts nobody"
                self._log.info(f"{self._name}.listening", address=f"{host}:{port}")
                await trio.serve_listeners(self._serves, listeners)
            except* (OSError, ValueError) as group:  # a name that no host can have is a UnicodeError
                problem = f"{host}:{port} {what}: {_first(group)}"
                if problem != self.problem:
                    self.problem = problem
                    self._log.error(f"{self._name}.not_listening", reason=problem, tries_again_in_s=AGAIN_S)
            await trio.sleep(AGAIN_S)


class Serving(Listening):
    """An address for callers on other machines: connections are bounded, in all and from one address, and may be
    encrypted. ``make_tls``: what a connection is encrypted with, read for each one; None: it is not.
    """

    def __init__(
        self, name: str, address: tuple[str, int], most: int, most_of_one: int, make_tls: MakeTls | None
    ) -> None:
        """``most`` connections at a time, ``most_of_one`` from one address; a further one is closed at once."""
        super().__init__(name, address, self.connected)
        self._most, self._most_of_one = most, most_of_one
        self._make_tls = make_tls
        self._connections: Counter[str] = Counter()  # by address
        self.counts = {"turned_away": 0}
        self._failures = 0  # connections that ended with a bug of ours

    async def connected(self, stream: trio.SocketStream) -> None:
        """Serve one connection, and close it."""
        peer = _peer(stream)
        if self._connections.total() >= self._most or self._connections[peer] >= self._most_of_one:
            self.counts["turned_away"] += 1
            await trio.aclose_forcefully(stream)
            return
        self._connections[peer] += 1
        try:
            async with stream:
                await self._serve(await self._encrypted(stream), peer)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, ssl.SSLError) as exc:
            self._log.debug(f"{self._name}.client_gone", reason=repr(exc))
        except Exception:
            # The boundary: a bug here must not end the daemon. The caller has no answer, which is a no.
            self._failures += 1
            if self._failures & (self._failures - 1) == 0:  # 1, 2, 4, 8, …: callers may repeat it without end
                self._log.exception(f"{self._name}.failed", count=self._failures)
        finally:
            self._connections[peer] -= 1
            self._connections += Counter()  # forgets addresses without a connection

    async def _serve(self, stream: trio.abc.Stream, peer: str) -> None:
        """Talk to who is at ``peer``."""
        raise NotImplementedError

    async def _encrypted(self, stream: trio.abc.Stream) -> trio.abc.Stream:
        if self._make_tls is None:
            return stream
        try:
            context = self._make_tls()
        except CoorddError as exc:
            if self.problem != str(exc):
                self.problem = str(exc)
                self._log.error(f"{self._name}.no_certificate", reason=self.problem)
            raise trio.BrokenResourceError from exc
        self.problem = ""
        secured = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        with trio.fail_after(HANDSHAKE_S):
            await secured.do_handshake()
        return secured


def _peer(stream: trio.SocketStream) -> str:
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""  # it has gone already


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    """What the first exception of a group says."""
    exc: BaseException = group
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return str(getattr(exc, "strerror", None) or exc)
