"""The control socket for Python programs: under asyncio and trio (through anyio), and blocking.

    async with client.connect() as coordd:                        with client.blocking() as coordd:
        run = await coordd.run_trigger("sales", id="day-7")           run = coordd.run_trigger("sales", id="day-7")
        async with coordd.stream("events.subscribe") as events:       for event in coordd.stream("events.subscribe"):
            async for event in events: ...                                ...

Each method of the socket is a method here, with ``_`` for ``.`` and ``-``. It returns the answer that docs/protocol.md
describes: a plain dict, whose type names the fields that programs may rely on. ``call`` calls any method by its name.

A call that fails raises one of three errors. UnavailableError: there is no daemon, or no answer in time; a change may
have been made. RefusedError: ``kind`` is a stable word, ``hint`` says what to do. RemoteProtocolError: the server is
not coordd.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

import anyio
import anyio.abc

from coordd.adapters import control_line
from coordd.adapters.control_line import ANSWER_BYTES_MAX, DEFAULT_SOCKET, ControlLine, refuse_empty, result_of
from coordd.answers import NodeView, Run, RunShown, Status, Triggered, Why
from coordd.errors import CoorddError, RefusedError, RemoteProtocolError, UnavailableError

__all__ = [
    "Blocking", "Connection", "NodeView", "Run", "RunShown", "Status", "Triggered", "Why", "blocking", "connect",
]  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")

# Timeout of a call: a few times the slowest answer of the ledger, and long enough for a change.
ANSWER_S = 30.0

SILENCE_S = 50.0  # a stream sends a sign of life every 15 s

# A stream's messages wait here while another task reads the connection. With more than this number the stream is cut.
WAITING_MAX = 10_000


class Method(Generic[P, T]):
    """One method of the socket: awaitable on a Connection, blocking on a Blocking."""

    def __init__(self, name: str, shape: Callable[Concatenate[Any, P], T]) -> None:
        self._name = name
        self._signature = inspect.signature(shape)
        given = self._signature.parameters.values()
        self._required = [one.name for one in given if one.default is inspect.Parameter.empty]
        self.__doc__ = shape.__doc__

    @overload
    def __get__(self, caller: Connection, kind: type) -> Callable[P, Awaitable[T]]: ...
    @overload
    def __get__(self, caller: Blocking, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, caller: None, kind: type) -> Self: ...
    def __get__(self, caller: Any, kind: type) -> Any:
        """Return a function, bound to this connection, that calls the method."""
        if caller is None:
            return self

        def ask(*args: Any, **params: Any) -> Any:
            given = self._signature.bind(None, *args, **params).arguments
            refuse_empty(self._name, given, self._required)
            named = {name.removesuffix("_"): value for name, value in list(given.items())[1:] if value is not None}
            return caller.call(self._name, **named)

        ask.__name__ = self._name
        ask.__doc__ = self.__doc__
        return ask


def _method(name: str) -> Callable[[Callable[Concatenate[Any, P], T]], Method[P, T]]:
    """The function gives the method its parameters and the type of its answer; its body is never executed."""
    return lambda shape: Method(name, shape)


class Methods:
    """The methods, for both kinds of connection. If an argument is None, the call does not send that parameter."""

    @_method("ping")
    def ping(self) -> dict[str, Any]:
        """The version, quickly."""
        raise NotImplementedError

    @_method("status")
    def status(self) -> Status:
        """This node."""
        raise NotImplementedError

    @_method("node.list")
    def node_list(self) -> list[NodeView]:
        """Every node that this one knows of."""
        raise NotImplementedError

    @_method("node.drain")
    def node_drain(
        self, node: str | None = None, until: float | str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Take no new runs. ``until``: it ends by itself then (Unix seconds, or an instantext)."""
        raise NotImplementedError

    @_method("node.resume")
    def node_resume(self, node: str | None = None) -> dict[str, Any]:
        """Take runs again."""
        raise NotImplementedError

    @_method("job.list")
    def job_list(self) -> list[dict[str, Any]]:
        """Every job file of this node."""
        raise NotImplementedError

    @_method("job.show")
    def job_show(self, job: str) -> dict[str, Any]:
        """One job."""
        raise NotImplementedError

    @_method("job.next")
    def job_next(self, job: str, count: int | None = None) -> list[dict[str, Any]]:
        """The next fire times."""
        raise NotImplementedError

    @_method("job.activate")
    def job_activate(self, job: str) -> dict[str, Any]:
        """This node's definition of the job counts from now on."""
        raise NotImplementedError

    @_method("job.suspend")
    def job_suspend(
        self,
        job: str | None = None,
        all: bool | None = None,  # noqa: A002 - the parameter's name on the wire
        until: float | str | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Grant no run of the job, or of any job (``all``), on any node. ``until`` as in ``node_drain``."""
        raise NotImplementedError

    @_method("job.resume")
    def job_resume(
        self,
        job: str | None = None,
        all: bool | None = None,  # noqa: A002 - the parameter's name on the wire
    ) -> dict[str, Any]:
        """Grant runs of the job again, or end the suspension of all jobs."""
        raise NotImplementedError

    @_method("pool.list")
    def pool_list(self) -> list[dict[str, Any]]:
        """Every pool: its size, the runs in it, and the runs that wait for it."""
        raise NotImplementedError

    @_method("pool.set")
    def pool_set(self, name: str, size: int, until: float | str | None = None) -> dict[str, Any]:
        """Give a pool another size in the whole cluster. ``until`` as in ``node_drain``."""
        raise NotImplementedError

    @_method("pool.unset")
    def pool_unset(self, name: str) -> dict[str, Any]:
        """The size in the configuration counts again."""
        raise NotImplementedError

    @_method("run.list")
    def run_list(
        self,
        job: str | None = None,
        state: str | None = None,
        node: str | None = None,
        since: float | None = None,
        limit: int | None = None,
    ) -> list[Run]:
        """Runs, newest first. ``since`` in Unix seconds."""
        raise NotImplementedError

    @_method("run.show")
    def run_show(self, id: str) -> RunShown:  # noqa: A002 - the parameter's name on the wire
        """One run, or the newest of a job."""
        raise NotImplementedError

    @_method("run.trigger")
    def run_trigger(
        self,
        job: str,
        args: Mapping[str, str] | None = None,
        id: str | None = None,  # noqa: A002 - the parameter's name on the wire
        dry_run: bool | None = None,
        node: str | None = None,
        note: str | None = None,
    ) -> Triggered:
        """Trigger a run; the same ``id`` twice, on any nodes, is one run. ``node``: only that one launches it."""
        raise NotImplementedError

    @_method("publish")
    def publish(
        self,
        to: str,
        body: Any,
        expires: str | None = None,
        id: str | None = None,  # noqa: A002 - the parameter's name on the wire
    ) -> Triggered:
        """Record a message for a `[publish.NAME]`. A text is sent as it is, everything else as JSON."""
        raise NotImplementedError

    @_method("message.list")
    def message_list(self) -> list[dict[str, Any]]:
        """Of each `[publish.NAME]`: what waits, what was given up, and which of its addresses fail."""
        raise NotImplementedError

    @_method("run.cancel")
    def run_cancel(self, id: str, note: str | None = None) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """End a running attempt."""
        raise NotImplementedError

    @_method("run.revoke")
    def run_revoke(
        self,
        id: str | None = None,  # noqa: A002 - the parameter's name on the wire
        job: str | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Forbid a run that has not started, or all such runs of a job."""
        raise NotImplementedError

    @_method("run.resolve")
    def run_resolve(self, id: str, as_: str) -> dict[str, Any]:  # noqa: A002 - the parameter's name on the wire
        """Settle an unknown run ``as_`` success, failed or relaunch."""
        raise NotImplementedError

    @_method("run.rerun")
    def run_rerun(
        self,
        id: str,  # noqa: A002 - the parameter's name on the wire
        with_children: bool | None = None,
        note: str | None = None,
    ) -> dict[str, Any]:
        """Run a run that has ended once more; ``with_children``: then the runs after it too."""
        raise NotImplementedError

    @_method("deadletter.list")
    def deadletter_list(self, job: str | None = None, limit: int | None = None) -> list[dict[str, Any]]:
        """Runs that were given up, newest first."""
        raise NotImplementedError

    @_method("deadletter.show")
    def deadletter_show(self, id: str) -> dict[str, Any]:  # noqa: A002 - the parameter's name on the wire
        """One of them, with everything that is known of its run."""
        raise NotImplementedError

    @_method("deadletter.replay")
    def deadletter_replay(self, id: str, with_children: bool | None = None) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """Make one more attempt of the run, once; ``with_children``: then the runs after it run once more too."""
        raise NotImplementedError

    @_method("deadletter.discard")
    def deadletter_discard(self, id: str, note: str) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """Nobody needs it."""
        raise NotImplementedError

    @_method("why")
    def why(self, id: str, without: str | None = None) -> Why:  # noqa: A002 - the parameter's name on the wire
        """Why a run, or a job, is as it is; and what would be without that node."""
        raise NotImplementedError

    @_method("election.list")
    def election_list(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Elections that this node took part in."""
        raise NotImplementedError

    @_method("trigger.list")
    def trigger_list(self, job: str | None = None) -> list[dict[str, Any]]:
        """The triggers of all jobs, or of one."""
        raise NotImplementedError

    @_method("trigger.show")
    def trigger_show(self, job: str, name: str | None = None) -> dict[str, Any]:
        """One trigger, with what waits for it."""
        raise NotImplementedError

    @_method("check.list")
    def check_list(self) -> list[dict[str, Any]]:
        """The checks of the cluster."""
        raise NotImplementedError

    @_method("check.show")
    def check_show(self, name: str) -> dict[str, Any]:
        """One check, as this node has it."""
        raise NotImplementedError

    @_method("check.run")
    def check_run(self, name: str) -> dict[str, Any]:
        """Look once, now."""
        raise NotImplementedError

    @_method("check.report")
    def check_report(
        self, name: str, state: str, until: float | str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Report a state, as an alert does."""
        raise NotImplementedError

    @_method("breaker.list")
    def breaker_list(self) -> list[dict[str, Any]]:
        """The breakers of this node's connections, and those of jobs."""
        raise NotImplementedError

    @_method("breaker.reset")
    def breaker_reset(self, name: str) -> dict[str, Any]:
        """Close the breaker."""
        raise NotImplementedError

    @_method("breaker.isolate")
    def breaker_isolate(self, name: str, until: float | str | None = None, note: str | None = None) -> dict[str, Any]:
        """Hold a job's breaker open."""
        raise NotImplementedError

    @_method("alarm.list")
    def alarm_list(self) -> list[dict[str, Any]]:
        """The alarms that nobody has cleared."""
        raise NotImplementedError

    @_method("alarm.clear")
    def alarm_clear(self, note: str, id: str | None = None) -> dict[str, Any]:  # noqa: A002 - as on the wire
        """Clear alarms after a person has looked at them."""
        raise NotImplementedError

    @_method("audit")
    def audit(self, since: float | None = None, limit: int | None = None) -> dict[str, Any]:
        """Privileged calls: the permitted and the refused ones."""
        raise NotImplementedError

    @_method("doctor")
    def doctor(self) -> list[dict[str, str]]:
        """Checks of this node."""
        raise NotImplementedError

    @_method("reload")
    def reload(self, no_jobs: bool | None = None) -> dict[str, Any]:
        """Read the configuration and the job files again. ``no_jobs``: all jobs go, where no job file is left."""
        raise NotImplementedError

    @_method("ledger.status")
    def ledger_status(self) -> dict[str, Any]:
        """The place of the ledger, and its state."""
        raise NotImplementedError


def socket_path(path: str | os.PathLike[str] | None) -> str:
    """Return the given path; without one COORDD_SOCKET; without that the default path."""
    return os.fspath(path) if path is not None else os.environ.get("COORDD_SOCKET") or DEFAULT_SOCKET


class Blocking(Methods):
    """A connection for one thread. It connects on the first call, and connects again after a failure."""

    def __init__(self, path: str, timeout_s: float) -> None:
        self._line = ControlLine(path, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, /, **params: Any) -> Any:
        """Call any method by its name."""
        return self._line.call(method, params)

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


def blocking(path: str | os.PathLike[str] | None = None, *, timeout_s: float = ANSWER_S) -> Blocking:
    """A blocking client; it connects with its first call."""
    return Blocking(socket_path(path), timeout_s)


class Connection(Methods):
    """One connection for any number of tasks, of which one reads for all. The next call connects again if it has ended
    and nothing else is under way.
    """

    def __init__(self, path: str, stream: anyio.abc.ByteStream, timeout_s: float) -> None:
        self._path = path
        self._stream = stream
        self._timeout_s = timeout_s
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
        self._next_id += 1
        ident = self._next_id
        line = json.dumps({"id": ident, "method": method, "params": params}, allow_nan=False).encode() + b"\n"
        try:
            with anyio.fail_after(self._timeout_s):
                await self._send(ident, line)
                while self._answers[ident] is None:
                    await self._read_until(lambda: self._answers[ident] is not None)
            return result_of(self._answers[ident] or {})
        except TimeoutError as exc:
            raise UnavailableError(f"the daemon at {self._path} did not answer {method} in time") from exc
        finally:
            self._answers.pop(ident, None)

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
            answer = message.get("result")
            if isinstance(answer, dict) and set(answer) == {"subscription"}:  # its messages may follow immediately
                self._streams.setdefault(answer["subscription"], deque())
        elif ident is None and "error" in message:
            raise UnavailableError(f"the daemon at {self._path} refuses the connection: {message['error']!r:.200}")
        elif isinstance(told, dict) and told.get("subscription") in self._streams:
            waiting = self._streams[told["subscription"]]
            if len(waiting) >= WAITING_MAX:
                raise UnavailableError(f"{WAITING_MAX} messages of a stream wait for their reader")
            waiting.append(told)


@contextlib.asynccontextmanager
async def connect(
    path: str | os.PathLike[str] | None = None, *, timeout_s: float = ANSWER_S
) -> AsyncIterator[Connection]:
    """Open a connection under asyncio or trio. Raises UnavailableError if no daemon answers at the socket."""
    where = socket_path(path)
    connection = Connection(where, await _connected(where, timeout_s), timeout_s)
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


def _item(told: dict[str, Any]) -> dict[str, Any]:
    """Return a message of a stream without its subscription number."""
    if "error" in told:
        raise UnavailableError(f"the stream was not finished: {told['error']}")
    return {name: value for name, value in told.items() if name != "subscription"}
