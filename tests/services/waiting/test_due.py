"""Fire times that are due, and that no node has taken: no row tells of them until `start_within` is over."""

from __future__ import annotations

from typing import Any

from support.small_cluster import EPOCH, Cluster, job

from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import Job
from coordd.core.ledger.requests import Register
from coordd.core.ledger.runner_requests import Registration
from coordd.services.views.troubles import LATE_RUN_S
from services.waiting.asking import People

HOUR_S = 3600.0
FIRE = "sales@2025-01-29T09:00:00Z"
WHY = "this node cannot take it: tags do not match. No node can take it: a (tags do not match); b (tags do not match)."


def due(for_s: float, **more: Any) -> tuple[Cluster, People]:
    """A job that is due for that long (seconds). It needs a tag, and nodes have none."""
    cluster = Cluster("a", "b", jobs=[of(**more)])
    passes(cluster, HOUR_S + for_s)
    return cluster, People(cluster)


def passes(cluster: Cluster, seconds: float) -> None:
    """Time passes, in steps: a node that waits looks twice a second."""
    for _ in range(int(seconds // 600.0)):
        cluster.wait(600.0)
    cluster.wait(seconds % 600.0)


def of(**more: Any) -> Job:
    return job("sales", **{"every_s": HOUR_S, "tags": ("gpu",), **more})


def test_why_tells_of_a_fire_time_that_no_node_has_taken_and_when_it_is_missed() -> None:
    """It said that the run before succeeded and when the next one is, and nothing of this one."""
    _, people = due(70.0)
    missed = "It is missed at 2025-01-29T10:00:00Z."
    told = f"{FIRE} is due since 2025-01-29T09:00:00Z, and no node has taken it: {WHY} {missed}"
    assert told in people.why("sales")
    assert people.why(FIRE) == f"{FIRE} is not in the ledger yet: {WHY} {missed}"
    assert "Next: 2025-01-29T10:00:00Z." in people.why("sales")


def test_it_says_so_before_it_is_late_and_not_before_it_is_due() -> None:
    _, people = due(-0.5)
    assert "is due since" not in people.why("sales")
    assert "missed" not in people.why(FIRE)
    _, people = due(1.0)
    assert "is due since" in people.why("sales")


def test_a_run_that_no_node_has_taken_is_late_after_a_minute() -> None:
    _, people = due(LATE_RUN_S - 1)
    assert not people.looked().late
    _, people = due(LATE_RUN_S + 1)
    (late,) = people.looked().late
    assert (late.run, late.text) == (FIRE, "due for 61 s, and no node took it")


def test_a_run_that_a_policy_of_its_job_holds_back_is_not_late() -> None:
    cluster, people = due(70.0)
    cluster["a"].pursuits.pursuits[FIRE].limited = True
    assert not people.looked().late


def test_a_run_that_another_node_has_recorded_is_told_by_its_row_alone() -> None:
    cluster, people = due(70.0)
    job = cluster.jobs["sales"]
    recorded = Registration(FIRE, "sales", job.digest, job.policy(), EPOCH + HOUR_S, scheduled=True)
    cluster.ledger.ask(Register(of=recorded))
    assert not any("no node took it" in late.text for late in people.looked().late)
    said = people.why("sales")
    assert f"Last: {FIRE} waits to be launched" in said
    assert "is due since" not in said


def test_a_fire_time_that_this_node_does_not_pursue_is_told_as_undecided() -> None:
    cluster, people = due(70.0)
    del cluster["a"].pursuits.pursuits[FIRE]
    assert (
        "Its fire time 2025-01-29T09:00:00Z is not decided yet: it was due 70 s ago, and no node has claimed it. It is "
        "missed at 2025-01-29T10:00:00Z."
    ) in people.why("sales")


def test_a_group_is_one_fire_time_and_others_are_counted() -> None:
    cluster, people = due(HOUR_S + 70.0, start_within_s=3 * HOUR_S, expand=Expand(key="part", values=("x", "y")))
    said = people.why("sales")
    assert f"{FIRE} is due since 2025-01-29T09:00:00Z" in said
    assert "It is missed at 2025-01-29T12:00:00Z. 1 more of sales waits." in said
    passes(cluster, HOUR_S)
    assert "2 more fire times of sales wait." in people.why("sales")


def test_what_is_pursued_is_told_while_the_ledger_is_away() -> None:
    cluster, people = due(70.0)
    cluster.ledger_away = True
    assert f"{FIRE} is due since" in people.why("sales")
