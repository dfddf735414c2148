"""The ledger of one machine: core.ledger's rules over one SQLite file.

Each operation, or each batch, is one ``BEGIN IMMEDIATE`` transaction in WAL mode with synchronous=FULL: an answer is on
the disk before it is returned. Leases use CLOCK_BOOTTIME and have the boot id; wall time decides only due and missed.

A runner loads this file before it starts a job, so it imports only small modules of the standard library.
"""

# ruff: noqa: S608 - only column names from core.ledger.rows are put into SQL text; values never are

import _thread
import os
import sqlite3
import time

from coordd.adapters.ledger.sqlite_rows import (
    APPLICATION_ID,
    ATTEMPT_LIST,
    ENDED_BEFORE,
    FIRED,
    GET_RUN,
    MIGRATIONS,
    MODES,
    RUN_LIST,
    MustWriteError,
    Transaction,
    add,
    create,
    lacks,
    migrate,
    problems,
    recorded,
)
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import FIRES, SUCCEEDED
from coordd.core.ledger.identity import CLOSED, IDENTITY, PREDECESSOR, Known, admit, begin_again, refusal
from coordd.core.ledger.rows import AttemptRow, JobRow, LedgerTime, Row
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.standing import FIRST_HEARD
from coordd.core.ledger.words import BAD, SWEEPS
from coordd.errors import BadRowError, ConfigError, LocalProtocolError, UnavailableError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any, TypeVar

    from coordd.core.ledger.fires import Decided
    from coordd.core.ledger.open_answer import OpenAnswer
    from coordd.core.ledger.rows import Hold
    from coordd.core.ledger.runner_requests import Request

    A = TypeVar("A", bound="Answer | OpenAnswer")
    T = TypeVar("T")

# SQLite's own busy handler is unfair (waits of 300 ms among three processes); ours polls with short growing pauses,
# with a random part so that two waiters do not stay in step.
PAUSE_MIN_S = 0.001
PAUSE_MAX_S = 0.020

# By SQLite's primary result code: what happened, and what to do.
_DAMAGED = "damaged, or not a database; nothing is launched from it: restore a backup as docs/runbook.md says"
_LOCKED = "locked by another process (a backup tool?); `fuser` shows which"
_MEANING = {
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_READONLY: f"cannot be written; check {MODES}",
    sqlite3.SQLITE_PERM: f"permission denied; check {MODES}",
    sqlite3.SQLITE_CANTOPEN: f"cannot be opened; check {MODES}",
    sqlite3.SQLITE_IOERR: "the disk failed; check it, and the kernel's log",
    sqlite3.SQLITE_FULL: "the disk is full; free some space",
    sqlite3.SQLITE_INTERRUPT: "not finished in time",
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
}
_PUT_BACK = "put the same file back (mv, not cp), or restore a backup: see docs/runbook.md, ledger unavailable"
_GONE = f"the file is gone; {_PUT_BACK}"
# The start of Python's message about bytes that are not UTF-8.
_NOT_TEXT = "Could not decode to UTF-8"
# These errors end by themselves, or when the disk works again. All others at the opening need a person.
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_PASSING = (*_BUSY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL)


def path_of(url: str) -> str:
    """The absolute path in a ledger URL, or a plain path.

    Raises:
        ConfigError: the path is relative, which would be a different file in each program.
    """
    path = url.removeprefix("sqlite://")
    if path != url:
        path = path[1:]  # sqlite:///name is usually a relative path; an absolute path has four slashes
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        name = path.strip("/") or "var/lib/coordd/ledger.db"
        raise ConfigError(f"ledger {url}: expected the absolute path of a file, as in sqlite:////{name} (four slashes)")
    return path


