"""The control socket: one JSON object a line, the caller's role from the kernel."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import structlog
import trio

from coordd.config.ownership import user_name
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.services import audit as audits
from coordd.services.control.callers import ADMIN, NOBODY, OPERATOR, VIEWER, Asked, Caller, Method, Names, subject_of
from coordd.services.control.quota import Place, Quotas
from coordd.services.control.rpc import (
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
)
from coordd.services.ledger import ONLY_LOOKS
from coordd.services.pace import turn

log = structlog.get_logger("control")

# Maximum number of clients. Anybody on the machine may connect, so some places are reserved for the daemon's user and
# root (quota.py reserves more of them for operators).
CONNECTIONS_MAX = 256
CONNECTIONS_KEPT = 16

# A refused client is read for a moment after it got the reason; at most this many at a time.
TURNED_AWAY_S = 0.2
TURNED_AWAY_MAX = 32

# Connections per uid whose groups are being looked up: their limits are not known yet.
UNKNOWN_MAX = 64

# Per connection: requests in work, and streams beside them.
IN_FLIGHT_MAX = 16
STREAMS_MAX = 8

# A client without requests and streams is disconnected after this time (seconds).
IDLE_S = 600.0

# If a client does not read an answer within this time, the answer is dropped and the client disconnected.
SEND_S = 10.0

# When the daemon stops, changes under way have this long (seconds) to end.
STOP_S = 5.0

# Timeout (seconds) for looking up names of groups, which may come from a directory server.
NAMES_S = 5.0

# Errors about what the caller itself has sent.
OF_CALLER = ("invalid_params", "bad_argument")

# A list with more items is encoded in a thread.
ITEMS_MAX = 100

# Timeout (seconds) when testing whether another daemon owns the socket.
PROBE_S = 2.0

SO_PEERGROUPS = 59

# The limit of Python's getsockopt: 256 groups.
GROUPS_BYTES = 1024

# The messages of a stream; a method may return one instead of a result.
Stream = AsyncGenerator[dict[str, Any], None]


class ControlServer:
    """Serves ``methods`` on a unix socket."""

    def __init__(
        self,
        path: str,
        methods: dict[str, Method],
        *,
        operator_group: str,
        viewer_group: str,
        unavailable: frozenset[str] = frozenset(),
        shown: Callable[[str, Any], Any] | None = None,
        told: Callable[[str], str] | None = None,
        audit: audits.Audit | None = None,
        in_a_run: Callable[[int, int], bool] = lambda _pid, _uid: False,
    ) -> None:
        """``shown`` filters a method's answer for viewers, ``told`` the sentence of an error. ``audit`` records
        privileged calls. ``in_a_run`` tells whether the process with this pid and uid belongs to a run, and therefore
        may only look.
        """
        self.audit = audit
        self._in_a_run = in_a_run
        self.path = path
        self.shown = shown
        self.told = told
        self.methods = methods
        self.unavailable = unavailable
        self._operator_group = operator_group
        self._viewer_group = viewer_group
        self._connections = 0
        self._names = Names()
        self._quotas = Quotas()
        self._turned_away = 0
        self._bound: os.stat_result | None = None
        self._changing: set[trio.CancelScope] = set()
        self._ends_at = float("inf")  # for changes: the daemon stops
        self._unknown: Counter[int] = Counter()  # uid -> connections whose role is not known yet

    def bind(self) -> trio.SocketListener:
        """Bind the socket, mode 0666: roles come from the kernel, not from file modes.

        Raises UnavailableError when the path cannot be bound, with advice.
        """
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            self._remove_stale()
            raw.bind(self.path)
            self._bound = os.lstat(self.path)
            os.chmod(self.path, 0o666)  # noqa: S103 - roles come from the kernel
            # if the queue were full, clients that connect with a timeout would fail at once
            raw.listen(CONNECTIONS_MAX)
        except OSError as exc:
            raw.close()
            raise UnavailableError(
                f"the control socket {self.path} cannot be bound: {exc.strerror or exc}; "
                "is another coordd running with it, and may this user write its directory?"
            ) from exc
        return trio.SocketListener(trio.socket.from_stdlib_socket(raw))

    def _remove_stale(self) -> None:
        """Remove the socket file of a dead daemon. Any other file, and the socket of a live daemon, is left alone."""
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise OSError(errno.EEXIST, "a file that is not a socket has that name")
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
                pass  # its queue of clients is full: a daemon is there
        raise OSError(errno.EADDRINUSE, "another daemon answers on it")

    def close(self) -> None:
        """Remove the socket that ``bind`` made, if it is still there."""
        with contextlib.suppress(FileNotFoundError):
            if self._bound is not None and os.path.samestat(os.lstat(self.path), self._bound):
                os.unlink(self.path)

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve for ever."""
        async with trio.open_nursery() as nursery:
            if self.audit is not None:
                nursery.start_soon(self._look_at_audit, self.audit)
            nursery.start_soon(self._end_changes)
            await trio.serve_listeners(self._connected, [listener], handler_nursery=nursery)

    async def _look_at_audit(self, audit: audits.Audit) -> None:
        try:
            while True:
                await turn(audits.LOOK_S)
                audit.look()
        finally:
            audit.close()

    async def _end_changes(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._ends_at = trio.current_time() + STOP_S
            for scope in self._changing:
                scope.deadline = self._ends_at

    @contextlib.contextmanager
    def changing(self) -> Iterator[trio.CancelScope]:
        """A change goes on in here although its client is gone: nobody else would tell of it."""
        with trio.CancelScope(shield=True, deadline=self._ends_at) as scope:
            self._changing.add(scope)
            try:
                yield scope
            finally:
                self._changing.discard(scope)

    async def _connected(self, stream: trio.SocketStream) -> None:
        self._connections += 1
        counted = True
        try:
            async with stream:
                caller = await self._caller(stream)
                kept = 0 if caller is not None and caller.role == ADMIN else CONNECTIONS_KEPT
                place: Place | str
                if self._connections > CONNECTIONS_MAX - kept:
                    place = f"{CONNECTIONS_MAX - kept} clients are connected already"
                elif caller is None:
                    place = f"{UNKNOWN_MAX} connections of this user wait for the users' directory already"
                else:
                    place = self._quotas.place(
                        caller.uid, caller.name, limited=caller.role < ADMIN, looks=caller.role <= VIEWER
                    )
                if caller is None or isinstance(place, str):
                    self._connections -= 1  # it is not counted while it is told why
                    counted = False
                    await self._turn_away(stream, str(place))
                    return
                with place:
                    await Connection(self, stream, caller, place).run()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("client.gone")
        except Exception:
            # The boundary: a bug in one method must not end the daemon; it is logged with a traceback.
            log.exception("client.failed")
        finally:
            self._connections -= counted

    async def _turn_away(self, stream: trio.SocketStream, why: str) -> None:
        """Send the reason of the refusal. The client's data is read first; otherwise the kernel would send a reset
        instead.
        """
        busy = RpcError(REFUSED, why, kind="try_later", hint="close some of them, or wait a little")
        await self._send(stream, error_line(None, busy))
        if self._turned_away >= TURNED_AWAY_MAX:
            return
        self._turned_away += 1
        try:
            with trio.move_on_after(TURNED_AWAY_S):
                await stream.send_eof()
                while await stream.receive_some(65536):
                    pass
        finally:
            self._turned_away -= 1

    async def _send(self, stream: trio.SocketStream, data: bytes) -> None:
        with trio.move_on_after(SEND_S) as scope:
            await stream.send_all(data)
        if scope.cancelled_caught:
            raise trio.BrokenResourceError("the client does not read its answers")

    async def _caller(self, stream: trio.SocketStream) -> Caller | None:
        """The caller; None when too many connections of that uid wait for the look-up."""
        sock = stream.socket
        pid, uid, gid = struct.unpack("iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        # root can do everything anyway; if the daemon is root, so are its jobs.
        inside = (uid != 0 or os.getuid() == 0) and self._in_a_run(pid, uid)
        if inside:
            return Caller(uid, frozenset(), VIEWER, pid, f"{'root' if uid == 0 else f'uid {uid}'} inside a run")
        if uid in (0, os.getuid()):
            # They may do everything, so no look-up is needed. The daemon's own watchdog asks in this way, and must get
            # an answer even while the site's directory of users is down.
            return Caller(uid, frozenset(), ADMIN, pid, "root" if uid == 0 else user_name(uid))
        gids = {gid}
        try:
            raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, GROUPS_BYTES)
            gids.update(struct.unpack(f"{len(raw) // 4}I", raw))
        except OSError as exc:  # an old kernel, or too many groups: only the primary group is known
            log.warning("client.groups_unknown", uid=uid, reason=exc.strerror)
        if self._unknown[uid] >= UNKNOWN_MAX:
            return None
        self._unknown[uid] += 1
        name, groups = f"uid {uid}", frozenset[str]()
        try:
            with trio.move_on_after(NAMES_S) as scope:
                name, groups = await self._names.of(uid, frozenset(gids))
        finally:
            self._unknown -= Counter((uid,))
        if scope.cancelled_caught:
            log.warning("client.groups_unknown", uid=uid, reason=f"no answer from the users' directory in {NAMES_S} s")
        if self._operator_group in groups:
            role = OPERATOR
        elif self._viewer_group and self._viewer_group not in groups:
            role = NOBODY
        else:
            role = VIEWER
        return Caller(uid, groups, role, pid, name)


class Connection:
    """One client connection."""

    def __init__(
        self, server: ControlServer, stream: trio.SocketStream, caller: Caller, place: Place | None = None
    ) -> None:
        """Without ``place`` there are no limits."""
        self._server = server
        self._stream = stream
        self._caller = caller
        self._place = place or Place(Quotas(), caller.uid, ())
        self._sending = trio.Lock()
        self._in_flight = trio.Semaphore(IN_FLIGHT_MAX, max_value=IN_FLIGHT_MAX)
        self._streams = 0
        self._last_subscription = 0
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Read lines and answer each; answers are sent in the order of completion."""
        with self._scope:
            async with trio.open_nursery() as nursery, contextlib.aclosing(self._lines()) as lines:
                async for line in lines:
                    await self._in_flight.acquire()
                    await self._place.begin()
                    nursery.start_soon(self._answer, line)
                # Pending answers end by themselves. So do streams: a client may close its sending half and keep
                # reading, and since a stream sends every few seconds, a client that is gone is noticed.

    async def _lines(self) -> AsyncGenerator[bytes, None]:
        buffer = bytearray()
        while True:
            end = buffer.find(b"\n")
            line_max = min(LINE_BYTES_MAX, self._place.line_max)
            if (len(buffer) if end < 0 else end) > line_max:  # the limit counts for a whole line and for one in pieces
                too_large = RpcError(PARSE_ERROR, f"a line of more than {line_max} bytes", kind="too_large")
                await self._say(error_line(None, too_large))
                return
            if end >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                if line.strip():
                    self._place.answered(1)  # the line feed; the line itself is released with its answer
                    yield line
                else:
                    self._place.answered(end + 1)
                continue
            data = await self._read()
            if not data:
                if buffer.strip():  # a last line without a line feed: `printf` instead of `echo`
                    yield bytes(buffer)
                return
            full = self._place.asks(len(data))
            if full:
                hint = "end lines with a line feed, and read the answers"
                await self._say(error_line(None, RpcError(REFUSED, full, kind="too_large", hint=hint)))
                return
            buffer += data

    async def _read(self) -> bytes:
        while True:
            with trio.move_on_after(IDLE_S):
                try:
                    return bytes(await self._stream.receive_some(self._place.read_bytes))
                except trio.BrokenResourceError:
                    self._scope.cancel()  # reset: the client is gone
                    return b""
            if not self._streams:
                return b""

    async def _say(self, data: bytes) -> None:
        """Send one line. If the client does not read it, disconnect: a partial line cannot be taken back."""
        try:
            async with self._sending:
                await self._server._send(self._stream, data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("client.gone", uid=self._caller.uid)
            self._scope.cancel()
            await trio.lowlevel.checkpoint()

    async def _answer(self, line: bytes) -> None:
        stream = None
        size = len(line)
        ONLY_LOOKS.set(self._caller.role <= VIEWER)
        try:
            stream = await self._send_answer(line)
        finally:
            self._in_flight.release()
            self._place.end()
            self._place.answered(size)
        del line  # a stream may last for days
        if stream is not None:
            await self._stream_out(*stream)

    async def _send_answer(self, line: bytes) -> tuple[Call, Stream] | None:
        """Answer one line. If the answer is a stream, return it: the caller sends it beside other requests."""
        try:
            if line.count(b"[") + line.count(b"{") > self._place.nested_max:
                message = f"more than {self._place.nested_max} objects and lists in one request"
                raise RpcError(PARSE_ERROR, message, kind="too_large")
            call = parse(line)
        except RpcError as exc:
            await self._say(error_line(exc.ident, exc))
            return None
        try:
            result = await self._perform(call)
            if isinstance(result, AsyncGenerator):
                full = f"{STREAMS_MAX} streams are open already on this connection"
                if self._streams < STREAMS_MAX:
                    full = self._place.opens_stream()
                if full:
                    await result.aclose()
                    raise RpcError(REFUSED, full, kind="try_later", hint="end some of them")
                self._streams += 1
                return call._replace(params={}), result  # a stream has copied what it needs
            answer = await self._line(call, result)
        except RpcError as exc:
            answer = error_line(call.id, exc)
        except CoorddError as exc:
            answer = error_line(call.id, self._told(refused(exc)))
        except Exception as exc:
            # The boundary of one request: our bug; short for the caller, in full in the log.
            log.exception("method.failed", method=call.method)
            answer = error_line(call.id, RpcError(INTERNAL_ERROR, f"a bug in coordd: {exc!r}", kind="internal"))
        if not call.notification:
            full = self._place.tells(len(answer))
            if full:
                answer = error_line(call.id, RpcError(REFUSED, full, kind="try_later", hint="read the answers"))
            try:
                await self._say(answer)
            finally:
                if not full:
                    self._place.told(len(answer))
        return None

    def _told(self, error: RpcError) -> RpcError:
        """An error as this caller may see it: one of a job's file quotes it. What the caller itself sent is told."""
        if self._caller.role > VIEWER or self._server.told is None or error.kind in OF_CALLER:
            return error
        told = self._server.told
        return RpcError(error.code, told(error.message), kind=error.kind, hint=told(error.hint))

    async def _line(self, call: Call, result: Any) -> bytes:
        """The answer as this caller may see it; a long one is encoded in a thread."""

        def make() -> bytes:
            return result_line(call.id, self._shown(call.method, result))

        if isinstance(result, list) and len(result) > ITEMS_MAX:
            return await trio.to_thread.run_sync(make)
        return make()

    async def _perform(self, call: Call) -> Any:
        server = self._server
        method = server.methods.get(call.method)
        if method is None:
            if call.method in server.unavailable:
                raise RpcError(REFUSED, f"{call.method}: not available in this version", kind="not_available")
            raise RpcError(
                METHOD_NOT_FOUND,
                f"no method {call.method!r}",
                kind="unknown_method",
                hint="known: " + ", ".join(sorted(server.methods)),
            )
        caller = self._caller._replace(asked=Asked(call.id, call.method))
        if not method.may_change:
            return await self._recorded(method, call, caller)
        with server.changing():
            return await self._recorded(method, call, caller)
        stopped = "the daemon stopped before its end was known"
        self._record(method, call, caller, stopped, audits.UNKNOWN)
        raise UnavailableError(stopped)

    async def _recorded(self, method: Method, call: Call, caller: Caller) -> Any:
        try:
            answer = await self._permitted(method, call, caller)
        except RefusedError as exc:
            if method.privileged or exc.kind == "not_permitted":
                self._record(method, call, caller, str(exc), audits.REFUSED)
            raise
        except UnavailableError as exc:
            if method.privileged:  # a change that has no answer may take place all the same
                self._record(method, call, caller, str(exc), audits.UNKNOWN if method.may_change else audits.REFUSED)
            raise
        self._record(method, call, caller)
        return answer

    async def _permitted(self, method: Method, call: Call, caller: Caller) -> Any:
        server = self._server
        if caller.role < method.role:
            needs = {ADMIN: "root or the daemon's user", OPERATOR: f"the group {server._operator_group}"}.get(
                method.role, f"the group {server._viewer_group}"
            )
            raise RefusedError(
                f"{caller.name} may not call {call.method}", kind="not_permitted", hint=f"it takes {needs}"
            )
        return await method.call(call.params, caller)

    def _record(self, method: Method, call: Call, caller: Caller, reason: str = "", outcome: str = audits.DONE) -> None:
        """For the audit: a call that was done, or why it was refused or its end is not known."""
        audit = self._server.audit
        looked = method.logs or (caller.asked is not None and caller.asked.looked)
        if audit is None or not (method.privileged or looked or outcome == audits.REFUSED):
            return
        record = {
            "method": call.method,
            "subject": subject_of(call.params),
            "uid": caller.uid,
            "by": caller.name,
            **caller.details(),
        }
        if outcome == audits.REFUSED:
            audit.refused({**record, "reason": reason})
        elif outcome == audits.UNKNOWN:
            audit.unknown({**record, "reason": reason})
        elif looked:
            audit.looked(record)
        elif caller.asked is None or not caller.asked.recorded:
            audit.done(record)

    def _shown(self, method: str, answer: Any) -> Any:
        """The part of an answer, or of a stream's message, that this caller may see."""
        if self._caller.role > VIEWER or self._server.shown is None:
            return answer
        return self._server.shown(method, answer)

    async def _stream_out(self, call: Call, stream: Stream) -> None:
        self._last_subscription += 1
        subscription = self._last_subscription
        why = ""
        try:
            async with contextlib.aclosing(stream):
                if not call.notification:
                    await self._say(result_line(call.id, {"subscription": subscription}))
                try:
                    async for item in stream:
                        told = self._shown(call.method, item)
                        await self._say(notification_line(call.method, {"subscription": subscription, **told}))
                except CoorddError as exc:
                    why = self._told(refused(exc)).message
                    log.warning("stream.failed", method=call.method, reason=str(exc))
                except Exception as exc:
                    # The boundary of one stream: our bug; short for the caller, in full in the log.
                    why = f"a bug in coordd: {exc!r}"
                    log.exception("stream.failed", method=call.method)
                if why:
                    await self._say(notification_line(call.method, {"subscription": subscription, "error": why}))
                await self._say(notification_line(call.method, {"subscription": subscription, "end": True}))
        finally:
            self._streams -= 1
            self._place.stream_ended()
