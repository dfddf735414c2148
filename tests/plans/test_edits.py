"""A slice of `make plans`, and what its edits contain."""

from __future__ import annotations

from pathlib import Path

import pytest

from plans.edits import edit, expected, planned
from plans.oracle import changes


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_a_plan_is_what_brute_force_finds(first: int, tmp_path: Path) -> None:
    refused = 0
    for seed in range(first, first + 20):
        one = edit(seed)
        found = planned(one, tmp_path)
        refused += found is None
        assert found in (None, expected(one)), f"edit {seed}: {one}"
    assert refused < 8


@pytest.mark.parametrize("seed", [1309])
def test_an_edit_that_was_planned_wrongly(seed: int, tmp_path: Path) -> None:
    """1309: a wildcard line on a day without a midnight began an hour late."""
    assert planned(edit(seed), tmp_path) == expected(edit(seed))


def test_the_edits_differ_in_kind_and_lie_near_changes_of_clocks() -> None:
    some = [edit(seed) for seed in range(2000)]
    zones = [version.schedule.timezone for one in some for version in one[1:] if version and version.schedule]
    assert {one.old is None for one in some} == {one.new is None for one in some} == {True, False}
    assert any(one.old == one.new for one in some)
    assert len(set(zones)) == 6
    near = [one for one in some if any(abs(at - one.now) < 2 * 86400 for at in changes("Europe/Berlin"))]
    assert len(near) > 100
