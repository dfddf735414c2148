"""The listener: one answer a client, whatever the client does, and a port in use is named and tried again."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from coordd.services import listening
from coordd.services.metrics import listener as module
from coordd.services.metrics.listener import Listener, Page
from coordd.services.metrics.textfile import TextFile

LIMIT_S = 20.0


async def big() -> Page:
    return Page(200, b"x" * 50_000_000)


async def hello() -> Page:
    return Page(200, b"hello\n")


async def broken() -> Page:
    raise ValueError("a bug")


PAGES = {"/hello": hello, "/big": big, "/broken": broken}


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def served(client: Callable[[int, Listener], Awaitable[None]]) -> None:
    """Run a client against a listener."""

    async def main() -> None:
        port = free_port()
        listener = Listener(("127.0.0.1", port), PAGES)
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.run)
                answered = b""
                while not answered:
                    await trio.sleep(0.01)
                    with contextlib.suppress(OSError):
                        answered = await said(port, get("/hello"))
                while listener._connections:
                    await trio.sleep(0.01)
                await client(port, listener)
                nursery.cancel_scope.cancel()

    trio.run(main)


async def said(port: int, request: bytes) -> bytes:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with stream:
        await stream.send_all(request)
        answer = b""
        async for data in stream:
            answer += data
        return answer


def get(path: str, method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (get("/hello"), 200),
        (get("/hello?x=1"), 200),
        (get("/hello", "HEAD"), 200),
        (get("/hello", "POST"), 405),
        (get("/"), 404),
        (b"GET /hello HTTP/1.0\r\n\r\n", 200),
        (b"\x16\x03\x01 nonsense\r\n\r\n", 400),
        (b"GET /hello HTTP/1.1\r\n\r\n", 400),  # without a host
        (b"GET /hello HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", 431),
    ],
)
def test_an_answer_for_every_request(request_bytes: bytes, status: int) -> None:
    async def client(port: int, _: Listener) -> None:
        answer = await said(port, request_bytes)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode())
        assert (answer.endswith(b"hello\n")) == (status == 200 and not request_bytes.startswith(b"HEAD"))

    served(client)


def test_a_client_that_says_nothing_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REQUEST_S", 0.05)

    async def client(port: int, _: Listener) -> None:
        assert b" 408 " in await said(port, b"GET /hel")

    served(client)


def test_clients_that_do_not_read_are_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_S", 0.1)

    async def client(port: int, listener: Listener) -> None:
        streams = []
        for _ in range(module.CONNECTIONS_MAX):
            streams.append(await trio.open_tcp_stream("127.0.0.1", port))
            await streams[-1].send_all(get("/big"))
        while listener._connections:
            await trio.sleep(0.01)
        assert (await said(port, get("/hello"))).endswith(b"hello\n")
        for stream in streams:
            stream.socket.close()

    served(client)


def test_one_client_too_many_is_told_so_and_many_too_many_are_not() -> None:
    async def client(port: int, listener: Listener) -> None:
        listener._connections = module.CONNECTIONS_MAX
        assert b" 503 " in await said(port, get("/hello"))
        while listener._connections > module.CONNECTIONS_MAX:
            await trio.sleep(0.01)
        listener._connections = module.CONNECTIONS_MAX + module.TURNED_AWAY_MAX
        with pytest.raises(trio.BrokenResourceError):
            assert not await said(port, get("/hello"))
            raise trio.BrokenResourceError

    served(client)


def test_a_bug_in_a_page_ends_one_connection() -> None:
    async def client(port: int, _: Listener) -> None:
        with capture_logs() as logs:
            assert await said(port, get("/broken")) == b""
        assert [line["event"] for line in logs] == ["metrics.failed"]
        assert (await said(port, get("/hello"))).endswith(b"hello\n")

    served(client)


def test_a_port_in_use_is_named_once_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "AGAIN_S", 0.01)

    async def main() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port: int = other.getsockname()[1]
            listener = Listener(("127.0.0.1", port), PAGES)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(listener.run)
                await trio.sleep(0.2)
                assert f"127.0.0.1:{port} cannot be bound: Address already in use" in listener.problem
                other.close()
                while listener.problem:
                    await trio.sleep(0.01)
                assert (await said(port, get("/hello"))).endswith(b"hello\n")
                nursery.cancel_scope.cancel()

    with capture_logs() as logs:
        trio.run(main)
    assert [line["event"] for line in logs] == ["metrics.not_listening", "metrics.listening"]


def test_a_name_that_no_host_can_have_is_named_and_ends_nothing() -> None:
    async def main() -> None:
        listener = Listener(("a..b", 9530), PAGES)
        with trio.move_on_after(0.2):
            await listener.run()
        assert listener.problem.startswith("a..b:9530 cannot be bound: ")

    with capture_logs() as logs:
        trio.run(main)
    assert [line["event"] for line in logs] == ["metrics.not_listening"]


def test_a_socket_that_accepts_nothing_more_is_named_and_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "AGAIN_S", 0.01)
    accept, broken = trio.SocketListener.accept, [True]

    async def breaks_once(self: trio.SocketListener) -> trio.SocketStream:
        if broken:
            broken.clear()
            raise OSError(1, "Operation not permitted")
        return await accept(self)

    monkeypatch.setattr(trio.SocketListener, "accept", breaks_once)

    with capture_logs() as logs:
        served(_hears_hello)
    assert [line["event"] for line in logs] == ["metrics.listening", "metrics.not_listening", "metrics.listening"]
    assert logs[1]["reason"].endswith("accepts nobody: Operation not permitted")


async def _hears_hello(port: int, listener: Listener) -> None:
    assert (await said(port, get("/hello"))).endswith(b"hello\n")
    assert listener.problem == ""


# ---- the file


def test_the_file_is_replaced_as_a_whole_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "coordd.prom"
    file = TextFile(str(path))
    file.write(b"one\n")
    with path.open("rb") as reader:
        file.write(b"two\n")
        assert reader.read() == b"one\n", "who reads the old file goes on"
    assert path.read_bytes() == b"two\n"
    assert path.stat().st_mode & 0o777 == 0o644
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named_once_and_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "later"
    file = TextFile(str(place / "coordd.prom"))
    with capture_logs() as logs:
        file.write(b"one\n")
        file.write(b"one\n")
        assert "later/coordd.prom cannot be written: No such file or directory" in file.problem
        place.mkdir()
        file.write(b"two\n")
    assert file.problem == ""
    assert [line["event"] for line in logs] == ["metrics.not_written", "metrics.written_again"]
