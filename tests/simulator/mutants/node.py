"""A node: its members, its elections, its records before it acts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from coordd.core.clock import LamportClock
from coordd.core.context import Context
from coordd.core.election import Election
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.words import STARTED, AttemptNumber
from coordd.core.node.elections import Elections
from coordd.core.node.node import Node
from coordd.core.runs.pursued import HELD_BY_OTHER
from simulator.mutants.mutant import Mutant, instead


@contextlib.contextmanager
def _a_lost_member_loses_its_attempts() -> Iterator[None]:
    real_lost, real_claim = Node._members_changed, Rules.claim

    def changed(self: Node, now: Any) -> None:
        gone = {m.name for what, m in self.ctx.membership.changes if what == "lost"}
        real_lost(self, now)
        for one in list(self.pursuits.pursuits.values()):
            if one.phase == HELD_BY_OTHER and one.owner in gone:
                self.pursuits._next_attempt(one, AttemptNumber(one.attempt + 1), 0.0, now)

    def claim(self: Rules, store: Any, claim: Any, now: Any) -> Answer:
        row = store.run(claim.of.run)
        if row is not None and claim.attempt == row.attempt + 1 and row.state == STARTED:
            self._lose(store, row, "its node was lost", now)
        return real_claim(self, store, claim, now)

    with mock.patch.object(Node, "_members_changed", changed), mock.patch.object(Rules, "claim", claim):
        yield


@instead(Election, "state")
def _any_statement_counts(_real: Any, self: Election, name: str, candidacy: Any) -> bool:
    """The election counts statements and ignores who made them, as Celery counts acks."""
    if self.succession is not None:
        return False
    self.statements[name] = candidacy
    self.missing.discard(min(self.missing, default=name))
    return not self.missing


@instead(Elections, "elect_heard")
def _own_view(real: Any, self: Elections, event: Any, sender: str, now: Any) -> Any:
    """A node that hears of an election waits for its own members, not for those of the opener's view."""
    event.view = self._ctx.membership.view()
    return real(self, event, sender, now)


@instead(Context, "record")
def _intents_are_not_synced(real: Any, self: Context, event: Any, now: Any, **_sync: bool) -> None:
    real(self, event, now)


MUTANTS = (
    Mutant(
        "a lost member loses its attempts",
        "§4: a member being lost never makes an attempt lost",
        "C G",
        _a_lost_member_loses_its_attempts,
        ("bus_cut", "loss"),
    ),
    Mutant(
        "any statement counts for any member",
        "§5.2: one statement a node, known by its name",
        "A",
        _any_statement_counts,
        ("duplication", "slow", "late_join"),
    ),
    Mutant(
        "everybody decides on its own view",
        "§5.1, 5.3: the view is frozen in the election",
        "A",
        _own_view,
        ("late_join", "loss", "mute"),
    ),
    Mutant("intents are not synced", "§7: journal the intent, fsync", "J", _intents_are_not_synced),
    Mutant(
        "the clock's mark is not kept",
        "§2: a node that restarts never goes back",
        "I8",
        lambda: mock.patch.object(LamportClock, "reserve", lambda self: None),
        ("crash", "power"),
    ),
)
