"""What the worlds contain: a world in which little happens proves little.

These tests are in a file of their own, one after the other: then one worker has them all, and explores the worlds once.
"""

from collections import Counter

import pytest

from coordd.core.ledger.steps import MOVES
from coordd.core.ledger.words import TERMINAL
from simulator import command, configuration, plan, policies, publishing
from simulator.judging import excuses

KINDS = (publishing.PUBLISHED, *policies.SEEDS)

# Of the worlds that ``test_worlds`` runs, these are run here.
MANY = range(100, 225)


@pytest.fixture(scope="module")
def many() -> command.Sums:
    """Figures of worlds of all kinds: tests check what these worlds contain."""
    return command.explore(MANY)


def test_every_property_holds_in_the_worlds_of_the_figures(many: command.Sums) -> None:
    assert many.failed == []
    assert min(many.nodes) >= 3
    assert min(many.runs) >= 10
    assert min(many.strikes) >= plan.FAULTS_MIN


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
