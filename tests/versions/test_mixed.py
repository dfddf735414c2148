"""Both versions in one cluster, in worlds drawn from a seed: each jittered fire time runs once during the upgrade."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec import structs
from support.small_cluster import job

from coordd.core.jobs.job import Schedule
from coordd.core.ledger.words import NEVER
from versions.mixed import EPOCH, Mixed

SEEDS = range(12)


def jittered(every_s: float, offset_s: float) -> Any:
    made = structs.replace(job("sales"), misfire="all", overlap="allow")
    return structs.replace(made, schedule=Schedule(kind="every", every_s=every_s, offset_s=offset_s))


def world(seed: int) -> Mixed:
    """Three old nodes are upgraded one after the other. A node may be cut off from the bus, or become old again."""
    cluster = Mixed("a", "b", "c", jobs=(jittered(*SHAPES[seed % len(SHAPES)]),), seed=seed)
    rng = cluster.rng
    boots = dict.fromkeys("abc", 1)

    def replace(name: str, *, old: bool) -> None:
        boots[name] += 1
        cluster.replace(name, boots[name], old=old)

    def go_on(seconds: float) -> None:
        for _ in range(int(seconds)):
            cluster.wait(1.0)
            cluster.end_old_programs(2.5)

    go_on(rng.uniform(5, 15))
    for name in rng.sample("abc", 3):
        if rng.random() < 0.3:  # nobody hears this old node: nodes that start now do not know it
            cut = rng.choice("abc")
            cluster.shells[cut].do(cluster.shells[cut].node.bus_changed, False)
            cluster.shells[cut].bus = False
        replace(name, old=False)
        go_on(rng.uniform(1, 12))
    for name in "abc":
        if not cluster.shells[name].bus:
            cluster.shells[name].bus = True
            cluster.shells[name].do(cluster.shells[name].node.bus_changed, True)
    go_on(25)
    if rng.random() < 0.5:
        replace(rng.choice("abc"), old=True)
    go_on(20)
    return cluster


SHAPES = ((3.0, 7.0), (5.0, 2.0), (4.0, 30.0), (7.0, 1.0))


def launched_when_due(cluster: Mixed) -> Counter[float]:
    rows = {row.run: row for row in cluster.ledger.runs(limit=10_000)}
    return Counter(rows[run].due_at - EPOCH for run in cluster.started_at)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_fire_time_runs_once_through_the_upgrade(seed: int) -> None:
    judge(world(seed), seed)


def judge(cluster: Mixed, seed: int) -> None:
    every_s, offset_s = SHAPES[seed % len(SHAPES)]
    begin = float(cluster.ledger._store.meta("identity_from") or NEVER)
    assert begin < NEVER, "rules 2 are in force at last"
    counts = launched_when_due(cluster)
    assert set(counts.values()) == {1}, "a fire time ran twice"
    nominal = sorted(due - offset_s for due in counts)
    assert nominal == [nominal[0] + every_s * number for number in range(len(nominal))], "one was passed over"
    assert nominal[-1] + offset_s > cluster.mono - 1000.0 - 3 * every_s, "it goes on to the end"
    rows = [row for row in cluster.ledger.runs(limit=10_000) if row.run in cluster.started_at]
    old_names = [row.due_at for row in rows if row.due_at == row.fire_at]
    assert all(due <= begin for due in old_names), "a run was opened under the old rules after they had ended"
    assert max(old_names) > begin - 2 * every_s, "and up to then they counted"
