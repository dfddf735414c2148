"""A connection to the control socket for programs whose start counts: one line out, one line back.

It blocks, and imports almost nothing (``_socket`` instead of socket, no json). coordd.client is made of it too.
"""

import _socket
import os
import time

from coordd.adapters.lean_json import decode, encode
from coordd.errors import RefusedError, RemoteProtocolError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any

DEFAULT_SOCKET = "/run/coordd/coordd.sock"

# 10,000 runs are about 5 MiB; a larger answer does not come from coordd.
ANSWER_BYTES_MAX = 64 * 1024 * 1024

# A daemon whose queue of clients is full is asked again after this time (seconds).
CONNECT_AGAIN_S = 0.02

# Methods that take long (seconds), for every client: a doctor reads a whole ledger file, a check may look for 300 s,
# and all cluster managers together have 120 s.
SLOW_S = {"doctor": 70.0, "reload": 60.0, "check.run": 310.0, "orphans": 140.0}

# The caller's own mistakes: not a request, no such method, invalid parameters.
USAGE_CODES = (-32600, -32601, -32602)

# Here an empty text is what it says: no note, an empty message.
MAY_BE_EMPTY = ("note", "body")

# What the sentence about an empty text calls the text.
EXPECTED = {"id": "an id", "node": "a node", "job": "a job"}


class ControlLine:
    """One connection, made on demand and made again after a failure. For one thread at a time."""

    def __init__(self, path: str, timeout_s: float) -> None:
        """``timeout_s``: for the connection and for each answer."""
        self.path = path
        self.timeout_s = timeout_s
        self._sock: _socket.socket | None = None
        self._buffer = b""
        self._next_id = 0

    def call(self, method: str, params: "dict[str, Any]") -> "Any":
        """Call a method; returns its result.

        Raises:
            UnavailableError: no daemon is there, or it did not answer in time.
            RefusedError: it answered with an error; ``kind`` says which.
            RemoteProtocolError: the server at the socket is not coordd.
        """
        self.send(method, params)
        return self.receive()

    def send(self, method: str, params: "dict[str, Any]") -> None:
        """The first half of a call: the caller may do something else while the daemon works. Raises as ``call``."""
        self._next_id += 1
        line = encode({"id": self._next_id, "method": method, "params": params}).encode() + b"\n"
        deadline = time.monotonic() + self.timeout_s
        if self._sock is not None and has_ended(self._sock):
            self.close()
        if self._sock is None:
            self._sock = self._connect(deadline)
        try:
            self._sock.settimeout(self.timeout_s)
            self._sock.sendall(line, _socket.MSG_NOSIGNAL)
        except OSError as exc:
            self.close()
            raise UnavailableError(f"the daemon at {self.path} takes no request: {exc.strerror or exc}") from exc

    def receive(self) -> "Any":
        """The second half of a call: its result. Raises as ``call``."""
        deadline = time.monotonic() + self.timeout_s
        try:
            while True:
                message = self.message(deadline)
                if message.get("id") == self._next_id or (message.get("id") is None and "error" in message):
                    return result_of(message)
        except (UnavailableError, RemoteProtocolError):
            self.close()
            raise

    def message(self, deadline: float) -> "dict[str, Any]":
        """The next line. ``deadline`` on time.monotonic(). Raises as ``call``, except RefusedError."""
        if self._sock is None:
            raise UnavailableError(f"there is no connection to {self.path}")
        while b"\n" not in self._buffer:
            if len(self._buffer) > ANSWER_BYTES_MAX:
                raise RemoteProtocolError(f"the server at {self.path} sends no end of line: is it coordd?")
            try:
                self._sock.settimeout(max(0.001, deadline - time.monotonic()))
                data = self._sock.recv(1024 * 1024)
            except TimeoutError as exc:
                raise UnavailableError(f"the daemon at {self.path} did not answer in time") from exc
            except OSError as exc:
                raise UnavailableError(f"the daemon at {self.path} closed the connection") from exc
            if not data:
                raise UnavailableError(f"the daemon at {self.path} closed the connection")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            found = decode(line.decode())
        except ValueError as exc:
            raise RemoteProtocolError(f"the server at {self.path} does not send JSON: is it coordd? ({exc})") from exc
        if not isinstance(found, dict):
            raise RemoteProtocolError(f"the server at {self.path} was expected to send JSON objects: is it coordd?")
        return found

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self._buffer = b""

    def _connect(self, deadline: float) -> _socket.socket:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
        sock.settimeout(self.timeout_s)
        try:
            connect(sock, self.path, deadline)
        except TimeoutError as exc:
            raise UnavailableError(f"the daemon at {self.path} accepts no connection") from exc
        except PermissionError as exc:
            message = f"{self.path} cannot be opened by uid {os.getuid()}"
            raise RefusedError(message, kind="not_permitted") from exc
        except OSError as exc:
            why = exc.strerror or str(exc)
            raise UnavailableError(
                f"no daemon answers at {self.path} ({why}): start it with `systemctl start coordd`, or name its "
                "socket with --socket or COORDD_SOCKET"
            ) from exc
        return sock


def connect(sock: _socket.socket, path: str, deadline: float) -> None:
    """Connect to a daemon, even if its queue of clients is full for a while. ``deadline``: of CLOCK_MONOTONIC.

    Raises TimeoutError at the deadline, or the connection's OSError; the socket is closed then.
    """
    while True:
        try:
            sock.connect(path)
        except BlockingIOError as exc:  # the queue is full; the timeout of a socket does not wait for that
            if time.monotonic() > deadline:
                sock.close()
                raise TimeoutError("the queue of clients is full") from exc
            time.sleep(CONNECT_AGAIN_S)
        except OSError:
            sock.close()
            raise
        else:
            return


def has_ended(sock: _socket.socket) -> bool:
    """True if the daemon has closed the connection, as it does with idle ones: a request would be lost. Takes the
    timeout of the socket away.
    """
    try:
        sock.settimeout(0)
        return not sock.recv(1, _socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


def result_of(message: "dict[str, Any]") -> "Any":
    """The result in an answer. Raises RefusedError if it is an error."""
    error = message.get("error")
    if error is None:
        return message.get("result")
    if not isinstance(error, dict):
        raise RemoteProtocolError(f"an error was expected to be an object, found {error!r:.80}")
    data = error.get("data")
    data = data if isinstance(data, dict) else {}
    kind = str(data.get("kind", "failed"))
    if error.get("code") in USAGE_CODES and kind != "not_available":
        kind = "invalid_params"
    raise RefusedError(str(error.get("message", "refused")), kind=kind, hint=str(data.get("hint", "")))


def subscription_of(method: str, answer: "Any") -> "Any":
    """The number of a stream, in the answer of its method."""
    if not isinstance(answer, dict) or set(answer) != {"subscription"}:
        raise RemoteProtocolError(f"{method} is not a stream: it answered {answer!r:.200}")
    return answer["subscription"]


def refuse_empty(method: str, given: "Mapping[str, Any]", required: "Collection[str]") -> None:
    """An empty text is a variable without a value. A daemon takes it for one that is missing, and would do something
    else: a random id, any node, all jobs. Raises RefusedError.
    """
    for name, value in given.items():
        if value == "" and name not in MAY_BE_EMPTY:
            how = "give one" if name in required else "leave it out, or give None, if none is meant"
            what = EXPECTED.get(name, "a text")
            said = f'{method}: {name.removesuffix("_")}: expected {what}, found ""; {how}'
            raise RefusedError(said, kind="invalid_params")
