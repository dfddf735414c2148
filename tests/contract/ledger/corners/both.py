"""A ledger together with the rules in memory."""

from __future__ import annotations

import contextlib
import sqlite3
from typing import Any

from support.ledger_calls import LEASE_S, FakeClock, Nodes, grant_of
from support.memory import MemoryLedger
from support.stepped_redis import QUARANTINE_S, RecoveringClock, SteppedLedger

from contract.ledger.ledger_coverage import fields
from coordd.adapters.ledger.redis_rows import value_of
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import FIRES, Decided
from coordd.core.ledger.requests import ListOpen
from coordd.core.ledger.rows import JOB_COLUMNS, JobRow, Row
from coordd.core.ledger.runner_requests import Request, Restore

A, B, C, D = "sales#1", "sales#2", "sales#3", "sales#4"


class Both:
    """Sends each call to a ledger and to the rules, and compares the answers."""

    def __init__(self, ledger: Any, clock: FakeClock) -> None:
        self.ledger, self.memory, self.clock = ledger, MemoryLedger(clock), clock

    def ask(self, request: Request[Any]) -> Any:
        if isinstance(self.clock, RecoveringClock):
            self.clock.parts()
        found = self.ledger.ask(request)  # first: the rules may change a request
        wanted = self.memory.ask(request)
        assert fields(found) == fields(wanted), request.op
        self.compare()
        return wanted

    def prune(self, keep_s: float, limit: int = 1000) -> int:
        if isinstance(self.clock, RecoveringClock):
            self.clock.parts()
        wanted = self.memory.prune(keep_s, limit)
        assert self.ledger.prune(keep_s, limit) == wanted
        self.compare()
        return wanted

    def compare(self) -> None:
        rows = self.memory.runs()
        assert fields(self.ledger.runs()) == fields(rows)
        for row in rows:
            assert fields(self.ledger.attempts(row.run)) == fields(self.memory.attempts(row.run))
        for name in self.memory._store.jobs:
            assert fields(self.ledger.fires(name)) == fields(self.memory.fires(name))
        if isinstance(self.ledger, SteppedLedger):
            for key, starts in self.memory._store.started.items():
                (flat,) = self.ledger.read([("ZRANGE", self.ledger.key(f"starts:{key}"), 0, -1, "WITHSCORES")])
                assert {one.decode(): float(at) for one, at in zip(flat[::2], flat[1::2], strict=True)} == starts
            for name, job in self.memory._store.jobs.items():  # in the form that an older version reads
                (read,) = self.ledger.read([("HMGET", self.ledger.key(f"job:{name}"), *JOB_COLUMNS)])
                values = zip(JOB_COLUMNS, read, strict=True)
                assert tuple([value_of(column, value) for column, value in values]) == job.values()

    def older_row(self, job: str, fence: int, horizon: float, suspended: int, version: int, by: str) -> None:
        """Write a job's row as an older version does."""
        row = JobRow(job, fence, horizon, suspended, version, by)
        self.memory._store.put_job(row)
        self.memory._store.commit()
        if isinstance(self.ledger, SteppedLedger):
            fields = [str(part) for pair in zip(JOB_COLUMNS, row.values(), strict=True) for part in pair]
            self.ledger.read([("HSET", self.ledger.key(f"job:{job}"), *fields), ("SADD", self.ledger.key("jobs"), job)])
        else:
            with contextlib.closing(sqlite3.connect(self.ledger.path)) as db, db:
                db.execute("REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?)", row.values())

    def put_text(self, kind: str, key: str, text: str) -> None:
        """Write a value of the ledger's own as anybody with access to it can: of ``fires``, ``holds`` or
        ``drains``.
        """
        name = {"fires": FIRES, "holds": "hold:", "drains": "hold:"}[kind] + key
        self.memory._store.put_meta(name, text)
        self.memory._store.commit()
        if isinstance(self.ledger, SteppedLedger):
            self.ledger.read([("HSET", self.ledger.key(kind), key, text)])
        else:
            with contextlib.closing(sqlite3.connect(self.ledger.path)) as db, db:
                db.execute("REPLACE INTO meta VALUES (?, ?)", (name, text))

    def forget_definitions(self, job: str) -> None:
        """As after an import of rows that an older version exported."""
        self.memory._store.definitions.pop(job)
        if isinstance(self.ledger, SteppedLedger):
            self.ledger.read([("DEL", self.ledger.key(f"activations:{job}"))])
        else:
            with contextlib.closing(sqlite3.connect(self.ledger.path)) as db, db:
                db.execute("DELETE FROM activations WHERE job = ?", (job,))

    def run(self, run: str) -> Row | None:
        return self.memory.run(run)

    def fires(self, job: str) -> Decided:
        return self.memory.fires(job)

    def goes_back(self, ago_s: float = 0.0) -> None:
        """Begin a quarantine in the past: that many seconds ago."""
        if isinstance(self.clock, RecoveringClock):
            assert isinstance(self.ledger, SteppedLedger)
            self.ledger.read([("HSET", self.ledger.key("meta"), "epoch", "of another server")])
            self.clock.parts()
            self.ledger.ask(ListOpen(jobs=()))
            self.clock.since, self.clock.open_at = self.clock.wall, self.clock.wall + QUARANTINE_S
            self.clock.step(ago_s)
        else:
            self.clock.step(ago_s)
            self.clock.recovering_s = QUARANTINE_S - ago_s


def of(nodes: Nodes, run: str, **more: Any) -> Any:
    return nodes.of(run, **{"overlap": "allow", **more})


def restore(nodes: Nodes, run: str, attempt: int, token: int, state: str = "started", **policy: Any) -> Answer:
    registration = of(nodes, run, **policy)
    return nodes.ask(
        Restore(
            of=registration,
            grant=grant_of(run, attempt, token, "w"),
            node="edge-2.20",
            lease_s=LEASE_S,
            state=state,
            exit_code=None,
            reason="said so",
            application_id="app_7",
            final=False,
        )
    )
