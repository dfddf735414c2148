"""The breaker of a job: which ends of runs open it, whom it stops, and how it closes again. Both ledgers agree."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import EPOCH, LEASE_S, Nodes, granted_as, watched_of

from coordd.core.jobs.job import scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.breaker.text import (
    CLOSED,
    EXPONENTIAL,
    FAIL,
    FIXED,
    HALF_OPEN,
    LINEAR,
    OPEN,
    PREVENT,
    Rule,
    State,
)
from coordd.core.ledger.requests import Activate, Cancel, Fill, Keep, PlanBackfill, Resolve, Revoke
from coordd.core.ledger.rows import ALL, OF_BREAKER, OF_ISOLATED
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import HAS_MATCHED

ANY = ("failure", "lost", "timeout")


def rule(
    after: int = 3,
    on: tuple[str, ...] = ANY,
    *,
    groups: tuple[tuple[int, tuple[str, ...]], ...] = (),
    window: float = 0.0,
    open_for: float = 900.0,
    longest: float = 86400.0,
    growth: str = FIXED,
    when_open: str = PREVENT,
    enforce: bool = True,
) -> str:
    """The item of a policy's limits. Durations in seconds."""
    window_ms, open_for_ms, longest_ms = (int(1000 * seconds) for seconds in (window, open_for, longest))
    return Rule(groups or ((after, on),), window_ms, open_for_ms, longest_ms, growth, when_open, enforce).item()


def claim(nodes: Nodes, run: str, limits: str, **more: object) -> Answer:
    return nodes.claim(nodes.of(run, limits=limits, **{"overlap": "allow", **more}), nonce=run)


def start(nodes: Nodes, run: str, limits: str, **more: object) -> Grant:
    granted = claim(nodes, run, limits, **more)
    assert granted.word == "granted", granted
    grant = granted_as(run, granted, run)
    assert nodes.gate(grant).word == "ok"
    return grant


def end(nodes: Nodes, run: str, limits: str, state: str = "failure", **said: Any) -> None:
    nodes.report(start(nodes, run, limits), state, **said)


def breaker(nodes: Nodes, job: str = "sales") -> State:
    hold = nodes.opened(job).holds.get(OF_BREAKER + job)
    return State.read(hold.note) if hold is not None else State()


def opened(nodes: Nodes, limits: str, runs: int = 3) -> None:
    for number in range(runs):
        end(nodes, f"sales#first-{number}", limits)
    assert breaker(nodes).state == OPEN


def test_it_opens_after_some_runs_that_failed_in_a_row(nodes: Nodes) -> None:
    limits = rule()
    end(nodes, "sales#1", limits)
    end(nodes, "sales#2", limits)
    end(nodes, "sales#3", limits, "success")
    assert breaker(nodes).state == CLOSED
    assert OF_BREAKER + "sales" not in nodes.opened("sales").holds, "nothing is kept of a job that runs well"
    for number in range(4, 6):
        end(nodes, f"sales#{number}", limits)
    kept = breaker(nodes)
    assert (kept.state, len(kept.failures), kept.last) == (CLOSED, 2, "sales#5")
    end(nodes, "sales#6", limits)

    kept = breaker(nodes)
    assert (kept.state, kept.trips, kept.since, kept.retry_at) == (OPEN, 1, EPOCH, EPOCH + 900)
    assert (kept.last, kept.probe, len(kept.failures)) == ("sales#6", "-", 3)


def test_what_it_prevents_is_rejected_and_says_so(nodes: Nodes) -> None:
    limits = rule(1)
    opened(nodes, limits, 1)

    answer = claim(nodes, "sales#2", limits)

    assert (answer.word, answer.state) == ("finished", "rejected")
    assert answer.ended is not None
    assert answer.ended.reason == "breaker"
    row = nodes.ledger.run("sales#2")
    assert row is not None
    assert (row.state, row.reason, row.token) == ("rejected", "breaker", 0)
    assert breaker(nodes).prevented == 1
    assert claim(nodes, "other#1", limits).word == "granted", "it is of this job alone"
    assert claim(nodes, "sales#3", "").word == "granted", "its definition has no breaker any more"
    assert claim(nodes, "sales#2", limits).state == "rejected"
    assert breaker(nodes).prevented == 1, "a repeated claim prevents nothing more"


