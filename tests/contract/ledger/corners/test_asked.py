"""Requests about a run or a job: retries, overlap, people, definitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_calls import Nodes, swept
from support.stepped_redis import QUARANTINE_S

from contract.ledger.corners.both import A, B, Both, C, D, of
from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Activate, Cancel, NewRules, Register, Resolve, Revoke
from coordd.core.ledger.rows import ACTIVATIONS_MAX


def test_a_run_that_was_let_in_keeps_its_place(nodes: Nodes) -> None:
    grant = nodes.started(of(nodes, A, overlap="forbid", attempts=2, delay_s=5.0))
    nodes.report(grant, "failure", 3)
    assert nodes.claim(of(nodes, A, overlap="forbid", attempts=2)).in_s == 5.0  # a claim for the earlier attempt
    assert nodes.claim(of(nodes, B, overlap="queue")).word == "limited"
    nodes.clock.step(5.0)

    assert nodes.claim(of(nodes, A, overlap="forbid"), 1, nonce="b").word == "granted"
    watched = nodes.lapse(A)
    assert nodes.claim(of(nodes, A, overlap="forbid"), 1, nonce="c", watched=watched).word == "granted"


def test_what_is_claimed_ahead_waits_for_its_time_before_overlap_judges_it(nodes: Nodes) -> None:
    nodes.started(of(nodes, A))
    run, due = "sales@2025-01-29T08:00:04Z", nodes.clock.wall + 4.0

    def claims() -> Answer:
        return nodes.claim(nodes.of(run, overlap="forbid", fire_at=due, due=due))

    assert claims().in_s == 1.0
    nodes.clock.step(3.5)
    assert claims().in_s == 0.5
    nodes.clock.step(0.5)
    assert claims().state == "rejected"


def test_a_queue_goes_by_time_and_then_by_name(nodes: Nodes) -> None:
    nodes.ask(Register(of=of(nodes, A, overlap="queue")))
    nodes.ask(Register(of=of(nodes, B, overlap="queue")))
    assert nodes.claim(of(nodes, B, overlap="queue")).by == "queue: sales#1 is first"
    nodes.clock.step(1.0)

    assert nodes.claim(of(nodes, C, overlap="queue")).word == "limited"
    # not registered, and earlier than all others
    assert nodes.claim(of(nodes, D, overlap="queue", age_s=60.0)).word == "granted"


@pytest.mark.parametrize("overlap", ["forbid", "replace", "queue"])
def test_overlap_sees_every_state(nodes: Nodes, overlap: str) -> None:
    nodes.granted(of(nodes, A))
    nodes.report(nodes.started(of(nodes, B, attempts=2)), "failure", 3)
    nodes.report(nodes.started(of(nodes, C, on_lost="hold")), "lost")
    nodes.started(of(nodes, D))

    for _ in range(3):
        nodes.claim(of(nodes, "sales#5", overlap=overlap))
        nodes.clock.step(1.0)


# ---- requests about a run


def test_a_run_that_was_asked_for_and_revoked_is_still_known(nodes: Nodes) -> None:
    nodes.ask(Register(of=of(nodes, A)))
    nodes.ask(Revoke(run=A, by="ann", due=0.0))
    nodes.ask(Revoke(run=B, by="ann", due=0.0))

    assert nodes.ask(Register(of=of(nodes, A, digest="d2"))).word == "conflict"
    assert nodes.ask(Register(of=of(nodes, A, args='{"b": 2}'))).word == "conflict"
    assert nodes.ask(Register(of=of(nodes, B, digest="d2"))).word == "exists"


def test_why_a_scheduled_run_may_have_no_row(nodes: Nodes) -> None:
    run, now = "sales@2025-01-29T08:00:00Z", nodes.clock.wall
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    nodes.clock.step(20.0)
    for more in (
        {},
        {"identity_from": 7.0},
        {"digest": "d2"},
        {"due": now + 25.0},
        {"due": now + 25.5},
        {"due": now + 60.0},
        {"fire_at": now},
        {"fire_at": now - 3600.0},
        {"fire_at": now - 3600.0, "due": now + 10.0},
    ):
        registration = {"fire_at": now + 10.0, **more}
        nodes.ask(Register(of=nodes.of(run, **registration)))
        nodes.claim(nodes.of(run + "x", **registration))
        nodes.claim(nodes.of(run + "y", **registration), 1)


@pytest.mark.parametrize("state", ["pending", "retry", "received", "started", "unknown", "success"])
@pytest.mark.parametrize("asked", ["cancel", "revoke", "relaunch", "success", "failed"])
def test_what_people_ask_of_a_run_in_each_state(nodes: Nodes, state: str, asked: str) -> None:
    policy = {"attempts": 2, "delay_s": 0.0, "on_lost": "hold"}
    nodes.ask(Register(of=of(nodes, A, **policy)))
    grant = None
    if state != "pending":
        grant = nodes.granted(of(nodes, A, **policy))
    if grant and state != "received":
        nodes.gate(grant)
    if grant and state in ("retry", "unknown", "success"):
        nodes.report(grant, {"retry": "failure", "unknown": "lost"}.get(state, state), 3, reason="why")
    assert nodes.state(A) == state

    for _ in range(2):
        if asked == "revoke":
            nodes.ask(Revoke(run=A, by="ann", due=0.0))
        elif asked == "cancel":
            nodes.ask(Cancel(run=A, by="ann"))
        else:
            nodes.ask(Resolve(run=A, outcome=asked, by="ann"))
        nodes.clock.step(1.0)
    if grant:
        nodes.renew(grant)
        nodes.gate(grant)
        nodes.commit(grant)
        nodes.report(grant, "revoked", None, reason="ended")
        nodes.report(grant, "revoked", None, reason="ended")
    nodes.claim(of(nodes, A, **policy), 1, nonce="b")


def test_a_definition_is_restored_only_where_it_is_newer(nodes: Nodes) -> None:
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
    for digest, sequence in (("d2", 0), ("d2", 1), ("d2", 2), ("d3", 2), ("d3", 7)):
        nodes.ask(
            Activate(
                job="sales",
                digest=digest,
                schedule="s2",
                how="restored",
                by="ann",
                sequence=sequence,
                counts_from=nodes.clock.wall - 60.0,
            )
        )
        nodes.clock.step(1.0)
    for how in ("new", "changed", "returned", "person"):
        for digest, sequence in (("d1", 0), ("d9", 0), ("d3", 8), ("d3", 20)):
            nodes.ask(
                Activate(
                    job="sales",
                    digest=digest,
                    schedule=f"s of {how}",
                    how=how,
                    by="ann",
                    sequence=sequence,
                    counts_from=0.0,
                )
            )
            nodes.clock.step(1.0)


def test_a_restored_definition_counts_from_the_instant_that_is_said(nodes: Nodes) -> None:
    for sequence, counts_from in ((3, 0.0), (5, 0.5)):
        request = Activate(
            job="sales", digest=f"d{sequence}", schedule="s", how="restored", by="ann", sequence=sequence,
            counts_from=counts_from,
        )  # fmt: skip
        assert nodes.ask(request).word == "ok"
        assert nodes.ledger.fires("sales").activations[-1].counts_from == counts_from


def test_what_is_due_when_a_definition_was_to_count_has_passed(nodes: Nodes) -> None:
    due = nodes.clock.wall + 100.0
    nodes.clock.step(100.0)
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann"))
    nodes.clock.step(-60.0)
    swept(nodes, "sales")  # the clock was ahead: the definition counts from now
    nodes.clock.step(80.0)

    for at, word in ((due, "finished"), (due + 1.0, "granted")):
        run = scheduled_run("sales", at)
        assert nodes.claim(nodes.of(run, overlap="allow", fire_at=at, due=at)).word == word


def test_a_definition_from_a_clock_that_is_behind_opens_nothing_that_was_due_before_the_one_it_replaces(
    nodes: Nodes,
) -> None:
    begin = nodes.clock.wall
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann"))
    nodes.clock.step(-300.0)
    swept(nodes, "sales")  # the first definition counts from an instant that this clock knows
    nodes.ask(Activate(job="sales", digest="d2", schedule="s2", how="changed", by="ann"))
    nodes.clock.step(320.0)

    for due, word in ((begin - 200.0, "finished"), (begin, "finished"), (begin + 1.0, "granted")):
        of = nodes.of(scheduled_run("sales", due), overlap="allow", fire_at=due, due=due)
        of.digest = "d2"
        assert nodes.claim(of).word == word


@pytest.mark.parametrize("recovers", [False, True])
def test_only_a_fire_time_that_is_over_is_too_late_to_revoke(
    nodes: Nodes, back: Callable[..., None], recovers: bool
) -> None:
    begin = nodes.clock.wall + 100.0
    for number, step_s in ((1, 100.0), (2, 60.0)):
        nodes.ask(Activate(job="sales", digest=f"d{number}", schedule=f"s{number}", how="changed", by="ann"))
        nodes.clock.step(step_s)
    if recovers:
        back(QUARANTINE_S - 0.5)

    for due, late in ((begin - 1.0, True), (begin, True), (begin + 1.0, False)):
        run = scheduled_run("sales", due)
        word = nodes.ask(Revoke(run=run, by="ann", due=due)).word
        assert word == ("finished" if late and not recovers else "ok")


def test_a_fire_time_that_was_revoked_before_it_did_not_fire(nodes: Nodes) -> None:
    due = nodes.clock.wall + 4.0
    run = scheduled_run("sales", due)
    nodes.ask(Register(of=nodes.of(run, fire_at=due, due=due)))
    assert swept(nodes, "sales").jobs["sales"].last_fire_at == due

    nodes.ask(Revoke(run=run, by="ann", due=due))

    assert swept(nodes, "sales").jobs["sales"].last_fire_at == 0.0


@pytest.mark.parametrize("started", [True, False])
def test_only_a_run_at_its_gate_opens_the_barrier_of_the_new_rules(nodes: Nodes, started: bool) -> None:
    both = nodes.ledger
    assert isinstance(both, Both)
    both.older_row("sales", 7, nodes.clock.wall - 60.0, 0, 0, "")
    grant = nodes.granted(of(nodes, A))
    if started:
        nodes.gate(grant)

    assert nodes.ask(NewRules(known=-1.0)).word == "ok"

    assert both.memory._store.jobs["sales"].suspended == int(started)


def test_nobody_knows_the_schedules_of_older_definitions_that_are_told(nodes: Nodes) -> None:
    both = nodes.ledger
    assert isinstance(both, Both)
    nodes.ask(Activate(job="sales", digest="d2", schedule="s2", how="new", by="ann"))
    both.forget_definitions("sales")

    nodes.ask(Activate(job="sales", digest="d3", schedule="s3", how="changed", by="ann", before="d1 d2"))

    known = [(one.digest, one.schedule) for one in both.fires("sales").activations]
    assert known == [("d1", ""), ("d2", ""), ("d3", "s3")]


def test_of_many_definitions_the_oldest_are_forgotten(nodes: Nodes) -> None:
    for number in range(ACTIVATIONS_MAX + 2):
        nodes.ask(
            Activate(
                job="sales", digest=f"d{number}", schedule="s1", how="changed", by="ann", sequence=0, counts_from=0.0
            )
        )
    for digest in ("d2", "d1", "d0"):
        nodes.ask(Activate(job="sales", digest=digest, schedule="s1", how="new", by="ann", sequence=0, counts_from=0.0))
