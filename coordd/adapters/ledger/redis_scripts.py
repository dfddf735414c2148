"""The Redis ledger's scripts: one for each operation, how its arguments are written and its answer read.

A part of the redis_ledger adapter, and like it loaded by the runner before it starts a job.
"""

import _sha1  # type: ignore[import-not-found]  # no stub; hashlib costs 3 ms of every start
import os

from coordd.core.ledger.answers import Answer, OpenAnswer, OpenRun
from coordd.core.ledger.requests import Registration
from coordd.core.ledger.rows import ATTEMPT_COLUMNS, RUN_COLUMNS, AttemptRow, LedgerTime, Row
from coordd.core.ledger.sound import BAD_MAX, INSTANT_MAX, TOKEN_MAX, bad_job, bad_run, open_fault, printable
from coordd.core.ledger.words import OPEN_PAGE, WORDS
from coordd.errors import LocalProtocolError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# What a burst is made of: many of these, one behind the other, cost one script. Each is still a step of its own: it
# sees what those before it wrote, and asking again after a script that broke off is safe.
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
# Whether the operation is one "also when the memory is full".
_PASSES, _PASSES_NOT = "local passes = true\n", "local passes = false\n"

_REPORTED = ("success", "failure", "revoked", "lost", "retry")
_RESTORED = ("received", "started", "success", "failure", "revoked", "lost")
_HOW = ("new", "changed", "returned", "restored", "person")
_OUTCOMES = ("success", "failed", "relaunch")

_INTEGERS = frozenset((
    "scheduled", "attempt", "failures", "relaunches", "token", "beat", "commit_token", "cancel",
    "fence", "suspended", "version", "sequence",
))  # fmt: skip
_INSTANTS = frozenset((
    "fire_at", "created_at", "not_before", "lease", "until", "received_at", "started_at", "ended_at", "horizon",
    "due", "activated_at", "counts_from",
))  # fmt: skip


# Where each operation's script stands, by who asks: lua/<room>/<operation>.lua. Its header says what it is given and
# what it answers, which files of lua/shared it needs, and whether it passes when the memory is full.
ROOMS = {
    "nodes": ("register", "claim", "settle", "restore", "open", "page", "prune", "new_rules", "activate"),
    "runners": ("gate", "renew", "report", "commit"),
    "people": ("revoke", "cancel", "resolve", "suspend", "accept_epoch", "close", "put"),
}
ROOM_OF = {op: room for room, ops in ROOMS.items() for op in ops}
# What every script begins with; the rest as it needs them.
BEGINNING = ("constants", "begin", "answers")
_FULL = "\n-- When the memory is full: "
_NEEDS = "\n-- Needs: "


class Scripts:
    """The texts of the scripts and their SHA-1 names, each read from the package at its first use."""

    def __init__(self, rewrite: "Callable[[str], str]" = str) -> None:
        """``rewrite`` changes the file begin.lua; tests bring their own clock in by it."""
        self._rewrite = rewrite
        self._shared: dict[str, str] = {}
        self._texts: dict[str, bytes] = {}
        self._names: dict[str, str] = {}

    def name(self, op: str) -> str:
        """What EVALSHA calls the script of an operation."""
        if op not in self._names:
            self._names[op] = _sha1.sha1(self.text(op)).hexdigest()
        return self._names[op]

    def text(self, op: str) -> bytes:
        """The script of an operation, or of several in turn (a name of SEVERAL's)."""
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


def _registration(of: Registration) -> "list[Any]":
    return [
        of.run,
        of.job,
        of.digest,
        of.policy.pack(),
        float(of.fire_at),
        int(of.scheduled),
        of.args,
        of.by,
        float(of.age_s),
        float(of.due),
        float(of.identity_from),
    ]


def _claim(claim: "Any") -> "list[Any]":
    return [
        *_registration(claim.of),
        claim.attempt,
        claim.nonce,
        claim.node,
        float(claim.lease_s),
        *(claim.watched or ("", "", "")),
        float(claim.settled_to),
    ]


def _report(
    run: str,
    attempt: int,
    token: int,
    nonce: str,
    state: str,
    exit_code: "int | None",
    reason: str,
    application_id: str,
    final: bool,
) -> "list[Any]":
    assert state in _REPORTED, f"{run}: a report cannot say {state}"
    code = "" if exit_code is None else exit_code
    return [run, attempt, token, nonce, state, code, reason, application_id, int(final)]


