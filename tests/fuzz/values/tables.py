"""A ledger of SQLite tables that take any value, and the rows that its own rules write into each of them."""

from __future__ import annotations

import sqlite3
from functools import cache
from typing import Any

from support.ledger_calls import FakeClock, Nodes

from coordd.adapters.ledger.sqlite_rows import ADDED, ADDED_COLUMNS, ADDED_INDEXES, MIGRATIONS, Transaction
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.rows import CHANGES, FEED_MAX, LedgerTime, Row
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.runner_requests import Request
from coordd.core.ledger.words import BAD
from coordd.errors import BadRowError
from fuzz.values.dialogue import speak

# Values of rows of these tables are read as they are: what goes wrong is the answer to that one question, because
# LedgerService catches every error of a question. (Rows of the others are checked first, and named when they are bad.)
UNCHECKED = frozenset({"activations", "starts", "meta", "changes"})


class LooseLedger:
    """core.ledger's rules over SQLite tables in memory that take any value in any column."""

    def __init__(self, time: LedgerTime) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None)
        added = [f"ALTER TABLE {table} ADD COLUMN {column} {declared}" for table, column, declared in ADDED_COLUMNS]
        for statement in (*MIGRATIONS[0], *added, *ADDED.values(), *ADDED_INDEXES):
            self.db.execute(statement.replace(" NOT NULL", "").replace("WITHOUT ROWID", ""))
        self.rules = Rules()
        self.time = time
        self.spoilt: set[str] = set()  # the tables with values that no node has written
        self.changes = 0  # the number before the first change
        self.failed = 0  # questions that ended with an error which only LedgerService catches

    def put(self, table: str, fields: dict[str, Any]) -> None:
        """Write a row, whatever its values."""
        names = ", ".join(f'"{column}"' for column in fields)
        marks = ", ".join("?" * len(fields))
        self.db.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", list(fields.values()))  # noqa: S608 - our words

    def ask(self, request: Request[Any]) -> Any:
        """As SqliteLedger does it, and as LedgerService answers for a row that is bad."""
        self.db.execute("BEGIN")
        store = Transaction(self.db, writes=True)
        try:
            answer = self.rules.answer(store, request, self.time)
            if isinstance(answer, OpenAnswer):
                answer.bad.update(store.bad)
        except (BadRowError, AssertionError) as exc:  # a move that the table of states forbids
            answer = Answer(BAD, by=str(exc))
            self.db.execute("ROLLBACK")
        except Exception as exc:
            self.db.execute("ROLLBACK")
            if not self.spoilt & UNCHECKED:
                raise
            self.failed += 1
            answer = Answer(BAD, by=f"{request.op} failed: {exc!r:.300}")
        else:
            self.db.execute("COMMIT")
        return answer

    def run(self, run: str) -> Row | None:
        return Transaction(self.db, writes=False).run(run)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table, by column."""
        found = self.db.execute(f"SELECT * FROM {table}")  # noqa: S608 - our words
        names = [name for name, *_ in found.description]
        return [dict(zip(names, values, strict=True)) for values in found]

    def tables(self) -> list[str]:
        found = self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
        return [str(name) for (name,) in found]

    def put_run(self, run: Row) -> None:
        """Write a valid row, and number the change, as nodes do."""
        Transaction(self.db, writes=True).put_run(run)

    def number(self, name: str) -> None:
        """A run or a job has changed: without this a sweep that follows a cursor does not tell it."""
        Transaction(self.db, writes=True).number(name)

    def clear(self) -> None:
        """An empty ledger, in which every cursor begins again (Transaction.make_empty)."""
        for table in self.tables():
            self.db.execute(f"DELETE FROM {table}")  # noqa: S608 - our words
        self.spoilt.clear()
        self.changes += 2 * FEED_MAX
        self.put("meta", {"key": CHANGES, "value": str(self.changes)})


class Spoken(LooseLedger):
    """The same, under a clock that a dialogue moves."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock())
        self.clock = clock

    def ask(self, request: Request[Any]) -> Any:
        self.time = self.clock()
        return super().ask(request)


@cache
def written() -> dict[str, list[dict[str, Any]]]:
    """The rows of every table after the dialogue."""
    clock = FakeClock()
    ledger = Spoken(clock)
    speak(Nodes(ledger, clock))  # type: ignore[arg-type]  # all that a dialogue asks of it
    return {table: ledger.rows(table) for table in ledger.tables()}
