"""How attempts end: leases, losses, pauses, and requests that come too late."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import LEASE_S, Nodes, granted_as, watched_of

from contract.ledger.corners.both import A, B, of
from coordd.core.ledger.requests import Cancel, Claim, Register, Settle
from coordd.core.ledger.words import CLAIM_AHEAD_S, AttemptNumber


def test_who_watched_a_lease_must_have_seen_all_of_it(nodes: Nodes) -> None:
    grant = nodes.started(of(nodes, A))
    row = nodes.ledger.run(A)
    assert row is not None
    enough = LEASE_S * 1.02
    for step in (0.0, LEASE_S - 0.5, 0.5):
        nodes.clock.step(step)
        for watched in (
            None,
            watched_of(row.token, row.beat, enough - 0.01),
            watched_of(row.token + 1, row.beat, enough),
            watched_of(row.token, row.beat + 1, enough),
        ):
            assert nodes.claim(of(nodes, A), nonce="b", watched=watched).word == "held"
            assert nodes.ask(Settle(run=A, attempt=AttemptNumber(0), watched=watched)).word == "held"
    assert (
        nodes.ask(Settle(run=A, attempt=AttemptNumber(0), watched=watched_of(row.token, row.beat, enough))).word
        == "lost"
    )
    assert nodes.renew(grant).word == "lost"


@pytest.mark.parametrize("on_lost", ["relaunch", "hold"])
@pytest.mark.parametrize("relaunches", [0, 1, 9])
@pytest.mark.parametrize("cancelled", [False, True])
def test_an_attempt_that_is_lost_again_and_again(nodes: Nodes, on_lost: str, relaunches: int, cancelled: bool) -> None:
    policy: dict[str, Any] = {"on_lost": on_lost, "relaunches": relaunches}
    for attempt in range(4):
        answer = nodes.claim(of(nodes, A, **policy), attempt, nonce=f"n{attempt}")
        if answer.word != "granted":
            break
        grant = granted_as(A, answer, f"n{attempt}")
        nodes.gate(grant)
        nodes.clock.step((0.0, 9.5, 10.0, 0.5)[attempt])
        if cancelled and attempt == 1:
            nodes.ask(Cancel(run=A, by="ann"))
        nodes.report(grant, "lost" if attempt != 2 else "retry", None, reason=f"gone {attempt}")
        nodes.report(grant, "lost", None, reason="said twice")
        nodes.clock.step(70.0)


@pytest.mark.parametrize("on_lost", ["relaunch", "hold"])
@pytest.mark.parametrize("relaunches", [0, 1])
@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("said", ["success", "failure", "lost", "retry", "revoked"])
def test_an_attempt_that_never_passed_its_gate_reports_its_end(
    nodes: Nodes, on_lost: str, relaunches: int, cancelled: bool, said: str
) -> None:
    grant = nodes.granted(of(nodes, A, on_lost=on_lost, relaunches=relaunches))
    if cancelled:
        nodes.ask(Cancel(run=A, by="ann"))
    for _ in range(2):
        nodes.report(grant, said, 3, reason="why")


@pytest.mark.parametrize("said", ["success", "failure", "lost", "retry", "revoked"])
def test_an_unknown_attempt_reports_its_end(nodes: Nodes, said: str) -> None:
    grant = nodes.started(of(nodes, A, on_lost="hold", relaunches=0))
    nodes.report(grant, "lost", None, reason="out of sight")
    for _ in range(2):
        nodes.report(grant, said, 3, reason="why")


def test_a_held_run_that_was_cancelled_is_lost_and_found_twice(nodes: Nodes) -> None:
    grant = nodes.started(of(nodes, A, on_lost="hold"))
    nodes.ask(Cancel(run=A, by="ann"))
    for _ in range(2):
        assert nodes.ask(Settle(run=A, attempt=AttemptNumber(0), watched=nodes.lapse(A))).state == "unknown"
        assert nodes.renew(grant).word == "cancel"


def test_short_leases_that_lapse_are_followed_by_a_pause(nodes: Nodes) -> None:
    for attempt in range(4):
        claim = Claim(
            of=of(nodes, A), attempt=AttemptNumber(attempt), nonce=f"n{attempt}", node="edge-1.10", lease_s=2.0
        )
        answer = nodes.ask(claim)
        nodes.gate(granted_as(A, answer, f"n{attempt}"))
        nodes.clock.step(2.1)
        assert (
            nodes.ask(Settle(run=A, attempt=AttemptNumber(attempt), watched=watched_of(answer.token, 1, 2.1))).word
            == "lost"
        )
        nodes.clock.step(30.0)


@pytest.mark.parametrize("backoff", ["fixed", "linear", "exponential"])
def test_the_pauses_between_failures(nodes: Nodes, backoff: str) -> None:
    policy: dict[str, Any] = {"attempts": 5, "delay_s": 7000.0, "backoff": backoff, "start_within_s": 1e6}
    for attempt in range(5):
        grant = nodes.started(of(nodes, A, **policy), attempt, nonce=f"n{attempt}")
        nodes.report(grant, "failure", 3, reason="boom")
        nodes.clock.step(30_000.0)


@pytest.mark.parametrize("jitter", ["jitter=1", "slots:pool/p=3,jitter=1000", "jitter=77777,jitter=5", "jitter=x"])
def test_the_jitter_of_the_pauses(nodes: Nodes, jitter: str) -> None:
    policy: dict[str, Any] = {"attempts": 4, "delay_s": 7000.0, "limits": jitter, "start_within_s": 1e6}
    for run in (A, "sales#é"):
        for attempt in range(4):
            grant = nodes.started(of(nodes, run, **policy), attempt, nonce=f"n{attempt}")
            nodes.report(grant, "failure", 3, reason="boom")
            nodes.claim(of(nodes, run, **policy), attempt, nonce="late")  # tells when the next one is due
            nodes.clock.step(14_000.0)


# ---- requests that come too late


@pytest.mark.parametrize("asks", ["claim", "settle"])
@pytest.mark.parametrize("late_s", [-0.5, 0.0, 0.5, 600.0])
@pytest.mark.parametrize("digest", ["d1", "d2"])
def test_a_run_that_nobody_launched_in_time(nodes: Nodes, asks: str, late_s: float, digest: str) -> None:
    nodes.ask(Register(of=of(nodes, A, start_within_s=100.0)))
    granted = nodes.granted(of(nodes, B, start_within_s=100.0))
    nodes.clock.step(100.0 + late_s)
    watched = watched_of(granted.token, 0, LEASE_S * 1.02)

    for run in (A, B):
        if asks == "claim":
            nodes.claim(of(nodes, run, start_within_s=5.0, digest=digest), nonce="c", watched=watched)
        else:
            nodes.ask(Settle(run=run, attempt=AttemptNumber(0), watched=watched))


# ---- pauses under a clock that is set back


@pytest.mark.parametrize(
    ("attempts", "backoff", "back_s", "left_s"),
    [
        (2, "linear", 0.0, 100.0),
        (2, "linear", 0.5, 0.0),
        (2, "linear", 50.0, 0.0),
        (3, "linear", 99.0, 199.0),
        (3, "linear", 101.0, 0.0),
        (3, "fixed", 50.0, 0.0),
        (1, "fixed", 50.0, 0.0),
    ],
)
def test_no_pause_is_longer_than_the_longest_of_the_policy(
    nodes: Nodes, attempts: int, backoff: str, back_s: float, left_s: float
) -> None:
    policy = {"attempts": attempts, "backoff": backoff, "delay_s": 100.0}
    nodes.report(nodes.started(of(nodes, A, **policy)), "failure", 1)
    nodes.clock.step(-back_s)

    answer = nodes.claim(of(nodes, A, **policy), 1)

    assert answer.in_s == pytest.approx(max(0.0, left_s - CLAIM_AHEAD_S))
    assert answer.word == ("finished" if attempts == 1 else "early" if left_s else "granted")


@pytest.mark.parametrize(("back_s", "word"), [(50.0, "early"), (70.0, "granted")])
def test_a_pause_after_a_loss_may_be_longer_than_those_of_the_policy(nodes: Nodes, back_s: float, word: str) -> None:
    policy = {"relaunches": 5, "delay_s": 0.0}
    nodes.report(nodes.started(of(nodes, A, **policy)), "lost")
    nodes.report(nodes.started(of(nodes, A, **policy), 1, nonce="b"), "lost")
    nodes.clock.step(-back_s)

    assert nodes.claim(of(nodes, A, **policy), 2, nonce="c").word == word


def test_a_trigger_waits_for_no_clock_that_is_set_back(nodes: Nodes) -> None:
    nodes.ask(Register(of=of(nodes, A)))
    nodes.clock.step(-0.5)

    assert nodes.claim(of(nodes, A)).word == "granted"
