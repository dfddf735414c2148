"""What nodes ask each other about the logs of attempts, and answer. Pure.

The question is the subject of a ``peer-ask``, at most SUBJECT_LENGTH_MAX characters; the answer is the body of a
``peer-answer``. Both are JSON. What another node sent is checked here before anything is done with it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any, NamedTuple

from coordd.core.jobs.job import job_of
from coordd.core.ledger.words import ATTEMPT_MAX
from coordd.errors import RefusedError, RemoteProtocolError
from coordd.services.logs.files import Piece, Place

# The kind of such a question.
LOG = "log"

# Bytes of a log in one answer: as base64 they fit into relay.BODY_BYTES_MAX.
PIECE_BYTES_MAX = 32 * 1024

# As core/wire/events.py bounds a subject.
SUBJECT_LENGTH_MAX = 1024

# Of the texts in a question, this many characters.
RUN_LENGTH_MAX = 256
NAME_LENGTH_MAX = 64

# Nothing on a disk is larger, and no number beyond is exact in every reader of JSON.
NUMBER_MAX = 2**53

# Jobs of files, hooks and `coordd exec`.
_JOB = re.compile(r"[A-Za-z0-9._~-]{1,128}")

# The right by which somebody reads: everything, or as a member of the group that owns the job.
OPERATES, OWNS = "operator", "owner"


class Reader(NamedTuple):
    """Who wants to read, as the node on which they asked says: their name and uid there, and the right that they have.
    ``group`` is the group of a job's owners that they are in, if that is their right.
    """

    name: str
    uid: int
    right: str
    group: str = ""


class Question(NamedTuple):
    """A piece of an attempt's log. ``tail``: without a place, this many bytes from the end (0: from the beginning)."""

    run: str
    attempt: int
    reader: Reader
    place: Place | None = None
    tail: int = 0

    def pack(self) -> str:
        """The subject of the message. Raises RefusedError if it would be too long."""
        reader = self.reader._replace(name=self.reader.name[:NAME_LENGTH_MAX])
        text = json.dumps([self.run, self.attempt, list(reader), self.place, self.tail], separators=(",", ":"))
        if len(text) > SUBJECT_LENGTH_MAX:
            raise RefusedError(f"the id of {self.run[:100]} is too long for another node", kind="too_large")
        return text


class Told(NamedTuple):
    """The answer: a piece, the path of the file there, and whether the attempt is over on that node."""

    piece: Piece
    path: str
    over: bool

    def pack(self) -> str:
        """The body of the message."""
        piece = self.piece
        data = base64.b64encode(piece.data).decode()
        told = [data, piece.place, piece.left, piece.lost, self.path[:SUBJECT_LENGTH_MAX], self.over]
        return json.dumps(told, separators=(",", ":"))


def question_of(subject: str) -> Question:
    """The question of another node. Raises RemoteProtocolError if it makes no sense."""
    try:
        run, attempt, (name, uid, right, group), place, tail = json.loads(subject)
        asked = Question(
            _run(run),
            _number(attempt, ATTEMPT_MAX),
            Reader(_text(name, NAME_LENGTH_MAX), _number(uid), _text(right, 16), _text(group, NAME_LENGTH_MAX)),
            None if place is None else _place(place),
            _number(tail),
        )
    except (ValueError, TypeError, RecursionError) as exc:
        raise RemoteProtocolError(f"a question about a log that makes no sense: {exc!s:.100}") from exc
    if asked.reader.right not in (OPERATES, OWNS):
        raise RemoteProtocolError(f"expected the right {OPERATES} or {OWNS}, found {asked.reader.right!r}")
    return asked


def refusal(exc: RefusedError) -> str:
    """A refusal as the body of an answer."""
    return json.dumps({"refused": str(exc)[:500], "kind": exc.kind, "hint": exc.hint[:300]}, separators=(",", ":"))


def told_of(body: str) -> Told:
    """The answer of another node. Raises RefusedError if it refused, RemoteProtocolError if it makes no sense."""
    try:
        said = json.loads(body)
        if isinstance(said, dict):
            raise RefusedError(str(said["refused"])[:500], kind=str(said["kind"])[:40], hint=str(said["hint"])[:300])
        data, place, left, lost, path, over = said
        raw = base64.b64decode(_text(data, 2 * PIECE_BYTES_MAX), validate=True)
        return Told(
            Piece(raw[:PIECE_BYTES_MAX], _place(place), _number(left), _flag(lost)),
            _text(path, SUBJECT_LENGTH_MAX),
            _flag(over),
        )
    except (ValueError, TypeError, KeyError, RecursionError, binascii.Error) as exc:
        raise RemoteProtocolError(f"an answer about a log that makes no sense: {exc!s:.100}") from exc


def _run(said: Any) -> str:
    """The id of a run. Its job is the name of a directory here."""
    run = _text(said, RUN_LENGTH_MAX)
    job = job_of(run)
    if job in (run, ".", "..") or not _JOB.fullmatch(job):
        raise ValueError("expected the id of a run")
    return run


def _place(said: Any) -> Place:
    inode, head, offset = said
    return Place(_number(inode, 2**64), _number(head, 2**32), _number(offset))


def _text(said: Any, length_max: int) -> str:
    if not isinstance(said, str) or len(said) > length_max:
        raise ValueError(f"expected a text of at most {length_max} characters")
    return said


def _number(said: Any, most: int = NUMBER_MAX) -> int:
    if type(said) is not int or not 0 <= said <= most:
        raise ValueError(f"expected a number from 0 to {most}")
    return said


def _flag(said: Any) -> bool:
    if type(said) is not bool:
        raise ValueError("expected true or false")
    return said
