"""Answers the program's questions: is my attempt still the owner, may it publish, how often has this input failed
(docs/protocol.md, section 7).

Every answer comes from the ledger, asked by a thread of its own: a slow ledger delays neither a renewal nor a kill. The
nonce is never sent. Who knows it proves that with a MAC, and the answer has one too: nobody who takes over the address
can say "ok".
"""

import _socket
import os

from coordd.core import attempt as core
from coordd.core.jobs.owner import COMMITTED, GREETING, mac, standing
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Commit, Grant, Request
from coordd.core.ledger.words import OK, STALE
from coordd.runner import kernel
from coordd.runner.asker import UNANSWERED, Asker
from coordd.runner.loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from coordd.core.ledger.inputs.memory import Told


ABSTRACT = "abstract:"
REQUEST_BYTES_MAX = 4096
CONNECTIONS_MAX = 16

INPUT = "input"  # as in core/ledger/inputs, which only a runner loads whose program asks

# Words of answers, beside OK and STALE. COMMITTED: the caller is the owner, but an earlier attempt of its run has the
# commit. UNKNOWN: nothing is known, ask again. REFUSED: the question itself is wrong.
UNKNOWN = "unknown"
REFUSED = "refused"


class Standing(Request[Answer]):
    """Asks the ledger's row whether a grant is the current one."""

    op = "standing"
    writes = False
    wire = ("grant",)
    __slots__ = wire

    def __init__(self, *, grant: Grant) -> None:
        self.grant = grant


class OfInput(Request[Answer]):
    """What the program says of one of its inputs; the answer's token: how often that has failed."""

    op = INPUT
    wire = ("grant",)
    __slots__ = ("grant", "told")

    def __init__(self, *, grant: Grant, told: "Told") -> None:
        self.grant = grant
        self.told = told


class GuardAsker(Asker):
    """Asks the ledger for the guard: a commit, the row, or about an input."""

    def call(self, request: "Request[Answer]") -> "Answer | None":
        """Ask in place; None without an answer in time."""
        ledger: Any = self.connect()
        if ledger is None:
            return None
        assert isinstance(request, (Commit, Standing, OfInput))
        try:
            if isinstance(request, Commit):
                answer: Answer = ledger.ask(request)
                if answer.word != STALE:
                    return answer
            row = ledger.run(request.grant.run)
            found = standing(row, request.grant.token, request.grant.nonce)
            if row is not None and isinstance(request, OfInput) and found.word != STALE:
                import time

                from coordd.core.ledger.inputs.memory import tell

                return tell(ledger, row.job, row.run, request.told, time.time())
            return found
        except UNANSWERED as exc:
            kernel.complain(f"guard: {exc}")
            return None


def users_of(spec: "dict[str, Any]") -> "set[int]":
    """Who may ask: the runner's user, root, and the program's user."""
    allowed = {os.geteuid(), 0}
    user = spec["unit"]["user"] if "unit" in spec else ""
    if user:
        import pwd

        try:
            allowed.add(pwd.getpwnam(user).pw_uid)
        except KeyError:
            kernel.complain(f"guard: there is no user {user} any more")
    return allowed


