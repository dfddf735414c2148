"""The SQLite ledger's file from within: its tables, and core.rows.Store over one transaction.

A part of the sqlite_ledger adapter, and like it loaded by the runner before it starts a job.
"""
# ruff: noqa: S608 - only column names and states from core.rows are put into SQL text; values never are

import sqlite3

from coordd.core.rows import (
    ACTIVE,
    ATTEMPT_COLUMNS,
    JOB_COLUMNS,
    PENDING,
    RUN_COLUMNS,
    TERMINAL,
    AttemptRow,
    JobRow,
    Row,
)
from coordd.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Marks the file as ours ("CDL1").
APPLICATION_ID = 0x43444C31

_ACTIVE = f"state IN ({', '.join(repr(state) for state in sorted(ACTIVE))})"
_TERMINAL = f"state IN ({', '.join(repr(state) for state in sorted(TERMINAL))})"

# One entry a schema version: a file of version n is brought up to date by the entries from n on.
MIGRATIONS: "list[tuple[str, ...]]" = [
    (
        """CREATE TABLE runs (
            run TEXT PRIMARY KEY NOT NULL, job TEXT NOT NULL, digest TEXT NOT NULL, args TEXT NOT NULL,
            policy TEXT NOT NULL, scheduled INTEGER NOT NULL, fire_at REAL NOT NULL, created_at REAL NOT NULL,
            "by" TEXT NOT NULL, state TEXT NOT NULL, attempt INTEGER NOT NULL, not_before REAL NOT NULL,
            failures INTEGER NOT NULL, relaunches INTEGER NOT NULL, token INTEGER NOT NULL, nonce TEXT NOT NULL,
            node TEXT NOT NULL, lease REAL NOT NULL, until REAL NOT NULL, boot TEXT NOT NULL, beat INTEGER NOT NULL,
            commit_token INTEGER NOT NULL, cancel INTEGER NOT NULL, received_at REAL NOT NULL,
            started_at REAL NOT NULL, ended_at REAL NOT NULL, exit_code INTEGER, application_id TEXT NOT NULL,
            reason TEXT NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE attempts (
            run TEXT NOT NULL, attempt INTEGER NOT NULL, token INTEGER NOT NULL, nonce TEXT NOT NULL,
            node TEXT NOT NULL, state TEXT NOT NULL, received_at REAL NOT NULL, started_at REAL NOT NULL,
            ended_at REAL NOT NULL, exit_code INTEGER, application_id TEXT NOT NULL, reason TEXT NOT NULL,
            PRIMARY KEY (run, attempt)) WITHOUT ROWID""",
        """CREATE TABLE jobs (
            job TEXT PRIMARY KEY NOT NULL, fence INTEGER NOT NULL, horizon REAL NOT NULL,
            suspended INTEGER NOT NULL, version INTEGER NOT NULL, changed_by TEXT NOT NULL) WITHOUT ROWID""",
        # What the rules ask for, however long the history is.
        f"CREATE INDEX runs_active ON runs (job, run) WHERE {_ACTIVE}",
        f"CREATE INDEX runs_open ON runs (not_before, run) WHERE NOT {_TERMINAL}",
        f"CREATE INDEX runs_ended ON runs (ended_at, run) WHERE {_TERMINAL}",
        "CREATE INDEX runs_fired ON runs (job, fire_at) WHERE scheduled = 1",
        # What people ask for.
        "CREATE INDEX runs_created ON runs (created_at)",
        "CREATE INDEX runs_of_job ON runs (job, created_at)",
        "CREATE INDEX runs_in_state ON runs (state, created_at)",
    ),
]

RUN_LIST = ", ".join(f'"{column}"' for column in RUN_COLUMNS)
# The columns before ``state`` are a run's identity and never change, except the policy, which each grant renews.
_CHANGING = ("policy", *RUN_COLUMNS[RUN_COLUMNS.index("state") :])
_PUT_RUN = (
    f"INSERT INTO runs ({RUN_LIST}) VALUES ({', '.join('?' * len(RUN_COLUMNS))}) ON CONFLICT (run) DO UPDATE SET "
    + ", ".join(f'"{column}" = excluded."{column}"' for column in _CHANGING)
)
ATTEMPT_LIST = ", ".join(ATTEMPT_COLUMNS)
_JOB = ", ".join(JOB_COLUMNS)
GET_RUN = f"SELECT {RUN_LIST} FROM runs WHERE run = ?"


