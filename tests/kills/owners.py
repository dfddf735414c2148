"""Scheduled jobs whose owners are killed between 3 s before a fire time and 1 s after it: each has one decision."""

from __future__ import annotations

import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from system.lab.cluster import CallError, Cluster, cluster_of
from system.lab.processes import boottime, until

from coordd.core.jobs.job import iso
from kills.judge import Cut, Record, Verdict, judge
from kills.stage import PROGRAM, Stage, keep

# The programs live longer than the time after a fire time in which owners are killed.
LIFE_S = (1.5, 2.5)
KILLED_S = (-3.0, 1.0)
LEAD_S = 8.0
SETTLE_S = 240.0
OVER = ("success", "failure", "lost", "missed", "rejected", "revoked")


class Plan(NamedTuple):
    """``jobs`` fire together every ``interval_s`` seconds, ``rounds`` times; ``kills`` nodes are killed each time."""

    jobs: int = 60
    rounds: int = 90
    interval_s: int = 24
    kills: int = 2
    nodes: int = 5
    skew_s: float = 0.0
    seed: int = 0


def run(plan: Plan, show: Callable[[str], object]) -> tuple[Verdict, dict[str, Any]]:
    """Play it; returns the verdict, and facts about the trial."""
    with cluster_of(plan.nodes, backend="production", budget=plan.jobs) as cluster:
        stage = Stage(cluster, plan.seed, plan.skew_s)
        cluster.start()
        first = (int(time.time() + LEAD_S) // plan.interval_s + 1) * plan.interval_s
        last = first + (plan.rounds - 1) * plan.interval_s
        for number in range(plan.jobs):
            _job(cluster, f"job{number}", plan, first, last)
        for node in cluster.nodes:
            node.call("reload")
        expected: dict[str, float] = {}
        for wall in range(first, last + 1, plan.interval_s):
            at = stage.at_wall(wall)
            expected.update({f"job{number}@{iso(wall)}": at for number in range(plan.jobs)})
            for name in stage.chance.sample(sorted(stage.skews), plan.kills):
                stage.at(at + stage.chance.uniform(*KILLED_S), lambda name=name: stage.strike(name))  # type: ignore[misc]  # mypy cannot infer a default
        stage.play(lambda: show(f"{len(cluster.starts())} starts, {len(stage.cuts)} kills"))
        left = _settle(cluster, stage, expected)
        rows = {row["run"]: row["state"] for row in cluster.rows()}
        decisions = {run: told for job in range(plan.jobs) for run, told in _fires(cluster, f"job{job}", first, last)}
        verdict = judge(Record(expected, cluster.entries(), stage.cuts, rows, decisions))
        verdict.counts.update(_pairs(cluster, expected, stage.cuts))
        verdict.violations.extend(f"not over: {run}" for run in left[:10])
        keep(cluster, verdict)
        return verdict, {
            **plan._asdict(),
            "skews": stage.skews,
            "ended_alone": stage.ended_alone,
            "cuts": [cut[:4] for cut in stage.cuts],
        }


def _job(cluster: Cluster, name: str, plan: Plan, first: int, last: int) -> None:
    life = [f"{seconds}" for seconds in LIFE_S]
    argv = [sys.executable, "-I", "-S", "-E", str(PROGRAM), str(cluster.log_path), "", *life]
    lines = [
        f'schedule = "every {plan.interval_s}s"',
        f'start = "{iso(first)}"',
        f'end = "{iso(last + 1)}"',
        'overlap = "allow"',
        'placement = "spread"',
        "[retry]",
        "relaunches = 20",
        "[command]",
        f"argv = {json.dumps(argv)}",
    ]
    cluster.job_file(name, "\n".join(lines) + "\n")


def _settle(cluster: Cluster, stage: Stage, expected: Iterable[str]) -> list[str]:
    """Wait until every run is over; returns those that are not."""
    limit, left = boottime() + SETTLE_S, list(expected)
    while left and boottime() < limit:
        stage.watch()
        time.sleep(1.0)
        states = {row["run"]: row["state"] for row in cluster.rows()}
        left = [run for run in expected if states.get(run) not in OVER]
    until(lambda: all((node.try_call("status") or {}).get("state") == "ready" for node in cluster.nodes))
    return left


def _fires(cluster: Cluster, job: str, first: int, last: int) -> list[tuple[str, list[str]]]:
    """(run, the decisions about it) as every node tells them: one list if all nodes agree."""
    told: defaultdict[str, list[str]] = defaultdict(list)
    said: list[Any] = []
    for node in cluster.nodes:
        try:
            said.append(node.call("job.fires", job=job, **{"from": iso(first), "to": iso(last)}))
        except (OSError, CallError) as exc:
            said.append([{"fire_time": iso(first), "decision": f"{node.name}: {exc}"}])
    for fire in said[0]:
        told[f"{job}@{fire['fire_time']}"].append(fire["decision"])
    for number, other in enumerate(said[1:], 2):
        if [(fire["fire_time"], fire["decision"]) for fire in other] != [
            (fire["fire_time"], fire["decision"]) for fire in said[0]
        ]:
            told[f"{job}@{iso(first)}"].append(f"node {number} says otherwise")
    return list(told.items())


def _pairs(cluster: Cluster, expected: dict[str, float], cuts: list[Cut]) -> dict[str, int]:
    """How many fire times lost a node that had been granted their run, and how many lost one around them."""
    of_node = {f"{cut.node}.{cut.pid}": cut for cut in cuts}
    owned, around = 0, 0
    for run, at in expected.items():
        window = (at + KILLED_S[0] - 0.2, at + KILLED_S[1] + 1.0)  # a kill takes a moment
        around += any(window[0] <= cut.at <= window[1] for cut in cuts)
        for row in cluster.attempts(run):
            cut = of_node.get(row["node"])
            over_at = Stage.at_wall(row["ended_at"]) if row["ended_at"] else cut.at if cut else 0.0
            if cut and window[0] <= cut.at <= window[1] and cut.at <= over_at:
                owned += 1
                break
    return {"fire times with a kill around them": around, "owners killed": owned}
