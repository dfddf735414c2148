"""The early end of a quarantine: who must vouch, what a mark must be, and which lives may end theirs early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.ledger_calls import EPOCH, LEASE_S, Nodes, grant_of, watched_of
from support.memory import MemoryLedger
from support.stepped_redis import QUARANTINE_S, RecoveringClock, SteppedLedger

from contract.ledger.corners.both import restore
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.marks.rule import FORGOTTEN_S, MEMBERS
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import ListOpen, Vouch
from coordd.core.ledger.words import NEWCOMER_S

SILENCE_S = 30.0
ONE, TWO = "edge-1", "edge-2"


class Cluster(Nodes):
    """Two nodes that sweep a ledger of several machines."""

    ledger: MemoryLedger | SteppedLedger

    def sweep(self, *hosts: str) -> OpenAnswer:
        for host in hosts:
            answer = self.ledger.ask(ListOpen(host=host, silence_s=SILENCE_S))
        return answer

    def settled(self) -> Cluster:
        """Both nodes have been there for longer than newcomers are."""
        self.sweep(ONE, TWO)
        self.clock.step(NEWCOMER_S + 1)
        self.mark = self.sweep(ONE, TWO)
        return self

    def restarts(self, epoch: str = "of another server", *, looks: bool = True) -> OpenAnswer:
        """The server comes back. Returns what the life before had answered last."""
        before = self.ledger.ask(ListOpen())
        if isinstance(self.ledger, SteppedLedger):
            self.ledger.read([("HSET", self.ledger.key("meta"), "epoch", epoch)])
        clock = self.clock
        assert isinstance(clock, RecoveringClock)
        clock.parts()
        clock.since, clock.open_at = clock.wall, clock.wall + QUARANTINE_S
        assert not looks or self.ledger.ask(ListOpen()).recovering_s == QUARANTINE_S
        return before

    def vouch(self, host: str, mark: OpenAnswer, more: int = 0) -> Answer:
        return self.ask(Vouch(host=host, life=mark.epoch, grants=mark.grants + more))

    @property
    def members(self) -> set[str]:
        """The hosts that the ledger remembers."""
        if isinstance(self.ledger, SteppedLedger):
            (names,) = self.ledger.read([("HKEYS", self.ledger.key("members"))])
            return {name.decode() for name in names}
        return {line.split(" ")[0] for line in self.ledger._store.meta(MEMBERS).splitlines()}

    @property
    def recovers(self) -> bool:
        return self.ledger.ask(ListOpen()).recovering_s > 0


@pytest.fixture(params=["memory", "redis"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    clock = RecoveringClock()
    ledger: MemoryLedger | SteppedLedger = MemoryLedger(clock)
    if request.param == "redis":
        ledger = SteppedLedger(request.getfixturevalue("redis_url"), clock, quarantine_s=QUARANTINE_S)
    yield Cluster(ledger, clock)
    ledger.close()


def test_it_ends_once_each_node_that_was_there_has_vouched(cluster: Cluster) -> None:
    run = cluster.settled().started(cluster.of())
    mark = cluster.restarts()

    assert cluster.vouch(ONE, mark).word == "recovering"
    assert cluster.claim(cluster.of("sales#2")).word == "recovering"
    assert cluster.vouch(TWO, mark).word == "ok"
    assert not cluster.recovers
    assert cluster.claim(cluster.of("sales#2", overlap="allow")).word == "granted"
    assert cluster.gate(run).word == "ok"


def test_the_first_question_to_a_new_life_may_be_a_mark(cluster: Cluster) -> None:
    mark = cluster.settled().restarts(looks=False)

    assert cluster.vouch(ONE, mark).word == "recovering"
    assert cluster.vouch(TWO, mark).word == "ok"


def info(life: str, *, replicas: int = 0, second: str = "second_repl_offset:-1") -> str:
    lines = ("role:master", f"connected_slaves:{replicas}", f"master_replid:{life * 40}", second)
    return "# Replication\r\n" + "".join(f"{line}\r\n" for line in lines)


@pytest.mark.parametrize("cluster", ["redis"], indirect=True)
@pytest.mark.parametrize(
    ("before", "then", "after", "word"),
    [
        ({}, {}, {}, "recovering"),
        ({}, {}, {"second": "second_repl_offset:7"}, "stale"),
        ({}, {}, {"second": ""}, "stale"),
        ({}, {}, {"replicas": 1}, "stale"),
        ({"replicas": 1}, {}, {}, "stale"),
        ({}, {"replicas": 1}, {}, "stale"),
    ],
)
def test_a_replica_may_have_taken_over_without_the_last_writes(
    cluster: Cluster, before: dict[str, Any], then: dict[str, Any], after: dict[str, Any], word: str
) -> None:
    """The server was promoted, has a replica, or had one in the life before."""
    assert isinstance(cluster.ledger, SteppedLedger)
    cluster.ledger.tells(info("a", **before))
    cluster.ledger.ask(ListOpen())  # another life begins
    cluster.clock.step(QUARANTINE_S)
    cluster.settled()
    cluster.ledger.tells(info("a", **then))
    mark = cluster.sweep(ONE)
    cluster.ledger.tells(info("a"))
    cluster.sweep(ONE)
    cluster.ledger.tells(info("b", **after))

    assert cluster.vouch(ONE, mark).word == word


@pytest.mark.parametrize("who", [ONE, TWO, "edge-3"])
def test_a_grant_that_somebody_was_told_of_and_that_is_lost_keeps_it_whole(cluster: Cluster, who: str) -> None:
    cluster.settled().granted(cluster.of())
    mark = cluster.restarts()

    assert cluster.vouch(ONE, mark).word == "recovering"
    assert cluster.vouch(who, mark, more=1).word == "stale"
    assert cluster.vouch(TWO, mark).word == "stale"
    assert cluster.recovers


def test_the_count_is_that_of_the_beginning_and_not_the_present_one(cluster: Cluster) -> None:
    """Otherwise the grants of the new life would make up for those that were lost."""
    cluster.settled()
    mark = cluster.restarts()
    cluster.vouch(ONE, mark)
    cluster.vouch(TWO, mark)
    cluster.granted(cluster.of(), node="edge-1.10")

    assert cluster.ledger.ask(ListOpen()).grants == mark.grants + 1
    cluster.clock.step(1.0)
    mark = cluster.restarts()  # before the whole quarantine of the life before is over
    assert cluster.vouch(ONE, mark).word == "stale"


def test_no_mark_is_silence_and_a_mark_of_another_life_shows_a_loss(cluster: Cluster) -> None:
    cluster.settled()
    mark = cluster.restarts()

    assert cluster.ask(Vouch(host=ONE, life="", grants=0)).word == "recovering"
    assert cluster.vouch(TWO, mark).word == "recovering"
    assert cluster.ask(Vouch(host=ONE, life="1", grants=0)).word == "stale"


def test_who_was_silent_for_longer_is_not_awaited(cluster: Cluster) -> None:
    cluster.settled()
    cluster.clock.step(SILENCE_S / 2)
    cluster.sweep(ONE)
    cluster.clock.step(SILENCE_S / 2 + 1)
    cluster.sweep(ONE)
    mark = cluster.restarts()

    assert cluster.vouch(ONE, mark).word == "ok"


def test_a_ledger_that_went_back_far_keeps_its_quarantine(cluster: Cluster) -> None:
    cluster.settled()
    cluster.clock.step(NEWCOMER_S)
    mark = cluster.restarts()
    assert cluster.vouch(ONE, mark).word == "recovering"

    cluster.clock.step(2 * QUARANTINE_S)
    cluster.settled()
    cluster.clock.step(NEWCOMER_S + 0.1)
    mark = cluster.restarts()
    assert cluster.vouch(ONE, mark).word == "stale"


def test_a_clock_that_was_set_back_keeps_it_too(cluster: Cluster) -> None:
    cluster.settled()
    cluster.clock.step(-1.0)

    assert cluster.vouch(ONE, cluster.restarts()).word == "stale"


def test_a_new_ledger_keeps_it_in_its_first_ten_seconds(cluster: Cluster) -> None:
    cluster.sweep(ONE, TWO)
    cluster.clock.step(NEWCOMER_S - 0.1)
    cluster.sweep(ONE, TWO)

    assert cluster.vouch(ONE, cluster.restarts()).word == "stale"


def test_whoever_comes_to_a_new_ledger_claims_at_once_and_later_ones_wait(cluster: Cluster) -> None:
    cluster.sweep(ONE)
    cluster.clock.step(NEWCOMER_S / 2)
    cluster.sweep(TWO)
    assert cluster.claim(cluster.of(overlap="allow"), node="edge-2.20").word == "granted"

    cluster.clock.step(NEWCOMER_S)
    cluster.sweep(ONE, "edge-3")
    late = cluster.claim(cluster.of("sales#2", overlap="allow"), node="edge-3.30")
    assert (late.word, late.by, late.in_s) == ("limited", "newcomer", NEWCOMER_S)
    assert cluster.claim(cluster.of("sales#2", overlap="allow"), node="edge-4.40").by == "newcomer", "it never swept"
    cluster.clock.step(NEWCOMER_S - 0.5)
    late = cluster.claim(cluster.of("sales#2", overlap="allow"), node="edge-3.30")
    assert late.by == "newcomer"
    assert late.in_s == pytest.approx(0.5)
    cluster.clock.step(0.5)
    assert cluster.claim(cluster.of("sales#2", overlap="allow"), node="edge-3.30").word == "granted"


def test_a_clock_that_is_set_back_makes_the_first_ten_seconds_no_longer(cluster: Cluster) -> None:
    cluster.sweep(ONE)
    cluster.clock.step(-NEWCOMER_S / 2)
    cluster.sweep(ONE)
    cluster.clock.step(NEWCOMER_S)
    cluster.sweep(ONE, "edge-3")
    assert cluster.claim(cluster.of(), node="edge-3.30").by == "newcomer"


def test_who_was_silent_for_a_day_is_forgotten_when_another_one_comes(cluster: Cluster) -> None:
    cluster.sweep("edge-9", "edge-8", ONE)
    cluster.clock.step(SILENCE_S + FORGOTTEN_S)
    cluster.sweep(ONE)
    assert cluster.members == {"edge-9", "edge-8", ONE}, "they are remembered up to that instant"
    cluster.clock.step(0.5)
    cluster.sweep(ONE)
    assert cluster.members == {"edge-9", "edge-8", ONE}, "nobody came"
    cluster.sweep(TWO)
    assert cluster.members == {ONE, TWO}


def test_who_was_silent_is_new_again_but_not_where_all_were_for_longer(cluster: Cluster) -> None:
    cluster.settled()
    cluster.clock.step(SILENCE_S + 1)
    assert cluster.claim(cluster.of(), node="edge-1.10").by == "newcomer"
    cluster.sweep(ONE)
    assert cluster.claim(cluster.of(), node="edge-1.10").by == "newcomer"
    cluster.clock.step(NEWCOMER_S)
    assert cluster.claim(cluster.of(), node="edge-1.10").word == "granted"

    cluster.clock.step(SILENCE_S + NEWCOMER_S + 1)
    cluster.sweep(TWO)
    assert cluster.claim(cluster.of("sales#2", overlap="allow"), node="edge-2.20").word == "granted"
    assert cluster.vouch(TWO, cluster.restarts()).word == "stale", "what is new in it could be lost"


def test_a_clock_that_was_ahead_makes_nobody_wait_for_longer(cluster: Cluster) -> None:
    cluster.settled()
    cluster.clock.step(1000.0)
    cluster.sweep(ONE)
    cluster.sweep("edge-3")
    cluster.clock.step(-1000.0)
    cluster.sweep("edge-3")
    assert cluster.claim(cluster.of(), node="edge-3.30").in_s <= NEWCOMER_S
    cluster.clock.step(NEWCOMER_S)
    cluster.sweep("edge-3")
    assert cluster.claim(cluster.of(), node="edge-3.30").word == "granted"


def test_no_lease_lapses_before_the_whole_quarantine_is_over(cluster: Cluster) -> None:
    """Its last renewals may be lost."""
    run = cluster.settled().started(cluster.of())
    mark = cluster.restarts()
    cluster.vouch(ONE, mark)
    cluster.vouch(TWO, mark)
    watched = watched_of(run.token, 1, LEASE_S * 1.03)
    cluster.clock.step(QUARANTINE_S - 0.5)

    assert cluster.claim(cluster.of(), watched=watched).word == "held"
    assert cluster.report(run).left_s == pytest.approx(0.5)


def test_no_cursor_is_served_before_a_quarantine_is_over(cluster: Cluster) -> None:
    cluster.settled().restarts()
    cluster.clock.step(QUARANTINE_S - 0.5)
    cursor = cluster.ledger.ask(ListOpen()).cursor

    assert cluster.ledger.ask(ListOpen(since=cursor)).whole
    cluster.clock.step(0.5)
    assert not cluster.ledger.ask(ListOpen(since=cursor)).whole


def test_a_grant_that_is_not_known_ends_the_early_end(cluster: Cluster) -> None:
    cluster.settled()
    lost = int((cluster.clock.wall + 1.0) * 1e6)
    cluster.clock.step(2.0)
    mark = cluster.restarts()
    cluster.vouch(ONE, mark)
    cluster.vouch(TWO, mark)
    assert cluster.gate(grant_of("sales#7", 0, int((EPOCH - 9.0) * 1e6), "w")).word == "recovering"
    assert not cluster.recovers, "a grant of long ago was forgotten by retention"

    assert cluster.gate(grant_of("sales#8", 0, lost, "w")).word == "recovering"
    assert cluster.recovers
    assert restore(cluster, "sales#8", 0, lost, overlap="allow").word == "ok"


def test_a_grant_that_a_witness_puts_back_ends_the_early_end_unless_it_is_there(cluster: Cluster) -> None:
    """Both came after the last sweep."""
    cluster.settled()
    cluster.clock.step(1.0)
    known = cluster.granted(cluster.of())
    lost = int((cluster.clock.wall + 0.5) * 1e6)
    cluster.clock.step(1.0)
    mark = cluster.restarts()
    cluster.vouch(ONE, mark)
    cluster.vouch(TWO, mark)
    restore(cluster, known.run, 0, known.token, "received")
    assert not cluster.recovers

    cluster.clock.step(QUARANTINE_S - 0.5)
    assert restore(cluster, "sales#8", 0, lost).word == "ok"
    assert cluster.recovers


def test_whoever_vouches_while_there_is_no_quarantine_is_told_so(cluster: Cluster) -> None:
    cluster.settled()
    answer = cluster.vouch(ONE, cluster.mark)
    assert (answer.word, answer.left_s) == ("ok", 0.0)

    mark = cluster.restarts()
    cluster.clock.step(QUARANTINE_S - 0.5)
    answer = cluster.vouch(ONE, mark)
    assert answer.word == "recovering"
    assert answer.left_s == pytest.approx(0.5)
    cluster.clock.step(0.5)
    assert cluster.vouch(TWO, mark).word == "ok"


def test_what_was_imported_keeps_its_quarantine(cluster: Cluster) -> None:
    cluster.settled()
    if isinstance(cluster.ledger, MemoryLedger):
        return  # it imports nothing
    mark = cluster.restarts(epoch="imported")

    assert cluster.vouch(ONE, mark).word == "stale"
