"""The same crontab on five nodes: `coordd exec --tick` with clocks that are off and nodes killed. A tick runs once."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from system.lab.cluster import Node, cluster_of
from system.lab.processes import ROOT, boottime, until

from coordd.core.jobs.job import iso
from kills.judge import Record, Verdict, judge
from kills.stage import PROGRAM, Stage, keep

# The programs live this long (seconds).
LIFE_S = (0.5, 4.0)

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
        self.codes: Counter[int] = Counter()
        self._alive: list[subprocess.Popen[bytes]] = []

    def fire(self, node: Node) -> None:
        """The crontab of that machine fires, if it has power."""
        if node.name in self.stage.off:
            return
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COORDD_SOCKET": str(node.socket)}
        path = self.stage.cluster.path
        with (path / f"{node.name}.cron").open("ab") as out:
            for number in range(self.plan.jobs):
                name = f"tick{number}"
                life = [f"{seconds}" for seconds in LIFE_S]
                program = [
                    sys.executable,
                    "-I",
                    "-S",
                    "-E",
                    str(PROGRAM),
                    str(self.stage.cluster.log_path),
                    name,
                    *life,
                ]
                argv = [sys.executable, "-m", "coordd", "exec", "--job", name, *self.plan.how, "--timezone", "UTC"]
                self._alive.append(
                    subprocess.Popen(
                        [*(argv if self.plan.how[0] == "--tick" else argv[:-2]), "--", *program],
                        cwd=path,
                        env={**env, **node.env},
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=out,
                        start_new_session=True,
                    )
                )

    def reap(self) -> int:
        """Collect the calls that have ended; returns the number of those that go on."""
        ended = [one for one in self._alive if one.poll() is not None]
        self.codes.update(one.returncode for one in ended)
        self._alive = [one for one in self._alive if one.returncode is None]
        return len(self._alive)


def run(plan: Plan, show: Callable[[str], object]) -> tuple[Verdict, dict[str, Any]]:
    """Play it; returns the verdict, and facts about the trial."""
    with cluster_of(plan.nodes, backend="production") as cluster:
        stage = Stage(cluster, plan.seed, plan.skew_s)
        cluster.start()
        first = (int(time.time() + LEAD_S) // plan.interval_s + 1) * plan.interval_s
        crontabs, expected = Crontabs(plan, stage), _planned(plan, stage, first)
        for at in sorted(set(expected.values())):
            for node in cluster.nodes:
                late_s = stage.chance.uniform(0.0, CRON_LATE_S)
                stage.at(at - stage.skews[node.name] + late_s, lambda node=node: crontabs.fire(node))  # type: ignore[misc]  # mypy cannot infer a default

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
        keep(cluster, verdict)
        return verdict, _about(plan, stage) | {"exit_codes": {str(code): n for code, n in crontabs.codes.items()}}


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
