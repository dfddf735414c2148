"""HTTP requests with one deadline for everything, and answers of a limited size."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from coordd.errors import UnavailableError

# A cluster manager answers within this time (seconds), or counts as away.
ANSWER_S = 10.0

# The applications of one run, or of one coordd cluster, are far smaller.
ANSWER_BYTES_MAX = 8 * 1024 * 1024

# How much of an unexpected answer is shown.
SHOWN_MAX = 200


class Answer(NamedTuple):
    """Status, headers (names in lower case) and content."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class DriverPlace(NamedTuple):
    """Where the UI of a driver may be. ``address``: for people. ``ask``: path and seconds -> the answer; raises
    UnavailableError.
    """

    address: str
    ask: Callable[[str, float], Answer]


@runtime_checkable
class ShowsDrivers(Protocol):
    """A cluster manager that leads to the UIs of its drivers."""

    def drivers_places(self, ident: str, ports: range) -> list[DriverPlace]:
        """Where the UI of an application's driver may be. ``ports``: those that Spark tries for it, in this order.

        Raises UnavailableError: not now.
        """


def request(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    answer_s: float = ANSWER_S,
) -> Answer:
    """One request; redirects are not followed. Raises UnavailableError without a whole answer in time."""
    until = time.monotonic() + answer_s
    try:
        parts = urlsplit(url)
        connection = _connection(parts.scheme, parts.hostname or "", parts.port, tls, answer_s)
    except ValueError as exc:
        raise UnavailableError(f"{url}: {exc}") from exc
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    # A server that sends one byte a second would never run into the timeout of a single read.
    guard = threading.Timer(answer_s, _cut, (connection,))
    guard.daemon = True
    guard.start()
    try:
        connection.request(method, target, body=body, headers={"Accept": "application/json", **(headers or {})})
        said = connection.getresponse()
        content = said.read(ANSWER_BYTES_MAX + 1)
        answer = Answer(said.status, {name.lower(): value for name, value in said.getheaders()}, content)
    except (OSError, http.client.HTTPException, ValueError) as exc:
        late = f"no whole answer within {answer_s:g} s"
        why = late if time.monotonic() >= until - 0.01 else f"{type(exc).__name__}: {exc}"
        raise UnavailableError(f"{_place(url)}: {why}") from exc
    finally:
        guard.cancel()
        connection.close()
    if len(answer.content) > ANSWER_BYTES_MAX:
        raise UnavailableError(f"{_place(url)}: its answer is longer than {ANSWER_BYTES_MAX} bytes")
    if time.monotonic() >= until:
        raise UnavailableError(f"{_place(url)}: no whole answer within {answer_s:g} s")
    return answer


def read_json(answer: Answer, url: str) -> dict[str, Any]:
    """The content as a JSON object. Raises UnavailableError."""
    try:
        content = json.loads(answer.content)
    except (ValueError, RecursionError) as exc:
        raise UnavailableError(f"{_place(url)}: expected JSON, found {shown(answer.content)}") from exc
    if not isinstance(content, dict):
        raise UnavailableError(f"{_place(url)}: expected a JSON object, found {shown(answer.content)}")
    return content


def shown(content: bytes) -> str:
    """The beginning of an answer, on one line."""
    text = content[:SHOWN_MAX].decode(errors="replace")
    return repr(" ".join(text.split())) if text.strip() else "nothing"


def _connection(
    scheme: str, host: str, port: int | None, tls: ssl.SSLContext | None, answer_s: float
) -> http.client.HTTPConnection:
    if not host or scheme not in ("http", "https"):
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT")
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=answer_s)
    return http.client.HTTPSConnection(host, port, timeout=answer_s, context=tls or ssl.create_default_context())


def _cut(connection: http.client.HTTPConnection) -> None:
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _place(url: str) -> str:
    return url.partition("?")[0]
