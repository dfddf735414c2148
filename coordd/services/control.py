"""The control socket: one JSON object a line, the caller's role from the kernel."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

import structlog
import trio

from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.services.rpc import (
    INTERNAL_ERROR, LINE_BYTES_MAX, METHOD_NOT_FOUND, PARSE_ERROR, REFUSED, Call, RpcError, error_line,
    notification_line, parse, refused, result_line,
)  # fmt: skip

log = structlog.get_logger("control")

# Clients at a time, and questions of one that are being worked on.
CONNECTIONS_MAX = 128
IN_FLIGHT_MAX = 16

# A client that says nothing and asks for no stream is let go after this.
IDLE_S = 600.0

# An answer that a client does not take within this time is dropped, and the client with it.
SEND_S = 10.0

SO_PEERGROUPS = 59

# Roles, each with everything below it.
ADMIN = 3
OPERATOR = 2
OWNER = 1  # of one job only: the method looks which
VIEWER = 0


class Caller(NamedTuple):
    """Who asks, as the kernel says."""

    uid: int
    groups: frozenset[str]
    role: int
    pid: int

    @property
    def name(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"


class Method(NamedTuple):
    """A method: what it does and the least role that may."""

    call: Callable[[dict[str, Any], Caller], Awaitable[Any]]
    role: int = VIEWER


# A stream's messages; the method returns one instead of a result.
Stream = AsyncIterator[dict[str, Any]]


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
        self.served = 0

    def bind(self) -> trio.SocketListener:
        """Bind the socket, mode 0666: roles come from the kernel, not from file modes.

        Raises UnavailableError when the path cannot be bound, with what to do.
        """
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            self._remove_stale()
            raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            raw.setblocking(False)  # noqa: FBT003
            raw.bind(self.path)
            os.chmod(self.path, 0o666)
            raw.listen(64)
        except OSError as exc:
            raise UnavailableError(
                f"the control socket {self.path} cannot be bound: {exc.strerror or exc}; "
                "is another coordd running with it, and may this user write its directory?"
            ) from exc
        return trio.SocketListener(trio.socket.from_stdlib_socket(raw))

    def _remove_stale(self) -> None:
        if not os.path.exists(self.path):
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(self.path)
            except OSError:
                os.unlink(self.path)
                return
        raise OSError(98, "another daemon answers on it")

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve for ever."""
        async with trio.open_nursery() as nursery:
            await trio.serve_listeners(self._connected, [listener], handler_nursery=nursery)

    async def _connected(self, stream: trio.SocketStream) -> None:
        async with stream:
            if self._connections >= CONNECTIONS_MAX:
                busy = RpcError(REFUSED, f"{CONNECTIONS_MAX} clients are connected already", kind="try_later")
                await self._send(stream, error_line(None, busy))
                return
            self._connections += 1
            try:
                caller = self._caller(stream)
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

    def _caller(self, stream: trio.SocketStream) -> Caller:
        sock = stream.socket
        pid, uid, gid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        gids = {gid}
        with contextlib.suppress(OSError):  # an old kernel: the primary group is all that is known
            raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4096)
            gids.update(struct.unpack(f"{len(raw) // 4}i", raw))
        groups = frozenset(name for name in map(_group_name, gids) if name)
        if uid in (0, os.getuid()):
            role = ADMIN
        elif self._operator_group in groups:
            role = OPERATOR
        elif self._viewer_group and self._viewer_group not in groups:
            role = -1
        else:
            role = VIEWER
        return Caller(uid, groups, role, pid)


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
        self._in_flight = trio.CapacityLimiter(IN_FLIGHT_MAX)
        self._streams = 0

    async def run(self) -> None:
        """Read lines, answer each; the order of answers is that of their completion."""
        async with trio.open_nursery() as nursery:
            buffer = bytearray()
            while True:
                end = buffer.find(b"\n")
                if end >= 0:
                    line = bytes(buffer[:end])
                    del buffer[: end + 1]
                    if line.strip():
                        await self._in_flight.acquire_on_behalf_of(token := object())
                        nursery.start_soon(self._answer, line, token)
                    continue
                if len(buffer) > LINE_BYTES_MAX:
                    too_large = RpcError(PARSE_ERROR, f"a line of more than {LINE_BYTES_MAX} bytes", kind="too_large")
                    await self._send(error_line(None, too_large))
                    break
                data = await self._read()
                if not data:
                    if buffer.strip():  # a last line without its end: `printf` instead of `echo`
                        await self._in_flight.acquire_on_behalf_of(token := object())
                        await self._answer(bytes(buffer), token)
                    break
                buffer += data
            # What is still being answered, and streams (a client may close its sending half and listen on), end
            # the nursery by themselves: a stream speaks every few seconds, so that a client that is gone is noticed.

    async def _read(self) -> bytes:
        while True:
            with trio.move_on_after(IDLE_S):
                return bytes(await self._stream.receive_some(65536))
            if not self._streams:
                return b""

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            await self._server._send(self._stream, data)

    async def _answer(self, line: bytes, token: object) -> None:
        try:
            await self._send_answer(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("client.gone")
        finally:
            self._in_flight.release_on_behalf_of(token)

    async def _send_answer(self, line: bytes) -> None:
        try:
            call = parse(line)
        except RpcError as exc:
            await self._send(error_line(exc.ident, exc))
            return
        try:
            result = await self._perform(call)
            if isinstance(result, AsyncIterator):
                await self._stream_out(call, result)
                return
            answer = result_line(call.id, result)
        except RpcError as exc:
            answer = error_line(call.id, exc)
        except RefusedError as exc:
            answer = error_line(call.id, refused(exc))
        except UnavailableError as exc:
            answer = error_line(call.id, RpcError(REFUSED, str(exc), kind="unavailable"))
        except CoorddError as exc:
            answer = error_line(call.id, RpcError(REFUSED, str(exc), kind="failed"))
        except Exception as exc:
            # The boundary of one question: our bug, said so to the caller and in full to the log.
            log.exception("method.failed", method=call.method)
            answer = error_line(call.id, RpcError(INTERNAL_ERROR, f"a bug in coordd: {exc!r}", kind="internal"))
        if not call.notification:
            await self._send(answer)

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
            needs = {ADMIN: "root or the daemon's user", OPERATOR: "the operator group"}.get(method.role, "a group")
            raise RefusedError(
                f"{self._caller.name} may not call {call.method}", kind="not_permitted", hint=f"it takes {needs}"
            )
        server.served += 1
        return await method.call(call.params, self._caller)

    async def _stream_out(self, call: Call, stream: Stream) -> None:
        self._streams += 1
        subscription = self._streams
        await self._send(result_line(call.id, {"subscription": subscription}))
        try:
            async for item in stream:
                await self._send(notification_line(call.method, {"subscription": subscription, **item}))
            await self._send(notification_line(call.method, {"subscription": subscription, "end": True}))
        finally:
            self._streams -= 1
