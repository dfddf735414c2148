"""The ledger's rules one by one: overlap, lateness, back-off, steps of clocks, horizons and tokens."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import EPOCH, LEASE_S, FakeClock, Nodes, granted_as, watched_of
from support.memory import MemoryLedger

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import JobState, OpenAnswer
from coordd.core.ledger.requests import ListOpen, Register, Revoke, Settled, Suspend, nominal_time
from coordd.core.ledger.rules import OVERLAP_RETRY_S, Rules
from coordd.core.ledger.runner_requests import Commit, Grant, Renew, Restore
from coordd.core.ledger.steps import HOLDING, MOVES, REPORTED
from coordd.core.ledger.words import ACTIVE, BACKOFF_MAX_S, CLAIM_AHEAD_S, STATES, TERMINAL, AttemptNumber, Policy

RUN = "sales#1"


@pytest.fixture
def nodes() -> Nodes:
    clock = FakeClock()
    return Nodes(MemoryLedger(clock), clock)


def job_of(nodes: Nodes, job: str = "sales") -> JobState:
    return nodes.ledger.ask(ListOpen(jobs=(job,))).jobs[job]


def reason(nodes: Nodes, run: str) -> str:
    row = nodes.ledger.run(run)
    assert row is not None
    return row.reason


# ---- the table


def test_nothing_leaves_a_terminal_state_and_every_other_state_has_a_way_to_one() -> None:
    assert set(MOVES) == set(STATES) - TERMINAL
    assert set(MOVES) >= ACTIVE >= HOLDING
    for state in MOVES:
        reached: set[str] = set()
        ahead = {state}
        while ahead:
            reached |= ahead
            ahead = {after for each in ahead for after in MOVES.get(each, ())} - reached
        assert reached & TERMINAL, state
        assert reached <= set(STATES)


def test_a_move_that_the_table_does_not_know_is_our_mistake(nodes: Nodes) -> None:
    for state in STATES:
        for after in STATES:
            row = Rules()._new_row(nodes.of(), nodes.clock())
            row.state = state
            if after in MOVES.get(state, ()):
                Rules()._move(row, after)
                assert row.state == after
            else:
                with pytest.raises(AssertionError, match=f"{state} -> {after}"):
                    Rules()._move(row, after)


def test_whatever_may_be_reported_is_known_again_when_it_is_repeated() -> None:
    assert set().union(*REPORTED.values()) <= TERMINAL


# ---- overlap


@pytest.mark.parametrize(
    ("overlap", "word", "becomes", "other"),
    [
        ("allow", "granted", "received", "started"),
        ("forbid", "finished", "rejected", "started"),
        ("queue", "limited", "pending", "started"),
        ("replace", "limited", "pending", "started"),
    ],
)
def test_another_run_of_the_job_is_in_the_way(nodes: Nodes, overlap: str, word: str, becomes: str, other: str) -> None:
    running = nodes.started(nodes.of("sales#0"))
    of = nodes.of(overlap=overlap)
    assert nodes.claim(of, nonce="b").word == word
    assert (nodes.state(RUN), nodes.state("sales#0")) == (becomes, other)
    assert nodes.renew(running).word == ("cancel" if overlap == "replace" else "ok")
    nodes.report(running, "revoked" if overlap == "replace" else "success")
    if overlap in ("queue", "replace"):
        assert nodes.claim(of, nonce="b").word == "granted"


@pytest.mark.parametrize("state", ["received", "started", "unknown", "retry"])
def test_a_run_is_in_the_way_until_it_is_over(nodes: Nodes, state: str) -> None:
    of = nodes.of("sales#0", on_lost="hold" if state == "unknown" else "relaunch")
    grant = nodes.granted(of)
    if state != "received":
        nodes.gate(grant)
    if state in ("unknown", "retry"):
        nodes.report(grant, "lost")
    assert nodes.state("sales#0") == state
    assert nodes.claim(nodes.of(overlap="forbid")).word == "finished"
    assert "overlap: sales#0 is " + state in reason(nodes, RUN)
    assert nodes.claim(nodes.of("other#1", overlap="forbid")).word == "granted"


@pytest.mark.parametrize("overlap", ["forbid", "queue", "replace"])
def test_overlap_is_judged_at_the_fire_time_not_before(nodes: Nodes, overlap: str) -> None:
    running = nodes.started(nodes.of("sales#0"))
    run = "sales@2025-01-29T08:00:04Z"
    of = nodes.of(run, fire_at=EPOCH + 4.0, overlap=overlap)
    answer = nodes.claim(of, nonce="b")
    assert (answer.word, answer.in_s) == ("limited", OVERLAP_RETRY_S)
    assert nodes.renew(running).word == "ok"  # the running one is not replaced yet
    nodes.clock.step(3.5)
    assert nodes.claim(of, nonce="b").in_s == 0.5
    nodes.report(running)
    assert nodes.claim(of, nonce="b").word == "granted"


def test_a_replaced_run_that_waits_for_its_retry_ends_at_once(nodes: Nodes) -> None:
    nodes.report(nodes.started(nodes.of("sales#0")), "lost")
    assert nodes.claim(nodes.of(overlap="replace"), nonce="b").word == "limited"
    assert nodes.state("sales#0") == "revoked"
    assert nodes.claim(nodes.of(overlap="replace"), nonce="b").word == "granted"


def test_a_replaced_run_that_is_claimed_does_not_pass_the_gate(nodes: Nodes) -> None:
    waiting = nodes.granted(nodes.of("sales#0"))
    nodes.claim(nodes.of(overlap="replace"), nonce="b")
    assert nodes.gate(waiting).word == "revoked"
    assert (nodes.state("sales#0"), reason(nodes, "sales#0")) == ("revoked", f"replaced by {RUN}")


def test_a_run_that_was_let_in_keeps_its_place_for_its_next_attempt(nodes: Nodes) -> None:
    of = nodes.of(overlap="forbid")
    nodes.report(nodes.started(of), "lost")
    assert nodes.claim(nodes.of("sales#2", overlap="queue")).word == "limited"
    assert nodes.claim(of, 1).word == "granted"


# ---- lateness, retries and their number


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ("fixed", [30.0, 30.0, 30.0, 30.0]),
        ("linear", [30.0, 60.0, 90.0, 120.0]),
        ("exponential", [30.0, 60.0, 120.0, 240.0]),
    ],
)
def test_failures_are_tried_again_after_growing_delays(nodes: Nodes, backoff: str, delays: list[float]) -> None:
    of = nodes.of(attempts=5, delay_s=30.0, backoff=backoff)
    for number, delay_s in enumerate(delays):
        nodes.report(nodes.started(of, number), "failure", 1)
        assert nodes.claim(of, number).in_s == delay_s
        nodes.clock.step(delay_s)
    nodes.report(nodes.started(of, 4), "failure", 1)
    assert nodes.state(RUN) == "failure"
    assert [attempt.state for attempt in nodes.ledger.attempts(RUN)] == ["failure"] * 5


def test_the_jitter_of_a_retry_is_a_share_of_its_delay_that_only_run_and_attempt_decide(nodes: Nodes) -> None:
    plain, half = Policy(delay_s=100.0), Policy(delay_s=100.0, limits="slots:pool/p=1,jitter=500")
    assert plain.retry_after(1, RUN, 0) == 100.0
    pauses = [half.retry_after(1, f"job#{n}", attempt) for n in range(100) for attempt in (0, 1)]
    assert all(100.0 <= pause < 150.0 for pause in pauses)
    assert len({round(pause) for pause in pauses}) > 40
    assert half.retry_after(1, RUN, 0) == half.retry_after(1, RUN, 0)
    for unreadable in ("jitter=", "jitter=-5", "jitter=1.5", "jitter=\u0663"):
        assert Policy(limits=unreadable).jitter() == 0.0
    assert Policy(limits="jitter=9999").jitter() == 1.0

    # it is due when the jitter has passed, although that is later than the delay itself
    of = nodes.of(attempts=2, delay_s=100.0, limits="jitter=1000")
    nodes.report(nodes.started(of, 0), "failure", 1)
    assert 100.0 < nodes.claim(of, 0).in_s < 200.0
    assert nodes.claim(of, 1).word == "early"


def test_an_exponential_delay_stops_growing() -> None:
    policy = Policy(backoff="exponential", delay_s=30.0)
    assert policy.delay_after(1000) == BACKOFF_MAX_S


def test_losses_and_failures_are_counted_apart(nodes: Nodes) -> None:
    of = nodes.of(attempts=2, relaunches=2, delay_s=0.0)
    for attempt, state in enumerate(("lost", "failure", "lost")):
        nodes.report(nodes.started(of, attempt), state, 1)
        assert nodes.state(RUN) == "retry", attempt
    nodes.clock.step(1.0)  # the second attempt that ended immediately
    nodes.report(nodes.started(of, 3), "lost")
    assert nodes.state(RUN) == "lost"
    assert "no relaunch left" in reason(nodes, RUN)


def test_a_retry_has_its_own_time_to_start_within(nodes: Nodes) -> None:
    of = nodes.of(start_within_s=100.0)
    nodes.clock.step(99.0)
    nodes.report(nodes.started(of), "lost")
    nodes.clock.step(99.0)
    nodes.granted(of, 1)
    assert nodes.state(RUN) == "received"


@pytest.mark.parametrize(
    ("changes", "word", "state"),
    [
        ({}, "granted", "received"),
        ({"digest": "d2"}, "differs", "received"),
        ({"start_within_s": 10.0}, "finished", "missed"),
        ({"suspended": True}, "limited", "received"),
    ],
)
def test_a_claim_that_lapsed_before_the_gate_is_judged_like_a_new_one(
    nodes: Nodes, changes: dict[str, Any], word: str, state: str
) -> None:
    within_s = changes.get("start_within_s", 1000.0)
    first = nodes.granted(nodes.of(start_within_s=within_s))
    watched = nodes.lapse(RUN)
    if changes.pop("suspended", False):
        nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    of = nodes.of(**{"start_within_s": 1000.0, **changes})
    assert nodes.claim(of, nonce="b", watched=watched).word == word
    assert nodes.state(RUN) == state
    assert nodes.gate(first).word == "stale"


def test_a_missed_run_says_that_its_definition_had_changed(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of()))
    nodes.clock.step(4000.0)
    nodes.claim(nodes.of(digest="d2"))
    assert "definition has changed" in reason(nodes, RUN)


# ---- clocks


def test_a_step_of_the_wall_clock_expires_no_lease(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of())
    nodes.clock.wall += 1e6
    row = nodes.ledger.run(RUN)
    assert row is not None
    assert nodes.claim(nodes.of(), nonce="b", watched=watched_of(row.token, row.beat, 1e6)).word == "held"
    assert nodes.renew(grant).word == "ok"


def test_a_step_of_a_lease_clock_expires_no_lease_that_was_not_watched(nodes: Nodes) -> None:
    nodes.clock.boot = ""  # as on a system where the lease clock is a wall clock
    nodes.started(nodes.of())
    nodes.clock.lease += 1e6
    row = nodes.ledger.run(RUN)
    assert row is not None
    assert nodes.claim(nodes.of(), nonce="b").word == "held"
    assert nodes.claim(nodes.of(), nonce="b", watched=watched_of(row.token, row.beat, LEASE_S)).word == "held"
    assert nodes.claim(nodes.of(), nonce="b", watched=watched_of(row.token, row.beat, LEASE_S * 1.02)).word == "lost"


def test_leases_of_another_boot_have_lapsed(nodes: Nodes) -> None:
    started = nodes.started(nodes.of("sales#0", overlap="allow"))
    claimed = nodes.granted(nodes.of(overlap="allow"))
    nodes.clock.boot = "boot-2"
    nodes.clock.lease = 1.0  # the clock begins again, so the old lease would seem to last for a long time
    answer = nodes.ledger.ask(ListOpen())
    assert isinstance(answer, OpenAnswer)
    assert [row.left_s for row in answer.runs] == [0.0, 0.0]
    assert nodes.gate(claimed).word == "stale"
    assert nodes.claim(nodes.of("sales#0"), nonce="b").word == "lost"
    assert nodes.claim(nodes.of(overlap="allow"), nonce="b").word == "granted"
    assert nodes.renew(started).word == "lost"


def test_tokens_increase_although_the_clock_goes_back_and_although_the_ledger_does(nodes: Nodes) -> None:
    tokens = [nodes.granted(nodes.of("sales#0", overlap="allow")).token]
    assert isinstance(nodes.ledger, MemoryLedger)
    before = nodes.ledger.snapshot()
    nodes.clock.wall -= 5000.0
    tokens.append(nodes.granted(nodes.of("sales#1", overlap="allow")).token)
    nodes.clock.wall += 6000.0
    tokens.append(nodes.granted(nodes.of("sales#2", overlap="allow")).token)
    nodes.ledger.restore(before)  # the ledger has forgotten two grants
    nodes.clock.step(0.001)
    tokens.append(nodes.granted(nodes.of("sales#3", overlap="allow")).token)
    assert tokens == sorted(set(tokens))
    assert job_of(nodes).fence == tokens[-1]


def test_a_run_is_claimed_this_long_before_its_fire_time(nodes: Nodes) -> None:
    run = "sales@2025-01-29T08:01:00Z"
    of = nodes.of(run, fire_at=EPOCH + 60.0)
    nodes.clock.step(60.0 - CLAIM_AHEAD_S - 0.5)
    assert (nodes.claim(of).word, nodes.claim(of).in_s) == ("early", 0.5)
    nodes.clock.step(0.5)
    assert nodes.claim(of).word == "granted"


# ---- horizon


def test_what_a_misfire_policy_settled_is_settled_for_good(nodes: Nodes) -> None:
    job_of(nodes)  # the ledger learns of the job
    old, mid = (nodes.of(f"sales@{n}", fire_at=EPOCH + n, overlap="allow") for n in (10.0, 20.0))
    nodes.clock.step(100.0)
    nodes.granted(nodes.of("sales@30", fire_at=EPOCH + 30.0, overlap="allow"), settled=Settled(EPOCH + 15.0))
    job = job_of(nodes)
    assert (job.horizon, job.last_fire_at) == (EPOCH + 15.0, EPOCH + 30.0)
    assert nodes.claim(old, nonce="b").state == "settled"
    assert nodes.claim(mid, nonce="b").word == "granted"


def test_no_claim_settles_what_comes_after_it(nodes: Nodes) -> None:
    job_of(nodes)
    nodes.clock.step(100.0)
    nodes.granted(nodes.of("sales@30", fire_at=EPOCH + 30.0, overlap="allow"), settled=Settled(EPOCH + 1e6))
    assert job_of(nodes).horizon == EPOCH + 30.0
    # a triggered run has no place in the schedule
    nodes.granted(nodes.of("sales#1", overlap="allow"), settled=Settled(EPOCH + 1e6))
    assert job_of(nodes).horizon == EPOCH + 30.0


def test_a_row_that_exists_may_run_although_its_time_is_settled(nodes: Nodes) -> None:
    job_of(nodes)
    of = nodes.of("sales@10", fire_at=EPOCH + 10.0, overlap="allow")
    nodes.clock.step(20.0)
    nodes.report(nodes.started(of), "lost")
    nodes.granted(nodes.of("sales@20", fire_at=EPOCH + 20.0, overlap="allow"), settled=Settled(EPOCH + 20.0))
    assert nodes.claim(of, 1).word == "granted"


@pytest.mark.parametrize(
    ("run", "instant"),
    [
        ("sales@2025-01-29T08:00:00Z", EPOCH),
        ("sales@2025-01-29T08:00:00.500000Z", EPOCH + 0.5),
        ("sales@2025-01-29T10:00:00+02:00", EPOCH),
        ("sales@2025-01-29T08:00:00", None),
        ("sales@tomorrow", None),
        ("sales", None),
        ("sales#2025-01-29T08:00:00Z", None),
        ("sales#mail@2025-01-29T08:00:00Z", None),
    ],
)
def test_a_run_revoked_unseen_is_dated_by_its_name(nodes: Nodes, run: str, instant: float | None) -> None:
    assert nominal_time(run) == instant
    nodes.clock.step(7.0)
    nodes.ask(Revoke(run=run, by="ann"))
    row = nodes.ledger.run(run)
    assert row is not None
    assert (row.job, row.state, bool(row.scheduled)) == ("sales", "revoked", instant is not None)
    assert row.fire_at == (instant if instant is not None else EPOCH + 7.0)


# ---- values that are stored


def test_a_policy_is_the_same_after_it_was_stored() -> None:
    policy = Policy("hold", "queue", 3, 0, 1.5, "linear", 86400.25)
    again = Policy.unpack(policy.pack())
    assert [getattr(again, name) for name in Policy.__slots__] == [getattr(policy, name) for name in Policy.__slots__]


# ---- a ledger that went back


def restore(nodes: Nodes, grant: Grant, state: str = "started", **changes: Any) -> Answer:
    of = nodes.of(grant.run, overlap="allow", **changes)
    return nodes.ask(
        Restore(
            of=of,
            grant=grant,
            node="edge-1.10",
            lease_s=LEASE_S,
            state=state,
            exit_code=3,
            reason="said a witness",
            application_id="app_7",
        )
    )


@pytest.fixture
def forgotten(nodes: Nodes) -> Grant:
    """A run was started; then the ledger returned to a time before the run."""
    assert isinstance(nodes.ledger, MemoryLedger)
    before = nodes.ledger.snapshot()
    grant = nodes.started(nodes.of(overlap="allow"))
    nodes.ledger.restore(before)
    nodes.clock.recovering_s = 60.0
    return grant


def test_nothing_is_granted_or_launched_while_the_ledger_recovers(nodes: Nodes) -> None:
    claimed = nodes.granted(nodes.of("sales#0", overlap="allow"))
    started = nodes.started(nodes.of("sales#9", overlap="allow"))
    nodes.clock.recovering_s = 60.0
    answer = nodes.claim(nodes.of(overlap="allow"))
    assert (answer.word, answer.left_s, answer.in_s) == ("recovering", 60.0, 60.0)
    assert nodes.claim(nodes.of("sales#0", overlap="allow")).word == "granted"  # the same grant, requested again
    assert nodes.claim(nodes.of("sales#0", overlap="allow"), nonce="b").word == "recovering"
    assert (nodes.gate(claimed).word, nodes.gate(claimed).in_s) == ("early", 60.0)
    # a witness that knew only of the grant may have restored the attempt in this state
    assert nodes.gate(started).word == "early"
    assert nodes.renew(claimed).word == nodes.renew(started).word == "ok"
    sweep = nodes.ledger.ask(ListOpen())
    assert isinstance(sweep, OpenAnswer)
    assert sweep.recovering_s == 60.0
    nodes.clock.recovering_s = 0.0
    assert nodes.gate(claimed).word == "ok"


def test_whoever_holds_a_forgotten_grant_is_asked_for_it(nodes: Nodes, forgotten: Grant) -> None:
    for ask in (nodes.gate, nodes.renew, nodes.report, nodes.commit):
        assert ask(forgotten).word == "recovering", ask
    assert restore(nodes, forgotten).word == "ok"
    assert (nodes.gate(forgotten).word, nodes.renew(forgotten).word, nodes.report(forgotten).word) == (
        "early",
        "ok",
        "ok",
    )
    assert nodes.state(RUN) == "success"


def test_nothing_is_asked_for_or_restored_without_a_quarantine(nodes: Nodes, forgotten: Grant) -> None:
    nodes.clock.recovering_s = 0.0
    assert (nodes.renew(forgotten).word, nodes.report(forgotten).word) == ("lost", "stale")
    assert restore(nodes, forgotten).word == "stale"
    assert nodes.state(RUN) == ""


def test_a_restored_run_has_a_whole_lease_and_its_token_is_a_lower_bound(nodes: Nodes, forgotten: Grant) -> None:
    nodes.clock.wall -= 5000.0  # the new primary has another clock
    answer = restore(nodes, forgotten)
    assert (answer.word, answer.left_s, answer.state) == ("ok", LEASE_S, "started")
    row = nodes.ledger.run(RUN)
    assert row is not None
    assert (row.token, row.nonce, row.node, row.application_id) == (forgotten.token, "n1", "edge-1.10", "app_7")
    nodes.clock.recovering_s = 0.0
    assert nodes.claim(nodes.of(overlap="allow"), nonce="b").word == "held"
    assert nodes.granted(nodes.of("sales#2", overlap="allow")).token > forgotten.token


def test_a_restored_claim_passes_the_gate_only_after_the_quarantine(nodes: Nodes, forgotten: Grant) -> None:
    assert restore(nodes, forgotten, "received").state == "received"
    assert nodes.gate(forgotten).word == "early"
    assert restore(nodes, forgotten, "started").state == "started"  # another witness knows a later state
    assert restore(nodes, forgotten, "received").state == "started"


@pytest.mark.parametrize(
    ("state", "policy", "becomes"),
    [
        ("success", {}, "success"),
        ("failure", {}, "failure"),
        ("failure", {"attempts": 2}, "retry"),
        ("revoked", {}, "revoked"),
        ("lost", {}, "retry"),
        ("lost", {"on_lost": "hold"}, "unknown"),
    ],
)
def test_an_end_is_restored_as_if_it_were_reported(
    nodes: Nodes, forgotten: Grant, state: str, policy: dict[str, Any], becomes: str
) -> None:
    for _ in range(2):
        assert restore(nodes, forgotten, state, **policy).word == "ok"
        assert nodes.state(RUN) == becomes
    assert restore(nodes, forgotten, "started", **policy).word == "ok"
    assert nodes.state(RUN) == becomes
    if becomes not in ("retry", "unknown"):
        assert nodes.report(forgotten, state, 3).word == "ok"


def test_a_restored_run_is_tried_no_more_often_than_its_job_allows(nodes: Nodes, forgotten: Grant) -> None:
    forgotten.attempt = AttemptNumber(3)
    restore(nodes, forgotten, attempts=2, relaunches=2)
    assert nodes.report(forgotten, "failure", 1).word == "ok"
    assert nodes.state(RUN) == "failure"


def test_nothing_newer_and_nothing_that_is_over_is_moved_back(nodes: Nodes, forgotten: Grant) -> None:
    restore(nodes, forgotten)
    older = granted_as(RUN, Answer("granted", token=forgotten.token - 1), "other")
    twin = granted_as(RUN, Answer("granted", token=forgotten.token), "other")
    for wrong in (older, twin):
        assert restore(nodes, wrong).word == "stale"
    newer = granted_as(RUN, Answer("granted", token=forgotten.token + 5, attempt=1), "newer")
    assert restore(nodes, newer).word == "ok"
    assert [attempt.state for attempt in nodes.ledger.attempts(RUN)] == ["lost", "started"]
    # the ledger knows the attempt, and it is over
    assert (restore(nodes, forgotten).word, nodes.renew(forgotten).word) == ("ok", "lost")
    nodes.report(newer)
    newest = granted_as(RUN, Answer("granted", token=forgotten.token + 9, attempt=2), "newest")
    assert (restore(nodes, newest).word, nodes.state(RUN)) == ("stale", "success")
    assert job_of(nodes).fence == forgotten.token + 9


def test_a_restored_fire_time_is_not_planned_again_and_older_ones_stay_open(nodes: Nodes) -> None:
    job_of(nodes)
    nodes.clock.step(100.0)
    nodes.clock.recovering_s = 60.0
    grant = granted_as("sales@20", Answer("granted", token=int(EPOCH * 1e6)), "n1")
    of = nodes.of("sales@20", fire_at=EPOCH + 20.0)
    assert (
        nodes.ask(Restore(of=of, grant=grant, node="edge-1.10", lease_s=LEASE_S, state="success", exit_code=0)).word
        == "ok"
    )
    nodes.clock.recovering_s = 0.0
    job = job_of(nodes)
    assert (job.horizon, job.last_fire_at) == (EPOCH, EPOCH + 20.0)
    assert nodes.claim(of).state == "success"
    assert nodes.claim(nodes.of("sales@10", fire_at=EPOCH + 10.0)).word == "granted"


def test_a_launch_whose_gate_was_forgotten_is_known_again_with_the_next_renewal(nodes: Nodes) -> None:
    """Otherwise the ledger would let it lapse like an attempt that was never launched, and grant it again."""
    grant = nodes.granted(nodes.of())

    assert nodes.ask(Renew(grant=grant, lease_s=LEASE_S, launched=True)).word == "ok"

    row = nodes.ledger.run(grant.run)
    assert row is not None
    assert (row.state, row.attempt) == ("started", 0)
    assert nodes.ask(Commit(grant=grant)).word == "ok"


@pytest.mark.parametrize(("recovering_s", "state"), [(0.0, "retry"), (10.0, "unknown")])
def test_a_held_run_that_may_have_been_past_a_forgotten_gate_is_not_launched_again(
    nodes: Nodes, recovering_s: float, state: str
) -> None:
    """Its node reports it as lost. A ledger that lost writes does not know whether the run was started (seed 1004)."""
    grant = nodes.granted(nodes.of(on_lost="hold"))
    nodes.clock.recovering_s = recovering_s
    assert nodes.report(grant, "lost", None, reason="the machine goes down").word == "ok"
    assert nodes.state(RUN) == state
