"""Runs that were given up: they are replayed once, or discarded, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import LEASE_S, Nodes, watched_of

from contract.ledger.corners.both import A, of
from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.people import is_dead_letter
from coordd.core.ledger.requests import Cancel, Discard, ListOpen, Register, Replay, Resolve, Revoke
from coordd.core.ledger.words import AttemptNumber, Policy

ONCE: dict[str, Any] = {"attempts": 1, "relaunches": 0, "delay_s": 0.0}


def both(nodes: Nodes) -> Any:
    return nodes.ledger


def replay(nodes: Nodes, attempt: int = 0, *, by: str = "ann", digest: str = "d1", **policy: Any) -> Any:
    packed = Policy(**{**ONCE, **policy}).pack()
    return nodes.ask(Replay(run=A, attempt=AttemptNumber(attempt), digest=digest, policy=packed, by=by))


def discard(nodes: Nodes, attempt: int = 0) -> Any:
    return nodes.ask(Discard(run=A, attempt=AttemptNumber(attempt), by="ann", note="not needed"))


def given_up(nodes: Nodes, end: str = "failure", attempt: int = 0, **policy: Any) -> None:
    grant = nodes.started(of(nodes, A, **{**ONCE, **policy}), attempt, nonce=f"n{attempt}")
    nodes.report(grant, end, 3 if end == "failure" else None, reason="boom")
    assert nodes.state(A) == end


@pytest.mark.parametrize("end", ["failure", "lost"])
def test_a_dead_letter_is_replayed_once(nodes: Nodes, end: str) -> None:
    given_up(nodes, end)
    first = replay(nodes)
    assert (first.word, first.state, first.attempt) == ("ok", "retry", 1)
    assert [row.run for row in both(nodes).ask(ListOpen()).runs] == [A]

    second = replay(nodes, by="bob")
    assert (second.word, second.attempt) == ("exists", 1)
    assert second.by.endswith("; replayed by ann")

    given_up(nodes, end, attempt=1)
    assert replay(nodes).word == "exists"  # the first letter; the second one can be replayed too
    assert replay(nodes, 1, by="bob").attempt == 2
    assert [row.state for row in both(nodes).memory.attempts(A)] == [end, end]


@pytest.mark.parametrize("attempts", [1, 4])
def test_a_replay_is_one_attempt_whatever_the_policy_allows(nodes: Nodes, attempts: int) -> None:
    grant = nodes.started(of(nodes, A, attempts=attempts, delay_s=0.0), 0, nonce="n")
    nodes.report(grant, "failure", 3, final=True)
    replay(nodes, attempts=attempts)
    given_up(nodes, attempt=1, attempts=attempts)


def test_a_replay_takes_the_new_definition_and_keeps_its_arguments(nodes: Nodes) -> None:
    nodes.ask(Register(of=of(nodes, A, args='{"k":"v"}', **ONCE)))
    grant = nodes.started(of(nodes, A, args='{"k":"v"}', **ONCE), 0, nonce="n")
    nodes.report(grant, "failure", 3)
    replay(nodes, digest="d2", limits="slots:pool/heavy=1")
    assert nodes.claim(of(nodes, A, **ONCE), 1, nonce="o").word == "differs"
    again = nodes.claim(of(nodes, A, digest="d2", limits="slots:pool/heavy=1", **ONCE), 1, nonce="p")
    assert (again.word, again.args) == ("granted", '{"k":"v"}')


def test_a_replay_waits_for_no_earlier_time_and_is_missed_like_any_run(nodes: Nodes) -> None:
    given_up(nodes, start_within_s=100.0)
    nodes.clock.step(5000.0)
    replay(nodes, start_within_s=100.0)
    assert nodes.claim(of(nodes, A, start_within_s=100.0, **ONCE), 0).in_s == 0.0
    nodes.clock.step(101.0)
    nodes.claim(of(nodes, A, start_within_s=100.0, **ONCE), 1)
    assert nodes.state(A) == "missed"
    assert replay(nodes, 1).word == discard(nodes, 1).word == "finished"


def test_a_replay_is_not_due_before_the_fire_time_of_its_run(nodes: Nodes) -> None:
    """The ledger's clock was ahead when the run was launched, and is right again."""
    fire_at = nodes.clock.wall + 1000.0
    run = scheduled_run("sales", fire_at)
    nodes.ask(Register(of=of(nodes, A)))  # the job is known
    scheduled = of(nodes, run, fire_at=fire_at, due=fire_at, **ONCE)
    nodes.clock.step(1001.0)
    nodes.report(nodes.started(scheduled, 0), "failure", 3)
    nodes.clock.step(-500.0)
    again = Replay(run=run, attempt=AttemptNumber(0), digest="d1", policy=Policy(**ONCE).pack(), by="ann")
    assert nodes.ask(again).word == "ok"
    row: Any = both(nodes).run(run)
    assert row.not_before == fire_at
    assert nodes.claim(scheduled, 1, nonce="b").word == "early"


