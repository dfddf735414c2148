"""Jobs after jobs: each period of a child has its run, and no end is lost with a node."""

from __future__ import annotations

from typing import Any
from unittest import mock

from coordd.core.jobs.after import Ends, Period, period_of
from coordd.core.ledger import people
from coordd.core.ledger.rerun import fate
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.words import ABSENT, TERMINAL
from coordd.core.node import following
from coordd.core.node.following import Following
from coordd.core.runs.pursued import Phases
from simulator.mutants.mutant import Mutant, instead
from simulator.policies import AFTER, RERUNS


@instead(Following, "_note")
def _only_its_own_runs(real: Any, self: Following, row: Any) -> None:
    """An end concerns the node that held the run, as a callback in its memory would."""
    if row.node in ("", self._ctx.hostname) or row.job in self._children:
        real(self, row)


@instead(Following, "_register")
def _misses_silently(real: Any, self: Following, job: Any, run: str, fire_at: float, period: Any, *rest: Any) -> None:
    if rest[0].by.startswith(ABSENT):
        self._done.add(run)
    else:
        real(self, job, run, fire_at, period, *rest)


@instead(Ends, "note_member")
def _the_first_is_the_group(real: Any, self: Ends, after: Any, parent: str, run: str, _: int, *rest: Any) -> None:
    real(self, after, parent, run, 1, *rest)


def _unfloored(after: Any, zone: str, run: str, fire_at: float, *, scheduled: bool) -> Period:
    return Period(fire_at) if scheduled else period_of(after, zone, run, fire_at, scheduled=scheduled)


@instead(Rules, "_with_children")
def _the_wish_is_lost(_real: Any, _self: Rules, *_: Any) -> None:
    """The replay and the wish for its children are two writes, and a node dies between them."""


def _each_node_opens_it(row: Any, _mark: str, _ended_at: float) -> bool:
    """A run of a re-run that has ended looks as if it had not begun."""
    return row.state not in TERMINAL


@instead(fate.Fates, "_awaited")
def _does_not_wait(real: Any, self: Any, item: Any) -> Any:
    found = real(self, item)
    return found if found.word != fate.WAITS else fate.Fate(fate.READY, "", (self._root,), float("inf"))


@instead(Phases, "_has_row")
def _as_any_triggered_run(real: Any, self: Phases, pursuit: Any, now: Any, **_: Any) -> None:
    real(self, pursuit, now)


MUTANTS = (
    Mutant(
        "a wish to run the children once more is lost",
        "re-runs with children: one step with the replay",
        "RR",
        _the_wish_is_lost,
        (RERUNS,),
    ),
    Mutant(
        "a child runs once more for each node that asks",
        "re-runs with children: once for a plan",
        "RR",
        lambda: mock.patch.object(fate, "has_begun", _each_node_opens_it),
        (RERUNS,),
    ),
    Mutant(
        "a child runs once more before its parent has ended",
        "re-runs with children: after the new ends of its parents",
        "RR",
        _does_not_wait,
        (RERUNS,),
    ),
    Mutant(
        "a run that has not ended is run once more",
        "re-runs: only of what has ended",
        "RR",
        lambda: mock.patch.object(people, "is_over", lambda _: True),
        (RERUNS,),
    ),
    Mutant(
        "the first parent's end opens the child",
        "jobs after jobs: all parents are awaited",
        "AF",
        lambda: mock.patch.object(Ends, "joined", lambda self, _: tuple(sorted(self.came.values())[:1])),
        (AFTER,),
    ),
    Mutant(
        "the end of a parent is known to its node alone",
        "jobs after jobs: every node sees the ends in the ledger",
        "AF",
        _only_its_own_runs,
        (AFTER, "crash", "power"),
    ),
    Mutant(
        "a child is opened twice in a period",
        "jobs after jobs: its id is the period's",
        "AF",
        lambda: mock.patch.object(following, "period_of", _unfloored),
        (AFTER,),
    ),
    Mutant(
        "a child is missed without a row",
        "jobs after jobs: past within a row says why",
        "AF",
        _misses_silently,
        (AFTER,),
    ),
    # "A child is missed without a second look" is noticed by test_following.py alone: the one world that did not follow
    # it is another one since the terms of triggers go by the ledger's clock, and 1,300 others did not notice it.
    Mutant(
        "a group has ended with its first member",
        "jobs after jobs: a group is awaited as a whole",
        "AF",
        _the_first_is_the_group,
        (AFTER,),
    ),
    Mutant(
        "a claim makes a row that parents had opened",
        "jobs after jobs: only the ends of parents open a child",
        "AF",
        _as_any_triggered_run,
        (AFTER,),
        forgets=True,
    ),
)
