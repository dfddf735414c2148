"""The program that asks a database: SQLite and a real PostgreSQL, rows and errors, and nothing but reading."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.components import Component, ensure
from support.servers.postgres import PG_BIN, Postgres

from coordd.adapters.triggers import sql_program
from coordd.adapters.triggers.queues import MessageQueues
from coordd.config.sections import Config
from coordd.core.jobs.trigger import Trigger

LIMIT_S = 60.0
TABLE = "CREATE TABLE ready (id INTEGER, what TEXT, amount NUMERIC, note TEXT)"
ROWS = "INSERT INTO ready VALUES (1, 'é', 1.5, NULL), (2, 'b', 2, 'x')"


def said(url: str, query: str, rows_max: int = 100, **more: Any) -> tuple[list[dict[str, Any]], str]:
    """The rows, and what a person is told."""
    trigger = Trigger(kind="sql", name="s", url=url, query=query, **{"timeout_s": 10.0, **more})
    argv, asked = MessageQueues(lambda: Config().cluster).program(trigger, rows_max)
    done = subprocess.run(argv, input=asked, capture_output=True, timeout=LIMIT_S, check=False)
    assert (done.returncode == 0) is not bool(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode().strip()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    path = tmp_path / "a b?.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(TABLE)
        db.execute(ROWS)
        db.commit()
    return f"sqlite:///{path}"  # four slashes, as check-config demands


def test_a_file_of_sqlite_is_asked_and_never_changed(sqlite_url: str, tmp_path: Path) -> None:
    rows, _ = said(sqlite_url, "SELECT id, what, note FROM ready ORDER BY id")
    assert rows == [
        {"key": "1", "fields": {"id": 1, "what": "é"}},
        {"key": "2", "fields": {"id": 2, "what": "b", "note": "x"}},
    ]
    assert (
        len(said(sqlite_url, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", 7)[0])
        == 8
    )
    assert "readonly database" in said(sqlite_url, "DELETE FROM ready")[1]
    assert "no such table" in said(sqlite_url, "SELECT id FROM nowhere")[1]
    assert "unable to open" in said(f"sqlite:///{tmp_path}/absent.db", "SELECT 1")[1]
    assert not (tmp_path / "absent.db").exists()


def test_two_columns_of_one_name_are_refused_and_the_id_is_the_first_column(sqlite_url: str) -> None:
    """A join: the id of the second table would be that of each arrival."""

    def keys(query: str) -> list[str | None]:
        found = sql_program.rows({"url": sqlite_url, "query": query, "timeout_s": 10.0})
        return [json.loads(sql_program.line(row))["key"] for row in found]

    joined = "SELECT a.id, b.id{} FROM ready a JOIN ready b ON b.id = 2 ORDER BY a.id"
    with pytest.raises(sql_program.BadQueryError, match="a name of its own for each column, found id twice: use AS"):
        keys(joined.format(""))
    assert keys(joined.format(" AS other")) == ["1", "2"]
    assert keys("SELECT note FROM ready ORDER BY id") == [None, "x"], "one row without an id does not stop the others"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    ensure([Component("postgres", "postgresql-15", str(PG_BIN / "postgres"))])
    server = Postgres()
    server.start()
    with psycopg.connect(server.address) as db:
        db.execute(TABLE)
        db.execute(ROWS)
    yield server
    server.close()


def test_postgresql_is_asked_in_a_transaction_that_only_reads(postgres: Postgres, tmp_path: Path) -> None:
    url = f"postgresql://bench@{postgres.host}:{postgres.port}/postgres"
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    rows, _ = said(url, "SELECT id, what, amount FROM ready ORDER BY id", password_file=str(secret))
    assert rows[0] == {"key": "1", "fields": {"id": 1, "what": "é", "amount": "1.5"}}
    for query in ("DELETE FROM ready RETURNING id", "SELECT pg_sleep(60)"):
        rows, why = said(url, query, timeout_s=1.0)
        assert rows == []
        assert why.startswith("PostgreSQL: ")
    with psycopg.connect(postgres.address) as db:
        assert db.execute("SELECT count(*) FROM ready").fetchone() == (2,)
    _, why = said(url.replace(str(postgres.port), "1"), "SELECT 1", password_file=str(secret))
    assert why.startswith("PostgreSQL: ")
    assert "s3cret" not in why
