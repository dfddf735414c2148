"""Jobs: which definition is launched, and from when its fire times count."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from coordd.core.context import Context
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Prune
from coordd.core.ledger.rules import Rules
from coordd.core.ledger.words import OK
from coordd.core.node.definitions import Definitions
from coordd.core.runs.pursuit import Pursuits
from simulator.mutants.mutant import Mutant, instead


@instead(Rules, "prune")
def _retention_forgets_the_horizon(_real: Any, _rules: Rules, store: Any, said: Prune, now: Any) -> Answer:
    rows = store.ended_runs(now.wall - said.keep_s, said.limit)
    for row in rows:
        store.drop_run(row.run)
    return Answer(OK, token=len(rows))


@instead(Rules, "_job")
def _a_horizon_at_the_epoch(real: Any, self: Rules, store: Any, name: str, *rest: Any) -> Any:
    new = store.job(name) is None
    row = real(self, store, name, *rest)
    if new:
        row.horizon = 0.0
        self._put_job(store, row)
    return row


@instead(Rules, "_first_counts_from")
def _a_new_schedule_counts_from_before(_: Any, self: Rules, store: Any, job: Any, how: Any, now: Any) -> float:  # noqa: ARG001  # same signature as the replaced method
    return float(job.horizon)


@contextlib.contextmanager
def _a_new_job_starts_at_the_epoch() -> Iterator[None]:
    """Since definitions count from their activation, that is a second guard: alone, the first one changes nothing."""
    with _a_horizon_at_the_epoch(), _a_new_schedule_counts_from_before():
        yield


@instead(Rules, "_was_to_count_from")
def _an_activation_is_not_recorded(_: Any, _self: Rules, _store: Any, _job: Any) -> float:
    return 0.0


@instead(Context, "definition")
def _a_reload_changes_what_is_launched(_real: Any, self: Context, job: str, _digest: str) -> Any:
    return self.jobs.get(job)


@instead(Pursuits, "_was_refused")
def _a_claim_is_repeated_after_its_job_was_removed(real: Any, self: Pursuits, pursuit: Any, now: Any) -> bool:
    pursuit.redefined = False
    return bool(real(self, pursuit, now))


@instead(Definitions, "_look")
def _a_second_absence_is_not_noted(real: Any, self: Definitions, _were_here: Any, now: Any) -> None:
    real(self, (), now)


MUTANTS = (
    Mutant(
        "a reload changes what is launched",
        "§7: what is executed is the definition of the row's digest",
        "D",
        _a_reload_changes_what_is_launched,
        ("lost_reply", "slow", "crash"),
    ),
    Mutant(
        "a settled fire time is opened again",
        "§6 Horizon: older ones are finished",
        "S5",
        lambda: mock.patch.object(Rules, "_settled", lambda *_: False),
        ("pause_daemon", "freeze", "late_join", "step"),
    ),
    Mutant(
        "retention forgets the horizon",
        "§6 Horizon: retention never re-opens a run",
        "S5",
        _retention_forgets_the_horizon,
        ("pause_daemon", "freeze", "late_join", "step"),
    ),
    Mutant(
        "a new job starts at the epoch",
        "§6 Horizon: a new job starts at its first registration",
        "N",
        _a_new_job_starts_at_the_epoch,
        ("remove", "ledger_down"),
    ),
    Mutant(
        "a new schedule counts from before",
        "§6 Definitions: it counts from its activation",
        "N",
        _a_new_schedule_counts_from_before,
        ("edit", "crash"),
    ),
    Mutant(
        "from when a definition counted is forgotten",
        "§6 May it have a row: what the activation was recorded with",
        "N",
        _an_activation_is_not_recorded,
        ("ledger_far_step", "step", "crash"),
    ),
    Mutant(
        "a claim without an answer is repeated after its job was removed",
        "§6 Definitions: a job that returns counts from its return",
        "N",
        _a_claim_is_repeated_after_its_job_was_removed,
        ("remove", "ledger_down"),
    ),
    Mutant(
        "what returns was never away",
        "§6 Definitions: a job that returns counts from its return",
        "N",
        lambda: mock.patch.object(Definitions, "_look", lambda *_: None),
        ("remove", "crash"),
    ),
    Mutant(
        "a second absence of a job is not noted",
        "§6 Definitions: a job that returns counts from its return",
        "N",
        _a_second_absence_is_not_noted,
        ("remove", "ledger_down", "crash"),
        near=116,
    ),
    Mutant(
        "a return that the ledger forgot is not brought back",
        "§6 Definitions: a job that returns counts from its return",
        "N",
        lambda: mock.patch.object(Definitions, "_came_back", lambda *_: False),
        near=16300239,
    ),
    Mutant(
        "who brought a job back is not looked at",
        "§6 Definitions: what has begun to count since a job was removed here counts from then",
        "L",
        lambda: mock.patch.object(Definitions, "_look_who_brought_it", lambda *_: None),
        near=8007778,
    ),
)
