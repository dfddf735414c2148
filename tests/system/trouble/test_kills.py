"""A short `make ticks`, `make owners` and `make pool`: nodes are killed. The programs' own record is judged."""

from __future__ import annotations

from kills import owners, pool, ticks


def test_ticks_of_five_crontabs_run_once_although_nodes_are_killed() -> None:
    plan = ticks.Plan(jobs=4, rounds=2, how=("--every", "12s"), interval_s=12, seed=2)
    verdict, about = ticks.run(plan, lambda _: None)
    assert verdict.violations == []
    assert verdict.counts["one success"] == verdict.counts["expected"] == 8
    assert (about["ended_alone"], about["skewed"]) == ([], True)


def test_fire_times_have_one_decision_although_their_owners_are_killed() -> None:
    plan = owners.Plan(jobs=10, rounds=2, interval_s=10, seed=2)
    verdict, about = owners.run(plan, lambda _: None)
    assert verdict.violations == []
    assert verdict.counts["one success"] == verdict.counts["expected"] == 20
    assert verdict.counts["kills"] >= 3, "a node that is down is not killed again"
    assert about["ended_alone"] == []


def test_a_pool_is_never_overfull_and_its_free_slots_are_used_although_nodes_are_killed() -> None:
    # The bound of `make pool` is a second, on a machine of its own.
    plan = pool.Plan(triggers=60, apart_s=0.05, size=3, unused_max_s=20.0, seed=2)
    verdict, about = pool.run(plan, lambda _: None)
    assert verdict.violations == []
    assert verdict.counts["expected"] == 60
    assert (verdict.counts["most alive"], verdict.counts["most holders"]) == (3, 3)
    assert verdict.counts["kills"] >= 2
    assert about["ended_alone"] == []
