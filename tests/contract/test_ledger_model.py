"""Any sequence of calls: SQLite answers as memory does, and what must always hold, holds at every step."""

from __future__ import annotations

import os
import tempfile
from typing import Any, ClassVar

import hypothesis.strategies as st
from contract.ledger_coverage import ANSWERS, Seen, search, states
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledger_calls import LEASE_S, FakeClock, Nodes
from search import examples

from coordd.adapters.memory import MemoryLedger
from coordd.adapters.sqlite_ledger import SqliteLedger
from coordd.core.dump import exported
from coordd.core.ledger import MOVES
from coordd.core.rows import ACTIVE, TERMINAL, UNKNOWN, Answer, Claim, OpenAnswer

RUNS = ("a#1", "a#2", "a@2025-01-29T08:00:01Z", "a@2025-01-29T08:01:00Z", "b#1")
FIRE_AT = {"a@2025-01-29T08:00:01Z": 1.0, "a@2025-01-29T08:01:00Z": 60.0}
# Nothing here depends on the disk itself, whose fsync takes its time.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
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

ordinary = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(("allow", "allow", "allow", "forbid", "queue")),
        "on_lost": st.sampled_from(("relaunch", "hold")),
        "attempts": st.integers(1, 2),
        "relaunches": st.integers(0, 1),
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

    seen: ClassVar[Seen]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.start = self.clock.wall
        self.directory = tempfile.TemporaryDirectory(prefix="coordd-model-", dir=MEMORY)
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
        self.moved = False

    def teardown(self) -> None:
        self.sqlite.close()
        self.directory.cleanup()

    def call(self, op: str, *args: Any) -> Any:
        """The same call to both; they must say the same."""
        before = states(self.memory)
        answer = self.memory.call(op, *args)
        assert fields(self.sqlite.call(op, *args)) == fields(answer), op
        self.seen.note(op, answer, before, states(self.memory))
        return answer

    def of(self, run: str, policy: dict[str, Any], digest: str = "d1") -> Any:
        return self.nodes.of(run, fire_at=self.start + FIRE_AT.get(run, 0.0), digest=digest, **policy)

    def held(self, run: str, attempt: int) -> tuple[str, int, int, str]:
        token, nonce = self.grants.get((run, attempt), (1, "x"))
        return (run, attempt, token, nonce)

    def holders(self) -> st.SearchStrategy[tuple[str, int]]:
        """Who holds an attempt that is not over, rather than who held one."""
        rows = {row.run: row for row in self.memory.runs()}
        held = [key for key in self.grants if key[0] in rows and rows[key[0]].attempt == key[1]]
        live = [key for key in held if rows[key[0]].state in ACTIVE]
        unknown = [key for key in live if rows[key[0]].state == UNKNOWN]
        return st.sampled_from([*sorted(self.grants), *sorted(live) * 4, *sorted(unknown) * 8])

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

    @rule(run=runs, policy=ordinary, go=st.booleans(), silent=st.booleans())
    def a_run_is_let_in(self, run: str, policy: dict[str, Any], go: bool, silent: bool) -> None:
        """The ordinary case, so that what follows a grant is tried often; also after its holder's silence."""
        if silent:
            self.clock.step(LEASE_S * 1.03)
        self.claim(run, policy, "x", NODES[0], silent, other=False)
        row = self.memory.run(run)
        self.states_only_move_forward()
        if go and row is not None and (run, row.attempt) in self.grants:
            self.ask_gate((run, row.attempt))

    @rule(run=runs, policy=ordinary, go=st.booleans())
    def a_holder_falls_silent(self, run: str, policy: dict[str, Any], go: bool) -> None:
        self.a_run_is_let_in(run, policy, go, silent=False)
        self.states_only_move_forward()
        self.a_run_is_let_in(run, policy, go=False, silent=True)

    @rule(policy=ordinary, overlap=st.sampled_from(("forbid", "queue", "replace")))
    def a_run_waits_while_another_is_let_in(self, policy: dict[str, Any], overlap: str) -> None:
        self.register(RUNS[1], policy, "{}")
        self.a_run_is_let_in(RUNS[0], {**policy, "overlap": "allow"}, go=True, silent=False)
        self.states_only_move_forward()
        self.a_run_is_let_in(RUNS[1], {**policy, "overlap": overlap}, go=False, silent=False)

    @rule(run=runs, attempt=attempts)
    def claim_another_attempt(self, run: str, attempt: int) -> None:
        row = self.memory.run(run)
        if row is None or row.attempt != attempt:
            answer = self.call("claim", Claim(self.of(run, {}), attempt + (row is None), "z", NODES[0], LEASE_S))
            assert answer.word != "granted"

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def gate(self, data: st.DataObject) -> None:
        self.ask_gate(data.draw(self.holders()))

    def ask_gate(self, holder: tuple[str, int]) -> None:
        key = self.held(*holder)
        if self.call("gate", *key).word == "ok":
            run, attempt, token, _ = key
            assert self.launched.setdefault((run, attempt), token) == token, "S1: one launch per (run, attempt)"
            row = self.memory.run(run)
            assert row is not None
            assert row.token == token

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), application=st.sampled_from(("", "application_1")))
    def renew(self, data: st.DataObject, application: str) -> None:
        key = self.held(*data.draw(self.holders()))
        self.call("renew", *key, LEASE_S, application, key[:2] in self.launched)

    @precondition(lambda self: self.grants)
    @rule(
        data=st.data(),
        state=st.sampled_from(("success", "failure", "revoked", "lost", "retry")),
        final=st.booleans(),
        exit_code=st.sampled_from((None, 0, 1)),
    )
    def report(self, data: st.DataObject, state: str, final: bool, exit_code: int | None) -> None:
        key = self.held(*data.draw(self.holders()))
        arguments = (*key, state, exit_code, "why", "", final)
        if self.call("report", *arguments).word == "ok":
            rows = fields(self.memory.runs())
            assert self.call("report", *arguments).word == "ok", "a lost reply is asked again"
            row = self.memory.run(key[0])
            if row is not None and row.state != UNKNOWN:
                assert fields(self.memory.runs()) == rows

    @precondition(lambda self: self.grants)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        key = self.held(*data.draw(self.holders()))
        if self.call("commit", *key).word == "ok":
            assert self.committed.setdefault(key[0], key[2]) == key[2], "S4: one commit per run"

    @rule(run=runs, what=st.sampled_from(("revoke", "cancel")))
    def a_person_acts(self, run: str, what: str) -> None:
        self.call(what, run, "ann")

    @rule(data=st.data(), outcome=st.sampled_from(("success", "failed", "relaunch")))
    def resolve(self, data: st.DataObject, outcome: str) -> None:
        unknown = [row.run for row in self.memory.runs() if row.state == UNKNOWN]
        self.call("resolve", data.draw(st.sampled_from([RUNS[0], *unknown])), outcome, "ann")

    @rule(job=st.sampled_from(("a", "b", "c")), on=st.sampled_from((True, False, False)))
    def suspend(self, job: str, on: bool) -> None:
        self.call("suspend", job, on, "ann")

    @precondition(lambda self: not self.moved and self.memory.runs())
    @rule()
    def the_ledger_moves(self) -> None:
        """What is exported and imported elsewhere goes on there as if nothing had been."""
        self.moved = True
        rows = list(self.sqlite.export())
        store = self.memory._store
        kept: list[Any] = [store.jobs[job] for job in sorted(store.jobs)]
        for row in sorted(store.runs.values(), key=lambda row: (row.created_at, row.run)):
            kept += [row, *self.memory.attempts(row.run)]
        assert rows == [exported(row) for row in kept]
        other = SqliteLedger(f"sqlite:///{self.directory.name}/elsewhere.db", clock=self.clock)
        assert other.import_(rows) == len(rows)
        self.sqlite.close()
        self.sqlite = other

    @rule(keep_s=st.sampled_from((0.0, 60.0)), limit=st.integers(0, 3))
    def prune(self, keep_s: float, limit: int) -> None:
        known = {row.run: row for row in self.memory.runs()}
        assert self.sqlite.prune(keep_s, limit) == self.memory.prune(keep_s, limit)
        self.seen.move({run: row.state for run, row in known.items()}, states(self.memory))
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


def test_sqlite_obeys_the_rules_and_they_hold() -> None:
    search(LedgerMachine, examples(50, steps=40), ANSWERS)


def test_plain_data_is_compared_field_by_field() -> None:
    assert fields(Answer("ok", token=1)) != fields(Answer("ok", token=2))
