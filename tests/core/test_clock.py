"""The Lamport clock: neither a restart nor a forged message sets it back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coordd.core.clock import CLOCK_BLOCK, CLOCK_JUMP_MAX, LamportClock


@pytest.mark.parametrize(
    ("local", "remote", "after"), [(0, 0, 1), (5, 3, 6), (5, 5, 6), (5, 9, 10), (0, CLOCK_JUMP_MAX, CLOCK_JUMP_MAX + 1)]
)
def test_a_message_moves_the_clock_past_both(local: int, remote: int, after: int) -> None:
    clock = LamportClock(local)
    assert clock.adjust(remote)
    assert clock.value == after


@pytest.mark.parametrize("remote", [-1, CLOCK_JUMP_MAX + 6, 2**80])
def test_an_absurd_clock_is_refused_and_counted(remote: int) -> None:
    clock = LamportClock(5)
    assert not clock.adjust(remote)
    assert (clock.value, clock.jumps_refused) == (5, 1)


def test_every_event_of_our_own_has_its_own_stamp() -> None:
    clock = LamportClock(7)
    assert [clock.forward(), clock.forward(), clock.forward()] == [8, 9, 10]


@given(st.lists(st.one_of(st.none(), st.integers(-1, 2**40), st.integers(0, 3 * CLOCK_BLOCK)), max_size=60))
def test_after_a_restart_at_any_moment_no_stamp_is_used_twice(steps: list[int | None]) -> None:
    clock = LamportClock()
    persisted = 0
    sent = 0
    for remote in steps:
        if remote is None:
            sent_now = clock.forward()
            assert sent_now > sent
            sent = sent_now
        else:
            before = clock.value
            clock.adjust(remote)
            assert clock.value >= before
        # As a node does: the mark is on the disk before the stamp is sent.
        mark = clock.reserve()
        if mark is not None:
            assert mark > persisted
            persisted = mark
        assert clock.value <= persisted
        assert LamportClock(persisted).forward() > sent


def test_the_mark_is_written_once_for_many_events() -> None:
    clock = LamportClock()
    writes = 0
    for _ in range(2 * CLOCK_BLOCK):
        clock.forward()
        writes += clock.reserve() is not None
    assert writes == 4  # one write for each half block
