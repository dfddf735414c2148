"""Weeks of a cluster with a rhythm: jobs that collide, slow down, fail, are missed, are taken over."""

from __future__ import annotations

import math
from typing import Any

from coordd.core.jobs.job import run_uuid, scheduled_run
from coordd.core.wire.events import TaskFailed, TaskReceived, TaskRejected, TaskRetried, TaskStarted, TaskSucceeded
from history.journals import Cluster

HOUR, DAY_S = 3600.0, 86_400.0
MONDAY = 1_789_948_800.0  # 2026-09-21T00:00:00Z

# Job -> at which hours of the day it is due, and how long it usually takes (seconds).
RHYTHM: dict[str, tuple[tuple[float, ...], float]] = {
    "nightly-sales": ((2.0,), 720.0),
    "load-orders": ((2.0,), 190.0),
    "hourly-clicks": (tuple(float(hour) for hour in range(24)), 75.0),
    "compact": ((1.0, 7.0, 13.0, 19.0), 420.0),
    "export": ((6.5,), 60.0),
}


class Weeks(Cluster):
    """``days`` of the jobs of RHYTHM, from Monday on."""

    def __init__(self, days: int = 21, seed: int = 1) -> None:
        super().__init__(nodes=3, seed=seed)
        due = sorted(
            (MONDAY + day * DAY_S + hour * HOUR, job, day)
            for day in range(days)
            for job, (hours, _) in RHYTHM.items()
            for hour in hours
        )
        for at, job, day in due:
            self._occurs(job, at, day)
        self._occurs("compact", due[-1][0] + HOUR, days, fate="running")

    def _occurs(self, job: str, at: float, day: int, fate: str = "") -> None:
        rng = self.rng
        fate = (
            fate
            or rng.choices(
                ("success", "failure", "takeover", "missed", "breaker", "overlap"),
                {
                    "compact": (80, 12, 2, 0, 6, 0),
                    "hourly-clicks": (96, 1, 1, 0, 0, 2),
                    "export": (88, 2, 2, 8, 0, 0),
                }.get(job, (96, 1, 3, 0, 0, 0)),
            )[0]
        )
        run = scheduled_run(job, at)
        task: dict[str, Any] = {"uuid": run_uuid(run), "name": job, "run": run, "fire_at": at}
        if fate in ("missed", "breaker", "overlap"):
            reason = {
                "missed": "no node could launch it within 3600 s of its time (3601 s late)",
                "breaker": "the breaker of compact is open",
                "overlap": "overlap: hourly-clicks@1 is started on edge-1",
            }[fate]
            self.now = at + (3601.0 if fate == "missed" else 0.1)
            self.say(
                rng.choice(self.nodes),
                TaskRejected(**task, reason=reason, result=fate if fate == "missed" else "rejected"),
            )
            return
        usual = RHYTHM[job][1] * (1 + 0.02 * day if job == "nightly-sales" else 1)
        took = usual * math.exp(rng.gauss(0, 0.09)) * (4.5 if rng.random() < 0.01 else 1)
        delay = rng.expovariate(4.0) + (rng.uniform(4, 16) if at % DAY_S == 2 * HOUR else 0)
        order = rng.sample(self.nodes, len(self.nodes))
        self.now = at + delay
        grant = self._grants(task, 0, order[0])
        if fate == "running":
            return
        if fate == "takeover":
            self.now += usual * rng.uniform(0.2, 0.8)
            lost = TaskRetried(**grant, reason=f"its lease lapsed; last held by {grant['node']}")
            self.say(order[1], lost)
            self.now += 0.2
            grant = self._grants(task, 1, order[1])
        self.now += took
        if fate == "failure":
            self.say(order[0], TaskFailed(**grant, runtime=took, exit_code=1, reason="exit code 1"))
            return
        host = order[1] if fate == "takeover" else order[0]
        self.say(host, TaskSucceeded(**grant, runtime=took, exit_code=0))

    def _grants(self, task: dict[str, Any], attempt: int, node: str) -> dict[str, Any]:
        self.token = max(self.token + 1, int(self.now * 1e6))
        nonce = f"{self.rng.getrandbits(64):016x}"
        full = f"{node}.{self.pids[node]}"
        grant = {**task, "attempt": attempt, "token": self.token, "nonce": nonce, "node": full}
        self.say(node, TaskReceived(**grant, retries=attempt))
        self.say(node, TaskStarted(**grant))
        return grant
