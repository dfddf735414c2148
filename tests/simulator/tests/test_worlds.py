"""Safety while faults last, liveness after they end: six hundred worlds, each from its seed."""

import hashlib
import os
import subprocess
import sys
from collections import Counter
from unittest import mock

import pytest

import simulator
from coordd.core.ledger.steps import MOVES
from coordd.core.ledger.words import TERMINAL
from simulator import command, configuration, plan, policies, publishing, shrink, world as worlds
from simulator.judging import excuses

KINDS = (publishing.PUBLISHED, *policies.SEEDS)

CHUNK = 25
WORLDS = 600
MANY = range(100, 225)  # those of them whose figures are tested too

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


@pytest.fixture(scope="module")
def many() -> command.Sums:
    """Figures of worlds of all kinds: tests check what these worlds contain."""
    return command.explore(MANY)


def test_every_property_holds_in_the_worlds_of_the_figures(many: command.Sums) -> None:
    assert many.failed == []
    assert min(many.nodes) >= 3
    assert min(many.runs) >= 10
    assert min(many.strikes) >= plan.FAULTS_MIN


@pytest.mark.parametrize("first", [first for first in range(0, WORLDS, CHUNK) if first not in MANY])
def test_every_property_holds(first: int) -> None:
    for seed in range(first, first + CHUNK):
        world = simulator.run(seed)
        assert len(world.hosts) >= 3, f"seed {seed}"
        least = 10 if world.plan.published else 20  # published jobs are withdrawn for a while
        assert len(world.runs()) >= least, f"seed {seed}"
        assert world.struck >= plan.FAULTS_MIN, f"seed {seed}"


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


def test_worlds_are_rich_enough_to_mean_something(many: command.Sums) -> None:
    assert many.takeovers > 300
    assert sum(count for nodes, count in many.nodes.items() if nodes >= 5) > many.worlds / 3
    assert sorted(many.runs)[many.worlds // 2] >= 20


def test_every_answer_of_the_ledger_is_given(many: command.Sums) -> None:
    # The ledger says "outdated" only if a node claims before its first sweep has told it the rules in force.
    assert set(many.answers) - {"outdated"} == {
        "ok",
        "exists",
        "conflict",
        "granted",
        "held",
        "early",
        "lost",
        "limited",
        "differs",
        "revoked",
        "finished",
        "recovering",
        "stale",
        "cancel",
        "unrecorded",
    }


def test_every_step_of_a_runs_life_is_taken(many: command.Sums) -> None:
    seen = {tuple(step.split(" > ")) for step in many.transitions}
    never = {("received", "received")}  # no change of state
    wanted = {(was, is_) for was, after in MOVES.items() for is_ in after} - never
    # If the ledger has forgotten the steps between, an end may come directly after another state. A report that passes
    # through STARTED is seen as one step. So no end directly after "received" is required.
    missing = {step for step in wanted - seen if step[1] not in TERMINAL or step[0] != "received"}
    assert missing <= RARE, missing - RARE


# Steps that at most two of a hundred worlds take. The long runs of `make sim` show these steps.
RARE = {
    ("unknown", "revoked"),
    ("unknown", "lost"),
    ("unknown", "started"),
    ("retry", "missed"),
    ("started", "lost"),
    ("pending", "rejected"),
}


def test_every_fault_strikes_in_many_worlds(many: command.Sums) -> None:
    rare = {fault for fault in plan.STRIKES if many.worlds_with[fault] < 0.04 * many.worlds}
    assert rare == set()
    assert {"late_news", "late", "refused"} <= many.struck.keys()
    assert {"pause_runner_before_exec", "kill_runner_before_exec", "crash_after_claim"} <= many.struck.keys()


def test_some_daemons_know_that_their_attempts_are_over_and_some_cannot_tell(many: command.Sums) -> None:
    assert many.struck["testified"] > 50
    assert many.struck["cannot_tell"] > 20
    assert many.struck["moved"] > 5, "the runners of an earlier daemon live, unseen"


def test_every_field_of_a_job_and_every_clock_is_changed_in_some_worlds(many: command.Sums) -> None:
    assert set(configuration.NAMES) <= {act.removeprefix("edit ") for act in many.acts}
    assert many.acts["remove"] > 3
    assert many.struck.keys() >= configuration.FAR


def test_all_that_can_happen_to_published_revisions_happens(many: command.Sums) -> None:
    assert {f"revision {kind}" for kind in publishing.KINDS} <= many.acts.keys()
    assert {kind for seed in MANY for kind in plan.draw(seed).kinds} >= {*KINDS}


def test_no_excuse_is_granted_more_often_than_its_budget_allows(many: command.Sums) -> None:
    assert excuses.exceeded(many.excused, many.kinds) == []


def test_a_budget_that_is_passed_is_named() -> None:
    worlds = Counter({excuses.KEEPING: 700, excuses.FORGETFUL: 300})
    within = Counter({one.name: int(one.budget * (1.0 if one.of == excuses.ANY else 0.3)) for one in excuses.EXCUSES})
    assert excuses.exceeded(within, worlds) == []

    for one in excuses.EXCUSES:
        passed = within + Counter({one.name: int(one.budget + 3 * one.budget**0.5) + excuses.FEW + 1})
        (told,) = excuses.exceeded(passed, worlds)
        assert one.name in told
        assert one.why in told


def test_one_world_alone_passes_no_budget() -> None:
    worlds, often = Counter({excuses.KEEPING: 200}), Counter({one.name: 1000 for one in excuses.EXCUSES})
    assert excuses.exceeded(excuses.counted(often), worlds) == []
    assert len(excuses.exceeded(sum([excuses.counted(often)] * 200, Counter()), worlds)) == len(excuses.EXCUSES)


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
