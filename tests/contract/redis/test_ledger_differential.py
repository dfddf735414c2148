"""Any sequence of calls: the scripts in Redis answer like the rules in core/ledger, and leave the same rows."""

from __future__ import annotations

from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import invariant, precondition, rule
from support.ledger_calls import LEASE_S, grant_of
from support.search import examples
from support.stepped_redis import QUARANTINE_S, RecoveringClock, SteppedLedger

from contract.ledger.ledger_coverage import ANSWERS, RECOVERING, fields, search
from contract.ledger.ledger_machine import NODES, LedgerMachine, attempts, ends, nonces, policies, runs
from coordd.adapters.ledger.redis_rows import attempts_of, value_of
from coordd.core.ledger.requests import ListOpen, Register
from coordd.core.ledger.rows import JOB_COLUMNS, JobRow
from coordd.core.ledger.runner_requests import Restore
from coordd.core.ledger.words import STATES


class DifferentialMachine(LedgerMachine):
    """Compares the rules in memory with the scripts, under one clock."""

    url: ClassVar[str]
    clock: RecoveringClock
    ledger: SteppedLedger

    def __init__(self) -> None:
        super().__init__(RecoveringClock())
        self.ledger = SteppedLedger(self.url, self.clock, quarantine_s=QUARANTINE_S)
        self.steps = 0

    def teardown(self) -> None:
        names = self.ledger.read([("KEYS", "*" + self.ledger.cluster + "*")])[0]
        self.ledger.read([("DEL", *names)])
        self.ledger.close()

    def before_call(self) -> None:
        self.clock.parts()

    def an_older_version_was_there(self, row: JobRow) -> None:
        fields = [part for pair in zip(JOB_COLUMNS, row.values(), strict=True) for part in pair]
        self.ledger.read(
            [
                ("HSET", self.ledger.key("job:a"), *[str(part) for part in fields]),
                ("SADD", self.ledger.key("jobs"), "a"),
            ]
        )

    @rule(seconds=st.sampled_from((-30.0, 30.0)))
    def the_clock_is_set(self, seconds: float) -> None:
        self.clock.step(seconds)
        self.begin_again()

    @rule()
    def the_ledger_may_have_gone_back(self) -> None:
        self.ledger.read([("HSET", self.ledger.key("meta"), "epoch", "of another server")])
        self.a_quarantine_begins()

    def a_quarantine_begins(self) -> None:
        self.clock.parts()
        self.ledger.ask(ListOpen())
        self.clock.since, self.clock.open_at = self.clock.wall, self.clock.wall + QUARANTINE_S

    @precondition(lambda self: self.clock.open_at > self.clock.wall)
    @rule()
    def a_person_accepts_the_epoch(self) -> None:
        self.ledger.accept_epoch()
        self.clock.open_at = 0.0

    @rule(
        run=runs,
        policy=policies,
        attempt=attempts,
        nonce=nonces,
        state=ends | st.sampled_from(("received", "started")),
        newer=st.sampled_from((-1, 0, 0, 1, 10**9)),
        code=st.sampled_from((None, 3)),
        final=st.booleans(),
    )
    def restore(
        self,
        run: str,
        policy: dict[str, Any],
        attempt: int,
        nonce: str,
        state: str,
        newer: int,
        code: int | None,
        final: bool,
    ) -> None:
        row = self.memory.run(run)
        token = (row.token if row and row.token else int(self.start * 1e6)) + newer
        of = self.of(run, policy)
        self.ask(
            Restore(
                of=of,
                grant=grant_of(of.run, attempt, token, nonce),
                node=NODES[0],
                lease_s=LEASE_S,
                state=state,
                exit_code=code,
                reason="said a witness",
                application_id="app_7",
                final=final,
            )
        )
        self.grants.setdefault((run, attempt), (token, nonce))

    @precondition(lambda self: not self.moved and self.memory.runs() and self.identity_from() == 0.0)
    @rule()
    def the_ledger_is_exported_and_imported(self) -> None:
        """The writes after the export are lost, and a quarantine follows."""
        self.moved = True
        rows = list(self.ledger.export())
        self.ledger.ask(Register(of=self.of("b#gone", {})))
        assert self.ledger.import_(rows, replace=True) == len(rows)
        self.a_quarantine_begins()

    @invariant()
    def both_hold_the_same(self) -> None:
        rows = fields(self.memory.runs())
        assert fields(self.ledger.runs()) == rows
        names = [row["run"] for row in rows]
        found = self.ledger.read([("HGETALL", self.ledger.key(f"attempts:{name}")) for name in names]) if names else []
        for name, flat in zip(names, found, strict=True):
            assert fields(attempts_of(flat)) == fields(self.memory.attempts(name))
        self.sweep()
        for job, row in self.memory._store.jobs.items():  # in the form that an older version reads
            (read,) = self.ledger.read([("HMGET", self.ledger.key(f"job:{job}"), *JOB_COLUMNS)])
            values = zip(JOB_COLUMNS, read, strict=True)
            assert tuple([value_of(column, value) for column, value in values]) == row.values()
        # One of the lists by state at each step: all lists would cost too many round trips.
        self.steps += 1
        state, job = STATES[self.steps % len(STATES)], ("", "a")[self.steps % 2]
        (listed,) = self.ledger.read([("ZREVRANGE", self.ledger.key(f"list:{state}:{job}"), 0, -1)])
        assert [name.decode() for name in listed] == [row.run for row in self.memory.runs(job=job, state=state)]


@pytest.fixture
def machine(redis_url: str) -> type[DifferentialMachine]:
    DifferentialMachine.url = redis_url
    return DifferentialMachine


def test_the_scripts_obey_the_rules(machine: type[DifferentialMachine]) -> None:
    search(machine, examples(30, steps=40), ANSWERS, RECOVERING)
