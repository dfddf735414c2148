"""A job file is changed on one node after the other while nodes claim runs.

Two definitions never count at the same time, and no run is launched twice.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest
from msgspec import structs
from support.ledger_calls import EPOCH
from support.small_cluster import Cluster, job

from coordd.core.jobs.job import Job, Schedule

SEEDS = range(16)
EVERY_S = 3.0


def definition(number: int, schedule: Schedule) -> Job:
    made = structs.replace(job("sales", digest=f"d{number}"), misfire="all", overlap="allow")
    return structs.replace(made, schedule=schedule)


def end_programs(cluster: Cluster) -> None:
    for shell in cluster.shells.values():
        for run in list(shell.renew_at):
            if cluster.mono - shell.renew_at[run] > -3.0:
                cluster.end(shell.name, run)


def go_on(cluster: Cluster, seconds: int) -> None:
    for _ in range(seconds):
        cluster.wait(1.0)
        end_programs(cluster)


def edited(seed: int, *, schedules: bool) -> tuple[Cluster, dict[str, list[tuple[str, float]]]]:
    """Three nodes and four edits, one of them a rollback. Each edit reaches the nodes in a random order.

    Returns the cluster, and for each definition's digest the runs that were granted under it, with their due times.
    """
    rng = random.Random(f"edits {seed}")
    plain = Schedule(kind="every", every_s=EVERY_S)
    shapes = [plain, Schedule(kind="every", every_s=EVERY_S, offset_s=2.0), Schedule(kind="every", every_s=4.0), plain]
    versions = [definition(number, shapes[number] if schedules else plain) for number in range(4)]
    versions.append(versions[rng.randrange(3)])  # a rollback to an earlier definition
    cluster = Cluster("a", "b", "c", jobs=(versions[0],))
    cluster.wait(rng.uniform(7, 12))
    for made in versions[1:]:
        for name in rng.sample("abc", 3):
            shell = cluster.shells[name]
            shell.do(shell.node.set_jobs, {"sales": made})
            cluster.wait(rng.choice((0.0, 0.3, 1.0, 7.0)))
            end_programs(cluster)
        go_on(cluster, rng.randint(5, 14))
    go_on(cluster, 12)
    granted: dict[str, list[tuple[str, float]]] = {}
    for row in cluster.ledger.runs(limit=10_000):
        granted.setdefault(row.digest, []).append((row.run, row.due_at - EPOCH))
    return cluster, granted


@pytest.mark.parametrize("seed", SEEDS)
def test_edits_that_do_not_touch_the_schedule_lose_and_repeat_nothing(seed: int) -> None:
    cluster, granted = edited(seed, schedules=False)

    instants = sorted(due for runs in granted.values() for _, due in runs)
    assert instants == [instants[0] + EVERY_S * number for number in range(len(instants))]
    assert instants[-1] >= cluster.mono - 1000.0 - EVERY_S
    states = Counter(row.state for row in cluster.ledger.runs(limit=10_000))
    assert set(states) <= {"success", "started", "received"}, states


@pytest.mark.parametrize("seed", SEEDS)
def test_edits_of_the_schedule_run_nothing_twice_and_one_definition_counts_at_a_time(seed: int) -> None:
    cluster, granted = edited(seed, schedules=True)

    launched = [(launch.run, launch.attempt) for shell in cluster.shells.values() for launch in shell.launches]
    assert len(launched) == len(set(launched))
    past = cluster.ledger._store.activations("sales")
    for one, following in zip(past, [*past[1:], None], strict=True):
        upto = following.activated_at - EPOCH if following is not None else float("inf")
        for run, due in granted.get(one.digest, ()):
            if [other.digest for other in past].count(one.digest) == 1:
                assert one.counts_from - EPOCH < due < upto + 5.0, f"{run} was granted outside the time of {one.digest}"
    assert len({node["sales"].digest for node in [shell.node.ctx.jobs for shell in cluster.shells.values()]}) == 1
    assert not any(shell.node.rulebook.definitions.stale for shell in cluster.shells.values())
