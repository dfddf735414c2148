"""Fire times: each ends in exactly one decision, and a backfill opens each of its range once."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest import mock

from coordd.core.jobs.job import Job
from coordd.core.ledger import fires
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.backfill.rule import Backfilling
from coordd.core.ledger.fires import Fires, Stretch
from coordd.core.ledger.rows import JobRow
from coordd.core.node.plans.backfills import Backfills
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


@instead(Fires, "activate")
def _an_activation_leaves_what_a_clock_settled_that_was_ahead(
    real: Any, self: Fires, store: Any, said: Any, now: Any
) -> Any:
    with mock.patch.object(Fires, "_clock_is_right", lambda *_: None):
        return real(self, store, said, now)


@instead(Fires, "_moves_back")
def _only_a_job_without_a_grant_begins_now(real: Any, self: Fires, store: Any, job: JobRow, now: Any) -> Any:
    return bool(job.fence == 0 and real(self, store, job, now))


@instead(Plan, "read")
def _a_plan_knows_no_limit(real: Any, text: str) -> Any:
    plan = real(text)
    if plan is not None:
        plan.at_most = 99
    return plan


@contextlib.contextmanager
def _a_plan_opens_whole_groups() -> Any:
    def has_runs(job: Job) -> bool:
        return job.schedule is not None

    with (
        mock.patch.object(Backfills, "_has_runs", staticmethod(has_runs)),
        mock.patch.object(Backfilling, "_was_a_group", lambda *_: False),
    ):
        yield


@contextlib.contextmanager
def _a_plan_forgets_what_it_has_opened() -> Any:
    real, text = Backfilling._open_once_more, Plan.text

    def from_the_beginning(self: Plan) -> str:
        self.cursor = 0.0
        return text(self)

    def unmarked(self: Backfilling, store: Any, row: Any, said: Any, mark: str, now: Any) -> Any:
        return real(self, store, row, said, f"{mark} once more", now)

    with (
        mock.patch.object(Plan, "text", from_the_beginning),
        mock.patch.object(Backfilling, "_open_once_more", unmarked),
    ):
        yield


MUTANTS = (
    Mutant(
        "a backfill opens a fire time twice",
        "§6 backfill 4, 5: what the plan has opened is exists",
        "Z RR",
        _a_plan_forgets_what_it_has_opened,
    ),
    Mutant(
        "a backfill opens groups as one run",
        "§6 backfill: a job with expand",
        "GW",
        _a_plan_opens_whole_groups,
        near=42056,
    ),
    Mutant(
        "a backfill runs as a whole what was a group",
        "§6 backfill 5: its first member has a row",
        "GW",
        lambda: mock.patch.object(Backfilling, "_was_a_group", lambda *_: False),
        near=1343,
    ),
    Mutant("a backfill knows no limit", "§6 backfill 7: AT_MOST", "Z", _a_plan_knows_no_limit),
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
        "what a clock settled that was ahead stays settled for the next definition",
        "§6 fire times without a row: a definition that begins to count earlier cuts the stretch off",
        "F",
        _an_activation_leaves_what_a_clock_settled_that_was_ahead,
        near=9102012,
    ),
    Mutant(
        "a job without a schedule begins where a clock was that was ahead",
        "§6 definitions: the horizon of a job that never had a schedule",
        "L",
        _only_a_job_without_a_grant_begins_now,
        near=16152016,
    ),
    Mutant(
        "a fire time is passed over, and its run may get a row",
        "§6 fire times without a row: a fire time in a stretch gets no row later",
        "F",
        _a_fire_time_is_passed_over_before_a_row_is_refused,
    ),
)