class Guard:
    """The listening end. ``phase``: of the attempt, now."""

    questions: "tuple[str, ...]" = ("owner", "commit", INPUT)
    make_asker = GuardAsker

    def __init__(self, spec: "dict[str, Any]", address: str, loop: Loop, phase: "Callable[[], str]") -> None:
        """Listen. Raises OSError."""
        self._nonce: str = spec["nonce"]
        self._grant = Grant(run=spec["run"], attempt=spec["attempt"], token=spec["token"], nonce=spec["nonce"])
        self._loop = loop
        self._phase = phase
        self._users = users_of(spec)
        self._open: dict[int, tuple[_socket.socket, bytes]] = {}
        self._waiting: list[tuple[int, dict[str, Any]]] = []  # questions, in order; each connection has at most one
        self._asked: tuple[int, dict[str, Any]] | None = None
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
        try:
            self._listener.bind(b"\0" + address.removeprefix(ABSTRACT).encode())
            self._listener.listen(CONNECTIONS_MAX)
            self._asker = self.make_asker(spec["ledger"], spec["ledger_timeout_s"], spec.get("ledger_options"))
        except OSError:
            self._listener.close()
            raise
        loop.on(self._listener.fileno(), self._accept)
        loop.on(self._asker.fd, self._answered)

    def _accept(self, _fd: int) -> None:
        try:
            fd, _ = self._listener._accept()  # type: ignore[attr-defined]  # what socket.accept is made of
        except OSError:
            return
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, fd)
        if kernel.peer_uid(sock) not in self._users:
            sock.close()
            return
        if len(self._open) >= CONNECTIONS_MAX:
            self._drop(next(iter(self._open)))  # the oldest: none can hold the places
        sock.setblocking(False)
        self._open[fd] = (sock, b"")
        self._loop.on(fd, self._read)

    def _read(self, fd: int) -> None:
        sock, buffer = self._open[fd]
        try:
            data = sock.recv(REQUEST_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        buffer += data
        self._open[fd] = (sock, buffer)
        line, end, _ = buffer.partition(b"\n")
        if not data or len(buffer) > REQUEST_BYTES_MAX:
            self._drop(fd)
        elif end:
            self._loop.off(fd)  # one question a connection
            try:
                self._asks(fd, line)
            except (ImportError, OSError) as exc:  # no free descriptor for a module: the program asks again
                kernel.complain(f"guard: a question cannot be answered: {exc}")
                if fd in self._open:
                    self._drop(fd)

    def _asks(self, fd: int, line: bytes) -> None:
        question, problem = self._understood(line)
        if problem:
            self._say(fd, question, REFUSED, problem)
        elif self._phase() != core.RUNNING:
            self._say(fd, question, STALE, "the attempt is being ended")
        else:
            self._waiting.append((fd, question))
            self._ask_next()

    def _understood(self, line: bytes) -> "tuple[dict[str, Any], str]":
        """The question, and what is wrong with it ("": nothing)."""
        import hmac
        import json

        if not line.startswith(GREETING):
            return {}, "expected a question of version 1"
        proof, _, body = line[len(GREETING) :].partition(b" ")
        if not hmac.compare_digest(proof, mac(self._nonce, b"ask", body)):
            return {}, "its proof of the nonce is wrong"
        try:
            question = json.loads(body)
        except (ValueError, RecursionError):
            return {}, "expected JSON"
        if not isinstance(question, dict) or question.get("ask") not in self.questions:
            return {}, f"it asks for none of {', '.join(self.questions)}"
        grant = self._grant
        named = tuple([question.get(name) for name in ("run", "attempt", "token")])
        if named != (grant.run, grant.attempt, grant.token):
            return question, "it is about another attempt"
        if question["ask"] == INPUT:
            from coordd.core.ledger.inputs.memory import told_of

            told = told_of(question)
            if isinstance(told, str):
                return question, told
            question["told"] = told
        return question, ""

    def _ask_next(self) -> None:
        while self._waiting and self._asked is None:
            fd, question = self._waiting.pop(0)
            if fd not in self._open:
                continue
            if self._asker.ask(self._request(question)):
                self._asked = (fd, question)
            else:
                self._tell(fd, question, None)

    def _request(self, question: "dict[str, Any]") -> "Request[Answer]":
        if question["ask"] == INPUT:
            return OfInput(grant=self._grant, told=question["told"])
        return Commit(grant=self._grant) if question["ask"] == "commit" else Standing(grant=self._grant)

    def _answered(self, _fd: int) -> None:
        answer, _ = self._asker.take()
        asked, self._asked = self._asked, None
        if asked is not None and asked[0] in self._open:
            self._tell(*asked, answer)
        self._ask_next()

    def _tell(self, fd: int, question: "dict[str, Any]", answer: "Answer | None") -> None:
        if answer is None:
            self._say(fd, question, UNKNOWN, "the ledger does not answer")
        elif answer.word in (OK, COMMITTED):
            self._say(fd, question, answer.word, answer.by if question["ask"] == INPUT else "", answer.token)
        elif answer.word == STALE:
            self._say(fd, question, STALE, what_is_there(answer))
        else:
            self._say(fd, question, UNKNOWN, f"the ledger says {answer.word}")

    def _say(self, fd: int, question: "dict[str, Any]", word: str, why: str, token: int = 0, **more: object) -> None:
        import json

        body = json.dumps({"id": question.get("id"), "word": word, "why": why, "token": token, **more}).encode()
        sock, _ = self._open[fd]
        try:
            sock.send(GREETING + mac(self._nonce, b"answer", body) + b" " + body + b"\n")
        except OSError as exc:
            kernel.complain(f"guard: an answer ({word}) could not be sent: {exc.strerror}")
        self._drop(fd)

    def _drop(self, fd: int) -> None:
        sock, _ = self._open.pop(fd)
        self._loop.off(fd)
        sock.close()


def what_is_there(answer: Answer) -> str:
    """Why the ledger refuses, for people."""
    if not answer.state:
        return "the ledger does not know the run"
    place = f" on {answer.by}" if answer.by else ""
    return f"the ledger has attempt {answer.attempt}{place}, {answer.state}, under token {answer.token}"
