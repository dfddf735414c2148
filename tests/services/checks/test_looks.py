"""Looks at real sockets, programs and this machine."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from support.servers.certs import certificates
from support.servers.stores import Redis, redis as running_redis

from coordd.core.checks.check import Check
from coordd.core.checks.state import TEXT_MAX, Result, Standing, pack, unpack
from coordd.services.checks import machine, plugin, reached, service
from coordd.services.checks.service import Checks

LIMIT_S = 60.0


def look_at(kind: str, timeout_s: float = 20.0, **target: Any) -> Result:
    check = Check(name="c", kind=kind, timeout_s=timeout_s, **target)
    return trio.run(bounded, check)


async def bounded(check: Check) -> Result:
    with trio.fail_after(LIMIT_S):
        return await (plugin.look(check, "n1") if check.kind == "command" else reached.look(check))


def answered_by(answer: bytes, kind: str = "http", path: str = "/", scheme: str = "http", **more: Any) -> Result:
    """A look at a server that reads something and answers so."""

    async def main() -> Result:
        async def serve(stream: trio.SocketStream) -> None:
            await stream.receive_some(65536)
            await stream.send_all(answer)

        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, serve, [listener])
                port = listener.socket.getsockname()[1]
                url = f"{scheme}://127.0.0.1:{port}{path}"
                result = await reached.look(Check(name="c", kind=kind, url=url, timeout_s=30.0, **more))
                nursery.cancel_scope.cancel()
        return result

    return trio.run(main)


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("200 OK", "healthy"), ("204 No Content", "healthy"), ("302 Found", "degraded"), ("403 Forbidden", "degraded"),
        ("404 Not Found", "unavailable"), ("405 Method Not Allowed", "unavailable"), ("500 No", "unhealthy"),
        ("503 Busy", "unhealthy"), ("501 Not Implemented", "unavailable"),
    ],
)  # fmt: skip
def test_a_status_of_http_is_a_state(status: str, state: str) -> None:
    result = answered_by(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
    assert (result.state, result.text) == (state, f"it answers {status[:3]}")
    assert result.figures.startswith("time=")


def test_other_answers_than_http_and_slow_ones() -> None:
    assert answered_by(b"220 smtp\r\n").state == "unhealthy"
    assert answered_by(b"").state == "unhealthy"
    good = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    slow = answered_by(good, degraded_at=0.0)
    assert (slow.state, slow.text[:24]) == ("degraded", "it answers 200, but slow")
    assert answered_by(good, degraded_at=0.0, unhealthy_at=0.0).state == "unhealthy"


@pytest.mark.parametrize(
    ("page", "state", "text"),
    [
        ('{"status":"ALIVE","aliveworkers":3}', "healthy", "is ALIVE with 3 workers"),
        ('{"status":"ALIVE","aliveworkers":0}', "degraded", "has no worker"),
        ('{"status":"STANDBY","aliveworkers":0}', "unhealthy", "is STANDBY"),
        ("[]", "unhealthy", "is not a master"),
        ("nonsense", "unhealthy", "does not answer"),
    ],
)
def test_a_master_says_whether_it_is_alive(page: str, state: str, text: str) -> None:
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode()
    result = answered_by(answer, kind="spark_master", path="")
    assert (result.state, text in result.text) == (state, True), result


def test_of_several_masters_one_must_be_alive() -> None:
    page = '{"status":"ALIVE","aliveworkers":1}'
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: {len(page)}\r\n\r\n{page}".encode()
    assert answered_by(answer, kind="spark_master", path="", scheme="http://127.0.0.1:1,http").state == "healthy"


def test_brokers_are_asked_in_their_own_words() -> None:
    assert answered_by(b"\x01\x00\x00\x00\x00\x01\xf8", kind="amqp", scheme="amqp").state == "healthy"
    assert answered_by(b"HTTP/1.1 400", kind="amqp", scheme="amqp").state == "unhealthy"
    assert answered_by(b"-LOADING Redis is loading", kind="redis", scheme="redis").state == "degraded"
    assert answered_by(b"-NOAUTH Authentication required.", kind="redis", scheme="redis").state == "healthy"


def test_nobody_listens_and_nobody_answers() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        assert look_at("tcp", address=address).state == "unhealthy"
        sock.listen()
        assert look_at("tcp", address=address).state == "healthy"


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with running_redis(tls=certificates(tmp_path_factory.mktemp("tls"))) as server:
        yield server


def test_a_real_redis_answers_and_a_certificate_of_nobody_is_insecure(redis: Redis) -> None:
    assert look_at("redis", url=redis.url).state == "healthy"
    insecure = look_at("redis", url=redis.tls_url)
    assert (insecure.state, "certificate" in insecure.text) == ("insecure", True), insecure


# ---- programs


@pytest.fixture
def program(tmp_path: Path) -> Any:
    def made(body: str, timeout_s: float = 20.0) -> Result:
        path = tmp_path / "plugin"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return look_at("command", argv=(str(path),), timeout_s=timeout_s)

    return made


@pytest.mark.parametrize(
    ("code", "state"), [(0, "healthy"), (1, "degraded"), (2, "unhealthy"), (3, "unknown"), (77, "unknown")]
)
def test_an_exit_code_is_a_state(program: Any, code: int, state: str) -> None:
    result = program(f"echo 'DISK - fine | free=3;1;2 x=1'; echo 'more'; exit {code}")
    text = "DISK - fine" if code < 3 else f"exit code {code}: DISK - fine"
    assert result == Result(state, text, "free=3;1;2 x=1")


def test_secrets_and_controls_of_a_program_are_not_shown(program: Any) -> None:
    result = program(r"printf 'token=geheim \033[2J | password=geheim\n'")
    assert "geheim" not in result.text + result.figures
    assert "\x1b" not in result.text


def test_a_program_that_floods_hangs_or_leaves_children_is_contained(program: Any, tmp_path: Path) -> None:
    assert program("echo first; yes | head -c 20000000; exit 2") == Result("unhealthy", "first", "")
    mark = tmp_path / "child"
    started = time.monotonic()
    hung = program(f"(sleep 600 & echo $! > {mark}; wait); sleep 600", timeout_s=1.0)
    assert hung == Result("unhealthy", "it did not end within 1 s", "")
    assert time.monotonic() - started < LIMIT_S
    if mark.exists() and (pid := mark.read_text().strip()):  # a loaded machine may not have come that far
        gone(int(pid))
    assert program(f"sleep 600 & echo $! > {mark}; echo ok").state == "healthy", "a child keeps the output open"
    gone(int(mark.read_text()))


def gone(pid: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while os.path.exists(f"/proc/{pid}") and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, f"{pid} lives"
        time.sleep(0.02)


def test_a_program_has_little_environment_and_limits(program: Any) -> None:
    os.environ["GEHEIM"] = "1"
    try:
        result = program('echo "$(env | cut -d= -f1 | sort | tr "\\n" " ")$(ulimit -n) $(ulimit -c)"')
    finally:
        del os.environ["GEHEIM"]
    assert result.state == "healthy"
    assert "GEHEIM" not in result.text
    assert {"COORDD_CHECK", "COORDD_NODE", "PATH"} <= set(result.text.split())


def test_a_program_that_is_not_there_says_nothing_about_what_it_looks_at() -> None:
    result = look_at("command", argv=("/no/such/plugin",))
    assert (result.state, "cannot be executed: No such file" in result.text) == ("unknown", True)


# ---- this machine


def test_room_load_and_limits(tmp_path: Path) -> None:
    def seen(kind: str, **more: Any) -> str:
        return machine.look(Check(name="c", kind=kind, **more)).state

    assert seen("disk", path=str(tmp_path), degraded_at=0.0, unhealthy_at=0.0) == "healthy"
    assert seen("disk", path=str(tmp_path), degraded_at=101.0, unhealthy_at=0.0) == "degraded"
    assert seen("disk", path=str(tmp_path), degraded_at=101.0, unhealthy_at=100.5) == "unhealthy"
    assert seen("disk", path=str(tmp_path / "gone")) == "unavailable"
    assert seen("memory", degraded_at=0.0, unhealthy_at=0.0) == "healthy"
    assert seen("memory", degraded_at=101.0, unhealthy_at=101.0) == "unhealthy"
    assert seen("load", degraded_at=1e6, unhealthy_at=1e6) == "healthy"
    assert seen("load", degraded_at=0.0, unhealthy_at=1e6) == "degraded"


def test_a_look_that_raises_or_hangs_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger: Any = SimpleNamespace(state="connected", error="")
    driver: Any = SimpleNamespace(bus=SimpleNamespace(state="disconnected", error="refused"))
    checks = Checks({}, driver, ledger)

    def look(kind: str, **more: Any) -> Result:
        async def main() -> Result:
            with trio.fail_after(LIMIT_S):
                return await checks._look(Check(name="c", kind=kind, **more))

        return trio.run(main)

    assert look("ledger") == Result("healthy", "the ledger is connected")
    assert look("bus") == Result("unhealthy", "refused")
    ledger.state = "recovering"
    assert look("ledger").state == "degraded"

    def broken(_: Check) -> Result:
        raise ZeroDivisionError

    monkeypatch.setattr(machine, "look", broken)
    assert look("disk", path="/") == Result("unknown", "the look failed: ZeroDivisionError")
    monkeypatch.setattr(machine, "look", lambda _: time.sleep(1.0))
    assert look("disk", path="/", timeout_s=0.1) == Result("unhealthy", "no answer within 0.1 s")


def test_programs_that_take_all_places_make_no_other_check_unhealthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PLACE_S", 0.5)
    driver: Any = SimpleNamespace(node=SimpleNamespace(hostname="n1"))
    ledger: Any = None
    checks = Checks({}, driver, ledger)
    good = Check(name="good", kind="command", argv=("/bin/true",), timeout_s=0.1)
    monkeypatch.setattr(plugin, "look", partial(_slow, plugin.look))

    async def main() -> list[Result]:
        found: list[Result] = []
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for number in range(service.PROGRAMS_MAX):
                    nursery.start_soon(checks._look, Check(name=f"slow{number}", kind="command", argv=("slow",)))
                await trio.testing.wait_all_tasks_blocked()
                found.append(await checks._look(good))
                nursery.cancel_scope.cancel()
            monkeypatch.setattr(service, "PLACE_S", LIMIT_S)
            async with trio.open_nursery() as nursery:
                tokens = [object() for _ in range(service.PROGRAMS_MAX)]
                for token in tokens:
                    await checks._programs.acquire_on_behalf_of(token)
                nursery.start_soon(_released, checks, tokens[0])
                found.append(await checks._look(good))  # it waits longer than its timeout, and then looks
        return found

    assert trio.run(main) == [Result("unknown", "not looked: 8 other plug-ins run"), Result("healthy")]


async def _slow(real: Any, check: Check, node: str) -> Result:
    if check.argv == ("slow",):
        await trio.sleep_forever()
    return await real(check, node)  # type: ignore[no-any-return]  # plugin.look


async def _released(checks: Checks, token: object) -> None:
    await trio.sleep(5.5)  # more than the timeout, and what is granted beside it
    checks._programs.release_on_behalf_of(token)


def test_what_a_server_says_is_one_bounded_line_that_the_ledger_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody: Any = SimpleNamespace()
    checks = Checks({}, nobody, nobody)

    async def look(_: Check) -> Result:
        return Result("unhealthy", "h is \ud800\x1b[2J " + 400 * "x")

    monkeypatch.setattr(reached, "look", look)
    result = trio.run(checks._look, Check(name="c", kind="http", url="http://h/"))
    assert result.text.startswith("h is \\ud800\\x1b[2J xxx")
    assert len(result.text) == TEXT_MAX
    standing = Standing("unhealthy", text=result.text)
    assert unpack(pack(standing)) == standing


def test_what_is_trusted_is_read_in_a_thread_once_for_some_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def made() -> str:
        read.append(threading.current_thread().name)
        return "context"

    monkeypatch.setattr(ssl, "create_default_context", made)
    trusted = reached._Trusted()

    async def main() -> None:
        for _ in range(3):
            assert await trusted.context() == "context"  # type: ignore[comparison-overlap]  # it is not a real one
        monkeypatch.setattr(reached, "TRUSTED_S", -1.0)
        await trusted.context()

    trio.run(main)
    assert len(read) == 2
    assert threading.main_thread().name not in read
