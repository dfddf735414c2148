"""The control socket as its clients meet it: every line is answered, every caller known, nothing ends the server."""

from __future__ import annotations

import grp
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any, Self

import pytest
import trio
from structlog.testing import capture_logs

from coordd.errors import ConfigError, JobFileError, RefusedError, UnavailableError
from coordd.services.control import server as control
from coordd.services.control.callers import ADMIN, OPERATOR, VIEWER, Caller, Method
from coordd.services.control.rpc import LINE_BYTES_MAX
from coordd.services.control.server import ControlServer

# Longer than anything here takes on a busy machine; reached only when something hangs.
DEADLINE_S = 30.0

# A client under another uid: it drops its rights by itself, so that it needs none to start.
STRANGER = """
import os, socket, sys
uid, gid, groups, path, line = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
if os.getuid() == 0:
    os.setgroups([int(group) for group in groups.split(",") if group])
    os.setgid(gid)
    os.setuid(uid)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(30)
sock.connect(path)
try:
    sock.sendall(line.encode() + b"\\n")
    sock.shutdown(socket.SHUT_WR)
except OSError:
    pass  # closed already, with an answer that says why
try:
    while data := sock.recv(65536):
        sys.stdout.buffer.write(data)
except ConnectionResetError:
    pass  # the same
"""


class Methods:
    """What the server of these tests can do."""

    def __init__(self) -> None:
        self.token: trio.lowlevel.TrioToken | None = None
        self.release = trio.Event()
        self.held = 0
        self.streams_ended = 0
        self.endless_sent = 0

    def table(self) -> dict[str, Method]:
        return {
            "echo": Method(self.echo),
            "who": Method(self.who),
            "operate": Method(self.who, OPERATOR),
            "own": Method(self.who, ADMIN),
            "hold": Method(self.hold),
            "fail": Method(self.fail),
            "large": Method(self.large),
            "count": Method(self.count),
            "endless": Method(self.endless),
            "unwritable": Method(self.unwritable),
            "breaks": Method(self.breaks),
        }

    async def echo(self, params: dict[str, Any], caller: Caller) -> Any:
        return params

    async def who(self, params: dict[str, Any], caller: Caller) -> Any:
        return {"uid": caller.uid, "role": caller.role, "name": caller.name, "groups": sorted(caller.groups)}

    async def hold(self, params: dict[str, Any], caller: Caller) -> Any:
        self.held += 1
        await self.release.wait()
        return params

    async def fail(self, params: dict[str, Any], caller: Caller) -> Any:
        raise {
            "bug": RuntimeError("oops"),
            "refused": RefusedError("not now", kind="try_later", hint="wait"),
            "unavailable": UnavailableError("the ledger does not answer"),
            "config": ConfigError("coordd.toml: bad"),
            "job": JobFileError("j.toml: bad"),
            "group": ExceptionGroup("two", [RuntimeError("one"), ValueError("two")]),
        }[params["how"]]

    async def large(self, params: dict[str, Any], caller: Caller) -> Any:
        return "x" * (8 * 1024 * 1024)

    async def unwritable(self, params: dict[str, Any], caller: Caller) -> Any:
        return {"value": float("nan")}

    async def count(self, params: dict[str, Any], caller: Caller) -> Any:
        async def counted() -> AsyncGenerator[dict[str, Any], None]:
            for number in range(3):
                yield {"number": number}

        return counted()

    async def breaks(self, params: dict[str, Any], caller: Caller) -> Any:
        async def broken() -> AsyncGenerator[dict[str, Any], None]:
            yield {"number": 0}
            await self.fail(params, caller)

        return broken()

    async def endless(self, params: dict[str, Any], caller: Caller) -> Any:
        async def ticking() -> AsyncGenerator[dict[str, Any], None]:
            try:
                while True:
                    yield {"filler": "x" * int(params.get("size", 10))}
                    self.endless_sent += 1
                    await trio.sleep(0.005)
            finally:
                self.streams_ended += 1

        return ticking()


