"""The listener for HTTP calls that start runs: `POST ROUTE` with an idempotency key, answered when the run is recorded.

Connections, heads, bodies and each wait are bounded. What a caller has no right to know, the answers do not say.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import h11
import structlog
import trio

from coordd.core.jobs.job import Job
from coordd.core.jobs.trigger import HTTP, Trigger
from coordd.core.ready import Reply
from coordd.core.triggers.arrivals import Arrival
from coordd.core.triggers.bodies import BODY_BYTES_MAX
from coordd.core.triggers.calls import Refusal, arrival_of, refusal
from coordd.core.triggers.duplicates import run_of_arrival
from coordd.errors import CoorddError, RefusedError, UnavailableError
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService, boottime
from coordd.services.listening import MakeTls, Serving
from coordd.services.pace import turn
from coordd.services.triggering.registering import HELD_BY_BREAKER, breaker_lets, may_start, register
from coordd.services.triggering.rooms import Rooms

log = structlog.get_logger("triggers")

# Connections at a time, in all and from one address. Each waits for one run at a time.
CONNECTIONS_MAX = 256
PEER_CONNECTIONS_MAX = 128

# Calls on one connection.
CALLS_MAX = 10_000

# Timeouts (seconds): of a call until it is read, of an answer that nobody reads; and how long the rest
# of a body that is too large is read, so that the caller sees the answer.
CALL_S = 15.0
SEND_S = 10.0
REST_S = 2.0
REST_BYTES_MAX = 16 * 1024 * 1024

HEAD_BYTES_MAX = 16 * 1024

# A secret is read again after this time (seconds), and open runs are counted again.
SECRET_S = 5.0
COUNTED_S = 0.2

# How long (seconds) a call waits for its secret. After that the file system hangs.
READ_S = 5.0

# How often (seconds) secrets are read again that could not be read.
READ_AGAIN_S = 10.0

# When a caller should try again (seconds).
AGAIN_S = 5


class Route(NamedTuple):
    """A trigger of the kind `http`, and its job."""

    job: Job
    trigger: Trigger


class _Reader(NamedTuple):
    """Who reads a file. ``turn``: of the callers; ``thread``: one, also while a file system holds it."""

    turn: trio.Lock
    thread: trio.CapacityLimiter


class Calls(Serving):
    """Answers calls."""

    def __init__(
        self,
        address: tuple[str, int],
        driver: Driver,
        ledger: LedgerService,
        read_secret: Callable[[str], str],
        make_tls: MakeTls | None = None,
    ) -> None:
        """``read_secret``: the secret in a file. Blocks; raises UnavailableError."""
        super().__init__("triggers", address, CONNECTIONS_MAX, PEER_CONNECTIONS_MAX, make_tls)
        self._driver = driver
        self._ledger = ledger
        self._read_secret = read_secret
        self.rooms = Rooms(driver, ledger)  # shared with the triggers that are polled
        self._secrets: dict[str, tuple[float, str]] = {}
        self._readers: dict[str, _Reader] = {}  # by file
        self._open: dict[str, tuple[float, int]] = {}  # job -> (when it was counted, its open runs)
        self._routes: tuple[str, dict[str, Route]] = ("", {})
        self.taken: Counter[tuple[str, str]] = Counter()  # by job and trigger
        self.refused: Counter[tuple[str, str]] = Counter()
        self._unread: dict[str, str] = {}  # files of secrets that could not be read, and why

    # ---- connections

    async def _serve(self, stream: trio.abc.Stream, peer: str) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        with trio.CancelScope() as limit:  # one for the connection: each scope costs as much as a read
            for _ in range(CALLS_MAX):
                said: Refusal | dict[str, Any] | None = None
                head_alone = False
                try:
                    limit.deadline = trio.current_time() + CALL_S
                    asked = await _next(http, stream)
                    if not isinstance(asked, h11.Request):
                        return
                    head_alone = asked.method == b"HEAD"
                    asked_of = await self._read(http, stream, asked)
                    limit.deadline = math.inf
                    said = asked_of if isinstance(asked_of, Refusal) else await self._answer(*asked_of, peer)
                except h11.RemoteProtocolError as exc:
                    said = Refusal(exc.error_status_hint, "a call of HTTP/1.1 is expected")
                limit.deadline = trio.current_time() + SEND_S
                await stream.send_all(_response(http, said, head_alone=head_alone))
                if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                    await _drain(stream)
                    return
                http.start_next_cycle()
        if limit.cancelled_caught:
            raise trio.TooSlowError

    async def _read(
        self, http: h11.Connection, stream: trio.abc.Stream, asked: h11.Request
    ) -> tuple[Route, dict[str, str], bytes] | Refusal:
        """The route, the headers and the body of a call."""
        route = self.routes().get(asked.target.partition(b"?")[0].decode("ascii", "replace"))
        if route is None:
            return Refusal(404, "there is no such route")
        if asked.method != b"POST":
            return Refusal(405, "only POST")
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in asked.headers}
        if int(headers.get("content-length", "0")) > BODY_BYTES_MAX:
            return TOO_LARGE
        if http.they_are_waiting_for_100_continue:
            await stream.send_all(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        body = bytearray()
        while isinstance(event := await _next(http, stream), h11.Data):
            body += event.data
            if len(body) > BODY_BYTES_MAX:
                return TOO_LARGE
        if not isinstance(event, h11.EndOfMessage):
            raise trio.BrokenResourceError  # it went away
        return route, headers, bytes(body)

    # ---- calls

    def routes(self) -> dict[str, Route]:
        """All routes, by path."""
        node = self._driver.node
        if self._routes[0] != node.jobs_digest:
            found = {
                one.route: Route(job, one) for job in node.jobs.values() for one in job.triggers if one.kind == HTTP
            }
            self._routes = (node.jobs_digest, found)
        return self._routes[1]

    @property
    def problems(self) -> dict[tuple[str, str], str]:
        """Of the routes that there are: why a secret cannot be read, by job and trigger."""
        routes = self.routes().values() if self._unread else ()
        return {
            (job.name, one.name): self._unread[one.secret_file]
            for job, one in routes
            if one.secret_file in self._unread
        }

    async def read_again(self) -> None:
        """For ever, what could not be read: a secret that is mended must not need a caller to be well again."""
        while True:
            await turn(READ_AGAIN_S)
            files = {route.trigger.secret_file: route for route in self.routes().values()}
            self._unread = {path: why for path, why in self._unread.items() if path in files}
            for path in list(self._unread):
                with contextlib.suppress(CoorddError):
                    await self._secret(files[path].job.name, files[path].trigger)

    async def _answer(self, route: Route, headers: dict[str, str], body: bytes, peer: str) -> Refusal | dict[str, Any]:
        said = await self._judged(route, headers, body)
        if isinstance(said, Refusal):
            of = route.job.name, route.trigger.name
            self.refused[of] += 1
            if self.refused[of] & (self.refused[of] - 1) == 0:  # 1, 2, 4, 8, …
                log.warning(
                    "trigger.call_refused",
                    job=of[0],
                    trigger=of[1],
                    peer=peer,
                    status=said.status,
                    reason=said.error,
                    count=self.refused[of],
                )
        return said

    async def _judged(self, route: Route, headers: dict[str, str], body: bytes) -> Refusal | dict[str, Any]:
        job, trigger = route
        try:
            secret = await self._secret(job.name, trigger)
        except CoorddError:
            return Refusal(503, "the secret of this route cannot be read")
        if (wrong := refusal(trigger, secret, headers, body, self._driver.now().wall)) is not None:
            return wrong
        arrival = arrival_of(trigger, headers, body)
        if isinstance(arrival, Refusal):
            return arrival
        if state := may_start(self._driver, job):
            return Refusal(503, f"the job is {state}")
        try:
            reply = await self._registered(job, trigger, arrival)
        except RefusedError as exc:
            return Refusal(422, str(exc))
        except CoorddError:
            return Refusal(503, "the ledger does not answer")
        if isinstance(reply, Refusal):
            return reply
        if reply.kind == "conflict":
            return Refusal(409, "the key was used before, with other values or another definition of the job")
        if reply.kind:
            return Refusal(503, "this node may register nothing now")
        self.taken[job.name, trigger.name] += 1
        said = {"id": reply.result["id"], "durable": reply.result["durable"]}
        return said | ({"duplicate": True} if reply.result.get("duplicate") else {})

    async def _registered(self, job: Job, trigger: Trigger, arrival: Arrival) -> Reply | Refusal:
        """Register it, if there is room. Raises RefusedError and UnavailableError."""
        tries = breaker_lets(self._driver, job) is not None
        full = Refusal(429, f"{trigger.max_open} runs of the job are open already")
        if not tries and (job.overlap == "allow" or len(job.triggers) == 1):
            if not await self._has_room(job, trigger, arrival):
                return full
            return await register(self._driver, job, trigger, arrival)
        async with self.rooms.turn(job.name):  # its other triggers must not take the same place
            if tries and not await self.rooms.counted(job, trigger.max_open):
                return Refusal(503, f"the job is {HELD_BY_BREAKER}")
            self._open.pop(job.name, None)
            if not await self._has_room(job, trigger, arrival):
                return full
            reply = await register(self._driver, job, trigger, arrival)
            self.rooms.took(job.name)
            return reply

    async def _secret(self, job: str, trigger: Trigger) -> str:
        """Callers without a token come here: they take no thread of the daemon's limit, and one for all of them.

        Raises UnavailableError. While a file system hangs, the secret that was read last stays.
        """
        path = trigger.secret_file
        if (fresh := self._fresh(path)) or (path in self._secrets and self._readers[path].thread.borrowed_tokens):
            return fresh or self._secrets[path][1]
        reader = self._readers.setdefault(path, _Reader(trio.Lock(), trio.CapacityLimiter(1)))
        problem = f"{path}: the file system did not answer within {READ_S:g} s"
        with trio.move_on_after(READ_S):
            async with reader.turn:
                if fresh := self._fresh(path):  # the caller before has read it
                    return fresh
                try:
                    secret = await trio.to_thread.run_sync(
                        self._read_secret, path, limiter=reader.thread, abandon_on_cancel=True
                    )
                    self._secrets[path] = (boottime(), secret)
                    self._unread.pop(path, None)
                    return secret
                except CoorddError as exc:
                    problem = str(exc)
                    self._secrets.pop(path, None)
        if self._unread.get(path) != problem:
            log.error("trigger.no_secret", job=job, trigger=trigger.name, reason=problem)
        self._unread[path] = problem
        if path in self._secrets:
            return self._secrets[path][1]
        raise UnavailableError(problem)

    def _fresh(self, path: str) -> str:
        """The secret that was read not long ago, or ""."""
        at, secret = self._secrets.get(path, (0.0, ""))
        return secret if boottime() - at <= SECRET_S else ""

    async def _has_room(self, job: Job, trigger: Trigger, arrival: Arrival) -> bool:
        """True if one more run may be open, or if the arrival's run exists already. Raises UnavailableError."""
        at, count = self._open.get(job.name, (0.0, 0))
        if boottime() - at > COUNTED_S:
            pursuits = self._driver.node.pursuits
            mine = (f"{job.name}#", f"{job.name}@")
            count = sum(run.startswith(mine) for run in pursuits.pursuits.keys() | pursuits.running.keys())
            at = boottime()
        full = count >= trigger.max_open
        self._open[job.name] = (at, count if full else count + 1)
        if not full:
            return True
        run = run_of_arrival(job, trigger, arrival)
        return await self._ledger.query(lambda ledger: ledger.run(run) is not None)


