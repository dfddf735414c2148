"""The client of the control socket: plain blocking sockets, so that a call starts fast."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from typing import Any, Self

from coordd.adapters.control_line import ANSWER_BYTES_MAX, SLOW_S, connect, result_of
from coordd.errors import RefusedError, RemoteProtocolError, UnavailableError

# A daemon accepts within milliseconds; if it takes longer, its queue of clients is full.
CONNECT_S = 5.0

# Timeout for a read: a few times the slowest answer of the ledger (ledger_timeout is 2 s).
ANSWER_S = 10.0

# Timeout for a change: longer, because after a timeout nobody knows whether the change took place. A log may come from
# another node. Before the longest waits the client pings, to see whether a daemon is there.
CHANGE_S = 30.0
PATIENCE_S = SLOW_S | {"run.logs": 30.0} | dict.fromkeys(
    (
        "alarm.clear", "breaker.isolate", "breaker.reset", "check.report", "config.publish", "config.rollback",
        "deadletter.discard", "deadletter.replay", "election.open", "job.activate", "job.backfill", "job.resume",
        "job.suspend", "ledger.accept-epoch", "ledger.accept-identity", "node.drain", "node.resume", "pool.set",
        "pool.unset", "publish", "run.cancel", "run.rerun", "run.resolve", "run.revoke", "run.trigger",
    ),
    CHANGE_S,
)  # fmt: skip
ASK_FIRST_S = 30.0

# A stream sends a sign of life every 15 s.
SILENCE_S = 50.0

# The daemon refuses a longer line; refusing it here is quicker than sending it.
LINE_BYTES_MAX = 1024 * 1024


class Client:
    """One connection to a daemon, made on demand and made again after a failure."""

    def __init__(self, path: str, timeout_s: float | None = None) -> None:
        """``timeout_s``: for every answer; None: it depends on the method."""
        self.path = path
        self.timeout_s = timeout_s
        self._sock: socket.socket | None = None
        self._buffer = bytearray()
        self._next_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, params: dict[str, Any] | None = None, *, timeout_s: float | None = None) -> Any:
        """Call a method and return its result. ``timeout_s`` counts only if the client was made without one.

        Raises:
            UnavailableError: no daemon is there, or it did not answer in time.
            RefusedError: it answered with an error; ``kind`` says which.
            RemoteProtocolError: the server at the socket is not coordd.
        """
        timeout_s = self.timeout_s or timeout_s or PATIENCE_S.get(method, ANSWER_S)
        if timeout_s > ASK_FIRST_S and self._sock is None:
            self.call("ping")  # so that a daemon that hangs does not cost the whole timeout
        self._next_id += 1
        ident = self._next_id
        try:
            self._send({"jsonrpc": "2.0", "id": ident, "method": method, "params": params or {}}, method)
            deadline = time.monotonic() + timeout_s
            while True:
                message = self._receive(deadline, f"{method} within {timeout_s:g} s")
                if message.get("id") == ident or (message.get("id") is None and "error" in message):
                    return result_of(message)
        except (UnavailableError, RemoteProtocolError):
            self.close()
            raise

    def stream(self, method: str, params: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """Subscribe, and yield messages until the daemon ends the stream. Raises as ``call`` does."""
        answer = self.call(method, params)
        if not is_subscription(answer):
            raise RemoteProtocolError(f"{method} was expected to answer with a subscription, found {answer!r:.200}")
        return self.messages(answer["subscription"])

    def messages(self, subscription: Any, *, silence_s: float = SILENCE_S) -> Iterator[dict[str, Any]]:
        """The messages of a subscription."""
        while True:
            message = self._receive(time.monotonic() + silence_s, f"its stream for {silence_s:g} s")
            params = message.get("params")
            if not isinstance(params, dict) or params.get("subscription") != subscription:
                continue
            if params.get("end"):
                return
            if "error" in params:
                raise UnavailableError(f"the stream was not finished: {params['error']}")
            yield params

    def fileno(self) -> int:
        """The descriptor for select(); -1 while there is no connection."""
        return -1 if self._sock is None else self._sock.fileno()

    def waiting(self) -> bool:
        """True when a whole message has been read already and can be taken."""
        return b"\n" in self._buffer

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        if self._sock is not None:
            self._sock.close()
        self._sock = None
        self._buffer.clear()

    def _send(self, message: dict[str, Any], method: str) -> None:
        line = json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise RefusedError(
                f"{method} would be {len(line)} bytes long; the daemon accepts at most {LINE_BYTES_MAX}",
                kind="too_large",
                hint="pass a path instead of data",
            )
        if self._sock is None:
            self._sock = self._connect()
        self._sock.settimeout(self.timeout_s or ANSWER_S)
        try:
            # MSG_NOSIGNAL: SIGPIPE must end this program only when the reader of its own output is gone.
            self._sock.sendall(line, socket.MSG_NOSIGNAL)
        except TimeoutError as exc:
            raise UnavailableError(f"the daemon at {self.path} accepts no request: {STUCK}") from exc
        except OSError as exc:
            if exc.errno not in (errno.EPIPE, errno.ECONNRESET):
                raise UnavailableError(f"the daemon at {self.path} cannot be reached: {exc.strerror or exc}") from exc
            # The daemon may have sent a reason before it closed: the next read gets it.

    def _receive(self, deadline: float, what: str) -> dict[str, Any]:
        assert self._sock is not None
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return _message(line, self.path)
            if len(self._buffer) > ANSWER_BYTES_MAX:
                raise RemoteProtocolError(f"the server at {self.path} sends no end of line: is it coordd?")
            self._sock.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                data = self._sock.recv(1024 * 1024)
            except TimeoutError as exc:
                raise UnavailableError(f"the daemon at {self.path} did not answer {what}: {STUCK}") from exc
            except ConnectionResetError:
                data = self._last_words()
            except OSError as exc:
                raise UnavailableError(self._closed()) from exc
            if not data:
                raise UnavailableError(self._closed())
            self._buffer += data

    def _last_words(self) -> bytes:
        """What the daemon sent before it closed. The reset comes first if the daemon did not read everything."""
        assert self._sock is not None
        try:
            return self._sock.recv(1024 * 1024)
        except OSError:
            return b""

    def _closed(self) -> str:
        return f"the daemon at {self.path} closed the connection: it is stopping or restarting; try again"

    def _connect(self) -> socket.socket:
        patience_s = min(CONNECT_S, self.timeout_s or CONNECT_S)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(patience_s)
        try:
            connect(sock, self.path, time.monotonic() + patience_s)
        except TimeoutError as exc:
            raise UnavailableError(f"the daemon at {self.path} accepts no connection: {STUCK}") from exc
        except OSError as exc:
            raise _not_connected(self.path, exc) from exc
        return sock


STUCK = "it may be stuck; read its log (`journalctl -u coordd`), and restart it if necessary"


def is_subscription(answer: Any) -> bool:
    """The answer of a method that streams."""
    return isinstance(answer, dict) and set(answer) == {"subscription"}


def not_running(exc: BaseException) -> bool:
    """True when the call failed because no daemon is there at all (and not because one is stuck)."""
    return isinstance(exc, UnavailableError) and isinstance(exc.__cause__, (FileNotFoundError, ConnectionRefusedError))


def _not_connected(path: str, exc: OSError) -> UnavailableError | RefusedError:
    if isinstance(exc, PermissionError):
        return RefusedError(
            f"{path} cannot be opened by uid {os.getuid()}",
            kind="not_permitted",
            hint=f"you need search permission on the directories above it: namei -l {path}",
        )
    reason = {errno.ENOENT: "there is no such socket", errno.ECONNREFUSED: "no process listens there"}
    return UnavailableError(
        f"no daemon answers at {path} ({reason.get(exc.errno or 0, exc.strerror or str(exc))}): start it with "
        "`systemctl start coordd` or `coordd run`, or name its socket with --socket or COORDD_SOCKET"
    )


def _message(line: bytes, path: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise RemoteProtocolError(f"the server at {path} does not send JSON: is it coordd? ({exc})") from exc
    if not isinstance(found, dict):
        raise RemoteProtocolError(f"the server at {path} was expected to send JSON objects, found {found!r:.80}")
    return found
