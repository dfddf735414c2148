"""HTTP/1.1 for the browsers of one person: h11 on trio. What a client sends is bounded, in size and time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import trio

# Clients at a time, more than a browser with many tabs opens (six to one host). A further one is closed.
CONNECTIONS_MAX = 64

# Timeouts (seconds) for a request with its answer, for the answer of a change (more than the daemon gets for it), and
# for an answer that nobody reads.
REQUEST_S = 10.0
CHANGE_S = 40.0
SEND_S = 20.0

# Bytes of a request's head (other programs on 127.0.0.1 set cookies, too) and of a form.
HEAD_BYTES_MAX = 32 * 1024
BODY_BYTES_MAX = 16 * 1024

# How many fields a form or an address may have.
FIELDS_MAX = 40

HTML = "text/html; charset=utf-8"
EVENTS = "text/event-stream"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)

# Everything comes from this address, nothing is executed that stands in a page, and no other page may frame it.
SAFE = (
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "same-origin"),  # with "no-referrer" a browser says that a form comes from nowhere
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


class Request(NamedTuple):
    """What a client asks for. Names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    form: Mapping[str, str]


class Answer(NamedTuple):
    """What it gets. ``stream``: parts that follow the body, until the iterator ends."""

    status: int
    body: bytes = b""
    kind: str = HTML
    headers: tuple[tuple[str, str], ...] = ()
    stream: AsyncIterator[bytes] | None = None


Handler = Callable[[Request], Awaitable[Answer]]


class Server:
    """Serves one handler."""

    def __init__(self, handler: Handler, failed: Callable[[BaseException], None]) -> None:
        """``failed`` is told of a defect in the handler; the client gets 500."""
        self._handler = handler
        self._failed = failed
        self._connections = 0

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve for ever."""
        await trio.serve_listeners(self._connected, [listener])

    async def _connected(self, stream: trio.SocketStream) -> None:
        if self._connections >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._connections += 1
        try:
            async with stream:
                await self._one(stream)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            pass  # the client is gone
        except Exception as exc:  # the boundary of one connection: a stream of changes may have a defect, too
            self._failed(exc)
        finally:
            self._connections -= 1

    async def _one(self, stream: trio.SocketStream) -> None:
        """One request and its answer; then the connection is closed."""
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        answer: Answer | None = None
        with trio.move_on_after(REQUEST_S) as scope:
            try:
                request = await _request(http, stream)
                if request is None:
                    return
                if request.method == "POST":
                    scope.deadline = trio.current_time() + CHANGE_S
                answer = await self._answered(request)
                if request.method == "HEAD":
                    answer = answer._replace(body=b"", stream=None)
            except h11.RemoteProtocolError as exc:
                answer = Answer(exc.error_status_hint, b"a request of HTTP/1.1 was expected\n", "text/plain")
        if answer is None:
            answer = Answer(503, b"the answer was not ready in time\n", "text/plain")
        await _send(http, stream, answer)

    async def _answered(self, request: Request) -> Answer:
        try:
            return await self._handler(request)
        except Exception as exc:  # the boundary: a defect in one page must not end the others
            self._failed(exc)
            return Answer(500, b"this page has a defect; the terminal of coordctl web says more\n", "text/plain")


async def _request(http: h11.Connection, stream: trio.SocketStream) -> Request | None:
    """The whole request; None if the client goes away before. Raises h11.RemoteProtocolError."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            if http.they_are_waiting_for_100_continue:
                await stream.send_all(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            data = await stream.receive_some(HEAD_BYTES_MAX)
            http.receive_data(data)
            if not data and head is None:
                return None
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                raise h11.RemoteProtocolError("the form is too large", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _read(head, bytes(body))
        else:
            return None


def _read(head: h11.Request, body: bytes) -> Request:
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    try:
        parts = urlsplit(head.target.decode("ascii", "replace"))
        query = dict(parse_qsl(parts.query, max_num_fields=FIELDS_MAX))
        form = dict(parse_qsl(body.decode(), max_num_fields=FIELDS_MAX))
    except ValueError as exc:
        raise h11.RemoteProtocolError("the address or the form cannot be read") from exc
    return Request(head.method.decode(), unquote(parts.path), query, headers, form)


async def _send(http: h11.Connection, stream: trio.SocketStream, answer: Answer) -> None:
    headers = [("Content-Type", answer.kind), ("Connection", "close"), *SAFE, *answer.headers]
    if answer.stream is None:
        headers.append(("Content-Length", str(len(answer.body))))
    if not any(name == "Cache-Control" for name, _ in answer.headers):
        headers.append(("Cache-Control", "no-store"))
    first = [http.send(h11.Response(status_code=answer.status, headers=headers))]
    if answer.body:
        first.append(http.send(h11.Data(data=answer.body)))
    with trio.move_on_after(SEND_S):
        await stream.send_all(b"".join(part for part in first if part))
        if answer.stream is None:
            await stream.send_all(http.send(h11.EndOfMessage()) or b"")
            await stream.send_eof()
            await stream.receive_some(HEAD_BYTES_MAX)  # unread bytes would reset the connection
            return
    if answer.stream is not None:
        await _stream(http, stream, answer.stream)


async def _stream(http: h11.Connection, stream: trio.SocketStream, parts: AsyncIterator[bytes]) -> None:
    """Send the parts until there are no more, or the client goes away or does not read."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await stream.receive_some(1)  # a browser sends nothing more: this is its end
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError):
            async for part in parts:
                with trio.fail_after(SEND_S):
                    await stream.send_all(http.send(h11.Data(data=part)) or b"")
        nursery.cancel_scope.cancel()
