"""Kinds of worlds in which one policy matters: the line of a pool, holds, budgets, blackouts, queues,
retries, skipped fire times, hooks, breakers, jobs after jobs, triggers, checks.

Each draws from a random stream of its own, so that all else in the world of a seed stays as it is.
"""

from __future__ import annotations

import math
import random
from typing import Any

from msgspec import structs

from coordd.core.jobs.job import Blackout, Breaker, Job, Rate, Rates, Retry
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.rows import ALL, OF_JOB, OF_NODE
from simulator.item import Item
from simulator.terms import CHAOS_S, SCHEDULES_END_S, WALL

# Runs of several jobs wait for one pool, in one order.
LINE = "line"

# People drain nodes, suspend jobs and stop all jobs, until an instant or until they end it.
HOLDS = "holds"

# Each node has room for few runs, some of them for another number every few seconds; rates count on each node.
ROOM = "room"

# Nothing fires at some times.
BLACKOUT = "blackout"

# Several jobs have short queues, and many ask at once.
QUEUES = "queues"

# Jobs have retries of all sorts, and fail on some machines only.
RETRIES = "retries"

# Fire times that no node was there for are skipped.
SKIPS = "skips"

# A hook is told of the ends of all runs.
HOOKS = "hooks"

# Jobs have breakers, and fail on some machines only.
BREAKERS = "breakers"

# Jobs run after other jobs.
AFTER = "after"

# Jobs have triggers, and know triggers by a key.
TRIGGERS = "triggers"

# Jobs run after other jobs, and people replay what was given up with its children.
RERUNS = "reruns"

# What nodes look at goes bad and good again; jobs are left to others or suspended meanwhile. Not beside triggers.
CHECKS = "checks"

# (m, r): the seeds with seed % m == r are of that kind.
SEEDS = {
    LINE: (11, 6),
    HOLDS: (17, 1),
    ROOM: (17, 7),
    BLACKOUT: (17, 16),
    QUEUES: (17, 11),
    RETRIES: (17, 3),
    SKIPS: (23, 4),
    HOOKS: (23, 3),
    BREAKERS: (23, 8),
    AFTER: (29, 24),
    TRIGGERS: (19, 5),
    RERUNS: (29, 11),
    CHECKS: (31, 29),
}

# Seeds that have shown a defect before there were the last seven kinds: they stay the worlds that they were.
EARLIER = frozenset(
    (
        275,
        1004,
        1040,
        1429,
        4559,
        10983,
        15286,
        16302,
        20131,
        21563,
        22073,
        22541,
        22978,
        23233,
        23471,
        24105,
        24804,
        33659,
        209634,
        302875,
        463087,
        464016,
        480864,
        606818,
        620282,
        921129,
        930035,
    )
)
# The same for the youngest kinds that have such seeds.
BEFORE_BREAKERS = frozenset((22042, 26389, 32323, 41293, 923159))
BEFORE_TRIGGERS = frozenset((2228, 9102012, 22368, 50241, 29189, 463301))
BEFORE_RERUNS = frozenset((5550, 29504, 8005432))
BEFORE_CHECKS = frozenset((440198,))
YOUNGER = frozenset((HOLDS, ROOM, BLACKOUT, QUEUES, RETRIES, SKIPS, HOOKS, BREAKERS, AFTER, TRIGGERS, RERUNS, CHECKS))

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

# The act of a person that holds something, how many of them a world has, and how long (seconds) they last.
HOLD = "hold"
HOLDS_MADE = (4, 8, 12)
HELD_S = (1.0, 15.0)

# How many runs a node may have room for, and how long (seconds) that stays so where it changes.
SPACES = (1, 1, 2, 3)
SAME_S = (1.0, 6.0)

# The jobs that have blackouts, how many, how long (seconds) each lasts, and the jitter of such a job (seconds).
BLACK_JOBS = ("sched", "spread", "strict")
BLACKOUTS = (1, 2)
BLACK_S = (3, 12)
OFFSETS_S = (0.0, 0.0, 2.0, 5.0)

# The jobs that have queues, their lengths, how often many ask for one of them at once, and how many do. The numbers in
# the ids of their runs begin at QUEUE_IDS.
QUEUED = ("hand", "guarded", "morph")
LENGTHS = (0, 1, 1, 2, 4)
CROWDS = (2, 3)
CROWD = (3, 7)
QUEUE_IDS = 3000

