"""Fire times: each ends in exactly one decision."""

from __future__ import annotations

from typing import Any

from coordd.core.ledger import fires
from coordd.core.ledger.fires import Fires, Stretch
from coordd.core.ledger.rows import JobRow
from simulator.mutants.mutant import Mutant, instead


@instead(Fires, "_settle_to")
def _a_stretch_is_not_written(_: Any, _self: Fires, _store: Any, _job: JobRow, *_rest: Any) -> None:
    return None


@instead(Fires, "_settle_to")
def _a_stretch_begins_before_the_horizon(
    real: Any, self: Fires, store: Any, job: JobRow, upto: float, decision: str, *rest: Any
) -> None:
    real(self, store, job, upto, decision, *rest)
    kept = fires.stretches(store.meta(fires.FIRES + job.job))
    if kept:
        again = Stretch(kept[-1].after - 20.0, kept[-1].upto, decision or fires.COALESCED)
        store.put_meta(fires.FIRES + job.job, fires.as_text([*kept, again]))


@instead(Fires, "_settle_to")
def _the_last_word_counts(
    real: Any, self: Fires, store: Any, job: JobRow, upto: float, decision: str, *rest: Any
) -> None:
    real(self, store, job, upto, decision, *rest)
    kept = fires.stretches(store.meta(fires.FIRES + job.job))
    for one in kept:
        one.decision = decision or one.decision
    store.put_meta(fires.FIRES + job.job, fires.as_text(kept))


@instead(Fires, "pass_over")
def _a_fire_time_is_passed_over_before_a_row_is_refused(real: Any, self: Fires, store: Any, said: Any, now: Any) -> Any:
    job = self._known(store, said.job)
    before = job.horizon if job is not None else 0.0
    answer = real(self, store, said, now)
    job = self._known(store, said.job)
    if job is not None and job.horizon > before:
        job.horizon = before
        self._put_job(store, job)
    return answer


MUTANTS = (
    Mutant(
        "a stretch is not written",
        "§6 fire times without a row: the horizon never moves without a record",
        "F",
        _a_stretch_is_not_written,
    ),
    Mutant(
        "a stretch is written twice",
        "§6 fire times without a row: stretches do not overlap",
        "F",
        _a_stretch_begins_before_the_horizon,
    ),
    Mutant(
        "a decision is overwritten",
        "§6 fire times without a row: a fire time keeps its decision",
        "F",
        _the_last_word_counts,
    ),
    Mutant(
        "a fire time is passed over, and its run may get a row",
        "§6 fire times without a row: a fire time in a stretch gets no row later",
        "F",
        _a_fire_time_is_passed_over_before_a_row_is_refused,
    ),
)
