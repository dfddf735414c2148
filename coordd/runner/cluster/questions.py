"""Answers the tracker: the earlier attempts of its run, and why it is being ended; takes what it has found."""

import _socket

from coordd.core import attempt as core
from coordd.core.jobs.applications import BY_PERSON
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Grant, Request
from coordd.core.ledger.words import OK
from coordd.runner import kernel
from coordd.runner.asker import UNANSWERED
from coordd.runner.loop import Loop
from coordd.runner.sockets.guard import UNKNOWN, Guard, GuardAsker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from coordd.core.attempt import Attempt

# The tracker's questions. HISTORY: the earlier attempts. ENDING: why the attempt is being ended. APPLICATION: the id
# that it follows. OVER: nothing of the run is left on the cluster, so the exit code counts.
# LOST_SIGHT: the end is unknown.
HISTORY = "history"
ENDING = "ending"
APPLICATION = "application"
OVER = "over"
LOST_SIGHT = "lost_sight"

# All attempts count: each driver pod needs a name that none of the run has had. An answer must fit into one piece, so
# only the last ones have their whole reason; of another one it says whether a person has decided about it.
ATTEMPTS_MAX = 2000
WHOLE_MAX = 100
ANSWER_BYTES = 1 << 20

ID_LENGTH_MAX = 200
REASON_MAX = 500


class History(Request[Answer]):
    """Asks for the earlier attempts of the run."""

    op = "history"
    writes = False
    wire = ("grant",)
    __slots__ = wire

    def __init__(self, *, grant: Grant) -> None:
        self.grant = grant


class Attempts(Answer):
    """The earlier attempts, oldest first: number, token, state, application id, reason."""

    __slots__ = ("rows",)

    def __init__(self, rows: "list[list[object]]") -> None:
        super().__init__(OK)
        self.rows = rows


class HistoryAsker(GuardAsker):
    """Asks the ledger for the tracker too."""

    def call(self, request: "Request[Answer]") -> "Answer | None":
        """Ask in place; None without an answer in time."""
        if not isinstance(request, History):
            return super().call(request)
        ledger: Any = self.connect()
        if ledger is None:
            return None
        try:
            found = [row for row in ledger.attempts(request.grant.run) if row.token < request.grant.token]
        except UNANSWERED as exc:
            kernel.complain(f"tracker: {exc}")
            return None
        found.sort(key=lambda row: int(row.token))
        short = max(0, len(found) - WHOLE_MAX)
        reasons = [*[_decided(row.reason) for row in found[:short]], *[row.reason for row in found[short:]]]
        rows: list[list[object]] = [
            [row.attempt, row.token, row.state, row.application_id, reason]
            for row, reason in zip(found, reasons, strict=True)
        ]
        return Attempts(rows[-ATTEMPTS_MAX:])


def _decided(reason: str) -> str:
    return next((words for words in BY_PERSON if words in reason), "")


class Questions(Guard):
    """The guard of a program that is a tracker."""

    questions = (*Guard.questions, HISTORY, ENDING, APPLICATION, OVER, LOST_SIGHT)
    make_asker = HistoryAsker

    def __init__(
        self, spec: "dict[str, Any]", address: str, loop: Loop, attempt: "Attempt", follows: "Callable[[str], None]"
    ) -> None:
        """Listen. ``follows`` is called with the application that the tracker follows. Raises OSError."""
        super().__init__(spec, address, loop, lambda: attempt.phase)
        self.over = False  # the tracker has said that nothing of the run is left on the cluster
        self._attempt = attempt
        self._follows = follows

    def _asks(self, fd: int, line: bytes) -> None:
        question, problem = self._understood(line)
        word, attempt = question.get("ask"), self._attempt
        about = str(question.get("about", ""))
        if problem or word not in (ENDING, APPLICATION, OVER, LOST_SIGHT):
            super()._asks(fd, line)
            return
        if word == APPLICATION:
            self._follows(about[:ID_LENGTH_MAX])
        elif word == OVER:
            self.over = True
        elif word == LOST_SIGHT:
            # Nobody can tell how it ended, or whether there is an application: the ledger holds the run.
            attempt.shut_down(about[:REASON_MAX] or "its application cannot be seen", now=kernel.boottime())
        ending = attempt.phase != core.RUNNING
        self._say(fd, question, OK, attempt.ended_by, outcome=attempt.outcome if ending else "")

    def _request(self, question: "dict[str, Any]") -> "Request[Answer]":
        return History(grant=self._grant) if question["ask"] == HISTORY else super()._request(question)

    def _tell(self, fd: int, question: "dict[str, Any]", answer: "Answer | None") -> None:
        if question["ask"] != HISTORY:
            super()._tell(fd, question, answer)
        elif isinstance(answer, Attempts):
            self._open[fd][0].setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDBUF, ANSWER_BYTES)
            self._say(fd, question, OK, "", attempts=answer.rows)
        else:
            self._say(fd, question, UNKNOWN, "the ledger does not answer")
