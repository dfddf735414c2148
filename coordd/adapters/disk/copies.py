"""The list of the files that are copied elsewhere, in one SQLite file. If it is lost, all are copied again."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from coordd.adapters.disk.files import kept_aside
from coordd.errors import UnavailableError
from coordd.ports import Copy

T = TypeVar("T")

# A person may open the file with sqlite3; nobody locks it for longer than this (seconds).
BUSY_S = 1.0

_COLUMNS = ", ".join(Copy._fields)
_MAKE = """CREATE TABLE IF NOT EXISTS copies (sink TEXT, name TEXT, state TEXT, tries INTEGER, next_at REAL, at REAL,
    size INTEGER, reason TEXT, PRIMARY KEY (sink, name))"""
_INDEX = "CREATE INDEX IF NOT EXISTS due ON copies (sink, state, next_at)"


class SqliteCopies:
    """ports.Copies; may be called from several threads."""

    def __init__(self, path: str) -> None:
        """Opens nothing yet: a disk that fails now may work later."""
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._turn = threading.Lock()

    def put(self, copies: Sequence[Copy]) -> None:
        marks = ", ".join("?" * len(Copy._fields))
        with self._turn:
            self._do(lambda db: db.executemany(f"INSERT OR REPLACE INTO copies ({_COLUMNS}) VALUES ({marks})", copies))  # noqa: S608 - our own names

    def drop(self, sink: str, names: Sequence[str]) -> None:
        with self._turn:
            gone = [(sink, name) for name in names]
            self._do(lambda db: db.executemany("DELETE FROM copies WHERE sink = ? AND name = ?", gone))

    def below(self, sink: str, directory: str) -> dict[str, Copy]:
        first, beyond = f"{directory}/", f"{directory}0"  # "0" follows "/"
        found = self._select("WHERE sink = ? AND name >= ? AND name < ?", sink, first, beyond)
        return {one.name: one for one in found}

    def due(self, sink: str, now: float) -> Copy | None:
        where = "WHERE sink = ? AND state = 'waiting' AND next_at <= ? ORDER BY next_at LIMIT 1"
        return next(iter(self._select(where, sink, now)), None)

    def get(self, sink: str, name: str) -> Copy | None:
        return next(iter(self._select("WHERE sink = ? AND name = ?", sink, name)), None)

    def dead(self, limit: int) -> list[Copy]:
        return self._select("WHERE state = 'dead' ORDER BY at DESC LIMIT ?", limit)

    def counts(self) -> dict[tuple[str, str], int]:
        sql = "SELECT sink, state, count(*) FROM copies GROUP BY sink, state"
        with self._turn:
            return {(sink, state): count for sink, state, count in self._do(lambda db: db.execute(sql).fetchall())}

    def close(self) -> None:
        with self._turn:
            db, self._db = self._db, None
            if db is not None:
                db.close()

    def _select(self, where: str, *values: object) -> list[Copy]:
        sql = f"SELECT {_COLUMNS} FROM copies {where}"  # noqa: S608 - our own words
        with self._turn:
            return [Copy(*row) for row in self._do(lambda db: db.execute(sql, values).fetchall())]

    def _do(self, act: Callable[[sqlite3.Connection], T]) -> T:
        try:
            db = self._db = self._db or self._open()
            with db:
                return act(db)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as exc:
            raise UnavailableError(f"copies {self._path}: {exc}{self._failed(exc)}") from exc

    def _failed(self, exc: Exception) -> str:
        """The next call opens the file again; a damaged file is set aside."""
        db, self._db = self._db, None
        if db is not None:
            db.close()
        code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
        if isinstance(exc, UnicodeDecodeError) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return kept_aside(self._path)
        return ""

    def _open(self) -> sqlite3.Connection:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))  # SQLite would use the umask
        db = sqlite3.connect(self._path, timeout=BUSY_S, check_same_thread=False)
        try:
            db.execute("PRAGMA synchronous = FULL")
            db.execute(_MAKE)
            db.execute(_INDEX)
        except BaseException:
            db.close()
            raise
        return db
