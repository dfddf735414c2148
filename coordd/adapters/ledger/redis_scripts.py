"""The Redis ledger's scripts: one per operation, with the encoding of arguments and answers.

A part of the redis_ledger adapter, and loaded by the runner before it starts a job.
"""

import _sha1  # type: ignore[import-not-found]  # no stub; hashlib costs 3 ms of every start
import os

from coordd.core.ledger.answers import Answer, Ended, Held
from coordd.core.ledger.words import (
    ATTEMPT_MAX,
    DURATION_MAX_S,
    INSTANT_MAX,
    NAME_MAX,
    TOKEN_MAX,
    WORDS,
    AttemptNumber,
    Policy,
    Record,
    Token,
)
from coordd.errors import LocalProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from coordd.core.ledger.runner_requests import Request

# The operations of a burst: many of one kind can run in one script. Each is still a step of its own: it sees the writes
# of the earlier ones, and after a script that was cut off, a repeat is safe.
SEVERAL = {"claim": "claims", "register": "registers"}
_ONCE = """
local function one()
%s
end
return guarded(one)
"""
_IN_TURN = """
local function one()
%s
end
local answers = {}
while at < #ARGV do
  local said = guarded(one)
  if said.err then return said end
  answers[#answers + 1] = said
end
return answers
"""
# Whether the operation passes when the memory is full.
_PASSES, _PASSES_NOT = "local passes = true\n", "local passes = false\n"

# The path of each operation's script, by its caller: lua/<room>/<operation>.lua. Its header lists its arguments and
# answers, the files of lua/shared that it needs, and whether it passes when the memory is full.
ROOMS = {
    "nodes": (
        "register",
        "claim",
        "settle",
        "open",
        "page",
        "ended",
        "prune",
        "new_rules",
        "activate",
        "adopt",
        "pass_over",
        "fill",
        "rerun",
    ),
    "recovery": ("restore", "vouch"),
    "runners": ("gate", "renew", "report", "commit"),
    "people": (
        "revoke",
        "cancel",
        "resolve",
        "replay",
        "discard",
        "suspend",
        "keep",
        "plan",
        "accept_epoch",
        "close",
        "put",
    ),
}
ROOM_OF = {op: room for room, ops in ROOMS.items() for op in ops}
# The beginning of every script; other files as needed.
BEGINNING = ("constants", "begin")
_FULL = "\n-- When the memory is full: "
_NEEDS = "\n-- Needs: "


class Scripts:
    """The texts of the scripts and their SHA-1 names, each read from the package at its first use."""

    def __init__(self, rewrite: "Callable[[str], str]" = str) -> None:
        """``rewrite`` changes the file begin.lua; tests use it for their own clock."""
        self._rewrite = rewrite
        self._shared: dict[str, str] = {}
        self._texts: dict[str, bytes] = {}
        self._names: dict[str, str] = {}

    def name(self, op: str) -> str:
        """The SHA-1 name of an operation's script, for EVALSHA."""
        if op not in self._names:
            self._names[op] = _sha1.sha1(self.text(op)).hexdigest()
        return self._names[op]

    def text(self, op: str) -> bytes:
        """The script of an operation, or of several in order (a name of SEVERAL's)."""
        if op not in self._texts:
            one = next((single for single, several in SEVERAL.items() if several == op), op)
            head, _, rest = _read(f"{ROOM_OF[one]}/{one}.lua").partition(_NEEDS)
            needs, _, body = rest.partition("\n")
            first = _PASSES if head.rpartition(_FULL)[2] == "passes" else _PASSES_NOT
            files = [self._part(name) for name in (*BEGINNING, *(needs.split() if needs != "nothing" else ()))]
            self._texts[op] = (first + "".join(files) + (_ONCE if one == op else _IN_TURN) % body).encode()
        return self._texts[op]

    def _part(self, name: str) -> str:
        if name not in self._shared:
            text = _read(f"shared/{name}.lua")
            self._shared[name] = self._rewrite(text) if name == "begin" else text
        return self._shared[name]


