"""Rows of a ledger as plain data, for export and import: exported unchanged, and checked at the import."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from coordd.core.ledger.fires import Stretch, as_text, stretches
from coordd.core.ledger.rows import (
    ACTIVATION_COLUMNS,
    ATTEMPT_COLUMNS,
    JOB_COLUMNS,
    RUN_COLUMNS,
    STANDING_COLUMNS,
    AttemptRow,
    Hold,
    JobRow,
    Row,
)
from coordd.core.ledger.words import STATES, Policy
from coordd.errors import RefusedError

COLUMNS = {"job": JOB_COLUMNS, "run": RUN_COLUMNS, "attempt": ATTEMPT_COLUMNS, "hold": ("key", *Hold.COLUMNS)}
_TYPES: dict[str, type] = {
    **{column: kind for row in (Row, AttemptRow) for column, kind in row.__annotations__.items()},
    "fence": int,
    "horizon": float,
    "suspended": int,
    "version": int,
    "changed_by": str,
    "sequence": int,
    "schedule": str,
    "activated_at": float,
    "counts_from": float,
    "fires": str,
    "first_heard": float,
    "succeeded_at": float,
    "key": str,
    "at": float,
    "uid": int,
    "note": str,
}
# Columns that an older version does not export.
_LATER: dict[str, dict[str, Any]] = {
    "job": {
        "sequence": 0,
        "digest": "",
        "schedule": "",
        "activated_at": 0.0,
        "counts_from": 0.0,
        "fires": "",
        "first_heard": 0.0,
        "succeeded_at": 0.0,
    },
    "run": {"due": 0.0},
}

Rows = tuple[list[JobRow], list[Row], list[AttemptRow], dict[str, Hold]]


def head(identity: str, closed: str) -> dict[str, Any]:
    """The first row of the export that closed a ledger: a ledger that imports it continues the closed one."""
    return {"kind": "ledger", "identity": identity, "closed": closed}


def take_head(rows: Iterable[Any]) -> tuple[str, Iterator[Any]]:
    """The identity of the closed ledger that these rows continue ("": they are only a copy, such as a backup), and the
    other rows.

    Raises RefusedError when the head is invalid.
    """
    rest = iter(rows)
    first = next(rest, None)
    if first is None:
        return "", rest
    if not isinstance(first, dict) or first.get("kind") != "ledger":
        return "", chain((first,), rest)
    identity = first.get("identity")
    if not isinstance(identity, str) or not re.fullmatch("[0-9a-f]{16}", identity) or not first.get("closed"):
        raise RefusedError(
            f"row 1: expected the identity of a closed ledger (16 hexadecimal digits), found {str(identity)[:40]!r}",
            kind="bad_row",
            hint="use a file that `ledger export --close` wrote",
        )
    return identity, rest


def exported(row: JobRow | Row | AttemptRow) -> dict[str, Any]:
    """A row as a JSON object; ``kind`` names its type."""
    kind = "job" if isinstance(row, JobRow) else "run" if isinstance(row, Row) else "attempt"
    fields = {"kind": kind, **dict(zip(COLUMNS[kind], row.values(), strict=True))}
    if isinstance(row, JobRow):
        fields.update(zip(STANDING_COLUMNS, row.standing(), strict=True))
        fields.update(fires=row.fires, first_heard=row.first_heard, succeeded_at=row.succeeded_at)
        fields["activations"] = [list(values) for values in row.past]
    return fields


def exported_hold(key: str, hold: Hold) -> dict[str, Any]:
    """A hold as a JSON object; ``key`` as in core/ledger/rows.py."""
    return {"kind": "hold", "key": key, **{column: getattr(hold, column) for column in Hold.COLUMNS}}


def checked(rows: Iterable[Any]) -> Rows:
    """The exported rows without the head, in order; fields of a newer version are left out.

    Raises RefusedError that names the first invalid row.
    """
    jobs: list[JobRow] = []
    runs: dict[str, Row] = {}
    attempts: list[AttemptRow] = []
    holds: dict[str, Hold] = {}
    for number, fields in enumerate(rows, 1):
        try:
            row = _row(fields)
            if isinstance(row, Hold):
                holds[fields["key"]] = row
            elif isinstance(row, JobRow):
                jobs.append(row)
            elif isinstance(row, Row):
                _assert(row.run not in runs, f"run {row.run!r} a second time")
                _assert(row.state in STATES, f"state: {row.state!r} is not a state")
                Policy.unpack(row.policy)
                runs[row.run] = row
            else:
                _assert(row.run in runs, f"an attempt of {row.run!r}, which has no earlier row")
                attempts.append(row)
        except (ValueError, TypeError) as exc:
            raise RefusedError(
                f"row {number}: {exc}", kind="bad_row", hint="use a file that `ledger export` wrote"
            ) from exc
    return jobs, list(runs.values()), attempts, holds


def _row(fields: Any) -> JobRow | Row | AttemptRow | Hold:
    _assert(isinstance(fields, dict) and fields.get("kind") in COLUMNS, "expected kind job, run, attempt or hold")
    columns = COLUMNS[fields["kind"]]
    values = [_value(column, {**_LATER.get(fields["kind"], {}), **fields}) for column in columns]
    if fields["kind"] == "hold":
        return Hold(**dict(zip(columns[1:], values[1:], strict=True)))
    if fields["kind"] == "job":
        job = JobRow(*values)
        for column in STANDING_COLUMNS:
            setattr(job, column, _value(column, {**_LATER["job"], **fields}))
        job.fires = as_text(_stretches(fields))
        job.first_heard = _value("first_heard", {**_LATER["job"], **fields})
        job.succeeded_at = _value("succeeded_at", {**_LATER["job"], **fields})
        job.past = [_past(values) for values in _list("activations", fields.get("activations", []))]
        return job
    return Row(values) if fields["kind"] == "run" else AttemptRow(values)


def _stretches(fields: dict[str, Any]) -> list[Stretch]:
    """The record of fire times without a row."""
    text = _value("fires", {**_LATER["job"], **fields})
    found = stretches(text)
    _assert(len(found) == len(text.splitlines()), "fires: expected lines of two instants and a word")
    return found


def _past(values: Any) -> tuple[int, str, str, float, float, str]:
    """One earlier definition that counted."""
    said = _list("activations", values)
    _assert(len(said) == len(ACTIVATION_COLUMNS), f"activations: expected {len(ACTIVATION_COLUMNS)} values each")
    fields = dict(zip(ACTIVATION_COLUMNS, said, strict=True))
    _assert(not any("\n" in str(value) for value in said[:-1]), "activations: a line end in a digest")
    sequence, digest, schedule, activated_at, counts_from, by = [
        _value(column, fields) for column in ACTIVATION_COLUMNS
    ]
    return sequence, digest, schedule, activated_at, counts_from, by


def _list(name: str, value: Any) -> list[Any]:
    _assert(isinstance(value, list), f"{name}: expected a list, found {value!r}"[:200])
    return list(value)


def _value(column: str, fields: dict[str, Any]) -> Any:
    _assert(column in fields, f"{column}: missing")
    value = fields[column]
    if column == "exit_code":
        _assert(value is None or type(value) is int, f"exit_code: expected an integer or null, found {value!r}")
        return value
    expected = _TYPES[column]
    if expected is float and type(value) is int:
        value = float(value)
    _assert(value not in (math.inf, -math.inf) and value == value, f"{column}: {value!r} is not a valid number")  # noqa: PLR0124 - NaN
    _assert(type(value) is expected, f"{column}: expected {expected.__name__}, found {value!r}")
    return value


def _assert(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
