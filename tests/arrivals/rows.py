"""Many arrivals as rows of the ledger: entries of a Redis stream, nodes that poll and are killed, and no launch.

No node has room for a run, so each of them is missed a moment after its row is there. The path from the source to the
ledger is the real one, and no program runs. The sums are taken from the ledger's file, and from the
stream.
"""

from __future__ import annotations

import contextlib
import math
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.cluster import memory_mb
from redis import Redis
from support import servers
from system.lab.cluster import Cluster, cluster_of

from arrivals.play import JOB, REST_AFTER_S, STANDSTILL_S, Kills, Verdict

# The job whose runs take the room of all nodes.
HOLDER = "holder"

STREAM = "orders"
GROUP = f"coordd:default:{JOB}:redis"

# The number of entries that wait in the stream at most, and of those that are added together.
AHEAD_MAX = 5_000
AT_ONCE = 1_000

# Seconds between two looks at the sums, and between two turns of the kills.
LOOK_S = 3.0
TURN_S = 0.2

# The arrivals that may be open at a time, and how long (seconds) each of them waits for room.
OPEN_MAX = 1000
WITHIN_S = 1

# How much more memory (MB) a daemon may have at its end than when a tenth of the arrivals was there.
GROWTH_MAX_MB = 80.0


class Plan(NamedTuple):
    """``kill_every_s``: pause between two kills. ``last_s``: after this time no arrival is added, whatever ``rows``."""

    seed: int
    rows: int = 1_000_000
    nodes: int = 3
    kill_every_s: float = 20.0
    last_s: float = math.inf


class Sums(NamedTuple):
    """The job's rows by state; the different numbers in their arguments, and their sum."""

    states: dict[str, int]
    distinct: int
    numbers: int

    @property
    def rows(self) -> int:
        return sum(self.states.values())


def sums_of(ledger: Path) -> Sums:
    """Read from the ledger's file, past all daemons."""
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=60.0)) as db:
        states = dict(db.execute("SELECT state, count(*) FROM runs WHERE job = ? GROUP BY state", (JOB,)))
        told = "SELECT count(DISTINCT what), total(what) FROM (SELECT {} what FROM runs WHERE job = ?)"
        number = "CAST(json_extract(args, '$.what') AS INTEGER)"
        distinct, numbers = db.execute(told.format(number), (JOB,)).fetchone()
    return Sums(states, distinct, int(numbers))


class Sender:
    """Adds numbered entries to the stream, not far ahead of the rows."""

    def __init__(self, url: str, rows: int) -> None:
        self.redis = Redis.from_url(url)
        self.rows = rows
        self.sent = 0

    def turn(self, rows: int) -> None:
        """``rows``: how many the ledger has."""
        while self.sent < self.rows and self.sent - rows < AHEAD_MAX:
            with self.redis.pipeline(transaction=False) as pipe:
                for number in range(self.sent, min(self.sent + AT_ONCE, self.rows)):
                    pipe.xadd(STREAM, {"what": str(number)})
                self.sent += len(pipe.execute())

    def left(self) -> dict[str, int]:
        """The entries: all, without an acknowledgement, not read, and put aside."""
        groups: Any = self.redis.xinfo_groups(STREAM)
        said = groups[0] if groups else {"pending": 0, "lag": self.sent}
        return {
            "entries": int(self.redis.xlen(STREAM)),
            "pending": said["pending"],
            "lag": said["lag"] or 0,
            "dead": int(self.redis.xlen(f"{STREAM}:dead")),
        }


