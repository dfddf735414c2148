"""The servers of a cluster under test: a unix bus and a SQLite file, or a throw-away RabbitMQ and Redis."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from support import servers

from coordd.core.ledger.rows import ATTEMPT_COLUMNS, RUN_COLUMNS
from coordd.errors import UnavailableError
from system.lab.processes import LIMIT_S, ROOT

ROWS_MAX = 100_000

Table = list[dict[str, Any]]


class Backend(Protocol):
    """The bus and the ledger of one cluster."""

    def settings(self) -> dict[str, Any]:
        """The keys of [cluster] that name this bus and this ledger."""

    def rows(self) -> Table:
        """The ledger's rows, read without any daemon. Raises OSError if the ledger does not answer."""

    def row(self, run: str) -> dict[str, Any]:
        """The row of this run, or {}."""

    def attempts(self, run: str) -> Table: ...

    def silent(self) -> contextlib.AbstractContextManager[None]:
        """While this context is open, the ledger exists but answers nobody."""

    def close(self) -> None: ...


class Embedded:
    """The default backend: only files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger_path = path / "ledger.db"

    def settings(self) -> dict[str, Any]:
        return {"bus": f"unix://{self.path}/bus", "ledger": f"sqlite:///{self.ledger_path}"}

    def rows(self) -> Table:
        return self._select("SELECT * FROM runs")

    def row(self, run: str) -> dict[str, Any]:
        return next(iter(self._select("SELECT * FROM runs WHERE run = ?", run)), {})

    def attempts(self, run: str) -> Table:
        return self._select("SELECT * FROM attempts WHERE run = ? ORDER BY attempt", run)

    def _select(self, sql: str, *values: str) -> Table:
        if not self.ledger_path.exists():
            raise FileNotFoundError(self.ledger_path)
        with contextlib.closing(sqlite3.connect(f"file:{self.ledger_path}?mode=ro", uri=True, timeout=LIMIT_S)) as db:
            db.row_factory = sqlite3.Row
            return [dict(row) for row in db.execute(sql, values)]

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        with locked(self.ledger_path):
            yield

    def close(self) -> None:
        """Does nothing: the cluster removes the files."""


class Production:
    """RabbitMQ carries the gossip, Redis holds the ledger; envelopes are signed."""

    def __init__(
        self,
        path: Path,
        *,
        own_broker: bool = False,
        sentinel: bool = False,
        sentinels: servers.Sentinels | None = None,
        redis_server: servers.Redis | None = None,
        rabbit: servers.Rabbit | None = None,
        **redis: Any,
    ) -> None:
        """``own_broker``: the test will harm the broker, so the cluster has its own; otherwise all clusters share one.
        ``sentinel``: the ledger is a replicated Redis with Sentinel's default timings. ``redis``: settings of
        redis.conf. The caller makes ``sentinels``, ``redis_server`` and ``rabbit``; the cluster then owns them."""
        self.name = path.name
        self.keyring = path / "keys.toml"
        done = subprocess.run(
            [sys.executable, "-m", "coordd", "keys", "new", "--output", str(self.keyring)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        self.sentinels = sentinels or (servers.Sentinels(**redis) if sentinel else None)
        self.redis = self.sentinels.primary if self.sentinels else redis_server or servers.Redis(**redis)
        (self.sentinels or self.redis).start()
        self.ledger_url = (self.sentinels or self.redis).url
        self._own_broker = own_broker or rabbit is not None
        self.rabbit = (rabbit or servers.Rabbit()) if self._own_broker else shared_broker()
        if self._own_broker:
            self.rabbit.start()
        self._ledger: Any = None

    def settings(self) -> dict[str, Any]:
        return {"name": self.name, "bus": self.rabbit.url, "ledger": self.ledger_url, "keyring": str(self.keyring)}

    def ledger(self) -> Any:
        from coordd.adapters.ledger.redis_ledger import RedisLedger

        """A ledger client of the test's own."""
        if self._ledger is None:
            self._ledger = RedisLedger(self.ledger_url, timeout_s=LIMIT_S, cluster=self.name)
        return self._ledger

    def rows(self) -> Table:
        return [_table(row, RUN_COLUMNS) for row in self._read(lambda ledger: ledger.runs(limit=ROWS_MAX))]

    def row(self, run: str) -> dict[str, Any]:
        found = self._read(lambda ledger: ledger.run(run))
        return {} if found is None else _table(found, RUN_COLUMNS)

    def attempts(self, run: str) -> Table:
        return [_table(row, ATTEMPT_COLUMNS) for row in self._read(lambda ledger: ledger.attempts(run))]

    def _read(self, question: Callable[[Any], Any]) -> Any:
        try:
            return question(self.ledger())
        except UnavailableError:  # the connection was to a server that has ended since
            try:
                return question(self.ledger())
            except UnavailableError as exc:
                raise ConnectionError(str(exc)) from exc

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        self.redis.pause()
        try:
            yield
        finally:
            self.redis.resume()

    def close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
        (self.sentinels or self.redis).close()
        if self._own_broker:
            self.rabbit.close()


def _table(row: object, columns: tuple[str, ...]) -> dict[str, Any]:
    return {column: getattr(row, column) for column in columns}


BACKENDS = {"embedded": Embedded, "production": Production}


@cache
def shared_broker() -> servers.Rabbit:
    """The broker of all clusters that do not harm it. The broker ends with this process."""
    broker = servers.Rabbit()
    broker.start()
    return broker


@contextlib.contextmanager
def locked(path: Path | str) -> Iterator[None]:
    """While this context is open, it holds the ledger's write lock."""
    db = sqlite3.connect(path, isolation_level=None, timeout=LIMIT_S)
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")
    finally:
        db.close()
