"""Safety while faults last, liveness after they end: two hundred and fifty worlds, each from its seed."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from unittest import mock

import pytest
from msgspec import structs

import simulator
from coordd.core.jobs.job import Job
from simulator import command, configuration, plan, shrink, world as worlds
from simulator.item import Item
from simulator.tests import test_figures

CHUNK = 25
WORLDS = 250

# Worlds that once showed a defect. Each line has a seed and the verdict. docs/reliability.md describes the defects.
PAST = [int(line.split()[0]) for line in command.PAST.read_text().splitlines() if line[:1].isdigit()]

# The same for worlds that have only the named faults.
PAST_NARROW = ((116, ("remove", "ledger_down", "crash")),)

# The same for worlds whose ledger goes back. Some of them have only the named faults.
PAST_SETBACKS = ((63, None), (84, ("crash", "broker_down")))

DIGEST = """
import hashlib, simulator
world = simulator.run(SEED, trace=True)
print(hashlib.sha256("\\n".join(world.trace).encode()).hexdigest())
"""


@pytest.mark.parametrize("first", [first for first in range(0, WORLDS, CHUNK) if first not in test_figures.MANY])
def test_every_property_holds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        world = simulator.run(seed)
        assert len(world.hosts) >= 3, f"seed {seed}"
        least = 10 if world.plan.published else 20  # published jobs are withdrawn for a while
        assert len(world.runs()) >= least, f"seed {seed}"
        assert world.struck >= plan.FAULTS_MIN, f"seed {seed}"


def test_every_field_of_a_definition_is_changed_while_claims_are_in_flight() -> None:
    base, redefined = configuration.REDEFINED_SEEDS
    acts: Counter[str] = Counter()
    for seed in range(redefined, 15 * base, base):
        acts += simulator.run(seed).acts

    changed = {act.removeprefix(f"{configuration.FIELD} ") for act in acts}
    assert changed >= {*Job.__struct_fields__} - {"name", "digest"}


@pytest.mark.parametrize("name", configuration.FIELD_NAMES)
@pytest.mark.parametrize("job", plan.draw(3).jobs.values(), ids=lambda job: job.name)
def test_each_change_makes_another_definition(name: str, job: Job) -> None:
    who = (configuration.FIELD_NAMES.index(name) + 0.5) / len(configuration.FIELD_NAMES)
    item = Item(10.0, configuration.FIELD, who, 3.5, job.name)
    once = configuration.edited(job, item)
    again = configuration.edited(once, item._replace(at=20.0, amount=3.2))

    assert structs.replace(once, digest=job.digest) != job
    assert structs.replace(again, digest=once.digest) != once


@pytest.mark.parametrize("seed", PAST)
def test_past_failures_stay_mended(seed: int) -> None:
    simulator.run(seed)


def test_a_run_that_waits_for_the_turns_of_others_does_not_hang() -> None:
    """It waits for a pool whose slots programs that live take, one after the other, for longer than all else may."""
    with mock.patch.object(worlds, "SETTLED_LIMIT_S", 150.0):
        assert simulator.run(8702909).turns_s > 150.0


@pytest.mark.parametrize(("seed", "faults"), PAST_NARROW)
def test_past_failures_of_a_few_faults_stay_mended(seed: int, faults: tuple[str, ...]) -> None:
    simulator.run(seed, faults=faults)


def test_a_replay_takes_the_end_of_a_parent_back_for_nodes_that_start_later() -> None:
    """The judge counted from an end that no row shows any more."""
    simulator.run(111, forgets=False)


@pytest.mark.parametrize(("seed", "faults"), PAST_SETBACKS)
def test_past_failures_of_ledgers_that_go_back_stay_mended(seed: int, faults: tuple[str, ...] | None) -> None:
    simulator.run(seed, faults=faults, forgets=True)


@pytest.mark.parametrize("seed", [3, 11, 17, 100])  # with hooks, jobs after jobs, real bytes
def test_the_same_seed_is_the_same_world_in_another_process_too(seed: int) -> None:
    world = simulator.run(seed, trace=True)
    here = hashlib.sha256("\n".join(world.trace or []).encode()).hexdigest()
    for hashes in ("1", "2"):  # no order may depend on Python's hashes
        environment = {**os.environ, "PYTHONHASHSEED": hashes, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        told = subprocess.run(
            [sys.executable, "-c", DIGEST.replace("SEED", str(seed))],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )
        assert told.stdout.strip() == here


def test_a_failure_is_made_small() -> None:
    """A gate that opens early, in a world in which many other things happen."""
    from simulator import mutants

    mutant = next(one for one in mutants.MUTANTS if one.name == "the gate opens early")
    with mutant.patch():
        seed, verdict = next(command.find(mutant, 50))
        small = shrink.shrink(seed)
        assert shrink.broken(small).split()[0] == verdict.split()[0]
    whole = simulator.draw(seed)
    assert len(small.without) > len(whole.labels()) / 2
    assert Counter(small.labels()) == Counter(whole.labels()) - Counter(small.faults ^ whole.faults)
