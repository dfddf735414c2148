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

DEFAULT_PORT = 6379
DEFAULT_SENTINEL_PORT = 26379
URL_EXAMPLE = "redis://host:6379/0 or redis+sentinel://host1:26379,host2:26379/master/0"


class Problem:
    """An error reply: its first word (READONLY, NOSCRIPT, …) and its whole text."""

    __slots__ = ("text", "word")

    def __init__(self, text: str) -> None:
        self.word = text.partition(" ")[0]
        self.text = text


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

    def wrap(self, host: str, port: int, deadline: float) -> "Any":
        """A connected TLS socket. Raises UnavailableError or OSError."""
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
            raise UnavailableError(tls_sentence(f"Redis at {host}:{port}", exc, "ledger")) from exc
        except BaseException:
            plain.close()
            raise


class Connection:
    """One connection to one server. Every method raises UnavailableError when the deadline (monotonic) passes."""

    def __init__(self, host: str, port: int, deadline: float, tls: "Tls | None" = None) -> None:
        self.name = f"{host}:{port}"
        self._buffer = bytearray()
        self._socket: Any = None
        self._socket = self._guarded(lambda: tls.wrap(host, port, deadline) if tls else _connect(host, port, deadline))

    def exchange(self, commands: "Sequence[Sequence[str | bytes | int]]", deadline: float) -> "list[Any]":
        """Send commands at once, then read their replies: each is bytes, int, None, list or Problem."""
        replies: list[Any] = self._guarded(lambda: self._exchange(commands, deadline))
        return replies

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            self._socket.close()

    def _guarded(self, action: "Callable[[], Any]") -> "Any":
        try:
            return action()
        except TimeoutError as exc:
            raise UnavailableError(f"{self.name}: no answer in time") from exc
        except OSError as exc:
            raise UnavailableError(f"{self.name}: {exc.strerror or exc}") from exc
        except (ValueError, IndexError, RecursionError) as exc:
            raise UnavailableError(f"{self.name}: this is not an answer of a Redis server") from exc

    def _exchange(self, commands: "Sequence[Sequence[str | bytes | int]]", deadline: float) -> "list[Any]":
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(b"".join([_packed(command) for command in commands]))
        return [self._reply(deadline, 0) for _ in commands]

    def _reply(self, deadline: float, depth: int) -> "Any":
        line = self._line(deadline)
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            return Problem(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        length = int(rest)
        if length == -1 and kind in (b"$", b"*"):
            return None
        if kind == b"$" and 0 <= length <= BULK_BYTES_MAX:
            data = self._exactly(length + 2, deadline)
            return data[:-2]
        if kind == b"*" and 0 <= length <= ARRAY_LENGTH_MAX and depth < DEPTH_MAX:
            return [self._reply(deadline, depth + 1) for _ in range(length)]
        raise ValueError

    def _line(self, deadline: float) -> bytes:
        end = self._buffer.find(b"\r\n")
        while end < 0:
            if len(self._buffer) > LINE_BYTES_MAX:
                raise ValueError
            seen = max(0, len(self._buffer) - 1)
            self._read(deadline)
            end = self._buffer.find(b"\r\n", seen)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _exactly(self, count: int, deadline: float) -> bytes:
        while len(self._buffer) < count:
            self._read(deadline)
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _read(self, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        data = self._socket.recv(65536)
        if not data:
            raise OSError("the server closed the connection")
        self._buffer += data


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


def _packed(command: "Sequence[str | bytes | int]") -> bytes:
    parts = [f"*{len(command)}\r\n".encode()]
    for word in command:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts += (f"${len(data)}\r\n".encode(), data, b"\r\n")
    return b"".join(parts)
