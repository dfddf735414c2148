"""Both versions work on the ledger's rows: an old daemon is kept out, and its runners go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract.conftest import make_ledger as make_ledger  # noqa: PLC0414 - a fixture
from support.ledger_calls import EPOCH, LEASE_S, FakeClock
from support.stepped_redis import OneClock, SteppedLedger, rewritten

from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Claim, ListOpen, NewRules
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.standing import BARRIER_AT, BARRIER_BY, IDENTITY_AHEAD_S
from coordd.core.ledger.words import NEVER, AttemptNumber, Policy
from versions import unpacked

JITTER_S = 420.0
HOUR_S = 3600.0


class Both:
    """One ledger that the new version and the old version use."""

    def __init__(self, kind: str, tmp_path: Path, redis_url: Callable[[], str]) -> None:
        self.old_rows = unpacked.load("coordd.core.rows")
        if kind == "sqlite":
            self.clock: FakeClock = FakeClock()
            old = unpacked.load("coordd.adapters.sqlite_ledger")
            times = self.old_rows.LedgerTime
            clock = self.clock
            self.old = old.SqliteLedger(
                f"sqlite:///{tmp_path}/ledger.db", clock=lambda: times(clock.wall, clock.lease, clock.boot)
            )
            self.new: Any = SqliteLedger(f"sqlite:///{tmp_path}/ledger.db", clock=self.clock)
        else:
            one = OneClock()
            self.clock = one
            self.new = SteppedLedger(redis_url(), one)
            scripts = unpacked.load("coordd.adapters.redis_scripts").Scripts(rewritten)
            old = unpacked.load("coordd.adapters.redis_ledger")
            self.old = old.RedisLedger(redis_url(), 5.0, scripts=scripts, cluster=self.new.cluster)

    def close(self) -> None:
        self.new.close()
        self.old.close()

    def of_old(self, run: str, due: float, *, scheduled: bool = True) -> Any:
        rows = self.old_rows
        return rows.Registration(run, "sales", "d1", rows.Policy(overlap="allow"), due, scheduled=scheduled)

    def old_claims(self, run: str, due: float, *, attempt: int = 0, nonce: str = "o1", scheduled: bool = True) -> Any:
        self._tick()
        claim = self.old_rows.Claim(self.of_old(run, due, scheduled=scheduled), attempt, nonce, "old.1", LEASE_S)
        return self.old.call("claim", claim)

    def old_asks(self, op: str, *args: Any) -> Any:
        self._tick()
        return self.old.call(op, *args)

    def claims(self, run: str, fire_at: float, due: float, identity_from: float, *, nonce: str = "n1") -> Any:
        of = Registration(
            run, "sales", "d1", Policy(overlap="allow"), fire_at, scheduled=True, due=due, identity_from=identity_from
        )
        return self.new.ask(Claim(of=of, attempt=AttemptNumber(0), nonce=nonce, node="new.1", lease_s=LEASE_S))

    def sweeps(self) -> OpenAnswer:
        answer = self.new.ask(ListOpen(jobs=("sales",)))
        assert isinstance(answer, OpenAnswer)
        return answer

    def _tick(self) -> None:
        """Set the clock that the old scripts read to the same time."""
        if isinstance(self.clock, OneClock):
            seconds, micros = self.clock.parts()
            self.new.read([("HSET", self.new.key("clock"), "s", seconds, "us", micros)])


@pytest.fixture(params=("sqlite", "redis"))
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Both]:
    made = Both(request.param, tmp_path, lambda: request.getfixturevalue("redis_url"))
    yield made
    made.close()


def begun_by_the_old(both: Both) -> None:
    """Begin a cluster of the old version, and let it run for a while."""
    both.old_asks("open", ("sales",))
    both.clock.step(60.0)


def test_a_ledger_of_the_old_version_keeps_its_rules_until_all_speak_the_new_ones(both: Both) -> None:
    begun_by_the_old(both)

    assert both.sweeps().identity_from == NEVER
    due = both.clock.wall + 1.0
    assert both.claims("sales@old", due, due, NEVER).word == "granted"
    assert both.claims("sales@new", due - JITTER_S, due, 0.0).word == "outdated"


def test_from_then_on_an_old_daemon_opens_nothing_and_claims_nothing(both: Both) -> None:
    begun_by_the_old(both)
    horizon = both.sweeps().jobs["sales"].horizon

    assert both.new.ask(NewRules(known=-1.0)).word == "ok"

    begin = both.sweeps().identity_from
    assert begin == pytest.approx(both.clock.wall + IDENTITY_AHEAD_S)
    assert both.sweeps().jobs["sales"].horizon == horizon  # the true horizon is stored elsewhere
    seen = both.old_asks("open", ("sales",))
    assert seen.jobs["sales"][0] == BARRIER_AT  # the old planner begins there
    assert seen.jobs["sales"][2] is True  # suspended
    due = both.clock.wall + 1.0
    assert both.old_claims("sales@due", due).word == "finished"
    assert both.old_asks("register", both.of_old("sales@due", due)).word == "exists"
    assert both.claims("sales@due", due, due, begin).word == "granted"


def test_an_old_daemon_is_told_who_keeps_it_out(both: Both) -> None:
    begun_by_the_old(both)
    assert both.old_asks("register", both.of_old("sales#1", both.clock.wall, scheduled=False)).word == "ok"
    both.new.ask(NewRules(known=-1.0))

    answer = both.old_claims("sales#1", both.clock.wall, scheduled=False)

    assert (answer.word, answer.by) == ("limited", "suspended")
    with unpacked.imports():
        row = next(row for row in both.old.export() if row["kind"] == "job")
    assert row["changed_by"] == BARRIER_BY == "coordd rules 2: upgrade this node"


def test_what_an_old_daemon_resumes_gets_its_barrier_again_from_the_next_sweep(both: Both) -> None:
    begun_by_the_old(both)
    both.new.ask(NewRules(known=-1.0))
    both.old_asks("suspend", "sales", False, "ann")
    both.old_asks("open", ("made-since",))

    both.new.ask(ListOpen(jobs=("sales", "made-since")))

    seen = both.old_asks("open", ("sales", "made-since"))
    assert {name: (about[0], about[2]) for name, about in seen.jobs.items()} == {
        "sales": (BARRIER_AT, True),
        "made-since": (BARRIER_AT, True),
    }


def test_an_old_runner_goes_on_and_reports(both: Both) -> None:
    begun_by_the_old(both)
    due = both.clock.wall
    granted = both.old_claims("sales@a", due)
    key = ("sales@a", 0, granted.token, "o1")
    assert both.old_asks("gate", *key).word == "ok"

    both.new.ask(NewRules(known=-1.0))
    both.sweeps()

    assert both.old_asks("gate", *key).word == "ok"  # asked again
    assert both.old_asks("renew", *key, LEASE_S, "", True).word == "ok"
    assert both.old_asks("commit", *key).word == "ok"
    assert both.old_asks("report", *key, "success", 0, "", "", False).word == "ok"
    assert both.new.run("sales@a").state == "success"


def test_an_old_runner_that_waits_at_its_gate_is_let_through(both: Both) -> None:
    begun_by_the_old(both)
    due = both.clock.wall + 4.0
    granted = both.old_claims("sales@a", due)
    both.new.ask(NewRules(known=-1.0))
    both.sweeps()
    both.clock.step(4.0)
    both.sweeps()

    assert both.old_asks("gate", "sales@a", 0, granted.token, "o1").word == "ok"

    both.sweeps()
    assert both.old_asks("open", ("sales",)).jobs["sales"][2] is True  # nobody waits at the gate now: suspended


def test_tokens_rise_over_both_versions(both: Both) -> None:
    begun_by_the_old(both)
    first = both.old_claims("sales@a", both.clock.wall).token
    both.new.ask(NewRules(known=-1.0))
    begin = both.sweeps().identity_from

    second = both.claims("sales@b", both.clock.wall + 1, both.clock.wall + 1, begin).token

    assert second > first
    assert both.old_asks("open", ("sales",)).jobs["sales"][3] == second


def test_a_jittered_fire_time_runs_once_through_the_change(both: Both) -> None:
    """A run that is due up to ten seconds after the change keeps the name that an old node may have given it."""
    begun_by_the_old(both)
    due = both.clock.wall + 4.0
    assert both.old_claims(f"sales@{due}", due).word == "granted"
    both.new.ask(NewRules(known=-1.0))
    begin = both.sweeps().identity_from
    assert due <= begin

    assert both.claims(f"sales@{due}", due, due, begin).word == "held"
    assert both.claims(f"sales@{due - JITTER_S}", due - JITTER_S, due, NEVER).word == "outdated"


def test_the_old_version_reads_what_the_new_one_wrote(both: Both) -> None:
    """Ask the old version every question that people ask, about rows of both kinds."""
    assert both.sweeps().identity_from == 0.0
    assert both.claims("sales@a", EPOCH, EPOCH + 1, 0.0).word == "granted"

    assert [row.run for row in both.old.runs()] == ["sales@a"]
    assert both.old.run("sales@a").state == "received"
    with unpacked.imports():  # the old version imports the rest of its ledger only now
        assert both.old.status()["runs"] == {"received": 1}
    assert both.old.attempts("sales@a")[0].state == "received"
