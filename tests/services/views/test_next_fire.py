"""The next fire time of a job is kept until it is past, or the job has changed."""

from __future__ import annotations

import pytest
from support.small_cluster import job

from coordd.core.jobs.job import Job, Schedule
from coordd.services.control.job_methods import JobMethods
from coordd.services.views import objects

HOUR = 3600.0
MIDNIGHT = 1_795_392_000.0  # 2026-11-23


def test_it_is_found_once_and_again_when_it_is_past_or_the_job_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    found = objects.next_fires

    def counted(one: Job, after: float, count: int) -> list[float]:
        asked.append(after)
        return found(one, after, count)

    monkeypatch.setattr(objects, "next_fires", counted)
    methods = object.__new__(JobMethods)
    methods._next_fires = {}
    hourly, other = (
        job(schedule=Schedule(kind="cron", cron="0 * * * *")),
        job(schedule=Schedule(kind="cron", cron="30 * * * *")),
    )
    for after, said in ((0, 1), (1, 1), (HOUR - 1, 1), (HOUR, 2), (HOUR + 1, 2), (0, 1)):
        assert methods._next_fire(hourly, MIDNIGHT + after) == MIDNIGHT + said * HOUR
    assert asked == [MIDNIGHT, MIDNIGHT + HOUR, MIDNIGHT]
    assert methods._next_fire(other, MIDNIGHT + 1) == MIDNIGHT + HOUR / 2
    assert methods._next_fire(job(schedule=None), MIDNIGHT) is None
