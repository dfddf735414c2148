"""The control socket as clients use it: every line is answered, every caller known, and no client ends the server."""

from __future__ import annotations

import select
import socket
from typing import Any

import pytest
from structlog.testing import capture_logs

from coordd.services.control import server as control
from coordd.services.control.rpc import LINE_BYTES_MAX
from services.control.conversation import Server, wait_for

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


# ---- changes


@pytest.fixture
def resets(server: Server) -> None:
    """A client has asked for a change, and is gone: the kernel reset its connection."""
    with server.connect() as client:
        client.send(b'{"id":1,"method":"echo"}\n{"id":2,"method":"change","params":{"job":"sales"}}\n')
        wait_for(lambda: server.methods.held == 1)
        wait_for(lambda: select.select([client.sock], [], [], 0)[0] != [])  # an unread answer makes it a reset


@pytest.mark.usefixtures("resets")
def test_a_change_goes_on_and_is_recorded_although_its_client_is_gone(server: Server) -> None:
    server.soon(server.methods.release.set)
    wait_for(lambda: server.audited != [])
    assert [(r["method"], r["subject"], r["outcome"]) for r in server.audited] == [("change", "sales", "done")]
    wait_for(lambda: server.control._connections == 0)


@pytest.mark.usefixtures("resets")
def test_a_change_that_the_stop_ends_is_recorded_as_unknown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "STOP_S", 0.1)
    server.stop()
    assert [(r["subject"], r["outcome"]) for r in server.audited] == [("sales", "unknown")]


def test_each_change_without_an_answer_is_recorded_as_unknown(server: Server) -> None:
    with server.connect() as client:
        for job in ("a", "b", "b"):
            client.ask("fail.change", how="unavailable", job=job)
        client.ask("fail.change", how="refused", job="c")
    assert [(r["subject"], r["outcome"]) for r in server.audited] == [
        ("a", "unknown"),
        ("b", "unknown"),
        ("c", "refused"),
    ]


def test_an_answer_with_lines_of_a_log_is_recorded(server: Server) -> None:
    with server.connect() as client:
        client.ask("tail", id="a#1", lines=[])
        client.ask("tail", id="a#2", lines=["secret"])
    assert [(r["method"], r["subject"], r["outcome"]) for r in server.audited] == [("tail", "a#2", "done")]


# ---- clients that misbehave


def test_a_client_that_never_reads_is_let_go(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SEND_S", 0.2)
    with server.connect() as client:
        client.send(b'{"id":1,"method":"large"}\n{"id":2,"method":"hold"}\n')
        wait_for(lambda: server.control._connections == 0)  # also of its pending requests
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
        for _ in range(50):  # closed before their answers come
            server.connect().__exit__()
        assert clients[0].ask("echo", still="there")["result"] == {"still": "there"}
    finally:
        for client in clients:
            client.__exit__()
    wait_for(lambda: server.control._connections == 0)
    with server.connect() as client:
        assert client.ask("echo")["result"] == {}


def test_who_gets_no_place_hears_why_though_it_has_asked_already(server: Server) -> None:
    """If a socket is closed with unread bytes in it, its peer gets a reset."""
    clients = [server.connect() for _ in range(control.CONNECTIONS_MAX)]
    try:
        wait_for(lambda: server.control._connections == control.CONNECTIONS_MAX)
        with server.connect() as late:
            late.send(b'{"id":1,"method":"echo"}\n')
            assert late.read()["error"]["data"]["kind"] == "try_later"
            assert late.read() is None
    finally:
        for client in clients:
            client.__exit__()


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
