"""The Redis ledger's scripts: one for each operation, how its arguments are written and its answer read.

A part of the redis_ledger adapter, and like it loaded by the runner before it starts a job.
"""

import _sha1  # type: ignore[import-not-found]  # no stub; hashlib costs 3 ms of every start
import os

from coordd.core.rows import (
    ATTEMPT_COLUMNS,
    RUN_COLUMNS,
    Answer,
    AttemptRow,
    LedgerTime,
    OpenAnswer,
    OpenRun,
    Policy,
    Registration,
    Row,
)
from coordd.errors import LocalProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

# The sweep sees this many open rows, those that are due first (as in core.ledger, which the runner does not load).
OPEN_RUNS_MAX = 10_000

# What a burst is made of: many of these, one behind the other, cost one script. Each is still a step of its own: it
# sees what those before it wrote, and asking again after a script that broke off is safe.
SEVERAL = {"claim": "claims", "register": "registers"}
_IN_TURN = """
local function one()
%s
end
local answers = {}
while at < #ARGV do answers[#answers + 1] = one() end
return answers
"""

_REPORTED = ("success", "failure", "revoked", "lost", "retry")
_RESTORED = ("received", "started", "success", "failure", "revoked", "lost")
_OUTCOMES = ("success", "failed", "relaunch")

_INTEGERS = frozenset((
    "scheduled", "attempt", "failures", "relaunches", "token", "beat", "commit_token", "cancel",
    "fence", "suspended", "version",
))  # fmt: skip
_INSTANTS = frozenset((
    "fire_at", "created_at", "not_before", "lease", "until", "received_at", "started_at", "ended_at", "horizon",
))  # fmt: skip


class Scripts:
    """The texts of the scripts and their SHA-1 names, read from the package at the first use."""

    def __init__(self, rewrite: "Callable[[str], str]" = str) -> None:
        """``rewrite`` changes the common part; tests bring their own clock in by it."""
        common = rewrite(_read("redis_ledger.lua")) + _read("redis_ledger_life.lua")
        self.texts: dict[str, bytes] = {}
        for body in _read("redis_ledger_rules.lua").split("\n--- ")[1:]:
            op, _, text = body.partition("\n")
            self.texts[op] = f"{common}\n{text}".encode()
            if op in SEVERAL:
                self.texts[SEVERAL[op]] = (common + _IN_TURN % text).encode()
        self._names: dict[str, str] = {}

    def name(self, op: str) -> str:
        """What EVALSHA calls the script of an operation."""
        if op not in self._names:
            self._names[op] = _sha1.sha1(self.texts[op]).hexdigest()
        return self._names[op]


def _read(name: str) -> str:
    file = os.open(f"{os.path.dirname(__file__)}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, os.fstat(file).st_size).decode()
    finally:
        os.close(file)


# ---- arguments


def _registration(of: Registration) -> "list[Any]":
    return [
        of.run, of.job, of.digest, of.policy.pack(), float(of.fire_at), int(of.scheduled), of.args, of.by,
        float(of.age_s),
    ]  # fmt: skip


def _claim(claim: "Any") -> "list[Any]":
    return [
        *_registration(claim.of), claim.attempt, claim.nonce, claim.node, float(claim.lease_s),
        *(claim.watched or ("", "", "")), float(claim.settled_to),
    ]  # fmt: skip


def _report(
    run: str, attempt: int, token: int, nonce: str, state: str, exit_code: "int | None", reason: str,
    application_id: str, final: bool,
) -> "list[Any]":  # fmt: skip
    assert state in _REPORTED, f"{run}: a report cannot say {state}"
    code = "" if exit_code is None else exit_code
    return [run, attempt, token, nonce, state, code, reason, application_id, int(final)]


def _restore(
    of: Registration, attempt: int, token: int, nonce: str, node: str, lease_s: float, state: str,
    exit_code: "int | None", reason: str, application_id: str, final: bool,
) -> "list[Any]":  # fmt: skip
    assert state in _RESTORED, f"{of.run}: restored as {state}"
    code = "" if exit_code is None else exit_code
    return [
        *_registration(of), attempt, token, nonce, node, float(lease_s), state, code, reason, application_id,
        int(final),
    ]  # fmt: skip


def _revoke(run: str, by: str) -> "list[Any]":
    from coordd.core.run import nominal_time

    fire_at = nominal_time(run)
    job = run.partition("#")[0].partition("@")[0]
    of = Registration(run, job, "", Policy(), fire_at or 0.0, scheduled=fire_at is not None, by=by)
    return [run, by, *_registration(of)]


def _resolve(run: str, outcome: str, by: str) -> "list[Any]":
    assert outcome in _OUTCOMES, f"{run}: resolved as {outcome}"
    return [run, outcome, by]


def _renew(
    run: str, attempt: int, token: int, nonce: str, lease_s: float, application_id: str, launched: bool
) -> "list[Any]":
    return [run, attempt, token, nonce, float(lease_s), application_id, int(launched)]


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
    "open": lambda jobs: [*jobs, OPEN_RUNS_MAX],
    "prune": lambda keep_s, limit: [float(keep_s), limit],
    "accept_epoch": _same,
}


