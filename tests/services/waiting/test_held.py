"""Jobs with `enabled = false`: the plan that they would have, and that nothing launches them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.small_cluster import EPOCH, Cluster, job

from coordd.core.jobs.job import Blackout, Job, Schedule
from coordd.services.views.jobview import everything
from services.waiting.asking import People

HOUR_S = 3600.0
PLAN = Schedule(
    kind="cron",
    cron="0 * * * *",
    start=EPOCH - 24 * HOUR_S,
    offset_s=420.0,
    blackout=(Blackout(cron="30 12 * * *", duration_s=HOUR_S),),
)
IS_HELD = "the job is held (enabled = false); nothing launches it"


def sales(*, enabled: bool, **more: Any) -> Job:
    how = {"schedule": PLAN} if enabled else {"held": PLAN, "enabled": False}
    return job("sales", **{**how, "schedule_text": "0 * * * *", **more})


def held_after_an_hour() -> Cluster:
    """It was enabled from 08:00, was held at 08:30, and it is 11:00."""
    cluster = Cluster("a", jobs=[sales(enabled=True)])
    cluster.wait(HOUR_S / 2)
    cluster["a"].set_jobs({"sales": sales(enabled=False, digest="d2")}, cluster.time())
    for _ in range(15):
        cluster.wait(HOUR_S / 6)
    return cluster


def test_a_held_job_shows_the_runs_that_it_will_have_when_it_is_released() -> None:
    """Without the jitter they were other ids, at times that never come."""
    views = []
    for enabled in (True, False):
        people = People(Cluster("a", jobs=[sales(enabled=enabled)]))
        views.append(people.ask("job_next", job="sales", count=5))
    enabled_next, held_next = views
    assert held_next == enabled_next
    assert (held_next[0]["run"], held_next[0]["due"]) == ("sales@2025-01-29T08:00:00Z", "2025-01-29T08:07:00Z")


def test_a_held_job_shows_all_that_its_file_says_of_its_schedule() -> None:
    held, enabled = (everything(sales(enabled=on), redacted=False) for on in (False, True))
    told = ("start", "end", "jitter_offset_s", "blackout")
    assert {key: held[key] for key in told} == {key: enabled[key] for key in told}
    assert (held["start"], held["jitter_offset_s"], len(held["blackout"])) == ("2025-01-28T08:00:00Z", 420.0, 1)


def test_times_since_the_hold_are_said_to_be_held() -> None:
    people = People(held_after_an_hour())
    fires = people.ask("job_fires", job="sales")
    told = [(fire["fire_time"][11:16], fire["decision"]) for fire in fires if fire["fire_time"] >= "2025-01-29T08"]
    assert told == [("08:00", "launched"), ("09:00", "held"), ("10:00", "held")]
    assert fires[-1]["reason"] == IS_HELD
    counts = people.ask("job_show", job="sales")["fires"]
    assert (counts["held"], counts["undecided"]) == (2, 0)


def test_times_of_a_hold_that_is_over_are_said_to_be_of_a_job_that_was_held() -> None:
    """They were said to be of "another definition", which nobody had written."""
    cluster = held_after_an_hour()
    cluster["a"].set_jobs({"sales": sales(enabled=True, digest="d3")}, cluster.time())
    for _ in range(9):
        cluster.wait(HOUR_S / 6)
    fires = {fire["fire_time"][:13]: fire for fire in People(cluster).ask("job_fires", job="sales")}
    of_the_hold = [fires[f"2025-01-29T{hour}"] for hour in ("09", "10")]
    assert [fire["decision"] for fire in of_the_hold] == ["skipped", "skipped"]
    assert {fire["reason"] for fire in of_the_hold} == {"the job was edited, held or removed before a node launched it"}


def test_why_says_that_its_job_is_held() -> None:
    """It said that the time was never due."""
    people = People(held_after_an_hour())
    run = "sales@2025-01-29T{}:00:00Z"
    was = "it was a fire time of the job's schedule, but"
    assert people.why(run.format("10")) == f"The ledger has no run {run.format('10')!r}: {was} {IS_HELD}."
    assert people.why(run.format("11")).endswith(f"its time is in 420 s, but {IS_HELD}.")
    assert "it was never due" in people.why("sales@2025-01-29T10:30:00Z")
    assert "blackout" in people.why(run.format("13"))


def test_a_job_that_was_always_held_has_no_fire_times() -> None:
    cluster = Cluster("a", jobs=[sales(enabled=False)])
    for _ in range(9):
        cluster.wait(HOUR_S / 6)
    assert People(cluster).ask("job_fires", job="sales") == []


@pytest.mark.parametrize("enabled", [True, False])
def test_what_is_released_is_the_same_job(enabled: bool) -> None:
    one = sales(enabled=enabled)
    assert one.released == sales(enabled=True)
    assert (one.released is one) is enabled
    assert math.isclose(one.released.offset_s, 420.0)
