"""The run of an arrival, and which arrivals are taken."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from support.small_cluster import job

from coordd.core.jobs.job import IDENT
from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival, args_of, choose, ident, run_of, unknown
from coordd.errors import RefusedError

KEYS = st.lists(st.text(max_size=8), unique=True, max_size=30)


@given(KEYS, st.sets(st.text(max_size=8)), st.integers(-3, 40), st.integers(0, 40))
def test_the_oldest_new_arrivals_are_taken_as_far_as_there_is_room_and_no_other_is_lost(
    keys: list[str], consumed: set[str], room: int, most: int
) -> None:
    arrivals = [Arrival(key, {}) for key in keys]
    choice = choose(arrivals, consumed, room, most)

    fresh = [one for one in arrivals if one.key not in consumed]
    assert choice.taken + choice.waiting == fresh
    assert len(choice.taken) == max(0, min(room, most, len(fresh)))
    assert unknown(arrivals, consumed, most) == fresh[:most]


@given(st.text(), st.text())
def test_each_arrival_has_an_id_of_its_own_that_a_run_may_have(one: str, other: str) -> None:
    assert IDENT.fullmatch(ident("drop", one))
    assert (ident("drop", one) == ident("drop", other)) == (one == other)
    assert run_of("j", "drop", one) == f"j#{ident('drop', one)}" != run_of("j", "other", one)


def test_a_run_gets_the_values_of_its_arrival_as_arguments() -> None:
    trigger = Trigger(kind="file", name="drop", args={"file": "{{x}} {trigger.path}", "n": "{trigger.size}"})
    of = job(params={"file": "", "n": "", "mode": "fast"})

    packed = args_of(of, trigger, Arrival("k", {"path": "/in/{n}.csv", "size": "3"}))
    assert packed == '{"file": "{x} /in/{n}.csv", "mode": "fast", "n": "3"}'
    with pytest.raises(RefusedError, match="control character"):
        args_of(of, trigger, Arrival("k", {"path": "/in/\n", "size": "3"}))
