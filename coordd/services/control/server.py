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
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import structlog
import trio

from coordd.errors import ConfigError, CoorddError, JobFileError, RefusedError, UnavailableError
from coordd.services.audit import LOOK_S as AUDIT_LOOK_S, Audit
from coordd.services.control.callers import ADMIN, NOBODY, OPERATOR, VIEWER, Asked, Caller, Method, subject_of
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

# Timeout (seconds) for looking up names of groups, which may come from a directory server; and maximum concurrent
# lookups.
NAMES_S = 5.0
LOOKUPS_MAX = 4

# Names are cached for this time (seconds), so that repeated connections rarely ask the directory. The groups themselves
# come from the kernel each time.
NAMES_KEPT_S = 10.0
NAMES_KEPT_MAX = 256

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
        audit: Audit | None = None,
        in_a_run: Callable[[int, int], bool] = lambda _pid, _uid: False,
    ) -> None:
        """``shown`` filters a method's answer for viewers. ``audit`` records privileged calls. ``in_a_run`` tells
        whether the process with this pid and uid belongs to a run, and therefore may only look.
        """
        self.audit = audit
        self._in_a_run = in_a_run
        self.path = path
        self.shown = shown
        self.methods = methods
        self.unavailable = unavailable
        self._operator_group = operator_group
        self._viewer_group = viewer_group
        self._connections = 0
        self._lookups = trio.CapacityLimiter(LOOKUPS_MAX)
        self._quotas = Quotas()
        self._turned_away = 0
        self._unknown: Counter[int] = Counter()  # uid -> connections whose role is not known yet
        self._names: dict[tuple[int, frozenset[int]], tuple[float, str, frozenset[str]]] = {}
        self._naming: dict[tuple[int, frozenset[int]], trio.Lock] = {}

    def bind(self) -> trio.SocketListener:
        """Bind the socket, mode 0666: roles come from the kernel, not from file modes.

        Raises UnavailableError when the path cannot be bound, with advice.
        """
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
            self._remove_stale()
            raw.bind(self.path)
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

    async def serve(self, listener: trio.SocketListener) -> None:
        """Serve for ever."""
        async with trio.open_nursery() as nursery:
            if self.audit is not None:
                nursery.start_soon(self._look_at_audit, self.audit)
            await trio.serve_listeners(self._connected, [listener], handler_nursery=nursery)

    async def _look_at_audit(self, audit: Audit) -> None:
        try:
            while True:
                await turn(AUDIT_LOOK_S)
                audit.look()
        finally:
            audit.close()

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
            return Caller(uid, frozenset(), ADMIN, pid, "root" if uid == 0 else _user_name(uid))
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
                name, groups = await self._named(uid, frozenset(gids))
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

    async def _named(self, uid: int, gids: frozenset[int]) -> tuple[str, frozenset[str]]:
        """The names of a user and its groups. Only one look-up per user at a time, however often the user connects."""
        key = (uid, gids)
        turn = self._naming.setdefault(key, trio.Lock())
        try:
            async with turn:
                at, name, groups = self._names.get(key, (-NAMES_KEPT_S, "", frozenset[str]()))
                if trio.current_time() - at >= NAMES_KEPT_S:
                    name, groups = await trio.to_thread.run_sync(
                        _names, uid, gids, abandon_on_cancel=True, limiter=self._lookups
                    )
                    if len(self._names) >= NAMES_KEPT_MAX:
                        self._names.clear()
                    self._names[key] = (trio.current_time(), name, groups)
                return name, groups
        finally:
            statistics = turn.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._naming.pop(key, None)


def _names(uid: int, gids: Iterable[int]) -> tuple[str, frozenset[str]]:
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
        try:
            answer = await self._permitted(method, call, caller)
        except (RefusedError, UnavailableError) as exc:
            self._record(method, call, caller, str(exc))
            raise
        self._record(method, call, caller, None)
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

    def _record(self, method: Method, call: Call, caller: Caller, refused: str | None) -> None:
        """For the audit: a call that was done, or the reason of its refusal."""
        audit = self._server.audit
        if audit is None or not method.privileged:
            return
        record = {
            "method": call.method,
            "subject": subject_of(call.params),
            "uid": caller.uid,
            "by": caller.name,
            **caller.details(),
        }
        if refused is not None:
            audit.refused({**record, "reason": refused})
        elif method.logs:
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
                    why = str(exc)
                    log.warning("stream.failed", method=call.method, reason=why)
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