class MustWriteError(Exception):
    """A transaction that was begun for reading needs to write: it is begun again."""


class Transaction:
    """core.rows.Store over the connection's current transaction."""

    __slots__ = ("_execute", "_writes")

    def __init__(self, db: sqlite3.Connection, writes: bool) -> None:
        self._execute = db.execute
        self._writes = writes

    def _write(self, sql: str, values: "tuple[Any, ...]") -> None:
        if not self._writes:
            raise MustWriteError
        self._execute(sql, values)

    def run(self, run: str) -> Row | None:
        values = self._execute(GET_RUN, (run,)).fetchone()
        return Row(values) if values else None

    def put_run(self, row: Row) -> None:
        self._write(_PUT_RUN, row.values())

    def job(self, job: str) -> JobRow | None:
        values = self._execute(f"SELECT {_JOB} FROM jobs WHERE job = ?", (job,)).fetchone()
        return JobRow(*values) if values else None

    def put_job(self, row: JobRow) -> None:
        self._write(f"INSERT OR REPLACE INTO jobs ({_JOB}) VALUES (?, ?, ?, ?, ?, ?)", row.values())

    def attempt(self, run: str, attempt: int) -> AttemptRow | None:
        sql = f"SELECT {ATTEMPT_LIST} FROM attempts WHERE run = ? AND attempt = ?"
        values = self._execute(sql, (run, attempt)).fetchone()
        return AttemptRow(values) if values else None

    def put_attempt(self, row: AttemptRow) -> None:
        marks = ", ".join("?" * len(ATTEMPT_COLUMNS))
        self._write(f"INSERT OR REPLACE INTO attempts ({ATTEMPT_LIST}) VALUES ({marks})", row.values())

    def active_runs(self, job: str) -> list[Row]:
        sql = f"SELECT {RUN_LIST} FROM runs WHERE job = ? AND {_ACTIVE} ORDER BY run"
        return [Row(values) for values in self._execute(sql, (job,))]

    def first_waiting(self, job: str) -> Row | None:
        sql = f"SELECT {RUN_LIST} FROM runs WHERE job = ? AND state = '{PENDING}' ORDER BY not_before, run LIMIT 1"
        rows = list(self._execute(sql, (job,)))
        return Row(rows[0]) if rows else None

    def open_runs(self, limit: int) -> list[Row]:
        sql = f"SELECT {RUN_LIST} FROM runs WHERE NOT {_TERMINAL} ORDER BY not_before, run LIMIT ?"
        return [Row(values) for values in self._execute(sql, (limit,))]

    def ended_runs(self, before: float, limit: int) -> list[Row]:
        sql = (
            # The planner prefers the index by state, and would then sort the whole history for a few rows.
            f"SELECT {RUN_LIST} FROM runs INDEXED BY runs_ended WHERE {_TERMINAL} AND ended_at < ?1"
            " AND (scheduled = 0 OR fire_at < ?1) ORDER BY ended_at, run LIMIT ?2"
        )
        return [Row(values) for values in self._execute(sql, (before, limit))]

    def drop_run(self, run: str) -> None:
        self._write("DELETE FROM runs WHERE run = ?", (run,))
        self._write("DELETE FROM attempts WHERE run = ?", (run,))

    def make_empty(self, *, replace: bool) -> None:
        """Forget all rows; without ``replace`` raise RefusedError when there are any."""
        runs, jobs = (self._execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("runs", "jobs"))
        if (runs or jobs) and not replace:
            raise RefusedError(
                f"the ledger holds {runs} runs of {jobs} jobs",
                kind="not_empty",
                hint="export them, then import with --replace",
            )
        for table in ("runs", "attempts", "jobs"):
            self._write(f"DELETE FROM {table}", ())

    def last_fire_at(self, job: str) -> float:
        sql = (
            "SELECT fire_at FROM runs WHERE job = ? AND scheduled = 1 AND NOT (state = 'revoked' AND token = 0)"
            " ORDER BY fire_at DESC LIMIT 1"
        )
        found = self._execute(sql, (job,)).fetchone()
        return float(found[0]) if found else 0.0


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring the tables of a version up to date, inside the caller's transaction."""
    for steps in MIGRATIONS[version:]:
        for statement in steps:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
