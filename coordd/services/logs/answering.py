"""The answers of this node to others that ask for the log of an attempt.

This node checks the reader's right itself, by its own job files, and its audit has the look. What it takes from the
other node is who the reader is: their name, and that they are an operator there, or in the group that owns the job.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import trio

from coordd.core.jobs.job import job_of
from coordd.core.node.node import Node
from coordd.errors import RefusedError, RemoteProtocolError, UnavailableError
from coordd.services.audit import Audit
from coordd.services.ledger import boottime
from coordd.services.logs.files import Place, find_log, read_piece
from coordd.services.logs.questions import OPERATES, OWNS, PIECE_BYTES_MAX, Question, Told, question_of, refusal

# A disk that hangs holds up no more threads, and no question for longer (seconds).
THREADS_MAX = 2
READ_S = 5.0

# The audit has a look once; the further pieces belong to it while the next comes within this time (seconds).
LOOK_S = 60.0
LOOKS_MAX = 256


class Answering:
    """Reads logs of this node, for this node's callers and for other nodes."""

    def __init__(self, node: Node, log_dir: str, audit: Audit | None, clock: Callable[[], float] = boottime) -> None:
        self._node = node
        self._log_dir = log_dir
        self._audit = audit
        self._clock = clock
        self._threads = trio.CapacityLimiter(THREADS_MAX)
        self._looks: OrderedDict[tuple[str, int, str, int], float] = OrderedDict()
        self.unsigned = ""  # why other nodes get nothing

    async def answer(self, sender: str, subject: str) -> str:
        """The body of the answer to another node. Raises UnavailableError."""
        try:
            asked = question_of(subject)
            self._check(sender, asked)
            told = await self.read(asked.run, asked.attempt, asked.place, asked.tail)
        except RefusedError as exc:
            return refusal(exc)
        except RemoteProtocolError as exc:
            raise UnavailableError(str(exc)) from exc
        return told.pack()

    async def read(self, run: str, attempt: int, place: Place | None, tail: int) -> Told:
        """A piece of a log on this node. Raises RefusedError (there is none) or UnavailableError."""
        path = find_log(self._log_dir, run, attempt, earlier=False)
        # First: an attempt that ends while the file is read may write more.
        held = self._node.pursuits.running.get(run)
        over = held is None or held[0] != attempt
        if not path:
            hint = "a command of `coordd exec` writes to the terminal of its caller; old logs are removed"
            raise RefusedError(f"{self._node.hostname} has no log of {run}/{attempt}", kind="no_log", hint=hint)
        try:
            with trio.move_on_after(READ_S):
                piece = await trio.to_thread.run_sync(
                    partial(read_piece, path, place, PIECE_BYTES_MAX, tail=tail),
                    limiter=self._threads,
                    abandon_on_cancel=True,
                )
                return Told(piece, path, over)
        except OSError as exc:
            raise UnavailableError(f"cannot read {path}: {exc.strerror or exc}") from exc
        raise UnavailableError(f"{path} was not read within {READ_S:g} s: its disk may hang")

    def _check(self, sender: str, asked: Question) -> None:
        """Raises RefusedError unless this reader may read this log here."""
        reader, job = asked.reader, job_of(asked.run)
        host = sender.rpartition(".")[0]
        record = {
            "method": "run.logs",
            "subject": f"{asked.run}/{asked.attempt}",
            "uid": reader.uid,
            "by": f"{reader.name} on {host}",
            "from_node": host,
        }
        why = self.unsigned or self._no_right(reader.right, reader.group, job)
        if why:
            kind = "not_signed" if self.unsigned else "not_permitted"
            self._record(refused={**record, "reason": why})
            raise RefusedError(why, kind=kind, hint="ask on that node, or as an operator")
        key = (sender, reader.uid, asked.run, asked.attempt)
        now, seen = self._clock(), self._looks.pop(key, None)
        self._looks[key] = now
        while len(self._looks) > LOOKS_MAX:
            self._looks.popitem(last=False)
        if seen is None or now - seen > LOOK_S:
            self._record(looked=record)

    def _no_right(self, right: str, group: str, job: str) -> str:
        known = self._node.jobs.get(job)
        owner = known.owner if known is not None else ""
        if right == OPERATES or (right == OWNS and owner and group == owner):
            return ""
        return f"{self._node.hostname} shows the logs of {job} to operators" + (f" and the group {owner}" * bool(owner))

    def _record(self, *, looked: dict[str, Any] | None = None, refused: dict[str, Any] | None = None) -> None:
        if self._audit is not None and looked is not None:
            self._audit.looked(looked)
        if self._audit is not None and refused is not None:
            self._audit.refused(refused)
