"""Which events a trigger of the kind `event` takes."""

from __future__ import annotations

import pytest
from support.small_cluster import job

from coordd.core.jobs.trigger import Trigger
from coordd.services.hooks.listeners import EventTrigger

ON = ("run.success", "node.lost", "cluster.ready", "check.unhealthy", "breaker.opened", "job.late")


@pytest.mark.parametrize(
    ("event", "of", "jobs", "taken"),
    [
        ("run.success", "a", ("a",), True),
        ("run.success", "b", ("a",), False),
        ("run.success", None, ("a",), False),
        ("run.failure", "a", ("a",), False),
        ("node.lost", None, ("a",), True),
        ("cluster.ready", None, ("a",), True),
        ("check.unhealthy", None, ("a",), True),
        ("check.unhealthy", "a", ("a",), True),
        ("check.unhealthy", "b", ("a",), False),
        ("breaker.opened", None, ("a",), True),
        ("breaker.opened", "b", ("a",), False),
        ("breaker.opened", "b", (), True),
        ("breaker.opened", "mend", (), False),
        ("check.unhealthy", "mend", (), False),
        ("job.late", None, ("a",), False),
    ],
)
def test_jobs_choose_among_events_about_jobs_alone(
    event: str, of: str | None, jobs: tuple[str, ...], taken: bool
) -> None:
    trigger = Trigger(kind="event", name="bad", on=ON, jobs=jobs)
    made = EventTrigger(job("mend", triggers=(trigger,)), trigger)
    assert made.takes(event, of, ended=False) is taken
