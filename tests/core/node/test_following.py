"""Jobs after jobs: nodes open a child from the ledger's rows, and no single one is needed."""

from __future__ import annotations

from typing import Any

import pytest
from support.ledger_calls import grant_of
from support.small_cluster import EPOCH, Cluster, asked_for, job

from coordd.core.jobs.after import GRACE_S, parents_of, was_missed
from coordd.core.jobs.job import After, Job, scheduled_run
from coordd.core.ledger.requests import ListEnded, Suspend
from coordd.core.ledger.rows import LedgerTime, Row
from coordd.core.ledger.runner_requests import Report
from coordd.core.node import following
from coordd.core.wire.events import Action

HOUR_S = 3600.0
FIRST = EPOCH + HOUR_S


def parent(name: str = "a", **changes: Any) -> Job:
    return job(name, **{"every_s": HOUR_S, **changes})


def child(*parents: str, name: str = "child", **changes: Any) -> Job:
    after = {key: changes.pop(key) for key in ("needs", "on", "period_s", "within_s") if key in changes}
    return job(name, after=After(parents, **{"within_s": HOUR_S / 2, **after}), **changes)


def made(*jobs: Job, names: str = "abc") -> Cluster:
    found = Cluster(*names, jobs=list(jobs))
    found.wait(15.0)
    return found


def to(nodes: Cluster, at: float) -> None:
    nodes.wait(at - nodes.time().wall)


def end(nodes: Cluster, run: str, state: str = "success") -> None:
    holder = next(shell.name for shell in nodes.shells.values() if run in shell.renew_at)
    nodes.end(holder, run, state, 0 if state == "success" else 1)


def rows(nodes: Cluster, name: str = "child") -> list[Row]:
    return nodes.ledger.runs(job=name)


def test_a_child_starts_once_when_its_parent_has_succeeded_with_its_fire_time() -> None:
    nodes = made(parent(), child("a"))
    to(nodes, FIRST + 10)
    assert rows(nodes) == []

    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(2.0)  # not only with the next sweep
    run = scheduled_run("child", FIRST)
    assert [row.run for row in rows(nodes)] == [run]
    assert len(nodes.launches(run)) == 1
    assert parents_of(rows(nodes)[0].by) == (scheduled_run("a", FIRST),)

    end(nodes, run)
    nodes.wait(700.0)  # everything is read again
    assert len(rows(nodes)) == 1
    assert nodes.launches(run)[0][1] == 0
    assert len(nodes.launches(run)) == 1


def test_all_parents_are_awaited_and_any_is_enough() -> None:
    nodes = made(parent("a"), parent("b"), child("a", "b"), child("a", "b", name="one", needs="any"))
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(15.0)
    assert (len(rows(nodes)), len(rows(nodes, "one"))) == (0, 1)

    end(nodes, scheduled_run("b", FIRST))
    nodes.wait(15.0)
    assert (len(rows(nodes)), len(rows(nodes, "one"))) == (1, 1)


def test_an_end_that_nobody_saw_opens_the_child_when_a_node_is_back() -> None:
    nodes = made(parent(), child("a"), names="ab")
    to(nodes, FIRST + 10)
    run = scheduled_run("a", FIRST)
    holder = next(shell for shell in nodes.shells.values() if run in shell.renew_at)
    launch = holder.launch_of(run)
    for name in ("a", "b"):
        nodes.kill(name)
    grant = grant_of(launch.run, launch.attempt, launch.token, launch.nonce)
    nodes.ledger.ask(Report(grant=grant, state="success", exit_code=0))
    holder.renew_at.clear()
    nodes.boot("a", 2)
    nodes.start("a")
    nodes.wait(60.0)

    assert [row.run for row in rows(nodes)] == [scheduled_run("child", FIRST)]


def test_parents_with_other_schedules_are_joined_by_the_period() -> None:
    nodes = made(parent("a"), parent("b", every_s=HOUR_S / 2, overlap="allow"), child("a", "b", period_s=HOUR_S))
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("b", FIRST), "failure")
    to(nodes, FIRST + HOUR_S / 2 + 10)
    end(nodes, scheduled_run("b", FIRST + HOUR_S / 2))
    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(15.0)

    assert [row.run for row in rows(nodes)] == [scheduled_run("child", FIRST)]


def test_runs_by_id_open_a_run_with_the_same_id() -> None:
    of = parent(every_s=0.0)
    nodes = made(of, child("a"))
    nodes.shells["a"].do(nodes["a"].trigger, asked_for("a#42", of), 1)
    nodes.wait(5.0)
    end(nodes, "a#42")
    nodes.wait(15.0)

    assert [(row.run, row.state) for row in rows(nodes)] == [("child#42", "started")]


