"""The gate ahead of the fire time: which answers it has, and what people are told who come after it."""

from __future__ import annotations

import math

import pytest
from support.ledger_calls import EPOCH, LEASE_S, FakeClock, Nodes, row_of

from coordd.core.ledger.requests import Cancel, Keep, Revoke, Suspend
from coordd.core.ledger.rows import ALL
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import GATE_AHEAD_S

FIRE = "sales@2025-01-29T08:00:04Z"
FIRE_AT = EPOCH + 4.0
LEFT_S = 0.125  # a float has it exactly, and so has its sum with EPOCH


def granted(nodes: Nodes, run: str = FIRE, fire_at: float = FIRE_AT) -> Grant:
    return nodes.granted(nodes.of(run, fire_at=fire_at))


def shortly_before(clock: FakeClock, left_s: float = LEFT_S) -> None:
    clock.step(FIRE_AT - left_s - clock.wall)


def begun(nodes: Nodes) -> Grant:
    """A run that is past its gate, LEFT_S before its fire time."""
    grant = granted(nodes)
    shortly_before(nodes.clock)
    assert nodes.gate(grant, 0.25).word == "ok"
    return grant


def suspend(nodes: Nodes, job: str = "sales") -> str:
    answer = nodes.ask(Suspend(job=job, suspended=True, by="ann"))
    assert answer.word == "ok"
    return answer.by


def test_who_can_wait_is_told_what_is_left_and_has_begun(nodes: Nodes) -> None:
    grant = granted(nodes)
    shortly_before(nodes.clock)

    answer = nodes.gate(grant, 0.2)

    assert (answer.word, answer.in_s, answer.left_s) == ("ok", LEFT_S, LEASE_S - 4.0 + LEFT_S)
    row = row_of(nodes, FIRE)
    assert (row["state"], row["beat"], row["started_at"]) == ("started", 1, FIRE_AT)


@pytest.mark.parametrize("ahead_s", [0.0, LEFT_S / 2, -1.0, -math.inf])
def test_who_cannot_wait_so_long_is_early_as_ever(nodes: Nodes, ahead_s: float) -> None:
    grant = granted(nodes)
    shortly_before(nodes.clock)

    answer = nodes.gate(grant, ahead_s)

    assert (answer.word, answer.in_s) == ("early", LEFT_S)
    assert nodes.state(FIRE) == "received"


@pytest.mark.parametrize("ahead_s", [GATE_AHEAD_S, 3.0, math.inf, math.nan])
def test_no_gate_opens_further_ahead_than_it_may(nodes: Nodes, ahead_s: float) -> None:
    grant = granted(nodes)
    shortly_before(nodes.clock, 0.5)
    assert nodes.gate(grant, ahead_s).word == "early"
    shortly_before(nodes.clock, 0.25)
    assert nodes.gate(grant, ahead_s).word == "ok"


def test_a_repeat_is_told_what_is_left_then(nodes: Nodes) -> None:
    grant = begun(nodes)
    nodes.clock.step(LEFT_S / 2)
    before = row_of(nodes, FIRE)

    assert (nodes.gate(grant, 0.25).word, nodes.gate(grant, 0.25).in_s) == ("ok", LEFT_S / 2)
    nodes.clock.step(LEFT_S)
    assert (nodes.gate(grant, 0.25).word, nodes.gate(grant, 0.25).in_s) == ("ok", 0.0)
    assert row_of(nodes, FIRE) == before


def test_a_clock_that_is_set_back_closes_the_gate_for_a_repeat(nodes: Nodes) -> None:
    grant = begun(nodes)
    nodes.clock.wall -= 60.0

    answer = nodes.gate(grant, 0.25)

    assert (answer.word, answer.in_s) == ("early", 60.0 + LEFT_S)


def test_a_clock_that_is_set_forward_leaves_nothing(nodes: Nodes) -> None:
    grant = begun(nodes)
    nodes.clock.wall += 10.0

    assert (nodes.gate(grant, 0.25).word, nodes.gate(grant, 0.25).in_s) == ("ok", 0.0)


