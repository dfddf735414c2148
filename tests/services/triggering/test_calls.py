"""HTTP calls over a real socket: what is answered, and that no caller holds up the others or the daemon."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import msgspec
import pytest
import structlog
import trio
import trio.testing
from support.servers.certs import certificates
from support.small_cluster import EPOCH, job

from coordd.adapters.secrets import tls_listener
from coordd.core.jobs.job import Breaker, Dedupe
from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.breaker.text import CLOSED, HALF_OPEN, OPEN, State
from coordd.core.ledger.rows import OF_BREAKER, Hold
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Now, Reply
from coordd.core.triggers.arrivals import Arrival, run_of
from coordd.errors import UnavailableError
from coordd.services.triggering import calls as module
from coordd.services.triggering.calls import Calls
from coordd.services.triggering.registering import register

LIMIT_S = 60.0
FILE = "/orders.token"
TOKEN = {"Authorization": "Bearer s3cret", "Idempotency-Key": "k1"}
ORDERS = Trigger(
    kind="http", name="orders", route="/orders", secret_file=FILE, max_open=3, args={"what": "{trigger.key}"}
)


class Machine:
    """A node and its ledger, as far as the listener sees them."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}  # run -> its arguments
        self.pending: list[str] = []  # in the ledger
        self.marks: dict[str, Hold] = {}
        self.reply = ""
        self.told: str | None = "s3cret"
        self.threads: set[int] = set()  # of the daemon's limit that were in use, at each question to the ledger
        of = job("j", triggers=(ORDERS,), params={"what": ""}, overlap="allow")
        self.node = SimpleNamespace(
            jobs={"j": of}, jobs_digest="d", hostname="a", concurrency={},
            drains=SimpleNamespace(pause=None, suspended=frozenset(), holds={}),
            pursuits=SimpleNamespace(pursuits={}, running={}), skew_s=lambda now: 0.0,
        )  # fmt: skip

    def now(self) -> Now:
        return Now(1.0, EPOCH)

    async def query(self, call: Any) -> Any:
        return call(self)

    def mark(self, key: str) -> Hold | None:
        return self.marks.get(key)

    def runs(self, *, job: str, state: str, limit: int) -> list[str]:
        return self.pending if state == "pending" else []

    def run(self, run: str) -> str | None:
        return self.rows.get(run)

    async def trigger(self, of: Registration) -> Reply:
        # One is the caller's, who is a thread of this test.
        self.threads.add(int(trio.to_thread.current_default_thread_limiter().borrowed_tokens) - 1)
        if self.reply:
            return Reply(1, {}, self.reply, "no")
        if self.rows.setdefault(of.run, of.args) != of.args:
            return Reply(1, {}, "conflict", "differs")
        return Reply(1, {"id": of.run, "durable": "ledger"})

    def read_secret(self, path: str) -> str:
        assert path == FILE
        if self.told is None:
            raise UnavailableError(f"the password file {FILE}: it is empty")
        return self.told


@pytest.mark.parametrize(("then", "kind"), [("same", ""), ("refuse", "conflict")])
def test_calls_with_the_same_key_of_dedupe_are_one_run(then: Literal["same", "refuse"], kind: str) -> None:
    machine = Machine()
    of = msgspec.structs.replace(machine.node.jobs["j"], dedupe=Dedupe("{what}", then=then))
    this: Any = machine
    arrivals = [Arrival(key, {"key": key}) for key in "12"]
    trigger = msgspec.structs.replace(ORDERS, args={"what": "x"})
    machine.rows["j#x"] = "other arguments"

    for arrival in arrivals:
        reply = trio.run(register, this, of, trigger, arrival)
        assert reply.kind == kind
        assert reply.result == ({} if kind else {"id": "j#x", "durable": "ledger", "duplicate": True})
    assert list(machine.rows) == ["j#x"]


@pytest.fixture
def machine() -> Machine:
    return Machine()


