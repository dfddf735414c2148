"""A runner's guard socket without a runner: it answers from a row in memory, or as a test says."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

NONCE = "0123456789abcdef"
RUN, JOB = "sales@2026-11-23T02:00:00Z", "sales"
GREETING = b"coordd-guard 1 "


def mac(nonce: str, purpose: bytes, body: bytes) -> bytes:
    return hmac.new(nonce.encode(), purpose + b"\0" + body, hashlib.sha256).hexdigest().encode()


def signed(answer: dict[str, Any], nonce: str = NONCE) -> bytes:
    body = json.dumps(answer).encode()
    return GREETING + mac(nonce, b"answer", body) + b" " + body + b"\n"


class FakeRow:
    """What the ledger has of the run: the token that holds it, and the one that has committed."""

    def __init__(self, token: int) -> None:
        self.token = token
        self.commit_token = 0

    def answer(self, ask: str, token: int) -> dict[str, Any]:
        word = "ok" if token == self.token else "stale"
        if word == "ok" and self.commit_token not in (0, token):
            word = "committed"
        elif word == "ok" and ask == "commit":
            self.commit_token = token
        return {"word": word, "token": self.commit_token, "why": "a reason" if word == "stale" else ""}


class FakeRunner:
    """The runner of one attempt. ``reply``: the bytes for a question, in place of the row's answer; None: none."""

    def __init__(self, row: FakeRow, token: int, *, run: str = RUN, attempt: int = 0) -> None:
        self.row = row
        self.reply: Callable[[dict[str, Any]], bytes | None] | None = None
        self.heard: list[bytes] = []
        name = f"coordd-guard/{os.urandom(16).hex()}"
        self.environ = {
            "COORDD_RUN": run,
            "COORDD_JOB": JOB,
            "COORDD_ATTEMPT": str(attempt),
            "COORDD_TOKEN": str(token),
            "COORDD_NONCE": NONCE,
            "COORDD_GUARD": f"abstract:{name}",
        }
        self._kept: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(b"\0" + name.encode())
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            self._kept.append(sock)
            with contextlib.suppress(OSError):  # it has hung up
                self._talk(sock)

    def _talk(self, sock: socket.socket) -> None:
        line = b""
        while not line.endswith(b"\n"):
            piece = sock.recv(4096)
            if not piece:
                return
            line += piece
        self.heard.append(line)
        proof, _, body = line.removeprefix(GREETING)[:-1].partition(b" ")
        assert proof == mac(NONCE, b"ask", body)
        data = self._answer(json.loads(body))
        if data is not None:  # otherwise it stays open, and silent
            sock.sendall(data)
            sock.shutdown(socket.SHUT_RDWR)

    def _answer(self, question: dict[str, Any]) -> bytes | None:
        if self.reply is not None:
            return self.reply(question)
        return signed({"id": question["id"], **self.row.answer(question["ask"], question["token"])})

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # this wakes the thread
        self._listener.close()
        self._thread.join()
        for sock in self._kept:
            sock.close()
