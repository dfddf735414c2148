"""The pages in this process, on a fake daemon, and a client that says exactly what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from itertools import count
from typing import Any

import pytest
import trio
from support.fake_daemon import RUN, STATUS, FakeDaemon, Stream, open_directory

from coordd.cli.web.door import Door
from coordd.cli.web.http import Server
from coordd.cli.web.site import Site
from coordd.cli.web.source import Source

READY = {"node": True, "cluster": True, "reason": None}
JOB: dict[str, Any] = {
    "name": "j", "description": "", "schedule": "0 2 * * *", "timezone": "UTC", "next_fire_at": "2026-10-04T02:00:00Z",
    "last_success_at": None, "expect_within_s": None, "late": False, "suspended": None, "problems": [], "enabled": True,
    "owner": None, "starts": "/bin/true", "kind": "command",
}  # fmt: skip


class Pages:
    """The pages, listening on a port, and a browser's part."""

    def __init__(self, daemon: FakeDaemon, door: Door, source: Source, port: int) -> None:
        self.daemon = daemon
        self.door = door
        self.source = source
        self.port = port
        self.cookie = ""
        self.defects: list[BaseException] = []

    def ask(self, method: str, path: str, body: str = "", **headers: str) -> tuple[HTTPResponse, str]:
        """One request below the root; underscores in the names of headers are hyphens."""
        return self.anywhere(method, self.door.root + path, body, **headers)

    def anywhere(self, method: str, path: str, body: str = "", **headers: str) -> tuple[HTTPResponse, str]:
        """One request to any path."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        sent = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie}
        if method == "POST":
            sent |= {"Origin": f"http://127.0.0.1:{self.port}", "Content-Type": "application/x-www-form-urlencoded"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body=body or None, headers={k: v for k, v in sent.items() if v})
        answer = connection.getresponse()
        text = "" if answer.getheader("Content-Type") == "text/event-stream" else answer.read().decode()
        return answer, text

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        answer, text = self.ask("GET", path, **headers)
        return answer.status, text

    def enter(self) -> None:
        """Open a session."""
        answer, _ = self.ask("GET", f"/?token={self.door.token()}")
        assert answer.status == 200
        self.cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]


def answers() -> dict[str, Any]:
    return {
        "status": {**STATUS, "ready": READY, "suspended": {"all": None, "jobs": []}, "drained": None},
        "ping": {"pong": True, "version": "9", "user": "ann", "role": "operator"},
        "job.list": [JOB],
        "job.show": JOB,
        "job.fires": [{"fire_time": "2026-10-03T02:00:00Z", "decision": "launched", "reason": "", "run": "j#1"}],
        "job.next": [{"fire_time": "2026-10-04T02:00:00Z", "clocks_s": 0.0}],
        "run.list": lambda params: [] if params.get("state") else [RUN],
        "run.show": {**RUN, "attempts": [{**RUN, "attempt": 0}], "timeline": []},
        "run.logs": {"id": "j#1", "attempt": 0, "text": "one\n<b>two</b>\x1b[31m\n"},
        "why": {"id": "j", "sentence": "j#1 <ran> on edge-1.", "timeline": [], "unheard": []},
        "alarm.list": [],
        "deadletter.list": [],
        "node.list": [{"hostname": "edge-1", "state": "alive", "says": "ready", "self": True, "last_seen_s": 0.0}],
        "ledger.status": {"state": "connected", "url": "sqlite:///l", "error": None},
        "breaker.list": [],
        "pool.list": [],
        "election.list": [],
        "events.subscribe": Stream(),
    }


@contextmanager
def served(daemon: FakeDaemon) -> Iterator[Pages]:
    """The pages run in a thread until the block ends."""
    made: list[Pages] = []
    ready, ended = threading.Event(), trio.Event()
    words = count(1)

    async def serve() -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        door, source = Door(port, lambda: f"word-{next(words)}"), Source(daemon.path)
        made.append(Pages(daemon, door, source, port))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(source.hear)
            nursery.start_soon(Server(Site(source, door).handle, made[0].defects.append).serve, listener)
            token.append(trio.lowlevel.current_trio_token())
            ready.set()
            await ended.wait()
            nursery.cancel_scope.cancel()

    token: list[trio.lowlevel.TrioToken] = []
    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    assert ready.wait(30)
    try:
        yield made[0]
    finally:
        token[0].run_sync_soon(ended.set)
        thread.join(30)
        assert not thread.is_alive()
    assert made[0].defects == []


@pytest.fixture
def pages() -> Iterator[Pages]:
    with open_directory() as directory:
        daemon = FakeDaemon(f"{directory}/control.sock")
        daemon.answers |= answers()
        try:
            with served(daemon) as found:
                yield found
        finally:
            daemon.close()
