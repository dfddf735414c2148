"""The Redis ledger's scripts: one per operation, with the encoding of arguments and answers.

A part of the redis_ledger adapter, and loaded by the runner before it starts a job.
"""

import _sha1  # type: ignore[import-not-found]  # no stub; hashlib costs 3 ms of every start
import os

from coordd.core.ledger.answers import Answer, Current, Ended, Held, JobState, OpenAnswer, OpenRun
from coordd.core.ledger.requests import Page
from coordd.core.ledger.rows import (
    ATTEMPT_COLUMNS,
    RUN_COLUMNS,
    AttemptNumber,
    AttemptRow,
    Cursor,
    LedgerTime,
    Policy,
    Record,
    Row,
    Token,
)
from coordd.core.ledger.sound import BAD_MAX, INSTANT_MAX, TOKEN_MAX, bad_job, bad_run, open_fault, printable
from coordd.core.ledger.words import WORDS
from coordd.errors import LocalProtocolError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from coordd.core.ledger.requests import Request

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

_INTEGERS = frozenset((
    "scheduled", "attempt", "failures", "relaunches", "token", "beat", "commit_token", "cancel",
    "fence", "suspended", "version", "sequence",
))  # fmt: skip
_INSTANTS = frozenset((
    "fire_at", "created_at", "not_before", "lease", "until", "received_at", "started_at", "ended_at", "horizon",
    "due", "activated_at", "counts_from",
))  # fmt: skip


# The path of each operation's script, by its caller: lua/<room>/<operation>.lua. Its header lists its arguments and
# answers, the files of lua/shared that it needs, and whether it passes when the memory is full.
ROOMS = {
    "nodes": ("register", "claim", "settle", "restore", "open", "page", "prune", "new_rules", "activate"),
    "runners": ("gate", "renew", "report", "commit"),
    "people": ("revoke", "cancel", "resolve", "suspend", "accept_epoch", "close", "put"),
}
ROOM_OF = {op: room for room, ops in ROOMS.items() for op in ops}
# The beginning of every script; other files as needed.
BEGINNING = ("constants", "begin", "answers")
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
    # The unchanged name, even of a bad row.
    errors = "surrogateescape" if request.op == Page.op else "strict"
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


def answer_of(reply: "list[Any]") -> Answer | OpenAnswer:
    """A script's reply: the ledger's identity, a word, then names and values.

    Raises UnavailableError for an invalid reply.
    """
    try:
        return _open_answer(reply) if reply[1] == b"open" else _answer(reply)
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError) as exc:
        raise UnavailableError(f"ledger: an answer that cannot be read: {exc!s:.200}") from exc


def _answer(reply: "list[Any]") -> Answer:
    word = reply[1].decode()
    if word not in WORDS:
        raise ValueError(f"the word {word[:40]!r}")
    fields: dict[str, Any] = {}
    for name, value in zip(reply[2::2], reply[3::2], strict=True):
        key = name.decode()
        if key in ("token", "attempt"):
            fields[key] = _whole(value)
        elif key in ("left_s", "in_s"):
            fields[key] = _seconds(value)
        elif key == "until_token":
            token, beat = value.split(b" ")
            fields["held"] = Held(token=Token(_whole(token)), beat=_whole(beat))
        elif key == "ended":
            attempt, token, *texts = (part.decode(errors="replace") for part in value[:-1])
            nonce, node, reason, digest, policy = texts
            fields[key] = Ended(
                attempt=AttemptNumber(_whole(attempt)),
                token=Token(_whole(token)),
                nonce=nonce,
                node=node,
                reason=reason,
                digest=digest,
                policy=policy,
                lease_s=_seconds(value[-1]),
            )
        elif key in ("by", "state", "args"):
            fields[key] = value.decode(errors="replace")
    return Answer(word, **fields)


def _whole(value: "bytes | str") -> int:
    number = int(value)
    if not 0 <= number <= TOKEN_MAX:
        raise ValueError(f"the number {number}")
    return number


