"""Budgets, rates of each node, and queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from coordd.core.context import Context
from coordd.core.ledger.limits import text
from coordd.core.ledger.rules import Rules
from coordd.core.runs.pursuit import Pursuits
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import QUEUES, ROOM


@instead(text, "rates")
def _of_the_cluster_alone(real: Any, limits: str) -> Iterator[tuple[str, int, int]]:
    return (one for one in real(limits) if not one[0].startswith("node/"))


@instead(text, "queue")
def _keeps_the_others(real: Any, limits: str) -> tuple[int, str]:
    size, keep = real(limits)
    return size, "last" if keep == "first" else "first"


@instead(text, "queue")
def _one_more(real: Any, limits: str) -> tuple[int, str]:
    size, keep = real(limits)
    return size + 1, keep


@instead(Pursuits, "_budget_left")
def _asked_for_takes_none(real: Any, self: Pursuits, job: Any) -> bool:
    with mock.patch.object(self, "open_claims", []):
        return bool(real(self, job))


MUTANTS = (
    Mutant(
        "a budget is not looked at",
        "§5 Claiming: a node takes no more than it has room for",
        "BU",
        lambda: mock.patch.object(Pursuits, "_budget_left", lambda *_: True),
        (ROOM,),
    ),
    Mutant(
        "what is asked for takes no room",
        "§5 Claiming: claims without an answer count",
        "BU",
        _asked_for_takes_none,
        (ROOM,),
    ),
    Mutant(
        "what a strategy says of the budget is not heard",
        "§5 Claiming: the budget of now",
        "BU",
        lambda: mock.patch.object(Context, "computing", property(lambda self: self.settings.budget_client)),
        (ROOM,),
    ),
    Mutant(
        "the rate of a node is not asked", "§6 claim: rates of the job on its node", "Y", _of_the_cluster_alone, (ROOM,)
    ),
    Mutant("a queue is not bounded", "§6 claim: queue_max", "QU", _one_more, (QUEUES,)),
    Mutant("a queue keeps what it should reject", "§6 claim: queue_keep", "QU", _keeps_the_others, (QUEUES,)),
    Mutant(
        "nobody asks how long a queue is",
        "§6 claim: queue_max",
        "QU",
        lambda: mock.patch.object(Rules, "_overfull", lambda *_: False),
        (QUEUES,),
    ),
)
