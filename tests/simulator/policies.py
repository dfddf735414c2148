"""Kinds of worlds in which one policy matters: the line of a pool.

Each draws from a random stream of its own, so that all else in the world of a seed stays as it is.
"""

from __future__ import annotations

import random
from typing import Any

from msgspec import structs

from coordd.core.jobs.job import Job
from simulator.item import Item

# Runs of several jobs wait for one pool, in one order.
LINE = "line"

# (m, r): the seeds with seed % m == r are of that kind.
SEEDS = {LINE: (11, 6)}

# The pool of such a world, its possible sizes, and the jobs that may be in it.
POOL = "line"
SIZES = (1, 1, 2, 3)
IN_LINE = ("hand", "held", "morph", "spread", "sched")

# The tag that only some machines have. A run that needs it is missed after this time (seconds) if they are all gone.
TAG = "rare"
TAGGED_S = 90.0
HAVE_TAG = (0.0, 0.4)

# After the faults, when all is calm, people ask for one of these numbers of runs, between these times (seconds). The
# numbers in their ids begin at BURST_IDS.
BURSTS = (8, 14)
BURST_S = (58.0, 61.0)
BURST_IDS = 2000


def line_jobs(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    """The jobs, some of them in one pool with priorities; one of them only for machines with TAG."""
    rng = random.Random(f"line of {seed}")
    size = rng.choice(SIZES)
    made = dict(jobs)
    for name in IN_LINE:
        fields: dict[str, Any] = {"pool": POOL, "pool_size": size, "priority": rng.choice((0, 0, 1, 2))}
        if name in ("spread", "sched") and rng.random() < 0.5:
            continue
        if name == "held":
            fields |= {"tags": (TAG,), "start_within_s": TAGGED_S} if rng.random() < 0.6 else {}
        made[name] = structs.replace(jobs[name], concurrency=None, rate=None, **fields)
    return made


def line_items(seed: int) -> list[Item]:
    """What people ask for when the faults are over."""
    rng = random.Random(f"burst of {seed}")
    names = ("hand", "held", "morph")
    return [
        Item(rng.uniform(*BURST_S), "trigger", rng.random(), 0.0, f"{rng.choice(names)}#{BURST_IDS + number}")
        for number in range(rng.choice(BURSTS))
    ]


def tags(seed: int, nodes: int) -> tuple[tuple[str, ...], ...]:
    """The tags of each machine."""
    rng = random.Random(f"tags of {seed}")
    have = rng.choice(HAVE_TAG)
    return tuple((TAG,) if rng.random() < have else () for _ in range(nodes))


def scores(seed: int, jobs: dict[str, Job]) -> dict[str, float]:
    """What the strategy of priorities says of each job, on all nodes; nothing in half of the worlds."""
    rng = random.Random(f"scores of {seed}")
    return {name: float(rng.choice((0, 1, 2))) for name in sorted(jobs)} if rng.random() < 0.5 else {}