def _seconds(value: bytes) -> float:
    number = float(value)
    if not -INSTANT_MAX <= number <= INSTANT_MAX:
        raise ValueError(f"{number} seconds")
    return number


def _open_answer(reply: "list[Any]") -> OpenAnswer:
    wall, recovering_s = _seconds(reply[2]), _seconds(reply[3])
    jobs: dict[str, JobState] = {}
    current: dict[str, Current] = {}
    bad: dict[str, str] = {}
    for about in reply[4]:
        name = about[0].decode()
        if about[1] == b"bad":
            bad[name] = bad_job(name, about[2].decode(errors="replace"))
        else:
            horizon, fired, suspended, fence, sequence, digest, counts_from = about[1:]
            jobs[name] = JobState(
                horizon=_seconds(horizon),
                last_fire_at=_seconds(fired),
                suspended=suspended == b"1",
                fence=_whole(fence),
            )
            if digest:
                current[name] = Current(
                    sequence=_whole(sequence), digest=digest.decode(), counts_from=_seconds(counts_from)
                )
    mark, identity, predecessor = whose(reply)
    now = LedgerTime(wall, wall, "", recovering_s, mark)
    runs = []
    for values in reply[5]:
        if values[0] is None:
            continue
        row = _open_row(values)
        fault = open_fault(row, OPEN_COLUMNS)
        if not fault:
            runs.append(OpenRun(row, now))
        elif len(bad) < BAD_MAX:
            bad[printable(row.run)] = bad_run(row.run, fault)
    after = None
    if reply[6]:
        after = Cursor(not_before=float(reply[6][0]), run=reply[6][1].decode(errors="surrogateescape"))
    return OpenAnswer(
        runs, jobs, wall, recovering_s, now.epoch, identity, predecessor, bad, after, _seconds(reply[7]), current
    )


def whose(reply: "list[Any]") -> "tuple[str, str, str]":
    """The ledger's mark, its identity, and the identity of the ledger that it continues; "" if missing."""
    mark, identity, predecessor = reply[0].decode().split(" ")
    return mark, identity, predecessor


# The columns of each run in the answer of the script "open", in this order.
OPEN_COLUMNS = (
    "run", "job", "digest", "args", "scheduled", "fire_at", "state", "attempt", "token", "nonce", "node", "lease",
    "beat", "not_before", "until", "boot", "policy", "due",
)  # fmt: skip


def _open_row(values: "list[Any]") -> Row:
    row = Row.__new__(Row)
    for column, value in zip(OPEN_COLUMNS, values, strict=True):
        setattr(row, column, value_of(column, value))
    return row


def value_of(column: str, value: "bytes | None") -> "Any":
    """A field of a hash, as the column's type; a field that an older version did not write is empty.

    A value of another type stays text, which core/ledger/sound.py then reports.
    """
    text = (value or b"").decode(errors="surrogateescape")
    try:
        if column in _INTEGERS:
            return int(text or 0)
        if column in _INSTANTS:
            return float(text or 0.0)
        if column == "exit_code":
            return int(text) if text else None
    except ValueError:
        pass
    return text


def row_of(values: "Sequence[bytes | None]") -> Row | None:
    """A run's hash; None when there is none."""
    if values[0] is None:
        return None
    return Row([value_of(column, value) for column, value in zip(RUN_COLUMNS, values, strict=True)])


def attempts_of(flat: "Sequence[bytes]") -> list[AttemptRow]:
    """The hash of a run's attempts, whose fields are "<attempt>:<column>"; other fields are left out."""
    found: dict[int, dict[str, bytes]] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        number, _, column = name.partition(b":")
        if number.isdigit() and len(number) < 9 and column.isascii():
            found.setdefault(int(number), {})[column.decode()] = value
    return [
        AttemptRow([value_of(column, found[number].get(column)) for column in ATTEMPT_COLUMNS])
        for number in sorted(found)
    ]
