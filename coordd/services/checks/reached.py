"""Looks at servers: HTTP, TCP, Spark masters, brokers and Redis. Each wait has the deadline of its check."""

from __future__ import annotations

import json
import ssl
import time
from urllib.parse import SplitResult, urlsplit

import h11
import trio

from coordd.core.checks.check import AMQP, HTTP, REDIS, SPARK_MASTER, TCP, Check
from coordd.core.checks.state import DEGRADED, HEALTHY, INSECURE, UNAVAILABLE, UNHEALTHY, Result

# Bytes of an answer that are read: a master's page names each of its applications.
ANSWER_BYTES_MAX = 1024 * 1024
PIECE_BYTES = 64 * 1024

# Without a limit of its own, an answer is slow from this part of the timeout on.
SLOW = 0.8

PORTS = {"http": 80, "https": 443, "spark": 7077, "amqp": 5672, "amqps": 5671, "redis": 6379, "rediss": 6379}
ENCRYPTED = frozenset(("https", "amqps", "rediss"))

# Statuses that say: what was asked for is not there, or not in this way, however often one asks.
GONE = frozenset((404, 405, 406, 410, 415, 501))

# What a client of AMQP 0-9-1 says first, and how the answer begins: a frame with a method on channel 0.
AMQP_HELLO, AMQP_STARTS = b"AMQP\x00\x00\x09\x01", b"\x01\x00\x00"


# Certificates that are trusted are read again after this time (seconds).
TRUSTED_S = 300.0


class _Trusted:
    """What this machine trusts. To read it takes tens of milliseconds, too long for the daemon's loop."""

    def __init__(self) -> None:
        self._context: ssl.SSLContext | None = None
        self._read_at = 0.0  # time.monotonic

    async def context(self) -> ssl.SSLContext:
        """One for all connections of some minutes."""
        if self._context is None or time.monotonic() - self._read_at > TRUSTED_S:
            self._context = await trio.to_thread.run_sync(ssl.create_default_context, abandon_on_cancel=True)
            self._read_at = time.monotonic()
        return self._context


_trusted = _Trusted()


async def look(check: Check) -> Result:
    """Look once; the caller's deadline ends it."""
    started = trio.current_time()
    try:
        result = await {HTTP: _http, TCP: _tcp, SPARK_MASTER: _master, AMQP: _amqp, REDIS: _redis}[check.kind](check)
    except ssl.SSLCertVerificationError as exc:
        return Result(INSECURE, f"its certificate is not valid: {exc.verify_message}")
    except (trio.BrokenResourceError, ssl.SSLError) as exc:
        return _of_tls(exc)
    except OSError as exc:
        return Result(UNHEALTHY, f"it cannot be reached: {_why(exc)}")
    except (h11.RemoteProtocolError, UnicodeError, ValueError) as exc:
        return Result(UNHEALTHY, f"it does not answer as expected: {type(exc).__name__}")
    took_s = trio.current_time() - started
    slow_s = check.degraded_at if check.degraded_at is not None else SLOW * check.timeout_s
    figures = f"time={took_s:.3f}s;{slow_s:g};{check.timeout_s:g}"
    if result.state == HEALTHY and check.unhealthy_at is not None and took_s >= check.unhealthy_at:
        return Result(UNHEALTHY, f"{result.text}, after {took_s:.2f} s", figures)
    if result.state == HEALTHY and took_s >= slow_s:
        return Result(DEGRADED, f"{result.text}, but slowly: after {took_s:.2f} s", figures)
    return Result(result.state, result.text, figures)


def _why(exc: OSError) -> str:
    """trio tries each address of a name, and puts what each said into a group."""
    group = exc.__cause__
    first = group.exceptions[0] if isinstance(group, BaseExceptionGroup) else exc
    return str(getattr(first, "strerror", None) or first)


