"""Every ledger: holds that a person makes. A hold ends by itself at its end time, or because a person ends it."""

from __future__ import annotations

import pytest
from support.ledger_calls import EPOCH, FakeClock, Nodes, swept

from contract.ledger.corners.both import Both
from coordd.core.ledger.requests import Keep, Suspend
from coordd.core.ledger.rows import ALL, OF_CHECK, Hold

RUN = "sales#1"
HOUR_S = 3600.0


def suspend(nodes: Nodes, left_s: float = HOUR_S, note: str = "") -> str:
    asked = Suspend(job="sales", suspended=True, by="ann", uid=1001, until=nodes.clock.wall + left_s, note=note)
    return nodes.ask(asked).word


def keep(nodes: Nodes, key: str, left_s: float = HOUR_S, note: str = "") -> str:
    asked = Keep(key=key, held=True, by="ann", uid=1001, until=nodes.clock.wall + left_s, note=note)
    return nodes.ask(asked).word


def test_a_suspension_ends_by_itself_at_its_end_by_the_ledgers_clock(nodes: Nodes) -> None:
    assert suspend(nodes) == "ok"
    nodes.clock.step(HOUR_S - 1.0)
    assert nodes.claim(nodes.of()).by == "suspended"
    nodes.clock.step(1.0)
    assert nodes.claim(nodes.of()).word == "granted"
    assert not swept(nodes, "sales").jobs["sales"].suspended


def test_a_suspension_after_the_end_of_one_is_another(nodes: Nodes) -> None:
    suspend(nodes)
    nodes.clock.step(HOUR_S)
    asked = Suspend(job="sales", suspended=True, by="bob", until=nodes.clock.wall + HOUR_S)

    assert nodes.ask(asked).token == 3  # the first one, its end, and this one


def test_a_sweep_ends_it_too_and_for_good(nodes: Nodes) -> None:
    suspend(nodes)
    nodes.clock.step(HOUR_S)
    answer = swept(nodes, "sales")
    assert (answer.jobs["sales"].suspended, answer.holds) == (False, {})
    nodes.clock.step(-60.0)
    assert not swept(nodes, "sales").jobs["sales"].suspended


def test_who_when_why_and_until_when_are_kept(nodes: Nodes) -> None:
    suspend(nodes, note="a table moves\nto the new cluster")
    keep(nodes, ALL, note="the name node is away")
    keep(nodes, "node:edge-1", left_s=60.0)

    holds = swept(nodes, "sales").holds

    assert set(holds) == {"job:sales", ALL, "node:edge-1"}
    job = holds["job:sales"]
    assert (job.by, job.uid, job.at, job.until, job.note) == (
        "ann",
        1001,
        EPOCH,
        EPOCH + HOUR_S,
        "a table moves\nto the new cluster",
    )
    assert holds[ALL].note == "the name node is away"
    assert holds["node:edge-1"].until == EPOCH + 60.0


def test_a_sweep_tells_how_checks_stand_and_they_stop_nothing(nodes: Nodes) -> None:
    keep(nodes, "check:api", note='["insecure",1.0]')
    keep(nodes, "reported:room@edge-1", left_s=60.0, note="unhealthy the disk clicks")

    assert nodes.claim(nodes.of()).word == "granted"
    holds = swept(nodes, "sales").holds
    assert {key: hold.note for key, hold in holds.items()} == {
        "check:api": '["insecure",1.0]', "reported:room@edge-1": "unhealthy the disk clicks",
    }  # fmt: skip
    nodes.clock.step(60.0)
    assert set(swept(nodes, "sales").holds) == {"check:api"}


def test_what_a_check_has_suspended_is_resumed_only_while_the_check_stands_as_it_was_seen(nodes: Nodes) -> None:
    key, note = OF_CHECK + "api", '["healthy",1.0]\nand more'

    def resume(noted: str, by: str = "check api") -> str:
        return nodes.ask(Suspend(job="sales", suspended=False, by=by, given=key, noted=noted)).word

    nodes.ask(Suspend(job="sales", suspended=True, by="check api", note="it is bad"))
    nodes.ask(Keep(key=key, held=True, by="a", until=nodes.clock.wall + 10.0, note=note))
    assert [resume('["unhealthy",2.0]'), resume(""), resume(note, "check other")] == ["finished"] * 3
    assert nodes.opened("sales").jobs["sales"].suspended
    assert resume(note) == "ok"
    assert not nodes.opened("sales").jobs["sales"].suspended
    assert resume(note) == "finished"  # nobody has suspended it

    nodes.ask(Suspend(job="sales", suspended=True, by="check api"))
    assert resume("") == "finished"
    nodes.clock.step(11.0)  # nobody looks any more
    assert [resume(note), resume("", "maria"), resume("")] == ["finished", "finished", "ok"]
    nodes.ask(Suspend(job="sales", suspended=True, by="maria"))
    assert resume("") == "finished"


def test_without_an_end_it_stays_until_somebody_ends_it(nodes: Nodes) -> None:
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    nodes.clock.step(1000 * HOUR_S)
    assert swept(nodes, "sales").jobs["sales"].suspended
    nodes.ask(Suspend(job="sales", suspended=False, by="bob"))
    assert swept(nodes, "sales").holds == {}
    assert nodes.claim(nodes.of()).word == "granted"


def test_an_end_that_is_over_is_refused_and_changes_nothing(nodes: Nodes) -> None:
    assert suspend(nodes, left_s=0.0) == "finished"
    assert keep(nodes, ALL, left_s=-1.0) == "finished"
    assert swept(nodes, "sales").holds == {}
    assert nodes.claim(nodes.of()).word == "granted"


