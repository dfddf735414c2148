"""Listens on a TCP address for as long as the daemon runs. An address that cannot be bound is tried again: jobs do not
depend on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog
import trio

# How soon (seconds) an address that could not be bound is tried again.
AGAIN_S = 10.0


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


def _first(group: BaseExceptionGroup[BaseException]) -> str:
    """What the first exception of a group says."""
    exc: BaseException = group
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    return str(getattr(exc, "strerror", None) or exc)
