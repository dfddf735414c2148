"""The inside of the SQLite ledger's file: its tables, and core/ledger/rows.py's Store over one transaction.

A part of the sqlite_ledger adapter, and loaded by the runner before it starts a job.
"""
# ruff: noqa: S608 - only column names and states from core.ledger.rows are put into SQL text; values never are

import errno
import os
import sqlite3
import time

from coordd.core.ledger.rows import (
    ACTIVATION_COLUMNS,
    ACTIVATIONS_MAX,
    ATTEMPT_COLUMNS,
    CHANGES,
    FEED_COLUMNS,
    FEED_MAX,
    JOB_COLUMNS,
    OF_JOB,
    RUN_COLUMNS,
    STANDING_COLUMNS,
    Activation,
    AttemptRow,
    Cursor,
    JobRow,
    Row,
    changed_by,
)
from coordd.core.ledger.sound import (
    BAD_MAX,
    FENCE_MAX,
    attempt_fault,
    bad_job,
    bad_run,
    job_fault,
    printable,
    run_fault,
    sound_run,
    standing_fault,
)
from coordd.core.ledger.steps import HOLDING
from coordd.core.ledger.words import ACTIVE, INSTANT_MAX, PENDING, SLOTS, TERMINAL
from coordd.errors import BadRowError, ConfigError, RefusedError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

# Timeout (seconds) of an integrity check of a large ledger.
INTEGRITY_LIMIT_S = 30.0

# SQLite's application id of our files ("CDL1").
APPLICATION_ID = 0x43444C31

# What to look at when a file cannot be made or written.
MODES = "the owner and mode of the file and of its directory, and the mount"

_ACTIVE = f"state IN ({', '.join(repr(state) for state in sorted(ACTIVE))})"
_HOLDING = f"state IN ({', '.join(repr(state) for state in sorted(HOLDING))})"
_TERMINAL = f"state IN ({', '.join(repr(state) for state in sorted(TERMINAL))})"
# When a run ended after which that many others have ended.
ENDED_BEFORE = (
    f"SELECT ended_at FROM runs INDEXED BY runs_ended WHERE {_TERMINAL}"
    " ORDER BY ended_at DESC, run DESC LIMIT 1 OFFSET ?"
)

# One entry per schema version: a file of version n is upgraded with the entries from n on.
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
        # Indexes for the rules, however long the history is.
        f"CREATE INDEX runs_active ON runs (job, run) WHERE {_ACTIVE}",
        f"CREATE INDEX runs_open ON runs (not_before, run) WHERE NOT {_TERMINAL}",
        f"CREATE INDEX runs_ended ON runs (ended_at, run) WHERE {_TERMINAL}",
        "CREATE INDEX runs_fired ON runs (job, fire_at) WHERE scheduled = 1",
        # Indexes for people's requests.
        "CREATE INDEX runs_created ON runs (created_at)",
        "CREATE INDEX runs_of_job ON runs (job, created_at)",
        "CREATE INDEX runs_in_state ON runs (state, created_at)",
    )
]

# Tables that were added later, by name. They are created if missing, and the schema's version stays: an older coordd
# keeps using the same file and ignores them.
ADDED = {
    # The ledger's own values (identity.py, standing.py).
    "meta": "CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID",
    # The second row of a job, and its definitions (standing.py).
    "standing": """CREATE TABLE IF NOT EXISTS standing (
        job TEXT PRIMARY KEY NOT NULL, horizon REAL NOT NULL, suspended INTEGER NOT NULL, version INTEGER NOT NULL,
        changed_by TEXT NOT NULL, sequence INTEGER NOT NULL, digest TEXT NOT NULL, schedule TEXT NOT NULL,
        activated_at REAL NOT NULL, counts_from REAL NOT NULL) WITHOUT ROWID""",
    "activations": """CREATE TABLE IF NOT EXISTS activations (
        job TEXT NOT NULL, sequence INTEGER NOT NULL, digest TEXT NOT NULL, schedule TEXT NOT NULL,
        activated_at REAL NOT NULL, counts_from REAL NOT NULL, "by" TEXT NOT NULL,
        PRIMARY KEY (job, sequence)) WITHOUT ROWID""",
    # The starts of attempts that a rate counts (core/ledger/limits/rule.py).
    "starts": """CREATE TABLE IF NOT EXISTS starts (
        key TEXT NOT NULL, attempt TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (key, attempt)) WITHOUT ROWID""",
    # The newest change of each run and job (core/ledger/feed/rule.py).
    "changes": "CREATE TABLE IF NOT EXISTS changes (number INTEGER PRIMARY KEY NOT NULL, name TEXT UNIQUE NOT NULL)",
}
# Columns that were added later: an older version writes rows without them. (table, column, declaration)
ADDED_COLUMNS = (("runs", "due", "REAL NOT NULL DEFAULT 0"),)
ADDED_INDEXES = ("CREATE INDEX IF NOT EXISTS runs_due ON runs (job, due) WHERE scheduled = 1",)

