"""The circuit breaker, outcome by outcome."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coordd.core.breaker import (
    CLOSED,
    COOL_DOWN_MAX_S,
    COOL_DOWN_MIN_S,
    FAILURES,
    FAILURES_MAX,
    HALF_OPEN,
    OPEN,
    PROBE_LIMIT_S,
    SLOW,
    TIMEOUT,
    WINDOW,
    Breaker,
    Rule,
)
from coordd.core.ledger.words import FAILURE


def fail(breaker: Breaker, now: float, jitter: float = 1.0) -> None:
    permit = breaker.allow(now)
    assert permit
    breaker.failed(permit, "no answer", now, jitter)


def tripped(now: float = 0.0) -> Breaker:
    breaker = Breaker("ledger")
    for _ in range(FAILURES_MAX):
        fail(breaker, now)
    return breaker


def test_failures_in_a_row_open_it_and_one_success_between_them_does_not() -> None:
    breaker = Breaker("ledger")
    for _ in range(FAILURES_MAX - 1):
        fail(breaker, 0.0)
    breaker.succeeded(breaker.allow(0.0), 0.0)
    for _ in range(FAILURES_MAX - 1):
        fail(breaker, 0.0)
    assert breaker.state == CLOSED

    fail(breaker, 0.0)

    assert (breaker.state, breaker.is_open, breaker.reason, breaker.opened) == (OPEN, True, "no answer", 1)
    assert breaker.allow(COOL_DOWN_MIN_S - 0.01) == 0


def test_what_fails_too_often_opens_it_even_if_never_in_a_row() -> None:
    breaker = Breaker("ledger", Rule(((WINDOW, FAILURES),)))
    for number in range(WINDOW + 2):
        permit = breaker.allow(0.0)
        if number % 3:
            breaker.failed(permit, "no answer", 0.0, 1.0)
        else:
            breaker.succeeded(permit, 0.0)
        if breaker.state == OPEN:
            break

    assert breaker.state == OPEN
    assert breaker.failures < WINDOW


def test_half_open_lets_one_probe_through() -> None:
    breaker = tripped()

    permit = breaker.allow(COOL_DOWN_MIN_S)

    assert permit
    assert breaker.state == HALF_OPEN
    assert breaker.allow(COOL_DOWN_MIN_S) == 0
    breaker.succeeded(permit, COOL_DOWN_MIN_S)
    assert breaker.state == CLOSED
    assert breaker.allow(COOL_DOWN_MIN_S)


def test_a_failed_probe_doubles_the_cool_down_up_to_its_bound_and_success_resets_it() -> None:
    breaker = tripped()
    now, waits = 0.0, []
    for _ in range(6):
        waits.append(breaker.retry_in_s(now))
        now = breaker.retry_at
        fail(breaker, now)

    assert waits == [COOL_DOWN_MIN_S, 1.0, 2.0, 4.0, COOL_DOWN_MAX_S, COOL_DOWN_MAX_S]
    now = breaker.retry_at
    breaker.succeeded(breaker.allow(now), now)
    for _ in range(FAILURES_MAX):
        fail(breaker, now)
    assert breaker.retry_in_s(now) == COOL_DOWN_MIN_S


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_the_jitter_only_shortens_a_cool_down_and_never_by_more_than_half(jitter: float) -> None:
    breaker = Breaker("ledger", Rule(((1, FAILURES),)))

    fail(breaker, 10.0, jitter)

    assert COOL_DOWN_MIN_S / 2 <= breaker.retry_in_s(10.0) <= COOL_DOWN_MIN_S


def test_a_late_outcome_of_another_time_is_ignored() -> None:
    breaker = Breaker("ledger")
    old = breaker.allow(0.0)
    for _ in range(FAILURES_MAX):
        fail(breaker, 0.0)
    probe = breaker.allow(1.0)

    breaker.succeeded(old, 1.0)  # this call began before the breaker opened
    assert breaker.state == HALF_OPEN
    breaker.failed(old, "late", 1.0, 1.0)
    assert (breaker.state, breaker.reason) == (HALF_OPEN, "no answer")
    breaker.succeeded(probe, 1.0)

    assert breaker.state == CLOSED


def test_a_probe_whose_outcome_is_never_told_makes_room_for_another() -> None:
    breaker = tripped()
    stuck = breaker.allow(1.0)
    assert breaker.allow(1.0 + PROBE_LIMIT_S - 0.1) == 0

    second = breaker.allow(1.0 + PROBE_LIMIT_S)

    assert second not in (0, stuck)
    breaker.succeeded(stuck, 40.0)
    assert breaker.state == HALF_OPEN
    breaker.succeeded(second, 40.0)
    assert breaker.state == CLOSED


@pytest.mark.parametrize("at", [0.0, 1.0])
def test_a_person_can_close_it_from_any_state(at: float) -> None:
    breaker = tripped()
    breaker.allow(at)

    breaker.reset(at)

    assert (breaker.state, breaker.failures, breaker.retry_in_s(at)) == (CLOSED, 0, 0.0)
    assert breaker.allow(at)


@given(st.lists(st.tuples(st.floats(0, 10), st.booleans(), st.floats(0, 1)), max_size=80))
def test_it_never_refuses_for_longer_than_its_bounds(steps: list[tuple[float, bool, float]]) -> None:
    breaker, now = Breaker("ledger"), 0.0
    for wait_s, works, jitter in steps:
        now += wait_s
        permit = breaker.allow(now)
        if permit and works:
            breaker.succeeded(permit, now)
        elif permit:
            breaker.failed(permit, "no answer", now, jitter)
        assert breaker.retry_in_s(now) <= COOL_DOWN_MAX_S
        assert Breaker.allow(breaker, now + max(PROBE_LIMIT_S, COOL_DOWN_MAX_S)) > 0
        now += max(PROBE_LIMIT_S, COOL_DOWN_MAX_S)


# ---- what a person says of it


def test_failures_within_a_window_open_it_whatever_succeeded_between_them() -> None:
    breaker = Breaker("ledger", Rule(((3, FAILURES),), window_s=10.0))
    for now in (0.0, 4.0, 10.5):  # the first one is out of the window by then
        fail(breaker, now)
        for _ in range(5 * WINDOW):
            breaker.succeeded(breaker.allow(now), now)
    assert (breaker.state, breaker.failures) == (CLOSED, 2)

    fail(breaker, 13.9)

    assert (breaker.state, breaker.failures) == (OPEN, 3)
    breaker.succeeded(breaker.allow(20.0), 20.0)
    assert (breaker.state, breaker.failures) == (CLOSED, 0), "it begins from the start"


def test_with_a_window_its_number_alone_says_what_is_often() -> None:
    breaker = Breaker("ledger", Rule(((WINDOW + 5, FAILURES),), window_s=60.0))
    for _ in range(WINDOW + 4):
        fail(breaker, 0.0)
    assert breaker.state == CLOSED
    fail(breaker, 0.0)
    assert breaker.state == OPEN


def test_each_kind_of_failure_has_its_own_number() -> None:
    """As the documents have it: 2 unhealthy or 10 degraded in 10 seconds."""
    rule = Rule(((2, (TIMEOUT,)), (10, (SLOW,))), window_s=10.0)
    for kind, count in ((TIMEOUT, 2), (SLOW, 10)):
        breaker = Breaker("ledger", rule)
        assert [breaker.counts(one) for one in (FAILURE, TIMEOUT, SLOW)] == [False, True, True]
        for _ in range(count - 1):
            breaker.failed(breaker.allow(0.0), "late", 0.0, 1.0, kind)
            breaker.failed(breaker.allow(0.0), "refused", 0.0, 1.0)
        assert breaker.state == CLOSED, "what it does not name opens nothing"
        breaker.failed(breaker.allow(0.0), "late", 0.0, 1.0, kind)
        assert breaker.state == OPEN


def test_without_a_window_a_kind_that_is_not_counted_ends_the_row() -> None:
    breaker = Breaker("ledger", Rule(((2, (TIMEOUT,)),)))
    for kind in (TIMEOUT, FAILURE, TIMEOUT):
        breaker.failed(breaker.allow(0.0), kind, 0.0, 1.0, kind)
    assert (breaker.state, breaker.failures) == (CLOSED, 1)


def test_half_open_has_its_own_number_of_failures() -> None:
    breaker = Breaker("ledger", Rule(((1, FAILURES),), probes=3))
    fail(breaker, 0.0)
    now = breaker.retry_at
    for _ in range(2):
        fail(breaker, now)
        assert breaker.state == HALF_OPEN, "the next probe goes at once"
    fail(breaker, now)
    assert (breaker.state, breaker.opened) == (OPEN, 2)
    fail(breaker, breaker.retry_at)
    assert breaker.state == HALF_OPEN, "it is counted from the start each time"


def test_a_connection_that_comes_and_goes_opens_it_within_a_window() -> None:
    for window_s, state in ((60.0, OPEN), (0.0, CLOSED)):
        breaker = Breaker("bus", Rule(((3, FAILURES),), window_s=window_s))
        for number in range(3):
            breaker.restored(10.0 * number)
            fail(breaker, 10.0 * number + 1.0)
        assert breaker.state == state
        breaker.restored(30.0)
        assert (breaker.state, breaker.failures) == (CLOSED, 0)


def test_another_rule_counts_anew_and_keeps_the_state() -> None:
    breaker = Breaker("ledger")
    for _ in range(FAILURES_MAX - 1):
        fail(breaker, 0.0)
    breaker.use(Rule(((2, FAILURES),)))
    fail(breaker, 0.0)
    assert (breaker.state, breaker.failures) == (CLOSED, 1)
    fail(breaker, 0.0)
    breaker.use(Rule())
    assert breaker.state == OPEN
