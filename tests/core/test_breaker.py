"""The circuit breaker, outcome by outcome."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coordd.core.breaker import (
    CLOSED,
    COOL_DOWN_MAX_S,
    COOL_DOWN_MIN_S,
    FAILURES_MAX,
    HALF_OPEN,
    OPEN,
    PROBE_LIMIT_S,
    WINDOW,
    Breaker,
)


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
    breaker = Breaker("ledger", failures_max=WINDOW)
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
    breaker = Breaker("ledger", failures_max=1)

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
