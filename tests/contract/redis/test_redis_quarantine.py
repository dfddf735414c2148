"""The quarantine of a ledger in Redis under a stepped clock: how long it is, and who makes it longer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.ledger_calls import LEASE_S, Nodes, grant_of
from support.stepped_redis import OneClock, SteppedLedger

from coordd.adapters.ledger.redis_ledger import Known
from coordd.core.ledger.runner_requests import Renew, Restore

WHOLE_S, SHORT_S = 70.0, 10.0

Connect = Callable[..., Nodes]


@pytest.fixture
def connect(redis_url: str) -> Iterator[Connect]:
    """Another caller of the same ledger, under the same clock."""
    clock, name, made = OneClock(), f"t-{uuid.uuid4().hex}", []

    def make(fresh: bool | None = True, **options: Any) -> Nodes:
        options = {"cluster": name, "quarantine_s": WHOLE_S, "short_quarantine_s": SHORT_S, **options}
        made.append(SteppedLedger(redis_url, clock, fresh=fresh, **options))
        return Nodes(made[-1], clock)

    yield make
    for ledger in made:
        ledger.close()


def meta(nodes: Nodes, command: str, *values: str) -> Any:
    """A command on what the ledger keeps about itself."""
    assert isinstance(nodes.ledger, SteppedLedger)
    return nodes.ledger.read([(command, nodes.ledger.key("meta"), *values)])[0]


def left(nodes: Nodes) -> float:
    return nodes.opened().recovering_s


def restore(nodes: Nodes, run: str, token: int) -> float:
    grant = grant_of(run, 0, token, "n1")
    of = nodes.of(run, overlap="allow")
    nodes.ask(Restore(of=of, grant=grant, node="edge-1.10", lease_s=LEASE_S, state="started", exit_code=None))
    return left(nodes)


def renewed(nodes: Nodes, token: int) -> float:
    return nodes.ask(Renew(grant=grant_of("sales#9", 0, token, "n1"), lease_s=LEASE_S, launched=False)).left_s


@pytest.mark.parametrize(
    ("fresh", "known", "wanted"),
    [
        (True, None, SHORT_S),
        (None, None, SHORT_S),
        (False, None, WHOLE_S),
        (True, "1738137600000000", SHORT_S),
        (True, "1738137500000000", WHOLE_S),
    ],
    ids=["saw nothing", "cannot tell", "saw one", "saw this one", "saw another"],
)
def test_a_short_quarantine_is_short_until_somebody_has_seen_another_life(
    connect: Connect, fresh: bool | None, known: str | None, wanted: float
) -> None:
    first = connect()
    assert left(first) == SHORT_S

    other = connect(fresh, **({"known": Known(known)} if known else {}))

    assert left(other) == wanted
    assert left(first) == wanted
    assert left(connect()) == wanted


def test_an_epoch_alone_was_a_ledger(connect: Connect) -> None:
    nodes = connect()
    meta(nodes, "HSET", "epoch", "imported")

    assert left(nodes) == WHOLE_S


def test_a_longer_lease_makes_only_a_whole_quarantine_longer(connect: Connect) -> None:
    first = connect()
    left(first)
    assert left(connect(None, quarantine_s=100.0)) == SHORT_S

    left(connect(False))

    assert left(connect(None, quarantine_s=100.0)) == 100.0


def test_the_end_of_a_quarantine_is_for_good(connect: Connect) -> None:
    nodes = connect()
    left(nodes)
    nodes.clock.step(SHORT_S)
    assert left(nodes) == 0.0
    assert left(connect(True)) == 0.0

    nodes.clock.step(-5.0)

    assert left(nodes) == 0.0


def test_a_clock_that_is_set_back_makes_none_longer_than_it_may_be(connect: Connect) -> None:
    nodes = connect(False)
    assert left(nodes) == WHOLE_S
    nodes.clock.step(-100.0)
    assert left(nodes) == WHOLE_S
    nodes.clock.step(20.0)
    assert left(nodes) == WHOLE_S - 20.0


def test_a_clock_that_is_set_back_a_little_leaves_a_short_one_short(connect: Connect) -> None:
    nodes = connect()
    left(nodes)
    nodes.clock.step(-5.0)

    assert left(nodes) == SHORT_S + 5.0


def test_what_a_witness_puts_back_shows_that_there_was_a_ledger(connect: Connect) -> None:
    nodes = connect()
    left(nodes)
    token = int(nodes.clock.wall * 1e6)
    assert restore(nodes, "sales#1", token) == WHOLE_S


def test_a_newer_grant_than_that_of_a_row_shows_it_too_and_the_same_one_does_not(connect: Connect) -> None:
    nodes = connect()
    left(nodes)
    meta(nodes, "HSET", "open_at", "0")
    grant = nodes.granted(nodes.of("sales#1", overlap="allow"))
    meta(nodes, "HSET", "open_at", str(nodes.clock.wall + SHORT_S))

    assert restore(nodes, "sales#1", grant.token) == SHORT_S
    assert restore(nodes, "sales#1", grant.token + 1) == WHOLE_S


@pytest.mark.parametrize(("ahead_s", "wanted"), [(-100.0, WHOLE_S - 2.0), (1.0, SHORT_S - 2.0), (100.0, WHOLE_S - 2.0)])
def test_a_grant_of_another_life_shows_it_and_one_of_this_life_does_not(
    connect: Connect, ahead_s: float, wanted: float
) -> None:
    nodes = connect()
    left(nodes)
    token = int((nodes.clock.wall + ahead_s) * 1e6)
    nodes.clock.step(2.0)

    assert renewed(nodes, token) == wanted


def test_an_identity_that_is_given_in_the_last_half_second_of_a_quarantine_is_provisional(connect: Connect) -> None:
    nodes = connect(short_quarantine_s=0.5, known=Known(proposal="ours"))
    left(nodes)

    assert meta(nodes, "HGET", "provisional") == b"1"
