"""Any sequence of calls: SQLite answers like the rules in memory, and the invariants hold at every step."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from typing import Any

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule
from support.ledger_calls import FakeClock
from support.search import examples

from contract.ledger.ledger_coverage import ANSWERS, fields, search
from contract.ledger.ledger_machine import RUNS, A, LedgerMachine
from coordd.adapters.ledger.dump import exported, exported_hold
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger import people, requests, words
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim, Replay
from coordd.core.ledger.rows import BACKFILLED, JobRow, is_rerun
from coordd.core.ledger.rules import MOVES, Rules
from coordd.core.ledger.runner_requests import Commit, Gate, Grant, Report, Request
from coordd.core.ledger.words import ACTIVE, RETRY, TERMINAL, UNKNOWN

# These tests do not depend on the disk, and its fsync is slow.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


class ModelMachine(LedgerMachine):
    """Compares SQLite with memory, and observes what they grant."""

    ledger: SqliteLedger

    def __init__(self) -> None:
        super().__init__(FakeClock())
        self.directory = tempfile.TemporaryDirectory(prefix="coordd-model-", dir=MEMORY)
        self.ledger = SqliteLedger(f"sqlite:///{self.directory.name}/ledger.db", clock=self.clock)
        self.launched: dict[tuple[str, int], int] = {}  # (run, attempt) -> the token that passed the gate
        self.committed: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self.before: dict[str, str] = {}
        self.over: dict[tuple[str, int], str] = {}
        self.pruned: set[str] = set()

    def teardown(self) -> None:
        self.ledger.close()
        self.directory.cleanup()

    def an_older_version_was_there(self, row: JobRow) -> None:
        db = sqlite3.connect(f"{self.directory.name}/ledger.db")
        db.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?)", row.values())
        db.commit()
        db.close()

    def ask(self, request: Request[A]) -> A:
        answer = super().ask(request)
        if isinstance(request, Replay) and answer.word == "ok":
            allowed = TERMINAL - {"revoked"} if request.whole else {"failure", "lost"}
            assert self.before.pop(request.run) in allowed, "only a dead letter is replayed, or what has ended"
            if request.whole:
                self.committed.pop(request.run, None)
        self.states_only_move_forward()
        return answer

    def granted(self, claim: Claim, answer: Answer) -> None:
        run, attempt, job = claim.of.run, claim.attempt, claim.of.job
        row = self.memory.run(run)
        assert row is not None
        opened = row.by.startswith(BACKFILLED) or is_rerun(row)
        assert run not in self.pruned or not claim.of.scheduled or opened, "a forgotten run was opened again"
        if self.grants.get((run, attempt)) != (answer.token, claim.nonce):
            assert answer.token > self.tokens.get(job, 0), "S3: tokens strictly increase per job"
            self.tokens[job] = answer.token
            assert run in self.pruned or (run, attempt) not in self.launched, "S1: an attempt is launched once"

    def forgotten(self, gone: set[str]) -> None:
        for run in gone:
            assert self.before.pop(run) in TERMINAL
            self.pruned.add(run)
            self.committed.pop(run, None)
            for book in (self.grants, self.launched, self.over):
                for key in [key for key in book if key[0] == run]:
                    del book[key]

    def ask_gate(self, grant: Grant, ahead_s: float = 0.0) -> None:
        if self.ask(Gate(grant=grant, ahead_s=ahead_s)).word == "ok":
            run, token = grant.run, grant.token
            assert self.launched.setdefault((run, grant.attempt), token) == token, "S1: one launch per (run, attempt)"
            row = self.memory.run(run)
            assert row is not None
            assert row.token == token

    def ask_commit(self, grant: Grant) -> None:
        if self.ask(Commit(grant=grant)).word == "ok":
            assert self.committed.setdefault(grant.run, grant.token) == grant.token, "S4: one commit per run"

    def ask_report(self, report: Report) -> None:
        if self.ask(report).word == "ok":
            rows = fields(self.memory.runs())
            assert self.ask(report).word == "ok", "a lost reply is asked again"
            row = self.memory.run(report.grant.run)
            if row is not None and row.state != UNKNOWN:
                assert fields(self.memory.runs()) == rows

    @rule(seconds=st.sampled_from((-30.0, 30.0)))
    def the_wall_clock_is_set(self, seconds: float) -> None:
        self.clock.wall += seconds
        self.begin_again()

    @rule()
    def the_machine_boots(self) -> None:
        self.clock.boot += "'"
        self.clock.lease = 10.0

    @precondition(lambda self: not self.moved and self.memory.runs() and self.identity_from() == 0.0)
    @rule()
    def the_ledger_moves(self) -> None:
        """A ledger that was exported and imported elsewhere continues as if nothing had happened."""
        self.moved = True
        rows = list(self.ledger.export())
        store = self.memory._store
        jobs: list[Any] = [Rules()._told(store, job) for job in sorted(store.jobs)]
        kept: list[Any] = []
        for row in sorted(store.runs.values(), key=lambda row: (row.created_at, row.run)):
            kept += [row, *self.memory.attempts(row.run)]
        holds = [exported_hold(key, hold) for key, hold in sorted(Rules()._every_hold(store).items())]
        assert rows == [*map(exported, jobs), *holds, *map(exported, kept)]
        other = SqliteLedger(f"sqlite:///{self.directory.name}/elsewhere.db", clock=self.clock)
        assert other.import_(rows) == len(rows)
        self.ledger.close()
        self.ledger = other

    # ---- invariants after each call

    @invariant()
    def both_hold_the_same(self) -> None:
        assert fields(self.ledger.runs()) == fields(self.memory.runs())
        for run in RUNS:
            assert fields(self.ledger.attempts(run)) == fields(self.memory.attempts(run))
        self.sweep()
        # In the form that older versions read.
        read = "SELECT job, fence, horizon, suspended, version, changed_by FROM jobs ORDER BY job"
        assert self.ledger._read(read) == [row.values() for _, row in sorted(self.memory._store.jobs.items())]
        assert self.ledger.status()["runs"] == self.memory.status()["runs"]

    @invariant()
    def states_only_move_forward(self) -> None:
        for row in self.memory.runs():
            was = self.before.get(row.run, row.state)
            if was in TERMINAL and row.state == RETRY:
                wanted = row.by.startswith(BACKFILLED) or is_rerun(row)
                assert wanted, "S5: only a backfill or a parent's re-run makes another attempt of what has ended"
                self.committed.pop(row.run, None)
            elif was in TERMINAL:
                assert row.state == was, "S5: nothing leaves a terminal state"
            else:
                assert row.state == was or row.state in reachable(was)
            self.before[row.run] = row.state
            for attempt in self.memory.attempts(row.run):
                key = (row.run, attempt.attempt)
                assert self.over.get(key, attempt.state) == attempt.state, "S5: no attempt leaves a terminal state"
                if attempt.state in TERMINAL:
                    self.over[key] = attempt.state
            assert sum(a.state in ACTIVE for a in self.memory.attempts(row.run)) <= 1, "S2: one live attempt"


def reachable(state: str) -> set[str]:
    """The states after one call. One operation makes at most two moves."""
    once = MOVES.get(state, frozenset())
    return set(once).union(*(MOVES.get(each, frozenset()) for each in once))


def test_sqlite_obeys_the_rules_and_they_hold() -> None:
    search(ModelMachine, examples(50, steps=40), ANSWERS)


def test_a_search_leaves_the_pages_of_other_tests_as_they_were() -> None:
    ModelMachine().teardown()
    assert [vars(module)["OPEN_PAGE"] for module in (people, requests)] == [words.OPEN_PAGE] * 2


def test_plain_data_is_compared_field_by_field() -> None:
    assert fields(Answer("ok", token=1)) != fields(Answer("ok", token=2))
