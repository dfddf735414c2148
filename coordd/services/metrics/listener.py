"""The HTTP listener: GET /metrics, /healthz and /readyz, for everybody who reaches its address.

A client gets one answer and is disconnected. Connections, the size of a request and the time for both directions are
bounded, so no client can hold the daemon. If the address cannot be bound, the daemon says so and tries again: jobs do
not depend on it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import h11
import structlog
import trio

from coordd.services.listening import Listening

log = structlog.get_logger("metrics")

# Clients at a time; a further one is told 503.
CONNECTIONS_MAX = 16
TURNED_AWAY_MAX = 16

# Timeouts (seconds) for a request, and for an answer that nobody reads.
REQUEST_S = 5.0
SEND_S = 10.0

# Bytes of a request's head.
REQUEST_BYTES_MAX = 8192

TEXT = "text/plain; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    kind: str = TEXT


class Listener(Listening):
    """Serves pages on one address."""

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Callable[[], Awaitable[Page]]]) -> None:
        """``pages`` by path."""
        super().__init__("metrics", address, self._connected)
        self._pages = pages
        self._connections = 0

    async def _connected(self, stream: trio.SocketStream) -> None:
        if self._connections >= CONNECTIONS_MAX + TURNED_AWAY_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            async with stream:
                await self._serve(stream, busy=self._connections > CONNECTIONS_MAX)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("metrics.client_gone")
        except Exception:
            # The boundary: a bug in one page must not end the daemon.
            log.exception("metrics.failed")
        finally:
            self._connections -= 1

    async def _serve(self, stream: trio.SocketStream, *, busy: bool) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        request: h11.Request | None = None
        page = Page(408, b"no request came in time\n")
        with trio.move_on_after(REQUEST_S):
            try:
                request = await _request(http, stream)
            except h11.RemoteProtocolError as exc:
                page = Page(exc.error_status_hint, b"a request of HTTP/1.1 is expected\n")
            if request is not None:
                page = await self._page(request, busy=busy)
            elif http.their_state is not h11.ERROR:
                return  # it went away
        head_only = request is not None and request.method == b"HEAD"
        with trio.move_on_after(SEND_S):
            await stream.send_all(_answer(http, page, head_only=head_only))
            await stream.send_eof()
            await stream.receive_some(REQUEST_BYTES_MAX)  # otherwise unread bytes would reset the connection

    async def _page(self, request: h11.Request, *, busy: bool) -> Page:
        page = self._pages.get(request.target.partition(b"?")[0].decode("ascii", "replace"))
        if page is None:
            return Page(404, f"there are {', '.join(self._pages)}\n".encode())
        if request.method not in (b"GET", b"HEAD"):
            return Page(405, b"only GET\n")
        if busy:
            return Page(503, f"{CONNECTIONS_MAX} clients are connected already\n".encode())
        return await page()


async def _request(http: h11.Connection, stream: trio.SocketStream) -> h11.Request | None:
    """The head of the request; None if the client goes away before. Raises h11.RemoteProtocolError."""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            data = await stream.receive_some(REQUEST_BYTES_MAX)
            http.receive_data(data)
            if not data and http.their_state is h11.IDLE:
                return None
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


def _answer(http: h11.Connection, page: Page, *, head_only: bool) -> bytes:
    """All bytes of the answer; a body for GET only."""
    headers = [
        ("Content-Type", page.kind),
        ("Content-Length", str(len(page.body))),
        ("Cache-Control", "no-store"),
        ("Connection", "close"),
    ]
    parts = [http.send(h11.Response(status_code=page.status, headers=headers))]
    if not head_only:
        parts.append(http.send(h11.Data(data=page.body)))
    parts.append(http.send(h11.EndOfMessage()))
    return b"".join([part for part in parts if part])