def _read(name: str) -> str:
    file = os.open(f"{os.path.dirname(__file__)}/lua/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, os.fstat(file).st_size).decode()
    finally:
        os.close(file)


# ---- arguments


# The placeholder for a missing value of several fields.
_BLANK = {"watched": ("", "", "")}


def packed(request: "Request[Any]") -> "list[bytes]":
    """The arguments of an operation's script: the fields of the request, in the order of its ``wire``.

    Raises LocalProtocolError for a value that no row can contain.
    """
    # A page begins after the unchanged name, even of a bad row.
    errors = "surrogateescape" if request.op == "page" else "strict"
    try:
        return [str(value).encode(errors=errors) for value in _values(request)]
    except UnicodeEncodeError as exc:
        raise LocalProtocolError(f"ledger: a value that no row can hold: {exc}") from exc


def _values(record: Record) -> "list[str | int | float]":
    values: list[str | int | float] = []
    for name in record.wire:
        value = getattr(record, name)
        if value is None:
            values += _BLANK.get(name, ("",))
        elif isinstance(value, Record):
            values += _values(value)
        elif isinstance(value, tuple):
            values += value
        elif isinstance(value, Policy):
            values.append(value.pack())
        else:
            values.append(int(value) if isinstance(value, bool) else value)
    return values


# ---- answers


def answer(reply: "list[Any]") -> Answer:
    """The reply of every script but the sweep's: the ledger's identity, a word, then names and values.

    Raises ValueError, or another error of the interpreter, for an invalid reply.
    """
    word = reply[1].decode()
    if word not in WORDS:
        raise ValueError(f"the word {word[:40]!r}")
    fields: dict[str, Any] = {}
    for name, value in zip(reply[2::2], reply[3::2], strict=True):
        key = name.decode()
        if key == "token":
            fields[key] = whole(value)
        elif key == "attempt":
            fields[key] = attempt_of(value)
        elif key in ("left_s", "in_s"):
            fields[key] = seconds(value)
        elif key == "until_token":
            token, beat = value.split(b" ")
            fields["held"] = Held(token=Token(whole(token)), beat=whole(beat))
        elif key == "ended":
            attempt, token, *texts = (part.decode(errors="replace") for part in value[:-1])
            nonce, node, reason, digest, policy = texts
            lease_s = seconds(value[-1])
            if max(map(len, (nonce, node, digest, policy))) > NAME_MAX or not 0 <= lease_s <= DURATION_MAX_S:
                raise ValueError("an end that no event can tell")
            fields[key] = Ended(
                attempt=attempt_of(attempt),
                token=Token(whole(token)),
                nonce=nonce,
                node=node,
                reason=reason,
                digest=digest,
                policy=policy,
                lease_s=lease_s,
            )
        elif key in ("by", "state", "args"):
            fields[key] = value.decode(errors="replace")
    said = Answer(word, **fields)
    said.epoch, _, _, said.grants = whose(reply)
    return said


def whole(value: "bytes | str") -> int:
    """A token or another number. Raises ValueError if no row can contain it."""
    number = int(value)
    if not 0 <= number <= TOKEN_MAX:
        raise ValueError(f"the number {number}")
    return number


def attempt_of(value: "bytes | str") -> AttemptNumber:
    """The number of an attempt. Raises ValueError if no row can contain it."""
    number = whole(value)
    if number > ATTEMPT_MAX:
        raise ValueError(f"the attempt {number}")
    return AttemptNumber(number)


def seconds(value: bytes) -> float:
    """An instant or a duration. Raises ValueError if no row can contain it."""
    number = float(value)
    if not -INSTANT_MAX <= number <= INSTANT_MAX:
        raise ValueError(f"{number} seconds")
    return number


def whose(reply: "list[Any]") -> "tuple[str, str, str, int]":
    """The ledger's epoch, its identity, and the identity of the ledger that it continues ("" if missing); how many
    grants it has made.
    """
    epoch, identity, predecessor, grants = reply[0].decode().split(" ")
    if max(map(len, (epoch, identity, predecessor))) > NAME_MAX:  # a node tells its peers the identity
        raise ValueError("an identity that no event can tell")
    return epoch, identity, predecessor, whole(grants)