def system_clock() -> "Callable[[], LedgerTime]":
    """The machine's clocks, as the ledger reads them inside a transaction."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return lambda: LedgerTime(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), boot)


class SqliteLedger:
    """ports.Ledger over one file. One connection; threads take turns, processes by SQLite's lock.

    Every call ends within ``timeout_s``, except for the disk itself: a started write cannot be taken back.
    """

    def __init__(
        self,
        url: str,
        timeout_s: float = 2.0,
        *,
        clock: "Callable[[], LedgerTime] | None" = None,
        known: "Known | None" = None,
        identity: str = "",
    ) -> None:
        """Open the ledger, or create it if it does not exist. ``known``: the caller's knowledge
        (core/ledger/identity.py); a runner has ``identity`` instead: the identity of the ledger that granted its
        attempt. It never creates one.

        Raises:
            ConfigError: the path cannot be a ledger: no directory, no permission, another or a damaged file.
            UnavailableError: another process kept the file locked for ``timeout_s``, or the file was moved away.
        """
        self.path = path_of(url)
        self.url = f"sqlite:///{self.path}"
        self.timeout_s = timeout_s
        self._clock = clock or system_clock()
        self._rules = Rules()
        self.known = known or Known(pin=identity)
        self._turn = _thread.allocate_lock()
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._log: tuple[int, int] | None = None
        self._closed = False
        deadline = time.monotonic() + timeout_s
        try:
            if not os.path.exists(self.path):
                # A new file of that name would also take over the log of the file that was moved away, and delete it.
                was_moved = os.path.exists(f"{self.path}-wal")
                if (was_moved or identity) and not os.path.exists(self.path):
                    raise UnavailableError(f"ledger {self.path}: {_GONE}")
                create(self.path)
            self._retry(deadline, self._open)
        except sqlite3.Error as exc:
            kind = UnavailableError if _code(exc) in _PASSING else ConfigError
            raise kind(_explain(exc, self.path)) from exc

    # ---- ports.Ledger

    def ask(self, request: "Request[A]") -> "A":
        """One operation, in one transaction.

        Raises:
            UnavailableError: no answer in time; whether the operation took place is unknown.
            ForeignLedgerError: it is another ledger than the caller's; nothing took place.
            LedgerClosedError: it was moved elsewhere; nothing took place.
            BadRowError: a row that it needs is damaged; nothing was changed.
        """

        read = [0.0]

        def rule(store: Transaction, now: LedgerTime) -> "A":
            read[0] = now.wall
            return self._answer(store, request, now)

        # Every node sweeps every few seconds, and mostly there is nothing to write: the sweep takes no write lock.
        answer = self._transact(rule, writes=request.writes)
        self._counts_from_its_receipt(request, answer, read[0])
        return answer

    def ask_all(self, batch: "Sequence[Request[Answer | OpenAnswer]]") -> "list[Answer | OpenAnswer]":
        """Several operations in order, in one transaction: the disk is waited for once. Raises as ``ask`` does, for all
        of them; but a bad row affects only the operations that need it, and becomes their answer.
        """
        read: list[float] = []

        def each(store: Transaction, _: LedgerTime) -> "list[Answer | OpenAnswer]":
            read.clear()
            answers = []
            for request in batch:
                now = self._clock()
                read.append(now.wall)
                store.begin_part()
                try:
                    answer = self._answer(store, request, now)
                except BadRowError as exc:
                    store.undo_part()
                    answer = Answer(BAD, by=str(exc))
                store.end_part()
                answers.append(answer)
            return answers

        answers = self._transact(each, writes=any(request.writes for request in batch))
        for request, answer, at in zip(batch, answers, read, strict=True):
            self._counts_from_its_receipt(request, answer, at)
        return answers

    def _answer(self, store: Transaction, request: "Request[A]", now: LedgerTime) -> "A":
        answer = self._rules.answer(store, request, now)
        if request.op in SWEEPS:
            self._complete(answer, store)
        return answer

    def _counts_from_its_receipt(self, request: "Request[Any]", answer: object, at: float) -> None:
        """The caller counts a gate's pause from the answer's receipt, and the commit may have taken most of it."""
        if request.op == "gate" and isinstance(answer, Answer) and answer.in_s > 0:
            answer.in_s = max(0.0, answer.in_s - (self._clock().wall - at))

    def run(self, run: str) -> Row | None:
        """One run, or None."""
        values = self._read(GET_RUN, run)
        return Row(values[0]) if values else None

    def recorded(self, runs: "Sequence[str]") -> "set[str]":
        """Those of these runs that are there."""
        return self._run(lambda db: recorded(db, runs))

    def runs(self, *, job: str = "", state: str = "", limit: int = 100) -> list[Row]:
        """Runs for people, newest first, optionally of one job and in one state."""
        wanted = [(column, value) for column, value in (("job", job), ("state", state)) if value]
        where = "".join(f" {'AND' if i else 'WHERE'} {column} = ?" for i, (column, _) in enumerate(wanted))
        sql = f"SELECT {RUN_LIST} FROM runs{where} ORDER BY created_at DESC, run DESC LIMIT ?"
        return [Row(values) for values in self._read(sql, *[value for _, value in wanted], max(0, limit))]

    def attempts(self, run: str) -> list[AttemptRow]:
        """The attempts of one run, first to last."""
        found = self._read(f"SELECT {ATTEMPT_LIST} FROM attempts WHERE run = ? ORDER BY attempt", run)
        return [AttemptRow(values) for values in found]

    def fires(self, job: str) -> "Decided":
        """The record of a job's fire times without a row."""
        return self._transact(lambda store, _: self._rules._decided(store, job), writes=False, admitted=False)

    def fired(self, job: str, after: float, upto: float, limit: int = 1000) -> list[Row]:
        """A job's scheduled runs that are due in that time, oldest first."""
        sql = f"SELECT {RUN_LIST} FROM runs WHERE {FIRED} ORDER BY max(fire_at, due), run LIMIT ?4"
        return [Row(values) for values in self._read(sql, job, after, upto, limit)]

    def succeeded(self, jobs: "Iterable[str]") -> "dict[str, float]":
        """The end of the last success of each job that has one."""
        known = {f"{SUCCEEDED}{job}": job for job in jobs}
        return {known[key]: float(value) for key, value in self._meta().items() if key in known}

    def mark(self, key: str) -> "Hold | None":
        """The hold of that key, also if its end is over."""
        return self._transact(lambda store, _: self._rules.mark(store, key), writes=False, admitted=False)

    def marks(self, prefix: str) -> "dict[str, Hold]":
        """The same for all keys that begin so."""
        return self._transact(lambda store, _: self._rules.marks(store, prefix), writes=False, admitted=False)

    def status(self) -> "dict[str, Any]":
        """The status of the ledger: its identity, path, size, and runs by state."""
        meta = self._meta()
        return {
            "url": self.url,
            "path": self.path,
            "schema": self._read("PRAGMA user_version")[0][0],
            "size_bytes": _size(self.path) + _size(f"{self.path}-wal"),
            "jobs": self._read("SELECT count(*) FROM jobs")[0][0],
            **{key: meta.get(key) for key in (IDENTITY, PREDECESSOR, CLOSED)},
            "runs": {str(state): n for state, n in self._read("SELECT state, count(*) FROM runs GROUP BY state")},
        }

    def ended_ago(self, rank: int) -> "float | None":
        """How long ago a run ended after which ``rank`` others have ended; None: there is none."""
        found = self._read(ENDED_BEFORE, rank)
        return self._clock().wall - found[0][0] if found else None

    def prune(self, keep_s: float, limit: int = 1000) -> int:
        """Forget at most ``limit`` runs that ended longer ago than ``keep_s``; returns how many."""
        from coordd.core.ledger.requests import Prune  # no runner asks this

        return self.ask(Prune(keep_s=keep_s, limit=limit)).token

    def close(self) -> None:
        """Close the file; a call after it raises UnavailableError."""
        self._closed = True
        # A running call ends by itself; its thread closes then, if it takes longer than our timeout.
        if self._turn.acquire(timeout=self.timeout_s):
            self._drop()
            self._turn.release()

    # ---- for people

    def export(self) -> "Iterator[dict[str, Any]]":
        """All rows, as JSON objects: jobs, then each run with its attempts."""
        from coordd.adapters.ledger.dump import exported, exported_hold, head

        def known(store: Transaction, _: LedgerTime) -> "tuple[list[JobRow | None], dict[str, Hold]]":
            return [self._rules._told(store, name) for name in store.job_names()], self._rules._every_hold(store)

        meta = self._meta()
        if meta.get(CLOSED):
            yield head(meta.get(IDENTITY, ""), meta[CLOSED])
        told, holds = self._transact(known, writes=False, admitted=False)
        yield from (exported(row) for row in told if row is not None)
        yield from (exported_hold(key, hold) for key, hold in sorted(holds.items()))
        for values in self._read(f"SELECT {RUN_LIST} FROM runs ORDER BY created_at, run"):
            row = Row(values)
            yield exported(row)
            yield from map(exported, self.attempts(row.run))

    def import_(self, rows: "Iterable[dict[str, Any]]", *, replace: bool = False) -> int:
        """Import the rows of an export, all or none; returns how many.

        Raises RefusedError when a row is invalid, or when there are rows already and ``replace`` is not set.
        """
        from coordd.adapters.ledger.dump import checked, take_head

        predecessor, rest = take_head(rows)
        jobs, runs, attempts, holds = checked(rest)
        told = {FIRES + job.job: job.fires for job in jobs}
        told.update({SUCCEEDED + job.job: repr(job.succeeded_at) for job in jobs if job.succeeded_at})
        told.update({FIRST_HEARD + job.job: repr(job.first_heard) for job in jobs if job.first_heard})
        made = os.urandom(8).hex()

        def put(store: Transaction, _: LedgerTime) -> int:
            begin_again(store, predecessor, made)
            store.make_empty(replace=replace)
            for job in jobs:
                self._rules._take(store, job)
            for run in runs:
                store.put_run(run)
            for attempt in attempts:
                store.put_attempt(attempt)
            kept = [name for prefix in (FIRES, SUCCEEDED, FIRST_HEARD) for name in store.metas_like(prefix)]
            for key in {*kept, *told}:
                store.put_meta(key, told.get(key, ""))
            for key in {**self._rules._every_hold(store), **holds}:
                self._rules._put_hold(store, key, holds.get(key))
            return len(jobs) + len(runs) + len(attempts) + len(holds)

        return self._transact(put, writes=True, admitted=False)

    def integrity(self) -> list[str]:
        """The problems that SQLite finds in the file; nothing if it is intact."""
        return self._run(problems)

    # ---- one transaction

    def _complete(self, answer: object, store: Transaction) -> None:
        """Add to a sweep's answer what only the file knows."""
        from coordd.core.ledger.open_answer import OpenAnswer  # no runner sweeps

        assert isinstance(answer, OpenAnswer)
        answer.identity, answer.predecessor = self.known.found, self.known.predecessor
        answer.bad.update(store.bad)

    def _transact(self, rule: "Callable[[Transaction, LedgerTime], T]", *, writes: bool, admitted: bool = True) -> "T":
        def once(db: sqlite3.Connection, writes: bool) -> "T":
            db.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            try:
                store = Transaction(db, writes)
                # The time is read under the lock: operations have the order of their instants.
                now = self._clock()
                refused = admit(store, self.known, recovering=now.recovering_s > 0) if admitted else ""
                if refused:
                    raise refusal(refused, self.url, self.known)
                answer = rule(store, now)
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
            return answer

        def act(db: sqlite3.Connection) -> "T":
            if not writes:
                try:
                    return once(db, writes=False)
                except MustWriteError:
                    pass  # a job that was never seen before: its row must be written
            return once(db, writes=True)

        return self._run(act)

    def _meta(self) -> "dict[str, str]":
        return {str(key): str(value) for key, value in self._read("SELECT key, value FROM meta")}

    def _read(self, sql: str, *values: "Any") -> "list[tuple[Any, ...]]":
        return self._run(lambda db: db.execute(sql, values).fetchall())

    def _run(self, action: "Callable[[sqlite3.Connection], T]") -> "T":
        """Use the connection within the deadline; errors become ours."""
        deadline = time.monotonic() + self.timeout_s
        if not self._turn.acquire(timeout=self.timeout_s):
            raise UnavailableError(f"ledger {self.path}: no turn within {self.timeout_s:g} s; the disk may be stuck")
        try:
            if self._closed:
                raise UnavailableError(f"ledger {self.path}: it was closed")
            self._same_file()
            return self._retry(deadline, lambda: self._act(action))
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, UnicodeEncodeError, OverflowError) as exc:
            raise LocalProtocolError(f"ledger: a value that no row can hold: {exc}") from exc
        except sqlite3.Error as exc:
            if _code(exc) not in _BUSY:
                self._drop()  # the next call opens a new connection
            raise UnavailableError(_explain(exc, self.path)) from exc
        except ConfigError as exc:
            raise UnavailableError(str(exc)) from exc  # the file has been replaced or changed since the start
        finally:
            if self._closed:
                self._drop()
            self._turn.release()

    def _act(self, action: "Callable[[sqlite3.Connection], T]") -> "T":
        db = self._db or self._open()
        try:
            return action(db)
        except sqlite3.OperationalError as exc:
            if not str(exc).startswith(_NOT_TEXT) or db.text_factory is _escaped:
                raise
        # A row contains bytes that are not text: read its columns in a way that shows this. Doing it always would be
        # slow.
        db.text_factory = _escaped
        try:
            return action(db)
        finally:
            db.text_factory = str

    def _retry(self, deadline: float, action: "Callable[[], T]") -> "T":
        pause_s = PAUSE_MIN_S
        while True:
            try:
                return action()
            except sqlite3.OperationalError as exc:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or _code(exc) not in _BUSY:
                    raise
                time.sleep(min(left_s, pause_s * (0.5 + os.urandom(1)[0] / 255)))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    # ---- the connection

    def _open(self) -> sqlite3.Connection:
        """Open the existing file. It is never created here: a new ledger must not replace a lost one unseen."""
        self._same_file()
        quoted = self.path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
        db = sqlite3.connect(
            f"file:{quoted}?mode=rw", uri=True, timeout=0, isolation_level=None, check_same_thread=False
        )
        try:
            if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise ConfigError(
                    f"ledger {self.path}: empty, or another program's database; nothing is launched from it:"
                    " correct its path, or restore a backup as docs/runbook.md says"
                )
            db.execute("PRAGMA synchronous = FULL")  # an answer is on the disk before it is returned
            db.execute("PRAGMA foreign_keys = OFF")
            db.execute("PRAGMA journal_size_limit = 4194304")  # the log file shrinks again after a busy day
            self._migrate(db)
        except BaseException:
            db.close()
            raise
        self._db = db
        self._log = _identity(f"{self.path}-wal")
        return db

    def _migrate(self, db: sqlite3.Connection) -> None:
        """Upgrade an older schema to this version, in one transaction."""
        if db.execute("PRAGMA user_version").fetchone()[0] == len(MIGRATIONS) and not lacks(db):
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > len(MIGRATIONS):
                raise ConfigError(
                    f"ledger {self.path}: written by a newer coordd (schema {version}, this one knows"
                    f" {len(MIGRATIONS)}); upgrade this node, or restore the backup made before the upgrade"
                )
            migrate(db, version)
            add(db)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise

    def _same_file(self) -> None:
        """If the file was deleted or replaced while in use, it would be a second ledger beside the others' one. With
        another log beside it, each of two processes would not see what the other one writes.
        """
        now = _identity(self.path)
        if now is None:
            raise UnavailableError(f"ledger {self.path}: {_GONE}")
        if self._file not in (None, now):
            raise UnavailableError(f"ledger {self.path}: the file was replaced while in use; {_PUT_BACK}")
        self._file = now
        if self._db is not None and self._log is not None and _identity(f"{self.path}-wal") != self._log:
            raise UnavailableError(
                f"ledger {self.path}: its log {self.path}-wal was deleted or replaced while in use; stop all daemons"
                " and runs on this machine, start them, and look at `coordctl doctor`; or restore a backup"
            )

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


def _escaped(text: bytes) -> str:
    return text.decode(errors="surrogateescape")  # a valid row never has such a character, so it marks the bad one


def _code(exc: sqlite3.Error) -> int:
    """SQLite's primary result code; 0 if Python's module itself raised."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def _explain(exc: sqlite3.Error, path: str) -> str:
    return f"ledger {path}: {_MEANING.get(_code(exc), 'it failed')} ({exc})"


def _identity(path: str) -> "tuple[int, int] | None":
    """What makes a file that one and no other; None if there is none, or if nobody can tell."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0  # the log comes and goes
