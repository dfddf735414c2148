"""Hooks: each event is told once in the cluster."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.services.hooks import service
from coordd.services.hooks.service import Hooks, Waiting
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import HOOKS


@instead(Hooks, "_register")
def _each_node_tells_by_its_own_name(real: Any, self: Hooks, hook: Any, waiting: Waiting) -> Any:
    named = waiting.happening._replace(key=f"{waiting.happening.key} {self._driver.node.hostname}")
    return real(self, hook, waiting._replace(happening=named))


MUTANTS = (
    Mutant(
        "each node tells a hook by an id of its own",
        "architecture, hooks: an event's run has the same id on every node",
        "HK",
        _each_node_tells_by_its_own_name,
        (HOOKS, "crash", "loss"),
    ),
    Mutant(
        "an end whose node has died before it told it is never told",
        "architecture, hooks: what the ledger knows of is read again, and told if nobody has",
        "HK",
        lambda: mock.patch.object(service, "READ_ROWS", 0),
        (HOOKS, "crash", "loss"),
    ),
    Mutant(
        "a hook is told of the runs of hooks",
        "architecture, hooks: an event about a hook calls no hook",
        "HK",
        lambda: mock.patch.object(service, "HOOK", "no job's name begins so"),
        (HOOKS, "crash"),
    ),
)