@pytest.mark.parametrize("name", "ab")
def test_a_child_by_id_whose_row_is_lost_before_its_claim_is_not_launched(name: str) -> None:
    """Whether the node has opened it (a), or knows it from a sweep (b): only the parents' ends open it."""
    of = parent(every_s=0.0)
    nodes = made(of, child("a"), names="ab")
    nodes.person_asks(Suspend(job="child", suspended=True, by="ann"))
    nodes.shells["a"].do(nodes["a"].trigger, asked_for("a#42", of), 1)
    nodes.wait(5.0)
    end(nodes, "a#42")
    nodes.wait(15.0)
    [row] = rows(nodes)
    assert (row.run, row.state) == ("child#42", "pending")
    parents_run = nodes.ledger.run("a#42")
    assert parents_run is not None
    parents_run.state = "failure"
    nodes.ledger._store.put_run(parents_run)  # the ledger has forgotten how it ended, and what followed
    nodes.ledger._store.drop_run("child#42")
    nodes.person_asks(Suspend(job="child", suspended=False, by="ann"))
    pursuits = nodes[name].pursuits
    pursuits.pursuits["child#42"].at = 0.0
    nodes.shells[name].do(lambda now: pursuits.timer("child#42", now))
    nodes.wait(90.0)  # a whole pass comes, too: nothing tells that a row is lost
    assert (nodes.launches("child#42"), rows(nodes)) == ([], [])
    assert "child#42" not in pursuits.pursuits


def test_past_within_the_child_is_missed_and_names_who_was_absent() -> None:
    nodes = made(parent("a"), parent("b"), child("a", "b", within_s=60.0), names="ab")
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST), "failure")
    end(nodes, scheduled_run("b", FIRST))
    nodes.wait(60.0)
    assert rows(nodes) == []

    nodes.wait(GRACE_S + 20.0)
    [row] = rows(nodes)
    assert row.state == "missed"
    assert was_missed(row.reason) == "a (failure)"
    assert nodes.launches(row.run) == []


def test_a_missed_child_whose_row_is_lost_before_its_claim_is_not_launched() -> None:
    """The ledger went back between a node's sweep and its claim: a claim writes no row that the parents have not."""
    nodes = made(parent("a"), parent("b"), child("a", "b", within_s=60.0), names="ab")
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST), "failure")
    run = scheduled_run("child", FIRST)
    action, shell = Action("child", run, 0, FIRST, True, "d1"), nodes.shells["a"]
    shell.do(lambda now: shell.node.pursuits.begin(action, now, in_ledger=True))
    nodes.wait(20.0)
    assert (nodes.launches(run), rows(nodes)) == ([], [])

    nodes.wait(60.0)
    [row] = rows(nodes)
    assert (row.state, was_missed(row.reason)) == ("missed", "a (failure), b")
    assert nodes.launches(run) == []


def test_parents_that_ended_before_the_definition_counted_open_nothing() -> None:
    nodes = made(parent(), names="ab")
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST))
    of = parent(every_s=0.0, name="c")
    jobs = {"a": parent(), "child": child("a"), "c": of, "hand": child("c", name="hand")}
    nodes.shells["a"].do(nodes["a"].trigger, asked_for("c#1", of), 1)
    nodes.wait(5.0)
    for shell in nodes.shells.values():
        shell.do(shell.node.set_jobs, jobs)
    nodes.wait(HOUR_S / 2 + 30.0)
    assert rows(nodes) == []

    to(nodes, FIRST + HOUR_S + 10)
    end(nodes, scheduled_run("a", FIRST + HOUR_S))
    nodes.wait(15.0)
    assert [row.run for row in rows(nodes)] == [scheduled_run("child", FIRST + HOUR_S)]


def test_with_a_schedule_of_its_own_the_child_has_its_own_fire_time() -> None:
    nodes = made(parent(), child("a", every_s=HOUR_S, period_s=86400.0), names="ab")
    to(nodes, FIRST + 10)
    assert rows(nodes) == []
    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(15.0)
    run = scheduled_run("child", FIRST)
    assert [(row.run, row.state) for row in rows(nodes)] == [(run, "started")]
    end(nodes, run)

    to(nodes, FIRST + HOUR_S - 5)
    assert len(rows(nodes)) == 1
    to(nodes, FIRST + HOUR_S + 10)  # its parents have ended, for this day
    assert [row.run for row in rows(nodes)] == [scheduled_run("child", FIRST + HOUR_S), run]