class Server:
    """The real server, in a trio of its own, in a thread."""

    def __init__(self, path: str, *, operator_group: str = "no-such-group", viewer_group: str = "") -> None:
        self.path = path
        self.methods = Methods()
        self.control = ControlServer(
            path,
            self.methods.table(),
            operator_group=operator_group,
            viewer_group=viewer_group,
            unavailable=frozenset(("breaker.list",)),
        )
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._started.wait(DEADLINE_S)
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as exc:
            self._failure = exc
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        listener = self.control.bind()
        async with trio.open_nursery() as nursery:
            self._cancel = nursery.cancel_scope
            nursery.start_soon(self.control.serve, listener)
            self._started.set()

    def soon(self, call: Callable[[], object]) -> None:
        self._token.run_sync_soon(call)

    def stop(self) -> None:
        if self._thread.is_alive():
            self.soon(self._cancel.cancel)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert self._failure is None, self._failure

    def connect(self) -> Conversation:
        return Conversation(self.path)


class Conversation:
    """A client without manners of its own: it sends bytes and reads lines."""

    def __init__(self, path: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(DEADLINE_S)
        self.sock.connect(path)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self) -> Any:
        line = self._file.readline()
        return json.loads(line) if line else None

    def ask(self, method: str, **params: Any) -> Any:
        self.send(json.dumps({"id": 1, "method": method, "params": params}).encode() + b"\n")
        return self.read()

    def kind(self, line: bytes) -> str:
        self.send(line)
        return str(self.read()["error"]["data"]["kind"])


def wait_for(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not what():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def server(directory: str) -> Iterator[Server]:
    made = Server(f"{directory}/control.sock")
    yield made
    made.stop()


# ---- lines


def test_a_question_is_answered(server: Server) -> None:
    with server.connect() as client:
        client.send(b'{"id":"q","method":"echo","params":{"a":[1,"\xc3\xa9"]}}\n')
        assert client.read() == {"jsonrpc": "2.0", "id": "q", "result": {"a": [1, "é"]}}


def test_a_client_that_only_closes_its_sending_half_gets_its_answers(server: Server) -> None:
    """What `echo … | nc -U -q1 SOCKET` does."""
    with server.connect() as client:
        client.send(b'{"id":1,"method":"echo","params":{"n":1}}\n\n{"id":2,"method":"echo","params":{"n":2}}\n')
        client.sock.shutdown(socket.SHUT_WR)
        assert sorted(client.read()["id"] for _ in range(2)) == [1, 2]
        assert client.read() is None


def test_a_last_line_without_an_end_is_answered_too(server: Server) -> None:
    with server.connect() as client:
        client.send(b'{"id":1,"method":"echo"}')
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read()["id"] == 1


def test_a_line_may_come_in_pieces(server: Server) -> None:
    with server.connect() as client:
        for byte in b'{"id":1,"method":"echo"}\n':
            client.send(bytes([byte]))
        assert client.read()["id"] == 1


def test_a_notification_gets_no_answer(server: Server) -> None:
    with server.connect() as client:
        client.send(b'{"method":"echo"}\n{"method":"fail","params":{"how":"bug"}}\n{"method":"nix"}\n')
        assert client.ask("echo", last=True)["result"] == {"last": True}


def test_a_notification_may_open_a_stream_which_has_no_answer_either(server: Server) -> None:
    with server.connect() as client:
        client.send(b'{"method":"count"}\n')
        said = [client.read() for _ in range(4)]
    assert [message["params"].get("number") for message in said] == [0, 1, 2, None]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"hello\n", "not_json"),
        (b"\xff\xff\n", "not_utf8"),
        (b"[" * 100_000 + b"\n", "too_deep"),
        (b'{"id":1,"id":1,"method":"echo"}\n', "not_json"),
        (b'{"id":NaN,"method":"echo"}\n', "not_json"),
        (b'{"id":1e999,"method":"echo"}\n', "not_json"),
        (b'{"id":"\\ud800","method":"echo"}\n', "not_json"),
        (b'{"id":1,"method":"echo","params":[]}\n', "invalid_params"),
        (b'{"id":1,"method":"nix"}\n', "unknown_method"),
        (b'{"id":1,"method":"\\u0000"}\n', "unknown_method"),
        (b'{"id":1,"method":"breaker.list"}\n', "not_available"),
        (b'{"id":1,"method":"fail","params":{"how":"bug"}}\n', "internal"),
        (b'{"id":1,"method":"fail","params":{"how":"group"}}\n', "internal"),
        (b'{"id":1,"method":"fail","params":{"how":"refused"}}\n', "try_later"),
        (b'{"id":1,"method":"fail","params":{"how":"unavailable"}}\n', "unavailable"),
        (b'{"id":1,"method":"fail","params":{"how":"config"}}\n', "bad_config"),
        (b'{"id":1,"method":"fail","params":{"how":"job"}}\n', "bad_job"),
        (b'{"id":1,"method":"unwritable"}\n', "internal"),
        (b'{"id":1,"method":"echo","params":{"x":"' + b"x" * LINE_BYTES_MAX + b'"}}\n', "too_large"),
    ],
)
def test_a_bad_line_costs_an_error_answer_and_nothing_more(server: Server, line: bytes, kind: str) -> None:
    with server.connect() as client:
        assert client.kind(line) == kind
    with server.connect() as other:
        assert other.ask("echo", still="there")["result"] == {"still": "there"}


