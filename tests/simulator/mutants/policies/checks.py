"""Checks: who abstains, what is suspended, and who looks for all."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.ledger.requests import Keep
from coordd.core.ledger.rules import Rules
from coordd.core.node.abstaining import Abstaining
from coordd.services.checks import service
from coordd.services.checks.service import Checks
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import CHECKS


async def _nothing(*_: Any, **__: Any) -> None: ...


@instead(Rules, "keep")
def _over_what_was_written_since(real: Any, self: Rules, store: Any, said: Keep, now: Any) -> Any:
    """A checker writes over the word of another one that has looked since."""
    told = {name: getattr(said, name) for name in said.wire if name not in ("given", "noted")}
    return real(self, store, Keep(**told), now)


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
    Mutant(
        "a checker that was paused writes over a later word",
        "docs/policies.md, Checks: a checker that was paused",
        "CK",
        _over_what_was_written_since,
        (CHECKS, "pause_daemon"),
    ),
)