def test_it_may_let_them_fail_instead(nodes: Nodes) -> None:
    limits = rule(1, when_open=FAIL)
    opened(nodes, limits, 1)
    answer = claim(nodes, "sales#2", limits)
    assert (answer.word, answer.state) == ("finished", "failure")
    assert nodes.reason("sales#2") == "breaker"
    assert breaker(nodes).trips == 1, "a run that never began counts nothing"


def test_it_may_only_watch(nodes: Nodes) -> None:
    limits = rule(1, enforce=False)
    opened(nodes, limits, 1)
    end(nodes, "sales#2", limits, "success")
    kept = breaker(nodes)
    assert (kept.state, kept.prevented) == (OPEN, 1), "it says what it would have prevented"
    nodes.clock.step(900)
    end(nodes, "sales#3", limits, "success")
    assert breaker(nodes).state == CLOSED


def test_half_open_is_one_run(nodes: Nodes) -> None:
    limits = rule(1)
    opened(nodes, limits, 1)
    nodes.clock.step(899)
    assert claim(nodes, "sales#2", limits).state == "rejected"
    nodes.clock.step(1)

    tries = start(nodes, "sales#3", limits)

    kept = breaker(nodes)
    assert (kept.state, kept.probe, kept.trips) == (HALF_OPEN, "sales#3", 1)
    assert claim(nodes, "sales#4", limits).state == "rejected"
    assert breaker(nodes).prevented == 2
    nodes.report(tries, "success")
    assert breaker(nodes).state == CLOSED
    assert claim(nodes, "sales#5", limits).word == "granted"


@pytest.mark.parametrize(
    ("growth", "seconds"), [(FIXED, [10, 10, 10, 10]), (LINEAR, [10, 20, 30, 35]), (EXPONENTIAL, [10, 20, 35, 35])]
)
def test_it_stays_open_longer_each_time(nodes: Nodes, growth: str, seconds: list[int]) -> None:
    limits = rule(1, open_for=10, longest=35, growth=growth)
    end(nodes, "sales#0", limits)
    found = []
    for trip in range(4):
        kept = breaker(nodes)
        assert kept.trips == trip + 1
        found.append(round(kept.retry_at - kept.since))
        nodes.clock.step(found[-1])
        end(nodes, f"sales#{trip + 1}", limits)
    assert found == seconds
    nodes.clock.step(35)
    end(nodes, "sales#good", limits, "success")
    end(nodes, "sales#bad", limits)
    assert breaker(nodes).trips == 1, "a success ends the row"


def test_a_lost_probe_opens_it_again(nodes: Nodes) -> None:
    """Also if the breaker does not count lost runs."""
    limits = rule(1, ("failure",))
    opened(nodes, limits, 1)
    nodes.clock.step(900)
    of = nodes.of("sales#2", limits=limits, overlap="allow", relaunches=0)
    grant = nodes.started(of)
    nodes.clock.step(LEASE_S * 1.1)
    watched = watched_of(grant.token, 1, LEASE_S * 1.05)
    assert nodes.claim(of, watched=watched, nonce="other").state == "lost"
    kept = breaker(nodes)
    assert (kept.state, kept.trips, kept.last) == (OPEN, 2, "sales#2")


def test_a_probe_that_crashed_before_its_launch_is_taken_over_as_the_probe(nodes: Nodes) -> None:
    limits = rule(1)
    opened(nodes, limits, 1)
    nodes.clock.step(900)
    of = nodes.of("sales#2", limits=limits, overlap="allow")
    grant = nodes.granted(of)
    nodes.clock.step(LEASE_S * 1.1)
    answer = nodes.claim(of, watched=watched_of(grant.token, 0, LEASE_S * 1.05), nonce="other", node="edge-2.20")
    assert answer.word == "granted"
    assert (breaker(nodes).state, breaker(nodes).probe) == (HALF_OPEN, "sales#2")


