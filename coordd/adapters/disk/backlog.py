"""The outgoing backlog on the disk: one SQLite file of messages that could not be sent yet."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from coordd.errors import UnavailableError
from coordd.ports import Message

T = TypeVar("T")

# Maximum number of messages, some 300 bytes each. A node that runs a job a second for a whole day without a broker
# needs fewer. Beyond it the oldest are dropped: later messages contain the newer state.
COUNT_MAX = 100_000

# Maximum size: a small disk can spare this.
BYTES_MAX = 64 * 2**20

# A person may open the file with sqlite3; nobody locks it for longer than this (seconds).
BUSY_S = 1.0

_TABLE = "messages (number INTEGER PRIMARY KEY, at REAL, until REAL, data BLOB)"
_MEASURE = "SELECT count(*), coalesce(sum(length(data)), 0) FROM messages"
# Counts the messages of an earlier process, and the rows that are not messages: in a file that was cut, SQLite may read
# rows without values and report no error.
_MEASURE_FOUND = """SELECT count(*), coalesce(sum(length(data)), 0),
    coalesce(sum(typeof(at) <> 'real' OR typeof(until) <> 'real' OR typeof(data) <> 'blob'), 0) FROM messages"""
# The position of a database's write and read versions, and the highest known version (sqlite.org/fileformat2).
_VERSIONS_AT, _VERSION_MAX = 18, 2
# SQLITE_ERROR: our statements are right, so this error means that the file is damaged.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


class SqliteBacklog:
    """ports.Backlog over one file. The caller must ensure that only one thread at a time uses it."""

    def __init__(self, path: str) -> None:
        """Opens nothing yet: a disk that fails now may work later."""
        self.path = path
        self.count = 0
        self.bytes = 0
        self.oldest_at = 0.0
        self._db: sqlite3.Connection | None = None

    def append(self, messages: Sequence[Message], now: float) -> int:
        """Store messages; existing ones stay. Expired messages are removed first."""

        def act(db: sqlite3.Connection) -> tuple[int, int, int]:
            added = db.executemany("INSERT OR IGNORE INTO messages VALUES (?, ?, ?, ?)", messages).rowcount
            count, size = self.count + added, self.bytes + sum([len(message.data) for message in messages])
            if added == len(messages) and count <= COUNT_MAX and size <= BYTES_MAX:
                return 0, count, size
            db.execute("DELETE FROM messages WHERE until < ?", (now,))
            count, size = db.execute(_MEASURE).fetchone()
            given_up = 0
            oldest = db.execute("SELECT number, length(data) FROM messages ORDER BY number").fetchall()
            for number, length in oldest:
                if count <= COUNT_MAX and size <= BYTES_MAX:
                    break
                db.execute("DELETE FROM messages WHERE number = ?", (number,))
                count, size, given_up = count - 1, size - length, given_up + 1
            return given_up, count, size

        return self._transact(act)

    def first(self, limit: int) -> list[Message]:
        """The first messages by number."""
        sql = "SELECT number, at, until, data FROM messages ORDER BY number LIMIT ?"
        return self._transact(lambda db: ([Message(*row) for row in db.execute(sql, (limit,))], self.count, self.bytes))

    def remove(self, numbers: Sequence[int]) -> None:
        """Delete messages."""

        def act(db: sqlite3.Connection) -> tuple[None, int, int]:
            count, size = self.count, self.bytes
            for number in numbers:
                found = db.execute("SELECT length(data) FROM messages WHERE number = ?", (number,)).fetchone()
                if found is not None:
                    db.execute("DELETE FROM messages WHERE number = ?", (number,))
                    count, size = count - 1, size - found[0]
            return None, count, size

        self._transact(act)

    def look(self) -> None:
        """Open the file of an earlier process, if it exists."""
        if os.path.exists(self.path):
            self.first(1)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _transact(self, act: Callable[[sqlite3.Connection], tuple[T, int, int]]) -> T:
        """``act`` returns its result, and the number of messages and bytes after it.

        The numbers are kept up to date, because counting a hundred thousand rows takes longer than all the rest.
        """
        try:
            db = self._db or self._open()
            db.execute("BEGIN IMMEDIATE")
            try:
                result, count, size = act(db)
                oldest = db.execute("SELECT at FROM messages ORDER BY number LIMIT 1").fetchone()
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise
        # SQLite's messages about a damaged file contain bytes of it, which may not be valid text.
        except (sqlite3.Error, OSError, UnicodeDecodeError) as exc:
            raise UnavailableError(f"backlog {self.path}: {exc}{self._failed(exc)}") from exc
        self.count, self.bytes, self.oldest_at = count, size, oldest[0] if oldest else 0.0
        return result

    def _open(self) -> sqlite3.Connection:
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # SQLite would use the umask
        try:
            versions = os.pread(handle, 2, _VERSIONS_AT)
        finally:
            os.close(handle)
        if versions and max(versions) > _VERSION_MAX:  # SQLite would call the file read-only, which is wrong
            raise _damage("SQLite never writes this format")
        db = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")  # messages survive a power cut
            db.execute("PRAGMA journal_size_limit = 4194304")
            db.execute(f"CREATE TABLE IF NOT EXISTS {_TABLE}")
            self._refuse_damaged_pages(db)
            # In columns of other types SQLite would change the values.
            if not db.execute("SELECT 1 FROM sqlite_master WHERE sql = ?", (f"CREATE TABLE {_TABLE}",)).fetchone():
                raise _damage("its table has other columns")
            self.count, self.bytes, damaged = db.execute(_MEASURE_FOUND).fetchone()
            if damaged:
                raise _damage("there are rows without values")
        except BaseException:
            db.close()
            raise
        self._db = db
        return db

    def _refuse_damaged_pages(self, db: sqlite3.Connection) -> None:
        # Then the file itself holds every page, or was cut; unless another process reads it, which keeps pages in the
        # log.
        _busy, in_log, moved = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        (pages,), (page_bytes,) = (db.execute(f"PRAGMA {word}").fetchone() for word in ("page_count", "page_size"))
        if in_log == moved and os.path.getsize(self.path) < pages * page_bytes:
            raise _damage("it is shorter than it says")  # SQLite would allocate memory for every missing page
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise _damage(found)

    def _failed(self, exc: Exception) -> str:
        """The next call opens the file again. A damaged file is moved aside, because nothing could ever be sent from
        it.
        """
        try:
            self.close()
            if not isinstance(exc, UnicodeDecodeError) and getattr(exc, "sqlite_errorcode", 0) & 0xFF not in _DAMAGED:
                return ""
            for suffix in ("-wal", "-shm"):
                if os.path.exists(self.path + suffix):
                    os.unlink(self.path + suffix)
            os.replace(self.path, f"{self.path}.bad")
        except (sqlite3.Error, OSError) as also:
            return f"; and then: {also}"
        self.count, self.bytes, self.oldest_at = 0, 0, 0.0
        return f"; set aside as {self.path}.bad"


def _damage(found: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(found)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error
