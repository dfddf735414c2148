"""Limits are judged with the claim: slots of a pool and of a job, rates, and the length of a queue."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.ledger_calls import LEASE_S, Nodes, granted_as, swept
from support.stepped_redis import QUARANTINE_S

from contract.ledger.corners.both import restore
from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import HELD_BY_OTHERS
from coordd.core.ledger.limits.rule import DROPPED_MAX, LIMIT_RETRY_S
from coordd.core.ledger.requests import Keep, Register
from coordd.core.ledger.rows import OF_POOL

POOL = "slots:pool/heavy=2"


def claim(nodes: Nodes, run: str, limits: str, overlap: str = "allow", **more: object) -> Answer:
    of = nodes.of(run, limits=limits, overlap=overlap, **more)
    return nodes.claim(of, nonce=run)


def run_through(nodes: Nodes, run: str, limits: str) -> None:
    finish(nodes, run, claim(nodes, run, limits))


def finish(nodes: Nodes, run: str, granted: Answer, state: str = "success") -> None:
    assert granted.word == "granted"
    grant = granted_as(run, granted, run)
    assert nodes.gate(grant).word == "ok"
    nodes.report(grant, state)


def test_a_pool_is_shared_by_the_runs_of_all_jobs(nodes: Nodes) -> None:
    first = claim(nodes, "sales#1", POOL)
    assert claim(nodes, "third#1", POOL).word == "granted"

    waits = claim(nodes, "other#1", POOL)
    assert (waits.word, waits.by, waits.in_s) == ("limited", "pool heavy: 2 of 2 run", LIMIT_RETRY_S)
    assert nodes.state("other#1") == "pending"
    assert claim(nodes, "fourth#1", "slots:pool/light=1").word == "granted"

    finish(nodes, "sales#1", first)
    assert claim(nodes, "other#1", POOL).word == "granted"
    assert claim(nodes, "fourth#2", POOL).word == "limited"


def test_the_same_claim_again_needs_no_second_slot(nodes: Nodes) -> None:
    one = "slots:pool/heavy=1"
    first = claim(nodes, "sales#1", one)

    again = claim(nodes, "sales#1", one)

    assert (again.word, again.token) == ("granted", first.token)


@pytest.mark.parametrize("size", ["", "one", "\u0661", "-1"])
def test_a_size_that_is_no_number_does_not_count(nodes: Nodes, size: str) -> None:
    """It was written by hand: commands refuse it. The third one is an Arabic digit."""
    nodes.ask(Keep(key=OF_POOL + "heavy", held=True, by="ann", note=size))
    words = [claim(nodes, f"sales#{number}", POOL).word for number in range(3)]
    assert words == ["granted", "granted", "limited"]


def test_a_size_of_thousands_of_digits_does_no_harm(nodes: Nodes) -> None:
    nodes.ask(Keep(key=OF_POOL + "heavy", held=True, by="ann", note="9" * 5000))
    assert claim(nodes, "sales#1", POOL).word == "granted"
    assert claim(nodes, "sales#2", f"slots:pool/light={'9' * 5000}").word == "granted"


@pytest.mark.parametrize("size", ["", "1"])
def test_who_takes_over_a_grant_that_was_not_used_has_its_slot(nodes: Nodes, size: str) -> None:
    of = nodes.of("sales#1", limits=POOL, overlap="allow")
    nodes.granted(of)
    claim(nodes, "sales#2", POOL)
    if size:
        nodes.ask(Keep(key=OF_POOL + "heavy", held=True, by="ann", note=size))

    taken = nodes.claim(of, nonce="other", watched=nodes.lapse("sales#1"))

    assert taken.by == ("pool heavy: 1 of 1 run" if size else "")
    assert taken.word == ("limited" if size else "granted")


def test_who_takes_over_a_grant_under_other_limits_leaves_the_slot(nodes: Nodes) -> None:
    nodes.granted(nodes.of("sales#1", limits="slots:pool/heavy=1", overlap="allow"))
    other = nodes.of("sales#1", limits="slots:pool/light=1", overlap="allow")
    assert nodes.claim(other, nonce="other", watched=nodes.lapse("sales#1")).word == "granted"

    assert claim(nodes, "sales#2", "slots:pool/light=1").by == "pool light: 1 of 1 run"
    assert claim(nodes, "sales#3", "slots:pool/heavy=1").word == "granted"


def test_a_size_that_a_person_set_counts_until_its_end(nodes: Nodes) -> None:
    claim(nodes, "sales#1", POOL)
    key = OF_POOL + "heavy"
    nodes.ask(Keep(key=key, held=True, by="ann", until=nodes.clock.wall + 60.0, note="1"))
    assert swept(nodes, "sales").holds[key].note == "1"
    assert claim(nodes, "sales#2", POOL).by == "pool heavy: 1 of 1 run"

    nodes.clock.step(61.0)
    assert claim(nodes, "sales#2", POOL).word == "granted"
    nodes.ask(Keep(key=key, held=True, by="ann", note="3"))
    assert claim(nodes, "sales#3", POOL).word == "granted"
    nodes.ask(Keep(key=key, held=False, by="ann"))
    assert claim(nodes, "sales#4", POOL).by == "pool heavy: 3 of 2 run"


def test_a_run_that_waits_for_its_retry_holds_no_slot(nodes: Nodes) -> None:
    one = "slots:job/sales=1"
    finish(nodes, "sales#1", claim(nodes, "sales#1", one, attempts=2), "failure")
    assert nodes.state("sales#1") == "retry"

    assert claim(nodes, "sales#2", one).word == "granted"


def test_the_slots_of_one_token_are_its_own(nodes: Nodes) -> None:
    assert claim(nodes, "sales#1", "slots:job/sales/aa=1").word == "granted"
    assert claim(nodes, "sales#2", "slots:job/sales/bb=1").word == "granted"
    assert claim(nodes, "sales#3", "slots:job/sales/aa=1").by == "concurrency: 1 of 1 run"


def test_no_slots_at_all_suspend(nodes: Nodes) -> None:
    assert claim(nodes, "sales#1", "slots:job/sales=0").by == "concurrency: 0 of 0 run"
    assert claim(nodes, "sales#1", "rate:job/sales=0/60").word == "limited"


def test_a_rate_is_a_window_that_slides(nodes: Nodes) -> None:
    rate = "rate:job/sales=2/60"
    run_through(nodes, "sales#1", rate)
    nodes.clock.step(20.0)
    run_through(nodes, "sales#2", rate)
    nodes.clock.step(30.0)

    waits = claim(nodes, "sales#3", rate)
    assert (waits.word, waits.by) == ("limited", "rate: 2 started within 60 s")
    assert waits.in_s == pytest.approx(10.0, abs=0.001)
    nodes.clock.step(10.1)
    run_through(nodes, "sales#3", rate)
    assert claim(nodes, "sales#4", rate).in_s == pytest.approx(19.9, abs=0.001)
    nodes.clock.step(19.5)
    assert claim(nodes, "sales#4", rate).in_s == pytest.approx(0.4, abs=0.001)
    assert claim(nodes, "sales#4", "rate:job/sales=1/60").in_s == pytest.approx(40.5, abs=0.001)


def test_a_start_that_is_claimed_ahead_counts_from_its_time(nodes: Nodes) -> None:
    rate = "rate:job/sales=1/60"
    due = float(int(nodes.clock.wall) + 4)
    assert claim(nodes, scheduled_run("sales", due), rate, fire_at=due).word == "granted"

    waits = claim(nodes, "sales#1", rate)

    assert waits.word == "limited"
    assert waits.in_s == pytest.approx(due + 60.0 - nodes.clock.wall, abs=0.001)


def test_a_grant_that_a_witness_puts_back_counts_in_its_rate(nodes: Nodes, back: Callable[..., None]) -> None:
    rate, newer = "rate:job/sales=1/600", int((nodes.clock.wall + 10) * 1e6)
    back(1.0)
    assert restore(nodes, "sales#1", 0, newer, limits=rate).word == "ok"
    nodes.clock.step(QUARANTINE_S)
    nodes.clock.recovering_s = 0.0

    assert claim(nodes, "sales#2", rate).by == "rate: 1 started within 600 s"


@pytest.mark.parametrize("ahead_s", [4.0, 0.5])
def test_a_limited_run_that_is_claimed_ahead_is_asked_about_again_at_its_time(nodes: Nodes, ahead_s: float) -> None:
    one = "slots:job/sales=1"
    claim(nodes, "sales#1", one)
    due = float(int(nodes.clock.wall) + 4)
    nodes.clock.step(due - ahead_s - nodes.clock.wall)

    waits = claim(nodes, scheduled_run("sales", due), one, fire_at=due)

    assert waits.word == "limited"
    assert waits.in_s == pytest.approx(max(ahead_s, LIMIT_RETRY_S), abs=0.001)
    assert nodes.ledger.run(scheduled_run("sales", due)) is None


@pytest.mark.parametrize("keep", ["first", "last"])
def test_a_full_queue_rejects(nodes: Nodes, keep: str) -> None:
    limits = f"queue=2/{keep}"
    claim(nodes, "sales#0", limits, "queue")
    for number in (1, 2, 3):
        nodes.clock.step(1.0)
        nodes.ask(Register(of=nodes.of(f"sales#{number}", overlap="queue")))

    answers = {number: claim(nodes, f"sales#{number}", limits, "queue").word for number in (1, 2, 3)}

    if keep == "first":
        assert answers == {1: "limited", 2: "limited", 3: "finished"}
        assert nodes.reason("sales#3") == "the queue is full: 2 wait before it"
    else:
        assert answers == {1: "limited", 2: "limited", 3: "limited"}
        assert nodes.state("sales#1") == "rejected"
        assert nodes.reason("sales#1") == "the queue is full: 2 wait, and the last are kept"
    assert [nodes.state(f"sales#{number}") for number in (1, 2, 3)].count("rejected") == 1


def test_a_queue_that_nobody_bounded_has_a_bound(nodes: Nodes) -> None:
    claim(nodes, "sales#x", "", "queue")
    for number in range(101):
        nodes.clock.step(1.0)
        nodes.ask(Register(of=nodes.of(f"sales#{number}", overlap="queue")))

    assert claim(nodes, "sales#99", "", "queue").word == "limited"
    assert claim(nodes, "sales#100", "", "queue").state == "rejected"


@pytest.mark.parametrize("limits", [POOL, "rate:job/sales=2/600"])
def test_a_run_that_is_missed_while_it_is_limited_says_so(nodes: Nodes, limits: str) -> None:
    for number in range(2):
        claim(nodes, f"sales#{number}", limits)
    waits = claim(nodes, "sales#2", limits, start_within_s=30.0)
    nodes.clock.step(31.0)

    assert claim(nodes, "sales#2", limits, start_within_s=30.0).state == "missed"

    assert nodes.reason("sales#2").endswith(f"{HELD_BY_OTHERS}{waits.by}")


def test_a_run_whose_grant_was_not_used_did_not_wait_for_itself(nodes: Nodes) -> None:
    of = nodes.of("sales#1", overlap="queue", start_within_s=LEASE_S)
    nodes.granted(of)

    assert nodes.claim(of, nonce="other", watched=nodes.lapse("sales#1")).state == "missed"

    assert HELD_BY_OTHERS not in nodes.reason("sales#1")


@pytest.mark.parametrize(("overlap", "word"), [("queue", "finished"), ("replace", "limited")])
def test_only_a_queue_has_a_length(nodes: Nodes, overlap: str, word: str) -> None:
    claim(nodes, "sales#0", "", overlap)

    assert claim(nodes, "sales#1", "queue=0/first", overlap).word == word


def test_of_a_queue_that_keeps_the_last_as_many_are_rejected_as_must_be(nodes: Nodes) -> None:
    claim(nodes, "sales#0", "", "queue")
    for number in range(1, 7):
        nodes.clock.step(1.0)
        nodes.ask(Register(of=nodes.of(f"sales#{number}", overlap="queue")))

    assert claim(nodes, "sales#6", "queue=2/last", "queue").word == "limited"

    states = [nodes.state(f"sales#{number}") for number in range(1, 7)]
    assert states == ["rejected"] * 4 + ["pending"] * 2
    assert claim(nodes, "sales#7", "queue=0/last", "queue").state == "rejected"


def test_one_claim_rejects_only_so_many(nodes: Nodes) -> None:
    claim(nodes, "sales#x", "", "queue")
    names = [f"sales#{number:03}" for number in range(DROPPED_MAX + 4)]
    for name in names:
        nodes.clock.step(1.0)
        nodes.ask(Register(of=nodes.of(name, overlap="queue")))

    claim(nodes, names[-1], "queue=1/last", "queue")
    assert [nodes.state(name) for name in names].count("rejected") == DROPPED_MAX
    claim(nodes, names[-1], "queue=1/last", "queue")
    assert [nodes.state(name) for name in names].count("pending") == 1


def test_a_run_that_was_not_registered_counts_those_before_it(nodes: Nodes) -> None:
    claim(nodes, "sales#0", "", "queue")
    for name in ("a", "b", "d"):
        nodes.ask(Register(of=nodes.of(f"sales#{name}", overlap="queue")))  # all at one instant: their names order them

    assert claim(nodes, "sales#c", "queue=2/first", "queue").state == "rejected"
    assert claim(nodes, "sales#aa", "queue=2/first", "queue").word == "limited"


@pytest.mark.parametrize("ahead_s", [4.0, 0.5])
def test_a_run_that_is_not_due_yet_is_not_too_many(nodes: Nodes, ahead_s: float) -> None:
    claim(nodes, "sales#0", "", "queue")
    nodes.ask(Register(of=nodes.of("sales#1", overlap="queue")))
    due = float(int(nodes.clock.wall) + 4)
    run = scheduled_run("sales", due)
    nodes.clock.step(due - ahead_s - nodes.clock.wall)

    assert claim(nodes, run, "queue=1/first", "queue", fire_at=due).word == "limited"
    nodes.clock.step(5.0)
    assert claim(nodes, run, "queue=1/first", "queue", fire_at=due).state == "rejected"


def test_a_queue_of_one_keeps_the_last(nodes: Nodes) -> None:
    claim(nodes, "sales#0", "", "queue")
    nodes.ask(Register(of=nodes.of("sales#1", overlap="queue")))
    nodes.clock.step(1.0)

    assert claim(nodes, "sales#2", "queue=1/last", "queue").word == "limited"

    assert [nodes.state("sales#1"), nodes.state("sales#2")] == ["rejected", "pending"]