def test_a_gate_that_is_open_is_too_late_to_revoke_and_a_cancel_says_that_it_has_started(nodes: Nodes) -> None:
    begun(nodes)

    revoked = nodes.ask(Revoke(run=FIRE, by="ann"))
    cancelled = nodes.ask(Cancel(run=FIRE, by="ann"))

    assert (revoked.word, revoked.state) == ("finished", "started")
    assert (cancelled.word, cancelled.state, cancelled.by) == ("ok", "started", "edge-1.10")


def test_what_was_revoked_cancelled_or_suspended_before_opens_no_gate_ahead(nodes: Nodes) -> None:
    runs = ["sales@2025-01-29T08:00:01Z", "other@2025-01-29T08:00:02Z", "third@2025-01-29T08:00:03Z"]
    grants = [granted(nodes, run) for run in runs]
    nodes.ask(Revoke(run=runs[0], by="ann"))
    nodes.ask(Cancel(run=runs[1], by="ann"))
    assert suspend(nodes, "third") == ""
    shortly_before(nodes.clock)

    assert [nodes.gate(grant, 0.25).word for grant in grants] == ["revoked", "revoked", "early"]


def test_a_suspension_names_the_runs_that_start_nevertheless(nodes: Nodes) -> None:
    other = granted(nodes, "other@2025-01-29T08:00:04Z")
    waits = nodes.granted(nodes.of("sales@2025-01-29T08:00:03Z", fire_at=FIRE_AT, overlap="allow"))
    nodes.gate(begun_beside(nodes), 0.25)
    nodes.gate(other, 0.25)

    assert suspend(nodes) == FIRE
    assert nodes.gate(waits, 0.25).word == "early"
    assert nodes.ask(Suspend(job="sales", suspended=False, by="ann")).by == ""


def begun_beside(nodes: Nodes) -> Grant:
    grant = nodes.granted(nodes.of(FIRE, fire_at=FIRE_AT, overlap="allow"))
    shortly_before(nodes.clock)
    return grant


def test_a_hold_on_all_jobs_names_them_too_and_that_on_a_node_does_not(nodes: Nodes) -> None:
    other = granted(nodes, "other@2025-01-29T08:00:04Z")
    begun(nodes)
    nodes.gate(other, 0.25)

    assert nodes.ask(Keep(key=ALL, held=True, by="ann")).by == f"other@2025-01-29T08:00:04Z {FIRE}"
    assert nodes.ask(Keep(key=ALL, held=False, by="ann")).by == ""
    assert nodes.ask(Keep(key="node:edge-1", held=True, by="ann")).by == ""


def test_a_run_whose_fire_time_is_over_is_not_named(nodes: Nodes) -> None:
    begun(nodes)
    nodes.clock.step(LEFT_S)

    assert suspend(nodes) == ""


def test_an_answer_names_at_most_ten(nodes: Nodes) -> None:
    grants = [
        nodes.granted(nodes.of(f"sales@2025-01-29T08:00:04.{number:02}Z", fire_at=FIRE_AT, overlap="allow"))
        for number in range(1, 13)
    ]
    shortly_before(nodes.clock)
    for grant in grants:
        nodes.gate(grant, 0.25)

    assert suspend(nodes).split() == [grant.run for grant in grants[:10]]


def test_who_died_between_gate_and_start_gives_the_attempt_back(nodes: Nodes) -> None:
    """Also where a lost attempt is held for a person: nothing has run."""
    grant = nodes.granted(nodes.of(FIRE, fire_at=FIRE_AT, on_lost="hold"))
    shortly_before(nodes.clock)
    nodes.gate(grant, 0.25)

    assert nodes.report(grant, "retry", None).word == "ok"

    row = row_of(nodes, FIRE)
    assert (row["state"], row["attempt"], row["not_before"]) == ("retry", 1, FIRE_AT)
