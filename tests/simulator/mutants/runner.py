"""The runner's own watch over its lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

from coordd.core import attempt as life
from coordd.core.attempt import Attempt
from coordd.core.ledger.words import RHO
from simulator.mutants.mutant import Mutant, instead
from simulator.world import World


@instead(World, "mono")
def _bus_and_ledger_by_wall_clock(real: Callable[..., float], self: World, host: Any) -> float:
    """The monotonic clock steps with the wall clock."""
    return real(self, host) + float(host.skew)


@instead(Attempt, "answered")
def _the_rest_counts_from_the_question(real: Callable[..., None], self: Attempt, *args: Any, **how: Any) -> None:
    """The time until the fire time is counted from when the gate was asked, as a lease is."""
    with mock.patch.object(life, "exec_at", lambda _received_at, in_s: how["sent_at"] + in_s * (1 + 2 * RHO)):
        real(self, *args, **how)


@instead(Attempt, "cancel")
def _an_open_gate_is_final(real: Callable[..., None], self: Attempt, reason: str, *, now: float) -> None:
    """Who is told to end while it waits for its fire time does not listen."""
    if self.phase != life.READY:
        real(self, reason, now=now)


MUTANTS = (
    Mutant(
        "the rest counts from the question",
        "§7: the rest until the fire time counts from the receipt",
        "E TP",
        _the_rest_counts_from_the_question,
    ),
    Mutant(
        "an open gate is not waited behind",
        "§7: exec at the fire time, not at the gate",
        "E TP",
        lambda: mock.patch.object(life, "exec_at", lambda received_at, _in_s: received_at),
    ),
    Mutant(
        "an open gate is final",
        "§7: who is told before the fire time executes nothing",
        "X",
        _an_open_gate_is_final,
        ("targeted",),
    ),
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
        "S2 Y",
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
