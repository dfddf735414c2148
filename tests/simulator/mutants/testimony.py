"""Testimonies: what a node may say of attempts that it does not see, and whose word the ledger takes."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.ledger.rules import Rules
from coordd.core.ledger.runner_requests import Grant, Report
from coordd.core.ledger.steps import HOLDING
from coordd.core.ledger.words import LOST
from coordd.core.runs import knowledge
from simulator.mutants.mutant import Mutant, instead


@instead(Rules, "report")
def _any_testimony_is_taken(real: Any, self: Rules, store: Any, said: Report, now: Any) -> Any:
    """Who says that an attempt is over need not be its holder."""
    row = store.run(said.grant.run)
    if said.state == LOST and row is not None and row.state in HOLDING:
        grant = Grant(run=row.run, attempt=row.attempt, token=row.token, nonce=row.nonce)
        said = Report(grant=grant, state=said.state, reason=said.reason)
    return real(self, store, said, now)


MUTANTS = (
    Mutant(
        "another machine's boot is a restart",
        "§6 Testimony: another boot of the same machine",
        "T",
        lambda: mock.patch.object(knowledge, "_is_same_machine", lambda then, now: True),
        ("moved",),
    ),
    Mutant(
        "an attempt that nobody sees is over",
        "§6 Testimony: in every other case the node says nothing",
        "T",
        lambda: mock.patch.object(knowledge, "is_over", lambda then, now, seen, elsewhere: "it cannot be seen"),
        ("moved",),
    ),
    Mutant(
        "any testimony is taken",
        "§6 Testimony: the ledger refuses every other grant than the current one",
        "G",
        _any_testimony_is_taken,
        ("power", "crash"),
    ),
)
