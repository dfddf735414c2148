"""Blackouts: nothing fires in them, by the due time, once or every day."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.jobs import schedule
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import BLACKOUT


@instead(schedule, "_blackout_end")
def _by_the_nominal_time(real: Any, of: Any, at: float) -> float | None:
    end = real(of, at - of.offset_s)
    return end + of.offset_s if end is not None else None


MUTANTS = (
    Mutant(
        "a job fires in its blackouts",
        "§5 Planning: no fire time lies in a blackout",
        "BL",
        lambda: mock.patch.object(schedule, "_blackout_end", lambda *_: None),
        (BLACKOUT,),
    ),
    Mutant(
        "a blackout does not know the jitter",
        "§5 Planning: no due time lies in a blackout",
        "BL",
        _by_the_nominal_time,
        (BLACKOUT,),
    ),
    Mutant(
        "a blackout that repeats does not count",
        "§5 Planning: no fire time lies in a blackout",
        "BL",
        lambda: mock.patch.object(schedule, "_begun_at", lambda *_: None),
        (BLACKOUT,),
    ),
)