_NOT_BEFORE = RUN_COLUMNS.index("not_before")
RUN_LIST = ", ".join(f'"{column}"' for column in RUN_COLUMNS)
# The columns before ``state`` are a run's identity and never change, except the policy, which each grant renews, values
# of a restored run, and of one that a backfill opens again.
_CHANGING = ("digest", "args", "policy", "by", *RUN_COLUMNS[RUN_COLUMNS.index("state") :])
_PUT_RUN = (
    f"INSERT INTO runs ({RUN_LIST}) VALUES ({', '.join('?' * len(RUN_COLUMNS))}) ON CONFLICT (run) DO UPDATE SET "
    + ", ".join(f'"{column}" = excluded."{column}"' for column in _CHANGING)
)
_FEED = ", ".join(f'"{column}"' for column in FEED_COLUMNS)
_TOLD = f"SELECT {_FEED} FROM runs WHERE run = ?"
ATTEMPT_LIST = ", ".join(ATTEMPT_COLUMNS)
_JOB = ", ".join(JOB_COLUMNS)
_STANDING = ", ".join(STANDING_COLUMNS)
_ACTIVATION = ", ".join(f'"{column}"' for column in ACTIVATION_COLUMNS)
# The scheduled runs of job ?1 that are due after ?2, up to ?3. Rows of an older version have no due time.
FIRED = (
    "job = ?1 AND scheduled = 1 AND NOT (state = 'revoked' AND token = 0)"
    " AND (due > ?2 AND due <= ?3 OR due = 0 AND fire_at > ?2 AND fire_at <= ?3)"
)
GET_RUN = f"SELECT {RUN_LIST} FROM runs WHERE run = ?"


def create(path: str) -> None:
    """Create a new ledger under a temporary name, then rename it: an empty file is never a ledger.

    So a truncated file differs from a new one, and a second process that creates it now does no harm.
    """
    directory = os.path.dirname(path)
    draft = f"{path}.new-{os.urandom(8).hex()}"
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o660))
        try:
            db = sqlite3.connect(draft, isolation_level=None)
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("BEGIN")
                db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                migrate(db, 0)
                add(db)
                db.execute("COMMIT")
            finally:
                db.close()
            if not os.path.exists(path):
                os.link(draft, path)
        except FileExistsError:
            pass  # another node on this machine was faster: its ledger counts
        finally:
            for leftover in (draft, f"{draft}-wal", f"{draft}-shm", f"{draft}-journal"):
                if os.path.exists(leftover):
                    os.unlink(leftover)
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as exc:
        kind = UnavailableError if exc.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO) else ConfigError
        raise kind(f"ledger {path}: cannot be created in {directory}: {exc.strerror}; check {MODES}") from exc


class MustWriteError(Exception):
    """A transaction that was begun for reading needs to write: it must begin again."""