def served(machine: Machine, call: Callable[[int], Any], make_tls: Any = None) -> Any:
    """Call a function with the port in a thread, while the listener serves it; returns what it returned."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    this: Any = machine

    async def main() -> Any:
        calls = Calls(("127.0.0.1", port), this, this, machine.read_secret, make_tls)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calls.run)
            with trio.fail_after(LIMIT_S):
                said = await trio.to_thread.run_sync(partial(_when_open, port, call))
            nursery.cancel_scope.cancel()
        return said

    return trio.run(main)


def _when_open(port: int, call: Callable[[int], Any]) -> Any:
    while True:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            break
    return call(port)


@contextlib.contextmanager
def connection(port: int) -> Iterator[http.client.HTTPConnection]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)) as made:
        yield made


def posted(
    made: http.client.HTTPConnection, headers: dict[str, str], body: bytes | str = b"", path: str = "/orders",
    method: str = "POST",
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    made.request(method, path, body, headers)
    answer = made.getresponse()
    return answer.status, json.loads(answer.read())


def first_answer(made: http.client.HTTPConnection) -> int:
    """Call until a call is answered: the listener may still count a connection that is gone."""
    while True:
        with contextlib.suppress(ConnectionError):
            return posted(made, TOKEN)[0]


def one(
    machine: Machine, headers: dict[str, str] = TOKEN, body: bytes | str = b"", path: str = "/orders",
    method: str = "POST",
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    def call(port: int) -> tuple[int, dict[str, Any]]:
        with connection(port) as made:
            return posted(made, headers, body, path, method)

    said: tuple[int, dict[str, Any]] = served(machine, call)
    return said


def test_calls_with_a_key_are_one_run_each_on_one_connection(machine: Machine) -> None:
    def call(port: int) -> list[tuple[int, dict[str, Any]]]:
        with connection(port) as made:
            return [posted(made, {**TOKEN, "Idempotency-Key": key}, '{"a": 1}') for key in ("k1", "k1", "k2")]

    said = served(machine, call)
    expected = [{"id": run_of("j", "orders", key), "durable": "ledger"} for key in ("k1", "k1", "k2")]
    assert said == [(202, one) for one in expected]
    assert len(machine.rows) == 2


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"path": "/other"}, 404, "no such route"),
        ({"method": "GET"}, 405, "only POST"),
        ({"headers": {**TOKEN, "Authorization": "Bearer x"}}, 401, "Authorization"),
        ({"headers": {"Authorization": "Bearer s3cret"}}, 400, "Idempotency-Key"),
        ({"body": b"{"}, 400, "expected JSON"),
    ],
)
def test_a_call_that_is_refused_starts_nothing(machine: Machine, change: Any, status: int, said: str) -> None:
    found, answer = one(machine, **change)
    assert (found, machine.rows) == (status, {})
    assert said in answer["error"]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_10_mb_is_refused_with_413_and_the_caller_sees_the_answer(machine: Machine, chunked: bool) -> None:
    def call(port: int) -> tuple[int, dict[str, Any]]:
        body = b"x" * 10_000_000
        with connection(port) as made:
            pieces: Any = (body[at : at + 65536] for at in range(0, len(body), 65536)) if chunked else body
            with contextlib.suppress(ConnectionError):  # it may hang up before all is sent
                made.request("POST", "/orders", pieces, TOKEN, encode_chunked=chunked)
            answer = made.getresponse()
            return answer.status, json.loads(answer.read())

    status, said = served(machine, call)
    assert (status, machine.rows) == (413, {})
    assert "65536 bytes" in said["error"]


def test_who_asks_first_whether_to_send_a_body_is_told(machine: Machine) -> None:
    def call(port: int) -> list[bytes]:
        head = "POST /orders HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s3cret\r\nIdempotency-Key: k\r\n"
        found = []
        for length in (2, 10_000_000):
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as sock:
                sock.sendall(f"{head}Content-Length: {length}\r\nExpect: 100-continue\r\n\r\n".encode())
                found.append(sock.recv(100).split(b"\r\n")[0])
                sock.sendall(b"{}")
                if length == 2:
                    found.append(sock.recv(100).split(b"\r\n")[0])
        return found

    assert [line.split()[1] for line in served(machine, call)] == [b"100", b"202", b"413"]


def test_what_is_not_http_is_answered_and_hung_up(machine: Machine) -> None:
    def call(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as sock:
            sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            data = b""
            while piece := sock.recv(1000):
                data += piece
            return data

    assert served(machine, call).startswith(b"HTTP/1.1 400")


def test_a_caller_who_says_nothing_is_disconnected(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_S", 0.2)

    def call(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) as sock:
            sock.sendall(b"POST /orders HTTP/1.1\r\nHost")
            return sock.recv(1000)

    assert served(machine, call) == b""


def test_one_machine_does_not_take_all_places(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PEER_CONNECTIONS_MAX", 2)

    def call(port: int) -> tuple[int, bytes]:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                status = first_answer(stack.enter_context(connection(port)))
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
            with contextlib.suppress(ConnectionResetError):
                return status, sock.recv(100)
        return status, b""

    assert served(machine, call) == (202, b"")


def test_calls_over_the_limit_wait_with_the_caller_and_known_ones_are_answered(machine: Machine) -> None:
    machine.node.pursuits.pursuits = dict.fromkeys(["j#a", "j@b", "j#c", "other#d"])
    status, said = one(machine)
    assert (status, said["error"]) == (429, "3 runs of the job are open already")
    machine.rows[run_of("j", "orders", "k1")] = '{"what": "k1"}'
    assert one(machine)[0] == 202


def test_a_full_job_is_not_counted_again_with_each_call(machine: Machine) -> None:
    counted: list[str] = []

    class Pursuits(dict[str, Any]):
        def keys(self) -> Any:
            counted.append("once")
            return super().keys()

    machine.node.pursuits.pursuits = Pursuits.fromkeys(["j#a", "j@b", "j#c"])

    def call(port: int) -> list[int]:
        with connection(port) as made:
            return [posted(made, {**TOKEN, "Idempotency-Key": str(number)})[0] for number in range(20)]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "COUNTED_S", LIMIT_S)
        assert served(machine, call) == [429] * 20
    assert len(counted) == 1


def test_head_is_answered_without_a_body(machine: Machine) -> None:
    def call(port: int) -> list[int]:
        found = []
        with connection(port) as made:
            for path in ("/orders", "/nowhere"):
                made.request("HEAD", path)
                answer = made.getresponse()
                assert answer.read() == b""
                found.append(answer.status)
            found.append(posted(made, TOKEN)[0])
        return found

    assert served(machine, call) == [405, 404, 202]


@pytest.mark.parametrize("before", [False, True])
def test_a_secret_that_nobody_can_read_takes_one_thread_and_the_last_one_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The file system hangs: callers without a token must not take the threads of the daemon."""
    monkeypatch.setattr(module, "READ_S", 0.3)
    hangs, goes_on, reads = threading.Event(), threading.Event(), []

    def read(_path: str) -> str:
        reads.append(1)
        if hangs.is_set():
            goes_on.wait(LIMIT_S)
        return "s3cret"

    monkeypatch.setattr(machine, "read_secret", read)

    def call(port: int) -> list[int]:
        found = []
        with connection(port) as made:
            if before:
                assert posted(made, TOKEN)[0] == 202
            monkeypatch.setattr(module, "SECRET_S", -1.0)
            hangs.set()
            started = len(reads)
            found += [posted(made, TOKEN)[0] for _ in range(3)]
            assert len(reads) - started == 1
            goes_on.set()
            hangs.clear()
            monkeypatch.setattr(module, "READ_S", LIMIT_S)
            found.append(posted(made, TOKEN)[0])
        return found

    assert served(machine, call) == [202 if before else 503] * 3 + [202]
    assert machine.threads == {0}


