"""The length of a lease, as ledger, nodes and holder judge it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from coordd.core import attempt as life
from coordd.core.attempt import Attempt
from coordd.core.ledger import steps as running
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.words import RECEIVED, RHO
from coordd.core.runs import lease_watch, pursuit as pursuing
from coordd.core.runs.pursuit import Pursuits
from simulator.mutants.mutant import Mutant, instead


@contextlib.contextmanager
def _the_ledgers_time_alone() -> Iterator[None]:
    """The ledger does not demand an observation, and nodes do not observe."""
    with (
        mock.patch.object(Rules, "_lapsed", lambda self, row, watched, now: self._past(row, now)),
        mock.patch.object(lease_watch.LeaseWatch, "ripe_at", lambda self: self.since),
    ):
        yield


@instead(Rules, "_lapsed")
def _claim_on_unexpired(real: Callable[..., bool], self: Rules, row: Any, watched: Any, now: Any) -> bool:
    return row.state == RECEIVED or real(self, row, watched, now)


@contextlib.contextmanager
def _clocks_never_differ() -> Iterator[None]:
    with contextlib.ExitStack() as patches:
        for module in (life, lease_watch, pursuing, running):
            patches.enter_context(mock.patch.object(module, "RHO", 0.0))
        yield


@contextlib.contextmanager
def _the_tolerance_is_added() -> Iterator[None]:
    """A holder trusts its lease for longer than the ledger grants it."""
    with contextlib.ExitStack() as patches:
        for module in (life, pursuing):
            patches.enter_context(mock.patch.object(module, "RHO", -RHO))
        patches.enter_context(
            mock.patch.object(lease_watch.LeaseWatch, "ripe_at", lambda self: self.since + self.lease_s)
        )
        yield


@instead(Attempt, "answered")
def _lease_from_the_answer(real: Any, self: Attempt, answer: Any, *, now: float, **how: Any) -> None:
    real(self, answer, **{**how, "sent_at": now}, now=now)


@contextlib.contextmanager
def _half_a_lease_is_watched() -> Iterator[None]:
    def lapsed(self: Rules, row: Any, watched: Any, now: Any) -> bool:
        return self._past(row, now) and watched is not None and (watched.token, watched.beat) == (row.token, row.beat)

    with (
        mock.patch.object(Rules, "_lapsed", lapsed),
        mock.patch.object(lease_watch.LeaseWatch, "ripe_at", lambda self: self.since + self.lease_s / 2),
    ):
        yield


@instead(Pursuits, "_observe")
def _a_watch_outlives_a_new_beat(
    real: Any, self: Pursuits, pursuit: Any, token: int, beat: int, lease_s: float, now: Any
) -> None:
    """The watch ignores a renewal that the holder makes meanwhile."""
    watch = pursuit.watch
    if watch is not None and watch.token == token:
        watch.beat, watch.last_at = beat, now.mono
    else:
        real(self, pursuit, token, beat, lease_s, now)


MUTANTS = (
    Mutant(
        "the ledger's time alone",
        "§6 Lapsed: and the claimant has itself watched a whole lease",
        "C",
        _the_ledgers_time_alone,
        ("ledger_step", "connection_lost"),
    ),
    Mutant("claim on an unexpired row", "§6 claim: absent, or claimed and lapsed", "C", _claim_on_unexpired, None),
    Mutant(
        "a lease may be longer",
        "§6: nobody lends more than a lease",
        "K",
        lambda: mock.patch.object(running, "left_of", lambda row, now: row.until - now.lease),
        ("ledger_glitch", "ledger_step", "connection_lost"),
    ),
    Mutant(
        "half a lease is watched",
        "§6 Lapsed: a whole lease, and more",
        "C",
        _half_a_lease_is_watched,
        ("ledger_step", "ledger_cut", "ledger_deaf", "connection_lost"),
    ),
    Mutant(
        "a watch outlives a new beat",
        "§6 Lapsed: the same (token, beat)",
        "C",
        _a_watch_outlives_a_new_beat,
        ("ledger_step", "connection_lost"),
    ),
    Mutant(
        "a lease counts from its answer",
        "§7: from when the request was sent",
        "I13",
        _lease_from_the_answer,
        ("pause_runner", "ledger_cut", "ledger_deaf"),
    ),
    Mutant(
        "clocks never differ",
        "§7: less the clock-rate error of both sides",
        "I13",
        _clocks_never_differ,
        ("ledger_cut", "pause_runner"),
    ),
    Mutant(
        "the clock-rate error is added",
        "§7: less the clock-rate error of both sides",
        "I13",
        _the_tolerance_is_added,
        ("ledger_cut", "pause_runner"),
    ),
)