def test_a_lost_attempt_of_the_probe_is_tried_again_as_the_probe(nodes: Nodes) -> None:
    """It counts runs, not attempts."""
    limits = rule(1)
    opened(nodes, limits, 1)
    nodes.clock.step(900)
    nodes.report(start(nodes, "sales#2", limits, relaunches=5), "lost")
    assert (nodes.state("sales#2"), breaker(nodes).state) == ("retry", HALF_OPEN)
    of = nodes.of("sales#2", limits=limits, overlap="allow")
    nodes.report(nodes.started(of, 1), "success")
    assert breaker(nodes).state == CLOSED


def test_retries_of_a_run_that_was_admitted_go_on(nodes: Nodes) -> None:
    limits = rule(1)
    tried = nodes.of("sales#2", limits=limits, overlap="allow", attempts=2, delay_s=0.0)
    nodes.report(nodes.started(tried), "failure")
    assert breaker(nodes).state == CLOSED, "one attempt is not the run"
    opened(nodes, limits, 1)
    nodes.clock.step(900)
    assert nodes.claim(tried, 1).word == "granted"
    assert breaker(nodes).state == OPEN, "it is not the one that tries"


def test_a_probe_whose_end_nobody_knows_opens_it_again(nodes: Nodes) -> None:
    limits = rule(1)
    opened(nodes, limits, 1)
    nodes.clock.step(900)
    grant = start(nodes, "sales#2", limits, on_lost="hold")
    nodes.report(grant, "lost")
    assert nodes.state("sales#2") == "unknown"
    kept = breaker(nodes)
    assert (kept.state, kept.trips) == (OPEN, 2)
    nodes.ask(Resolve(run="sales#2", outcome="success", by="ann"))
    assert breaker(nodes).state == OPEN, "what began before it opened counts nothing"


@pytest.mark.parametrize("end", ["success", "failure", "lost"])
def test_what_began_before_it_opened_counts_nothing(nodes: Nodes, end: str) -> None:
    limits = rule(1)
    first = start(nodes, "sales#1", limits, on_lost="hold")
    second = start(nodes, "sales#2", limits, on_lost="hold")
    nodes.report(first, "lost")
    assert (nodes.state("sales#1"), breaker(nodes).state) == ("unknown", CLOSED)
    opened(nodes, limits, 1)
    nodes.clock.step(900)
    start(nodes, "sales#3", limits)
    nodes.report(second, end)
    kept = breaker(nodes)
    assert (kept.state, kept.probe, kept.trips) == (HALF_OPEN, "sales#3", 1)


@pytest.mark.parametrize("how", ["cancelled", "revoked while it waits for its retry"])
def test_a_probe_that_proves_nothing_leaves_the_next_run_to_try(nodes: Nodes, how: str) -> None:
    limits = rule(1)
    opened(nodes, limits, 1)
    nodes.clock.step(900)
    grant = start(nodes, "sales#2", limits, attempts=2, delay_s=60.0)
    if how == "cancelled":
        nodes.ask(Cancel(run="sales#2", by="ann"))
        nodes.report(grant, "revoked")
    else:
        nodes.report(grant, "failure")
        nodes.ask(Revoke(run="sales#2", by="ann"))
    assert nodes.state("sales#2") == "revoked"
    kept = breaker(nodes)
    assert (kept.state, kept.trips, kept.retry_at) == (OPEN, 1, nodes.clock.wall)
    start(nodes, "sales#3", limits)
    assert breaker(nodes).probe == "sales#3"


def test_a_probe_that_the_ledger_has_forgotten_counts_as_lost(nodes: Nodes) -> None:
    limits = rule(1, open_for=10, growth=LINEAR)
    forgotten = State()
    forgotten.state, forgotten.probe, forgotten.trips = HALF_OPEN, "sales#gone", 1
    nodes.ask(Keep(key=OF_BREAKER + "sales", held=True, by="", note=forgotten.text()))
    assert claim(nodes, "sales#2", limits).state == "rejected"
    kept = breaker(nodes)
    assert (kept.state, kept.trips, kept.last, kept.retry_at) == (OPEN, 2, "sales#gone", nodes.clock.wall + 20)


