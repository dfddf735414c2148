"""Groups: the runs of `expand` are opened by every node, and others wait for them as a whole."""

from __future__ import annotations

import json
import random

import pytest

from coordd.core.groups.expand import Expand, member
from coordd.core.jobs.after import was_missed
from coordd.core.jobs.job import scheduled_run
from core.node.test_following import FIRST, HOUR_S, child, end, made, parent, rows, to

REGIONS = Expand("region", ("eu", "us", "asia"))
GROUP = scheduled_run("a", FIRST)


def test_each_value_has_a_run_of_its_own_and_the_child_waits_for_all_of_them() -> None:
    nodes = made(parent(expand=REGIONS, overlap="allow"), child("a"))
    to(nodes, FIRST + 10)
    found = sorted(rows(nodes, "a"), key=lambda row: row.run)
    assert [(row.run, json.loads(row.args)["region"]) for row in found] == [
        (member(GROUP, number), region) for number, region in enumerate(REGIONS.values)
    ]

    for number in (0, 2):
        end(nodes, member(GROUP, number))
    nodes.wait(15.0)
    assert rows(nodes) == []
    [waiting] = nodes["a"].following.waiting("child", nodes.time().wall)
    assert waiting.absent == "a (2 of 3 have ended)"

    end(nodes, member(GROUP, 1))
    nodes.wait(2.0)
    assert [(row.run, row.by) for row in rows(nodes)] == [(scheduled_run("child", FIRST), f"after {GROUP}")]


@pytest.mark.parametrize(("on", "opened"), [("success", 0), ("failure", 1), ("done", 1)])
def test_a_group_has_failed_if_a_member_has(on: str, opened: int) -> None:
    nodes = made(parent(expand=REGIONS, overlap="allow"), child("a", on=on), names="ab")
    to(nodes, FIRST + 10)
    for number, state in enumerate(("success", "failure", "success")):
        end(nodes, member(GROUP, number), state)
    nodes.wait(15.0)
    assert len(rows(nodes)) == opened


def test_a_group_that_does_not_end_in_time_is_named() -> None:
    nodes = made(parent(expand=REGIONS, overlap="allow"), child("a", within_s=60.0), names="ab")
    to(nodes, FIRST + 10)
    end(nodes, member(GROUP, 0))
    nodes.wait(90.0)
    [row] = rows(nodes)
    assert (row.state, was_missed(row.reason)) == ("missed", "a (1 of 3 have ended)")


def test_a_node_without_the_file_of_the_group_does_not_decide_about_its_children() -> None:
    of = parent(expand=REGIONS, overlap="allow")
    nodes = made(of, child("a", within_s=60.0), names="ab")
    to(nodes, FIRST + 10)
    shell = nodes.shells["b"]
    shell.do(shell.node.set_jobs, {"child": nodes.jobs["child"]})
    end(nodes, member(GROUP, 0))
    nodes.kill("a")
    nodes.wait(120.0)
    assert rows(nodes) == []


def test_a_child_may_be_a_group_itself() -> None:
    nodes = made(parent(), child("a", expand=REGIONS, overlap="allow"), child("child", name="all"))
    to(nodes, FIRST + 10)
    end(nodes, scheduled_run("a", FIRST))
    nodes.wait(5.0)
    group = scheduled_run("child", FIRST)
    assert sorted(row.run for row in rows(nodes)) == [member(group, number) for number in range(3)]
    for number in range(3):
        end(nodes, member(group, number))
    nodes.wait(5.0)
    assert [row.run for row in rows(nodes, "all")] == [scheduled_run("all", FIRST)]


@pytest.mark.parametrize("seed", range(3))
def test_killed_nodes_lose_no_member_and_the_child_runs_once_soon_after_the_last_end(seed: int) -> None:
    """A diamond: one, many, one; a node dies every few ends."""
    rng = random.Random(seed)
    many = Expand("part", tuple(str(number) for number in range(40)))
    nodes = made(
        parent(),
        child("a", name="many", expand=many, overlap="allow", within_s=2 * HOUR_S),
        child("many", within_s=2 * HOUR_S),
    )
    to(nodes, FIRST + 10)
    end(nodes, GROUP)
    boots, last_at = 1, 0.0
    for _ in range(400):
        nodes.wait(rng.uniform(0.5, 3.0))
        there = {run for shell in nodes.shells.values() if shell.alive for run in shell.renew_at if "~" in run}
        if there:
            end(nodes, rng.choice(sorted(there)))
            last_at = nodes.mono
        elif all(row.state == "success" for row in rows(nodes, "many")):
            break
        if rng.random() < 0.2:
            boots += 1
            name = rng.choice(sorted(nodes.shells))
            nodes.kill(name)
            nodes.boot(name, boots)
            nodes.start(name)
    assert sorted({row.run for row in rows(nodes, "many")}) == sorted(
        member(scheduled_run("many", FIRST), number) for number in range(40)
    )
    [row] = rows(nodes)
    assert row.created_at - max(one.ended_at for one in nodes.ledger.runs(job="many", limit=100)) <= 2.0
    assert last_at
