"""The program of a hook's run: what the hook gets, and what becomes of one that fails, hangs, floods or forks."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordd.services.hooks import call as module

ROOT = Path(__file__).parents[3]
EVENT = {"event": "run.failure", "job": "etl", "sentence": "etl#1 failed: café"}
LIMIT_S = 60


def called(
    timeout_s: float = 20.0, path: str = "", event: object = EVENT, **hook: Any
) -> subprocess.CompletedProcess[bytes]:
    spec = {"argv": [], "url": "", "call": "", "timeout_s": timeout_s, **hook}
    env = {"PATH": "/usr/bin:/bin", "COORDD_HOOK_SECRET": json.dumps(spec), "COORDD_EVENT": json.dumps(event)}
    return subprocess.run(
        [sys.executable, "-m", "coordd.services.hooks.call"],
        env={**env, "PYTHONPATH": f"{ROOT}:{path}"}, capture_output=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "hook"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_program_gets_the_event_on_stdin_and_its_name_as_an_argument(tmp_path: Path) -> None:
    done = called(argv=[script(tmp_path, f'cat > {tmp_path}/event; echo "$1 of $2"'), "{event}", "{other}"])

    assert (done.returncode, done.stdout) == (0, b"run.failure of {other}\n")
    assert json.loads((tmp_path / "event").read_text()) == EVENT


@pytest.mark.parametrize("event", [{"event": "--exec=/tmp/mine"}, {"event": ["run.failure"]}, {}, ["run.failure"], "x"])
def test_no_word_of_a_call_is_chosen_by_who_made_the_event(tmp_path: Path, event: object) -> None:
    done = called(event=event, argv=[script(tmp_path, f"touch {tmp_path}/ran"), "{event}"])

    assert (done.returncode, done.stderr) == (1, b"hooks are told of no such event\n")
    assert not (tmp_path / "ran").exists()


def test_a_program_does_not_see_how_others_are_called(tmp_path: Path) -> None:
    done = called(argv=[script(tmp_path, "env")])

    assert b"COORDD_HOOK" not in done.stdout
    assert b"COORDD_EVENT" not in done.stdout


@pytest.mark.parametrize(("body", "code"), [("exit 3", 3), ("kill -9 $$", 137), ("cat >/dev/null; exit 0", 0)])
def test_the_exit_code_is_the_answer(tmp_path: Path, body: str, code: int) -> None:
    assert called(argv=[script(tmp_path, body)]).returncode == code


def test_a_program_that_is_not_there_says_so(tmp_path: Path) -> None:
    done = called(argv=[f"{tmp_path}/nothing"])

    assert (done.returncode, done.stderr) == (
        127,
        f"{tmp_path}/nothing cannot be executed: No such file or directory\n".encode(),
    )


def test_a_hook_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    body = f"trap '' TERM; sleep 1000 & echo $! > {tmp_path}/child; echo begun; wait"
    done = called(4.0, argv=[script(tmp_path, body)])  # a busy machine starts a shell in less

    assert (done.returncode, done.stdout) == (124, b"begun\n")
    assert b"the hook did not end within 4 s" in done.stderr
    assert not is_alive(int((tmp_path / "child").read_text()))


def test_the_output_of_a_hook_that_floods_is_bounded(tmp_path: Path) -> None:
    done = called(argv=[script(tmp_path, f"head -c 50000000 /dev/zero; echo over > {tmp_path}/over")])

    assert done.returncode == 0
    assert len(done.stdout) == module.OUTPUT_BYTES_MAX
    assert (tmp_path / "over").exists(), "it is read to the end, so it does not hang either"


def test_a_child_that_keeps_the_output_open_is_not_waited_for(tmp_path: Path) -> None:
    done = called(argv=[script(tmp_path, f"sleep 1000 & echo $! > {tmp_path}/child; exit 0")])

    assert done.returncode == 0
    assert not is_alive(int((tmp_path / "child").read_text()))


def test_a_function_is_called_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "site_hooks.py").write_text(
        "import os, sys\n"
        "class Pager:\n    @staticmethod\n    def page(event): print(event['job'], os.getppid())\n"
        "def fail(event): raise ValueError('no pager')\n"
    )
    done = called(path=str(tmp_path), call="site_hooks:Pager.page")
    assert (done.returncode, done.stdout.split()[0]) == (0, b"etl")
    done = called(path=str(tmp_path), call="site_hooks:fail")
    assert done.returncode == 1
    assert b"ValueError: no pager" in done.stdout
    assert called(path=str(tmp_path), call="site_hooks:gone").returncode == 1
    assert called(call="gone:gone").returncode == 1


# ---- HTTP


class Server:
    """Answers as the test says, and remembers what came."""

    def __init__(self, answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> None:
        self.got: list[tuple[str, str, Any]] = []
        self.authorized: list[str | None] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append((self.path, self.headers["Content-Type"], json.loads(body)))
                outer.authorized.append(self.headers["Authorization"])
                answer(self)

            def log_message(self, *_: Any) -> None: ...

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def make(code: int = 200, text: bytes = b"", **headers: str) -> Server:
        def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.send_response(code)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(text)

        made.append(Server(answer))
        return made[-1]

    yield make
    for server in made:
        server.http.shutdown()
        server.http.server_close()


def test_an_event_is_posted_as_json(serve: Callable[..., Server]) -> None:
    server = serve(204)
    done = called(url=server.url + "/hooks/1")

    assert (done.returncode, done.stdout) == (0, b"204 No Content\n")
    assert server.got == [("/hooks/1", "application/json", EVENT)]


def test_a_refusal_is_a_failure_and_shows_what_the_server_says(serve: Callable[..., Server]) -> None:
    done = called(url=serve(503, b"x" * 100_000).url)

    assert done.returncode == 1
    assert b"the server answered 503 Service Unavailable: xxx" in done.stderr
    assert len(done.stderr) < 4000


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308])
@pytest.mark.parametrize("lineage", [False, True])
def test_an_event_follows_no_redirect(serve: Callable[..., Server], status: int, *, lineage: bool) -> None:
    other = serve()
    more: dict[str, Any] = {"lineage": True, "token_file": ""} if lineage else {}
    done = called(url=serve(status, Location=other.url).url, **more)

    assert done.returncode == 1
    assert b"answered %d" % status in done.stderr
    assert other.got == []


def test_a_server_that_does_not_answer_or_is_not_there() -> None:
    wait = threading.Event()

    def hang(_: http.server.BaseHTTPRequestHandler) -> None:
        wait.wait(30)

    server = Server(hang)
    done = called(0.5, url=server.url)
    wait.set()
    server.http.shutdown()
    server.http.server_close()
    assert done.returncode == 124
    assert b"did not answer within 0.5 s" in done.stderr
    done = called(url=server.url)
    assert done.returncode == 1
    assert b"the server cannot be reached" in done.stderr


@pytest.mark.parametrize("path", ["/SECRET word", "/SECRET\x7f", "/SECRETé"])
def test_an_address_that_cannot_be_called_is_not_in_the_log(path: str) -> None:
    done = called(url=f"http://127.0.0.1:9{path}")

    assert done.returncode == 1
    assert done.stderr.startswith(b"the address cannot be called: ")
    assert b"SECRET" not in done.stderr
    assert b"Traceback" not in done.stderr


def raw(*parts: bytes, hangs: bool = False) -> Iterator[str]:
    """A server that answers these bytes, and then ends the connection or hangs; yields its address."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            one, _ = listening.accept()
            with one:
                one.recv(65536)
                for part in parts:
                    one.sendall(part)
                if hangs:
                    over.wait(LIMIT_S)

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/SECRET"
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"nonsense\r\n\r\n", b"BadStatusLine"),
        (b"", b"RemoteDisconnected"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"HTTPException"),
        (b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\n\r\n", b"LineTooLong"),
        (b"HTTP/1.1 500 Broken\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"IncompleteRead"),
    ],
)
def test_an_answer_that_is_no_http_is_a_failure_and_named(answer: bytes, kind: bytes) -> None:
    for url in raw(answer):
        done = called(url=url)

        assert done.returncode == 1
        assert kind in done.stderr or b"Remote end closed" in done.stderr
        assert b"Traceback" not in done.stderr
        assert b"SECRET" not in done.stderr