def test_a_claim_ahead_of_its_time_finds_a_forgotten_probe_too(nodes: Nodes) -> None:
    forgotten = State()
    forgotten.state, forgotten.probe, forgotten.trips = HALF_OPEN, "sales#gone", 1
    nodes.ask(Keep(key=OF_BREAKER + "sales", held=True, by="", note=forgotten.text()))
    early = nodes.of("sales@1", limits=rule(1), overlap="allow", fire_at=EPOCH + 4, due=EPOCH + 4)
    assert nodes.claim(early).word == "limited"
    kept = breaker(nodes)
    assert (kept.state, kept.trips, kept.prevented) == (OPEN, 2, 0)


def test_only_ends_within_the_window_count(nodes: Nodes) -> None:
    limits = rule(2, window=60)
    end(nodes, "sales#1", limits)
    nodes.clock.step(60)
    end(nodes, "sales#2", limits)
    assert breaker(nodes).state == CLOSED
    nodes.clock.step(59)
    end(nodes, "sales#3", limits)
    assert breaker(nodes).state == OPEN


@pytest.mark.parametrize(
    ("on", "state", "said", "counts"),
    [
        (("failure",), "failure", {"exit_code": 1, "reason": "exit code 1"}, True),
        (("failure",), "failure", {"exit_code": 143, "reason": "timeout after 5 s"}, False),
        (("timeout",), "failure", {"exit_code": 143, "reason": "timeout after 5 s"}, True),
        (("timeout", "lost"), "failure", {"exit_code": 1, "reason": "exit code 1"}, False),
        (("75",), "failure", {"exit_code": 75}, True),
        (("75", "-9"), "failure", {"exit_code": -9}, True),
        (("75",), "failure", {"exit_code": 7}, False),
        (("143",), "failure", {"exit_code": 143, "reason": "timeout after 5 s"}, False),
        (("matched",), "failure", {"exit_code": 1, "reason": "exit code 1" + HAS_MATCHED}, True),
        (("matched",), "failure", {"exit_code": 1, "reason": f"exit code 1{HAS_MATCHED}: refused"}, True),
        (("matched",), "failure", {"exit_code": 1, "reason": "exit code 1: refused" + HAS_MATCHED}, False),
        (("lost",), "lost", {}, True),
        (("failure",), "lost", {}, False),
        (("lost",), "revoked", {}, False),
    ],
)
def test_which_ends_count(nodes: Nodes, on: tuple[str, ...], state: str, said: dict[str, Any], counts: bool) -> None:
    limits = rule(1, on)
    nodes.report(start(nodes, "sales#1", limits, relaunches=0), state, **said)
    assert breaker(nodes).state == (OPEN if counts else CLOSED)


def test_each_group_of_ends_has_its_own_number(nodes: Nodes) -> None:
    limits = rule(groups=((3, ("failure",)), (2, ("75", "lost"))))
    end(nodes, "sales#1", limits, exit_code=75)
    end(nodes, "sales#2", limits, exit_code=1)
    assert breaker(nodes).state == CLOSED
    end(nodes, "sales#3", limits, exit_code=75)
    assert breaker(nodes).state == OPEN


def test_a_person_isolates_it_and_ends_that(nodes: Nodes) -> None:
    limits = rule(3, enforce=False)
    until = nodes.clock.wall + 100
    nodes.ask(Keep(key=OF_ISOLATED + "sales", held=True, by="ann", until=until, note="the source is away"))
    assert nodes.opened("sales").holds[OF_ISOLATED + "sales"].note == "the source is away"
    assert claim(nodes, "sales#1", limits).state == "rejected"
    assert claim(nodes, "other#1", limits).word == "granted"
    nodes.clock.step(100)
    assert claim(nodes, "sales#2", limits).word == "granted"

    opened(nodes, rule(1), 1)
    nodes.ask(Keep(key=OF_BREAKER + "sales", held=False, by="ann"))
    assert breaker(nodes).state == CLOSED
    assert claim(nodes, "sales#4", rule(1)).word == "granted"