def _restore(
    of: Registration,
    attempt: int,
    token: int,
    nonce: str,
    node: str,
    lease_s: float,
    state: str,
    exit_code: "int | None",
    reason: str,
    application_id: str,
    final: bool,
) -> "list[Any]":
    assert state in _RESTORED, f"{of.run}: restored as {state}"
    code = "" if exit_code is None else exit_code
    return [
        *_registration(of),
        attempt,
        token,
        nonce,
        node,
        float(lease_s),
        state,
        code,
        reason,
        application_id,
        int(final),
    ]


def _revoke(run: str, by: str, due: float) -> "list[Any]":
    from coordd.core.ledger.steps import unseen

    return [run, by, *_registration(unseen(run, by, due, 0.0))]


def _resolve(run: str, outcome: str, by: str) -> "list[Any]":
    assert outcome in _OUTCOMES, f"{run}: resolved as {outcome}"
    return [run, outcome, by]


def _renew(
    run: str, attempt: int, token: int, nonce: str, lease_s: float, application_id: str, launched: bool
) -> "list[Any]":
    return [run, attempt, token, nonce, float(lease_s), application_id, int(launched)]


def _activate(
    name: str, digest: str, schedule: str, how: str, by: str, sequence: int, counts_from: float
) -> "list[Any]":
    assert how in _HOW, f"{name}: activated as {how}"
    return [name, digest, schedule, how, by, sequence, float(counts_from)]


def _same(*args: "Any") -> "list[Any]":
    return list(args)


ARGUMENTS: "dict[str, Callable[..., list[Any]]]" = {
    "register": _registration,
    "claim": _claim,
    "gate": _same,
    "renew": _renew,
    "report": _report,
    "commit": _same,
    "restore": _restore,
    "revoke": _revoke,
    "cancel": _same,
    "resolve": _resolve,
    "suspend": lambda job, suspended, by: [job, int(suspended), by],
    "open": lambda jobs: [OPEN_PAGE, *jobs],
    # The name as it stands there, also that of a bad row.
    "page": lambda not_before, run: [OPEN_PAGE, float(not_before), run.encode(errors="surrogateescape")],
    "settle": lambda run, attempt, watched: [run, attempt, *(watched or ("", "", ""))],
    "new_rules": lambda known: [float(known)],
    "activate": _activate,
    "prune": lambda keep_s, limit: [float(keep_s), limit],
    "accept_epoch": _same,
    "close": lambda force, by: [int(force), by],
}


def packed(op: str, args: "Sequence[Any]") -> "list[bytes]":
    """An operation's arguments as Redis takes them.

    Raises LocalProtocolError for what no row can hold, and for an operation that there is none of.
    """
    write = ARGUMENTS.get(op)
    if write is None:
        raise LocalProtocolError(f"the ledger has no operation {op!r}")
    try:
        return [each if isinstance(each, bytes) else str(each).encode() for each in write(*args)]
    except UnicodeEncodeError as exc:
        raise LocalProtocolError(f"ledger: a value that no row can hold: {exc}") from exc


# ---- answers


def answer_of(reply: "list[Any]") -> Answer | OpenAnswer:
    """A script's reply: whose ledger it is, a word, then names and values.

    Raises UnavailableError for a reply that no script of ours gives.
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
            fields[key] = (_whole(token), _whole(beat))
        elif key == "ended":
            attempt, token, *texts = (part.decode(errors="replace") for part in value[:-1])
            nonce, node, reason, digest, policy = texts
            mark = (_whole(attempt), _whole(token), nonce, node, reason, digest, policy, _seconds(value[-1]))
            fields[key] = mark
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
    jobs: dict[str, tuple[float, float, bool, int]] = {}
    current: dict[str, tuple[int, str, float]] = {}
    bad: dict[str, str] = {}
    for about in reply[4]:
        name = about[0].decode()
        if about[1] == b"bad":
            bad[name] = bad_job(name, about[2].decode(errors="replace"))
        else:
            horizon, fired, suspended, fence, sequence, digest, counts_from = about[1:]
            jobs[name] = (_seconds(horizon), _seconds(fired), suspended == b"1", _whole(fence))
            if digest:
                current[name] = (_whole(sequence), digest.decode(), _seconds(counts_from))
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
    after = (float(reply[6][0]), reply[6][1].decode(errors="surrogateescape")) if reply[6] else None
    return OpenAnswer(
        runs, jobs, wall, recovering_s, now.epoch, identity, predecessor, bad, after, _seconds(reply[7]), current
    )


def whose(reply: "list[Any]") -> "tuple[str, str, str]":
    """The mark of the ledger's life, its identity, and that of the ledger that it continues; "" where it has none."""
    mark, identity, predecessor = reply[0].decode().split(" ")
    return mark, identity, predecessor


# What the script "open" says of each run, in this order.
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
    """A field of a hash as the column's type; what an older version did not write is empty.

    What is not of that type stays text, by which core.sound knows it.
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
