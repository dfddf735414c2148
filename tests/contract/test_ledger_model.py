"""Any sequence of calls: SQLite answers as memory does, and what must always hold, holds at every step."""

from __future__ import annotations

import tempfile
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledger_calls import LEASE_S, FakeClock, Nodes

from coordd.adapters.memory import MemoryLedger
from coordd.adapters.sqlite_ledger import SqliteLedger
from coordd.core.ledger import MOVES
from coordd.core.rows import ACTIVE, TERMINAL, Answer, Claim, OpenAnswer

RUNS = ("a#1", "a#2", "a@2025-01-29T08:00:01Z", "a@2025-01-29T08:01:00Z", "b#1")
FIRE_AT = {"a@2025-01-29T08:00:01Z": 1.0, "a@2025-01-29T08:01:00Z": 60.0}
NODES = ("edge-1.10", "edge-2.20")

runs = st.sampled_from(RUNS)
attempts = st.integers(0, 2)
nonces = st.sampled_from(("x", "y"))
policies = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(("forbid", "allow", "replace", "queue")),
        "on_lost": st.sampled_from(("relaunch", "hold")),
        "attempts": st.integers(1, 2),
        "relaunches": st.integers(0, 2),
        "start_within_s": st.sampled_from((50.0, 3600.0)),
    }
)


def fields(thing: Any) -> Any:
    """Rows and answers as plain data."""
    if isinstance(thing, list):
        return [fields(each) for each in thing]
    return tuple(fields(getattr(thing, name)) for name in thing.__slots__) if hasattr(thing, "__slots__") else thing


