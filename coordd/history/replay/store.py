"""The tables of a ledger in dictionaries: ``core.ledger.rows.Store`` without a database."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from coordd.core.ledger.rows import (
    ACTIVATIONS_MAX,
    CHANGES,
    FEED_MAX,
    OF_JOB,
    Activation,
    AttemptRow,
    Cursor,
    JobRow,
    Row,
    changed_by,
    fed,
)
from coordd.core.ledger.steps import HOLDING
from coordd.core.ledger.words import ACTIVE, PENDING, REVOKED, SLOTS, TERMINAL


class MemoryStore:
    """core.ledger.rows.Store in dictionaries.

    A stored object is never changed: reading for writing returns a copy, and put replaces the old object. So a
    snapshot is a shallow copy, and putting the old objects back undoes a failed operation.
    """

    __slots__ = (
        "_undo",
        "active",
        "attempts",
        "definitions",
        "fired",
        "jobs",
        "metas",
        "numbers",
        "open",
        "runs",
        "standings",
        "started",
    )

    def __init__(self) -> None:
        self.runs: dict[str, Row] = {}
        self.jobs: dict[str, JobRow] = {}
        self.standings: dict[str, JobRow] = {}
        self.definitions: dict[str, tuple[Activation, ...]] = {}
        self.attempts: dict[str, dict[int, AttemptRow]] = {}
        self.metas: dict[str, str] = {}
        self.numbers: dict[str, int] = {}  # run or job -> the number of its newest change
        # Indexes for the rules, so that no operation searches through ended runs.
        self.open: dict[str, Row] = {}
        self.active: dict[str, set[str]] = {}
        self.fired: dict[str, float] = {}  # job -> its newest fire time
        self.started: dict[str, dict[str, float]] = {}  # a rate's key -> the attempts that it counts, and when
        self._undo: list[Callable[[], None]] = []

    # ---- core.ledger.rows.Store

    def run(self, run: str) -> Row | None:
        row = self.runs.get(run)
        return row.copy() if row is not None else None

    def put_run(self, row: Row) -> None:
        old = self.runs.get(row.run)
        self._undo.append(lambda: self._set_run(row.run, old))
        self._set_run(row.run, row)
        for name in changed_by(row, fed(old) if old is not None else None):
            self.number(name)

    def number(self, name: str) -> None:
        number, known = self.changes() + 1, self.numbers.get(name)
        self.put_meta(CHANGES, str(number))
        self._undo.append(lambda: _put_back(self.numbers, name, known))
        self.numbers[name] = number

    def changes(self) -> int:
        return int(self.metas.get(CHANGES, 0))

    def changed(self, after: int, limit: int) -> list[tuple[int, str]]:
        after = max(after, self.changes() - FEED_MAX)
        return heapq.nsmallest(limit, [(number, name) for name, number in self.numbers.items() if number > after])

    def job(self, job: str) -> JobRow | None:
        row = self.jobs.get(job)
        return JobRow(*row.values()) if row is not None else None  # type: ignore[arg-type]  # its own values

    def put_job(self, row: JobRow) -> None:
        old = self.jobs.get(row.job)
        self._undo.append(lambda: _put_back(self.jobs, row.job, old))
        self.jobs[row.job] = row
        self.number(OF_JOB + row.job)

    def job_names(self) -> list[str]:
        return list(self.jobs)

    def has_jobs(self) -> bool:
        return bool(self.jobs)

    def standing(self, job: str) -> JobRow | None:
        row = self.standings.get(job)
        return JobRow.of_standing(row.standing()) if row is not None else None

    def drop_job(self, job: str) -> None:
        for table in (self.jobs, self.standings):
            old = table.pop(job, None)
            self._undo.append(lambda table=table, old=old: _put_back(table, job, old))  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
        self.number(OF_JOB + job)

    def highest_token(self, job: str) -> int:
        return max([row.token for row in self.runs.values() if row.job == job], default=0)

    def put_standing(self, row: JobRow) -> None:
        old = self.standings.get(row.job)
        self._undo.append(lambda: _put_back(self.standings, row.job, old))
        self.standings[row.job] = row.copy()
        self.number(OF_JOB + row.job)

    def activations(self, job: str) -> list[Activation]:
        return list(self.definitions.get(job, ()))

    def put_activation(self, job: str, activation: Activation) -> None:
        old = self.definitions.get(job)
        self._undo.append(lambda: _put_back(self.definitions, job, old))
        self.definitions[job] = (*(old or ()), activation)[-ACTIVATIONS_MAX:]

    def attempt(self, run: str, attempt: int) -> AttemptRow | None:
        row = self.attempts.get(run, {}).get(attempt)
        return AttemptRow(row.values()) if row is not None else None

    def put_attempt(self, row: AttemptRow) -> None:
        old = self.attempts.get(row.run)
        self._undo.append(lambda: _put_back(self.attempts, row.run, old))
        self.attempts[row.run] = {**(old or {}), row.attempt: row}

    def active_runs(self, job: str) -> list[Row]:
        return [self.runs[run].copy() for run in sorted(self.active.get(job, ()))]

    def slot_holders(self, key: str) -> list[Row]:
        active = sorted({run for runs in self.active.values() for run in runs})
        holding = [row for row in map(self.runs.__getitem__, active) if row.state in HOLDING]
        return [row.copy() for row in holding if f"{SLOTS}{key}=" in row.policy]

    def starts(self, key: str, since: float) -> list[float]:
        return sorted(at for at in self.started.get(key, {}).values() if at > since)

    def put_start(self, key: str, attempt: str, at: float, since: float) -> None:
        old = self.started.get(key)
        self._undo.append(lambda: _put_back(self.started, key, old))
        kept = {name: start for name, start in (old or {}).items() if start > since}
        self.started[key] = {**kept, attempt: at}

    def waiting_before(self, job: str, not_before: float, run: str) -> int:
        waiting = [row for row in self.open.values() if row.job == job and row.state == PENDING]
        return sum((row.not_before, row.run) < (not_before, run) for row in waiting)

    def first_waiting(self, job: str) -> Row | None:
        waiting = [row for row in self.open.values() if row.job == job and row.state == PENDING]
        return min(waiting, key=lambda row: (row.not_before, row.run)).copy() if waiting else None

    def open_runs(self, limit: int, after: Cursor | None = None) -> tuple[list[Row], Cursor | None]:
        from_here = (after.not_before, after.run) if after is not None else (float("-inf"), "")
        rows = (row for row in self.open.values() if (row.not_before, row.run) > from_here)
        found = heapq.nsmallest(limit, rows, key=lambda row: (row.not_before, row.run))
        return found, Cursor(not_before=found[-1].not_before, run=found[-1].run) if len(found) == limit else None

    def ended_runs(self, before: float, limit: int) -> list[Row]:
        ended = [
            row
            for row in self.runs.values()
            if row.state in TERMINAL and row.ended_at < before and not (row.scheduled and row.due_at >= before)
        ]
        return heapq.nsmallest(limit, ended, key=lambda row: (row.ended_at, row.run))

    def ended_since(self, since: float, limit: int) -> list[Row]:
        ended = [row for row in self.runs.values() if row.state in TERMINAL and row.ended_at >= since]
        return heapq.nsmallest(limit, ended, key=lambda row: (row.ended_at, row.run))

    def drop_run(self, run: str) -> None:
        old, attempts = self.runs[run], self.attempts.get(run)
        self._undo.append(lambda: self._set_run(run, old))
        self._undo.append(lambda: _put_back(self.attempts, run, attempts))
        self._set_run(run, None)
        self.attempts.pop(run, None)

    def count_fired(self, job: str, after: float, upto: float) -> int:
        return sum(
            1 for row in self.runs.values() if row.job == job and counts_as_fired(row) and after < row.due_at <= upto
        )

    def last_fire_at(self, job: str, before: float) -> float:
        newest = self.fired.get(job, 0.0)
        if newest <= before:
            return newest
        rows = (row for row in self.runs.values() if row.job == job and counts_as_fired(row))
        return max((row.due_at for row in rows if row.due_at <= before), default=0.0)

    def meta(self, key: str) -> str:
        return self.metas.get(key, "")

    def put_meta(self, key: str, value: str) -> None:
        old = self.metas.get(key)
        self._undo.append(lambda: _put_back(self.metas, key, old))
        _put_back(self.metas, key, value or None)

    def metas_like(self, prefix: str) -> dict[str, str]:
        return {key: value for key, value in self.metas.items() if key.startswith(prefix)}

    # ---- one transaction

    def commit(self) -> None:
        """Keep the changes since the last commit."""
        self._undo.clear()

    def rollback(self) -> None:
        """Undo the changes since the last commit."""
        while self._undo:
            self._undo.pop()()

    def snapshot(self) -> MemoryStore:
        """A copy of this store that does not change any more."""
        copy = MemoryStore()
        copy.runs, copy.jobs, copy.attempts = dict(self.runs), dict(self.jobs), dict(self.attempts)
        copy.standings, copy.definitions = dict(self.standings), dict(self.definitions)
        copy.open, copy.fired, copy.metas = dict(self.open), dict(self.fired), dict(self.metas)
        copy.active = {job: set(runs) for job, runs in self.active.items()}
        copy.started = dict(self.started)
        copy.numbers = dict(self.numbers)
        return copy

    def _set_run(self, run: str, row: Row | None) -> None:
        old = self.runs.get(run)
        _put_back(self.runs, run, row)
        if old is not None and old.state in ACTIVE and (row is None or row.state not in ACTIVE):
            self.active[old.job].discard(run)
        if row is not None and row.state in ACTIVE:
            self.active.setdefault(row.job, set()).add(run)
        _put_back(self.open, run, row if row is not None and row.state not in TERMINAL else None)
        fired = row is not None and counts_as_fired(row)
        if row is not None and fired and row.due_at > self.fired.get(row.job, 0.0):
            self.fired[row.job] = row.due_at
        elif old is not None and not fired and counts_as_fired(old) and old.due_at == self.fired.get(old.job):
            newest = max((r.due_at for r in self.runs.values() if r.job == old.job and counts_as_fired(r)), default=0.0)
            self.fired[old.job] = newest


def _put_back(table: dict[str, Any], key: str, value: Any) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def counts_as_fired(row: Row) -> bool:
    """True for a scheduled run that was not revoked before any claim."""
    return bool(row.scheduled) and not (row.state == REVOKED and row.token == 0)
