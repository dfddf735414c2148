"""Every ledger adapter: the record of fire times without a row, and of the last success."""

from __future__ import annotations

import pytest
from support.ledger_calls import EPOCH, LEASE_S, Nodes

from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import HELD_BY_OTHERS, HELD_BY_SUSPENSION, STRETCHES_MAX
from coordd.core.ledger.requests import (
    NOTHING_SETTLED,
    Activate,
    Claim,
    ListOpen,
    PassOver,
    Register,
    Settle,
    Settled,
    Suspend,
)
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import AttemptNumber
from coordd.ports import Portable

MINUTE_S = 60.0


@pytest.fixture(autouse=True)
def known(nodes: Nodes) -> None:
    """The ledger learns of the job and its definition now."""
    nodes.ledger.ask(ListOpen(jobs=("sales",)))
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="a"))


def of(nodes: Nodes, minute: float, **policy: object) -> Registration:
    at = EPOCH + minute * MINUTE_S
    return nodes.of(scheduled_run("sales", at), fire_at=at, due=at, **{"overlap": "allow", **policy})


def claim(nodes: Nodes, minute: float, settled: Settled = NOTHING_SETTLED, **policy: object) -> Answer:
    registered = of(nodes, minute, **policy)
    return nodes.ask(
        Claim(of=registered, attempt=AttemptNumber(0), nonce="n1", node="edge-1.10", lease_s=LEASE_S, settled=settled)
    )


def passed(nodes: Nodes, minute: float, after: float = -1.0, count: int = -1, digest: str = "d1") -> str:
    settled = Settled(EPOCH + minute * MINUTE_S, "missed", after, count)
    request = PassOver(job="sales", digest=digest, identity_from=0.0, start_within_s=MINUTE_S, settled=settled)
    return nodes.ask(request).word


def told(nodes: Nodes) -> list[tuple[float, float, str]]:
    """The stretches, in minutes since the beginning."""
    kept = nodes.ledger.fires("sales").stretches
    return [((one.after - EPOCH) / MINUTE_S, (one.upto - EPOCH) / MINUTE_S, one.decision) for one in kept]


def test_a_row_of_an_earlier_schedule_is_not_taken_for_that_of_a_fire_time(nodes: Nodes) -> None:
    """A ledger was flushed. An older definition counted for a while, and its run is not one of the newer's."""
    assert claim(nodes, 2.0).word == "early"
    nodes.clock.step(2 * MINUTE_S)
    assert claim(nodes, 2.0).word == "granted"
    restored = Activate(job="sales", digest="d2", schedule="s2", how="restored", by="a", sequence=9, counts_from=EPOCH)
    assert nodes.ask(restored).word == "ok"

    nodes.clock.step(2 * MINUTE_S)
    registered = of(nodes, 4.0, digest="d2")
    settled = Settled(EPOCH + 2 * MINUTE_S, "coalesced", EPOCH, 1)  # the one of minute 1
    asked = Claim(
        of=registered, attempt=AttemptNumber(0), nonce="n2", node="edge-1.10", lease_s=LEASE_S, settled=settled
    )
    assert nodes.ask(asked).word == "granted"
    assert told(nodes) == [(0.0, 2.0, "coalesced")]


def test_a_launch_records_what_it_settles_and_a_repeat_adds_nothing(nodes: Nodes) -> None:
    nodes.clock.step(5 * MINUTE_S)
    settled = Settled(EPOCH + 4 * MINUTE_S, "coalesced", EPOCH, 4)

    for _ in range(2):
        assert claim(nodes, 5.0, settled).word == "granted"

    assert told(nodes) == [(0.0, 4.0, "coalesced")]
    assert claim(nodes, 3.0).state == "settled"


def test_fire_times_that_all_have_rows_need_no_record(nodes: Nodes) -> None:
    nodes.clock.step(3 * MINUTE_S)
    assert claim(nodes, 1.0).word == claim(nodes, 2.0).word == "granted"

    assert claim(nodes, 3.0, Settled(EPOCH + 2 * MINUTE_S, "coalesced", EPOCH, 2)).word == "granted"

    assert told(nodes) == []
    assert [row.run for row in nodes.ledger.fired("sales", EPOCH, EPOCH + 2 * MINUTE_S)] == [
        of(nodes, 1.0).run,
        of(nodes, 2.0).run,
    ]


