"""The Redis ledger with a full memory: scripts that create rows are refused; scripts that
a running job needs are not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from support import servers
from support.ledger_calls import LEASE_S, FakeClock, Nodes

from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.redis_server import Server
from coordd.adapters.ledger.resp import Problem
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Activate, Cancel, Claim, ListOpen, Register, Resolve, Revoke, Suspend
from coordd.core.ledger.runner_requests import Grant, Restore
from coordd.core.ledger.words import AttemptNumber
from coordd.errors import FullError, UnavailableError

RUN = "sales#1"
QUARANTINE_S = 40.0


class Full:
    """A server with one ledger that the test can fill."""

    def __init__(self, server: servers.Redis) -> None:
        self.server = server
        self.ledgers: list[RedisLedger] = []
        self.nodes = self.connect()

    def connect(self, **options: Any) -> Nodes:
        options = {"quarantine_s": QUARANTINE_S, "short_quarantine_s": 0.0, "fresh": True, **options}
        self.ledgers.append(RedisLedger(self.server.url, 5.0, **options))
        clock = FakeClock()
        clock.wall = time.time()
        return Nodes(self.ledgers[-1], clock)

    @property
    def ledger(self) -> RedisLedger:
        return self.ledgers[0]

    def started(self, run: str = RUN, **policy: Any) -> Grant:
        return self.nodes.started(self.nodes.of(run, overlap="allow", **policy))

    def fill(self) -> None:
        self.server.cli("CONFIG", "SET", "maxmemory", "1")
        assert "OOM" in self.server.cli("SET", "any", "thing")

    def room(self) -> None:
        self.server.cli("CONFIG", "SET", "maxmemory", "0")

    def everything(self) -> list[str]:
        """All keys with their values, byte by byte."""
        dump = "local all = {} for _, key in ipairs(redis.call('KEYS', '*')) do "
        dump += "all[#all + 1] = key .. ' ' .. redis.sha1hex(redis.call('DUMP', key)) end table.sort(all) return all"
        return self.server.cli("EVAL", dump, "0").splitlines()


@pytest.fixture
def full() -> Iterator[Full]:
    with servers.redis() as server:
        made = Full(server)
        yield made
        for ledger in made.ledgers:
            ledger.close()


def restore(nodes: Nodes, grant: Grant) -> Answer:
    of = nodes.of(grant.run)
    return nodes.ask(Restore(of=of, grant=grant, node="edge-1.10", lease_s=LEASE_S, state="started", exit_code=0))


def test_a_running_job_is_renewed_cancelled_and_its_end_recorded(full: Full) -> None:
    grant, other = full.started(), full.started("sales#2")
    granted = full.nodes.granted(full.nodes.of("sales#3", overlap="allow"))
    full.fill()
    for nodes in (full.nodes, full.connect(fresh=None)):  # the second connection sends its scripts only now
        assert nodes.renew(grant).word == "ok"
    assert full.nodes.commit(grant).word == "ok"
    assert full.nodes.report(grant).word == "ok"
    assert full.nodes.state(RUN) == "success"
    assert full.nodes.ask(Cancel(run="sales#2", by="ann")).word == "ok"
    assert full.nodes.renew(other).word == "cancel"
    assert full.nodes.report(other, "revoked").word == "ok"
    assert full.nodes.state("sales#2") == "revoked"
    assert full.nodes.gate(granted).word == "ok"
    assert full.nodes.report(granted, "lost").word == "ok"
    assert [(row.run, row.state, row.attempt) for row in full.nodes.opened("sales").runs] == [("sales#3", "retry", 1)]
    assert {state: len(full.ledger.runs(state=state)) for state in ("success", "revoked", "retry", "started", "")} == {
        "success": 1,
        "revoked": 1,
        "retry": 1,
        "started": 0,
        "": 3,
    }


def test_people_may_still_revoke_suspend_and_resolve_what_is_there(full: Full) -> None:
    full.nodes.ask(Register(of=full.nodes.of("sales#2")))
    grant = full.started(on_lost="hold")
    full.nodes.report(grant, "lost")
    assert full.nodes.state(RUN) == "unknown"
    full.fill()
    assert full.nodes.ask(Revoke(run="sales#2", by="ann")).word == "ok"
    assert full.nodes.ask(Suspend(job="sales", suspended=True, by="ann")).token == 1
    assert full.nodes.ask(Resolve(run=RUN, outcome="success", by="ann")).word == "ok"
    assert full.nodes.state(RUN) == "success"


def test_what_makes_rows_is_refused_and_nothing_is_changed_by_it(full: Full) -> None:
    full.nodes.report(full.started(), "lost")
    full.nodes.ask(Register(of=full.nodes.of("sales#2", overlap="replace")))
    full.started("sales#3")
    full.started("bad#1")
    full.server.cli("HSET", full.ledger.key("job:bad"), "version", "x")
    before = full.everything()
    full.fill()
    of = full.nodes.of("sales#4", overlap="allow")
    for request in (
        Register(of=of),
        Claim(of=of, attempt=AttemptNumber(0), nonce="n", node="edge-1.10", lease_s=LEASE_S),
        Claim(
            of=full.nodes.of(RUN, overlap="allow"),
            attempt=AttemptNumber(1),
            nonce="n",
            node="edge-1.10",
            lease_s=LEASE_S,
        ),
        Claim(
            of=full.nodes.of("sales#2", overlap="replace"),
            attempt=AttemptNumber(0),
            nonce="n",
            node="edge-1.10",
            lease_s=LEASE_S,
        ),
        Revoke(run="sales#5", by="ann"),
        Suspend(job="another", suspended=True, by="ann"),
        Suspend(job="bad", suspended=True, by="ann"),  # a sound row takes its place
        Activate(job="sales", digest="d2", schedule="s", how="changed", by="ann"),
        ListOpen(jobs=("another",)),
    ):
        with pytest.raises(
            UnavailableError, match=r"memory is full.*runs that are under way go on, end and can be canc"
        ):
            full.nodes.ledger.ask(request)
    with pytest.raises(UnavailableError, match="memory is full"):
        full.ledger.ask_all([Register(of=of), Register(of=full.nodes.of("sales#6"))])
    assert full.everything() == before
    full.room()
    assert full.nodes.claim(of).word == "granted"


def test_what_is_refused_meanwhile_does_not_spoil_what_goes_on(full: Full) -> None:
    """Both requests are in one batch of one node."""
    grant = full.started()
    full.fill()
    with pytest.raises(UnavailableError, match="memory is full"):
        full.ledger.ask_all([Register(of=full.nodes.of("sales#2")), Cancel(run=RUN, by="ann")])
    assert full.nodes.renew(grant).word in ("ok", "cancel")


def test_forgetting_old_runs_makes_room(full: Full) -> None:
    full.nodes.ask(Suspend(job="sales", suspended=False, by="ann"))  # the job gets a row, whose horizon is now
    full.nodes.clock.wall = time.time()
    due = full.nodes.clock.wall
    full.nodes.report(full.started("sales@20260101T000000Z", due=due, fire_at=due))
    full.nodes.report(full.started())
    full.fill()
    assert full.ledger.prune(0.0) == 2  # the first one moves the horizon, so its first write needs memory
    assert full.ledger.runs() == []
    assert full.nodes.opened("sales").jobs["sales"].horizon == pytest.approx(due)


def test_a_full_server_says_that_it_writes_no_new_row_and_changes_nothing(full: Full) -> None:
    full.nodes.report(full.started())
    before = full.everything()
    assert full.ledger.prune(0.0, 0) == 0
    full.fill()
    with pytest.raises(FullError, match="memory is full"):
        full.ledger.prune(0.0, 0)
    full.room()
    assert full.ledger.prune(0.0, 0) == 0
    assert full.everything() == before


def test_a_full_server_that_was_restarted_goes_on_with_running_jobs(full: Full) -> None:
    grant = full.started()
    full.server.cli("HSET", full.ledger.key("meta"), "epoch", "of another server")
    full.fill()
    with pytest.raises(UnavailableError, match="memory is full"):
        full.nodes.claim(full.nodes.of("sales#2"))
    assert full.nodes.renew(grant).word == "ok"
    assert 30.0 < full.nodes.report(grant).left_s <= QUARANTINE_S
    full.ledger.accept_epoch()
    assert full.ledger.status()["recovering_s"] == 0.0


def test_a_runner_puts_its_run_back_into_a_full_ledger_that_has_forgotten_it(full: Full) -> None:
    grant = full.started()
    full.server.cli("FLUSHALL")
    full.fill()
    assert full.nodes.renew(grant).word == "recovering"
    assert restore(full.nodes, grant).word == "ok"
    assert full.nodes.renew(grant).word == "ok"


def test_a_script_of_an_older_server_is_refused_in_the_same_words() -> None:
    text = (
        "ERR Error running script (call to f_1): @user_script:26: @user_script: 26: -OOM command not allowed when used"
    )
    said = str(Server("redis://h", 1.0)._explain(Problem(text)))
    assert "memory is full" in said


def test_an_import_into_a_full_server_takes_nothing_away(full: Full) -> None:
    full.started()
    rows = list(full.ledger.export())
    before = full.everything()
    full.fill()
    for _ in range(2):
        with pytest.raises(UnavailableError, match=r"OOM|memory is full|EXECABORT"):
            full.ledger.import_(rows, replace=True)
        assert full.everything() == before
