"""Backfill: a plan opens fire times that are over, each once, and few at a time; live runs go first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.ledger_calls import EPOCH, Nodes, grant_of, swept
from support.stepped_redis import QUARANTINE_S

from contract.ledger.corners.both import Both
from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import KEPT_S, Plan
from coordd.core.ledger.backfill.rule import UNSETTLED_RETRY_S
from coordd.core.ledger.fires import HELD_BY_OTHERS
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S
from coordd.core.ledger.requests import Activate, Cancel, Fill, Keep, PlanBackfill, Register, Revoke, Settle, Suspend
from coordd.core.ledger.rows import OF_BACKFILL, OF_POOL
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import AttemptNumber

HOUR_S = 3600.0
FIRST = EPOCH - 10 * HOUR_S
KEY = OF_BACKFILL + "sales"


def fire(number: int) -> float:
    """A fire time of the range, the oldest is 0."""
    return FIRST + number * HOUR_S


def run(number: int) -> str:
    return scheduled_run("sales", fire(number))


def old(nodes: Nodes, number: int, **more: Any) -> Registration:
    return nodes.of(run(number), **{"fire_at": fire(number), **more})


@pytest.fixture(autouse=True)
def activated(nodes: Nodes) -> None:
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann"))


def begin(nodes: Nodes, ident: str = "p1", **more: Any) -> Answer:
    plan = Plan(ident, FIRST, fire(8), **more)
    return nodes.ask(PlanBackfill(job="sales", text=plan.text(), by="ann (1001)", uid=1001))


def cancel(nodes: Nodes) -> Answer:
    return nodes.ask(PlanBackfill(job="sales", text="", by="bob"))


def fill(nodes: Nodes, number: int, ident: str = "p1", *, left: int = 1, **more: Any) -> Answer:
    return nodes.ask(Fill(plan=ident, left=left, of=old(nodes, number, **more)))


def said(answer: Answer) -> tuple[str, str]:
    return answer.word, answer.by or answer.state


def plan(nodes: Nodes) -> Plan:
    known = Plan.read(swept(nodes, "sales").holds[KEY].note)
    assert known is not None
    return known


def end(nodes: Nodes, number: int, state: str = "success", attempt: int = 1, **more: Any) -> None:
    grant = nodes.started(old(nodes, number, **more), attempt, nonce=f"{number}/{attempt}")
    nodes.report(grant, state, 0 if state == "success" else 1)


def test_a_job_has_one_plan_at_a_time_and_everybody_sees_it(nodes: Nodes) -> None:
    assert said(cancel(nodes)) == ("finished", "")
    assert begin(nodes, at_most=3, order="newest", redo="failed", stop_after=2).word == "ok"
    assert said(begin(nodes, "p2")) == ("conflict", "p1")

    hold = swept(nodes, "sales").holds[KEY]
    shown = plan(nodes)
    assert (hold.by, hold.uid, hold.at, hold.until) == ("ann (1001)", 1001, EPOCH, 0.0)
    assert (shown.id, shown.state, shown.begin, shown.end) == ("p1", "running", FIRST, fire(8))
    assert (shown.order, shown.at_most, shown.redo, shown.stop_after) == ("newest", 3, "failed", 2)


def test_a_cancelled_plan_opens_nothing_leaves_what_runs_and_makes_way(nodes: Nodes) -> None:
    begin(nodes)
    assert fill(nodes, 0).word == "ok"
    nodes.clock.step(5.0)

    assert said(cancel(nodes)) == ("ok", "p1")
    assert said(cancel(nodes)) == ("finished", "")
    assert (plan(nodes).state, plan(nodes).ended_at) == ("cancelled", EPOCH + 5.0)
    assert said(fill(nodes, 1)) == ("finished", "")
    assert nodes.claim(old(nodes, 0), 1).word == "granted"
    assert begin(nodes, "p2").word == "ok"


def test_a_plan_that_has_ended_is_forgotten_after_a_while(nodes: Nodes) -> None:
    begin(nodes)
    cancel(nodes)
    nodes.clock.step(KEPT_S - 1.0)
    assert plan(nodes).state == "cancelled"

    nodes.clock.step(1.0)
    assert KEY not in swept(nodes, "sales").holds


def test_one_failure_is_enough_to_stop_a_plan_that_says_so(nodes: Nodes) -> None:
    begin(nodes, stop_after=1)
    fill(nodes, 0)
    end(nodes, 0, "failure")

    assert said(fill(nodes, 1)) == ("finished", "stopped")


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_the_fire_time_that_was_opened_last_is_past(nodes: Nodes, order: str) -> None:
    begin(nodes, order=order, at_most=2)
    assert fill(nodes, 3).word == "ok"

    assert said(fill(nodes, 3)) == ("exists", "")


def test_a_fire_time_without_a_row_runs_as_attempt_1_due_now(nodes: Nodes) -> None:
    begin(nodes)

    opened = fill(nodes, 0)

    assert (opened.word, opened.state, opened.attempt) == ("ok", "retry", 1)
    row = nodes.ledger.run(run(0))
    assert row is not None
    assert (row.scheduled, row.fire_at, row.due_at, row.not_before) == (1, FIRST, FIRST, nodes.clock.wall)
    assert (row.by, row.reason) == ("backfill p1 by ann (1001)", "opened by backfill p1 by ann (1001)")
    assert (plan(nodes).opened, plan(nodes).open, plan(nodes).cursor) == (1, [run(0)], FIRST)
    assert nodes.claim(old(nodes, 0), 0).word == "lost"
    assert nodes.claim(old(nodes, 0), 1).word == "granted"


def test_start_within_counts_from_the_opening(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0, start_within_s=60.0)
    settle = Settle(run=run(0), attempt=AttemptNumber(1))

    nodes.clock.step(60.0)
    assert nodes.ask(settle).word == "held"
    nodes.clock.step(1.0)
    assert said(nodes.ask(settle)) == ("finished", "missed")


def test_each_plan_opens_a_fire_time_once(nodes: Nodes) -> None:
    begin(nodes, redo="all", at_most=9)
    assert fill(nodes, 1).word == "ok"
    assert said(fill(nodes, 1)) == ("exists", "")
    end(nodes, 1)
    assert fill(nodes, 1).word == "exists"
    assert fill(nodes, 0).word == "exists", "the plan has gone by it"
    cancel(nodes)

    begin(nodes, "p2", redo="all")
    again = fill(nodes, 1, "p2")
    assert (again.word, again.attempt) == ("ok", 2)


def test_a_run_that_this_plan_opened_is_not_opened_again_if_the_plan_has_forgotten_it(nodes: Nodes) -> None:
    begin(nodes, redo="all")
    fill(nodes, 0)
    end(nodes, 0)
    nodes.ask(Keep(key=KEY, held=True, by="ann (1001)", note=Plan("p1", FIRST, fire(8), redo="all").text()))

    assert said(fill(nodes, 0)) == ("exists", "success")


def test_the_newest_first(nodes: Nodes) -> None:
    begin(nodes, order="newest", at_most=9)

    opened = [fill(nodes, number, overlap="allow").word for number in (7, 6, 7, 5)]

    assert opened == ["ok", "ok", "exists", "ok"]


def test_what_is_not_in_the_range_is_not_opened(nodes: Nodes) -> None:
    begin(nodes)

    assert [fill(nodes, number).word for number in (-1, 8)] == ["exists", "exists"]


def test_no_more_than_at_most_are_alive(nodes: Nodes) -> None:
    begin(nodes, at_most=2)
    for number in (0, 1):
        assert fill(nodes, number, overlap="allow").word == "ok"

    waits = fill(nodes, 2, overlap="allow")
    assert (waits.word, waits.by, waits.in_s) == ("limited", "at most 2", LIMIT_RETRY_S)
    end(nodes, 1, overlap="allow")
    assert fill(nodes, 2, overlap="allow").word == "ok"
    assert (plan(nodes).succeeded, plan(nodes).open) == (1, [run(0), run(2)])
    nodes.ask(Cancel(run=run(0), by="ann"))
    assert fill(nodes, 3, overlap="allow").word == "ok"
    assert (plan(nodes).succeeded, plan(nodes).failed, plan(nodes).opened) == (1, 1, 4)


def as_missed(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(run(0), fire_at=FIRST, start_within_s=60.0)))
    nodes.clock.step(61.0)
    nodes.ask(Settle(run=run(0), attempt=AttemptNumber(0)))


def as_revoked(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(run(0), fire_at=FIRST)))
    nodes.ask(Revoke(run=run(0), by="ann"))


def as_rejected(nodes: Nodes) -> None:
    other = nodes.started(nodes.of("sales#9"))
    nodes.claim(nodes.of(run(0), fire_at=FIRST))
    nodes.report(other)


def as_ended(state: str, **more: Any) -> Callable[[Nodes], None]:
    def made(nodes: Nodes) -> None:
        nodes.report(nodes.started(nodes.of(run(0), fire_at=FIRST, **more)), state, 1 if state != "success" else 0)

    return made


# How the run of a fire time ended, and under which ``redo`` a plan runs it once more.
ENDS = {
    "success": (as_ended("success"), "all"),
    "failure": (as_ended("failure"), "failed all"),
    "lost": (as_ended("lost", relaunches=0), "failed all"),
    "revoked": (as_revoked, "all"),
    "missed": (as_missed, "none failed all"),
    "rejected": (as_rejected, "none failed all"),
}


@pytest.mark.parametrize("redo", ["none", "failed", "all"])
@pytest.mark.parametrize("state", sorted(ENDS))
def test_what_redo_runs_once_more(both: Both, nodes: Nodes, state: str, redo: str) -> None:
    nodes.clock.step(FIRST - EPOCH - 1.0)
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="person", by="ann"))
    swept(nodes, "sales")  # its definition counts from the clock's time
    nodes.clock.step(2.0)
    make, wanted = ENDS[state]
    make(nodes)
    assert nodes.state(run(0)) == state
    nodes.clock.step(10 * HOUR_S)
    begin(nodes, redo=redo)

    answer = fill(nodes, 0)

    if redo in wanted.split():
        assert (answer.word, answer.attempt, nodes.state(run(0))) == ("ok", 1, "retry")
        assert [one.state for one in both.memory.attempts(run(0))] == [state]
        assert nodes.claim(old(nodes, 0), 1).word == "granted"
    else:
        assert said(answer) == ("exists", state)


def test_a_run_that_is_opened_again_has_its_tries_and_its_commit_again(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    first = nodes.started(old(nodes, 0), 1)
    assert nodes.commit(first).word == "ok"
    nodes.ask(Cancel(run=run(0), by="ann"))
    nodes.report(first, "failure", 1)
    fill(nodes, 0, left=0)
    begin(nodes, "p2", redo="all")

    assert fill(nodes, 0, "p2", attempts=2, digest="d1", args='{"k":"v"}').word == "ok"

    of = old(nodes, 0, attempts=2, args='{"k":"v"}')
    second = nodes.started(of, 2, nonce="n2")
    assert nodes.report(first, "success").word == "stale", "that attempt has ended"
    assert nodes.commit(second).word == "ok"
    nodes.report(second, "failure", 1)
    assert nodes.state(run(0)) == "retry"
    row = nodes.ledger.run(run(0))
    assert row is not None
    assert (row.args, row.failures, row.relaunches, row.cancel) == ('{"k":"v"}', 1, 0, 0)


def test_it_stops_after_so_many_failures(nodes: Nodes) -> None:
    begin(nodes, at_most=9, stop_after=2)
    for number in range(3):
        fill(nodes, number, overlap="allow")
    end(nodes, 0, "failure", overlap="allow")
    assert fill(nodes, 3, overlap="allow").word == "ok"
    end(nodes, 1, "failure", overlap="allow")

    assert said(fill(nodes, 4, overlap="allow")) == ("finished", "stopped")
    assert (plan(nodes).state, plan(nodes).failed, plan(nodes).open) == ("stopped", 2, [run(2), run(3)])
    assert said(fill(nodes, 4, overlap="allow")) == ("finished", "")


def test_it_is_done_when_its_last_run_has_ended(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)

    waits = fill(nodes, 0, left=0)
    assert (waits.word, waits.by, waits.in_s) == ("limited", "its last runs have not ended", LIMIT_RETRY_S)
    end(nodes, 0)
    assert said(fill(nodes, 0, left=0)) == ("finished", "done")
    assert (plan(nodes).state, plan(nodes).succeeded, plan(nodes).open) == ("done", 1, [])


def test_a_count_is_kept_although_nothing_is_opened(nodes: Nodes) -> None:
    begin(nodes, at_most=2)
    for number in (0, 1):
        fill(nodes, number, overlap="allow")
    end(nodes, 0, overlap="allow")

    assert fill(nodes, 1, left=0, overlap="allow").word == "limited"
    assert (plan(nodes).succeeded, plan(nodes).open) == (1, [run(1)])


def test_a_run_that_retention_has_forgotten_had_ended(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    end(nodes, 0)
    nodes.ledger.prune(-1.0)

    assert said(fill(nodes, 0, left=0)) == ("finished", "done")
    assert plan(nodes).succeeded == 1


def test_retention_counts_from_the_end_of_the_backfilled_attempt(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    assert nodes.ledger.prune(60.0) == 0
    end(nodes, 0)
    nodes.clock.step(59.0)
    assert nodes.ledger.prune(60.0) == 0

    begin(nodes, "p2", redo="all")
    cancel(nodes)
    nodes.clock.step(2.0)
    assert nodes.ledger.prune(60.0) == 1


def test_a_run_that_is_opened_again_is_not_forgotten(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    end(nodes, 0)
    fill(nodes, 0, left=0)
    begin(nodes, "p2", redo="all")
    fill(nodes, 0, "p2")
    nodes.clock.step(100.0)

    assert nodes.ledger.prune(60.0) == 0
    assert nodes.state(run(0)) == "retry"


# ---- live runs first


def test_nothing_is_opened_while_a_live_run_waits_or_runs(nodes: Nodes) -> None:
    begin(nodes)
    nodes.ask(Register(of=nodes.of("sales#1")))

    waits = fill(nodes, 0)
    assert (waits.word, waits.by, waits.in_s) == ("limited", "overlap with sales#1", LIMIT_RETRY_S)
    live = nodes.started(nodes.of("sales#1"))
    assert said(fill(nodes, 0)) == ("limited", "overlap with sales#1")
    assert fill(nodes, 0, overlap="allow").word == "ok"
    nodes.report(live)
    assert said(fill(nodes, 1)) == ("limited", "at most 1")


@pytest.mark.parametrize("overlap", ["forbid", "queue", "replace"])
def test_a_live_run_goes_before_one_that_is_open_and_has_not_begun(nodes: Nodes, overlap: str) -> None:
    begin(nodes)
    fill(nodes, 0, overlap=overlap)
    nodes.ask(Register(of=nodes.of("sales#1", overlap=overlap)))

    assert said(nodes.claim(old(nodes, 0, overlap=overlap), 1)) == ("limited", "overlap with sales#1")
    live = nodes.granted(nodes.of("sales#1", overlap=overlap))
    assert said(nodes.claim(old(nodes, 0, overlap=overlap), 1)) == ("limited", "overlap with sales#1")
    nodes.report(live, "revoked")
    assert nodes.claim(old(nodes, 0, overlap=overlap), 1).word == "granted"


@pytest.mark.parametrize("scheduled", [False, True], ids=["its name is before", "its name is after"])
def test_a_live_run_that_waits_for_its_retry_goes_first_too(nodes: Nodes, scheduled: bool) -> None:
    nodes.clock.step(10.0)
    name = scheduled_run("sales", nodes.clock.wall) if scheduled else "sales#1"
    of = nodes.of(name, attempts=2, delay_s=30.0)
    begin(nodes)
    fill(nodes, 0)
    nodes.report(nodes.started(of), "failure", 1)

    assert said(nodes.claim(old(nodes, 0), 1)) == ("limited", f"overlap with {name}")
    nodes.clock.step(31.0)
    assert nodes.claim(of, 1).word == "granted"


def test_a_live_run_that_is_not_due_is_not_waited_for(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    due = nodes.clock.wall + 4.0
    nodes.ask(Register(of=nodes.of(scheduled_run("sales", due), fire_at=due)))

    assert nodes.claim(old(nodes, 0), 1).word == "granted"


@pytest.mark.parametrize("overlap", ["forbid", "queue"])
def test_a_live_run_waits_for_a_backfilled_one_that_runs(nodes: Nodes, overlap: str) -> None:
    begin(nodes)
    fill(nodes, 0)
    backfilled = nodes.started(old(nodes, 0), 1)
    live = nodes.of("sales#1", overlap=overlap, start_within_s=60.0)

    assert said(nodes.claim(live)) == ("limited", f"overlap with {run(0)}")
    nodes.report(backfilled)
    assert nodes.claim(live).word == "granted"


def test_a_live_run_is_rejected_for_a_live_one_as_ever(nodes: Nodes) -> None:
    """Of the runs in its way the live one is named, and counts."""
    begin(nodes)
    fill(nodes, 0, overlap="allow")
    nodes.started(old(nodes, 0, overlap="allow"), 1)
    nodes.started(nodes.of("sales#1", overlap="allow"), nonce="n2")

    assert nodes.claim(nodes.of("sales#2")).state == "rejected"
    assert nodes.reason("sales#2").startswith("overlap: sales#1 is started")


def test_a_live_run_that_replaces_ends_the_backfilled_one(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    backfilled = nodes.started(old(nodes, 0), 1)

    assert nodes.claim(nodes.of("sales#1", overlap="replace")).word == "limited"
    assert nodes.renew(backfilled).word == "cancel"


@pytest.mark.parametrize("overlap", ["forbid", "allow"])
def test_why_a_live_run_was_missed(nodes: Nodes, overlap: str) -> None:
    begin(nodes)
    fill(nodes, 0)
    nodes.started(old(nodes, 0), 1)
    nodes.ask(Register(of=nodes.of("sales#1", overlap=overlap, start_within_s=60.0)))
    nodes.clock.step(61.0)

    assert nodes.ask(Settle(run="sales#1", attempt=AttemptNumber(0))).state == "missed"
    assert nodes.reason("sales#1").endswith(f"{HELD_BY_OTHERS}{run(0)}") is (overlap == "forbid")


def test_two_backfilled_runs_of_a_job_that_must_not_overlap_follow_each_other(nodes: Nodes) -> None:
    begin(nodes, at_most=2)
    assert fill(nodes, 0, overlap="allow").word == "ok"
    assert said(fill(nodes, 1)) == ("limited", f"overlap with {run(0)}")
    assert fill(nodes, 1, overlap="allow").word == "ok"

    first = nodes.granted(old(nodes, 0), 1)
    assert said(nodes.claim(old(nodes, 1), 1)) == ("limited", f"overlap with {run(0)}")
    nodes.report(first)
    assert nodes.claim(old(nodes, 1), 1).word == "granted"


# ---- what else stands in the way


def test_a_fire_time_that_the_schedule_may_still_open_is_left_to_it(nodes: Nodes) -> None:
    nodes.clock.step(10.0)
    at = nodes.clock.wall - 5.0
    nodes.ask(PlanBackfill(job="sales", text=Plan("p1", FIRST, at + 1.0).text(), by="ann"))
    of = nodes.of(scheduled_run("sales", at), fire_at=at)

    early = nodes.ask(Fill(plan="p1", of=of))
    assert (early.word, early.in_s) == ("early", UNSETTLED_RETRY_S)
    nodes.report(nodes.started(of))
    assert said(nodes.ask(Fill(plan="p1", of=of))) == ("exists", "success")


def test_a_fire_time_ahead_is_left_to_the_schedule(nodes: Nodes) -> None:
    """Although the definition will count only later: the clock was ahead when it was activated."""
    nodes.clock.step(-20 * HOUR_S)
    begin(nodes)

    assert fill(nodes, 0).word == "early"


def test_a_run_is_not_opened_again_before_its_time_by_a_clock_that_was_set_back(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    end(nodes, 0)
    fill(nodes, 0, left=0)
    begin(nodes, "p2", redo="all")
    nodes.clock.step(-20 * HOUR_S)

    assert fill(nodes, 0, "p2").word == "early"
    nodes.clock.step(20 * HOUR_S)
    assert fill(nodes, 0, "p2").word == "ok"


def test_another_definition_other_rules_and_a_suspension(nodes: Nodes) -> None:
    begin(nodes)
    assert fill(nodes, 0, digest="d2").word == "differs"
    assert fill(nodes, 0, identity_from=7.0).word == "outdated"
    assert said(fill(nodes, 0, "p2")) == ("finished", "")
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    waits = fill(nodes, 0)
    assert (waits.word, waits.by, waits.in_s) == ("limited", "suspended", UNSETTLED_RETRY_S)
    nodes.ask(Suspend(job="sales", suspended=False, by="ann"))
    assert fill(nodes, 0).word == "ok"


def test_under_the_old_rules_nothing_is_opened(both: Both, nodes: Nodes) -> None:
    both.older_row("other", 7, EPOCH, 0, 0, "")
    nodes.ask(PlanBackfill(job="third", text=Plan("p1", FIRST, fire(8)).text(), by="ann"))
    # The ledger of this test began with the new rules: an older one never had them.
    of = nodes.of(scheduled_run("third", FIRST), fire_at=FIRST, identity_from=3.0)

    assert nodes.ask(Fill(plan="p1", of=of)).word == "outdated"


def test_a_ledger_that_went_back_opens_nothing_for_a_while(nodes: Nodes, back: Callable[..., None]) -> None:
    begin(nodes)
    back(QUARANTINE_S - 0.5)

    waits = fill(nodes, 0)
    assert waits.word == "recovering"
    assert waits.left_s == pytest.approx(0.5)
    nodes.clock.step(1.0)


def test_a_damaged_plan_opens_nothing_and_makes_way(nodes: Nodes) -> None:
    for note in ("p1 running 1 2", "", Plan("p1", FIRST, fire(8)).text().replace(" oldest 1 ", " oldest x ")):
        nodes.ask(Keep(key=KEY, held=True, by="ann", note=note))
        assert said(fill(nodes, 0)) == ("finished", "")
        assert said(cancel(nodes)) == ("finished", "")
    assert begin(nodes).word == "ok"


def test_a_plan_is_no_hold(nodes: Nodes) -> None:
    begin(nodes)
    nodes.ask(Keep(key=OF_POOL + "heavy", held=True, by="ann", note="1"))

    assert nodes.claim(nodes.of("sales#1")).word == "granted"
    assert set(swept(nodes, "sales").holds) == {KEY, OF_POOL + "heavy"}


def test_a_backfilled_run_lapses_and_is_taken_over(nodes: Nodes) -> None:
    begin(nodes)
    fill(nodes, 0)
    nodes.started(old(nodes, 0), 1)

    watched = nodes.lapse(run(0))
    lost = nodes.claim(old(nodes, 0), 1, nonce="n2", node="edge-2.20", watched=watched)

    assert (lost.word, lost.attempt) == ("lost", 2)
    assert nodes.claim(old(nodes, 0), 2, nonce="n2", node="edge-2.20").word == "granted"
    assert said(fill(nodes, 1)) == ("limited", "at most 1")
    assert nodes.renew(grant_of(run(0), 1, 0, "n1")).word == "lost"