def test_a_run_that_is_claimed_ahead_is_judged_at_its_time(nodes: Nodes) -> None:
    limits = rule(1, open_for=8)
    opened(nodes, limits, 1)
    early = nodes.of("sales@1", limits=limits, overlap="allow", fire_at=EPOCH + 4, due=EPOCH + 4)
    answer = nodes.claim(early)
    assert (answer.word, answer.by, answer.in_s) == ("limited", "breaker", 1.0)
    nodes.clock.step(3.75)
    assert nodes.claim(early).in_s == 0.25
    nodes.clock.step(0.25)
    assert nodes.claim(early).state == "rejected"
    after = nodes.of("sales@2", limits=limits, overlap="allow", fire_at=EPOCH + 8, due=EPOCH + 8)
    assert nodes.claim(after, nonce="n2").word == "granted", "its time is when the breaker lets one try"
    assert breaker(nodes).probe == "sales@2"


def test_a_run_of_a_backfill_waits_for_it(nodes: Nodes) -> None:
    """Its plan would take a rejection for the run's end."""
    limits = rule(1)
    nodes.ask(Activate(job="sales", digest="d1", schedule="s1", how="new", by="ann"))
    opened(nodes, limits, 1)
    fire_at = EPOCH - 3600.0
    plan = Plan("p1", fire_at, fire_at + 60.0)
    nodes.ask(PlanBackfill(job="sales", text=plan.text(), by="ann (1001)", uid=1001))
    of = nodes.of(scheduled_run("sales", fire_at), limits=limits, overlap="allow", fire_at=fire_at)
    assert nodes.ask(Fill(plan="p1", left=1, of=of)).word == "ok"
    answer = nodes.claim(of, 1)
    assert (answer.word, answer.by, answer.in_s) == ("limited", "breaker", 1.0)
    nodes.clock.step(900)
    nodes.report(nodes.started(of, 1), "success")
    assert breaker(nodes).state == CLOSED


@pytest.mark.parametrize(
    "item",
    [
        "breaker=",
        "breaker=1:failure/0/1/1/fixed/prevent",
        "breaker=0:failure/0/1/1/fixed/prevent/1",
        "breaker=101:failure/0/1/1/fixed/prevent/1",
        "breaker=1:/0/1/1/fixed/prevent/1",
        "breaker=;1:failure/0/1/1/fixed/prevent/1",
        "breaker=1:failure/0/one/1/fixed/prevent/1",
        "breaker=1:failure/0/1/1/quadratic/prevent/1",
        "breaker=1:failure/0/1/1/fixed/explode/1",
        "breaker=1:failure/0/1/1/fixed/prevent/2",
        "breaker=1:failure/0/1/1/fixed/prevent/1/1",
        "breaker=" + ";".join(["1:failure"] * 9) + "/0/1/1/fixed/prevent/1",
    ],
)
def test_an_item_that_cannot_be_read_is_no_breaker(nodes: Nodes, item: str) -> None:
    end(nodes, "sales#1", item)
    assert claim(nodes, "sales#2", item).word == "granted"


@pytest.mark.parametrize("item", [rule(100), rule(groups=((2, ("failure",)),) * 8), f"{rule(2)},breaker=no"])
def test_the_largest_item_is_one_and_of_two_the_first_one_counts(nodes: Nodes, item: str) -> None:
    end(nodes, "sales#1", item)
    assert breaker(nodes).failures


@pytest.mark.parametrize(
    "note",
    [
        "",
        "open",
        "ajar 1 9e9 1 0 - - -",
        "open one 9e9 1 0 - - -",
        "open 1 9999999999 one 0 - - -",
        "open 1 9999999999 1 0 - - 1.x",
        "open 1 9999999999 1 0 - - - -",
    ],
)
def test_a_damaged_state_keeps_no_job_from_running(nodes: Nodes, note: str) -> None:
    nodes.ask(Keep(key=OF_BREAKER + "sales", held=True, by="", note=note))
    assert claim(nodes, "sales#1", rule(1)).word == "granted"


def test_it_is_judged_before_the_other_limits(nodes: Nodes) -> None:
    """An earlier run is not replaced by one that must not start."""
    limits = rule(1)
    running = start(nodes, "sales#1", limits)
    opened(nodes, limits, 1)
    assert claim(nodes, "sales#2", limits, overlap="replace").state == "rejected"
    assert nodes.renew(running).word == "ok"
    assert ALL not in nodes.opened("sales").holds
