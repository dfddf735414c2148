"""The same crontab on five nodes: `coordd exec --tick` with clocks that are off and nodes killed. A tick runs once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from system.lab.cluster import Node, cluster_of
from system.lab.processes import ROOT, boottime, until

from coordd.core.jobs.job import iso
from kills.callers import Call, account
from kills.judge import Record, Verdict, judge
from kills.stage import PROGRAM, Stage, keep

# The programs live this long (seconds).
LIFE_S = (0.5, 4.0)

COMMAND = (sys.executable, "-m", "coordd", "exec", "--verbose")

# Each crontab is this much (seconds) late at most, as cron is.
CRON_LATE_S = 0.5

# Seconds from the first tick: kills strike from just before it to most of a takeover later.
KILLED_S = (-5.0, 20.0)
LEAD_S = 8.0
SETTLE_S = 180.0


class Plan(NamedTuple):
    """``jobs`` x ``rounds`` ticks. ``how``: the key of the runs; it fires every ``interval_s`` seconds."""

    jobs: int = 40
    rounds: int = 25
    how: tuple[str, str] = ("--tick", "* * * * *")
    interval_s: int = 60
    kills: int = 2  # of different nodes, at each tick
    nodes: int = 5
    skew_s: float = 5.0
    seed: int = 0


class Crontabs:
    """Every call of `coordd exec`, and how it ended."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self.plan, self.stage = plan, stage
        self.calls: list[Call] = []  # those that have ended
        self._alive: list[tuple[subprocess.Popen[bytes], Call, Path]] = []
        self._said = stage.cluster.path / "callers"
        self._said.mkdir()

    def fire(self, node: Node, wall: int) -> None:
        """The crontab of that machine fires for the tick at ``wall``, if it has power."""
        if node.name in self.stage.off:
            return
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COORDD_SOCKET": str(node.socket)}
        zone = ["--timezone", "UTC"] if self.plan.how[0] == "--tick" else []
        life = [f"{seconds}" for seconds in LIFE_S]
        for number in range(self.plan.jobs):
            name = f"tick{number}"
            program = [sys.executable, "-I", "-S", "-E", str(PROGRAM), str(self.stage.cluster.log_path), name, *life]
            call = Call(node.name, f"{name}#{iso(wall)}", boottime())
            said = self._said / f"{call.run}.{node.name}"
            with said.open("wb") as out:
                started = subprocess.Popen(
                    [*COMMAND, "--job", name, *self.plan.how, *zone, "--", *program],
                    cwd=self.stage.cluster.path,
                    env={**env, **node.env},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            self._alive.append((started, call, said))

    def reap(self) -> int:
        """Collect the calls that have ended; returns the number of those that go on."""
        alive = []
        for started, call, said in self._alive:
            if started.poll() is None:
                alive.append((started, call, said))
            else:
                lines = tuple(said.read_text(errors="replace").splitlines())
                self.calls.append(call._replace(ended=boottime(), code=started.returncode, said=lines))
        self._alive = alive
        return len(self._alive)


def run(plan: Plan, show: Callable[[str], object]) -> tuple[Verdict, dict[str, Any]]:
    """Play it; returns the verdict, and facts about the trial."""
    with cluster_of(plan.nodes, backend="production") as cluster:
        stage = Stage(cluster, plan.seed, plan.skew_s)
        cluster.start()
        first = (int(time.time() + LEAD_S) // plan.interval_s + 1) * plan.interval_s
        crontabs, expected = Crontabs(plan, stage), _planned(plan, stage, first)
        for wall in range(first, first + plan.rounds * plan.interval_s, plan.interval_s):
            at = stage.at_wall(wall)
            for node in cluster.nodes:
                late_s = stage.chance.uniform(0.0, CRON_LATE_S)
                stage.at(at - stage.skews[node.name] + late_s, lambda node=node, wall=wall: crontabs.fire(node, wall))  # type: ignore[misc]  # mypy cannot infer a default

        def look() -> None:
            crontabs.reap()
            show(f"{len(cluster.starts())} starts, {len(stage.cuts)} kills")

        stage.play(look)
        limit = boottime() + SETTLE_S
        while (left := crontabs.reap()) and boottime() < limit:
            stage.watch()
            time.sleep(0.1)
        until(lambda: all((node.try_call("status") or {}).get("state") == "ready" for node in cluster.nodes))
        states = {row["run"]: row["state"] for row in cluster.rows()}
        verdict = judge(Record(expected, cluster.entries(), stage.cuts, states))
        if left:
            verdict.violations.append(f"{left} calls of coordd exec are not over")
        unexplained, causes = account(crontabs.calls, cluster.entries(), stage.cuts, [*expected])
        verdict.violations.extend(unexplained)
        verdict.counts.update(causes)
        keep(cluster, verdict)
        return verdict, _about(plan, stage) | {"calls": [call._asdict() for call in crontabs.calls]}


def _planned(plan: Plan, stage: Stage, first: int) -> dict[str, float]:
    """Plan the kills; returns the ticks that must run, with their times."""
    expected = {}
    for number in range(plan.rounds):
        wall = first + number * plan.interval_s
        at = stage.at_wall(wall)
        expected.update({f"tick{name}#{iso(wall)}": at for name in range(plan.jobs)})
        most_s = min(KILLED_S[1], plan.interval_s + KILLED_S[0] - 1.0)
        for name in stage.chance.sample(sorted(stage.skews), plan.kills):
            stage.at(at + stage.chance.uniform(KILLED_S[0], most_s), lambda name=name: stage.strike(name))  # type: ignore[misc]  # mypy cannot infer a default
    return expected


def _about(plan: Plan, stage: Stage) -> dict[str, Any]:
    return {
        **plan._asdict(),
        "skews": stage.skews,
        "skewed": stage.skewed,
        "ended_alone": stage.ended_alone,
        "cuts": [cut[:4] for cut in stage.cuts],
    }
