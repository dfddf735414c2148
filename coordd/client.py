"""The control socket for Python programs: under asyncio and trio (through anyio), and blocking.

    async with client.connect() as coordd:                        with client.blocking() as coordd:
        run = await coordd.run_trigger("sales", id="day-7")           run = coordd.run_trigger("sales", id="day-7")
        async with coordd.stream("events.subscribe") as events:       for event in coordd.stream("events.subscribe"):
            async for event in events: ...                                ...

Each method of the socket is a method here, with ``_`` for ``.`` and ``-``, and ``from_`` and ``as_`` for words of
Python. It returns the answer that docs/protocol.md describes: a plain dict, whose type names the fields that programs
may rely on. Streams (``events.subscribe``, ``run.logs`` with follow, ``ledger.export``) go by ``stream``; ``call``
calls any method by its name, also those that only runners need and ``ledger.import``.

A call that fails raises one of three errors. UnavailableError: there is no daemon, or no answer in time; a change may
have been made. RefusedError: ``kind`` is a stable word, ``hint`` says what to do. RemoteProtocolError: the server is
not coordd.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, Self

import anyio
import anyio.abc

from coordd.adapters import control_line
from coordd.adapters.control_line import ANSWER_BYTES_MAX, DEFAULT_SOCKET, SLOW_S, ControlLine, result_of
from coordd.answers import FireTime, NodeView, Run, RunLog, RunShown, Status, Triggered, Why
from coordd.calls import Awaits, Blocks, Method, Methods
from coordd.errors import CoorddError, RefusedError, RemoteProtocolError, UnavailableError

__all__ = [
    "Blocking", "Connection", "FireTime", "Method", "Methods", "NodeView", "Run", "RunLog", "RunShown", "Status",
    "Triggered", "Why", "blocking", "connect",
]  # fmt: skip

# Timeout of a call: a few times the slowest answer of the ledger, and long enough for a change. Slow methods have more.
ANSWER_S = 30.0

SILENCE_S = 50.0  # a stream sends a sign of life every 15 s

# A stream's messages wait here while another task reads the connection. With more than this number the stream is cut.
WAITING_MAX = 10_000


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """Return the given path; without one COORDD_SOCKET; without that the default path."""
    return os.fspath(path) if path is not None else os.environ.get("COORDD_SOCKET") or DEFAULT_SOCKET


class Blocking(Methods, Blocks):
    """A connection for one thread. It connects on the first call, and connects again after a failure."""

    def __init__(self, path: str, timeout_s: float | None = None) -> None:
        """``timeout_s``: for every call; None: it depends on the method."""
        self._timeout_s = timeout_s
        self._line = ControlLine(path, timeout_s or ANSWER_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, /, **params: Any) -> Any:
        """Call any method by its name."""
        slow_s = SLOW_S.get(method) if self._timeout_s is None else None
        if slow_s is None:
            return self._line.call(method, params)
        usual_s = self._line.timeout_s
        self._line.call("ping", {})  # so that a daemon that hangs does not cost the whole timeout
        self._line.timeout_s = slow_s
        try:
            return self._line.call(method, params)
        finally:
            self._line.timeout_s = usual_s

    def stream(self, method: str, /, **params: Any) -> Iterator[dict[str, Any]]:
        """Yield the messages of a stream until the daemon ends it. The connection serves no other call meanwhile."""
        subscription = control_line.subscription_of(method, self.call(method, **params))
        while True:
            message = self._line.message(time.monotonic() + SILENCE_S)
            told = message.get("params")
            if not isinstance(told, dict) or told.get("subscription") != subscription:
                continue
            if told.get("end"):
                return
            yield _item(told)

    def close(self) -> None:
        """Close the connection."""
        self._line.close()


def blocking(path: str | os.PathLike[str] | None = None, *, timeout_s: float | None = None) -> Blocking:
    """A blocking client; it connects with its first call. ``timeout_s``: for every call; None: by the method."""
    return Blocking(socket_path(path), timeout_s)


class Connection(Methods, Awaits):
    """One connection for any number of tasks, of which one reads for all. The next call connects again if it has ended
    and nothing else is under way.
    """

    def __init__(self, path: str, stream: anyio.abc.ByteStream, timeout_s: float | None = None) -> None:
        """``timeout_s``: for every call; None: it depends on the method."""
        self._path = path
        self._stream = stream
        self._given_s = timeout_s
        self._timeout_s = timeout_s or ANSWER_S
        self._sending = anyio.Lock()
        self._reading = anyio.Lock()
        self._buffer = bytearray()
        self._next_id = 0
        self._answers: dict[int, dict[str, Any] | None] = {}  # id -> the answer, None while a task waits for it
        self._streams: dict[Any, deque[dict[str, Any]]] = {}
        self._lost = ""  # why the connection cannot be used any more

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()

    async def call(self, method: str, /, **params: Any) -> Any:
        """Call any method by its name."""
        slow_s = SLOW_S.get(method) if self._given_s is None else None
        if slow_s is not None:
            await self.call("ping")  # so that a daemon that hangs does not cost the whole timeout
        self._next_id += 1
        ident = self._next_id
        line = json.dumps({"id": ident, "method": method, "params": params}, allow_nan=False).encode() + b"\n"
        try:
            with anyio.fail_after(slow_s or self._timeout_s):
                await self._send(ident, line)
                while self._answers[ident] is None:
                    await self._read_until(lambda: self._answers[ident] is not None)
        except TimeoutError as exc:
            self._give_up(ident)
            raise UnavailableError(f"the daemon at {self._path} did not answer {method} in time") from exc
        except BaseException:
            self._give_up(ident)
            raise
        return result_of(self._answers.pop(ident) or {})

    def _give_up(self, ident: int) -> None:
        """Nobody waits for this answer. If it is there already and is a stream's, nobody reads the stream."""
        if (number := _subscription(self._answers.pop(ident, None) or {})) is not None:
            self._streams.pop(number, None)

    @contextlib.asynccontextmanager
    async def stream(self, method: str, /, **params: Any) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """A stream: an async iterator over its messages. After the block the connection drops the stream's messages;
        the daemon sends them until the connection is closed.
        """
        subscription = control_line.subscription_of(method, await self.call(method, **params))
        waiting = self._streams.setdefault(subscription, deque())
        try:
            async with contextlib.aclosing(self._messages(waiting)) as messages:
                yield messages
        finally:
            del self._streams[subscription]

    async def _messages(self, waiting: deque[dict[str, Any]]) -> AsyncGenerator[dict[str, Any], None]:
        while True:
            while not waiting:
                try:
                    with anyio.fail_after(SILENCE_S):
                        await self._read_until(lambda: bool(waiting))
                except TimeoutError as exc:
                    raise UnavailableError(f"the stream of {self._path} is silent for {SILENCE_S:g} s") from exc
            told = waiting.popleft()
            if told.get("end"):
                return
            yield _item(told)

    async def _send(self, ident: int, line: bytes) -> None:
        async with self._sending:
            if not self._answers and not self._streams:  # nothing is under way
                await self._connect_again()
            if self._lost:
                raise UnavailableError(self._lost)
            self._answers[ident] = None
            try:
                with anyio.fail_after(self._timeout_s, shield=True):  # half a line would be the end for all
                    await self._stream.send(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as exc:  # TimeoutError is an OSError
                self._lost = f"the daemon at {self._path} takes no request: {str(exc) or type(exc).__name__}"
                raise UnavailableError(self._lost) from exc

    async def _connect_again(self) -> None:
        """Replace a connection that has ended: the daemon closes idle ones."""
        raw = self._stream.extra(anyio.abc.SocketAttribute.raw_socket)  # noqa: S610  # not Django's
        if self._lost or control_line.has_ended(raw):
            await self._stream.aclose()
            self._stream = await _connected(self._path, self._timeout_s)
            self._buffer.clear()
            self._lost = ""

    async def _read_until(self, found: Callable[[], bool]) -> None:
        """Read one message for any waiting task, unless another task has read it meanwhile."""
        async with self._reading:
            if found():
                return
            if self._lost:
                raise UnavailableError(self._lost)
            try:
                await self._read()
            except CoorddError as exc:
                self._lost = str(exc)
                raise

    async def _read(self) -> None:
        while b"\n" not in self._buffer:
            if len(self._buffer) > ANSWER_BYTES_MAX:
                raise RemoteProtocolError(f"the server at {self._path} sends no end of line: is it coordd?")
            try:
                self._buffer += await self._stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as exc:
                raise UnavailableError(f"the daemon at {self._path} closed the connection") from exc
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        try:
            message = json.loads(line)
        except ValueError as exc:
            raise RemoteProtocolError(f"the server at {self._path} does not send JSON: is it coordd?") from exc
        if not isinstance(message, dict):
            raise RemoteProtocolError(f"the server at {self._path} was expected to send JSON objects: is it coordd?")
        self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        ident, told = message.get("id"), message.get("params")
        if ident in self._answers:
            self._answers[ident] = message
            if (number := _subscription(message)) is not None:  # its messages may follow immediately
                self._streams.setdefault(number, deque())
        elif ident is None and "error" in message:
            raise UnavailableError(f"the daemon at {self._path} refuses the connection: {message['error']!r:.200}")
        elif isinstance(told, dict) and told.get("subscription") in self._streams:
            waiting = self._streams[told["subscription"]]
            if len(waiting) >= WAITING_MAX:
                raise UnavailableError(f"{WAITING_MAX} messages of a stream wait for their reader")
            waiting.append(told)


@contextlib.asynccontextmanager
async def connect(
    path: str | os.PathLike[str] | None = None, *, timeout_s: float | None = None
) -> AsyncIterator[Connection]:
    """Open a connection under asyncio or trio. ``timeout_s``: for every call; None: by the method.

    Raises UnavailableError if no daemon answers at the socket.
    """
    where = socket_path(path)
    connection = Connection(where, await _connected(where, timeout_s or ANSWER_S), timeout_s)
    try:
        yield connection
    finally:
        await connection.aclose()


async def _connected(where: str, timeout_s: float) -> anyio.abc.SocketStream:
    try:
        with anyio.fail_after(timeout_s):
            return await anyio.connect_unix(where)
    except PermissionError as exc:
        raise RefusedError(f"{where} cannot be opened by uid {os.getuid()}", kind="not_permitted") from exc
    except (OSError, TimeoutError) as exc:
        raise UnavailableError(f"no daemon answers at {where}: {exc}") from exc


def _subscription(message: dict[str, Any]) -> Any:
    """The number of the stream that an answer has opened; None: it has opened none."""
    answer = message.get("result")
    return answer["subscription"] if isinstance(answer, dict) and set(answer) == {"subscription"} else None


def _item(told: dict[str, Any]) -> dict[str, Any]:
    """Return a message of a stream without its subscription number."""
    if "error" in told:
        raise UnavailableError(f"the stream was not finished: {told['error']}")
    return {name: value for name, value in told.items() if name != "subscription"}
