"""What a node counts of what it journals: each fire time, run and takeover once, by the node that did it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.small_cluster import EPOCH, job

from coordd.core.jobs.job import Blackout, Job, Schedule, scheduled_run
from coordd.core.ledger.fires import HELD_BY_OTHERS, HELD_BY_SUSPENSION
from coordd.core.ledger.words import Policy
from coordd.core.ready import Notice
from coordd.core.wire import events
from coordd.services.metrics.counted import Buckets, Counted, OfJob, Stretch
from coordd.services.metrics.families import OTHER
from coordd.services.views.fires import Fire

HERE, ELSEWHERE = "a.1", "b.2"
RUN = scheduled_run("sales", EPOCH)


def counted(*jobs: Job) -> Counted:
    known = {one.name: one for one in jobs or (job(),)}
    return Counted(HERE, lambda: known)


def task(kind: Any, run: str = RUN, **fields: Any) -> Any:
    return kind(
        uuid="u", name=run.partition("@")[0].partition("#")[0], run=run, timestamp=EPOCH + 3.0, fire_at=EPOCH,
        **{"node": HERE, **fields},
    )  # fmt: skip


def after(*said: Any, notices: tuple[Notice, ...] = (), jobs: tuple[Job, ...] = ()) -> OfJob:
    of = counted(*jobs)
    of.saw(said, notices)
    return of.job("sales")


def test_a_run_from_its_fire_time_to_its_success() -> None:
    found = after(
        task(events.TaskReceived, token=7),
        task(events.TaskStarted, token=7, due=EPOCH + 2.5),
        task(events.TaskSucceeded, token=7, runtime=12.0),
    )

    assert +found.fires == {"launched": 1}
    assert +found.runs == {"success": 1}
    assert (sum(found.delay.counts), found.delay.total) == (1, 0.5)
    assert (found.duration.counts[2], found.duration.total) == (1, 12.0)
    assert found.changes == 3


def test_a_trigger_is_no_fire_time_and_no_end() -> None:
    found = after(task(events.TaskSent, "sales#1"), task(events.TaskReceived, "sales#1", token=7))

    assert not +found.fires
    assert not found.runs


def test_a_later_attempt_decides_no_fire_time_and_has_no_delay() -> None:
    found = after(task(events.TaskReceived, attempt=1, token=7), task(events.TaskStarted, attempt=1, token=7))

    assert not +found.fires
    assert sum(found.delay.counts) == 0


@pytest.mark.parametrize(
    ("reason", "result", "decision"),
    [
        ("too late", "missed", "missed"),
        (f"too late{HELD_BY_SUSPENSION}", "missed", "suspended"),
        (f"too late{HELD_BY_OTHERS}x", "missed", "limited"),
        ("overlap", "rejected", "rejected"),
    ],
)
def test_a_run_that_is_not_launched_decides_its_fire_time(reason: str, result: str, decision: str) -> None:
    found = after(task(events.TaskRejected, reason=reason, result=result, node=""))

    assert +found.fires == {decision: 1}
    assert +found.runs == {result: 1}


def test_a_run_that_was_launched_and_revoked_is_no_second_decision() -> None:
    found = after(task(events.TaskReceived, token=7), task(events.TaskRevoked, token=7))

    assert +found.fires == {"launched": 1}
    assert +found.runs == {"revoked": 1}


@pytest.mark.parametrize(
    ("node", "result", "lost", "takeovers"),
    [(HERE, "lost", 1, 0), (HERE, "retry", 0, 0), (ELSEWHERE, "retry", 1, 1), (ELSEWHERE, None, 1, 1)],
)
def test_lost_attempts_and_takeovers(node: str, result: str | None, lost: int, takeovers: int) -> None:
    found = after(task(events.TaskRetried, token=7, node=node, result=result))

    assert (found.runs["lost"], found.takeovers) == (lost, takeovers)


def test_the_launch_that_settles_coalesced_fire_times_counts_them() -> None:
    notice = Notice("fires.coalesced", {"job": "sales", "count": 3, "run": RUN})

    assert not after(notices=(notice,)).fires, "another node may launch it"
    assert +after(task(events.TaskReceived, token=7), notices=(notice,)).fires == {"launched": 1, "coalesced": 3}


def test_fire_times_in_a_blackout_count_with_the_next_launch() -> None:
    schedule = Schedule(kind="every", every_s=600.0, blackout=(Blackout(EPOCH - 1800.0, EPOCH - 1.0),))
    found = after(task(events.TaskReceived, token=7), jobs=(job(schedule=schedule),))

    assert +found.fires == {"launched": 1, "blackout": 3}


def test_a_settled_stretch_counts_only_what_has_no_run_of_its_own() -> None:
    of = counted()
    of.saw((), (Notice("fire_times.settled", {"job": "sales", "after": 1.0, "upto": 2.0}),))
    assert of.stretches == [Stretch("sales", 1.0, 2.0)]
    of.settled(
        job(),
        [
            Fire(EPOCH, EPOCH, "launched", "", RUN),
            Fire(EPOCH + 1, EPOCH + 1, "skipped", ""),
            Fire(EPOCH + 2, EPOCH + 2, "coalesced", "", RUN),
            Fire(EPOCH + 3, EPOCH + 3, "", "not recorded"),
        ],
    )

    assert +of.job("sales").fires == {"skipped": 1, "coalesced": 1}


def row(state: str, attempt: int) -> Any:
    return SimpleNamespace(state=state, attempt=attempt)


def test_a_failure_that_may_be_retried_waits_for_its_row() -> None:
    failed = task(events.TaskFailed, token=7, policy=Policy(attempts=3).pack())
    of = counted()
    of.saw((failed,), ())
    assert of.job("sales").runs["failure"] == 0
    of.failure_is(RUN, row("started", 0))
    assert RUN in of.failures, "its runner has not reported yet"
    of.failure_is(RUN, row("retry", 1))
    assert (of.job("sales").runs["failure"], of.failures) == (0, {})
    of.saw((failed,), ())
    of.failure_is(RUN, row("failure", 0))
    assert (of.job("sales").runs["failure"], of.failures) == (1, {})


def test_without_retries_a_failure_is_the_end() -> None:
    assert after(task(events.TaskFailed, token=7, policy=Policy().pack())).runs["failure"] == 1


def test_jobs_that_no_file_has_share_one_name_and_jobs_that_are_gone_are_forgotten() -> None:
    known = {"sales": job()}
    of = Counted(HERE, lambda: known)
    of.saw([task(events.TaskSucceeded, f"backup{n}#1", token=7) for n in range(3)], ())
    of.job("sales")
    assert sorted(of.of_jobs) == [OTHER, "sales"]
    known.clear()
    of.forget()

    assert sorted(of.of_jobs) == [OTHER]
    assert of.of_jobs[OTHER].runs["success"] == 3


def test_a_bound_belongs_to_its_bucket() -> None:
    buckets = Buckets((1.0, 2.0))
    for seconds in (-1.0, 1.0, 1.5, 2.0, 2.1):
        buckets.add(seconds)

    assert buckets.counts == [2, 2, 1]
