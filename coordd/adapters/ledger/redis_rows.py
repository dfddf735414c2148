"""Rows as the Redis ledger keeps them, in a sweep's reply and in the hashes that people read.

A part of the redis_ledger adapter. A runner needs none of it, so it is not loaded before a job is started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coordd.adapters.ledger.redis_scripts import seconds, whole, whose
from coordd.core.ledger.open_answer import Current, JobState, OpenAnswer, OpenRun
from coordd.core.ledger.rows import ATTEMPT_COLUMNS, RUN_COLUMNS, AttemptRow, Cursor, Hold, LedgerTime, Row
from coordd.core.ledger.sound import BAD_MAX, bad_job, bad_run, open_fault, printable

_INTEGERS = frozenset((
    "scheduled", "attempt", "failures", "relaunches", "token", "beat", "commit_token", "cancel",
    "fence", "suspended", "version", "sequence",
))  # fmt: skip
_INSTANTS = frozenset((
    "fire_at", "created_at", "not_before", "lease", "until", "received_at", "started_at", "ended_at", "horizon",
    "due", "activated_at", "counts_from",
))  # fmt: skip


# The columns of each run in the answer of the script "open", in this order.
OPEN_COLUMNS = (
    "run", "job", "digest", "args", "scheduled", "fire_at", "state", "attempt", "token", "nonce", "node", "lease",
    "beat", "not_before", "until", "boot", "policy", "due", "ended_at", "by",
)  # fmt: skip


def open_answer(reply: list[Any]) -> OpenAnswer:
    """The reply of a sweep's script. Raises as redis_scripts.answer does."""
    wall, recovering_s = seconds(reply[2]), seconds(reply[3])
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
                horizon=seconds(horizon), last_fire_at=seconds(fired), suspended=suspended == b"1", fence=whole(fence)
            )
            if digest:
                current[name] = Current(
                    sequence=whole(sequence), digest=digest.decode(), counts_from=seconds(counts_from)
                )
    epoch, identity, predecessor, grants = whose(reply)
    now = LedgerTime(wall, wall, "", recovering_s, epoch)
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
    answer = OpenAnswer(
        runs,
        jobs,
        wall,
        recovering_s,
        now.epoch,
        identity,
        predecessor,
        bad,
        after,
        seconds(reply[7]),
        current,
        {key.decode(errors="replace"): Hold.read(text.decode(errors="replace")) for key, text in reply[8]},
        cursor=reply[9].decode(),
        gone=[run.decode(errors="replace") for run in reply[10]] if reply[11] else None,
        more=reply[11] == b"1",
    )
    answer.grants = grants
    return answer


def _open_row(values: list[Any]) -> Row:
    row = Row.__new__(Row)
    for column, value in zip(OPEN_COLUMNS, values, strict=True):
        setattr(row, column, value_of(column, value))
    return row


def value_of(column: str, value: bytes | None) -> Any:
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


def row_of(values: Sequence[bytes | None]) -> Row | None:
    """A run's hash; None when there is none."""
    if values[0] is None:
        return None
    return Row([value_of(column, value) for column, value in zip(RUN_COLUMNS, values, strict=True)])


def attempts_of(flat: Sequence[bytes]) -> list[AttemptRow]:
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
