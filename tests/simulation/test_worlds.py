"""Safety while faults last, liveness after they end: two thousand worlds, each from its seed."""

from collections import Counter

import pytest
import simulator

CHUNK = 50
WORLDS = 2000

# Worlds that once showed a defect, each kept for good: see docs/reliability.md for what it was.
PAST = (2, 6, 7, 12, 24, 30, 43, 53, 115, 735, 775, 1040, 2229, 4559, 5083, 6813)

# The same, of worlds that were narrowed to some faults and whose ledger goes back.
PAST_SETBACKS = ((63, None), (84, ("crash", "broker_down")))


@pytest.mark.parametrize("first", range(0, WORLDS, CHUNK))
def test_every_property_holds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        world = simulator.run(seed)
        assert len(world.hosts) >= 3, f"seed {seed}"
        rows = {row.run for row in world.ledger.runs(limit=10_000)}
        runs = rows | {child.run for child in world.children} | world.asked
        assert len(runs) >= 10, f"seed {seed}"
        assert sum(world.fault_log.values()) >= 5, f"seed {seed}"


@pytest.mark.parametrize("seed", PAST)
def test_past_failures_stay_mended(seed: int) -> None:
    simulator.run(seed)


@pytest.mark.parametrize(("seed", "faults"), PAST_SETBACKS)
def test_past_failures_of_ledgers_that_go_back_stay_mended(seed: int, faults: tuple[str, ...] | None) -> None:
    simulator.run(seed, faults=faults, forgets=True)


def test_the_same_seed_is_the_same_world() -> None:
    first, second = simulator.run(17, trace=True), simulator.run(17, trace=True)

    assert first.trace == second.trace
    assert first.events == second.events


def test_worlds_are_rich_enough_to_mean_something() -> None:
    worlds = [simulator.run(seed) for seed in range(100, 160)]
    words = set().union(*(world.answers for world in worlds))

    assert sum(world.takeovers for world in worlds) > 100
    assert {"granted", "held", "lost", "early", "limited", "finished", "stale", "exists", "recovering"} <= words


def test_production_worlds_meet_what_only_they_can_meet() -> None:
    worlds = [world for world in map(simulator.run, range(100, 160)) if world.production]
    struck = sum((world.fault_log for world in worlds), Counter())
    setbacks = [setback for world in worlds for setback in world.server.setbacks]

    assert {"broker_down", "connection_lost", "late_news", "late", "refused"} <= struck.keys()
    assert {setback.kind for setback in setbacks} == {"failover", "old_snapshot", "flush"}
    assert any(len(world.server.setbacks) > 1 for world in worlds)


def test_an_excuse_is_rare() -> None:
    """What nobody could tell the ledger of is launched again: that is no violation, and must not hide one."""
    worlds = [world for world in map(simulator.run, range(100, 200)) if world.forgets]
    excused = sum(world.judge.unwitnessed.total() for world in worlds)

    assert excused < sum(len(world.children) for world in worlds) / 50
