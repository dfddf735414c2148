"""Backfills: nodes ask the ledger for the fire times of a plan, and a plan needs none of them."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_cluster import EPOCH, Cluster, Lone, job

from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import Job, scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import Plan
from coordd.core.ledger.requests import Fill, Keep, PlanBackfill
from coordd.core.ledger.rows import OF_BACKFILL
from coordd.core.node.plans.backfills import ASKS_MAX

HOUR_S = 3600.0
FIRST = EPOCH - 5 * HOUR_S
RUNS = [scheduled_run("sales", FIRST + number * HOUR_S) for number in range(5)]


def made(one: Job | None = None, names: str = "abc") -> Cluster:
    found = Cluster(*names, jobs=[one or job(every_s=HOUR_S)])
    found.wait(15.0)
    return found


def begin(of: Cluster, ident: str = "p1", **more: Any) -> None:
    plan = Plan(ident, FIRST, FIRST + 5 * HOUR_S, **more)
    of.person_asks(PlanBackfill(job="sales", text=plan.text(), by="ann"))
    of["a"].look_again(of.time())
    of.shells["a"].pump()
    of.wait(3.0)


def plan(of: Cluster) -> Plan:
    known = Plan.read(of.ledger._store.meta(f"hold:{OF_BACKFILL}sales").split("\n")[2])
    assert known is not None
    return known


def alive(of: Cluster) -> list[str]:
    return sorted(row.run for row in of.ledger.runs() if row.state in ("received", "started"))


def end_all(of: Cluster, state: str = "success") -> None:
    for shell in of.shells.values():
        for run in list(shell.renew_at):
            of.end(shell.name, run, state, 0 if state == "success" else 1)
    of.wait(3.0)


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_each_fire_time_of_the_range_runs_once_one_after_the_other(order: str) -> None:
    nodes = made()
    begin(nodes, order=order)
    for run in RUNS if order == "oldest" else RUNS[::-1]:
        assert alive(nodes) == [run]
        end_all(nodes)
    nodes.wait(15.0)

    assert (plan(nodes).state, plan(nodes).succeeded, plan(nodes).opened) == ("done", 5, 5)
    assert [len(nodes.launches(run)) for run in RUNS] == [1] * 5
    assert nodes.launches(RUNS[0])[0][1] == 1


def test_as_many_at_a_time_as_the_plan_says() -> None:
    nodes = made(job(every_s=HOUR_S, overlap="allow"))
    begin(nodes, at_most=3)
    assert alive(nodes) == RUNS[:3]
    end_all(nodes)
    assert alive(nodes) == RUNS[3:]


def test_a_plan_goes_on_without_the_nodes_that_began_it() -> None:
    nodes = made()
    begin(nodes)
    (holder,) = {name for name in "abc" if nodes.shells[name].renew_at}
    nodes.kill(holder)
    nodes.shells[holder].renew_at.clear()
    nodes.wait(150.0)
    for _ in range(5):
        end_all(nodes)
        nodes.wait(15.0)

    assert (plan(nodes).state, plan(nodes).succeeded) == ("done", 5)
    assert [len(nodes.launches(run)) for run in RUNS] == [2, 1, 1, 1, 1]


def test_nothing_is_opened_beside_groups() -> None:
    """The job has got `expand` since: its fire times are groups, and the plan would run them once more as a whole."""
    nodes = made()
    begin(nodes)
    for shell in nodes.shells.values():
        shell.node.set_jobs(
            {"sales": job(every_s=HOUR_S, digest="d2", expand=Expand("part", ("a", "b")))}, nodes.time()
        )
    end_all(nodes)
    nodes.wait(60.0)

    assert (plan(nodes).state, plan(nodes).opened) == ("running", 1)
    assert [len(nodes.launches(run)) for run in RUNS] == [1, 0, 0, 0, 0]


def test_a_live_fire_time_goes_first() -> None:
    nodes = made()
    begin(nodes)
    nodes.wait(HOUR_S - (nodes.time().wall - EPOCH) + 2.0)
    live = scheduled_run("sales", EPOCH + HOUR_S)
    assert alive(nodes) == [RUNS[0]]
    assert nodes.state(live) == "pending"

    end_all(nodes)
    nodes.wait(15.0)
    assert alive(nodes) == [live]
    end_all(nodes)
    nodes.wait(15.0)
    assert alive(nodes) == [RUNS[1]]


def test_it_stops_after_failures_and_opens_nothing_once_cancelled() -> None:
    nodes = made()
    begin(nodes, stop_after=1)
    end_all(nodes, "failure")
    nodes.wait(30.0)
    assert (plan(nodes).state, alive(nodes)) == ("stopped", [])

    begin(nodes, "p2", redo="failed")
    assert alive(nodes) == [RUNS[0]]
    assert nodes.launches(RUNS[0])[-1][1] == 2
    nodes.person_asks(PlanBackfill(job="sales", text="", by="ann"))
    end_all(nodes)
    nodes.wait(30.0)
    assert alive(nodes) == []


def test_what_has_run_is_passed_over_and_a_later_plan_runs_it_again() -> None:
    nodes = made()
    begin(nodes)
    for _ in RUNS:
        end_all(nodes)
    nodes.wait(15.0)
    begin(nodes, "p2")
    nodes.wait(15.0)
    assert (plan(nodes).state, plan(nodes).opened) == ("done", 0)
    begin(nodes, "p3", redo="all")
    assert alive(nodes) == [RUNS[0]]


# ---- one node


def lone(one: Job | None = None, **more: Any) -> Lone:
    """A node whose ledger has a plan."""
    found = Lone(one or job(every_s=HOUR_S)).ready()
    swept(found, **more)
    return found


def swept(one: Lone, note: str = "", definition: str = "d1", **more: Any) -> None:
    from coordd.core.ledger.open_answer import Current, JobState, OpenAnswer
    from coordd.core.ledger.rows import Hold

    plan = Plan("p1", FIRST, FIRST + 5 * HOUR_S)
    hold = Hold(by="ann", note=note or plan.text())
    current = {"sales": Current(sequence=1, digest=definition, counts_from=EPOCH)}
    jobs = {"sales": JobState(horizon=EPOCH, last_fire_at=0.0, suspended=False, fence=1)}
    holds = {OF_BACKFILL + "sales": hold}
    one.do(one.node.look_again)
    one.answer("open", OpenAnswer([], jobs, EPOCH, current=current, holds=holds, **more))


def test_one_question_at_a_time_and_the_next_sweep_asks_again() -> None:
    node = lone()
    assert [one.of.run for one in node.waiting(Fill)] == [RUNS[0]]
    swept(node)
    assert len(node.waiting(Fill)) == 1
    node.answer("fill", Answer("limited", by="at most 1"))
    assert node.waiting(Fill) == []
    swept(node)
    assert [one.of.run for one in node.waiting(Fill)] == [RUNS[0]]


def test_what_exists_is_passed_over_at_once_and_for_good() -> None:
    node = lone()
    node.answer("fill", Answer("exists", state="success"))
    assert [one.of.run for one in node.waiting(Fill)] == [RUNS[1]]
    node.answer("fill", Answer("unavailable"))
    swept(node)
    assert [one.of.run for one in node.waiting(Fill)] == [RUNS[1]]


def test_after_the_last_fire_time_it_says_that_nothing_is_left() -> None:
    node = lone()
    for _ in RUNS:
        node.answer("fill", Answer("exists", state="success"))
    (last,) = node.waiting(Fill)
    assert (last.left, last.of.job) == (0, "sales")
    node.answer("fill", Answer("limited", by="its last runs have not ended"))
    assert node.waiting(Fill) == []


def test_so_many_questions_after_one_sweep() -> None:
    node = Lone(job(every_s=60.0)).ready()
    swept(node, note=Plan("p1", EPOCH - 60.0 * 2 * ASKS_MAX, EPOCH).text())
    for _ in range(ASKS_MAX):
        node.answer("fill", Answer("exists", state="success"))
    assert node.waiting(Fill) == []


@pytest.mark.parametrize("why", ["definition", "quarantine", "no schedule", "damaged", "ended"])
def test_when_a_node_asks_nothing(why: str) -> None:
    if why == "definition":
        node = lone(definition="d2")
    elif why == "quarantine":
        node = lone(recovering_s=5.0)
    elif why == "no schedule":
        node = lone(job())
    else:
        plan = Plan("p1", FIRST, EPOCH, state="done")
        node = lone(note="p1 running" if why == "damaged" else plan.text())

    assert node.waiting(Fill) == []


def test_an_answer_about_a_plan_that_has_ended_since() -> None:
    node = lone()
    swept(node, note=Plan("p1", FIRST, EPOCH, state="cancelled").text())
    node.answer("fill", Answer("exists", state="success"))

    assert node.waiting(Fill) == []


def test_keeping_another_note_does_not_confuse_anybody() -> None:
    nodes = made()
    nodes.ledger.ask(Keep(key=OF_BACKFILL + "sales", held=True, by="ann", note="not a plan"))
    nodes.wait(15.0)

    assert alive(nodes) == []