def test_a_child_that_is_suspended_waits_and_one_that_is_disabled_has_no_runs() -> None:
    nodes = made(parent(), child("a", enabled=False), names="ab")
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(30.0)

    assert rows(nodes) == []


def test_children_have_children() -> None:
    nodes = made(parent(), child("a", name="b"), child("b", name="c"))
    to(nodes, FIRST + 10)
    for name in ("a", "b", "c"):
        end(nodes, scheduled_run(name, FIRST))
        nodes.wait(5.0)

    assert [row.state for row in rows(nodes, "c")] == ["success"]


def test_what_a_child_waits_for_is_told() -> None:
    nodes = made(parent("a"), parent("b"), child("a", "b"), names="a")
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(15.0)

    [waiting] = nodes["a"].following.waiting("child", nodes.time().wall)
    assert (waiting.run, waiting.absent) == (scheduled_run("child", FIRST), "b")
    assert waiting.until == pytest.approx(FIRST + 10 + HOUR_S / 2, abs=1.0)
    assert nodes["a"].following.waiting("a", nodes.time().wall) == []


def test_a_fork_opens_each_child() -> None:
    nodes = made(parent(), child("a", name="b"), child("a", name="c"), names="ab")
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(5.0)

    assert [row.run for name in ("b", "c") for row in rows(nodes, name)] == [
        scheduled_run("b", FIRST),
        scheduled_run("c", FIRST),
    ]


@pytest.mark.parametrize(("state", "opened"), [("failure", 1), ("success", 0)])
def test_a_child_for_failures_is_opened_by_a_failure_alone(state: str, opened: int) -> None:
    nodes = made(parent(), child("a", on="failure"), names="ab")
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST), state)
    nodes.wait(5.0)

    assert len(rows(nodes)) == opened


def test_an_end_is_seen_although_the_ledgers_clock_was_set_back_while_it_was_away() -> None:
    nodes = made(parent(), child("a"), names="ab")
    to(nodes, FIRST + 100)
    run = scheduled_run("a", FIRST)
    holder = next(shell for shell in nodes.shells.values() if run in shell.renew_at)
    launch, clock = holder.launch_of(run), nodes.ledger._clock
    nodes.ledger_away = True
    nodes.ledger._clock = lambda: LedgerTime(clock().wall - 90.0, clock().lease)
    grant = grant_of(launch.run, launch.attempt, launch.token, launch.nonce)
    nodes.ledger.ask(Report(grant=grant, state="success", exit_code=0))
    holder.renew_at.clear()
    nodes.wait(40.0)
    nodes.ledger_away = False
    nodes.wait(40.0)

    assert [row.run for row in rows(nodes)] == [scheduled_run("child", FIRST)]


def test_a_node_that_starts_reads_back_as_far_as_an_end_may_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def noted(*, since: float, **more: Any) -> ListEnded:
        asked.append(since)
        return ListEnded(since=since, **more)

    monkeypatch.setattr(following, "ListEnded", noted)
    made(parent(), child("a", within_s=100.0), names="a")

    assert asked
    assert EPOCH - 120.0 < min(asked) < EPOCH


@pytest.mark.parametrize("ended", [True, False])
def test_an_end_that_was_dated_too_early_is_looked_for_before_the_child_is_called_missed(ended: bool) -> None:
    """The ledger's clock was behind for a moment, and no node saw it."""
    nodes = made(parent("a"), parent("b"), child("a", "b", within_s=200.0), names="ab")
    to(nodes, FIRST + 100)
    run = scheduled_run("a", FIRST)
    end(nodes, scheduled_run("b", FIRST))
    nodes.wait(10.0)
    holder = next(shell for shell in nodes.shells.values() if run in shell.renew_at)
    launch, clock = holder.launch_of(run), nodes.ledger._clock
    if ended:
        nodes.ledger._clock = lambda: LedgerTime(clock().wall - 90.0, clock().lease)
        grant = grant_of(launch.run, launch.attempt, launch.token, launch.nonce)
        nodes.ledger.ask(Report(grant=grant, state="success", exit_code=0))
        nodes.ledger._clock = clock
        holder.renew_at.clear()
    to(nodes, FIRST + 100 + 200 + GRACE_S + 30.0)

    [row] = rows(nodes)
    assert (row.state == "missed", was_missed(row.reason)) == ((False, "") if ended else (True, "a"))
