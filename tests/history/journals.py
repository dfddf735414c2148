"""Synthetic journals: a day of a small cluster, and events that no cluster would write."""

from __future__ import annotations

import os
import random
from typing import Any

from coordd.core.jobs.job import run_uuid, scheduled_run
from coordd.core.wire.events import (
    Event,
    Task,
    TaskFailed,
    TaskReceived,
    TaskRejected,
    TaskRetried,
    TaskRevoked,
    TaskSent,
    TaskStarted,
    TaskSucceeded,
    WorkerHeartbeat,
    WorkerOnline,
    flatten,
)
from coordd.core.wire.journal_line import encode_line
from coordd.core.wire.merge import run_key

Record = dict[str, Any]

DAY = 1_790_000_000.0


class Cluster:
    """Nodes with perfect gossip: one Lamport clock for all. ``journals``: the lines of each node."""

    def __init__(self, nodes: int = 3, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.nodes = [f"edge-{number + 1}" for number in range(nodes)]
        self.pids = {node: 1000 + number for number, node in enumerate(self.nodes)}
        self.journals: dict[str, list[Record]] = {node: [] for node in self.nodes}
        self.clock = 0
        self.now = DAY
        self.token = int(DAY * 1e6)
        for node in self.nodes:
            self.say(node, WorkerOnline(freq=2.0, sw_ver="0.1.0", sw_sys="Linux"))

    def say(self, node: str, event: Event) -> Record:
        """Journal one event of one node."""
        self.clock += 1
        event.clock = self.clock
        event.timestamp = self.now
        journal = self.journals[node]
        incarnation = f"1-{node}"
        record = flatten(
            event, hostname=node, pid=self.pids[node], incarnation=incarnation, seq=len(journal), utcoffset=0
        )
        journal.append(record)
        return record

    def run(self, job: str, outcomes: list[str], *, seconds: float = 40.0) -> str:
        """One run, with an outcome for each attempt: success, failure, revoked, retry, or lost (the node dies)."""
        run = scheduled_run(job, self.now)
        task: dict[str, Any] = {"uuid": run_uuid(run), "name": job, "run": run, "fire_at": self.now}
        order = self.rng.sample(self.nodes, len(self.nodes))
        self.say(order[-1], TaskSent(**task, kwargs='{"day":"2026-09-21"}'))
        for attempt, outcome in enumerate(outcomes):
            node = order[attempt % len(order)]
            self.token += 1 + self.rng.randrange(10_000)
            grant: dict[str, Any] = {
                **task,
                "attempt": attempt,
                "token": self.token,
                "nonce": f"{self.rng.getrandbits(64):016x}",
                "node": f"{node}.{self.pids[node]}",
            }
            self.now += 0.05
            self.say(node, TaskReceived(**grant, kwargs='{"day":"2026-09-21"}', retries=attempt))
            self.now += 0.03
            self.say(node, TaskStarted(**grant))
            runtime = seconds * self.rng.uniform(0.6, 1.4)
            self.now += runtime
            if outcome == "lost":
                self.now += 12.0  # the lease
                self.pids[node] += 100  # it comes back as another process
                continue
            end: dict[str, type[Task]] = {
                "success": TaskSucceeded,
                "failure": TaskFailed,
                "revoked": TaskRevoked,
                "retry": TaskRetried,
            }
            code = 0 if outcome == "success" else 1
            reason = "" if outcome == "success" else "exit code 1"
            event = end[outcome](
                **grant, runtime=runtime, exit_code=code, reason=reason, application_id=f"app-{attempt}"
            )
            self.say(node, event)
            self.now += 5.0
        return run

    def reject(self, job: str) -> str:
        """A run that was never launched."""
        run = scheduled_run(job, self.now)
        self.say(self.nodes[0], TaskRejected(uuid=run_uuid(run), name=job, run=run, reason="overlap: it runs already"))
        self.now += 1.0
        return run

    def beat(self) -> None:
        """Every node sends a heartbeat."""
        for node in self.nodes:
            self.now += 0.1
            self.say(node, WorkerHeartbeat(freq=2.0, active=1, loadavg=(0.5, 0.4, 0.3)))

    def records(self) -> list[Record]:
        """All journals, one after the other."""
        return [record for journal in self.journals.values() for record in journal]

    def write(self, directory: str) -> list[str]:
        """Every journal in a directory of its own, as a closed segment and an open one."""
        paths = []
        for node, journal in self.journals.items():
            path = os.path.join(directory, node)
            os.makedirs(path)
            half = len(journal) // 2
            for name, part in (("00000001.jsonl", journal[:half]), ("current.jsonl", journal[half:])):
                with open(os.path.join(path, name), "wb") as file:
                    file.writelines(encode_line(record) for record in part)
            paths.append(path)
        return paths


def busy_day(seed: int = 1, runs: int = 30) -> Cluster:
    """A day with every kind of run and outcome."""
    cluster = Cluster(nodes=3, seed=seed)
    fates = (
        [["success"]] * 12
        + [["lost", "success"]] * 3
        + [["failure", "success"], ["failure"], ["revoked"], ["retry", "success"], ["lost", "failure", "success"]]
        + [["failure", "revoked"], ["failure", "lost"], ["success", "failure"], ["success", "revoked"]]
    )
    jobs = ("nightly-sales", "hourly-clicks", "load-orders", "compact")
    for number in range(runs):
        cluster.run(jobs[number % len(jobs)], cluster.rng.choice(fates), seconds=cluster.rng.uniform(10, 120))
        if number % 9 == 4:
            cluster.reject("hourly-clicks")
        cluster.beat()
    return cluster


TYPES = (
    "task-sent",
    "task-received",
    "task-started",
    "task-succeeded",
    "task-failed",
    "task-rejected",
    "task-revoked",
    "task-retried",
    "task-progress",
)
TEXTS = (
    "name",
    "args",
    "kwargs",
    "nonce",
    "node",
    "application_id",
    "result",
    "exception",
    "traceback",
    "reason",
    "eta",
    "expires",
    "parent_id",
    "root_id",
)


def disorder(seed: int, count: int, uuids: int) -> list[Record]:
    """Events in no sensible order: late ones, equal clocks, equal times, any field on any type, all distinct."""
    rng = random.Random(seed)
    by_key: dict[Any, Record] = {}
    while len(by_key) < count:
        record: Record = {
            "type": rng.choice(TYPES),
            "hostname": f"edge-{rng.randrange(3)}",
            "pid": rng.randrange(2),
            "incarnation": f"{rng.randrange(2)}-aa",
            "seq": rng.randrange(9),
            "utcoffset": 0,
            "clock": rng.randrange(40),
            "timestamp": DAY + rng.randrange(8) / 4,
            "uuid": f"u{rng.randrange(uuids)}",
        }
        if rng.random() < 0.5:
            record["attempt"] = rng.randrange(3)
        if rng.random() < 0.3:
            record["exit_code"] = rng.randrange(3)
        if rng.random() < 0.3:
            record["token"] = rng.randrange(1, 99)
        if rng.random() < 0.3:
            record["retries"] = rng.randrange(3)
        if rng.random() < 0.3:
            record["runtime"] = rng.randrange(99) / 8
        for name in TEXTS:
            if rng.random() < 0.25:
                record[name] = rng.choice(("a", "b", "Grüße ☂", 'q"uo\\te', "line\nbreak\r", ""))
        by_key[record["uuid"], run_key(record)] = record
    return list(by_key.values())
