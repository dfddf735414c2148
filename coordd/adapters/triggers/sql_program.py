"""`python -m coordd.adapters.triggers.sql_program`: ask a database, and print one row a line.

A program of its own: a driver that hangs or takes all memory harms only this process, which the daemon kills. What it
asks comes on standard input, with the password. SQLite is opened to read only; PostgreSQL is asked in a transaction
that only reads, with a cursor at the server. The driver of PostgreSQL is psycopg 3, which the site installs.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

# Memory of this process (bytes), and rows that are fetched at a time.
MEMORY_MAX = 1024 * 2**20
FETCHED = 500


class BadQueryError(Exception):
    """What a person should know."""


Row = tuple[Any, dict[str, Any]]


def rows(asked: dict[str, Any]) -> Iterator[Row]:
    """The rows, each as its first value, and {column: value}."""
    if asked["url"].startswith("sqlite:"):
        # A URI of SQLite with more than one slash before the path would name a host.
        path = "/" + asked["url"].removeprefix("sqlite:").lstrip("/")
        yield from _sqlite(path, asked["query"], asked["timeout_s"])
    else:
        yield from _postgresql(asked)


def _sqlite(path: str, query: str, timeout_s: float) -> Iterator[Row]:
    import sqlite3

    try:
        with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=timeout_s)) as db:
            yield from _fetched(db.execute(query))
    except sqlite3.Error as exc:
        raise BadQueryError(f"SQLite: {exc}") from exc


def _postgresql(asked: dict[str, Any]) -> Iterator[Row]:
    try:
        import psycopg
    except ImportError as exc:
        raise BadQueryError(
            "PostgreSQL needs the package psycopg, version 3 (coordd[postgres], or python3-psycopg)"
        ) from exc
    timeout_s = max(1, int(asked["timeout_s"]))
    said = {"password": asked["password"]} if asked["password"] else {}
    limits = f"-c default_transaction_read_only=on -c statement_timeout={timeout_s * 1000}"
    try:
        with (
            psycopg.connect(asked["url"], connect_timeout=timeout_s, options=limits, **said) as db,
            db.cursor("coordd") as cursor,
        ):
            yield from _fetched(cursor.execute(asked["query"]))
    except psycopg.Error as exc:
        raise BadQueryError(f"PostgreSQL: {str(exc).strip().splitlines()[0]}") from exc


def _fetched(cursor: Any) -> Iterator[Row]:
    if cursor.description is None:
        raise BadQueryError("expected a query with rows (SELECT), found a statement without")
    names = [str(column[0]) for column in cursor.description]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:  # a row would keep one of them, and its id would be that of another table
        raise BadQueryError(f"expected a name of its own for each column, found {', '.join(twice)} twice: use AS")
    while some := cursor.fetchmany(FETCHED):
        for row in some:
            yield row[0], dict(zip(names, row, strict=True))


def line(row: Row) -> str:
    """A row as JSON: the key is its first column, null if that is NULL."""
    key, columns = row
    values = {name: value if isinstance(value, bool | int | float) else str(value) for name, value in columns.items()
              if value is not None}  # fmt: skip
    return json.dumps({"key": None if key is None else str(key), "fields": values})


def main() -> int:
    """Returns the exit code."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
    asked = json.load(sys.stdin)
    try:
        for number, row in enumerate(rows(asked), 1):
            print(line(row))
            if number > asked["rows_max"]:
                break
    except BadQueryError as exc:
        print(exc, file=sys.stderr)
        return 1
    except MemoryError:
        print(f"the rows need more than {MEMORY_MAX} bytes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
