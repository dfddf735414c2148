"""A small HTTP server for the fakes, in threads, and the ways in which it misbehaves."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self

# What ``FakeServer.mischief`` may be; "": it behaves.
MISCHIEF = ("away", "silent", "dribbling", "unauthorised", "forbidden", "failing", "garbage", "html", "not an object",
            "endless", "cut off")  # fmt: skip

SILENT_S = 60.0


class Asked(NamedTuple):
    method: str
    path: str
    body: bytes
    headers: dict[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


def driver_of(run: str, attempt: int, *jobs: dict[str, Any], known: str = "spark-1") -> dict[str, Any]:
    """What a driver's UI answers, by path: its REST interface as Spark has it."""
    properties = [["spark.coordd.run", run], ["spark.coordd.attempt", str(attempt)], ["spark.app.name", "etl"]]
    of = f"/api/v1/applications/{known}"
    return {
        "/api/v1/applications": [{"id": known, "name": "etl"}],
        f"{of}/environment": {"sparkProperties": properties},
        f"{of}/jobs": list(jobs),
    }


class FakeServer:
    """Subclasses answer with (status, object) or (status, bytes, headers)."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.mischief = ""
        self.asked: list[Asked] = []
        self.on_ask: Callable[[Asked], None] = lambda _asked: None  # called before the answer is made
        self.lock = threading.RLock()
        self._stopped = threading.Event()
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                fake._serve(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  # names of the standard library

            def log_message(self, *_args: object) -> None:
                """Nothing: a test shows what it needs."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, asked: Asked) -> tuple[int, Any] | tuple[int, bytes, dict[str, str]]:
        raise NotImplementedError

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = Asked(handler.command, handler.path, body, headers)
        self.on_ask(asked)
        with self.lock:
            self.asked.append(asked)
            mischief = self.mischief
        if mischief:
            self._misbehave(handler, mischief)
            return
        said = self.answer(asked)
        content = said[1] if len(said) == 3 else json.dumps(said[1]).encode()
        extra = said[2] if len(said) == 3 else {"Content-Type": "application/json"}
        send(handler, said[0], content, extra)

    def _misbehave(self, handler: BaseHTTPRequestHandler, mischief: str) -> None:
        handler.close_connection = True
        if mischief == "away":
            handler.connection.shutdown(socket.SHUT_RDWR)
        elif mischief == "silent":
            self._stopped.wait(SILENT_S)
        elif mischief == "dribbling":
            handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(600):
                if self._stopped.wait(0.1):
                    return
                handler.wfile.write(b" ")
        elif mischief == "unauthorised":
            send(handler, 401, b"<html>Authentication required</html>", {"WWW-Authenticate": "Negotiate"})
        elif mischief == "forbidden":
            send(handler, 403, b'{"message": "not allowed"}', {})
        elif mischief == "failing":
            send(handler, 500, b'{"RemoteException": {"message": "store is away"}}', {})
        elif mischief == "garbage":
            send(handler, 200, b"\x00\xff{[", {})
        elif mischief == "html":
            send(handler, 200, b"<html>Please log in</html>", {})
        elif mischief == "not an object":
            send(handler, 200, b"[1, 2]", {})
        elif mischief == "endless":
            send(handler, 200, b'{"apps": {"app": [' + b"1," * 5_000_000 + b"1]}}", {})
        else:
            assert mischief == "cut off"
            handler.wfile.write(b'HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"apps": {"app": [')


def send(handler: BaseHTTPRequestHandler, status: int, content: bytes, headers: dict[str, str]) -> None:
    try:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)
    except OSError:
        return  # the client is gone


def milliseconds() -> int:
    return int(time.time() * 1000)
