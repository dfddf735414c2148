"""A child without a row: what is decided comes first, then its own schedule, then what its parents' runs tell."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_cluster import EPOCH, Cluster, asked_for, job

from coordd.core.jobs.job import After, Job
from coordd.core.ledger.fires import SKIPPED
from coordd.core.ledger.open_answer import Current, OpenAnswer
from coordd.core.ledger.requests import Suspend
from coordd.services.views.fires import Fire
from coordd.services.waiting.absent import Absent, told_of
from services.waiting.asking import People

HOUR_S, DAY_S = 3600.0, 86400.0
AT = "2025-01-29T09:00:00Z"
PARENT, CHILD = f"load@{AT}", f"report@{AT}"


def report(**more: Any) -> Job:
    return job("report", **{"after": After(("load",), within_s=HOUR_S), **more})


def after_an_hour(*jobs: Job) -> Cluster:
    """The parent has run once, and it is 09:00:10."""
    cluster = Cluster("a", jobs=jobs)
    for _ in range(6):
        cluster.wait(HOUR_S / 6)
    cluster.wait(10.0)
    return cluster


def load(**more: Any) -> Job:
    return job("load", every_s=HOUR_S, **more)


def why(cluster: Cluster, run: str = CHILD) -> str:
    said = People(cluster).why(run)
    return said.removeprefix(f"The ledger has no run {run!r}: ")


def test_a_parent_that_still_runs_is_named_with_its_state() -> None:
    """It said that none of its parents has ended, whatever was the case."""
    cluster = after_an_hour(load(), report())
    assert why(cluster) == (
        f"its parents have not ended so that it starts: {PARENT} is started. It runs when all of load have succeeded."
    )


def test_a_parent_that_failed_is_waited_for() -> None:
    cluster = after_an_hour(load(), report())
    cluster.end("a", PARENT, "failure", 1)
    cluster.wait(10.0)
    assert why(cluster).startswith(f"{CHILD} waits for load (failure) of its period, until ")


def test_a_child_whose_row_is_gone_was_not_without_parents() -> None:
    cluster = after_an_hour(load(), report())
    cluster.end("a", PARENT)
    cluster.wait(10.0)
    assert cluster.state(CHILD)
    del cluster.ledger._store.runs[CHILD]
    cluster["a"].pursuits.pursuits.pop(CHILD, None)
    assert why(cluster) == (
        f"its parents have ended ({PARENT}): it is opened in a moment, or it is older than the history kept."
    )


def test_parents_that_ended_before_the_definition_counted_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = after_an_hour(load(), report(enabled=False))
    cluster.end("a", PARENT)
    cluster["a"].set_jobs({"load": load(), "report": report()}, cluster.time())
    current = {"report": Current(sequence=2, digest="d1", counts_from=EPOCH + 2 * HOUR_S)}
    answer = OpenAnswer([], {}, EPOCH, current=current)
    monkeypatch.setattr(cluster.ledger, "ask", lambda _request: answer)
    assert why(cluster) == (f"its parents ended ({PARENT}) before its definition counted (since 2025-01-29T10:00:00Z).")


def test_a_period_of_which_no_parent_has_a_run() -> None:
    cluster = after_an_hour(load(), report())
    nothing = "has a run of that period: it was not due or not triggered, or it is older than the history kept."
    assert why(cluster, "report@2025-01-29T05:00:00Z") == f"none of its parents (load) {nothing}"
    assert why(cluster, "report#7") == f"none of its parents (load#7) {nothing}"


def test_a_parent_that_was_triggered_is_found_by_its_id() -> None:
    cluster = after_an_hour(load(), report())
    cluster.trigger("a", asked_for("load#7", load(overlap="allow")))
    assert why(cluster, "report#7").startswith("its parents have not ended so that it starts: load#7 is ")


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ("report@yesterday", "expected an id with a time, such as report@2026-11-21T02:00:00Z."),
        ("load@yesterday", "expected an id with a time, such as load@2026-11-21T02:00:00Z."),
        ("report@2025-01-29T10:00:00+01:00", f"the id of the run of that time is {CHILD}."),
    ],
)
def test_an_id_that_was_mistyped(run: str, told: str) -> None:
    assert why(after_an_hour(load(), report()), run) == told


def test_a_time_within_a_period_is_not_its_id() -> None:
    daily = report(after=After(("load",), period_s=DAY_S))
    assert why(after_an_hour(load(), daily)) == (
        "no period of it begins then; that of this time is report@2025-01-29T00:00:00Z."
    )
    assert "load@2025-01-29T09:00:00Z is started" in why(after_an_hour(load(), daily), "report@2025-01-29T00:00:00Z")


def test_a_child_with_a_schedule_of_its_own_is_judged_by_that_first() -> None:
    cluster = after_an_hour(load(), report(every_s=HOUR_S))
    assert why(cluster, "report@2025-01-29T10:00:00Z") == "it is due in 3590 s, and then waits for its parents."
    assert why(cluster, "report@2025-01-29T10:30:00Z").startswith("it was never due: the job's schedule")
    assert why(cluster).startswith(f"{CHILD} waits for load of its period, until ")
    said = People(cluster).why("report")
    assert "Next: 2025-01-29T10:00:00Z. It also waits for its parents. It runs when all of load have succeeded." in said


def test_what_is_decided_comes_before_the_parents() -> None:
    fire = Fire(EPOCH, EPOCH, SKIPPED, "the job was edited, held or removed before a node launched it")
    about = Absent(True, EPOCH, True, now=EPOCH + 1.0, fire=fire, awaits="x waits for y.", waits=True, child=True)
    assert told_of(about).startswith("it was a fire time of the job, due 2025-01-29T08:00:00Z, and was skipped: ")
    assert told_of(about._replace(fire=None)) == "x waits for y."


def test_a_held_child_is_said_to_be_held() -> None:
    assert why(after_an_hour(load(), report(enabled=False))) == (
        "the job is held (enabled = false); nothing launches it."
    )


def test_parents_that_are_held_or_suspended_are_named() -> None:
    either = After(("load", "rates"), within_s=HOUR_S)
    cluster = after_an_hour(load(), job("rates", enabled=False), report(after=either))
    cluster.ledger.ask(Suspend(job="load", suspended=True, by="ann", uid=7, note="moving"))
    said = People(cluster).why("report")
    assert "Its parent rates is held: its job file says enabled = false." in said
    assert "Its parent load is suspended by ann, uid 7, since 2025-01-29T09:00:10Z (moving);" in said
    cluster.end("a", PARENT)
    cluster.wait(10.0)
    told = why(cluster)
    assert told.startswith(f"{CHILD} waits for rates of its period, until ")
    assert "Its parent rates is held" in told
