"""The ring: the same order on all nodes with the same view, neighbours on both sides, few
changes at a join or a leave.
"""

from __future__ import annotations

from itertools import islice

from hypothesis import given, strategies as st

from coordd.core.members.ring import Ring, place

NAMES = [f"edge-{number}.1" for number in range(40)]


def ring(names: list[str]) -> Ring:
    made = Ring()
    for name in names:
        made.add(name)
    return made


@given(st.permutations(NAMES[:8]), st.sampled_from(NAMES))
def test_the_order_depends_on_who_is_there_and_on_nothing_else(names: list[str], of: str) -> None:
    one = ring(names)
    everybody = sorted({*names} - {of}, key=place)
    at = sum(place(name) < place(of) for name in everybody)
    assert list(one.after(of)) == everybody[at:] + everybody[:at]
    assert list(one.before(of)) == (everybody[at:] + everybody[:at])[::-1]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES[:6]))))
def test_names_come_and_go(steps: list[tuple[bool, str]]) -> None:
    one = Ring()
    expected: set[str] = set()
    for comes, name in steps:
        (one.add if comes else one.discard)(name)
        (expected.add if comes else expected.discard)(name)
        assert (len(one), name in one) == (len(expected), name in expected)
        assert set(one.after("")) == set(one.before("")) == expected


def test_a_successor_has_us_as_its_predecessor() -> None:
    one = ring(NAMES)
    for name in NAMES:
        for successor in islice(one.after(name), 3):
            assert name in list(islice(one.before(successor), 3))


def test_one_that_goes_changes_the_neighbours_of_its_neighbours_only() -> None:
    one = ring(NAMES)
    before = {name: list(islice(one.after(name), 3)) for name in NAMES}
    one.discard(NAMES[7])
    changed = [name for name in NAMES if name != NAMES[7] and list(islice(one.after(name), 3)) != before[name]]
    assert len(changed) == 3


def test_alone_it_has_no_neighbours() -> None:
    one = ring(["me.1"])
    assert (list(one.after("me.1")), list(one.before("me.1")), list(Ring().after("me.1"))) == ([], [], [])
