"""What coordd needs: bytes of Redis, journal and logs for each run, memory of daemon, Redis and RabbitMQ.

docs/sizing.md multiplies these figures. None of them depends on the machine's speed.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from support import servers
from support.ledger_calls import FakeClock, Nodes

from bench.cluster import Cluster, cluster, memory_mb, until
from bench.figures import Figure
from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.ports import Ledger

T = TypeVar("T")

SECTION = "sizes"
JOBS = 1000
NODES = 3

QUIET = 'schedule = "0 2 * * *"\nexpect_within = "2d"\n[command]\nargv = ["/bin/true"]\n'
SHORT = 'overlap = "allow"\n[command]\nargv = ["/bin/echo", "a line of output"]\n'
LIMIT_S = 300.0
LIST_MAX = 1000


def measure(*, quick: bool) -> list[Figure]:
    """Two clusters of three nodes on RabbitMQ and Redis, and a ledger that is filled with runs."""
    figures = _ledger(2_000 if quick else 20_000)
    with servers.rabbit() as broker, servers.redis() as store:
        connections = {"bus": broker.url, "ledger": store.url}
        broker_mb = _broker_mb(broker)
        with cluster(NODES, {}, "unsigned = true", **connections) as nodes:
            empty = nodes.usage(5.0)
        with cluster(NODES, _jobs(), 'name = "full"\nunsigned = true', **connections) as nodes:
            full = nodes.usage(5.0)
            figures += [
                Figure(SECTION, f"a daemon without jobs, {NODES} nodes: RSS", empty.rss_mb, "MB"),
                Figure(SECTION, f"a daemon with {JOBS} jobs: RSS", full.rss_mb, "MB"),
                Figure(SECTION, f"RabbitMQ for {NODES} nodes: memory more than without", _broker_mb(broker) - broker_mb,
                       "MB", detail=f"{broker_mb:.0f} MB without any node"),
                *_runs(nodes, store, 60 if quick else 300),
            ]  # fmt: skip
    return figures


def _jobs() -> dict[str, str]:
    return {"short": SHORT, **{f"job-{number}": QUIET for number in range(JOBS)}}


def _ledger(count: int) -> list[Figure]:
    """Runs that were claimed, started and ended, in a Redis and in a file of SQLite."""
    told = f"{count} ended runs with one attempt each"
    with servers.redis(auto_aof_rewrite_percentage="0") as store:
        ledger = RedisLedger(store.url, 10.0, cluster="sizes", fresh=True, quarantine_s=0.0, short_quarantine_s=0.0)
        with contextlib.closing(ledger):
            before, after = _grown(ledger, count, lambda: _used(store))
    figures = [
        Figure(SECTION, "Redis, memory of a run", (after[0] - before[0]) / count, "bytes", detail=told),
        Figure(SECTION, "Redis, append-only file of a run until its rewrite", (after[1] - before[1]) / count, "bytes"),
    ]
    with tempfile.TemporaryDirectory(prefix="cdb-", dir="/tmp") as place:
        sqlite = SqliteLedger(f"sqlite:///{place}/ledger.db", timeout_s=10.0)
        files = Path(place)
        with contextlib.closing(sqlite):
            first, last = _grown(sqlite, count // 4, lambda: os.path.getsize(files / "ledger.db"))
    return [*figures, Figure(SECTION, "SQLite, file of a run", (last - first) / (count // 4), "bytes")]


def _grown(ledger: Ledger, count: int, used: Callable[[], T]) -> tuple[T, T]:
    """``used`` before and after that number of runs. A few runs come first, so writes that happen once do not count."""
    clock = FakeClock()
    nodes = Nodes(ledger, clock)
    nodes.opened(*[f"nightly-{number}" for number in range(50)])  # their fire times count from here on
    _end_runs(nodes, clock, 0, 200)
    before = used()
    _end_runs(nodes, clock, 200, count)
    return before, used()


def _end_runs(nodes: Nodes, clock: FakeClock, first: int, count: int) -> None:
    for number in range(first, first + count):
        clock.wall = time.time()
        of = nodes.of(f"nightly-{number % 50}@2026-11-{1 + number % 28:02}T{number // 1000 % 24:02}:00:00.{number}Z")
        nodes.report(nodes.started(of, node=f"edge-{number % NODES}.example.com.1234"))


def _used(store: servers.Redis) -> tuple[int, int]:
    """Bytes of data in memory, and of the append-only file."""
    said = store.cli("INFO")
    data = re.search(r"used_memory_dataset:(\d+)", said)
    overhead = re.search(r"used_memory_overhead:(\d+)", said)
    startup = re.search(r"used_memory_startup:(\d+)", said)
    written = re.search(r"aof_current_size:(\d+)", said)
    assert data
    assert overhead
    assert startup
    assert written
    return int(data[1]) + int(overhead[1]) - int(startup[1]), int(written[1])


def _runs(nodes: Cluster, store: servers.Redis, count: int) -> list[Figure]:
    """Runs of real programs: what each leaves in the journals, in the logs and in Redis."""
    _triggered(nodes, "warm", 10)
    before, (data, _) = _disk(nodes), _used(store)
    _triggered(nodes, "r", count)
    after, (grown, _) = _disk(nodes), _used(store)
    journal, files = [(now - was) / count for now, was in zip(after, before, strict=True)]
    told = f"{count} triggered runs of a program with one line of output"
    return [
        Figure(SECTION, f"journals of a run, all {NODES} nodes together", journal, "bytes", detail=told),
        Figure(SECTION, "files of a run in the logs", files, "", detail="4 KiB of disk each on most file systems"),
        Figure(SECTION, "Redis, memory of a run of a real program", (grown - data) / count, "bytes", detail=told),
        Figure(SECTION, "a daemon after these runs: RSS", max(memory_mb(node.pid)[0] for node in nodes.nodes), "MB"),
    ]


def _triggered(nodes: Cluster, name: str, count: int) -> None:
    """Trigger runs on all nodes in turn, and wait for their ends."""
    runs = [
        nodes.nodes[number % NODES].call("run.trigger", job="short", id=f"{name}-{number}")["id"]
        for number in range(count)
    ]

    def over() -> bool | None:
        found = {row["id"]: row["state"] for row in nodes.nodes[0].call("run.list", job="short", limit=LIST_MAX)}
        return True if all(found.get(run) == "success" for run in runs) else None

    until(over, "all runs are over", limit_s=LIMIT_S, every_s=2.0)


def _disk(nodes: Cluster) -> tuple[int, int]:
    """Bytes of the journals, and the number of files of logs, of all nodes."""
    states = [Path(nodes.root, f"state{index}") for index in range(NODES)]
    journals = [path for state in states for path in state.glob("journal/*") if path.is_file()]
    return sum(map(os.path.getsize, journals)), sum(
        path.is_file() for state in states for path in state.rglob("logs/**/*")
    )


def _broker_mb(broker: servers.Rabbit) -> float:
    """What the broker's processes and queues use, without the runtime's reserves."""
    return int(broker.ctl("eval", "erlang:garbage_collect(), erlang:memory(total).")) / 1e6
