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


Reply = Callable[[dict[str, Any]], "bytes | None"]


class Answerer:
    """Answers one question a connection. ``reply``: the bytes for a question; None: nothing, and it stays open."""

    def __init__(
        self, listener: socket.socket, reply: Reply, *, greeting: bytes = b"", purpose: bytes = b"ask"
    ) -> None:
        """``greeting``: what it says first; ``purpose``: of the proof that a question must have."""
        self.reply = reply
        self.heard: list[bytes] = []
        self._greeting, self._purpose = greeting, purpose
        self._kept: list[socket.socket] = []
        self._listener = listener
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
        sock.sendall(self._greeting)
        line = b""
        while not line.endswith(b"\n"):
            piece = sock.recv(4096)
            if not piece:
                return
            line += piece
        self.heard.append(line)
        proof, _, body = line.removeprefix(GREETING)[:-1].partition(b" ")
        assert proof == mac(NONCE, self._purpose, body)
        data = self.reply(json.loads(body))
        if data is not None:  # otherwise it stays open, and silent
            sock.sendall(data)
            sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # this wakes the thread
        self._listener.close()
        self._thread.join()
        for sock in self._kept:
            sock.close()


class FakeRunner(Answerer):
    """The runner of one attempt. It answers from the row, or with what a test puts in place of ``reply``."""

    def __init__(self, row: FakeRow, token: int, *, run: str = RUN, attempt: int = 0) -> None:
        self.row = row
        name = f"coordd-guard/{os.urandom(16).hex()}"
        self.environ = {
            "COORDD_RUN": run,
            "COORDD_JOB": JOB,
            "COORDD_ATTEMPT": str(attempt),
            "COORDD_TOKEN": str(token),
            "COORDD_NONCE": NONCE,
            "COORDD_GUARD": f"abstract:{name}",
        }
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(b"\0" + name.encode())
        listener.listen(16)
        super().__init__(listener, self.from_row)

    def from_row(self, question: dict[str, Any]) -> bytes:
        """What the ledger would say."""
        return signed({"id": question["id"], **self.row.answer(question["ask"], question["token"])})