def test_an_error_has_all_its_parts(server: Server) -> None:
    with server.connect() as client:
        answer = client.ask("fail", how="refused")
        assert answer["error"]["message"] == "not now"
        assert answer["error"]["data"] == {"kind": "try_later", "hint": "wait"}
        assert "echo" in client.ask("nix")["error"]["data"]["hint"]


def test_a_line_that_never_ends_is_cut_off(server: Server) -> None:
    with server.connect() as client:
        with pytest.raises(ConnectionError):
            for _ in range(1000):
                client.send(b"x" * 65536)
        answer = client.read()
        assert answer["id"] is None
        assert answer["error"]["data"]["kind"] == "too_large"
    with server.connect() as other:
        assert other.ask("echo")["result"] == {}


def test_many_questions_in_flight_are_all_answered(server: Server) -> None:
    with server.connect() as client:
        client.send(b"".join(b'{"id":%d,"method":"echo"}\n' % number for number in range(2000)))
        assert {client.read()["id"] for _ in range(2000)} == set(range(2000))


def test_slow_questions_are_bounded_and_hold_up_nobody_else(server: Server) -> None:
    with server.connect() as client, server.connect() as other:
        client.send(b"".join(b'{"id":%d,"method":"hold"}\n' % number for number in range(100)))
        wait_for(lambda: server.methods.held >= control.IN_FLIGHT_MAX)
        assert other.ask("echo")["result"] == {}
        assert server.methods.held == control.IN_FLIGHT_MAX
        server.soon(server.methods.release.set)
        assert {client.read()["id"] for _ in range(100)} == set(range(100))


# ---- clients that misbehave


def test_a_client_that_never_reads_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SEND_S", 0.2)
    with server.connect() as client:
        client.send(b'{"id":1,"method":"large"}\n{"id":2,"method":"hold"}\n')
        wait_for(lambda: server.control._connections == 0)  # also of what it still waits for
    with server.connect() as other:
        assert other.ask("echo")["result"] == {}


def test_a_client_that_never_reads_its_stream_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SEND_S", 0.2)
    with server.connect() as client:
        client.send(b'{"id":1,"method":"endless","params":{"size":100000}}\n')
        wait_for(lambda: server.methods.streams_ended == 1)
        wait_for(lambda: server.control._connections == 0)


def test_a_client_that_leaves_in_the_middle_is_no_failure(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []
    monkeypatch.setattr(control.log, "exception", lambda event, **_: failures.append(event), raising=False)
    for _ in range(20):
        with server.connect() as client:
            client.send(b'{"id":1,"method":"large"}\n' * 3)
        with server.connect() as client:
            client.send(b'{"id":1,"meth')
        with server.connect() as client:
            client.ask("endless")
    wait_for(lambda: server.control._connections == 0)
    assert failures == []
    assert server.methods.streams_ended == 20


def test_a_client_that_says_nothing_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "IDLE_S", 0.1)
    with server.connect() as client:
        assert client.read() is None
    with server.connect() as listener:  # but not one that listens
        listener.ask("endless")
        sent = server.methods.endless_sent
        wait_for(lambda: server.methods.endless_sent > sent + 50)
        assert listener.read()["params"]["subscription"] == 1


def test_two_hundred_connections_are_served(server: Server) -> None:
    clients = [server.connect() for _ in range(200)]
    try:
        for number, client in enumerate(clients):
            client.send(b'{"id":%d,"method":"echo"}\n' % number)
        assert [client.read()["id"] for client in clients] == list(range(200))
    finally:
        for client in clients:
            client.__exit__()


