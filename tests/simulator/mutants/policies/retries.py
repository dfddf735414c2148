"""Retries: the pause before them, who tries them, and who stands aside."""

from __future__ import annotations

from unittest import mock

from coordd.core.ledger.words import Policy
from coordd.core.members.elsewhere import Elsewhere
from coordd.core.runs.pursued import Phases
from simulator.mutants.mutant import Mutant
from simulator.policies import RETRIES

MUTANTS = (
    Mutant(
        "a retry knows no pause",
        "§7 the delay of a retry",
        "TP",
        lambda: mock.patch.object(Policy, "retry_after", lambda *_: 0.0),
        (RETRIES,),
    ),
    Mutant(
        "the jitter of a retry is ignored",
        "§7 the jitter of a retry",
        "TP",
        lambda: mock.patch.object(Policy, "jitter", lambda _: 0.0),
        (RETRIES,),
    ),
    Mutant(
        "a retry is tried first where it failed",
        "§6 What fails here may succeed elsewhere",
        "TE",
        lambda: mock.patch.object(Elsewhere, "load", lambda *_: 0),
        (RETRIES,),
    ),
    Mutant(
        "a node asks again before the elections of the others have timed out",
        "§6 What fails here may succeed elsewhere",
        "TE",
        lambda: mock.patch.object(Phases, "_leave_to_others", lambda *_: None),
        (RETRIES,),
    ),
    Mutant(
        "no node stands aside",
        "§6 What fails here may succeed elsewhere",
        "TA",
        lambda: mock.patch.object(Elsewhere, "_may", lambda *_: False),
        (RETRIES,),
    ),
    Mutant(
        "more nodes stand aside than may",
        "§6 Never more than (N - 1)/2 of N nodes stand aside",
        "TA",
        lambda: mock.patch.object(Elsewhere, "_may", lambda self, now: now.mono >= self._from),
        (RETRIES,),
    ),
)
