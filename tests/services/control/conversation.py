"""A control server that runs, and a client that talks to it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Self

import trio

from coordd.errors import ConfigError, JobFileError, RefusedError, UnavailableError
from coordd.services.audit import Audit
from coordd.services.control import disclosure
from coordd.services.control.callers import ADMIN, OPERATOR, Caller, Method
from coordd.services.control.server import ControlServer

# Longer than any step on a busy machine; reached only if something hangs.
DEADLINE_S = 30.0

# A client with another uid: it drops its rights by itself.
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
    """The methods of the server in these tests."""

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
            "change": Method(self.hold, changes=True),
            "tail": Method(self.tail),
            "fail.change": Method(self.fail, changes=True),
        }

    async def echo(self, params: dict[str, Any], caller: Caller) -> Any:
        return params

    async def who(self, params: dict[str, Any], caller: Caller) -> Any:
        return {"uid": caller.uid, "role": caller.role, "name": caller.name, "groups": sorted(caller.groups)}

    async def tail(self, params: dict[str, Any], caller: Caller) -> Any:
        assert caller.asked is not None
        caller.asked.looked = bool(params["lines"])
        return params

    async def hold(self, params: dict[str, Any], caller: Caller) -> Any:
        self.held += 1
        await self.release.wait()
        return params

    async def fail(self, params: dict[str, Any], caller: Caller) -> Any:
        raise {
            "bug": RuntimeError("oops"),
            "refused": RefusedError("not now", kind="try_later", hint="wait"),
            "unavailable": UnavailableError("the ledger does not answer"),
            "forbidden": RefusedError("the job is another's", kind="not_permitted"),
            "own": RefusedError('every: found the text "5x"', kind="bad_argument"),
            "quotes": RefusedError(
                'leaky.toml: argv: expected a list, found "--password {"a": "sekret"}"',
                kind="bad_job",
                hint='write "sekret"',
            ),
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
        self.audited: list[dict[str, Any]] = []  # the records of the audit
        self.control = ControlServer(
            path,
            self.methods.table(),
            operator_group=operator_group,
            viewer_group=viewer_group,
            unavailable=frozenset(("breaker.list",)),
            told=disclosure.sentence,
            audit=Audit(self.audited.append),
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
    """A raw client: it sends bytes and reads lines."""

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