def _of_tls(exc: BaseException) -> Result:
    """trio wraps what TLS says."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Result(INSECURE, f"its certificate is not valid: {cause.verify_message}")
        if isinstance(cause, ssl.SSLError):
            return Result(INSECURE, f"it cannot be spoken to in TLS: {cause.reason or cause}")
        cause = cause.__cause__
    return Result(UNHEALTHY, "it closed the connection")


async def _connected(parts: SplitResult) -> trio.abc.Stream:
    port = parts.port or PORTS[parts.scheme]
    context = await _trusted.context() if parts.scheme in ENCRYPTED else None
    stream: trio.abc.Stream = await trio.open_tcp_stream(parts.hostname or "", port)
    if context is not None:
        tls = trio.SSLStream(stream, context, server_hostname=parts.hostname, https_compatible=True)
        try:
            await tls.do_handshake()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        stream = tls
    return stream


async def _closed(stream: trio.abc.Stream) -> None:
    await trio.aclose_forcefully(stream)


async def _tcp(check: Check) -> Result:
    host, _, port = check.address.rpartition(":")
    stream = await trio.open_tcp_stream(host.strip("[]"), int(port))
    await _closed(stream)
    return Result(HEALTHY, f"{check.address} accepts connections")


async def _http(check: Check) -> Result:
    status, _ = await _got(urlsplit(check.url))
    text = f"it answers {status}"
    if status in GONE:
        return Result(UNAVAILABLE, text)
    if status >= 500:
        return Result(UNHEALTHY, text)
    return Result(HEALTHY if 200 <= status < 300 else DEGRADED, text)


async def _master(check: Check) -> Result:
    """Of several masters one must be alive. Only a master's page tells; its port only that something listens."""
    told = []
    for url in check.url.split(","):
        parts = urlsplit(url)
        try:
            if parts.scheme == "spark":
                await _closed(await _connected(parts))
                return Result(HEALTHY, f"{parts.netloc} accepts connections")
            status, body = await _got(parts._replace(path=parts.path.rstrip("/") + "/json/"))
            page = json.loads(body) if status == 200 else {}
            said = page.get("status") if isinstance(page, dict) else None
            workers = page.get("aliveworkers") if isinstance(page, dict) else None
        except (OSError, ValueError, trio.BrokenResourceError, h11.RemoteProtocolError) as exc:
            if isinstance(exc, (ssl.SSLError, trio.BrokenResourceError)) and len(check.url.split(",")) == 1:
                raise
            told.append(f"{parts.netloc} does not answer")
            continue
        if said == "ALIVE" and workers == 0:
            return Result(DEGRADED, f"{parts.netloc} is ALIVE and has no worker")
        if said == "ALIVE":
            return Result(HEALTHY, f"{parts.netloc} is ALIVE with {workers} workers")
        told.append(f"{parts.netloc} is {said}" if isinstance(said, str) else f"{parts.netloc} is not a master")
    return Result(UNHEALTHY, "; ".join(told))


async def _amqp(check: Check) -> Result:
    stream = await _connected(urlsplit(check.url))
    try:
        await stream.send_all(AMQP_HELLO)
        said = await stream.receive_some(PIECE_BYTES)
    finally:
        await _closed(stream)
    if said.startswith(AMQP_STARTS):
        return Result(HEALTHY, "it speaks AMQP 0-9-1")
    return Result(UNHEALTHY, "it does not speak AMQP 0-9-1")


async def _redis(check: Check) -> Result:
    stream = await _connected(urlsplit(check.url))
    try:
        await stream.send_all(b"PING\r\n")
        said = await stream.receive_some(PIECE_BYTES)
    finally:
        await _closed(stream)
    if said.startswith((b"+PONG", b"-NOAUTH")):  # it asks for a password: it works
        return Result(HEALTHY, "it answers")
    if said.startswith((b"-LOADING", b"-BUSY", b"-MASTERDOWN")):
        return Result(DEGRADED, f"it answers {said[1:40].split(b' ')[0].decode('ascii', 'replace')}")
    return Result(UNHEALTHY, "it does not answer as Redis does")


async def _got(parts: SplitResult) -> tuple[int, bytes]:
    """Status and body of a GET."""
    stream = await _connected(parts)
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=PIECE_BYTES)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    request = h11.Request(
        method="GET",
        target=target.encode(),
        headers=[("Host", parts.netloc.rpartition("@")[2]), ("User-Agent", "coordd"), ("Connection", "close")],
    )
    try:
        await stream.send_all(http.send(request) + http.send(h11.EndOfMessage()))
        return await _answered(http, stream)
    finally:
        await _closed(stream)


async def _answered(http: h11.Connection, stream: trio.abc.Stream) -> tuple[int, bytes]:
    status, body = 0, bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(PIECE_BYTES)))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
        if len(body) > ANSWER_BYTES_MAX or isinstance(event, (h11.EndOfMessage, h11.ConnectionClosed)):
            return status, bytes(body[:ANSWER_BYTES_MAX])
