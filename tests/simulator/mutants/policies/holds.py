"""What people hold: suspended jobs, all jobs, drained nodes."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.ledger import rules
from coordd.core.ledger.rows import ALL, OF_NODE
from coordd.core.ledger.rules import Rules
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import HOLDS


@instead(Rules, "_hold")
def _only_jobs_and_nodes(real: Any, self: Rules, store: Any, key: str, now: Any) -> Any:
    return None if key == ALL else real(self, store, key, now)


@instead(Rules, "_hold")
def _no_node_is_drained(real: Any, self: Rules, store: Any, key: str, now: Any) -> Any:
    return None if key.startswith(OF_NODE) else real(self, store, key, now)


def _ends_at_once(*_: Any) -> bool:
    return True


def _is_not_suspended(*_: Any) -> bool:
    return False


MUTANTS = (
    Mutant(
        "a suspended job is not stopped",
        "§6 claim and gate: nothing of a suspended job starts",
        "P",
        lambda: mock.patch.object(Rules, "_is_suspended", _is_not_suspended),
        (HOLDS,),
    ),
    Mutant(
        "the pause of all jobs is not looked at",
        "§6 claim and gate: nothing starts while all jobs are stopped",
        "P",
        _only_jobs_and_nodes,
        (HOLDS,),
    ),
    Mutant(
        "a hold ends as soon as somebody looks at it",
        "§6 keep, suspend: it ends when a person says so",
        "P",
        lambda: mock.patch("coordd.core.ledger.rows.Hold.has_ended", _ends_at_once),
        (HOLDS,),
    ),
    Mutant("a drain stops nobody", "§6 claim: a drained node is granted nothing", "DR", _no_node_is_drained, (HOLDS,)),
    Mutant(
        "a drain counts only once its node has heard of it",
        "§6 claim: the ledger refuses it too",
        "DR",
        lambda: mock.patch.object(rules, "key_of_node", lambda _: OF_NODE),
        (HOLDS,),
    ),
)
