"""The recipes for mail and chat, with a fake sendmail and a fake chat server."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from email import message_from_string
from pathlib import Path
from typing import Self

import pytest

from coordd.config.hooks.hook import read_hooks
from coordd.config.tomlfile import read_toml
from coordd.services.hooks import happenings

HOOKS = Path(__file__).parents[2] / "deploy" / "hooks"
EVENT = happenings.lost_attempt("etl@2026-11-21T02:00:00Z", 0, "edge-1.7", "its lease lapsed").document(
    at=1e9, cluster="c1", node="edge-2"
)


def called(name: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, HOOKS / name, *args],
        input=EVENT, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("code", [0, 75])
def test_a_mail(tmp_path: Path, code: int) -> None:
    sendmail = tmp_path / "sendmail"
    sendmail.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/args\ncat > {tmp_path}/mail\nexit {code}\n')
    sendmail.chmod(0o755)
    done = called("mail.py", "a@example.org", "b@example.org", SENDMAIL=str(sendmail))
    mail = message_from_string((tmp_path / "mail").read_text())

    assert (done.returncode, (tmp_path / "args").read_text()) == (code, "-t -oi\n")
    assert mail["To"] == "a@example.org, b@example.org"
    assert mail["Subject"].replace("\n", "") == ("[c1] etl@2026-11-21T02:00:00Z: attempt 0 was lost: its lease lapsed")
    assert "coordctl why 'etl@2026-11-21T02:00:00Z'" in str(mail.get_payload())


class Chat:
    """A chat's server. ``got``: what was posted to it."""

    def __init__(self, code: int = 200, location: str = "") -> None:
        got: list[dict[str, str]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(code)
                self.send_header("Location", location)
                self.end_headers()

            def do_GET(self) -> None:
                """A page for people, such as a login."""
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.got = got
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/hook"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


def test_a_chat(tmp_path: Path) -> None:
    url = tmp_path / "chat.url"
    with Chat() as chat:
        url.write_text(f"{chat.url}\n")
        done = called("chat.py", str(url))

    assert (done.returncode, done.stdout) == (0, "200 OK\n")
    said = "\N{WARNING SIGN} [c1] etl@2026-11-21T02:00:00Z: attempt 0 was lost: its lease lapsed"
    assert chat.got == [{"text": said}]
    assert called("chat.py", str(url)).returncode != 0, "nobody listens any more"


def test_what_a_chat_quotes_calls_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "EVENT", EVENT.replace("its lease lapsed", "<!channel> a & b"))
    url = tmp_path / "chat.url"
    with Chat() as chat:
        url.write_text(f"{chat.url}\n")
        assert called("chat.py", str(url)).returncode == 0

    said = "\N{WARNING SIGN} [c1] etl@2026-11-21T02:00:00Z: attempt 0 was lost: &lt;!channel&gt; a &amp; b"
    assert chat.got == [{"text": said}]


@pytest.mark.parametrize("code", [301, 302, 303, 307])
def test_a_chat_that_has_moved_is_a_failure(tmp_path: Path, code: int) -> None:
    url = tmp_path / "chat.url"
    with Chat() as other, Chat(code, other.url) as chat:
        url.write_text(f"{chat.url}\n")
        done = called("chat.py", str(url))

    assert done.returncode != 0
    assert str(code) in done.stderr
    assert (len(chat.got), other.got) == (1, [])


@pytest.mark.parametrize("address", ["http://chat.example/hook", "ftp://127.0.0.1/", "chat.example", ""])
def test_a_chat_address_that_others_could_read_is_refused(tmp_path: Path, address: str) -> None:
    url = tmp_path / "chat.url"
    url.write_text(f"{address}\n")
    done = called("chat.py", str(url))

    assert done.returncode == 1
    assert "expected an address that begins with https://" in done.stderr


@pytest.mark.parametrize("name", ["mail.py", "chat.py"])
def test_the_lines_that_a_recipe_shows_are_a_hook(tmp_path: Path, name: str) -> None:
    lines = (HOOKS / name).read_text().partition("    [[hook]]\n")[2].partition("\n\n")[0]
    file = tmp_path / "coordd.toml"
    file.write_text("[[hook]]\n" + lines.replace("    ", ""))
    _, table, problem = read_toml(str(file), "config")
    wrong: list[str] = []
    (hook,) = read_hooks(table["hook"], wrong.append)

    assert (problem, wrong) == (None, [])
    assert hook.argv[0].endswith(name)