def test_too_many_connections_are_told_so_and_end_nothing(server: Server) -> None:
    clients = [server.connect() for _ in range(control.CONNECTIONS_MAX)]
    try:
        wait_for(lambda: server.control._connections == control.CONNECTIONS_MAX)
        with server.connect() as late:
            assert late.read()["error"]["data"]["kind"] == "try_later"
            assert late.read() is None
        for _ in range(50):  # gone before they can be told: their answers meet a closed socket
            server.connect().__exit__()
        assert clients[0].ask("echo", still="there")["result"] == {"still": "there"}
    finally:
        for client in clients:
            client.__exit__()
    wait_for(lambda: server.control._connections == 0)
    with server.connect() as client:
        assert client.ask("echo")["result"] == {}


# ---- streams


def test_a_stream_carries_its_subscription_and_ends(server: Server) -> None:
    with server.connect() as client:
        assert client.ask("count")["result"] == {"subscription": 1}
        said = [client.read()["params"] for _ in range(4)]
        assert said == [*({"subscription": 1, "number": n} for n in range(3)), {"subscription": 1, "end": True}]
        assert client.ask("count")["result"] == {"subscription": 2}


@pytest.mark.parametrize(
    ("how", "words", "level"),
    [
        ("bug", "a bug in coordd: RuntimeError('oops')", "error"),
        ("group", "a bug in coordd: ExceptionGroup(", "error"),
        ("unavailable", "the ledger does not answer", "warning"),
    ],
)
def test_a_stream_that_fails_ends_with_a_sentence_and_the_connection_goes_on(
    server: Server, how: str, words: str, level: str
) -> None:
    with capture_logs() as logged, server.connect() as client:
        assert client.ask("breaks", how=how)["result"] == {"subscription": 1}
        said = [client.read()["params"] for _ in range(3)]
        assert said[0] == {"subscription": 1, "number": 0}
        assert said[1]["error"].startswith(words)
        assert said[2] == {"subscription": 1, "end": True}
        assert client.ask("echo", x=1)["result"] == {"x": 1}
    assert [(line["event"], line["log_level"], line["method"]) for line in logged] == [
        ("stream.failed", level, "breaks")
    ]


def test_questions_are_answered_beside_a_stream(server: Server) -> None:
    with server.connect() as client:
        client.ask("endless")
        client.send(b'{"id":9,"method":"echo"}\n')
        assert any(client.read().get("id") == 9 for _ in range(1000))


def test_streams_of_one_client_are_bounded(server: Server) -> None:
    with server.connect() as client:
        for number in range(control.STREAMS_MAX + 1):
            client.send(b'{"id":%d,"method":"endless"}\n' % number)
        answers: list[Any] = []
        while len(answers) < control.STREAMS_MAX + 1:
            message = client.read()
            if "id" in message:
                answers.append(message)
        subscriptions = [answer["result"]["subscription"] for answer in answers if "result" in answer]
        assert sorted(subscriptions) == list(range(1, control.STREAMS_MAX + 1))
        assert [answer["error"]["data"]["kind"] for answer in answers if "error" in answer] == ["try_later"]
    wait_for(lambda: server.methods.streams_ended == control.STREAMS_MAX)


# ---- who asks


