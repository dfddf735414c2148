"""A diamond: one run, many runs of one job after it, one run after all of them; and nodes that are killed."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from system.lab.cluster import CallError, Cluster, cluster_of
from system.lab.processes import boottime

from kills.judge import Record, Verdict, judge
from kills.stage import PROGRAM, Stage, keep

SOURCE, MANY, LAST = "source", "many", "last"
IDENT = "x"

# The programs live this long (seconds). AT_A_TIME: members that run at the same time, at most.
LIFE_S = (0.05, 0.5)
AT_A_TIME = 16

LEAD_S = 2.0
ASKED_APART_S = 1.0
SETTLE_S = 300.0


class Plan(NamedTuple):
    """``members`` runs between the two; every ``apart_s`` seconds ``kills`` nodes are killed. ``late_max_s``: how long
    after the last end of a member the last run is opened, at most. ``each_s``: how long a member takes, all in all.
    """

    members: int = 1000
    kills: int = 1
    nodes: int = 5
    apart_s: float = 5.0
    late_max_s: float = 2.0
    each_s: float = 1.0
    seed: int = 0


def run(plan: Plan, show: Callable[[str], object]) -> tuple[Verdict, dict[str, Any]]:
    """Play it; returns the verdict, and facts about the trial."""
    with cluster_of(plan.nodes, backend="production") as cluster:
        stage = Stage(cluster, plan.seed, 0.0)
        parts = [str(number) for number in range(plan.members)]
        _job(cluster, SOURCE)
        _job(cluster, MANY, f'after = ["{SOURCE}"]', f"concurrency = {AT_A_TIME}", f"expand = {{ part = {parts} }}")
        _job(cluster, LAST, f'after = ["{MANY}"]')
        cluster.start()
        over = threading.Event()
        limit = boottime() + LEAD_S + plan.members * plan.each_s + SETTLE_S
        asked_at = 0.0
        stage.at(boottime() + LEAD_S, lambda: _ask(cluster))
        _kills(stage, plan, over)

        def look() -> None:
            nonlocal asked_at
            if boottime() - asked_at > ASKED_APART_S:
                asked_at = boottime()
                show(f"{len(cluster.starts())} starts, {len(stage.cuts)} kills")
                if boottime() > limit or cluster.row(f"{LAST}#{IDENT}").get("ended_at"):
                    over.set()

        stage.play(look)
        rows = {row["run"]: row for row in cluster.rows()}
        members = [f"{MANY}#{IDENT}~{number}" for number in range(plan.members)]
        wanted = [f"{SOURCE}#{IDENT}", *members, f"{LAST}#{IDENT}"]
        states = {run: row["state"] for run, row in rows.items()}
        verdict = judge(Record(dict.fromkeys(wanted, 0.0), cluster.entries(), stage.cuts, states))
        about = _judged(plan, verdict, rows, members)
        keep(cluster, verdict)
        return verdict, {**plan._asdict(), **about, "cuts": [cut[:4] for cut in stage.cuts]}


def _job(cluster: Cluster, name: str, *keys: str) -> None:
    life = [f"{seconds}" for seconds in LIFE_S]
    argv = [sys.executable, "-I", "-S", "-E", str(PROGRAM), str(cluster.log_path), "", *life]
    lines = [*keys, "[retry]", "relaunches = 20", "[command]", f"argv = {json.dumps(argv)}"]
    cluster.job_file(name, "\n".join(lines) + "\n")


def _ask(cluster: Cluster) -> None:
    """A person starts it at the first node that answers."""
    for node in cluster.nodes:
        try:
            node.call("run.trigger", job=SOURCE, id=IDENT)
        except (OSError, CallError):
            continue
        return
    raise AssertionError(f"no node takes {SOURCE}#{IDENT}")


def _kills(stage: Stage, plan: Plan, over: threading.Event) -> None:
    def again() -> None:
        if over.is_set():
            return
        for name in stage.chance.sample([node.name for node in stage.cluster.nodes], plan.kills):
            stage.strike(name)
        stage.at(boottime() + plan.apart_s, again)

    stage.at(boottime() + LEAD_S + 1.0, again)


def _judged(plan: Plan, verdict: Verdict, rows: dict[str, dict[str, Any]], members: list[str]) -> dict[str, Any]:
    """Judge the group and the last run; returns what goes into the file beside the verdict."""
    more = sorted(run for run in rows if run.startswith((f"{MANY}#", f"{LAST}#")) and run not in members)
    if more != [f"{LAST}#{IDENT}"]:
        verdict.violations.append(f"expected one run of {LAST} and {plan.members} of {MANY}, found also {more}")
        return {}
    ended_at = max((rows[run]["ended_at"] for run in members if run in rows), default=0.0)
    late_s = rows[f"{LAST}#{IDENT}"]["created_at"] - ended_at
    if late_s > plan.late_max_s:
        verdict.violations.append(f"{LAST}#{IDENT} was opened {late_s:.3f} s after the last end")
    if late_s < 0:
        verdict.violations.append(f"{LAST}#{IDENT} was opened {-late_s:.3f} s before the last end")
    verdict.counts["milliseconds from the last end to the child"] = round(1000 * late_s)
    began = min(row["created_at"] for row in rows.values())
    return {"late_s": round(late_s, 3), "took_s": round(ended_at - began, 1)}