TOO_LARGE = Refusal(413, f"the body has more than {BODY_BYTES_MAX} bytes")


async def _next(http: h11.Connection, stream: trio.abc.Stream) -> Any:
    """The next event of a call. Raises h11.RemoteProtocolError."""
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(bytes(await stream.receive_some(65536)))
    return event


def _response(http: h11.Connection, said: Refusal | dict[str, Any], *, head_alone: bool) -> bytes:
    """``head_alone``: an answer to HEAD has no body."""
    status, told = (said.status, {"error": said.error}) if isinstance(said, Refusal) else (202, said)
    body = json.dumps(told).encode() + b"\n"
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    if status in (429, 503):
        headers.append(("Retry-After", str(AGAIN_S)))
    if http.their_state is not h11.DONE:
        headers.append(("Connection", "close"))
    parts = [http.send(h11.Response(status_code=status, headers=headers))]
    parts += [http.send(h11.Data(data=b"" if head_alone else body)), http.send(h11.EndOfMessage())]
    return b"".join([part for part in parts if part])


async def _drain(stream: trio.abc.Stream) -> None:
    """Read what the caller still sends: unread bytes would reset the connection, and the answer with it."""
    left = REST_BYTES_MAX
    with trio.move_on_after(REST_S):
        if isinstance(stream, trio.SocketStream):
            await stream.send_eof()
        while left > 0 and (data := await stream.receive_some(65536)):
            left -= len(data)
