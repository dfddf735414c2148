"""The tracker's way to its runner: one question a connection, each with a proof of the nonce (docs/protocol.md)."""

import hmac
import json
import os
import socket
import time
from collections.abc import Mapping
from typing import Any

from coordd.core.jobs.applications import Earlier
from coordd.core.jobs.owner import GREETING, mac
from coordd.errors import UnavailableError

ABSTRACT = "abstract:"
ANSWER_BYTES_MAX = 1024 * 1024

# The longest wait for one answer (seconds), the longest for a question that is repeated, and the pause between both.
ANSWER_S = 10.0
PATIENCE_S = 60.0
AGAIN_S = 0.2


class Link:
    """The runner, as its tracker sees it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._run = environ["COORDD_RUN"]
        self._attempt = int(environ["COORDD_ATTEMPT"])
        self.token = int(environ["COORDD_TOKEN"])
        self._nonce = environ["COORDD_NONCE"]
        self._address = environ["COORDD_GUARD"].removeprefix(ABSTRACT)

    def history(self) -> list[Earlier]:
        """The earlier attempts of the run, oldest first. Raises UnavailableError."""
        return [Earlier(*row) for row in self._ask("history")["attempts"]]

    def follows(self, application_id: str) -> None:
        """This is the application. Raises UnavailableError."""
        self._ask("application", application_id)

    def over(self) -> None:
        """Nothing of the run is left on the cluster: the exit code counts. Raises UnavailableError."""
        self._ask("over")

    def lost_sight(self, reason: str) -> None:
        """Nobody can tell how it ended, or whether it has begun. Raises UnavailableError."""
        self._ask("lost_sight", reason)

    def ending(self) -> str:
        """How the attempt is to end: revoked, failure (a timeout) or lost; "" while it goes on. Raises
        UnavailableError.
        """
        return str(self._ask("ending").get("outcome", ""))

    def _ask(self, what: str, about: str = "") -> dict[str, Any]:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                answer = self._ask_once(what, about)
                if answer["word"] == "ok":
                    return answer
                why = f"it says {answer['word']}: {answer.get('why', '')}"
                if answer["word"] in ("refused", "stale"):
                    break
            except (OSError, ValueError, KeyError) as exc:
                why = f"it does not answer: {exc or type(exc).__name__}"
            if time.monotonic() >= until:
                break
            time.sleep(AGAIN_S)
        raise UnavailableError(f"{self._run}, attempt {self._attempt}: the runner was asked for {what}, and {why}")

    def _ask_once(self, what: str, about: str) -> dict[str, Any]:
        """Raises OSError, ValueError and KeyError without a good answer in time."""
        ident = os.urandom(16).hex()
        question = {"ask": what, "run": self._run, "attempt": self._attempt, "token": self.token, "id": ident}
        body = json.dumps({**question, "about": about}).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(b"\0" + self._address.encode())
            sock.sendall(GREETING + mac(self._nonce, b"ask", body) + b" " + body + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                piece = sock.recv(65536)
                data += piece
                if not piece or len(data) > ANSWER_BYTES_MAX:
                    raise ValueError(f"its answer ends after {len(data)} bytes")
        proof, _, said = data[len(GREETING) : -1].partition(b" ")
        if not data.startswith(GREETING) or not hmac.compare_digest(proof, mac(self._nonce, b"answer", said)):
            raise ValueError("its answer has no proof of the nonce")
        answer = json.loads(said)
        if not isinstance(answer, dict) or answer.get("id") not in (ident, None):
            raise ValueError("its answer is to another question")
        return answer
