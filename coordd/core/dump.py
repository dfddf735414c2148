"""Rows of a ledger as plain data, for export and import: a row is written as it is, and checked when it comes back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from coordd.core.rows import (
    ATTEMPT_COLUMNS,
    JOB_COLUMNS,
    RUN_COLUMNS,
    STATES,
    AttemptRow,
    JobRow,
    Policy,
    Row,
)
from coordd.errors import RefusedError

COLUMNS = {"job": JOB_COLUMNS, "run": RUN_COLUMNS, "attempt": ATTEMPT_COLUMNS}
_TYPES: dict[str, type] = {
    **{column: kind for row in (Row, AttemptRow) for column, kind in row.__annotations__.items()},
    "fence": int,
    "horizon": float,
    "suspended": int,
    "version": int,
    "changed_by": str,
}

Rows = tuple[list[JobRow], list[Row], list[AttemptRow]]


def exported(row: JobRow | Row | AttemptRow) -> dict[str, Any]:
    """A row as JSON can hold it; ``kind`` says which."""
    kind = "job" if isinstance(row, JobRow) else "run" if isinstance(row, Row) else "attempt"
    return {"kind": kind, **dict(zip(COLUMNS[kind], row.values(), strict=True))}


def checked(rows: Iterable[Any]) -> Rows:
    """Exported rows, all of them in order; fields that a newer version added are left out.

    Raises RefusedError that names the first row that is not.
    """
    jobs: list[JobRow] = []
    runs: dict[str, Row] = {}
    attempts: list[AttemptRow] = []
    for number, fields in enumerate(rows, 1):
        try:
            row = _row(fields)
            if isinstance(row, JobRow):
                jobs.append(row)
            elif isinstance(row, Row):
                _assert(row.run not in runs, f"run {row.run!r} a second time")
                _assert(row.state in STATES, f"state: {row.state!r} is none")
                Policy.unpack(row.policy)
                runs[row.run] = row
            else:
                _assert(row.run in runs, f"an attempt of {row.run!r}, which does not stand before it")
                attempts.append(row)
        except (ValueError, TypeError) as exc:
            raise RefusedError(
                f"row {number}: {exc}", kind="bad_row", hint="take a file that `ledger export` wrote"
            ) from exc
    return jobs, list(runs.values()), attempts


def _row(fields: Any) -> JobRow | Row | AttemptRow:
    _assert(isinstance(fields, dict) and fields.get("kind") in COLUMNS, "expected kind job, run or attempt")
    columns = COLUMNS[fields["kind"]]
    values = [_value(column, fields) for column in columns]
    if fields["kind"] == "job":
        return JobRow(*values)
    return Row(values) if fields["kind"] == "run" else AttemptRow(values)


def _value(column: str, fields: dict[str, Any]) -> Any:
    _assert(column in fields, f"{column}: missing")
    value = fields[column]
    if column == "exit_code":
        _assert(value is None or type(value) is int, f"exit_code: expected an integer or null, found {value!r}")
        return value
    expected = _TYPES[column]
    if expected is float and type(value) is int:
        value = float(value)
    _assert(value not in (math.inf, -math.inf) and value == value, f"{column}: {value!r} is no number of ours")  # noqa: PLR0124 - NaN
    _assert(type(value) is expected, f"{column}: expected {expected.__name__}, found {value!r}")
    return value


def _assert(holds: bool, message: str) -> None:
    if not holds:
        raise ValueError(message)