# The jobs of RETRIES that fail on some machines: from the beginning, or from when all is calm (seconds). How long
# (seconds) their programs run.
RETRIED = ("hand", "held", "morph", "spread", "sched")
FAILING = 0.6
FAIL_FROM_S = (0.0, 57.0)
RUN_S = (0.5, 1.0, 3.0)

# When all is calm, people ask for one of these numbers of runs of them, between these times (seconds).
ASKED = (30, 45)
ASKED_S = (58.0, 92.0)
ASKED_IDS = 3000

# The jobs that skip, the time (seconds) after which no node opens such a fire time, and their times to start.
SKIPPING = ("sched", "spread", "strict")
SKIP_S = 4
SKIPPED_WITHIN_S = (3.0, 8.0, 15.0)

# How often all daemons are away at once, and for how long (seconds).
ALL_AWAY = (1, 2)
ALL_AWAY_S = (8.0, 18.0)

# For how long (seconds) a node stands aside at first.
ASIDE_S = 14


def with_parents(kinds: frozenset[str]) -> frozenset[str]:
    """Where people replay runs with their children, jobs run after other jobs."""
    return kinds | {AFTER} if RERUNS in kinds else kinds


def jobs_of(kinds: frozenset[str], seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    """The jobs, as worlds of these kinds have them."""
    for kind, made in (
        (ROOM, _rated),
        (BLACKOUT, _blacked_out),
        (QUEUES, _queued),
        (LINE, line_jobs),
        (RETRIES, retries_jobs),
        (SKIPS, _skipping),
        (BREAKERS, _broken),
    ):
        if kind in kinds:
            jobs = made(seed, jobs)
    return jobs


def items_of(kinds: frozenset[str], seed: int, nodes: int) -> list[Item]:
    """What people do in worlds of these kinds, beside what they do in all."""
    items = line_items(seed) if LINE in kinds else []
    items += _holds(seed, nodes) if HOLDS in kinds else []
    items += retries_items(seed) if kinds & {RETRIES, BREAKERS} else []
    items += _all_away(seed, nodes) if SKIPS in kinds else []
    return items + (_crowds(seed) if QUEUES in kinds else [])


def _holds(seed: int, nodes: int) -> list[Item]:
    """Half of them end by themselves (``who``, in tenths of its hundredth, says which)."""
    rng = random.Random(f"holds of {seed}")
    on = [ALL, *(OF_NODE + f"n{index}" for index in range(nodes)), *(OF_JOB + job for job in (*BLACK_JOBS, *QUEUED))]
    return [
        Item(rng.uniform(3.0, CHAOS_S), HOLD, rng.random(), rng.uniform(*HELD_S), rng.choice(on))
        for _ in range(rng.choice(HOLDS_MADE))
    ]


def rooms(seed: int, nodes: int) -> tuple[tuple[int, ...], ...]:
    """How many runs each machine has room for; where there are several numbers, one after the other."""
    rng = random.Random(f"rooms of {seed}")
    return tuple(tuple(rng.choice(SPACES) for _ in range(rng.choice((1, 8)))) for _ in range(nodes))


def _rated(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    rng = random.Random(f"rates of {seed}")
    each = Rate(count=rng.choice((1, 2)), period_s=rng.choice((4, 8)))
    both = Rates(cluster=Rate(count=3, period_s=5), per_node=Rate(count=rng.choice((1, 2)), period_s=5))
    drawn = {"hand": Rates(per_node=each), "morph": both}
    return {
        name: structs.replace(job, rate=drawn[name], concurrency=None) if name in drawn and rng.random() < 0.7 else job
        for name, job in jobs.items()
    }


def _blacked_out(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    """Each of these jobs still has a fire time."""
    rng = random.Random(f"blackouts of {seed}")
    made = dict(jobs)
    for name in BLACK_JOBS:
        begins = [WALL + rng.randrange(5, 50) for _ in range(rng.choice(BLACKOUTS))]
        black = [Blackout(start=begin, end=begin + rng.randint(*BLACK_S)) for begin in begins]
        if rng.random() < 0.5:
            black.append(Blackout(cron="* * * * *", duration_s=float(rng.randint(*BLACK_S))))
        before = jobs[name].schedule
        assert before is not None
        schedule = structs.replace(before, offset_s=rng.choice(OFFSETS_S), blackout=tuple(black))
        if fires_between(schedule, WALL + 10.0, WALL + SCHEDULES_END_S, 1):
            made[name] = structs.replace(jobs[name], schedule=schedule)
    return made


def _queued(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    rng = random.Random(f"queues of {seed}")
    made = dict(jobs)
    for name in QUEUED:
        fields: dict[str, Any] = {"queue_max": rng.choice(LENGTHS), "queue_keep": rng.choice(("first", "last"))}
        made[name] = structs.replace(jobs[name], overlap="queue", **fields)
    return made


def _crowds(seed: int) -> list[Item]:
    rng = random.Random(f"crowds of {seed}")
    made = []
    for crowd in range(rng.choice(CROWDS)):
        at, name = rng.uniform(3.0, CHAOS_S - 3.0), rng.choice(QUEUED)
        for number in range(rng.randint(*CROWD)):
            run = f"{name}#{QUEUE_IDS + 100 * crowd + number}"
            made.append(Item(at + rng.uniform(0.0, 2.0), "trigger", rng.random(), 0.0, run))
    return made


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


def retries_jobs(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    """The jobs, some of them with more attempts, and pauses of each sort between them."""
    rng = random.Random(f"retries of {seed}")
    made = dict(jobs)
    for name in RETRIED:
        retry = Retry(
            attempts=rng.choice((2, 3, 5)),
            relaunches=50,
            delay_s=rng.choice((0.0, 0.5, 1.0, 2.0, 4.0)),
            backoff=rng.choice(("fixed", "linear", "exponential")),
            jitter=rng.choice((0.0, 0.25, 1.0)),
        )
        made[name] = structs.replace(jobs[name], retry=retry)
    return made


def retries_items(seed: int) -> list[Item]:
    """What people ask for when the faults are over."""
    rng = random.Random(f"asked of {seed}")
    names = ("hand", "hand", "held", "morph")
    return [
        Item(rng.uniform(*ASKED_S), "trigger", rng.random(), 0.0, f"{rng.choice(names)}#{ASKED_IDS + number}")
        for number in range(rng.choice(ASKED))
    ]


def fails(seed: int, nodes: int) -> tuple[float, frozenset[tuple[str, int]]]:
    """From when on (seconds) the programs of which job fail on which machine. No job fails on all machines."""
    rng = random.Random(f"fails of {seed}")
    made: set[tuple[str, int]] = set()
    for name in RETRIED:
        machines = rng.sample(range(nodes), rng.randint(1, nodes - 1))
        if rng.random() < FAILING:
            made |= {(name, machine) for machine in machines}
    return rng.choice(FAIL_FROM_S), frozenset(made)


def _skipping(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    rng = random.Random(f"skips of {seed}")
    made = dict(jobs)
    for name in SKIPPING:
        if rng.random() < 0.7:
            within_s = rng.choice(SKIPPED_WITHIN_S)
            made[name] = structs.replace(jobs[name], misfire="skip", start_within_s=within_s)
    return made


def _broken(seed: int, jobs: dict[str, Job]) -> dict[str, Job]:
    rng = random.Random(f"breakers of {seed}")
    made = dict(jobs)
    for name in RETRIED:
        breaker = Breaker(
            groups=((rng.choice((1, 2)), ("failure", "lost", "timeout")),),
            window_s=rng.choice((0.0, 0.0, 20.0)),
            open_for_s=rng.choice((1.0, 3.0, 8.0)),
            open_for_max_s=15.0,
            growth=rng.choice(("fixed", "linear", "exponential")),
            when_open=rng.choice(("prevent", "prevent", "fail")),
            enforce=rng.random() < 0.8,
        )
        made[name] = structs.replace(jobs[name], breaker=breaker)
    return made


def _all_away(seed: int, nodes: int) -> list[Item]:
    """All daemons die, one right after the other. ``who`` chooses one machine, and is not aimed at those with runs."""
    rng = random.Random(f"all away of {seed}")
    made = []
    for _ in range(rng.choice(ALL_AWAY)):
        at, away_s = rng.uniform(5.0, CHAOS_S - 5.0), rng.uniform(*ALL_AWAY_S)
        for number in range(nodes):
            who = (math.floor(100 * (number + 0.5) / nodes) + 0.9) / 100
            made.append(Item(at + rng.uniform(0.0, 0.2), "crash", who, away_s + rng.uniform(0.0, 2.0)))
    return made


def limits_of(kinds: frozenset[str]) -> dict[str, int]:
    """The bounds of the product that are lower in it."""
    aside = {"coordd.core.members.elsewhere.ASIDE_S": ASIDE_S} if RETRIES in kinds else {}
    return aside | ({"coordd.core.runs.planner.SKIP_GRACE_S": SKIP_S} if SKIPS in kinds else {})