def test_a_replayed_run_is_forgotten_only_after_its_new_end(nodes: Nodes) -> None:
    given_up(nodes)
    nodes.clock.step(1000.0)
    replay(nodes)
    assert nodes.ledger.prune(10.0) == 0
    given_up(nodes, attempt=1)
    assert nodes.ledger.prune(10.0) == 0
    nodes.clock.step(11.0)
    assert nodes.ledger.prune(10.0) == 1


def test_a_discarded_one_is_no_dead_letter_any_more(nodes: Nodes) -> None:
    given_up(nodes)
    assert discard(nodes, 1).word == "finished"
    assert discard(nodes).word == "ok"
    row: Any = nodes.ledger.run(A)
    assert (row.state, row.reason, is_dead_letter(row)) == ("failure", "boom; discarded by ann: not needed", False)
    assert discard(nodes).word == "finished"
    assert replay(nodes).word == "finished"


@pytest.mark.parametrize(
    "state", ["", "pending", "received", "started", "unknown", "retry", "success", "revoked", "rejected", "cancelled"]
)
def test_other_runs_are_none(nodes: Nodes, state: str) -> None:
    policy = {**ONCE, "on_lost": "hold"} if state == "unknown" else {**ONCE, "attempts": 2 if state == "retry" else 1}
    if state == "revoked":
        nodes.ask(Revoke(run=A, by="ann", due=0.0))
    elif state == "rejected":
        nodes.granted(of(nodes, "sales#9", **ONCE))
        nodes.claim(of(nodes, A, overlap="forbid", **ONCE))
    elif state == "pending":
        nodes.ask(Register(of=of(nodes, A, **ONCE)))
    elif state == "received":
        nodes.granted(of(nodes, A, **policy))
    elif state:
        grant = nodes.started(of(nodes, A, **policy), 0)
        if state == "cancelled":  # it failed, but a person did not want it any more
            nodes.ask(Cancel(run=A, by="ann"))
        word = {"unknown": "lost", "retry": "failure", "success": "success", "cancelled": "failure"}.get(state)
        if word:
            nodes.report(grant, word, 1)
    row = nodes.ledger.run(A)
    before = row and row.values()
    for attempt in (0, 1):
        if state != "retry" or attempt == 1:
            assert replay(nodes, attempt).word == "finished"
        assert discard(nodes, attempt).word == "finished"
    row = nodes.ledger.run(A)
    assert (row and row.values()) == before


def test_a_run_that_a_person_declared_failed_is_one(nodes: Nodes) -> None:
    grant = nodes.started(of(nodes, A, on_lost="hold", **ONCE), 0)
    nodes.report(grant, "lost", None)
    nodes.ask(Resolve(run=A, outcome="failed", by="ann"))
    assert replay(nodes).word == "ok"


def test_the_holder_of_the_earlier_attempt_can_do_nothing_to_the_replay(nodes: Nodes) -> None:
    grant = nodes.started(of(nodes, A, **ONCE), 0)
    nodes.clock.step(LEASE_S * 1.1)
    nodes.claim(of(nodes, A, **ONCE), 0, watched=watched_of(grant.token, 1, LEASE_S * 1.05))
    assert nodes.state(A) == "lost"
    replay(nodes)
    assert nodes.renew(grant).word == "lost"
    assert nodes.gate(grant).word == "stale"
    nodes.report(grant, "success", 0)
    assert nodes.state(A) == "retry"
