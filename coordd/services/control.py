"""The control socket: one JSON object a line, the caller's role from the kernel."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import socket
import stat
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple

import structlog
import trio

from coordd.errors import ConfigError, CoorddError, JobFileError, RefusedError, UnavailableError
from coordd.services.rpc import (
    INTERNAL_ERROR,
    LINE_BYTES_MAX,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REFUSED,
    Call,
    RpcError,
    error_line,
    notification_line,
    parse,
    refused,
    result_line,
)  # fmt: skip

log = structlog.get_logger("control")

# Clients at a time. Anybody on the machine may connect, so some places are kept for those who run the daemon.
CONNECTIONS_MAX = 256
CONNECTIONS_KEPT = 16

# Questions of one client that are being worked on, and streams that it listens to beside them.
IN_FLIGHT_MAX = 16
STREAMS_MAX = 8

# A client that says nothing and asks for no stream is let go after this.
IDLE_S = 600.0

# An answer that a client does not take within this time is dropped, and the client with it.
SEND_S = 10.0

# The names of a client's groups may have to come from a directory server: so long, and so many at a time.
NAMES_S = 5.0
LOOKUPS_MAX = 4

# How long a daemon that may own the socket already is waited for.
PROBE_S = 2.0

SO_PEERGROUPS = 59

# As much as Python's getsockopt takes: 256 groups.
GROUPS_BYTES = 1024

# Roles, each with everything below it.
ADMIN = 3
OPERATOR = 2
OWNER = 1  # of one job only: the method looks which
VIEWER = 0
NOBODY = -1  # viewer_group is set, and the caller is not in it


class Caller(NamedTuple):
    """Who asks, as the kernel says."""

    uid: int
    groups: frozenset[str]
    role: int
    pid: int
    name: str


class Method(NamedTuple):
    """A method: what it does and the least role that may."""

    call: Callable[[dict[str, Any], Caller], Awaitable[Any]]
    role: int = VIEWER


# A stream's messages; the method returns one instead of a result.
Stream = AsyncGenerator[dict[str, Any], None]


class ControlServer:
    """Serves ``methods`` on a unix socket."""

    def __init__(
        self, path: str, methods: dict[str, Method], *, operator_group: str, viewer_group: str,
        unavailable: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.path = path
        self.methods = methods
        self.unavailable = unavailable
        self._operator_group = operator_group
        self._viewer_group = viewer_group
        self._connections = 0
        self._lookups = trio.CapacityLimiter(LOOKUPS_MAX)
        self.served = 0

    def bind(self) -> trio.SocketListener:
        """Bind the socket, mode 0666: roles come from the kernel, not from file modes.

        Raises UnavailableError when the path cannot be bound, with what to do.
        """
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            self._remove_stale()
            raw.bind(self.path)
            os.chmod(self.path, 0o666)  # noqa: S103 - roles come from the kernel
            raw.listen(CONNECTIONS_MAX)  # a full queue would fail clients that connect with a timeout at once
        except OSError as exc:
            raw.close()
            raise UnavailableError(
                f"the control socket {self.path} cannot be bound: {exc.strerror or exc}; "
                "is another coordd running with it, and may this user write its directory?"
            ) from exc
        return trio.SocketListener(trio.socket.from_stdlib_socket(raw))

    def _remove_stale(self) -> None:
        """Make way for our socket; anything but a socket that nobody listens at is left alone."""
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise OSError(errno.EEXIST, "something else than a socket has that name")
        except FileNotFoundError:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(PROBE_S)
            try:
                probe.connect(self.path)
            except ConnectionRefusedError:
                os.unlink(self.path)
                return
            except BlockingIOError:
                pass  # its queue of clients is full: somebody is there
        raise OSError(errno.EADDRINUSE, "another daemon answers on it")

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve for ever."""
        async with trio.open_nursery() as nursery:
            await trio.serve_listeners(self._connected, [listener], handler_nursery=nursery)

    async def _connected(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                caller = await self._caller(stream)
                kept = 0 if caller.role == ADMIN else CONNECTIONS_KEPT
                if self._connections > CONNECTIONS_MAX - kept:
                    busy = RpcError(
                        REFUSED, f"{CONNECTIONS_MAX - kept} clients are connected already", kind="try_later",
                        hint="close some of them, or wait a little",
                    )  # fmt: skip
                    await self._send(stream, error_line(None, busy))
                    return
                await Connection(self, stream, caller).run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("client.gone")
        except Exception:
            # The boundary: a bug in one method must not end the daemon; it is logged with its traceback.
            log.exception("client.failed")
        finally:
            self._connections -= 1

    async def _send(self, stream: trio.SocketStream, data: bytes) -> None:
        with trio.move_on_after(SEND_S) as scope:
            await stream.send_all(data)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the client does not read its answers")

    async def _caller(self, stream: trio.SocketStream) -> Caller:
        sock = stream.socket
        pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid in (0, os.getuid()):
            # They may do everything, so nobody need be asked who they are: our own watchdog asks in this way,
            # and must be answered also while the site's directory of users is down.
            return Caller(uid, frozenset(), ADMIN, pid, "root" if uid == 0 else _user_name(uid))
        gids = {gid}
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES)
            gids.update(struct.unpack(f"{len(raw) // 4}I", raw))
        except OSError as exc:  # an old kernel, or more groups than fit: the primary one is all that is known
            log.warning("client.groups_unknown", uid=uid, reason=exc.strerror)
        name, groups = f"uid {uid}", frozenset[str]()
        with trio.move_on_after(NAMES_S) as scope:
            name, groups = await trio.to_thread.run_sync(
                _names, uid, gids, abandon_on_cancel=True, limiter=self._lookups
            )
        if scope.cancelled_caught:
            log.warning("client.groups_unknown", uid=uid, reason=f"no answer from the users' directory in {NAMES_S} s")
        if self._operator_group in groups:
            role = OPERATOR
        elif self._viewer_group and self._viewer_group not in groups:
            role = NOBODY
        else:
            role = VIEWER
        return Caller(uid, groups, role, pid, name)