def packed(op: str, args: "Sequence[Any]") -> "list[bytes]":
    """An operation's arguments as Redis takes them.

    Raises LocalProtocolError for what no row can hold, and for an operation that there is none of.
    """
    write = ARGUMENTS.get(op)
    if write is None:
        raise LocalProtocolError(f"the ledger has no operation {op!r}")
    try:
        return [str(each).encode() for each in write(*args)]
    except UnicodeEncodeError as exc:
        raise LocalProtocolError(f"ledger: a value that no row can hold: {exc}") from exc


# ---- answers


def answer_of(reply: "list[Any]") -> Answer | OpenAnswer:
    """A script's reply: the ledger's mark, a word, then names and values."""
    if reply[1] == b"open":
        return _open_answer(reply)
    fields: dict[str, Any] = {}
    for name, value in zip(reply[2::2], reply[3::2], strict=True):
        key = name.decode()
        if key in ("token", "attempt"):
            fields[key] = int(value)
        elif key in ("left_s", "in_s"):
            fields[key] = float(value)
        elif key == "until_token":
            token, beat = value.split(b" ")
            fields[key] = (int(token), int(beat))
        elif key == "ended":
            attempt, token, nonce, node, reason = (part.decode() for part in value)
            fields[key] = (int(attempt), int(token), nonce, node, reason)
        elif key in ("by", "state", "args"):
            fields[key] = value.decode()
    return Answer(reply[1].decode(), **fields)


def _open_answer(reply: "list[Any]") -> OpenAnswer:
    wall, recovering_s = float(reply[2]), float(reply[3])
    jobs = {
        name.decode(): (float(horizon), float(fired), suspended == b"1", int(fence))
        for name, horizon, fired, suspended, fence in reply[4]
    }
    now = LedgerTime(wall, wall, "", recovering_s, reply[0].decode())
    runs = [_open_run(values, now) for values in reply[5] if values[0] is not None]
    return OpenAnswer(runs, jobs, wall, recovering_s, now.epoch)


# What the script "open" says of each run, in this order.
_OPEN_COLUMNS = (
    "run", "job", "digest", "args", "scheduled", "fire_at", "state", "attempt", "token", "nonce", "node", "lease",
    "beat", "not_before", "until", "boot",
)  # fmt: skip


def _open_run(values: "list[Any]", now: LedgerTime) -> OpenRun:
    row = Row.__new__(Row)
    for column, value in zip(_OPEN_COLUMNS, values, strict=True):
        setattr(row, column, value_of(column, value))
    return OpenRun(row, now)


def value_of(column: str, value: "bytes | None") -> "Any":
    """A field of a hash as the column's type; what an older version did not write is empty."""
    if column in _INTEGERS:
        return int(value or 0)
    if column in _INSTANTS:
        return float(value or 0.0)
    if column == "exit_code":
        return int(value) if value else None
    return (value or b"").decode()


def row_of(values: "Sequence[bytes | None]") -> Row | None:
    """A run's hash; None when there is none."""
    if values[0] is None:
        return None
    return Row([value_of(column, value) for column, value in zip(RUN_COLUMNS, values, strict=True)])


def attempts_of(flat: "Sequence[bytes]") -> list[AttemptRow]:
    """The hash of a run's attempts, whose fields are "<attempt>:<column>"."""
    found: dict[int, dict[str, bytes]] = {}
    for name, value in zip(flat[::2], flat[1::2], strict=True):
        number, _, column = name.decode().partition(":")
        found.setdefault(int(number), {})[column] = value
    return [
        AttemptRow([value_of(column, found[number].get(column)) for column in ATTEMPT_COLUMNS])
        for number in sorted(found)
    ]