def test_a_refusal_whose_text_never_ends_is_out_of_time() -> None:
    for url in raw(b"HTTP/1.1 500 Broken\r\nContent-Length: 100\r\n\r\nx", hangs=True):
        done = called(0.7, url=url)

        assert (done.returncode, done.stderr) == (124, b"the server did not answer within 0.7 s\n")


def test_nothing_of_a_call_is_in_the_command_line() -> None:
    """Everybody on the machine can read it."""
    environ = dict(os.environ)
    environ |= {"COORDD_HOOK_SECRET": "{}", "COORDD_EVENT": json.dumps(EVENT)}

    with pytest.raises(KeyError):
        module.main(environ)
    assert "COORDD_HOOK_SECRET" not in environ


def test_an_event_of_lineage_is_posted_with_the_token(tmp_path: Path, serve: Callable[..., Server]) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    server = serve(201)
    done = called(event={"eventType": "START"}, url=server.url, lineage=True, token_file=str(token))

    assert done.returncode == 0, done.stderr
    assert [event for _, _, event in server.got] == [{"eventType": "START"}]
    assert server.authorized == ["Bearer s3cret"]
    assert b"s3cret" not in done.stdout + done.stderr
    done = called(event={}, url=server.url, lineage=True, token_file=f"{tmp_path}/gone")
    assert (done.returncode, done.stderr) == (
        1,
        f"{tmp_path}/gone cannot be read: No such file or directory\n".encode(),
    )
    assert called(event={}, url=server.url, lineage=True, token_file="").returncode == 0
    assert server.authorized[1:] == [None]