def test_a_caller_that_knows_another_horizon_cannot_tell_that_all_have_rows(nodes: Nodes) -> None:
    nodes.clock.step(3 * MINUTE_S)
    claim(nodes, 2.0)
    claim(nodes, 3.0, Settled(EPOCH + 2 * MINUTE_S, "skipped", EPOCH + MINUTE_S, 1))

    assert told(nodes) == [(0.0, 2.0, "skipped")]


def test_fire_times_are_passed_over_only_once_they_are_overdue_and_only_by_the_definition_that_counts(
    nodes: Nodes,
) -> None:
    nodes.clock.step(2 * MINUTE_S)
    assert passed(nodes, 1.0) == "early"
    nodes.clock.step(0.5)
    assert passed(nodes, 1.0, digest="d2") == "differs"
    assert passed(nodes, 1.0) == "ok"
    assert passed(nodes, 1.0) == "finished"

    assert told(nodes) == [(0.0, 1.0, "missed")]
    assert claim(nodes, 1.0).state == "settled"


def test_equal_neighbours_are_one_and_what_has_rows_makes_the_last_one_longer(nodes: Nodes) -> None:
    nodes.clock.step(9 * MINUTE_S)
    for minute in (1.0, 2.0, 3.0):
        assert passed(nodes, minute) == "ok"
    claim(nodes, 4.0)
    claim(nodes, 5.0, Settled(EPOCH + 4 * MINUTE_S, "coalesced", EPOCH + 3 * MINUTE_S, 1))
    assert told(nodes) == [(0.0, 4.0, "missed")]

    claim(nodes, 8.0, Settled(EPOCH + 7 * MINUTE_S, "coalesced", EPOCH + 4 * MINUTE_S, 3))
    assert told(nodes) == [(0.0, 4.0, "missed"), (4.0, 7.0, "coalesced")]


@pytest.mark.parametrize("op", ["claim", "register"])
def test_a_fire_time_that_passes_while_its_job_is_suspended_leaves_no_row(nodes: Nodes, op: str) -> None:
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    for minute in (1.0, 2.0, 3.0):
        nodes.clock.step(MINUTE_S + 40.0)
        late = of(nodes, minute, start_within_s=30.0)
        answer = claim(nodes, minute, start_within_s=30.0) if op == "claim" else nodes.ask(Register(of=late))
        assert answer.state == "settled"

    assert told(nodes) == [(0.0, 3.0, "suspended")]
    assert nodes.ledger.runs() == []


def test_a_row_that_waited_says_what_held_it_up(nodes: Nodes) -> None:
    nodes.clock.step(MINUTE_S)
    assert nodes.ask(Register(of=of(nodes, 0.5, start_within_s=90.0))).word == "ok"
    claim(nodes, 1.0)
    assert claim(nodes, 1.01, overlap="queue", start_within_s=50.0).word == "limited"
    nodes.clock.step(MINUTE_S)
    queued = of(nodes, 1.01).run
    assert nodes.ask(Settle(run=queued, attempt=AttemptNumber(0))).state == "missed"
    row = nodes.ledger.run(queued)
    assert row is not None
    assert row.reason.endswith(f"{HELD_BY_OTHERS}{of(nodes, 1.0).run}")

    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    nodes.clock.step(MINUTE_S)
    assert nodes.ask(Settle(run=of(nodes, 0.5).run, attempt=AttemptNumber(0))).state == "missed"
    row = nodes.ledger.run(of(nodes, 0.5).run)
    assert row is not None
    assert row.reason.endswith(HELD_BY_SUSPENSION)


def test_another_schedule_settles_what_the_one_before_left(nodes: Nodes) -> None:
    nodes.clock.step(10 * MINUTE_S)
    nodes.ask(Activate(job="sales", digest="d2", schedule="s1", how="changed", by="a"))
    assert told(nodes) == []  # the schedule continues

    nodes.ask(Activate(job="sales", digest="d3", schedule="s2", how="changed", by="a"))

    assert told(nodes) == [(0.0, 10.0, "changed")]


