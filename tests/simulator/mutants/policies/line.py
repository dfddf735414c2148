"""The line of a pool: all nodes have one order, and nothing that waits keeps a slot from the others."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

from coordd.core.runs.pursued import Line
from coordd.core.runs.pursuit import Pursuits
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import LINE


@instead(Line, "_order")
def _one_node_has_it_the_other_way_round(real: Any, self: Line, pursuit: Any) -> Any:
    priority, score, fire_at, run = real(self, pursuit)
    return (-priority, -score, -fire_at, run) if self._ctx.hostname == "n1" else (priority, score, fire_at, run)


@instead(Line, "_goes_first")
def _who_goes_first_goes_first_for_ever(real: Any, self: Line, *args: Any) -> Any:
    other, bound_s = real(self, *args)
    return other, float("inf") if other is not None else bound_s


def _nothing_is_let_pass() -> contextlib.ExitStack:
    """Also what no node can take."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(_who_goes_first_goes_first_for_ever())
        stack.enter_context(mock.patch.object(Line, "_somebody_may", lambda *_: True))
        return stack.pop_all()


@instead(Pursuits, "_row_seen")
def _each_node_dates_what_was_asked_for(real: Any, self: Pursuits, row: Any, now: Any) -> None:
    known = self.pursuits.get(row.run)
    if known is not None:
        row.fire_at = known.action.fire_at
    real(self, row, now)


MUTANTS = (
    Mutant(
        "the line of a pool is ignored",
        "§6 Who asks: a run lets those before it go first",
        "OR",
        lambda: mock.patch.object(Line, "_yields", lambda *_: False),
        (LINE,),
    ),
    Mutant(
        "one node has the line the other way round",
        "§6 Who asks: one order on all nodes",
        "OR",
        _one_node_has_it_the_other_way_round,
        (LINE,),
    ),
    Mutant(
        "each node dates what was asked for by its own clock",
        "§6 Who asks: the ledger's dates",
        "OR",
        _each_node_dates_what_was_asked_for,
        (LINE,),
    ),
    Mutant(
        "a line never lets pass",
        "§6 Who asks: what only others can take goes first for a while",
        "FS U L",
        _nothing_is_let_pass,
        (LINE,),
    ),
)