def test_a_second_suspension_brings_its_own_end(nodes: Nodes) -> None:
    suspend(nodes, note="first")
    suspend(nodes, left_s=60.0, note="second")
    assert swept(nodes, "sales").holds["job:sales"].note == "second"
    nodes.clock.step(60.0)
    assert nodes.claim(nodes.of()).word == "granted"


def test_the_pause_of_all_jobs_ends_no_suspension_of_one(nodes: Nodes) -> None:
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    keep(nodes, ALL, left_s=60.0)
    assert nodes.claim(nodes.of("other#1")).by == "suspended"
    nodes.clock.step(60.0)
    assert nodes.claim(nodes.of("other#1")).word == "granted"
    assert nodes.claim(nodes.of()).by == "suspended"


def test_a_grant_does_not_pass_the_gate_in_the_pause_and_passes_it_afterwards(nodes: Nodes) -> None:
    grant = nodes.granted(nodes.of())
    keep(nodes, ALL, left_s=10.0)
    assert nodes.gate(grant).word == "early"
    nodes.clock.step(10.0)
    assert nodes.gate(grant).word == "ok"


def test_a_drained_node_is_granted_nothing_and_keeps_what_it_holds(nodes: Nodes) -> None:
    grant = nodes.granted(nodes.of(), node="edge-1.10")
    keep(nodes, "node:edge-1", left_s=60.0)
    other = nodes.of("sales#2", overlap="allow")
    assert nodes.gate(grant).word == "ok"
    assert nodes.renew(grant).word == "ok"
    assert nodes.claim(other, node="edge-1.11").by == "drained"  # a new daemon on the same node is drained too
    assert nodes.claim(other, node="edge-10.10").word == "granted"
    nodes.clock.step(60.0)
    assert nodes.claim(nodes.of("sales#3", overlap="allow"), node="edge-1.11").word == "granted"


def test_what_an_older_version_suspends_has_no_end(kind: str, make_ledger: object, clock: FakeClock) -> None:
    """The older version leaves the hold of an earlier suspension in the ledger; that hold
    is for another version of the row.
    """
    both = Both(make_ledger(kind), clock)  # type: ignore[operator]  # the fixture's function
    both.older_row("sales", 7, EPOCH, 0, 0, "")
    both.ask(Suspend(job="sales", suspended=True, by="ann", until=EPOCH + 60.0))
    both.older_row("sales", 7, EPOCH, 0, 2, "bob")
    both.older_row("sales", 7, EPOCH, 1, 3, "bob")
    clock.step(61.0)

    answer = swept(Nodes(both.ledger, clock), "sales")

    assert (answer.jobs["sales"].suspended, answer.holds) == (True, {})


def test_holds_move_with_an_export(kind: str, make_ledger: object, clock: FakeClock) -> None:
    first, second = (Nodes(make_ledger(kind), clock) for _ in range(2))  # type: ignore[operator]  # the fixture's function
    suspend(first, note="n")
    keep(first, "node:edge-1")
    keep(first, ALL)
    told = swept(first, "sales").holds
    rows = list(first.ledger.export())  # type: ignore[attr-defined]  # both kinds can
    keep(second, "node:edge-2")

    second.ledger.import_(rows, replace=True)  # type: ignore[attr-defined]  # both kinds can do this

    found = swept(second, "sales").holds
    assert {key: hold.text() for key, hold in found.items()} == {key: hold.text() for key, hold in told.items()}


@pytest.mark.parametrize("figures", ["x y", "1 1e15 1700000000.0 0", "1 0.0 1e15 0", "1 nan 0.0 0", "1 -1.0 0.0 0"])
def test_a_damaged_hold_still_holds(figures: str) -> None:
    """No view can tell an instant beyond the year 9999."""
    hold = Hold.read(f"{figures}\nann\nmaintenance")
    assert (hold.until, hold.by) == (0.0, "")
    assert "damaged" in hold.note


def test_a_damaged_hold_in_a_ledger_has_no_end(kind: str, make_ledger: object, clock: FakeClock) -> None:
    both = Both(make_ledger(kind), clock)  # type: ignore[operator]  # the fixture's function
    nodes = Nodes(both, clock)  # type: ignore[arg-type]  # it has the parts of a ledger that Nodes uses
    both.put_text("holds", ALL, "x y")

    assert nodes.claim(nodes.of()).by == "suspended"


@pytest.fixture(params=("sqlite", "redis"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_hold_that_was_given_as_it_was_is_made_or_ended_only_if_it_is_still_so(nodes: Nodes) -> None:
    key = OF_CHECK + "api"

    def given(noted: str, note: str = "", held: bool = True) -> str:
        asked = Keep(key=key, held=held, by="ann", until=nodes.clock.wall + HOUR_S, note=note, given=key, noted=noted)
        return nodes.ask(asked).word

    assert given("one", "two") == "finished"
    assert given("", "one\nline") == "ok"
    assert given("", "two") == "finished"
    assert given("one", "two") == "finished"
    assert swept(nodes, "sales").holds[key].note == "one\nline"
    assert given("one\nline", "two") == "ok"
    assert given("one\nline", held=False) == "finished"
    nodes.clock.step(HOUR_S)
    assert given("two", "three") == "finished", "its end has come: there is none"
    assert given("", "three") == "ok"
    assert given("three", held=False) == "ok"
    assert key not in swept(nodes, "sales").holds
