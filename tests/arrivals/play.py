"""One round: the bursts, the kills, and the verdict over the ledger's rows and over what the programs wrote."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from system.lab.cluster import CallError, Cluster, Node, cluster_of

JOB = "load"

# A killed node is started again after a time between these (seconds), and at most this many are down.
DOWN_S = (2.0, 8.0)
DOWN_MAX = 2

# Seconds: between two bursts, at most; between the parts of a file that is written in two; between two looks.
BURST_EVERY_S = 2.0
PART_S = 0.3
SETTLE_S = 1.0
LOOK_S = 0.2
ROWS_EVERY_S = 2.0

# How long (seconds) nothing may happen before the round is given up.
STANDSTILL_S = 300.0

# When nothing has moved for this time (seconds), no node is killed until something does: a node must live long enough
# to start, and to watch the lease of a killed one to its end before it takes a run over.
REST_AFTER_S = 2 * ROWS_EVERY_S


class Plan(NamedTuple):
    """``kill_every_s``: pause between two kills."""

    seed: int
    files: int = 10_000
    nodes: int = 5
    kill_every_s: float = 10.0
    backend: str = "embedded"


class Verdict(NamedTuple):
    """The counts of a round, and what should not have happened."""

    counts: dict[str, float]
    violations: list[str]


class Bursts:
    """Files that appear: some at once, some are written in two parts."""

    def __init__(self, rng: random.Random, directory: Path, files: int) -> None:
        self._rng = rng
        self._directory = directory
        self._files = files
        self._parts: list[tuple[float, Path]] = []
        self._began: dict[Path, float] = {}
        self.late: set[str] = set()  # files whose second part came so late that each part may be an arrival
        self._next_at = 0.0
        self.made = 0

    def turn(self, now: float) -> None:
        """Write what is due."""
        for at, path in [part for part in self._parts if part[0] <= now]:
            self._parts.remove((at, path))
            with path.open("a") as file:
                file.write("second part\n")
            if time.monotonic() - self._began.pop(path) >= SETTLE_S:
                self.late.add(path.name)
        if now < self._next_at or self.made >= self._files:
            return
        self._next_at = now + self._rng.uniform(0.0, BURST_EVERY_S)
        for _ in range(min(self._rng.randint(1, max(10, self._files // 20)), self._files - self.made)):
            path = self._directory / f"{self.made}.csv"
            self._began[path] = time.monotonic()
            path.write_text("first part\n")
            self.made += 1
            if self._rng.random() < 0.1:
                self._parts.append((now + PART_S, path))
            else:
                del self._began[path]

    @property
    def over(self) -> bool:
        return self.made == self._files and not self._parts


class Kills:
    """The nodes that are down."""

    def __init__(self, rng: random.Random, cluster: Cluster, every_s: float) -> None:
        self._rng = rng
        self._cluster = cluster
        self._every_s = every_s
        self._next_at = 0.0
        self._down: list[tuple[float, Node]] = []
        self.count = 0

    def turn(self, now: float, *, rest: bool) -> None:
        """Start the nodes whose time has come; kill the one that polls, when it is time. ``rest``: kill none."""
        for at, node in [one for one in self._down if one[0] <= now]:
            self._down.remove((at, node))
            node.launch()
        self._next_at = self._next_at or now + self._every_s
        if rest or now < self._next_at or len(self._down) >= DOWN_MAX:
            return
        poller = _poller(self._cluster)
        if poller is not None and poller.up:
            poller.kill()
            self.count += 1
            self._down.append((now + self._rng.uniform(*DOWN_S), poller))
            self._next_at = now + self._every_s

    def end(self) -> None:
        """All nodes are up again."""
        for _, node in self._down:
            node.launch()
        self._down = []
        for node in self._cluster.nodes:
            node.ready()


def _poller(cluster: Cluster) -> Node | None:
    """The node that polls now, as any node says that answers."""
    for node in cluster.nodes:
        if node.up:
            try:
                said = (node.try_call("trigger.list", job=JOB) or [{}])[0].get("poller")
            except CallError:
                continue
            if said:
                return cluster.node(said)
    return None


def play(plan: Plan, say: Callable[[str], None] = lambda _text: None) -> Verdict:
    """Play a round, and judge it."""
    rng = random.Random(plan.seed)
    with cluster_of(plan.nodes, backend=plan.backend, budget=20) as cluster:
        inbox = cluster.path / "inbox"
        inbox.mkdir()
        cluster.job(JOB, "sleep", 0, overlap="allow", params={"what": ""}, start_within="12h")
        with (cluster.jobs_dir / f"{JOB}.toml").open("a") as file:
            file.write(
                f'[[trigger]]\nkind = "file"\npath = "{inbox}/*.csv"\nevery = "1s"\nmax_open = 100\n'
                f'settle = "{SETTLE_S:g}s"\n'
                'args = { what = "{trigger.name}" }\n'
            )
        cluster.start()
        began = time.monotonic()
        bursts, kills = Bursts(rng, inbox, plan.files), Kills(rng, cluster, plan.kill_every_s)
        done, looked_at, moved_at = 0, began, began
        while not (bursts.over and done >= plan.files):
            now = time.monotonic()
            bursts.turn(now)
            kills.turn(now, rest=now - moved_at > REST_AFTER_S)
            if now - looked_at >= ROWS_EVERY_S:
                before, done = done, _succeeded(cluster)
                looked_at = time.monotonic()
                moved_at = looked_at if done != before or not bursts.over else moved_at
                say(f"{bursts.made} files, {done} runs succeeded, {kills.count} nodes killed")
            if now - moved_at > STANDSTILL_S:
                break
            time.sleep(LOOK_S)
        lasted = time.monotonic() - began
        kills.end()
        rows = [row for row in cluster.rows() if row["job"] == JOB]
        entries = cluster.entries()
        started = [(entry.run, entry.attempt) for entry in entries if entry.word == "start"]
        again = {run for run, count in Counter(run for run, _ in started).items() if count > 1}
        lost = {(run, one["attempt"]) for run in again for one in cluster.attempts(run) if one["state"] == "lost"}
        overlaps = [f"{entry.run}: two programs at a time" for entry in entries if entry.word == "overlap"]
        counts = {"files": bursts.made, "kills": kills.count, "seconds": round(lasted, 1)}
        counts["files whose parts were far apart"] = len(bursts.late)
        verdict = judge([f"{number}.csv" for number in range(bursts.made)], rows, started, lost, counts, bursts.late)
        return verdict._replace(violations=verdict.violations + overlaps)


def _succeeded(cluster: Cluster) -> int:
    return sum(row["job"] == JOB and row["state"] == "success" for row in cluster.rows())


def judge(
    files: Collection[str],
    rows: Iterable[Mapping[str, Any]],
    started: Iterable[tuple[str, int]],
    lost: Container[tuple[str, int]],
    counts: Mapping[str, float],
    late: Container[str] = (),
) -> Verdict:
    """Each file is one row, which succeeded, and whose program was executed once, not counting the attempts that the
    ledger calls lost. ``started``: run and attempt of each execution. ``lost``: run and attempt. ``late``: files that
    may be two arrivals, because a busy machine wrote their second part when the first one had settled.
    """
    rows, started = list(rows), list(started)
    starts = Counter(run for run, attempt in started if (run, attempt) not in lost)
    each = Counter(started)
    runs = Counter(json.loads(row["args"])["what"] for row in rows)
    may_be = {name: (1, 2) if name in late else (1,) for name in files}
    violations = [f"{name}: {runs[name]} runs" for name in files if runs[name] not in may_be[name]]
    violations += [f"{name}: a run without a file" for name in sorted(runs.keys() - set(files))]
    violations += [f"{row['run']}: {row['state']} ({row['reason']})" for row in rows if row["state"] != "success"]
    violations += [f"{row['run']}: executed {starts.get(row['run'], 0)} times" for row in rows
                   if row["state"] == "success" and starts[row["run"]] != 1]  # fmt: skip
    violations += [f"{run}: attempt {attempt} was executed {count} times"
                   for (run, attempt), count in each.items() if count > 1]  # fmt: skip
    counted = {**counts, "runs": len(rows), "executions": len(started)}
    return Verdict({**counted, "of them in lost attempts": len(started) - sum(starts.values())}, violations)
