"""Worlds whose jobs run after other jobs: joined by period, by id, in chains, and beside a schedule of their own.

All of it is drawn from a random stream of its own, and the jobs are added to those that a world has anyway.
"""

from __future__ import annotations

import random
from typing import Literal

from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import After, Command, Job, Retry, Schedule
from simulator.terms import LEASE, SCHEDULES_END_S, WALL

On = Literal["success", "failure", "done"]
Needs = Literal["all", "any"]

# Periods, and how long the parents are awaited (seconds).
PERIODS_S = (15.0, 20.0, 30.0)
WITHIN_S = (4.0, 10.0, 25.0)

# How the parents must end: failures are rarer than successes in these worlds.
ENDS: tuple[On, ...] = ("success", "success", "done", "failure")
NEEDS: tuple[Needs, ...] = ("all", "all", "any")


# The members of a group.
PARTS = ("a", "b", "c")


def jobs(seed: int) -> dict[str, Job]:
    """The children: of two schedules, of each other, of runs by hand, of runs that never meet, with a schedule, groups,
    and of groups.
    """
    rng = random.Random(f"after of {seed}")

    def drawn(*parents: str, period_s: float = 0.0, needs: tuple[Needs, ...] = NEEDS) -> After:
        return After(
            parents, needs=rng.choice(needs), on=rng.choice(ENDS), period_s=period_s, within_s=rng.choice(WITHIN_S)
        )

    period_s = rng.choice(PERIODS_S)
    schedule = Schedule(kind="every", every_s=period_s, end=WALL + SCHEDULES_END_S)
    made = [
        _job("joined", drawn("sched", "spread", period_s=period_s)),
        _job("chained", drawn("joined")),
        _job("answers", drawn("hand", "held", "morph", needs=("any",))),
        _job("never", drawn("hand", "guarded", needs=("all",))),
        _job("timed", drawn("sched", "spread", period_s=period_s), schedule),
        _job("many", drawn("sched", period_s=period_s), expand=Expand("part", PARTS)),
        _job("gathered", drawn("many")),
    ]
    return {job.name: job for job in made}


def _job(name: str, after: After, schedule: Schedule | None = None, expand: Expand | None = None) -> Job:
    return Job(
        name=name,
        digest=f"after-{name}",
        launch=Command(argv=("/bin/true",)),
        lease_s=LEASE,
        overlap="allow",
        retry=Retry(relaunches=50),
        schedule=schedule,
        after=after,
        expand=expand,
    )