def test_a_secret_that_is_gone_is_not_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECRET_S", -1.0)

    def call(port: int) -> list[int]:
        with connection(port) as made:
            found = [posted(made, TOKEN)[0]]
            machine.told = None
            return [*found, posted(made, TOKEN)[0]]

    assert served(machine, call) == [202, 503]


def test_a_secret_that_is_mended_or_a_route_that_is_gone_is_no_problem_any_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_AGAIN_S", 0.01)
    this: Any = machine
    made = Calls(("127.0.0.1", 1), this, this, machine.read_secret)
    machine.told = None

    async def unread() -> bool:
        with contextlib.suppress(UnavailableError):
            await made._secret("j", ORDERS)
        return ("j", "orders") in made.problems

    async def watched() -> list[bool]:
        found = [await unread()]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.read_again)
            machine.told = "s3cret"
            with trio.move_on_after(LIMIT_S):
                while made.problems:
                    await trio.sleep(0.01)
            found.append(not made.problems)
            nursery.cancel_scope.cancel()
        monkeypatch.setattr(module, "SECRET_S", -1.0)
        machine.told = None
        found.append(await unread())
        machine.node.jobs, machine.node.jobs_digest = {}, "e"
        return [*found, not made.problems]

    assert trio.run(watched) == [True] * 4


