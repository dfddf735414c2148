"""Every ledger adapter: each operation of a run's life and each answer, for a first and for a repeated request."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import EPOCH, LEASE_S, Nodes, grant_of, held_of, row_of, swept, watched_of

from coordd.core.ledger.requests import Register, Revoke, Suspend
from coordd.core.ledger.runner_requests import Gate, Grant, Renew
from coordd.core.ledger.words import AttemptNumber, Token

RUN = "sales#1"
FIRE = "sales@2025-01-29T08:00:00Z"


# ---- register


def test_a_trigger_is_recorded_once_and_its_id_belongs_to_its_arguments(nodes: Nodes) -> None:
    assert nodes.ask(Register(of=nodes.of())).word == "ok"
    before = row_of(nodes)
    nodes.clock.step(1.0)
    assert nodes.ask(Register(of=nodes.of())).word == "exists"
    assert nodes.ask(Register(of=nodes.of(digest="d2"))).word == "conflict"
    assert nodes.ask(Register(of=nodes.of(args='{"day":"2"}'))).word == "conflict"
    assert row_of(nodes) == before
    assert before["state"] == "pending"
    assert before["created_at"] == EPOCH


def test_the_arguments_of_the_registration_come_with_the_grant(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(args='{"day":"1"}')))
    assert nodes.claim(nodes.of()).args == '{"day":"1"}'


def test_a_trigger_is_dated_by_the_ledger_and_its_age_not_by_the_asking_nodes_clock(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(fire_at=EPOCH + 5000.0, age_s=40.0, start_within_s=39.0)))
    assert row_of(nodes)["fire_at"] == row_of(nodes)["not_before"] == EPOCH - 40.0
    assert nodes.claim(nodes.of(start_within_s=39.0)).state == "missed"


# ---- claim


def test_a_claim_that_knows_a_trigger_from_its_election_alone_makes_no_row(nodes: Nodes) -> None:
    for _ in range(2):
        assert nodes.claim(nodes.of(), opens=False).word == "unrecorded"
        assert nodes.ledger.run(RUN) is None
    assert nodes.claim(nodes.of(), 1, opens=False).word == "finished"
    nodes.clock.step(1.0)
    assert nodes.claim(nodes.of("sales@x", overlap="allow"), opens=False).word == "unrecorded"
    assert nodes.claim(nodes.of("sales@x", overlap="allow"), opens=True).word == "granted"

    nodes.ask(Register(of=nodes.of(overlap="allow")))

    assert nodes.claim(nodes.of(overlap="allow"), opens=False).word == "granted"


def test_a_repeated_claim_gets_its_grant_again_only_with_the_definition_that_was_granted(nodes: Nodes) -> None:
    first = nodes.claim(nodes.of())
    again = nodes.claim(nodes.of(digest="d2", on_lost="hold"))

    assert (again.word, again.state) == ("differs", "received")
    assert nodes.claim(nodes.of()).token == first.token
    assert row_of(nodes)["policy"] == nodes.of().policy.pack()


def test_whether_a_run_was_missed_is_decided_by_the_definition_it_was_asked_for_with(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(start_within_s=3600.0)))
    nodes.clock.step(100.0)

    assert nodes.claim(nodes.of(digest="d2", start_within_s=10.0)).word == "differs"
    assert nodes.state(RUN) == "pending"


def test_a_run_is_granted_to_one_node_and_held_for_the_others(nodes: Nodes) -> None:
    first = nodes.claim(nodes.of(), node="edge-1.10", nonce="a")
    assert (first.word, first.left_s) == ("granted", LEASE_S)
    nodes.clock.step(10.0)
    other = nodes.claim(nodes.of(), node="edge-2.20", nonce="b")
    assert (other.word, other.by, other.left_s, other.held) == ("held", "edge-1.10", 50.0, held_of(first.token, 0))


def test_a_lost_reply_to_a_claim_is_asked_again(nodes: Nodes) -> None:
    first = nodes.claim(nodes.of(), nonce="a")
    before = row_of(nodes)
    nodes.clock.step(5.0)
    again = nodes.claim(nodes.of(), nonce="a")
    assert (again.word, again.token, again.left_s) == ("granted", first.token, LEASE_S)
    # The lease begins again in full, so nodes that watch it begin again.
    until = before["until"]
    assert isinstance(until, float)
    assert row_of(nodes) == {**before, "until": until + 5.0, "beat": 1}


def test_a_run_is_claimed_a_little_ahead_but_not_more(nodes: Nodes) -> None:
    of = nodes.of("sales@2025-01-29T08:01:05Z", fire_at=EPOCH + 65.0)
    early = nodes.claim(of)
    assert (early.word, early.in_s) == ("early", 60.0)
    nodes.clock.step(60.0)
    assert nodes.claim(of).word == "granted"


def test_a_scheduled_run_of_a_settled_past_is_finished(nodes: Nodes) -> None:
    swept(nodes, "sales")  # the ledger learns of the job now
    assert nodes.claim(nodes.of(FIRE, fire_at=EPOCH)).word == "finished"
    assert nodes.claim(nodes.of("sales@2025-01-29T08:00:01Z", fire_at=EPOCH + 1.0)).word == "granted"


def test_a_fire_time_that_retention_has_forgotten_is_not_begun_again(nodes: Nodes) -> None:
    """A node that was frozen meanwhile registers the run, and a person revokes it (simulator, seeds 260 and 150)."""
    swept(nodes, "sales")
    of = nodes.of("sales@2025-01-29T08:00:01Z", fire_at=EPOCH + 1.0)
    nodes.clock.step(1.0)
    nodes.report(nodes.started(of))
    nodes.clock.step(100.0)
    assert nodes.ledger.prune(10.0) == 1

    assert nodes.ask(Register(of=of)).state == "settled"
    assert nodes.ask(Revoke(run=of.run, by="ops")).word == "finished"
    assert nodes.claim(of).word == "finished"
    assert nodes.ledger.run(of.run) is None


def test_an_attempt_that_nobody_knows_cannot_be_claimed(nodes: Nodes) -> None:
    assert nodes.claim(nodes.of(), 1).word == "finished"
    nodes.ask(Register(of=nodes.of()))
    assert nodes.claim(nodes.of(), 1).word == "held"
    assert nodes.state(RUN) == "pending"


def test_another_definition_of_the_job_is_not_launched(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of()))
    assert nodes.claim(nodes.of(digest="d2")).word == "differs"
    assert nodes.claim(nodes.of()).word == "granted"


def test_a_run_that_is_too_late_is_missed_with_its_reason(nodes: Nodes) -> None:
    of = nodes.of(start_within_s=30.0)
    nodes.ask(Register(of=of))
    nodes.clock.step(31.0)
    assert (nodes.claim(of).word, nodes.state(RUN)) == ("finished", "missed")
    assert "within 30 s" in str(row_of(nodes)["reason"])


def test_a_suspended_job_waits(nodes: Nodes) -> None:
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    answer = nodes.claim(nodes.of())
    assert (answer.word, answer.by) == ("limited", "suspended")
    nodes.ask(Suspend(job="sales", suspended=False, by="ann"))
    assert nodes.claim(nodes.of()).word == "granted"


def test_a_claimed_run_whose_holder_died_before_the_gate_is_granted_again(nodes: Nodes) -> None:
    first = nodes.granted(nodes.of(), nonce="a", node="edge-1.10")
    watched = nodes.lapse(RUN)
    second = nodes.granted(nodes.of(), nonce="b", node="edge-2.20", watched=watched)
    assert (second.attempt, second.token > first.token) == (0, True)
    assert nodes.gate(first).word == "stale"
    assert nodes.gate(second).word == "ok"


def test_a_launched_run_whose_holder_died_is_lost_and_its_next_attempt_granted(nodes: Nodes) -> None:
    first = nodes.started(nodes.of(), nonce="a")
    watched = nodes.lapse(RUN)
    answer = nodes.claim(nodes.of(), nonce="b", watched=watched)
    assert (answer.word, answer.attempt, answer.in_s) == ("lost", 1, 0.0)
    assert nodes.claim(nodes.of(), nonce="c").word == "lost"
    second = nodes.started(nodes.of(), 1, nonce="b")
    assert second.token > first.token
    assert [attempt.state for attempt in nodes.ledger.attempts(RUN)] == ["lost", "started"]


@pytest.mark.parametrize(("launched", "word"), [(False, "granted"), (True, "lost")])
def test_a_lease_is_not_lapsed_for_who_has_not_watched_it(nodes: Nodes, launched: bool, word: str) -> None:
    grant = nodes.granted(nodes.of())
    if launched:
        nodes.gate(grant)
    seen = nodes.lapse(RUN)
    token, beat, seconds = seen.token, seen.beat, seen.unchanged_s
    short_s, enough_s = LEASE_S * 1.0199, LEASE_S * 1.0201  # a lease, and twice the tolerated clock-rate error of 1 %
    for watched in (
        None,
        watched_of(token + 1, beat, seconds),
        watched_of(token, beat - 1, seconds),
        watched_of(token, beat, short_s),
    ):
        assert nodes.claim(nodes.of(), nonce="b", watched=watched).word == "held", watched
    assert nodes.claim(nodes.of(), nonce="b", watched=watched_of(token, beat, enough_s)).word == word


def test_a_launched_run_under_hold_becomes_unknown_and_is_never_granted(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of(on_lost="hold"))
    watched = nodes.lapse(RUN)
    of = nodes.of(on_lost="hold")
    assert nodes.claim(of, nonce="b", watched=watched).word == "held"
    assert nodes.state(RUN) == "unknown"
    assert nodes.gate(grant).word == "stale"
    nodes.clock.step(1e6)
    assert nodes.claim(of, nonce="b", watched=watched_of(watched.token, watched.beat, 1e6)).word == "held"
    assert nodes.claim(of, 1, nonce="b").word == "held"


def test_a_grant_takes_over_the_policy_of_who_claims(nodes: Nodes) -> None:
    nodes.ask(Register(of=nodes.of(attempts=1)))
    nodes.report(nodes.started(nodes.of(attempts=2)), "failure", 1)
    assert nodes.state(RUN) == "retry"


def test_a_finished_run_stays_finished(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of())
    nodes.report(grant)
    before = row_of(nodes)
    assert (nodes.claim(nodes.of()).word, nodes.claim(nodes.of()).state) == ("finished", "success")
    assert row_of(nodes) == before


# ---- gate, renew


def test_the_gate_opens_at_the_fire_time_once_and_says_so_again(nodes: Nodes) -> None:
    grant = nodes.granted(nodes.of(FIRE, fire_at=EPOCH + 3.0))
    early = nodes.gate(grant)
    assert (early.word, early.in_s) == ("early", 3.0)
    nodes.clock.step(3.0)
    assert (nodes.gate(grant).word, nodes.gate(grant).left_s) == ("ok", LEASE_S - 3.0)
    row = row_of(nodes, FIRE)
    assert (row["state"], row["beat"], row["started_at"]) == ("started", 1, EPOCH + 3.0)


def test_the_gate_is_closed_to_who_is_late_unknown_or_no_longer_wanted(nodes: Nodes) -> None:
    grant = nodes.granted(nodes.of())
    for wrong in (
        grant_of(RUN, 0, grant.token, "other"),
        grant_of(RUN, 0, grant.token - 1, "n1"),
        grant_of(RUN, 1, grant.token, "n1"),
    ):
        assert nodes.ask(Gate(grant=wrong)).word == "stale"
    assert (
        nodes.ask(Gate(grant=Grant(run="no such run", attempt=AttemptNumber(0), token=Token(1), nonce="n1"))).word
        == "stale"
    )
    nodes.clock.step(LEASE_S)
    assert nodes.gate(grant).word == "stale"
    assert nodes.state(RUN) == "received"


def test_a_job_suspended_after_the_claim_does_not_pass_the_gate(nodes: Nodes) -> None:
    grant = nodes.granted(nodes.of())
    nodes.ask(Suspend(job="sales", suspended=True, by="ann"))
    assert nodes.gate(grant).word == "early"
    nodes.ask(Suspend(job="sales", suspended=False, by="ann"))
    assert nodes.gate(grant).word == "ok"


def test_a_renewal_extends_the_lease_and_keeps_the_application(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of())
    nodes.clock.step(50.0)
    answer = nodes.renew(grant, "application_17")
    assert (answer.word, answer.left_s) == ("ok", LEASE_S)
    row = row_of(nodes)
    assert (row["until"], row["beat"], row["application_id"]) == (nodes.clock.lease + LEASE_S, 2, "application_17")
    nodes.renew(grant)
    assert row_of(nodes)["application_id"] == "application_17"


def test_a_renewal_is_lost_for_who_does_not_hold_the_run(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of())
    assert (
        nodes.ask(
            Renew(
                grant=Grant(run=RUN, attempt=AttemptNumber(0), token=grant.token, nonce="other"),
                lease_s=LEASE_S,
                launched=True,
            )
        ).word
        == "lost"
    )
    nodes.report(grant)
    assert nodes.renew(grant).word == "lost"


def test_a_holder_that_comes_back_in_time_keeps_an_unknown_run(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of(on_lost="hold"))
    nodes.claim(nodes.of(on_lost="hold"), nonce="b", watched=nodes.lapse(RUN))
    assert nodes.state(RUN) == "unknown"
    assert nodes.renew(grant).word == "ok"
    assert nodes.state(RUN) == "started"
    assert nodes.report(grant).word == "ok"


# ---- report


@pytest.mark.parametrize(
    ("policy", "state", "final", "ends", "attempt_ends"),
    [
        ({}, "success", False, "success", "success"),
        ({}, "failure", False, "failure", "failure"),
        ({}, "revoked", False, "revoked", "revoked"),
        ({"attempts": 2}, "failure", False, "retry", "failure"),
        ({"attempts": 2}, "failure", True, "failure", "failure"),
        ({}, "lost", False, "retry", "lost"),
        ({"relaunches": 0}, "lost", False, "lost", "lost"),
        ({"on_lost": "hold"}, "lost", False, "unknown", "unknown"),
        ({}, "retry", False, "retry", "lost"),
        ({"on_lost": "hold"}, "retry", False, "retry", "lost"),
    ],
)
def test_a_report_ends_the_attempt_once(
    nodes: Nodes, policy: dict[str, Any], state: str, final: bool, ends: str, attempt_ends: str
) -> None:
    grant = nodes.started(nodes.of(**policy))
    nodes.clock.step(1.0)
    assert nodes.report(grant, state, 3, reason="why", final=final).word == "ok"
    after = row_of(nodes)
    assert (after["state"], after["exit_code"]) == (ends, 3)
    assert [attempt.state for attempt in nodes.ledger.attempts(RUN)] == [attempt_ends]
    nodes.clock.step(1.0)
    assert nodes.report(grant, state, 3, reason="why", final=final).word == "ok"  # the reply was lost
    assert row_of(nodes) == after
    if ends != "unknown":
        assert nodes.report(grant, "success" if state != "success" else "failure").word == "stale"
        assert row_of(nodes) == after


@pytest.mark.parametrize("wrong", ["token", "nonce", "both, of the attempt before", "the attempt before"])
@pytest.mark.parametrize("policy", [{}, {"on_lost": "hold"}])
def test_nobody_ends_an_attempt_that_was_not_granted_to_them(nodes: Nodes, policy: dict[str, Any], wrong: str) -> None:
    first = nodes.started(nodes.of())
    nodes.report(first, "lost")
    second = nodes.started(nodes.of(**policy), 1, nonce="b")
    others = {
        "token": grant_of(RUN, 1, first.token, second.nonce),
        "nonce": grant_of(RUN, 1, second.token, first.nonce),
        "both, of the attempt before": grant_of(RUN, 1, first.token, first.nonce),
        "the attempt before": grant_of(RUN, 0, second.token, second.nonce),
    }
    before = row_of(nodes)
    assert nodes.report(others[wrong], "lost", None, reason="its machine has restarted").word == "stale"
    assert row_of(nodes) == before
    assert nodes.state(RUN) == "started"


def test_attempts_that_die_at_once_are_not_hurried(nodes: Nodes) -> None:
    of = nodes.of(relaunches=10)
    pauses = []
    for attempt in range(10):
        nodes.report(nodes.started(of, attempt), "lost")
        pauses.append(row_of(nodes)["not_before"] - nodes.clock.wall)
        nodes.clock.step(pauses[-1])
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0, 64.0]


@pytest.mark.parametrize(("lived_s", "pause_s"), [(9.0, 1.0), (10.0, 0.0)])
def test_an_attempt_that_lived_a_while_is_followed_at_once(nodes: Nodes, lived_s: float, pause_s: float) -> None:
    of = nodes.of()
    nodes.report(nodes.started(of), "lost")
    grant = nodes.started(of, 1)
    nodes.clock.step(lived_s)
    nodes.report(grant, "lost")
    assert row_of(nodes)["not_before"] - nodes.clock.wall == pause_s


def test_a_failed_run_is_due_again_after_its_delay(nodes: Nodes) -> None:
    of = nodes.of(attempts=2, delay_s=30.0)
    nodes.report(nodes.started(of), "failure", 1)
    answer = nodes.claim(of, 1)
    assert (answer.word, answer.in_s) == ("early", 25.0)
    nodes.clock.step(30.0)
    nodes.report(nodes.started(of, 1), "failure", 1)
    assert nodes.state(RUN) == "failure"


def test_a_report_of_a_lost_attempt_comes_too_late(nodes: Nodes) -> None:
    first = nodes.started(nodes.of())
    nodes.claim(nodes.of(), nonce="b", watched=nodes.lapse(RUN))
    assert nodes.report(first).word == "stale"
    second = nodes.started(nodes.of(), 1, nonce="b")
    assert nodes.report(first).word == "stale"
    assert nodes.report(second).word == "ok"
    assert [attempt.state for attempt in nodes.ledger.attempts(RUN)] == ["lost", "success"]


def test_a_late_report_settles_an_unknown_run(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of(on_lost="hold"))
    nodes.claim(nodes.of(on_lost="hold"), nonce="b", watched=nodes.lapse(RUN))
    assert nodes.report(grant).word == "ok"
    assert nodes.state(RUN) == "success"


def test_a_success_counts_although_the_gate_was_forgotten(nodes: Nodes) -> None:
    assert nodes.report(nodes.granted(nodes.of())).word == "ok"
    assert nodes.state(RUN) == "success"


def test_who_has_given_a_run_up_does_not_pass_the_gate_again(nodes: Nodes) -> None:
    grant = nodes.started(nodes.of(on_lost="hold"))
    nodes.report(grant, "lost", None)
    assert nodes.gate(grant).word == "stale"
    assert nodes.state(RUN) == "unknown"


# ---- commit


def test_one_attempt_commits(nodes: Nodes) -> None:
    first = nodes.granted(nodes.of())
    assert nodes.commit(first).word == "stale"  # not launched yet
    nodes.gate(first)
    assert (nodes.commit(first).word, nodes.commit(first).word) == ("ok", "ok")
    nodes.claim(nodes.of(), nonce="b", watched=nodes.lapse(RUN))
    assert nodes.commit(first).word == "stale"
    second = nodes.started(nodes.of(), 1, nonce="b")
    assert nodes.commit(second).word == "stale"


def test_a_queue_goes_on_once_its_first_run_is_through(nodes: Nodes) -> None:
    running = nodes.started(nodes.of("sales#0"))
    first, second = (nodes.of(run, overlap="queue") for run in ("sales#1", "sales#2"))
    assert nodes.claim(first).word == "limited"
    nodes.clock.step(1.0)
    assert nodes.claim(second).by == "queue: sales#1 is first"
    nodes.report(running)
    assert nodes.claim(second).by == "queue: sales#1 is first"
    nodes.report(nodes.started(first))
    assert nodes.claim(second).word == "granted"
