"""The runner's own watch over its lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from coordd.core import attempt as life
from coordd.core.attempt import Attempt
from simulator.mutants.mutant import Mutant, instead
from simulator.world import World


@instead(World, "mono")
def _bus_and_ledger_by_wall_clock(real: Callable[..., float], self: World, host: Any) -> float:
    """The monotonic clock steps with the wall clock."""
    return real(self, host) + float(host.skew)


MUTANTS = (
    Mutant(
        "a loose watchdog",
        "§7: a stopped runner must not leave Spark running",
        "S2",
        lambda: mock.patch.object(life, "watcher_kill_at", lambda deadline, grace: deadline + 10.0),
        ("pause_runner",),
    ),
    Mutant(
        "no deadline check before exec",
        "§7: right before exec the deadline is checked again",
        "S2",
        lambda: mock.patch.object(Attempt, "may_exec", lambda self, now: True),
        ("freeze", "targeted"),
    ),
    Mutant(
        "the runner does not end its program",
        "§7: ended when the lease cannot be renewed",
        "F",
        lambda: mock.patch.object(Attempt, "_fences", lambda self: False),
        ("ledger_cut",),
    ),
    Mutant(
        "the wall clock for CLOCK_BOOTTIME",
        "§7: deadlines on CLOCK_BOOTTIME",
        "F",
        _bus_and_ledger_by_wall_clock,
        ("step", "ledger_cut"),
    ),
)