def _names(uid: int, gids: set[int]) -> tuple[str, frozenset[str]]:
    return _user_name(uid), frozenset(name for name in map(_group_name, gids) if name)


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return ""


class Connection:
    """One client."""

    def __init__(self, server: ControlServer, stream: trio.SocketStream, caller: Caller) -> None:
        self._server = server
        self._stream = stream
        self._caller = caller
        self._sending = trio.Lock()
        self._in_flight = trio.Semaphore(IN_FLIGHT_MAX, max_value=IN_FLIGHT_MAX)
        self._streams = 0
        self._last_subscription = 0
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Read lines, answer each; the order of answers is that of their completion."""
        with self._scope:
            async with trio.open_nursery() as nursery, contextlib.aclosing(self._lines()) as lines:
                async for line in lines:
                    await self._in_flight.acquire()
                    nursery.start_soon(self._answer, line)
                # What is still being answered, and streams (a client may close its sending half and listen on), end
                # the nursery by themselves: a stream speaks every few seconds, so a client that is gone is noticed.

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        buffer = bytearray()
        while True:
            end = buffer.find(b"\n")
            if (len(buffer) if end < 0 else end) > LINE_BYTES_MAX:  # however it has come: whole, or piece by piece
                too_large = RpcError(PARSE_ERROR, f"a line of more than {LINE_BYTES_MAX} bytes", kind="too_large")
                await self._say(error_line(None, too_large))
                return
            if end >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                if line.strip():
                    yield line
                continue
            data = await self._read()
            if not data:
                if buffer.strip():  # a last line without its end: `printf` instead of `echo`
                    yield bytes(buffer)
                return
            buffer += data

    async def _read(self) -> bytes:
        while True:
            with trio.move_on_after(IDLE_S):
                try:
                    return bytes(await self._stream.receive_some(65536))
                except trio.BrokenResourceError:
                    self._scope.cancel()  # reset: nobody is left to answer
                    return b""
            if not self._streams:
                return b""

    async def _say(self, data: bytes) -> None:
        """Send one line. A client that does not take it is let go: what it has of the line cannot be taken back."""
        try:
            async with self._sending:
                await self._server._send(self._stream, data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("client.gone", uid=self._caller.uid)
            self._scope.cancel()
            await trio.lowlevel.checkpoint()

    async def _answer(self, line: bytes) -> None:
        stream = None
        try:
            stream = await self._send_answer(line)
        finally:
            self._in_flight.release()
        if stream is not None:
            await self._stream_out(*stream)

    async def _send_answer(self, line: bytes) -> tuple[Call, Stream] | None:
        """Answer one line; a stream is returned, to be sent without holding up other questions."""
        try:
            call = parse(line)
        except RpcError as exc:
            await self._say(error_line(exc.ident, exc))
            return None
        try:
            result = await self._perform(call)
            if isinstance(result, AsyncGenerator):
                if self._streams < STREAMS_MAX:
                    self._streams += 1
                    return call, result
                await result.aclose()
                raise RpcError(REFUSED, f"{STREAMS_MAX} streams are open already on this connection", kind="try_later")
            answer = result_line(call.id, result)
        except RpcError as exc:
            answer = error_line(call.id, exc)
        except RefusedError as exc:
            answer = error_line(call.id, refused(exc))
        except JobFileError as exc:
            answer = error_line(call.id, RpcError(REFUSED, str(exc), kind="bad_job"))
        except ConfigError as exc:
            answer = error_line(call.id, RpcError(REFUSED, str(exc), kind="bad_config"))
        except UnavailableError as exc:
            answer = error_line(call.id, RpcError(REFUSED, str(exc), kind="unavailable"))
        except CoorddError as exc:
            answer = error_line(call.id, RpcError(REFUSED, str(exc), kind="failed"))
        except Exception as exc:
            # The boundary of one question: our bug, said so to the caller and in full to the log.
            log.exception("method.failed", method=call.method)
            answer = error_line(call.id, RpcError(INTERNAL_ERROR, f"a bug in coordd: {exc!r}", kind="internal"))
        if not call.notification:
            await self._say(answer)
        return None

    async def _perform(self, call: Call) -> Any:
        server = self._server
        method = server.methods.get(call.method)
        if method is None:
            if call.method in server.unavailable:
                raise RpcError(REFUSED, f"{call.method}: not available in this version", kind="not_available")
            raise RpcError(
                METHOD_NOT_FOUND, f"no method {call.method!r}", kind="unknown_method",
                hint="known: " + ", ".join(sorted(server.methods)),
            )  # fmt: skip
        if self._caller.role < method.role:
            needs = {
                ADMIN: "root or the daemon's user", OPERATOR: f"the group {server._operator_group}",
            }.get(method.role, f"the group {server._viewer_group}")  # fmt: skip
            raise RefusedError(
                f"{self._caller.name} may not call {call.method}", kind="not_permitted", hint=f"it takes {needs}"
            )
        server.served += 1
        return await method.call(call.params, self._caller)

    async def _stream_out(self, call: Call, stream: Stream) -> None:
        self._last_subscription += 1
        subscription = self._last_subscription
        try:
            async with contextlib.aclosing(stream):
                if not call.notification:
                    await self._say(result_line(call.id, {"subscription": subscription}))
                async for item in stream:
                    await self._say(notification_line(call.method, {"subscription": subscription, **item}))
                await self._say(notification_line(call.method, {"subscription": subscription, "end": True}))
        finally:
            self._streams -= 1
