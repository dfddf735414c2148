"""Any sequence of calls: the scripts in Redis answer as the rules in core/ledger.py do, and leave the same rows."""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from contract.ledger_coverage import ANSWERS, RECOVERING, Seen, search, states
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ledger_calls import LEASE_S, Nodes
from search import examples
from stepped_redis import OneClock, SteppedLedger

from coordd.adapters.memory import MemoryLedger
from coordd.adapters.redis_scripts import attempts_of
from coordd.core.rows import ACTIVE, STATES, UNKNOWN, Claim, LedgerTime

FIRE_AT = {"a@2025-01-29T08:00:01Z": 1.0, "a@2025-01-29T08:01:00Z": 60.0}
RUNS = ("a#1", "a#2", *FIRE_AT, "b#1", "b#é")
NODES = ("edge-1.10", "edge-2.20")
QUARANTINE_S = 70.0

runs = st.sampled_from(RUNS)
attempts = st.integers(0, 2)
nonces = st.sampled_from(("x", "y"))
policies = st.fixed_dictionaries(
    {
        "overlap": st.sampled_from(("forbid", "allow", "replace", "queue")),
        "on_lost": st.sampled_from(("relaunch", "hold")),
        "attempts": st.integers(1, 3),
        "relaunches": st.integers(0, 2),
        "delay_s": st.sampled_from((0.0, 0.1, 30.0)),
        "backoff": st.sampled_from(("fixed", "linear", "exponential")),
        "start_within_s": st.sampled_from((50.0, 1234567.0, 3600.5)),
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
# What a claimant has watched: off the row's token, off its beat, leases in silence.
watches = st.sampled_from((None, (0, 0, 1.03), (0, 0, 1.03), (1, 0, 1.03), (0, 1, 1.03), (0, 0, 1.02), (0, 0, 1.01)))
ends = st.sampled_from(("success", "failure", "revoked", "lost"))


def fields(thing: Any) -> Any:
    """Rows and answers as plain data."""
    if isinstance(thing, list):
        return [fields(each) for each in thing]
    return {name: fields(getattr(thing, name)) for name in thing.__slots__} if hasattr(thing, "__slots__") else thing


class RecoveringClock(OneClock):
    """As Redis counts a quarantine: to an instant, and no longer when the clock is set back."""

    open_at = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.since = self.wall

    def __call__(self) -> LedgerTime:
        if self.wall >= self.open_at:
            self.open_at = 0.0
        elif self.wall < self.since:
            self.open_at = min(self.open_at, self.wall + QUARANTINE_S)
        else:
            self.open_at = max(self.open_at, self.since + QUARANTINE_S)
        return LedgerTime(self.wall, self.wall, "", max(0.0, self.open_at - self.wall), f"{self.since * 1e6:.0f}")


class DifferentialMachine(RuleBasedStateMachine):
    """The rules in memory, and the scripts, under one clock."""

    url: ClassVar[str]
    seen: ClassVar[Seen]

    def __init__(self) -> None:
        super().__init__()
        self.clock = RecoveringClock()
        self.start = self.clock.wall
        self.redis = SteppedLedger(self.url, self.clock, quarantine_s=QUARANTINE_S)
        self.memory = MemoryLedger(self.clock)
        self.nodes = Nodes(self.memory, self.clock)
        self.grants: dict[tuple[str, int], tuple[int, str]] = {}
        self.steps = 0
        self.moved = False

    def teardown(self) -> None:
        names = self.redis.read([("KEYS", "*" + self.redis.cluster + "*")])[0]
        self.redis.read([("DEL", *names)])
        self.redis.close()

    def call(self, op: str, *args: Any) -> Any:
        """The same call to both; they must say the same."""
        self.clock.parts()
        before = states(self.memory)
        answer = self.memory.call(op, *args)
        assert fields(self.redis.call(op, *args)) == fields(answer), op
        self.seen.note(op, answer, before, states(self.memory))
        return answer

    def of(self, run: str, policy: dict[str, Any], digest: str = "d1", **more: Any) -> Any:
        return self.nodes.of(run, fire_at=self.start + FIRE_AT.get(run, 0.0), digest=digest, **policy, **more)

    def held(self, data: st.DataObject) -> tuple[str, int, int, str]:
        rows = {row.run: row for row in self.memory.runs()}
        live = [key for key in self.grants if key[0] in rows and rows[key[0]].state in ACTIVE]
        unknown = [key for key in live if rows[key[0]].state == UNKNOWN]
        key = data.draw(st.sampled_from([*sorted(self.grants), *sorted(live) * 4, *sorted(unknown) * 8]))
        token, nonce = self.grants[key]
        wrong = data.draw(st.sampled_from((*[(0, nonce)] * 8, (1, nonce), (-1, nonce), (0, "z"))))
        return (*key, token + wrong[0], wrong[1])

    @rule(seconds=st.sampled_from((0.000001, 0.1, 0.5, 4.0, 20.3, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule(seconds=st.sampled_from((-30.0, 30.0)))
    def the_clock_is_set(self, seconds: float) -> None:
        self.clock.step(seconds)

    @rule()
    def the_ledger_may_have_gone_back(self) -> None:
        self.redis.read([("HSET", self.redis.key("meta"), "epoch", "of another server")])
        self.a_quarantine_begins()

    def a_quarantine_begins(self) -> None:
        self.clock.parts()
        self.redis.call("open", ())
        self.clock.since, self.clock.open_at = self.clock.wall, self.clock.wall + QUARANTINE_S

    @precondition(lambda self: self.clock.open_at > self.clock.wall)
    @rule()
    def a_person_accepts_the_epoch(self) -> None:
        self.redis.accept_epoch()
        self.clock.open_at = 0.0

    @rule(
        run=runs, policy=policies, args=st.sampled_from(("{}", '{"k":"v"}')), age_s=st.sampled_from((0.0, 0.3)),
        digest=st.sampled_from(("d1", "d1", "d2")),
    )  # fmt: skip
    def register(self, run: str, policy: dict[str, Any], args: str, age_s: float, digest: str) -> None:
        self.call("register", self.of(run, policy, digest, args=args, age_s=age_s, by="ann"))

    @rule(run=runs, policy=ordinary, go=st.booleans(), silent=st.booleans())
    def a_run_is_let_in(self, run: str, policy: dict[str, Any], go: bool, silent: bool) -> None:
        """The ordinary case, so that what follows a grant is tried often; also after its holder's silence."""
        if silent:
            self.clock.step(LEASE_S * 1.03)
        row = self.memory.run(run)
        watched = (row.token, row.beat, LEASE_S * 1.03) if row and silent else None
        answer = self.call(
            "claim", Claim(self.of(run, policy), row.attempt if row else 0, "x", NODES[0], LEASE_S, watched)
        )
        if answer.word == "granted":
            self.grants[run, answer.attempt] = (answer.token, "x")
            if go:
                self.call("gate", run, answer.attempt, answer.token, "x")

    @rule(run=runs, policy=ordinary, go=st.booleans())
    def a_holder_falls_silent(self, run: str, policy: dict[str, Any], go: bool) -> None:
        self.a_run_is_let_in(run, policy, go, silent=False)
        self.a_run_is_let_in(run, policy, go=False, silent=True)

    @rule(policy=ordinary, overlap=st.sampled_from(("forbid", "queue", "replace")))
    def a_run_waits_while_another_is_let_in(self, policy: dict[str, Any], overlap: str) -> None:
        self.call("register", self.of(RUNS[1], policy))
        self.a_run_is_let_in(RUNS[0], {**policy, "overlap": "allow"}, go=True, silent=False)
        self.a_run_is_let_in(RUNS[1], {**policy, "overlap": overlap}, go=False, silent=False)

    @rule(
        run=runs, policy=policies, nonce=nonces, node=st.sampled_from(NODES), watch=watches,
        digest=st.sampled_from(("d1", "d1", "d2")), other=st.sampled_from((0, 0, 0, 0, 1, -1)),
    )  # fmt: skip
    def claim(
        self, run: str, policy: dict[str, Any], nonce: str, node: str, watch: Any, digest: str, other: int
    ) -> None:
        row = self.memory.run(run)
        attempt = max(0, (row.attempt if row else 0) + other)
        watched = (row.token + watch[0], row.beat + watch[1], LEASE_S * watch[2]) if row and watch else None
        of = self.of(run, policy, digest)
        settled = of.fire_at - 0.5 if of.scheduled else 0.0
        answer = self.call("claim", Claim(of, attempt, nonce, node, LEASE_S, watched, settled))
        if answer.word == "granted":
            self.grants[run, attempt] = (answer.token, nonce)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), op=st.sampled_from(("gate", "gate", "commit")))
    def gate_or_commit(self, data: st.DataObject, op: str) -> None:
        self.call(op, *self.held(data))

    @precondition(lambda self: self.grants)
    @rule(
        data=st.data(), application=st.sampled_from(("", "application_1")), lease_s=st.sampled_from((60.0, 0.7)),
        launched=st.booleans(),
    )  # fmt: skip
    def renew(self, data: st.DataObject, application: str, lease_s: float, launched: bool) -> None:
        self.call("renew", *self.held(data), lease_s, application, launched)

    @precondition(lambda self: self.grants)
    @rule(data=st.data(), state=ends | st.just("retry"), final=st.booleans(), code=st.sampled_from((None, 0, -9)))
    def report(self, data: st.DataObject, state: str, final: bool, code: int | None) -> None:
        self.call("report", *self.held(data), state, code, "why\n✓", "", final)

    @rule(
        run=runs, policy=policies, attempt=attempts, nonce=nonces,
        state=ends | st.sampled_from(("received", "started")), newer=st.sampled_from((-1, 0, 0, 1, 10**9)),
        code=st.sampled_from((None, 3)), final=st.booleans(),
    )  # fmt: skip
    def restore(
        self, run: str, policy: dict[str, Any], attempt: int, nonce: str, state: str, newer: int, code: int | None,
        final: bool,
    ) -> None:  # fmt: skip
        row = self.memory.run(run)
        token = (row.token if row and row.token else int(self.start * 1e6)) + newer
        of = self.of(run, policy)
        self.call(
            "restore", of, attempt, token, nonce, NODES[0], LEASE_S, state, code, "said a witness", "app_7", final
        )
        self.grants.setdefault((run, attempt), (token, nonce))

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

    @rule(keep_s=st.sampled_from((0.0, 60.0, -1.0)), limit=st.integers(0, 3))
    def prune(self, keep_s: float, limit: int) -> None:
        self.clock.parts()
        known = states(self.memory)
        assert self.redis.prune(keep_s, limit) == self.memory.prune(keep_s, limit)
        self.seen.move(known, states(self.memory))

    @precondition(lambda self: not self.moved and self.memory.runs())
    @rule()
    def the_ledger_is_exported_and_imported(self) -> None:
        """What was written meanwhile is gone, and a quarantine follows."""
        self.moved = True
        rows = list(self.redis.export())
        self.redis.call("register", self.of("b#gone", {}))
        assert self.redis.import_(rows, replace=True) == len(rows)
        self.a_quarantine_begins()

    @invariant()
    def both_hold_the_same(self) -> None:
        rows = fields(self.memory.runs())
        assert fields(self.redis.runs()) == rows
        names = [row["run"] for row in rows]
        found = self.redis.read([("HGETALL", self.redis.key(f"attempts:{name}")) for name in names]) if names else []
        for name, flat in zip(names, found, strict=True):
            assert fields(attempts_of(flat)) == fields(self.memory.attempts(name))
        self.call("open", ("a", "b"))
        # The lists by state, one of them at each step: a step costs a few round trips, and there are thousands.
        self.steps += 1
        state, job = STATES[self.steps % len(STATES)], ("", "a")[self.steps % 2]
        (listed,) = self.redis.read([("ZREVRANGE", self.redis.key(f"list:{state}:{job}"), 0, -1)])
        assert [name.decode() for name in listed] == [row.run for row in self.memory.runs(job=job, state=state)]


@pytest.fixture
def machine(redis_url: str) -> type[DifferentialMachine]:
    DifferentialMachine.url = redis_url
    return DifferentialMachine


def test_the_scripts_obey_the_rules(machine: type[DifferentialMachine]) -> None:
    search(machine, examples(30, steps=40), ANSWERS, RECOVERING)
