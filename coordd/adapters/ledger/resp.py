"""A small blocking client of Redis: one connection, pipelines, deadlines, TLS, Sentinel.

A runner loads this file before it starts a job, so it imports only the interpreter's own modules; TLS modules are
imported when TLS is used.
"""

import _socket
import time

from coordd.errors import ConfigError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# The maximum size of a reply; a larger one does not come from our scripts.
LINE_BYTES_MAX = 64 * 1024
BULK_BYTES_MAX = 64 * 1024 * 1024
ARRAY_LENGTH_MAX = 1_000_000
DEPTH_MAX = 8
READ_BYTES = 65536

# What the parser says instead of a reply: more bytes are needed; an array has begun.
NOT_YET = object()
OPENED = object()

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
URL_EXAMPLE = "redis://host:6379/0 or redis+sentinel://host1:26379,host2:26379/master/0"


class Problem:
    """An error reply: its first word (READONLY, NOSCRIPT, …) and its whole text."""

    __slots__ = ("text", "word")

    def __init__(self, text: str) -> None:
        self.word = text.partition(" ")[0]
        self.text = text

    @property
    def is_crowded(self) -> bool:
        """True if the server has as many clients as it takes."""
        return self.text.startswith("ERR max number of clients")


class Address:
    """The meaning of a URL: servers, or sentinels and the name of their master."""

    __slots__ = ("database", "hosts", "master", "password", "tls", "user")

    def __init__(self, url: str) -> None:
        """Raises ConfigError when the URL is invalid."""
        scheme, separator, rest = url.partition("://")
        if not separator or scheme not in ("redis", "rediss", "redis+sentinel", "rediss+sentinel"):
            raise ConfigError(f"ledger {shown(url)}: expected {URL_EXAMPLE}")
        self.tls = scheme.startswith("rediss")
        sentinel = scheme.endswith("+sentinel")
        rest = rest.partition("?")[0]
        place, _, path = rest.partition("/")
        credentials, _, hosts = place.rpartition("@")
        user, _, password = credentials.partition(":")
        self.user, self.password = _decoded(user), _decoded(password)
        port = DEFAULT_SENTINEL_PORT if sentinel else DEFAULT_PORT
        self.hosts = [_host_and_port(each, port, url) for each in hosts.split(",")]
        parts = path.rstrip("/").split("/")
        self.master = _decoded(parts.pop(0)) if sentinel else ""
        database = parts[0] if parts else ""
        if (sentinel and not self.master) or len(parts) > 1 or (database and not database.isdigit()):
            raise ConfigError(f"ledger {shown(url)}: expected {URL_EXAMPLE}")
        self.database = int(database or 0)


def shown(url: str) -> str:
    """A URL for people."""
    from coordd.core.redaction import redact_text  # here, for the runner's start has no time for it

    return redact_text(url)


def _host_and_port(text: str, port: int, url: str) -> "tuple[str, int]":
    host, separator, number = text.rpartition(":")
    if text.endswith("]") or not separator:
        host, number = text, str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not number.isdigit() or not 0 < int(number) < 65536:
        raise ConfigError(f"ledger {shown(url)}: {text!r} is not a host and port; expected {URL_EXAMPLE}")
    return host, int(number)


def _decoded(text: str) -> str:
    """Undo percent-encoding."""
    if "%" not in text:
        return text
    first, *rest = text.encode().split(b"%")
    try:
        return (first + b"".join(bytes((int(part[:2], 16),)) + part[2:] for part in rest)).decode()
    except ValueError:
        return text


class Tls:
    """The TLS files; they are read at each connection, so that new ones are used."""

    __slots__ = ("ca", "cert", "key", "verify")

    def __init__(self, ca: str = "", cert: str = "", key: str = "", *, verify: bool = True) -> None:
        self.ca = ca
        self.cert = cert
        self.key = key
        self.verify = verify

    def wrap(self, host: str, port: int, deadline: float, advice: str = "") -> "Any":
        """A connected TLS socket. ``advice`` as in tls_errors.tls_sentence. Raises UnavailableError or OSError."""
        import socket
        import ssl

        from coordd.adapters.secrets import tls_context

        try:
            context = tls_context(self.ca, self.cert, self.key, verify=self.verify)
        except ConfigError as exc:
            raise UnavailableError(f"the TLS files cannot be used: {exc}") from exc
        plain = socket.create_connection((host, port), timeout=_left(deadline))
        try:
            plain.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            plain.settimeout(_left(deadline))
            return context.wrap_socket(plain, server_hostname=host)
        except ssl.SSLError as exc:
            from coordd.adapters.tls_errors import tls_sentence

            plain.close()
            raise UnavailableError(tls_sentence(f"Redis at {host}:{port}", exc, "ledger", advice)) from exc
        except BaseException:
            plain.close()
            raise


