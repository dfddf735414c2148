"""Breakers of jobs."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.ledger.rules import Rules
from coordd.core.ledger.words import SUCCESS
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import BREAKERS


@instead(Rules, "_end_counts")
def _only_good_tries(real: Any, self: Rules, store: Any, row: Any, now: Any) -> None:
    if row.state == SUCCESS or self._breaker(store, row.job).probe != row.run:
        real(self, store, row, now)


MUTANTS = (
    Mutant(
        "an open breaker stops nobody",
        "§6 claim: a breaker is judged",
        "BR",
        lambda: mock.patch.object(Rules, "_broken", lambda *_: None),
        (BREAKERS,),
    ),
    Mutant(
        "a run that tried and failed changes nothing", "§6 breakers: never stuck", "BR", _only_good_tries, (BREAKERS,)
    ),
)