class Transaction:
    """core/ledger/rows.py's Store over the connection's current transaction.

    An invalid row is never returned: a request for it by name raises BadRowError; a request for many rows leaves it out
    and names it in ``bad``.
    """

    __slots__ = ("_execute", "_metas", "_writes", "bad")

    def __init__(self, db: sqlite3.Connection, writes: bool) -> None:
        self._execute = db.execute
        self._writes = writes
        self._metas: dict[str, str] = {}  # read once per transaction: a sweep asks for the rules once for each job
        self.bad: dict[str, str] = {}

    def begin_part(self) -> None:
        """What follows is one operation of several."""
        self._metas.clear()
        self.bad = {}
        self._execute("SAVEPOINT part")

    def undo_part(self) -> None:
        """Nothing of this operation took place."""
        self._execute("ROLLBACK TO part")

    def end_part(self) -> None:
        """The operation took place, unless it was undone."""
        self._execute("RELEASE part")

    def _write(self, sql: str, values: "tuple[Any, ...]") -> None:
        if not self._writes:
            raise MustWriteError
        self._execute(sql, values)

    def run(self, run: str) -> Row | None:
        values = self._execute(GET_RUN, (run,)).fetchone()
        return sound_run(Row(values)) if values else None

    def put_run(self, row: Row) -> None:
        before = self._execute(_TOLD, (row.run,)).fetchone()
        self._write(_PUT_RUN, row.values())
        for name in changed_by(row, before):
            self.number(name)

    def number(self, name: str) -> None:
        number = self.changes() + 1
        self.put_meta(CHANGES, str(number))
        self._write("INSERT OR REPLACE INTO changes (number, name) VALUES (?, ?)", (number, name))
        self._write("DELETE FROM changes WHERE number <= ?", (number - FEED_MAX,))

    def changes(self) -> int:
        return int(self.meta(CHANGES) or 0)

    def changed(self, after: int, limit: int) -> list[tuple[int, str]]:
        sql = "SELECT number, name FROM changes WHERE number > ? ORDER BY number LIMIT ?"
        return [(int(number), str(name)) for number, name in self._execute(sql, (after, limit))]

    def job(self, job: str) -> JobRow | None:
        values = self._execute(f"SELECT {_JOB} FROM jobs WHERE job = ?", (job,)).fetchone()
        if not values:
            return None
        row = JobRow(*values)
        fault = job_fault(row)
        if fault:
            raise BadRowError(bad_job(job, fault))
        return row

    def put_job(self, row: JobRow) -> None:
        self._write(f"INSERT OR REPLACE INTO jobs ({_JOB}) VALUES (?, ?, ?, ?, ?, ?)", row.values())
        self.number(OF_JOB + row.job)

    def drop_job(self, job: str) -> None:
        self._write("DELETE FROM jobs WHERE job = ?", (job,))
        self._write("DELETE FROM standing WHERE job = ?", (job,))
        self.number(OF_JOB + job)

    def highest_token(self, job: str) -> int:
        sql = "SELECT max(token) FROM runs WHERE job = ? AND typeof(token) = 'integer' AND token BETWEEN 0 AND ?"
        return int(self._execute(sql, (job, FENCE_MAX)).fetchone()[0] or 0)

    def job_names(self) -> list[str]:
        return [str(name) for (name,) in self._execute("SELECT job FROM jobs ORDER BY job")]

    def has_jobs(self) -> bool:
        return self._execute("SELECT 1 FROM jobs LIMIT 1").fetchone() is not None

    def standing(self, job: str) -> JobRow | None:
        values = self._execute(f"SELECT {_STANDING} FROM standing WHERE job = ?", (job,)).fetchone()
        if not values:
            return None
        row = JobRow.of_standing(values)
        fault = standing_fault(row)
        if fault:
            raise BadRowError(bad_job(job, fault))
        return row

    def put_standing(self, row: JobRow) -> None:
        marks = ", ".join("?" * len(STANDING_COLUMNS))
        self._write(f"INSERT OR REPLACE INTO standing ({_STANDING}) VALUES ({marks})", row.standing())
        self.number(OF_JOB + row.job)

    def activations(self, job: str) -> list[Activation]:
        found = self._execute(f"SELECT {_ACTIVATION} FROM activations WHERE job = ? ORDER BY sequence", (job,))
        return [Activation(*values) for values in found]

    def put_activation(self, job: str, activation: Activation) -> None:
        marks = ", ".join("?" * (1 + len(ACTIVATION_COLUMNS)))
        self._write(
            f"INSERT OR REPLACE INTO activations (job, {_ACTIVATION}) VALUES ({marks})", (job, *activation.values())
        )
        self._write(
            "DELETE FROM activations WHERE job = ?1 AND sequence NOT IN"
            " (SELECT sequence FROM activations WHERE job = ?1 ORDER BY sequence DESC LIMIT ?2)",
            (job, ACTIVATIONS_MAX),
        )

    def attempt(self, run: str, attempt: int) -> AttemptRow | None:
        sql = f"SELECT {ATTEMPT_LIST} FROM attempts WHERE run = ? AND attempt = ?"
        values = self._execute(sql, (run, attempt)).fetchone()
        if not values:
            return None
        row = AttemptRow(values)
        fault = attempt_fault(row)
        if fault:
            raise BadRowError(bad_run(f"{run}/{attempt}", fault))
        return row

    def put_attempt(self, row: AttemptRow) -> None:
        marks = ", ".join("?" * len(ATTEMPT_COLUMNS))
        self._write(f"INSERT OR REPLACE INTO attempts ({ATTEMPT_LIST}) VALUES ({marks})", row.values())

    def active_runs(self, job: str) -> list[Row]:
        sql = f"SELECT {RUN_LIST} FROM runs WHERE job = ? AND {_ACTIVE} ORDER BY run"
        # A bad one of them may be running: nothing starts beside it.
        return [sound_run(Row(values)) for values in self._execute(sql, (job,))]

    def slot_holders(self, key: str) -> list[Row]:
        sql = f"SELECT {RUN_LIST} FROM runs WHERE {_ACTIVE} AND {_HOLDING} AND instr(policy, ?) ORDER BY run"
        return [sound_run(Row(values)) for values in self._execute(sql, (f"{SLOTS}{key}=",))]

    def starts(self, key: str, since: float) -> list[float]:
        found = self._execute("SELECT at FROM starts WHERE key = ? AND at > ? ORDER BY at", (key, since))
        return [float(at) for (at,) in found]

    def put_start(self, key: str, attempt: str, at: float, since: float) -> None:
        self._write("DELETE FROM starts WHERE key = ? AND at <= ?", (key, since))
        self._write("INSERT OR REPLACE INTO starts (key, attempt, at) VALUES (?, ?, ?)", (key, attempt, at))

    def waiting_before(self, job: str, not_before: float, run: str) -> int:
        sql = f"SELECT count(*) FROM runs WHERE job = ? AND state = '{PENDING}' AND (not_before, run) < (?, ?)"
        return int(self._execute(sql, (job, not_before, run)).fetchone()[0])

    def first_waiting(self, job: str) -> Row | None:
        sql = f"SELECT {RUN_LIST} FROM runs WHERE job = ? AND state = '{PENDING}' ORDER BY not_before, run"
        return next(self._sound(self._execute(sql, (job,))), None)

    def open_runs(self, limit: int, after: "Cursor | None" = None) -> "tuple[list[Row], Cursor | None]":
        # "+" takes the cast's type away: with it the index would serve not_before alone.
        beyond = " AND (not_before, run) > (?, +CAST(? AS TEXT))" if after else ""
        sql = f"SELECT {RUN_LIST} FROM runs WHERE NOT {_TERMINAL}{beyond} ORDER BY not_before, run LIMIT ?"
        # The unchanged values, even of a bad row: the next page begins after it.
        begin = (after.not_before, after.run.encode(errors="surrogateescape")) if after else ()
        found = self._execute(sql, (*begin, limit)).fetchall()
        last = Cursor(not_before=found[-1][_NOT_BEFORE], run=found[-1][0]) if len(found) == limit else None
        return list(self._sound(found)), last

    def ended_runs(self, before: float, limit: int) -> list[Row]:
        sql = (
            # The planner prefers the index by state, and would then sort the whole history for a few rows.
            f"SELECT {RUN_LIST} FROM runs INDEXED BY runs_ended WHERE {_TERMINAL} AND ended_at < ?1"
            " AND (scheduled = 0 OR max(fire_at, due) < ?1) ORDER BY ended_at, run LIMIT ?2"
        )
        return list(self._sound(self._execute(sql, (before, limit))))

    def ended_since(self, since: float, limit: int) -> list[Row]:
        sql = (
            f"SELECT {RUN_LIST} FROM runs INDEXED BY runs_ended WHERE {_TERMINAL} AND ended_at >= ?"
            " ORDER BY ended_at, run LIMIT ?"
        )
        return list(self._sound(self._execute(sql, (since, limit))))

    def _sound(self, found: "Iterable[tuple[Any, ...]]") -> "Iterator[Row]":
        """The valid rows, in order."""
        for values in found:
            row = Row(values)
            fault = run_fault(row)
            if not fault:
                yield row
            elif len(self.bad) < BAD_MAX:
                self.bad[printable(row.run)] = bad_run(row.run, fault)

    def drop_run(self, run: str) -> None:
        self._write("DELETE FROM runs WHERE run = ?", (run,))
        self._write("DELETE FROM attempts WHERE run = ?", (run,))

    def make_empty(self, *, replace: bool) -> None:
        """Delete all rows; without ``replace``, raise RefusedError if there are any."""
        runs, jobs = (self._execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("runs", "jobs"))
        if (runs or jobs) and not replace:
            raise RefusedError(
                f"the ledger holds {runs} runs of {jobs} jobs",
                kind="not_empty",
                hint="export them, then import with --replace",
            )
        for table in ("runs", "attempts", "jobs", "standing", "activations", "starts", "changes"):
            self._write(f"DELETE FROM {table}", ())
        self.put_meta(CHANGES, str(self.changes() + FEED_MAX + 1))  # every cursor begins again

    def meta(self, key: str) -> str:
        if key not in self._metas:
            found = self._execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            self._metas[key] = str(found[0]) if found else ""
        return self._metas[key]

    def put_meta(self, key: str, value: str) -> None:
        self._metas[key] = value
        if value:
            self._write("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, value))
        else:
            self._write("DELETE FROM meta WHERE key = ?", (key,))

    def metas_like(self, prefix: str) -> dict[str, str]:
        # "\x7f" follows every character of a name; in this table a range of names is read by its primary key.
        found = self._execute("SELECT key, value FROM meta WHERE key >= ? AND key < ?", (prefix, prefix + "\x7f"))
        return {str(key): str(value) for key, value in found}

    def count_fired(self, job: str, after: float, upto: float) -> int:
        sql = f"SELECT count(*) FROM runs WHERE {FIRED}"
        return int(self._execute(sql, (job, after, upto)).fetchone()[0])

    def last_fire_at(self, job: str, before: float) -> float:
        newest = 0.0
        for column in ("fire_at", "due"):  # the later of a row's two counts; each has its own index
            sql = (
                f"SELECT {column} FROM runs WHERE job = ?1 AND scheduled = 1 AND NOT (state = 'revoked' AND token = 0)"
                # A damaged row must not postpone the job for ever. (For SQLite, any text is greater than any number.)
                " AND fire_at <= ?2 AND due <= ?2"
                f" AND {column} <= {INSTANT_MAX} ORDER BY {column} DESC LIMIT 1"
            )
            found = self._execute(sql, (job, before)).fetchone()
            newest = max(newest, float(found[0]) if found else 0.0)
        return newest


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Upgrade the tables of a version, inside the caller's transaction."""
    for steps in MIGRATIONS[version:]:
        for statement in steps:
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def lacks(db: sqlite3.Connection) -> bool:
    """True if later tables or columns are missing."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return not names >= ADDED.keys() or any(not _has(db, table, column) for table, column, _ in ADDED_COLUMNS)


def add(db: sqlite3.Connection) -> None:
    """Create later tables and columns that are missing, inside the caller's transaction."""
    for table, column, declared in ADDED_COLUMNS:
        if not _has(db, table, column):
            db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {declared}")
    for statement in (*ADDED.values(), *ADDED_INDEXES):
        db.execute(statement)


def _has(db: sqlite3.Connection, table: str, column: str) -> bool:
    return column in {name for _, name, *_ in db.execute(f"PRAGMA table_info({table})")}


def recorded(db: sqlite3.Connection, runs: "Sequence[str]") -> "set[str]":
    """Those of these runs that have a row."""
    places = ", ".join("?" * len(runs))
    return {str(run) for (run,) in db.execute(f"SELECT run FROM runs WHERE run IN ({places})", tuple(runs))}


def problems(db: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file; nothing if it is intact."""
    give_up_at = time.monotonic() + INTEGRITY_LIMIT_S
    db.set_progress_handler(lambda: time.monotonic() > give_up_at, 100_000)
    try:
        return [str(line) for (line,) in db.execute("PRAGMA integrity_check(20)") if line != "ok"]
    except sqlite3.DatabaseError as exc:
        if exc.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return [str(exc)]
        raise
    finally:
        db.set_progress_handler(None, 0)