class Replies:
    """The parser: bytes in, replies out, without I/O."""

    __slots__ = ("_buffer", "_open", "_searched")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._open: list[tuple[list[Any], int]] = []  # arrays that are not complete yet: items so far, and their number
        self._searched = 0  # no line ends before this byte of the buffer

    def feed(self, data: bytes) -> None:
        """Add bytes of the server."""
        self._buffer += data

    def next(self) -> "Any":
        """The next reply (bytes, int, None, list or Problem), or NOT_YET.

        Raises ValueError, or another error of the interpreter, for bytes that are not a reply.
        """
        while True:
            value = self._value()
            if value is NOT_YET:
                return NOT_YET
            if value is OPENED:
                continue
            while self._open:
                items, length = self._open[-1]
                items.append(value)
                if len(items) < length:
                    break
                value = items
                self._open.pop()
            else:
                return value

    def _value(self) -> "Any":
        buffer = self._buffer
        end = buffer.find(b"\r\n", self._searched)
        if end < 0:
            if len(buffer) > LINE_BYTES_MAX:
                raise ValueError
            self._searched = max(0, len(buffer) - 1)
            return NOT_YET
        self._searched = end
        kind, rest = bytes(buffer[:1]), bytes(buffer[1:end])
        value: Any
        if kind == b"+":
            value = rest
        elif kind == b"-":
            value = Problem(rest.decode(errors="replace"))
        elif kind == b":":
            value = int(rest)
        else:
            length = int(rest)
            if length == -1 and kind in (b"$", b"*"):
                value = None
            elif kind == b"$" and 0 <= length <= BULK_BYTES_MAX:
                begin, end = end + 2, end + 2 + length
                if len(buffer) < end + 2:
                    return NOT_YET
                value = bytes(buffer[begin:end])
            elif kind == b"*" and 0 <= length <= ARRAY_LENGTH_MAX and len(self._open) < DEPTH_MAX:
                value = []
                if length:
                    self._open.append((value, length))
                    value = OPENED
            else:
                raise ValueError
        del buffer[: end + 2]
        self._searched = 0
        return value


class Connection:
    """One connection to one server. Every method raises UnavailableError when the deadline (monotonic) passes."""

    def __init__(self, host: str, port: int, deadline: float, tls: "Tls | None" = None, advice: str = "") -> None:
        """``advice`` as in ``Tls.wrap``."""
        self.name = f"{host}:{port}"
        self.replies = Replies()
        self.closed_unheard = False  # it was closed, or reset, before the first byte of an answer
        self.socket: Any = None
        self.socket = self._guarded(
            lambda: tls.wrap(host, port, deadline, advice) if tls else _connect(host, port, deadline)
        )

    def exchange(self, commands: "Sequence[Sequence[str | bytes | int]]", deadline: float) -> "list[Any]":
        """Send commands at once, then read their replies: each is bytes, int, None, list or Problem."""
        replies: list[Any] = self._guarded(lambda: self._exchange(commands, deadline))
        return replies

    def close(self) -> None:
        """Close the connection."""
        if self.socket is not None:
            self.socket.close()

    def failed(self, exc: Exception) -> UnavailableError:
        """An error of the socket or of the parser as an exception that names the server."""
        if isinstance(exc, TimeoutError):
            return UnavailableError(f"{self.name}: no answer in time")
        if isinstance(exc, OSError):
            return UnavailableError(f"{self.name}: {exc.strerror or exc}")
        if isinstance(exc, UnicodeError) and not isinstance(exc, UnicodeDecodeError):  # of the host, not of an answer
            return UnavailableError(f"{self.name}: this is not a name of a host ({exc})")
        return UnavailableError(f"{self.name}: this is not an answer of a Redis server")

    def take(self, data: bytes, into: "list[Any]", count: int) -> None:
        """Add received bytes, and the replies that are complete now, up to ``count``. Raises OSError at the end of the
        stream, ValueError for invalid bytes.
        """
        if not data:
            last = into[-1] if into else None
            if isinstance(last, Problem) and (last.is_crowded or last.word == "DENIED"):
                into += [last] * (count - len(into))  # a server that takes no connection says it once, for all
                return
            raise OSError("the server closed the connection")
        self.replies.feed(data)
        while len(into) < count and (reply := self.replies.next()) is not NOT_YET:
            into.append(reply)

    def _guarded(self, action: "Callable[[], Any]") -> "Any":
        try:
            return action()
        except (OSError, ValueError, IndexError) as exc:
            raise self.failed(exc) from exc

    def _exchange(self, commands: "Sequence[Sequence[str | bytes | int]]", deadline: float) -> "list[Any]":
        replies: list[Any] = []
        heard = False
        try:
            self.socket.settimeout(_left(deadline))
            self.socket.sendall(packed_all(commands))
            while len(replies) < len(commands):
                self.socket.settimeout(_left(deadline))
                received = self.socket.recv(READ_BYTES)
                heard = heard or bool(received)
                self.take(received, replies, len(commands))
        except OSError as exc:
            self.closed_unheard = not heard and not isinstance(exc, TimeoutError)
            raise
        return replies


def _connect(host: str, port: int, deadline: float) -> "Any":
    failure: OSError | None = None
    for family, kind, protocol, _, place in _socket.getaddrinfo(host, port, 0, _socket.SOCK_STREAM):
        connection = _socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_left(deadline))
            connection.setsockopt(_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
            connection.connect(place)
            return connection
        except OSError as exc:
            connection.close()
            failure = exc
    raise failure or OSError("no such host")


def _left(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def packed_all(commands: "Sequence[Sequence[str | bytes | int]]") -> bytes:
    """Commands as the bytes that are sent."""
    return b"".join([_packed(command) for command in commands])


def _packed(command: "Sequence[str | bytes | int]") -> bytes:
    parts = [f"*{len(command)}\r\n".encode()]
    for word in command:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts += (f"${len(data)}\r\n".encode(), data, b"\r\n")
    return b"".join(parts)
