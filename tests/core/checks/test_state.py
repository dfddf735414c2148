"""How results become the state of a check."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.search import examples

from coordd.core.checks.state import (
    BAD,
    DEFINITE,
    DEGRADED,
    HEALTHY,
    INSECURE,
    LOST_AFTER,
    RANKS,
    STATES,
    TEXT_MAX,
    UNAVAILABLE,
    UNHEALTHY,
    UNKNOWN,
    Result,
    Standing,
    after,
    pack,
    unpack,
    worst,
)


def through(*states: str, fail_after: int = 3, pass_after: int = 2, begin: Standing | None = None) -> Standing:
    standing = begin or Standing()
    for at, state in enumerate(states, 1):
        standing = after(standing, Result(state, state), float(at), fail_after=fail_after, pass_after=pass_after)
    return standing


@pytest.mark.parametrize(
    ("seen", "state"),
    [
        ("h", HEALTHY),
        ("uu", UNKNOWN),
        ("uuu", UNHEALTHY),
        ("huu", HEALTHY),
        ("huhuu", HEALTHY),
        ("huuu", UNHEALTHY),
        ("hddu", UNHEALTHY),  # three that are worse; the last counts
        ("huuuh", UNHEALTHY),
        ("huuuhh", HEALTHY),
        ("huuuhuh", UNHEALTHY),
        ("huuudd", DEGRADED),
        ("hdddu", DEGRADED),
        ("hi", INSECURE),
        ("hp", UNAVAILABLE),
        ("hpi", INSECURE),
        ("hihh", HEALTHY),
        ("h????????", HEALTHY),
        ("hu??uu", UNHEALTHY),  # a look that failed says nothing, in either direction
    ],
)
def test_a_state_follows_from_results_in_a_row(seen: str, state: str) -> None:
    words = {"h": HEALTHY, "d": DEGRADED, "u": UNHEALTHY, "i": INSECURE, "p": UNAVAILABLE, "?": UNKNOWN}
    assert through(*[words[letter] for letter in seen]).state == state


def test_looks_that_fail_themselves_are_ignored_until_nothing_is_known_any_more() -> None:
    bad = through(HEALTHY, UNHEALTHY, UNHEALTHY, UNHEALTHY)
    failed = through(*[UNKNOWN] * (LOST_AFTER - 1), begin=bad)
    assert (failed.state, failed.text, failed.problem, failed.lost) == (UNHEALTHY, UNHEALTHY, UNKNOWN, LOST_AFTER - 1)
    assert through(UNHEALTHY, begin=failed).problem == ""
    lost = through(UNKNOWN, begin=failed)
    assert (lost.state, lost.was, lost.is_bad, lost.problem) == (UNKNOWN, UNHEALTHY, False, UNKNOWN)
    assert through("no such state", begin=bad).state == UNHEALTHY


def test_texts_are_bounded_and_a_state_survives_the_ledger() -> None:
    standing = after(Standing(), Result(HEALTHY, "x" * 9999, "y" * 9999), 5.0, fail_after=1, pass_after=1)
    assert len(standing.text) == len(standing.figures) == TEXT_MAX
    assert unpack(pack(standing)) == standing
    assert "\n" not in pack(after(Standing(), Result(HEALTHY, "two\nlines"), 5.0, fail_after=1, pass_after=1))
    for damaged in ("", "{", "[1]", '["sick",0,0]', "null", '["healthy","x"]'):
        assert unpack(damaged) == Standing()


def test_the_worst_counts() -> None:
    assert worst(HEALTHY, UNHEALTHY) == UNHEALTHY
    assert worst(UNKNOWN, HEALTHY) == HEALTHY
    assert worst(UNKNOWN, UNKNOWN) == worst() == UNKNOWN
    assert worst(UNAVAILABLE, INSECURE) == INSECURE


@given(seen=st.lists(st.sampled_from(STATES), max_size=60), fail_after=st.integers(1, 5), pass_after=st.integers(1, 5))
@examples(300)
def test_no_state_is_left_without_its_results_in_a_row(seen: list[str], fail_after: int, pass_after: int) -> None:
    """Each change of state has its reason in the results before it; and where the reason is, the state changes."""
    standing = Standing()
    for number, state in enumerate(seen):
        before = standing
        standing = after(before, Result(state), float(number), fail_after=fail_after, pass_after=pass_after)
        results = [one for one in seen[: number + 1] if one != UNKNOWN]
        rank = RANKS.get(before.state, -1)
        if state == UNKNOWN:
            lost = number + 1 >= LOST_AFTER and set(seen[number + 1 - LOST_AFTER : number + 1]) == {UNKNOWN}
            assert standing.state == (UNKNOWN if lost else before.state)
            continue
        worse = len(results) >= fail_after and all(RANKS[one] > rank for one in results[-fail_after:])
        better = len(results) >= pass_after and all(RANKS[one] < rank for one in results[-pass_after:])
        if standing.state != before.state:
            first = before.state == UNKNOWN and state == HEALTHY
            assert standing.state == state
            assert worse or better or first or state in DEFINITE
            assert (standing.since, standing.was) == (number, before.state)
        else:
            assert state not in DEFINITE or RANKS[state] <= rank
            assert (standing.since, standing.was) == (before.since, before.was)
        assert standing.is_bad == (standing.state in BAD)
