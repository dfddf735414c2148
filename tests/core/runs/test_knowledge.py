"""What counts as knowledge that an attempt is over: everything that is not listed here cannot be told."""

from __future__ import annotations

import pytest

from coordd.core.runs.knowledge import ALL, CGROUP, DRIVER, EXECUTORS, GUARDED, NOTHING, PLACE, is_over

HERE = {"machine": "m1", "host": "edge-1", "boot": "b1", "pid_ns": "4026531836", "container": ""}
RESTARTED = {**HERE, "boot": "b2"}
CONTAINER = {"container": "/.dockerenv"}


def test_a_place_is_what_the_docs_say() -> None:
    assert tuple(HERE) == PLACE


@pytest.mark.parametrize("seen", [NOTHING, CGROUP, ALL])
def test_another_boot_of_the_same_machine_has_nothing_of_it(seen: str) -> None:
    assert is_over(HERE, RESTARTED, seen, "") == "its machine has restarted"


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ({}, {"machine": "m2"}),  # the disk was attached to another machine
        ({}, {"host": "edge-2"}),  # or to a clone of it
        (CONTAINER, {}),
        ({}, CONTAINER),
        (CONTAINER, CONTAINER),
        ({"machine": ""}, {"machine": ""}),
        ({"host": ""}, {"host": ""}),
        ({"boot": ""}, {}),
        ({}, {"boot": ""}),
    ],
)
@pytest.mark.parametrize("seen", [NOTHING, CGROUP, ALL])
def test_another_boot_of_anything_else_proves_nothing(then: dict[str, str], now: dict[str, str], seen: str) -> None:
    assert is_over({**HERE, **then}, {**RESTARTED, **now}, seen, "") == ""


@pytest.mark.parametrize("lacks", PLACE)
def test_a_record_that_lacks_a_part_proves_nothing_of_another_boot(lacks: str) -> None:
    if lacks != "pid_ns":
        assert is_over({key: text for key, text in HERE.items() if key != lacks}, RESTARTED, NOTHING, "") == ""
        assert is_over(HERE, {key: text for key, text in RESTARTED.items() if key != lacks}, NOTHING, "") == ""


def test_on_the_same_boot_somebody_must_have_looked() -> None:
    assert is_over(HERE, HERE, CGROUP, "") == "its cgroup is empty"
    assert is_over(HERE, HERE, ALL, "") == "none of its processes is left"
    assert is_over(HERE, HERE, NOTHING, "") == ""


@pytest.mark.parametrize("change", [{"pid_ns": "4026532000"}, {"pid_ns": ""}])
@pytest.mark.parametrize("seen", [CGROUP, ALL])
def test_from_another_pid_namespace_nothing_can_be_seen(change: dict[str, str], seen: str) -> None:
    assert is_over(HERE, {**HERE, **change}, seen, "") == ""
    assert is_over({**HERE, **change}, HERE, seen, "") == ""


def test_in_a_container_its_own_namespace_can_be_seen() -> None:
    assert is_over({**HERE, **CONTAINER}, {**HERE, **CONTAINER}, CGROUP, "") == "its cgroup is empty"


def test_executors_outlive_a_power_cut_but_not_a_driver_whose_kernel_lives() -> None:
    assert is_over(HERE, RESTARTED, NOTHING, EXECUTORS) == ""
    assert is_over(HERE, HERE, CGROUP, EXECUTORS) == "its cgroup is empty"


@pytest.mark.parametrize("now", [HERE, RESTARTED])
@pytest.mark.parametrize("seen", [NOTHING, CGROUP, ALL])
def test_a_driver_elsewhere_is_never_known_to_be_over(now: dict[str, str], seen: str) -> None:
    assert is_over(HERE, now, seen, DRIVER) == ""


def test_a_watcher_that_lived_throughout_needs_no_record() -> None:
    assert is_over({}, {}, GUARDED, "") == "its watcher has ended everything"
    assert is_over({}, {}, CGROUP, "") == is_over({}, {}, ALL, "") == ""
