"""Mutants of the ledger's identity: the pin, and the brake that holds back the first launches."""

from __future__ import annotations

from typing import Any
from unittest import mock

from support import memory

from coordd.core.ledger.identity import IS_FOREIGN, admit
from coordd.core.node.brake import Brake
from simulator.mutants.mutant import Mutant, instead
from simulator.plan import MISPLACED, PINNED


def _no_identity_is_compared(self: Brake, now: Any) -> None:
    """Every node uses the ledger that it sees first."""
    ctx, braked = self._ctx, self._ctx.braked
    if self._seen and not ctx.pinned:
        self._pin(ctx.ledger)
    if self._seen or ctx.pinned:
        ctx.braked, ctx.split = "", False
    if braked and not ctx.braked:
        self._released(now)


@instead(Brake, "_judge_first_start")
def _a_tie_launches(real: Any, self: Brake, others: Any, differing: Any, now: Any) -> None:
    ours = 1 + sum(member.ledger == self._ctx.ledger for member in others)
    if 2 * ours == 1 + len(others) and all(member.ledger for member in others):
        self._pin(self._ctx.ledger)
        self._become("", split=False)
    else:
        real(self, others, differing, now)


def _a_flush_is_another_ledger(store: Any, known: Any, *, recovering: bool) -> str:
    """A ledger without an identity is refused, even at the address of the pinned ledger."""
    if known.pin and not store.meta("identity"):
        return IS_FOREIGN
    return admit(store, known, recovering=recovering)


MUTANTS = (
    Mutant(
        "an identity is not compared",
        "§6 Brake: a strict majority before the first launch",
        "B",
        lambda: mock.patch.object(Brake, "judge", _no_identity_is_compared),
        (MISPLACED,),
    ),
    # With this mutant, both halves pin their own ledger, and each half stops the other.
    Mutant("a tie launches", "§6 Brake: a tie launches nothing", "L", _a_tie_launches, (MISPLACED,)),
    Mutant(
        "a flush is another ledger",
        "§6 Whose ledger: absent at the same address, the pin is written",
        "W",
        lambda: mock.patch.object(memory, "admit", _a_flush_is_another_ledger),
        (PINNED, "crash"),
        forgets=True,
    ),
)