class LedgerMachine(RuleBasedStateMachine):
    """Two ledgers under one clock, and an observer of what they grant."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.start = self.clock.wall
        self.directory = tempfile.TemporaryDirectory(prefix="coordd-model-")
        self.sqlite = SqliteLedger(f"sqlite:///{self.directory.name}/ledger.db", clock=self.clock)
        self.memory = MemoryLedger(self.clock)
        self.nodes = Nodes(self.memory, self.clock)
        self.grants: dict[tuple[str, int], tuple[int, str]] = {}  # what each node believes to hold
        self.launched: dict[tuple[str, int], int] = {}  # (run, attempt) -> the token that passed the gate
        self.committed: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        self.before: dict[str, str] = {}
        self.over: dict[tuple[str, int], str] = {}
        self.pruned: set[str] = set()

    def teardown(self) -> None:
        self.sqlite.close()
        self.directory.cleanup()

    def call(self, op: str, *args: Any) -> Any:
        """The same call to both; they must say the same."""
        answer = self.memory.call(op, *args)
        assert fields(self.sqlite.call(op, *args)) == fields(answer), op
        return answer

    def of(self, run: str, policy: dict[str, Any], digest: str = "d1") -> Any:
        return self.nodes.of(run, fire_at=self.start + FIRE_AT.get(run, 0.0), digest=digest, **policy)

    def held(self, run: str, attempt: int) -> tuple[str, int, int, str]:
        token, nonce = self.grants.get((run, attempt), (1, "x"))
        return (run, attempt, token, nonce)

    # ---- what nodes and people may do, in any order

    @rule(seconds=st.sampled_from((0.5, 4.0, 20.0, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule(seconds=st.sampled_from((-30.0, 30.0)))
    def the_wall_clock_is_set(self, seconds: float) -> None:
        self.clock.wall += seconds

    @rule()
    def the_machine_boots(self) -> None:
        self.clock.boot += "'"
        self.clock.lease = 10.0

    @rule(run=runs, policy=policies, args=st.sampled_from(("{}", '{"k":"v"}')))
    def register(self, run: str, policy: dict[str, Any], args: str) -> None:
        of = self.of(run, policy)
        of.args = args
        self.call("register", of)

    @rule(
        run=runs, policy=policies, nonce=nonces, node=st.sampled_from(NODES), watch=st.booleans(), other=st.booleans()
    )
    def claim(self, run: str, policy: dict[str, Any], nonce: str, node: str, watch: bool, other: bool) -> None:
        row = self.memory.run(run)
        attempt = row.attempt if row else 0
        watched = (row.token, row.beat, LEASE_S * 1.03) if row and watch else None
        of = self.of(run, policy, "d2" if other else "d1")
        settled = of.fire_at if of.scheduled else 0.0
        answer = self.call("claim", Claim(of, attempt, nonce, node, LEASE_S, watched, settled))
        if answer.word == "granted":
            assert run not in self.pruned or not of.scheduled, "a forgotten run was opened again"
            known = self.grants.get((run, attempt))
            if known != (answer.token, nonce):
                assert answer.token > self.tokens.get(of.job, 0), "S3: tokens strictly increase per job"
                self.tokens[of.job] = answer.token
                assert run in self.pruned or (run, attempt) not in self.launched, "S1: an attempt is launched once"
            self.grants[run, attempt] = (answer.token, nonce)

    @rule(run=runs, attempt=attempts)
    def claim_another_attempt(self, run: str, attempt: int) -> None:
        row = self.memory.run(run)
        if row is None or row.attempt != attempt:
            answer = self.call("claim", Claim(self.of(run, {}), attempt + (row is None), "z", NODES[0], LEASE_S))
            assert answer.word != "granted"

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def gate(self, data: st.DataObject) -> None:
        key = self.held(*data.draw(st.sampled_from(sorted(self.grants))))
        if self.call("gate", *key).word == "ok":
            run, attempt, token, _ = key
            assert self.launched.setdefault((run, attempt), token) == token, "S1: one launch per (run, attempt)"
            row = self.memory.run(run)
            assert row is not None
            assert row.token == token

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), application=st.sampled_from(("", "application_1")))
    def renew(self, data: st.DataObject, application: str) -> None:
        key = self.held(*data.draw(st.sampled_from(sorted(self.grants))))
        self.call("renew", *key, LEASE_S, application, key[:2] in self.launched)

    @precondition(lambda self: self.grants)
    @rule(
        data=st.data(),
        state=st.sampled_from(("success", "failure", "revoked", "lost", "retry")),
        final=st.booleans(),
        exit_code=st.sampled_from((None, 0, 1)),
    )
    def report(self, data: st.DataObject, state: str, final: bool, exit_code: int | None) -> None:
        key = self.held(*data.draw(st.sampled_from(sorted(self.grants))))
        arguments = (*key, state, exit_code, "why", "", final)
        if self.call("report", *arguments).word == "ok":
            rows = fields(self.memory.runs())
            assert self.call("report", *arguments).word == "ok", "a lost reply is asked again"
            row = self.memory.run(key[0])
            if row is not None and row.state != "unknown":
                assert fields(self.memory.runs()) == rows

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        key = self.held(*data.draw(st.sampled_from(sorted(self.grants))))
        if self.call("commit", *key).word == "ok":
            assert self.committed.setdefault(key[0], key[2]) == key[2], "S4: one commit per run"

    @rule(run=runs, what=st.sampled_from(("revoke", "cancel", "success", "failed", "relaunch")))
    def a_person_acts(self, run: str, what: str) -> None:
        if what in ("revoke", "cancel"):
            self.call(what, run, "ann")
        else:
            self.call("resolve", run, what, "ann")

    @rule(job=st.sampled_from(("a", "b", "c")), on=st.booleans())
    def suspend(self, job: str, on: bool) -> None:
        self.call("suspend", job, on, "ann")

    @rule(before_s=st.sampled_from((0.0, 60.0)), limit=st.integers(0, 3))
    def prune(self, before_s: float, limit: int) -> None:
        known = {row.run: row for row in self.memory.runs()}
        before = self.clock.wall - before_s
        assert self.sqlite.prune(before, limit) == self.memory.prune(before, limit)
        for run in known.keys() - {row.run for row in self.memory.runs()}:
            assert known[run].state in TERMINAL
            self.pruned.add(run)
            self.committed.pop(run, None)
            for book in (self.grants, self.launched, self.over):
                for key in [key for key in book if key[0] == run]:
                    del book[key]
            self.before.pop(run, None)

    # ---- what must hold after each of them

    @invariant()
    def both_hold_the_same(self) -> None:
        assert fields(self.sqlite.runs()) == fields(self.memory.runs())
        for run in RUNS:
            assert fields(self.sqlite.attempts(run)) == fields(self.memory.attempts(run))
        answer = self.call("open", ("a", "b"))
        assert isinstance(answer, OpenAnswer)
        assert self.sqlite.status()["runs"] == self.memory.status()["runs"]

    @invariant()
    def states_only_move_forward(self) -> None:
        for row in self.memory.runs():
            was = self.before.get(row.run, row.state)
            if was in TERMINAL:
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
    """Where one call may lead; an operation makes two moves at the most."""
    once = MOVES.get(state, frozenset())
    return set(once).union(*(MOVES.get(each, frozenset()) for each in once))


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedgerMachine = LedgerMachine.TestCase


def test_plain_data_is_compared_field_by_field() -> None:
    assert fields(Answer("ok", token=1)) != fields(Answer("ok", token=2))
