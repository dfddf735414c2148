"""Parents and children of runs, in sentences and as fields."""

from __future__ import annotations

from support.small_cluster import EPOCH, asked_for, job

from coordd.core.jobs.job import After, scheduled_run
from coordd.core.ledger.rows import LedgerTime, Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import Policy
from coordd.core.node.following import Waiting
from coordd.services.following import lineal

JOBS = {
    one.name: one
    for one in (
        job("a"),
        job("b", after=After(("a",), period_s=86400.0)),
        job("c", after=After(("a", "b"), needs="any", on="failure")),
        job("d", after=After(("a",)), every_s=3600.0),
    )
}


def row(run: str, by: str = "") -> Row:
    of = Registration(run, run.partition("@")[0], "d1", Policy(), EPOCH, scheduled=True, by=by)
    return Life()._new_row(of, LedgerTime(EPOCH, 500.0))


def test_the_parents_of_a_run_are_in_its_row_and_its_children_follow_from_the_job_files() -> None:
    of = row(scheduled_run("a", EPOCH))
    children = lineal.children(of, JOBS)

    assert lineal.parents(row("b@x", "after a@1, c@2")) == ["a@1", "c@2"]
    assert lineal.parents(row("b@x", "ann")) == []
    assert children == ["b@2025-01-29T00:00:00Z", "c@2025-01-29T08:00:00Z"]
    assert lineal.shown(children, {children[0]: row(children[0])}, children[1:]) == [
        {"id": children[0], "state": "pending", "again": False},
        {"id": children[1], "state": None, "again": True},
    ]
    by_id = Life()._new_row(asked_for("a#7"), LedgerTime(EPOCH, 500.0))
    assert lineal.children(by_id, JOBS) == ["b#7", "c#7"]
    assert lineal.children_of("a", JOBS) == ["b", "c", "d"]


def test_a_run_that_was_run_again_was_not_registered_by_that_and_its_end_is_past() -> None:
    again = row("a@1", "rerun of a@1/3 by root")
    child = row("b@1", "after a@1; rerun of a@1/3 by root")
    assert [lineal.registered_by(one) for one in (again, child, row("a@1", "ann"))] == ["", "after a@1", "ann"]
    assert lineal.rerun_told("a@1", again, {}) == " It runs once more: root ran a@1/3 again."
    again.state = child.state = "success"
    assert lineal.rerun_told("a@1", again, {}) == " It has run once more: root ran a@1/3 again."
    assert lineal.rerun_told("b@1", child, {}).startswith(" It has run once more after a@1: root ran a@1/3 again")


def test_what_a_run_waits_for_is_a_sentence() -> None:
    one = Waiting("b@1", "a (failure)", EPOCH)

    assert lineal.sentence("b", [one]) == (
        "b@1 waits for a (failure) of its period, until 2025-01-29T08:00:00Z; then it is missed."
    )
    assert lineal.sentence("b", [one] * 5).endswith(" 2 more runs of b wait.")
    assert lineal.awaits(Waiting("b@1", "", EPOCH)) == "b@1 waits for its own time; its parents have ended."
    assert lineal.relation(JOBS["c"]) == "It runs when any of a, b have failed."
    assert lineal.relation(JOBS["a"]) == ""
