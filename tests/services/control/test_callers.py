"""The callers of the control socket, their rights, and the owner of the socket."""

from __future__ import annotations

import grp
import json
import os
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from coordd.errors import UnavailableError
from coordd.services.control import callers, server as control
from coordd.services.control.callers import ADMIN, OPERATOR, VIEWER
from services.control.conversation import DEADLINE_S, STRANGER, Server, wait_for

# ---- who asks


class Stranger:
    """A user other than the daemon's. Without root's rights it is this user, and the daemon is told another uid."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        if os.getuid() == 0:
            self.uid, self.gid = 65533, 65534
            self.group = next(g for g in grp.getgrall() if g.gr_gid not in (0, self.gid))
            self.groups = str(self.group.gr_gid)
        else:
            self.uid, self.gid, self.groups = os.getuid(), os.getgid(), ""
            self.group = grp.getgrgid(self.gid)
            monkeypatch.setattr(os, "getuid", lambda: 4_000_000)

    def ask(self, path: str, method: str, *, in_group: bool = True, **params: Any) -> Any:
        line = json.dumps({"id": 1, "method": method, "params": params})
        argv = [str(self.uid), str(self.gid), self.groups if in_group else "", path, line]
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
    assert [(r["method"], r["uid"], r["outcome"]) for r in server.audited] == [
        ("operate", stranger.uid, "refused"),
        ("own", stranger.uid, "refused"),
    ]


def test_what_is_not_permitted_is_recorded_also_of_a_method_for_all(server: Server, stranger: Stranger) -> None:
    for how in ("refused", "forbidden"):
        stranger.ask(server.path, "fail", how=how, name="sales")
    assert [(r["method"], r["subject"], r["outcome"]) for r in server.audited] == [("fail", "sales", "refused")]


def test_what_a_viewer_is_told_of_a_failure_quotes_nothing(server: Server, stranger: Stranger) -> None:
    told = stranger.ask(server.path, "fail", how="quotes")["error"]
    assert told["message"] == "leaky.toml: argv: expected a list, found (hidden)"
    assert told["data"]["hint"] == "write (hidden)"
    assert '"5x"' in stranger.ask(server.path, "fail", how="own")["error"]["message"]  # it sent that itself
    with server.connect() as mine:
        assert "sekret" in mine.ask("fail", how="quotes")["error"]["message"]


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

    monkeypatch.setattr(callers, "_names", hangs)
    monkeypatch.setattr(control, "NAMES_S", 0.2)
    try:
        seen = stranger.ask(server.path, "who")["result"]
        assert asked.is_set()
        assert (seen["name"], seen["groups"], seen["role"]) == (f"uid {stranger.uid}", [], VIEWER)
    finally:
        answer.set()


# ---- the socket itself


def test_a_stop_removes_the_socket_that_this_daemon_made_and_no_other(server: Server) -> None:
    os.rename(server.path, f"{server.path}.mine")
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(server.path)
        server.control.close()
        assert os.path.exists(server.path)
    os.rename(f"{server.path}.mine", server.path)
    server.control.close()
    assert not os.path.exists(server.path)


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
    with pytest.raises(UnavailableError, match="not a socket"):
        Server(path)
    with open(path) as file:
        assert file.read() == "precious"