def test_a_bug_is_logged_once_then_twice_and_not_with_each_call(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> bytes:
        raise KeyError("of a bug")

    monkeypatch.setattr(module, "_response", broken)

    def call(port: int) -> None:
        for _ in range(9):
            with connection(port) as made, contextlib.suppress(http.client.HTTPException, ConnectionError):
                posted(made, TOKEN)

    with structlog.testing.capture_logs() as logs:
        served(machine, call)
    assert [one["count"] for one in logs if one["event"] == "triggers.failed"] == [1, 2, 4, 8]


def test_a_key_with_other_values_is_a_conflict(machine: Machine) -> None:
    machine.rows[run_of("j", "orders", "k1")] = '{"what": "k0"}'
    assert one(machine)[0] == 409


@pytest.mark.parametrize(("state", "there", "status"), [
    (OPEN, [], 503), (HALF_OPEN, ["j#probe"], 503), (HALF_OPEN, [], 202), (CLOSED, [], 202),
])  # fmt: skip
def test_a_breaker_lets_nobody_call_until_it_is_closed_but_one(
    machine: Machine, state: str, there: list[str], status: int
) -> None:
    of = State()
    of.state, of.retry_at = state, EPOCH + 60.0
    machine.marks = {OF_BREAKER + "j": Hold(by="", at=EPOCH, note=of.text())}
    machine.node.drains.holds = machine.marks
    machine.node.jobs = {"j": msgspec.structs.replace(machine.node.jobs["j"], breaker=Breaker())}
    machine.pending = there
    answered, said = one(machine)
    assert answered == status
    assert status == 202 or said["error"] == "the job is held by its breaker"


def test_calls_share_the_room_of_the_job_with_its_other_triggers(machine: Machine) -> None:
    of = machine.node.jobs["j"]
    only = msgspec.structs.replace(ORDERS, max_open=1)
    drop = Trigger(kind="file", name="drop", path="/in/*", max_open=1)
    exclusive = msgspec.structs.replace(of, overlap="forbid", triggers=(only, drop))
    machine.node.jobs = {"j": exclusive}
    this: Any = machine
    made = Calls(("127.0.0.1", 1), this, this, machine.read_secret)

    async def call() -> list[Any]:
        async with made.rooms.turn("j"), trio.open_nursery() as nursery:
            said: list[Any] = []

            async def ask() -> None:
                said.append(await made._registered(exclusive, only, Arrival("k1", {"key": "k1"})))

            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            machine.node.pursuits.pursuits = {"j#drop.1": None}  # the other trigger's, whose turn it was
            made.rooms.turn("j").release()
            await trio.testing.wait_all_tasks_blocked()
            await made.rooms.turn("j").acquire()
        return said

    assert [one.status for one in trio.run(call)] == [429]
    assert machine.rows == {}


@pytest.mark.parametrize("how", ["suspended", "ledger", "secret"])
def test_a_node_that_may_register_nothing_says_try_later(machine: Machine, how: str) -> None:
    if how == "suspended":
        machine.node.drains.suspended = frozenset(("j",))
    elif how == "ledger":
        machine.reply = "other_ledger"
    else:
        machine.told = None
    assert one(machine)[0] == 503
    assert machine.rows == {}


def test_calls_are_encrypted(machine: Machine, tmp_path: Path) -> None:
    made = certificates(tmp_path)

    def call(port: int) -> tuple[int, dict[str, Any]]:
        trusted = ssl.create_default_context(cafile=made.ca)
        trusted.check_hostname = False
        with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", port, context=trusted)) as secured:
            return posted(secured, TOKEN)

    assert served(machine, call, lambda: tls_listener(made.cert, made.key))[0] == 202