class Stranger:
    """Another user than the daemon's. Without root's rights this user plays it, and the daemon is told another uid."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if os.getuid() == 0:
            self.uid, self.gid = 65533, 65534
            self.group = next(g for g in grp.getgrall() if g.gr_gid not in (0, self.gid))
            self.groups = str(self.group.gr_gid)
        else:
            self.uid, self.gid, self.groups = os.getuid(), os.getgid(), ""
            self.group = grp.getgrgid(self.gid)
            monkeypatch.setattr(os, "getuid", lambda: 4_000_000)

    def ask(self, path: str, method: str, *, in_group: bool = True) -> Any:
        argv = [str(self.uid), str(self.gid), self.groups if in_group else "", path, f'{{"id":1,"method":"{method}"}}']
        done = subprocess.run(
            [sys.executable, "-I", "-c", STRANGER, *argv], capture_output=True, timeout=60, check=True
        )
        return json.loads(done.stdout)


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Stranger:
    return Stranger(monkeypatch)


def test_the_daemons_own_user_may_do_everything(server: Server) -> None:
    with server.connect() as client:
        assert client.ask("own")["result"]["role"] == ADMIN


def test_a_stranger_may_look_and_no_more(server: Server, stranger: Stranger) -> None:
    seen = stranger.ask(server.path, "who")["result"]
    assert (seen["uid"], seen["role"]) == (stranger.uid, VIEWER)
    for method in ("operate", "own"):
        error = stranger.ask(server.path, method)["error"]
        assert error["data"]["kind"] == "not_permitted"
        assert method in error["message"]


def test_the_operator_group_may_operate(directory: str, stranger: Stranger) -> None:
    server = Server(f"{directory}/control.sock", operator_group=stranger.group.gr_name)
    try:
        seen = stranger.ask(server.path, "operate")["result"]
        assert seen["role"] == OPERATOR
        assert stranger.group.gr_name in seen["groups"]  # what owners of jobs are known by
        assert stranger.ask(server.path, "own")["error"]["data"]["kind"] == "not_permitted"
    finally:
        server.stop()


def test_with_a_viewer_group_nobody_else_may_look(directory: str, stranger: Stranger) -> None:
    server = Server(f"{directory}/control.sock", viewer_group="no-such-group-either")
    try:
        error = stranger.ask(server.path, "who")["error"]
        assert error["data"]["kind"] == "not_permitted"
        assert "no-such-group-either" in error["data"]["hint"]
    finally:
        server.stop()
    server = Server(f"{directory}/second.sock", viewer_group=stranger.group.gr_name)
    try:
        assert stranger.ask(server.path, "who")["result"]["role"] == VIEWER
    finally:
        server.stop()


def test_strangers_cannot_take_all_the_places(
    server: Server, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECTIONS_MAX", 4)
    monkeypatch.setattr(control, "CONNECTIONS_KEPT", 2)
    clients = [server.connect() for _ in range(2)]
    try:
        wait_for(lambda: server.control._connections == 2)
        assert stranger.ask(server.path, "who")["error"]["data"]["kind"] == "try_later"
        if os.getuid() == 0:
            with server.connect() as mine:
                assert mine.ask("who")["result"]["role"] == ADMIN
    finally:
        for client in clients:
            client.__exit__()


def test_a_directory_of_users_that_hangs_holds_up_nobody(
    server: Server, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def hangs(*_: object) -> Any:
        asked.set()
        answer.wait(DEADLINE_S)
        return "late", frozenset({"late"})

    monkeypatch.setattr(control, "_names", hangs)
    monkeypatch.setattr(control, "NAMES_S", 0.2)
    try:
        seen = stranger.ask(server.path, "who")["result"]
        assert asked.is_set()
        assert (seen["name"], seen["groups"], seen["role"]) == (f"uid {stranger.uid}", [], VIEWER)
    finally:
        answer.set()


# ---- the socket itself


def test_the_socket_is_open_to_all_and_the_kernel_says_who_they_are(server: Server) -> None:
    assert os.stat(server.path).st_mode & 0o777 == 0o666


def test_a_stale_socket_is_replaced(directory: str) -> None:
    path = f"{directory}/control.sock"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(path)
    dead.close()
    server = Server(path)
    with server.connect() as client:
        assert client.ask("echo")["result"] == {}
    server.stop()


def test_a_second_daemon_does_not_take_the_socket_of_the_first(server: Server) -> None:
    with pytest.raises(UnavailableError, match="another daemon"):
        Server(server.path)
    with server.connect() as client:
        assert client.ask("echo")["result"] == {}


def test_a_daemon_that_accepts_nobody_just_now_keeps_its_socket(directory: str) -> None:
    path = f"{directory}/control.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(4)]
        try:
            for client in waiting:
                client.setblocking(False)
                client.connect_ex(path)
            with pytest.raises(UnavailableError, match="another daemon"):
                Server(path)
            assert os.path.exists(path)
        finally:
            for client in waiting:
                client.close()


def test_a_file_of_that_name_is_not_removed(directory: str) -> None:
    path = f"{directory}/coordd.toml"
    with open(path, "w") as file:
        file.write("precious")
    with pytest.raises(UnavailableError, match="something else"):
        Server(path)
    with open(path) as file:
        assert file.read() == "precious"
