"""Checks: who abstains, what is suspended, and who looks for all."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.node.abstaining import Abstaining
from coordd.services.checks import service
from coordd.services.checks.service import Checks
from simulator.mutants.mutant import Mutant
from simulator.policies import CHECKS


async def _nothing(*_: Any, **__: Any) -> None: ...


MUTANTS = (
    Mutant(
        "a node does not abstain",
        "docs/policies.md, Checks: abstain",
        "CK",
        lambda: mock.patch.object(Abstaining, "take", lambda *_: None),
        (CHECKS,),
    ),
    Mutant(
        "what a check suspended stays so",
        "docs/policies.md, Checks: suspend",
        "CK L U",
        lambda: mock.patch.object(Checks, "_resume", _nothing),
        (CHECKS,),
    ),
    Mutant(
        "a bad check suspends nothing",
        "docs/policies.md, Checks: suspend",
        "CK",
        lambda: mock.patch.object(Checks, "_suspend", _nothing),
        (CHECKS,),
    ),
    Mutant(
        "a node that looked for all and is gone is not replaced",
        "docs/policies.md, Checks: one node looks for all",
        "CK L U",
        lambda: mock.patch.object(service, "SILENT_PERIODS", 1e9),
        (CHECKS, "gone"),
    ),
)
