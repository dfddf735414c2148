"""Turns off the rules that keep two versions, and two definitions, apart. The tests must notice each missing rule."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
from core.node import test_definitions as definitions_of_nodes
from support.ledger_calls import FakeClock, Nodes
from support.memory import MemoryLedger

from coordd.core import context
from coordd.core.ledger import standing
from coordd.core.ledger.requests import ListOpen
from coordd.core.ledger.rows import JobRow
from coordd.core.ledger.standing import Standing
from coordd.core.node import rulebook
from coordd.core.runs import planner
from versions.test_mixed import judge, world

# The worlds that are run for each mutant.
SEEDS = range(24)


@contextlib.contextmanager
def the_change_waits_for_nobody() -> Iterator[None]:
    """The change of the rules comes while old members are there, and takes effect at once."""
    with (
        mock.patch.object(rulebook.Rulebook, "held_back_by", lambda _: []),
        mock.patch.object(standing, "IDENTITY_AHEAD_S", 0.0),
    ):
        yield


@contextlib.contextmanager
def an_old_daemon_is_not_kept_out() -> Iterator[None]:
    """An old daemon reads a job's true state, not the barrier."""

    def put(_self: Standing, store: Any, row: JobRow) -> None:
        store.put_standing(row)
        store.put_job(row)

    with (
        mock.patch.object(Standing, "_keep_barrier", lambda *_: None),
        mock.patch.object(Standing, "_known", lambda _self, store, name, _read=None: store.job(name)),
        mock.patch.object(Standing, "_put_job", put),
    ):
        yield


@contextlib.contextmanager
def any_definition_opens() -> Iterator[None]:
    """The first node that asks gives a run its row, with any definition."""
    with mock.patch.object(Standing, "_opens", lambda *_: None):
        yield


@pytest.mark.parametrize("mutant", [the_change_waits_for_nobody, an_old_daemon_is_not_kept_out])
def test_a_world_of_both_versions_notices(mutant: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
    with mutant():
        for seed in SEEDS:
            try:
                judge(world(seed), seed)
            except AssertionError:
                return
    pytest.fail(f"{mutant.__name__}: not noticed in {len(SEEDS)} worlds")


def test_a_name_that_carries_the_jitter_is_noticed() -> None:
    def by_due(_job: object, due: float, _identity_from: float) -> float:
        return due

    with (
        mock.patch.object(planner, "fire_time", by_due),
        mock.patch.object(context, "fire_time", by_due),
        pytest.raises((AssertionError, ValueError)),
    ):
        definitions_of_nodes.test_a_jitter_that_is_added_does_not_open_the_run_again_in_the_core()


def test_that_the_newest_definition_does_not_count_is_noticed() -> None:
    from contract.ledger import test_definitions as definitions

    clock = FakeClock()
    nodes = Nodes(MemoryLedger(clock), clock)
    nodes.ledger.ask(ListOpen(jobs=("sales",)))
    with any_definition_opens(), pytest.raises(AssertionError):
        definitions.test_only_the_definition_that_counts_opens_a_fire_time(nodes)