class Memory:
    """The memory of the daemons (MB): what each had at most before and after a tenth of the arrivals was there."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.first = 0.0
        self.most = 0.0

    def turn(self, part: float) -> None:
        """``part``: of the arrivals that have a row."""
        for node in self._cluster.nodes:
            if node.up and node.process is not None:
                with contextlib.suppress(OSError, ValueError):
                    self.most = max(self.most, memory_mb(node.process.pid)[0])
        if part < 0.1 or not self.first:
            self.first = self.most


def play(plan: Plan, say: Callable[[str], None] = lambda _text: None) -> Verdict:
    """Play a round, and judge it."""
    with servers.redis(appendonly="no") as server, cluster_of(plan.nodes, budget=1) as cluster:
        _jobs(cluster, server.url)
        cluster.start()
        for number in range(plan.nodes):
            cluster.nodes[0].call("run.trigger", job=HOLDER, id=str(number))
        cluster.launched(plan.nodes)
        sender, memory = Sender(server.url, plan.rows), Memory(cluster)
        kills = Kills(random.Random(plan.seed), cluster, plan.kill_every_s)
        began = looked_at = moved_at = time.monotonic()
        rows, sender_rows = 0, 0
        ledger = cluster.ledger_path
        while rows < sender.rows and time.monotonic() - moved_at < STANDSTILL_S:
            sender.turn(sender_rows)
            if time.monotonic() - began > plan.last_s:
                sender.rows = sender.sent
            kills.turn(time.monotonic(), rest=time.monotonic() - moved_at > REST_AFTER_S)
            if time.monotonic() - looked_at >= LOOK_S:
                before, rows = rows, _count(ledger)
                looked_at = time.monotonic()
                sender_rows, moved_at = rows, looked_at if rows > before else moved_at
                memory.turn(rows / sender.rows)
                say(f"{sender.sent} entries, {rows} rows, {kills.count} nodes killed, {memory.most:.0f} MB")
            time.sleep(TURN_S)
        lasted = time.monotonic() - began
        kills.end()
        sums, left = _settled(ledger, sender)
        counts = {
            "arrivals": sender.sent, "rows": sums.rows, "kills": kills.count, "seconds": round(lasted, 1),
            "rows a second": round(sums.rows / lasted, 1), "memory at a tenth (MB)": round(memory.first, 1),
            "memory at most (MB)": round(memory.most, 1), **left, **sums.states,
        }  # fmt: skip
        violations = judge(sender.rows, sums, left, [entry.run for entry in cluster.entries() if entry.word == "start"])
        if memory.most > memory.first + GROWTH_MAX_MB:
            violations.append(f"a daemon had {memory.most:.0f} MB, and {memory.first:.0f} MB after a tenth")
        return Verdict(counts, violations)


def judge(arrivals: int, sums: Sums, left: dict[str, int], started: list[str]) -> list[str]:
    """Each of the numbers from 0 on is one row that is over, no program of them ran, and the stream is empty for us."""
    violations = []
    if (sums.rows, sums.distinct) != (arrivals, arrivals):
        violations.append(f"{arrivals} arrivals are {sums.rows} rows of {sums.distinct} of them")
    if sums.numbers != arrivals * (arrivals - 1) // 2:
        violations.append(f"the numbers in the rows are {sums.numbers} in all, not {arrivals * (arrivals - 1) // 2}")
    violations += [f"{count} rows are {state}" for state, count in sums.states.items() if state != "missed"]
    expected = {"entries": arrivals, "pending": 0, "lag": 0, "dead": 0}
    violations += [f"{left[word]} entries: {word}" for word, count in expected.items() if left[word] != count]
    return violations + [f"{run} was launched" for run in started if not run.startswith(HOLDER)]


def _count(ledger: Path) -> int:
    with contextlib.closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True, timeout=60.0)) as db:
        return int(db.execute("SELECT count(*) FROM runs WHERE job = ?", (JOB,)).fetchone()[0])


def _settled(ledger: Path, sender: Sender) -> tuple[Sums, dict[str, int]]:
    """Wait until the last rows are over and the last entries are acknowledged; or until nothing happens any more."""
    until = time.monotonic() + STANDSTILL_S
    while True:
        sums, left = sums_of(ledger), sender.left()
        over = set(sums.states) <= {"missed"} and not left["pending"]
        if over or time.monotonic() > until:
            return sums, left
        time.sleep(LOOK_S)


def _jobs(cluster: Cluster, url: str) -> None:
    """The job of the trigger, and the one that takes all room."""
    for node in cluster.nodes:
        node.settings = "\n[history]\nkeep_runs = 10000000\n"
    cluster.job(HOLDER, "sleep", 100_000, overlap="allow")
    cluster.job(JOB, "sleep", 0, overlap="allow", params={"what": ""}, start_within=f"{WITHIN_S}s")
    with (cluster.jobs_dir / f"{JOB}.toml").open("a") as file:
        file.write(
            f'[[trigger]]\nkind = "redis"\nurl = "{url}"\nstream = "{STREAM}"\nkey = "body.what"\n'
            f'max_open = {OPEN_MAX}\nargs = {{ what = "{{trigger.body.what}}" }}\n'
        )
