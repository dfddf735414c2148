"""What the program of a message's run asks of its daemon, and what it is told: one line of JSON each way."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

T = TypeVar("T")

# The socket of the daemon for these programs, in its runtime directory.
SOCKET = "msgs.sock"

# Bytes of a line: a message, its addresses, and what JSON makes of them.
LINE_BYTES_MAX = 256 * 1024


class Delivery(msgspec.Struct, frozen=True):
    """One message for the first broker of these that takes it. ``timeout_s``: for all of them together. ``until_s``:
    how long a broker keeps it (seconds); 0.0: for ever. ``repeated``: a broker may have it already.
    """

    to: tuple[str, ...]
    ident: str
    body: str
    kind: str
    timeout_s: float
    until_s: float = 0.0
    repeated: bool = False
    password_file: str = ""
    tls_ca: str = ""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Has a person sent the message of this run again?"""

    run: str


class Told(msgspec.Struct, frozen=True):
    """``again``: a person has."""

    again: bool


class Delivered(msgspec.Struct, frozen=True):
    """The exit code of the call, what each address said, and whether a broker may have the message nevertheless."""

    code: int
    said: tuple[str, ...]
    repeated: bool = False


def socket_path(runtime_dir: str) -> str:
    """The path of that socket."""
    return os.path.join(runtime_dir, SOCKET)


def written(said: Delivery | Delivered | Question | Told) -> bytes:
    """As a line."""
    return msgspec.json.encode(said) + b"\n"


def read_delivery(line: bytes) -> Delivery:
    """What a program asks. Raises ValueError."""
    return _read(line, Delivery)


def read_question(line: bytes) -> Question | None:
    """What a program wants to know; None if it asks for something else."""
    try:
        return _read(line, Question)
    except ValueError:
        return None


def read_told(line: bytes) -> Told:
    """What the daemon says to a question. Raises ValueError."""
    return _read(line, Told)


def read_delivered(line: bytes) -> Delivered:
    """What the daemon answers. Raises ValueError."""
    return _read(line, Delivered)


def _read(line: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except RecursionError as exc:
        raise ValueError("it is nested too deeply") from exc
