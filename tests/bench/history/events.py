"""Journals of a busy cluster, written as fast as Python can: segments of an hour, four events a run."""

from __future__ import annotations

import heapq
import json
import os
import random
import zlib
from datetime import UTC, datetime
from typing import Any, BinaryIO

from coordd.core.jobs.job import run_uuid

START = 1_790_000_000.0
PER_DAY = 100_000
JOBS = [f"etl-sales-{number:02d}" for number in range(50)]
KWARGS = '{"day":"2026-09-21","region":"eu"}'
DIGEST = "0123456789abcdef"


class Busy:
    """A cluster that goes on from one ``write`` to the next."""

    def __init__(self, nodes: int = 5, seed: int = 1) -> None:
        self.rng = random.Random(seed)
        self.names = [f"edge-{number + 1}.dc1.example" for number in range(nodes)]
        self.now = START
        self.token = int(START * 1e6)
        self.clock = 0
        self.made = 0
        self.runs = 0
        self._ahead: list[tuple[float, int, int, dict[str, Any]]] = []
        self._files: list[BinaryIO | None] = [None] * nodes
        self._hours = [0] * nodes
        self._segments = [0] * nodes
        self._top = ""

    def write(self, top: str, events: int) -> int:
        """Write about ``events`` events, in segments below ``top``. Returns the exact number."""
        self._top = top
        before = self.made
        while self.made - before < events:
            self._run()
            self._flush(self.now)
        self._flush(float("inf"))
        for number, file in enumerate(self._files):
            if file is not None:
                file.close()
                self._files[number] = None
        return self.made - before

    def _run(self) -> None:
        rng = self.rng
        self.now += 86_400 / (PER_DAY / 4) * rng.expovariate(1)
        self.runs += 1
        fire_at = float(round(self.now))
        job = rng.choice(JOBS)
        run = f"{job}@{datetime.fromtimestamp(fire_at, UTC):%Y-%m-%dT%H:%M:%SZ}~{self.runs}"
        node = rng.randrange(len(self.names))
        self.token = max(self.token + 1, int(self.now * 1e6))
        task = {"uuid": run_uuid(run), "name": job, "run": run, "fire_at": fire_at}
        grant = {
            **task,
            "attempt": 0,
            "token": self.token,
            "nonce": f"{rng.getrandbits(64):016x}",
            "node": f"{self.names[node]}.{1000 + node}",
            "digest": DIGEST,
            "policy": "forbid relaunch 5 1 30 fixed",
            "lease": 60.0,
        }
        runtime = rng.uniform(1, 60)
        self._say(self.now, rng.randrange(len(self.names)), "task-sent", {**task, "kwargs": KWARGS, "digest": DIGEST})
        self._say(self.now + 0.05, node, "task-received", {**grant, "kwargs": KWARGS})
        self._say(self.now + 0.09, node, "task-started", grant)
        if rng.random() < 0.97:
            end = {"exit_code": 0, "application_id": f"app-{self.runs}"}
            self._say(self.now + 0.09 + runtime, node, "task-succeeded", {**grant, "runtime": runtime, **end})
        else:
            end = {"exit_code": 1, "reason": "exit code 1: java.lang.IllegalStateException: no such table"}
            self._say(self.now + 0.09 + runtime, node, "task-failed", {**grant, "runtime": runtime, **end})

    def _say(self, at: float, node: int, kind: str, fields: dict[str, Any]) -> None:
        self.clock += 1
        heapq.heappush(self._ahead, (at, self.clock, node, {"type": kind, **fields}))

    def _flush(self, until: float) -> None:
        """Write what happened up to then, in the order of time: the clock of a line is its place in it."""
        while self._ahead and self._ahead[0][0] <= until:
            at, _, node, fields = heapq.heappop(self._ahead)
            self.made += 1
            head = {
                "type": fields.pop("type"),
                "hostname": self.names[node],
                "pid": 1000 + node,
                "incarnation": f"1-{self.names[node]}",
                "seq": self.made,
                "utcoffset": 0,
                "clock": self.made,
                "timestamp": round(at, 6),
            }
            body = json.dumps({**head, **fields}, separators=(",", ":"))[:-1].encode()
            self._file(node, int(at // 3600)).write(b'%b,"crc":"%08x"}\n' % (body, zlib.crc32(body)))

    def _file(self, node: int, hour: int) -> BinaryIO:
        file = self._files[node]
        if file is None or hour != self._hours[node]:
            if file is not None:
                file.close()
            self._segments[node] += 1
            folder = os.path.join(self._top, "prod", self.names[node], "journal")
            os.makedirs(folder, exist_ok=True)
            file = open(os.path.join(folder, f"{self._segments[node]:08d}.jsonl"), "wb")  # noqa: SIM115 - closed above
            self._files[node] = file
            self._hours[node] = hour
        return file
