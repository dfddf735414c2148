"""A parent is run once more with its children: a few nodes over one ledger, and the plan that the jobs make."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_cluster import EPOCH, Cluster, asked_for, job

from coordd.core.groups.expand import Expand
from coordd.core.jobs.after import parents_of, rerun_of
from coordd.core.jobs.job import After, Job, scheduled_run
from coordd.core.ledger.requests import Replay, Suspend
from coordd.core.ledger.rerun.descendants import descendants
from coordd.core.ledger.rerun.plan import Item, read, text_of
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import AttemptNumber

HOUR_S = 3600.0
FIRST = EPOCH + HOUR_S
A = scheduled_run("a", FIRST)
CHILD = scheduled_run("child", FIRST)


def parent(name: str = "a", **changes: Any) -> Job:
    return job(name, **{"every_s": HOUR_S, **changes})


def child(*parents: str, name: str = "child", **changes: Any) -> Job:
    after = {key: changes.pop(key) for key in ("needs", "on", "period_s", "within_s") if key in changes}
    return job(name, after=After(parents, **{"within_s": HOUR_S / 4, **after}), **changes)


def made(*jobs: Job, names: str = "abc") -> Cluster:
    found = Cluster(*names, jobs=list(jobs))
    found.wait(15.0)
    found.wait(FIRST + 10 - found.time().wall)
    return found


def end(nodes: Cluster, run: str, state: str = "success") -> None:
    holder = next(shell.name for shell in nodes.shells.values() if shell.alive and run in shell.renew_at)
    nodes.end(holder, run, state, 0 if state == "success" else 1)
    nodes.wait(15.0)


def planned(nodes: Cluster, run: str) -> list[Item]:
    row = one(nodes, run)
    jobs = {found.name: found for found in nodes.jobs.values()}
    return descendants(jobs, row.job, run, row.fire_at, scheduled=bool(row.scheduled), identity_from=0.0)


def replay(nodes: Cluster, run: str, *, with_children: bool = True, whole: bool = False) -> None:
    row = one(nodes, run)
    children, number = text_of(planned(nodes, run)) if with_children else "", AttemptNumber(row.attempt)
    asked = Replay(
        run=run, attempt=number, digest=row.digest, policy=row.policy, by="ann", children=children, whole=whole
    )
    nodes.person_asks(asked)
    nodes.wait(15.0)


def one(nodes: Cluster, run: str) -> Row:
    row = nodes.ledger.run(run)
    assert row is not None
    return row


def launched(nodes: Cluster, run: str) -> list[int]:
    return sorted(launch[1] for launch in nodes.launches(run))


def test_children_and_their_children_run_once_more_each_once() -> None:
    nodes = made(parent(), child("a", on="done"), child("child", name="grand"))
    grand = scheduled_run("grand", FIRST)
    end(nodes, A, "failure")
    end(nodes, CHILD)
    end(nodes, grand)
    assert [item.runs.run for item in planned(nodes, A)] == [CHILD, grand]

    replay(nodes, A)
    assert launched(nodes, A) == [0, 1]
    assert launched(nodes, CHILD) == [0]
    end(nodes, A)
    assert launched(nodes, CHILD) == [0, 1]
    assert launched(nodes, grand) == [0]
    end(nodes, CHILD)
    assert launched(nodes, grand) == [0, 1]
    end(nodes, grand)
    nodes.wait(1300.0)  # everything is read again
    assert [launched(nodes, run) for run in (A, CHILD, grand)] == [[0, 1]] * 3
    assert parents_of(one(nodes, CHILD).by) == (A,)
    assert rerun_of(one(nodes, grand).by) == (f"{A}/1", "ann")


@pytest.mark.parametrize("with_children", [True, False])
def test_a_run_that_succeeded_runs_once_more_and_its_children_only_if_a_person_says_so(with_children: bool) -> None:
    nodes = made(parent(), child("a"))
    end(nodes, A)
    end(nodes, CHILD)
    replay(nodes, A, with_children=with_children, whole=True)
    assert launched(nodes, A) == [0, 1]
    end(nodes, A)
    if with_children:
        end(nodes, CHILD)
    nodes.wait(1300.0)  # everything is read again
    assert (launched(nodes, A), launched(nodes, CHILD)) == ([0, 1], [0, 1] if with_children else [0])


def test_without_it_no_child_runs_once_more() -> None:
    nodes = made(parent(), child("a", on="done"))
    end(nodes, A, "failure")
    end(nodes, CHILD)
    replay(nodes, A, with_children=False)
    end(nodes, A)
    nodes.wait(700.0)
    assert launched(nodes, CHILD) == [0]


def test_the_node_that_saw_the_parents_end_may_die() -> None:
    """Also all of them: the ledger has the plan."""
    nodes = made(parent(), child("a", on="done"), names="ab")
    end(nodes, A, "failure")
    end(nodes, CHILD)
    replay(nodes, A)
    holder = next(shell.name for shell in nodes.shells.values() if A in shell.renew_at)
    nodes.end(holder, A, "success", 0)
    for name in "ab":
        nodes.kill(name)
    nodes.wait(1200.0)  # longer than any end is looked back for
    nodes.boot("c", 1)
    nodes.start("c")
    nodes.wait(30.0)
    assert launched(nodes, CHILD) == [0, 1]


def test_a_child_that_was_missed_gets_its_run() -> None:
    nodes = made(parent(), child("a", within_s=60.0))
    end(nodes, A, "failure")
    nodes.wait(90.0)
    assert one(nodes, CHILD).state == "missed"
    replay(nodes, A)
    end(nodes, A)
    assert launched(nodes, CHILD) == [1]
    end(nodes, CHILD)
    assert one(nodes, CHILD).state == "success"


def test_a_child_that_has_had_no_turn_yet_runs_once() -> None:
    """The parent's new end opens it in the usual way, and the plan too."""
    nodes = made(parent(), child("a"), child("child", name="grand"))
    end(nodes, A, "failure")
    replay(nodes, A)
    end(nodes, A)
    assert len(launched(nodes, CHILD)) == 1
    end(nodes, CHILD)
    assert len(launched(nodes, scheduled_run("grand", FIRST))) == 1
    nodes.wait(700.0)
    assert len(launched(nodes, CHILD)) == len(launched(nodes, scheduled_run("grand", FIRST))) == 1


