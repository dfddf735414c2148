"""Fire times that nobody was there for, with ``misfire = "skip"``."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from coordd.core.jobs.job import Job
from coordd.core.ready import Now
from coordd.core.runs.passing import Passing
from coordd.core.runs.planner import Planner
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import SKIP_S, SKIPS


@instead(Planner, "_open")
def _the_newest_is_opened_however_old(real: Any, self: Planner, job: Job, fires: list[float], now: Now) -> None:
    real(self, structs.replace(job, misfire="once"), fires, now)


@instead(Planner, "_open")
def _nothing_is_young_enough(real: Any, self: Planner, job: Job, fires: list[float], now: Now) -> None:
    later = Now(now.mono, now.wall + 2.0 * SKIP_S) if job.misfire == "skip" else now
    real(self, job, fires, later)


@instead(Passing, "_pass_over")
def _what_is_skipped_is_not_told(real: Any, self: Passing, job: Job, *rest: Any) -> None:
    if job.misfire != "skip":
        real(self, job, *rest)


MUTANTS = (
    Mutant(
        "an old fire time is opened although its job skips",
        "policies, misfire: skip opens nothing older than a moment",
        "SK",
        _the_newest_is_opened_however_old,
        (SKIPS, "crash"),
    ),
    Mutant(
        "a fire time is skipped although a node is there",
        "policies, misfire: skip is for those that no node was there for",
        "SK",
        _nothing_is_young_enough,
        (SKIPS, "crash"),
    ),
    Mutant(
        "what is skipped is not told",
        "§6 pass_over: a fire time that no launch settles is told all the same",
        "L",
        _what_is_skipped_is_not_told,
        (SKIPS, "ledger_step"),
    ),
)
