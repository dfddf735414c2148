"""The strategies: how a budget grows and cools down, and what load and memory leave of a concurrency."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from support.small_cluster import SETTINGS, Lone, job, open_run

from coordd.core.jobs.job import Concurrency
from coordd.core.ledger.requests import Claim
from coordd.core.node.room import IDLE_S, PAUSE_MAX_S, PAUSE_S, Auto, Room, by_load, by_memory

CALM: dict[str, Any] = {"load": 0.2, "memory": 0.8}
HOT: dict[str, Any] = {"load": 3.0, "memory": 0.8}
FULL: dict[str, Any] = {"load": 0.2, "memory": 0.05}


def room(size: int = 4, at: float = 0.0, *, busy: int = 4, wanted: bool = True, **more: Any) -> Room:
    said = {**CALM, **more}
    return Room(1, 16, size, busy, wanted, said["load"], said["memory"], at)


def sizes(auto: Auto, size: int, times: list[float], **more: Any) -> list[int]:
    """What it says at each of these times."""
    said = []
    for at in times:
        size = auto(room(size, at, busy=size, **more))
        said.append(size)
    return said


def test_it_doubles_while_runs_wait_on_a_calm_machine_up_to_the_most() -> None:
    times = [PAUSE_S * number for number in range(1, 7)]
    assert sizes(Auto(), 1, times) == [2, 4, 8, 16, 16, 16]


def test_it_does_not_grow_again_before_the_load_can_tell() -> None:
    assert sizes(Auto(), 2, [1.0, 2.0, PAUSE_S, PAUSE_S + 1.0]) == [4, 4, 4, 8]


def test_it_does_not_grow_if_nobody_waits() -> None:
    auto = Auto()
    assert [auto(room(at=at, busy=3, wanted=False)) for at in (PAUSE_S, 2 * PAUSE_S)] == [4, 4]


@pytest.mark.parametrize("why", [HOT, FULL], ids=["load", "memory"])
def test_it_halves_down_to_the_least_when_too_much_runs(why: dict[str, Any]) -> None:
    times = [PAUSE_S * number for number in range(1, 7)]
    assert sizes(Auto(), 16, times, **why) == [8, 4, 2, 1, 1, 1]


def test_it_halves_once_until_the_load_can_tell() -> None:
    assert sizes(Auto(), 16, [1.0, 2.0, PAUSE_S, PAUSE_S + 1.0], **HOT) == [8, 8, 8, 4]


def test_the_pause_before_the_next_growth_doubles_each_time_that_too_much_ran() -> None:
    for times, expected_s in ((1, 2 * PAUSE_S), (2, 4 * PAUSE_S), (3, 8 * PAUSE_S), (8, PAUSE_MAX_S)):
        auto = Auto()
        for number in range(1, times + 1):
            assert auto(room(4, PAUSE_S * number, **HOT)) == 2
        hot_at = at = PAUSE_S * times
        while auto(room(2, at)) == 2:
            at += 1.0
        assert at - hot_at == expected_s


def test_a_budget_that_lies_idle_is_halved() -> None:
    auto = Auto()
    assert auto(room(16, 0.0, busy=9, wanted=False)) == 16
    assert auto(room(16, IDLE_S - 1.0, busy=2, wanted=False)) == 16
    assert auto(room(16, IDLE_S, busy=2, wanted=False)) == 8
    assert auto(room(8, IDLE_S + 1.0, busy=2, wanted=False)) == 8
    assert auto(room(8, 2 * IDLE_S, busy=2, wanted=False)) == 4


@pytest.mark.parametrize(("load", "runs"), [(0.0, 16), (0.7, 16), (0.95, 8), (1.2, 1), (9.0, 1)])
def test_the_load_leaves_between_the_most_and_the_least(load: float, runs: int) -> None:
    assert by_load(room(load=load)) == runs


@pytest.mark.parametrize(("memory", "runs"), [(1.0, 16), (0.25, 16), (0.175, 8), (0.1, 1), (0.0, 1)])
def test_the_memory_leaves_between_the_most_and_the_least(memory: float, runs: int) -> None:
    assert by_memory(room(memory=memory)) == runs


def test_a_node_takes_as_many_as_its_strategy_says() -> None:
    lone = Lone(job(overlap="allow"), settings=structs.replace(SETTINGS, budget_client=8, budget_by="auto")).ready()
    lone.do(lambda now: lone.node.loaded((0.0, 0.0, 0.0), 1, {}))
    assert not lone.node.pursuits.short
    lone.sweep(*[open_run(f"sales#{number}") for number in range(4)])

    assert len(lone.questions("claim")) == 1
    assert lone.node.pursuits.short, "the others wait for the budget"
    assert lone.node.budget == 1

    lone.do(lambda now: lone.node.loaded((0.0, 0.0, 0.0), 3, {}))
    lone.wait(60.0)
    assert len(lone.questions("claim")) == 3


def test_a_claim_brings_the_concurrency_that_the_strategy_says_now() -> None:
    limited = job(overlap="allow", concurrency=Concurrency(max=9, min=2, by="load"))
    for present, expected in (({}, 9), ({"sales": 5}, 5)):
        lone = Lone(limited).ready()
        lone.do(lambda now, lone=lone, present=present: lone.node.loaded((0.0, 0.0, 0.0), None, present))
        lone.sweep(open_run("sales#1"))
        assert lone.waiting(Claim)[0].of.policy.limits == f"slots:job/sales={expected}"