@pytest.mark.parametrize("how", ["changed", "returned", "restored"])
def test_a_definition_that_begins_to_count_earlier_than_the_one_before_opens_what_that_one_settled(
    nodes: Nodes, how: str
) -> None:
    """The clock was ahead when the one before was activated. No sweep has seen its job since."""
    nodes.clock.step(10 * MINUTE_S)
    nodes.ask(Activate(job="sales", digest="d2", schedule="s2", how="changed", by="a"))
    nodes.clock.step(-6 * MINUTE_S)
    at = EPOCH + 4 * MINUTE_S
    back = Activate(job="sales", digest="d3", schedule="s3", how=how, by="a", sequence=9, counts_from=at)
    assert nodes.ask(back).word == "ok"

    assert told(nodes) == [(0.0, 4.0, "changed")]
    nodes.clock.step(MINUTE_S)
    assert claim(nodes, 5.0, digest="d3").word == "granted"


def test_a_definition_that_begins_to_count_earlier_moves_no_horizon(nodes: Nodes) -> None:
    """What a launch has settled stays so."""
    nodes.clock.step(5 * MINUTE_S)
    assert claim(nodes, 5.0, Settled(EPOCH + 4 * MINUTE_S, "coalesced", EPOCH, 4)).word == "granted"
    nodes.clock.step(5 * MINUTE_S)
    nodes.ask(Activate(job="sales", digest="d2", schedule="s2", how="changed", by="a"))
    nodes.clock.step(-8 * MINUTE_S)
    nodes.ask(Activate(job="sales", digest="d3", schedule="s3", how="changed", by="a"))

    assert told(nodes) == [(0.0, 4.0, "coalesced")]


def test_retention_forgets_the_record_up_to_the_run_that_it_forgets(nodes: Nodes) -> None:
    nodes.clock.step(5 * MINUTE_S)
    nodes.report(nodes.started(of(nodes, 3.0), settled=Settled(EPOCH + 2 * MINUTE_S, "coalesced")))
    succeeded_at = nodes.clock.wall
    nodes.clock.step(10 * MINUTE_S)
    passed(nodes, 5.0)
    assert told(nodes) == [(0.0, 2.0, "coalesced"), (2.0, 5.0, "missed")]

    assert nodes.ledger.prune(MINUTE_S) == 1

    assert told(nodes) == [(3.0, 5.0, "missed")]
    assert nodes.ledger.runs() == []
    assert nodes.ledger.succeeded(("sales", "other")) == {"sales": pytest.approx(succeeded_at, abs=0.001)}


def test_a_job_keeps_the_last_stretches(nodes: Nodes) -> None:
    nodes.clock.step((STRETCHES_MAX + 20) * MINUTE_S)
    for minute in range(1, STRETCHES_MAX + 6):
        word = ("coalesced", "skipped")[minute % 2]
        settled = Settled(EPOCH + minute * MINUTE_S, word)
        nodes.ask(PassOver(job="sales", digest="d1", identity_from=0.0, start_within_s=0.0, settled=settled))

    kept = told(nodes)
    assert len(kept) == STRETCHES_MAX
    assert kept[-1][1] == STRETCHES_MAX + 5


def test_the_record_moves_with_an_export(nodes: Nodes) -> None:
    nodes.clock.step(5 * MINUTE_S)
    nodes.report(nodes.started(of(nodes, 3.0), settled=Settled(EPOCH + 2 * MINUTE_S, "coalesced")))
    if not isinstance(nodes.ledger, Portable):
        return  # the rules in memory have no export
    before, succeeded = told(nodes), nodes.ledger.succeeded(("sales",))

    rows = list(nodes.ledger.export())
    nodes.clock.step(5 * MINUTE_S)
    passed(nodes, 5.0)
    nodes.ledger.import_(rows, replace=True)

    assert told(nodes) == before == [(0.0, 2.0, "coalesced")]
    assert nodes.ledger.succeeded(("sales",)) == succeeded