def test_a_diamond_runs_its_last_job_once() -> None:
    """Its sides are not equally long."""
    nodes = made(
        parent(),
        child("a", name="b", on="done"),
        child("b", name="b2"),
        child("a", name="c", on="done"),
        child("b2", "c", name="d"),
    )
    b, b2, c, d = (scheduled_run(name, FIRST) for name in ("b", "b2", "c", "d"))
    end(nodes, A, "failure")
    for run in (b, b2, c, d):
        end(nodes, run)
    replay(nodes, A)
    end(nodes, A)
    end(nodes, c)
    assert launched(nodes, d) == [0]
    end(nodes, b)
    assert launched(nodes, d) == [0]
    end(nodes, b2)
    assert launched(nodes, d) == [0, 1]
    end(nodes, d)
    nodes.wait(700.0)
    assert [launched(nodes, run) for run in (b, b2, c, d)] == [[0, 1]] * 4


def test_a_group_runs_once_more_and_is_waited_for() -> None:
    nodes = made(
        parent(),
        child("a", on="done", name="many", overlap="allow", expand=Expand("part", ("x", "y"))),
        child("many", name="last"),
    )
    members = [f"{scheduled_run('many', FIRST)}~{number}" for number in range(2)]
    last = scheduled_run("last", FIRST)
    end(nodes, A, "failure")
    for run in (*members, last):
        end(nodes, run)
    replay(nodes, A)
    end(nodes, A)
    assert [launched(nodes, run) for run in members] == [[0, 1]] * 2
    assert [one(nodes, run).args for run in members] == ['{"part": "x"}', '{"part": "y"}']
    end(nodes, members[0])
    assert launched(nodes, last) == [0]
    end(nodes, members[1])
    assert launched(nodes, last) == [0, 1]


def test_a_suspended_child_runs_once_it_is_resumed() -> None:
    nodes = made(parent(), child("a", on="done", start_within_s=60.0))
    end(nodes, A, "failure")
    end(nodes, CHILD)
    nodes.person_asks(Suspend(job="child", suspended=True, by="bob"))
    replay(nodes, A)
    end(nodes, A)
    nodes.wait(200.0)  # longer than its start_within
    assert launched(nodes, CHILD) == [0]
    nodes.person_asks(Suspend(job="child", suspended=False, by="bob"))
    nodes.wait(15.0)
    assert launched(nodes, CHILD) == [0, 1]


def test_a_child_by_id_runs_once_more() -> None:
    of = parent(every_s=0.0)
    nodes = Cluster("a", "b", jobs=[of, child("a", on="done")])
    nodes.wait(15.0)
    nodes.trigger("a", asked_for("a#42", of))
    nodes.wait(5.0)
    end(nodes, "a#42", "failure")
    end(nodes, "child#42")
    replay(nodes, "a#42")
    end(nodes, "a#42")
    assert launched(nodes, "child#42") == [0, 1]


# ---- which runs follow


def follow(*jobs: Job, run: str = A, fire_at: float = FIRST) -> list[Item]:
    found = {one.name: one for one in jobs}
    scheduled = "@" in run
    return descendants(
        found, run.partition("@")[0].partition("#")[0], run, fire_at, scheduled=scheduled, identity_from=0.0
    )


def test_the_runs_of_a_childs_own_schedule_in_the_period_follow() -> None:
    day = FIRST - FIRST % 86400.0
    items = follow(
        parent(every_s=86400.0),
        child("a", period_s=86400.0, every_s=6 * HOUR_S),
        run=scheduled_run("a", day),
        fire_at=day,
    )
    assert [item.runs.run for item in items] == [scheduled_run("child", day + 6 * HOUR_S * n) for n in range(4)]
    assert {item.parents[0][0].run for item in items} == {scheduled_run("a", day)}


def test_all_runs_of_the_other_parents_in_the_period_are_named() -> None:
    items = follow(parent(), parent("b", every_s=HOUR_S / 2), child("a", "b", period_s=HOUR_S, needs="any"))
    (item,) = items
    assert item.any
    assert [[one.run for one in of_job] for of_job in item.parents] == [
        [A],
        [scheduled_run("b", FIRST), scheduled_run("b", FIRST + HOUR_S / 2)],
    ]


@pytest.mark.parametrize("run", [A, "a#7"])
def test_parents_come_before_their_children_and_a_circle_is_left_out(run: str) -> None:
    jobs = (parent(), child("a", name="z"), child("z", "a", name="b"), child("b", "loop", name="loop"))
    assert [item.runs.run.partition("@")[0].partition("#")[0] for item in follow(*jobs, run=run)] == ["z", "b"]


def test_jobs_that_are_not_enabled_or_follow_others_do_not_follow() -> None:
    assert follow(parent(), child("a", enabled=False), child("b")) == []


def test_a_plan_is_text_and_comes_back() -> None:
    items = follow(parent(), child("a", overlap="allow", expand=Expand("part", ("x", "y"))), child("child", name="d"))
    assert read(text_of(items)) == items
    assert text_of([]) == ""
