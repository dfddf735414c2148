"""Rows that no node pursues. A node asks the ledger to settle them, and only the ledger decides."""

from __future__ import annotations

import pytest
from support.ledger_calls import ended_of
from support.small_cluster import EPOCH, SETTINGS, Lone, job, open_answer, open_run

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenRun
from coordd.core.ledger.requests import Settle
from coordd.core.ledger.rows import Cursor
from coordd.core.ledger.words import (
    FINISHED,
    HELD,
    LOST,
    MISSED,
    PENDING,
    RECEIVED,
    RETRY,
    STARTED,
    UNAVAILABLE,
    UNKNOWN,
    AttemptNumber,
)
from coordd.core.runs import leftovers
from coordd.core.wire.events import TaskRejected, TaskRetried

RENEW_S = SETTINGS.renew_interval_s
LEASE_S = 60.0


def settled(lone: Lone) -> list[Settle]:
    return lone.requests(Settle)


def late(run: str = "gone#1", state: str = PENDING, *, by_s: float = 1.0, attempt: int = 0) -> OpenRun:
    """A row that is later than its start_within of an hour."""
    return open_run(run, state, attempt=attempt, wall=EPOCH, due_in_s=-3600.0 - by_s)


def held(beat: int = 1, state: str = STARTED) -> OpenRun:
    return open_run("gone#1", state, token=7, nonce="theirs", node="b.1", beat=beat, left_s=-1.0)


def sweeps(lone: Lone, seconds: float, *rows: OpenRun) -> None:
    end = lone.now.mono + seconds
    while lone.now.mono + RENEW_S <= end + 1e-6:
        lone.wait(RENEW_S)
        lone.sweep(*rows)


@pytest.mark.parametrize("state", [PENDING, RETRY])
@pytest.mark.parametrize("run", ["gone#1", "sales#1"])
def test_a_row_that_is_too_late_is_settled_whether_or_not_its_job_is_known_here(run: str, state: str) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    lone.sweep(late(run, state, attempt=2))

    assert settled(lone) == [Settle(run=run, attempt=AttemptNumber(2))]


@pytest.mark.parametrize("state", [PENDING, RETRY])
def test_a_row_that_is_not_too_late_is_left_to_those_who_know_its_job(state: str) -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    lone.sweep(late(state=state, by_s=-1.0))

    assert settled(lone) == []


def test_what_was_ended_by_it_the_history_is_told_and_is_not_asked_again() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.sweep(late())
    lone.sweep(late())
    assert len(settled(lone)) == 1

    lone.answer("settle", Answer(FINISHED, state=MISSED, ended=ended_of(0, 0, "", "", "too late")))

    (event,) = [event for event in lone.journal if isinstance(event, TaskRejected)]
    assert (event.run, event.name, event.reason) == ("gone#1", "gone", "too late")


def test_an_answer_that_ended_nothing_tells_nothing() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    lone.sweep(late())

    lone.answer("settle", Answer(FINISHED, state=MISSED))

    assert lone.journal == []


def test_of_a_crowd_of_late_rows_some_are_settled_at_a_time() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    crowd = [late(f"gone#{number}") for number in range(leftovers.AT_A_TIME + 5)]

    lone.sweep(*crowd)
    assert len(settled(lone)) == leftovers.AT_A_TIME
    while lone.questions("settle"):
        lone.answer("settle", Answer(UNAVAILABLE))
    lone.sweep(*crowd[-5:])

    assert {settle.run for settle in settled(lone)} == {row.run for row in crowd}


def test_a_lapsed_attempt_of_a_job_that_nobody_knows_is_settled_after_two_leases_of_silence() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    sweeps(lone, 2 * LEASE_S, held())
    assert settled(lone) == []

    sweeps(lone, 3 * RENEW_S, held())
    (settle,) = settled(lone)
    assert (settle.run, settle.attempt) == ("gone#1", 0)
    assert settle.watched is not None
    assert (settle.watched.token, settle.watched.beat) == (7, 1)
    assert settle.watched.unchanged_s >= 2 * LEASE_S

    lone.answer(
        "settle", Answer(LOST, attempt=1, ended=ended_of(0, 7, "theirs", "b.1", "its lease lapsed", lease_s=60.0))
    )
    assert [type(event) for event in lone.journal] == [TaskRetried]


def test_a_beat_or_a_silence_of_the_ledger_begins_the_watch_anew() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    sweeps(lone, 1.5 * LEASE_S, held())
    sweeps(lone, 1.5 * LEASE_S, held(beat=2))
    lone.wait(RENEW_S)
    lone.answer("open", Answer(UNAVAILABLE))
    sweeps(lone, 1.5 * LEASE_S, held(beat=2))

    assert settled(lone) == []


def test_a_lapsed_attempt_of_a_job_that_was_changed_or_may_not_run_here_is_settled_too() -> None:
    for known in (job("gone", digest="d2"), job("gone", tags=("gpu",))):
        lone = Lone(known, peers=("b.1",)).ready()
        sweeps(lone, 2 * LEASE_S + 3 * RENEW_S, held())
        assert len(settled(lone)) == 1


def test_what_a_person_must_resolve_is_not_watched() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()

    sweeps(lone, 4 * LEASE_S, held(state=UNKNOWN))

    assert settled(lone) == []


def test_a_grant_that_still_holds_is_not_settled_however_long_it_was_watched() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    holds = open_run("gone#1", RECEIVED, token=7, nonce="theirs", node="b.1", left_s=30.0)

    sweeps(lone, 4 * LEASE_S, holds)

    assert settled(lone) == []


def test_an_attempt_whose_end_nobody_knows_is_told_by_the_node_that_found_it() -> None:
    lone = Lone(job(), peers=("b.1",)).ready()
    sweeps(lone, 2 * LEASE_S + 3 * RENEW_S, held())
    lone.answer("settle", Answer(HELD, by="b.1", state=UNKNOWN))
    unknown = [notice.fields["run"] for notice in lone.notices if notice.event == "run.unknown"]
    assert unknown == ["gone#1"]


def test_the_longest_lease_that_runs_counts_also_when_its_job_was_removed() -> None:
    """The quarantine of a ledger that lost writes must last longer than this lease."""
    lone = Lone(job(), peers=("b.1",)).ready()
    gone = open_run("gone#1", STARTED, token=7, node="b.1", lease=900.0)

    lone.sweep(gone, open_run("gone#2", PENDING, lease=5000.0))
    assert lone.node.ctx.leased_s == 900.0

    # The ledger has just lost its rows. The node must still remember the lease of the run.
    lone.node.look_again(lone.now)
    lone.take()
    forgotten = open_answer(jobs=lone.node.ctx.jobs)
    forgotten.recovering_s = 60.0
    lone.answer("open", forgotten)
    assert lone.node.ctx.leased_s == 900.0

    # One page is not the whole sweep. A row on a page counts at once; a row is missing only after the last page.
    lone.node.look_again(lone.now)
    lone.take()
    first = open_answer(open_run("gone#3", STARTED, token=8, node="b.1", lease=1000.0), jobs=lone.node.ctx.jobs)
    first.after = Cursor(not_before=EPOCH, run="gone#3")
    lone.answer("open", first)
    assert lone.node.ctx.leased_s == 1000.0
    lone.answer("page", open_answer(jobs=()))
    assert lone.node.ctx.leased_s == 1000.0
    lone.sweep()
    assert lone.node.ctx.leased_s == 0.0
