"""The real part of `make bench ARGS="--only growth"`: what the sweeps of many nodes cost one Redis and one daemon.

The Redis has a million rows of runs that have ended, 5,000 jobs and 5,000 open rows. A few processes sweep and claim as
50 nodes do; one real daemon runs beside them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from bench.claims.clients import Ours, ours_redis
from bench.claims.rows import JOB, JOBS, LEASE_S, MANY, WAITING, a_server, fill_redis, make_templates
from bench.claims.sweeping import CLUSTER, Sweeper
from bench.cluster import TOP, Cluster, cluster, cpu_s, memory_mb, until
from bench.figures import Figure, summary
from coordd.core.context import Settings
from coordd.core.ledger.words import NEWCOMER_S

SECTION = "growth on real servers"
NODES = 50
PROCESSES = 4
RENEW_S = Settings().renew_interval_s
START_LIMIT_S = 120.0

# Claims a second beside the sweeps.
CLAIMS_S = 10.0


def measure(*, quick: bool) -> list[Figure]:
    """One sweep; a daemon that idles; then the sweeps of all nodes beside it."""
    many, passes, watch_s = (20_000, 5, 10.0) if quick else (MANY, 20, 60.0)
    jobs = {f"job-{number}": JOB for number in range(JOBS)} | {"held": JOB}
    with a_server() as server:
        with cluster(1, {"job-0": JOB, "held": JOB}, ledger=server.url) as nodes:
            make_templates(nodes)
        fill_redis(server.url, many)
        pid = int(server.cli("INFO", "server").partition("process_id:")[2].split()[0])
        figures = _sweeps(server.url, pid, passes)
        with cluster(1, jobs, ledger=server.url) as nodes:
            _ready(nodes)
            return [*figures, *_beside(server.url, pid, nodes, watch_s)]


def _ready(nodes: Cluster) -> None:
    until(lambda: nodes.nodes[0].ready(1), "ready", limit_s=START_LIMIT_S, every_s=0.1)


def _sweeps(url: str, redis: int, passes: int) -> list[Figure]:
    """What a sweep costs that reads everything, what its open rows do alone, and one that finds no change."""
    both, rows = (Sweeper(url, host, count) for host, count in (("a", JOBS), ("b", 0)))
    figures = []
    for what, sweep in (
        (f"a whole pass over {JOBS:,} jobs and {WAITING:,} open rows", both.whole),
        (f"its {WAITING:,} rows alone", rows.whole),
        ("a sweep that finds no change", both.changed),
    ):
        server_ms, ours_ms = _costs(redis, sweep, passes)
        figures.append(
            Figure(SECTION, f"{what}: processor of Redis", server_ms, "ms", detail=f"{ours_ms:.2f} ms to read it")
        )
    return figures


def _costs(redis: int, sweep: Callable[[], int], passes: int) -> tuple[float, float]:
    """Milliseconds of processor time a pass, of Redis and of this process."""
    sweep()
    server, ours = cpu_s(redis), time.process_time()
    for _ in range(passes):
        sweep()
    return (cpu_s(redis) - server) / passes * 1e3, (time.process_time() - ours) / passes * 1e3


def _beside(url: str, redis: int, nodes: Cluster, watch_s: float) -> list[Figure]:
    """Claims and the daemon, with the sweeps of all nodes and without."""
    daemon = nodes.nodes[0].pid
    claims, redis_part, daemon_part = [], [], []
    sweeps: list[dict[str, float]] = []
    client = ours_redis(f"{url} {CLUSTER}", "claimer.1", LEASE_S)
    client.join()
    time.sleep(NEWCOMER_S)
    for busy in (False, True):
        processes = _sweepers(url, watch_s) if busy else []
        before = cpu_s(redis), cpu_s(daemon)
        began = time.monotonic()
        claims.append(_claims(client, watch_s, f"busy-{busy}"))
        passed_s = time.monotonic() - began
        redis_part.append((cpu_s(redis) - before[0]) / passed_s * 100)
        daemon_part.append((cpu_s(daemon) - before[1]) / passed_s * 100)
        for process in processes:
            out, _ = process.communicate(timeout=4 * watch_s + 60)
            sweeps.append(json.loads(out))
    done, whole, wanted, refused = (sum(one[word] for one in sweeps) for word in ("done", "whole", "wanted", "refused"))
    late_s = max(one["late_s"] for one in sweeps)
    client.close()
    rss, pss = memory_mb(daemon)
    alone, beside = (statistics.median(taken) for taken in claims)
    return [
        Figure(SECTION, f"sweeps of {NODES} nodes that were done in time", done / wanted * 100, "%", 100, ">=",
               f"{done:.0f} of {wanted:.0f}, {whole:.0f} of them whole, {refused:.0f} cursors refused; "
               f"the slowest process was {late_s:.1f} s late"),
        Figure(SECTION, "processor of Redis beside them", redis_part[1], "%",
               detail=f"{redis_part[0]:.1f} % with one daemon"),
        Figure(SECTION, "a claim beside them, p50", beside, "ms", detail=f"{alone:.2f} ms without",
               samples={"ms": summary(claims[1]), "ms_alone": summary(claims[0])}),
        Figure(SECTION, "the idle daemon", daemon_part[0], "%", detail=f"{daemon_part[1]:.1f} % beside them"),
        Figure(SECTION, "memory of the daemon, RSS", rss, "MB", detail=f"PSS {pss:.0f} MB"),
    ]  # fmt: skip


def _sweepers(url: str, seconds: float) -> list[subprocess.Popen[str]]:
    """Begun together, when each node has read everything once."""
    shares = [NODES // PROCESSES + (number < NODES % PROCESSES) for number in range(PROCESSES)]
    env = {**os.environ, "PYTHONPATH": f"{TOP}:{TOP}/tests"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.claims.sweeping", url, str(share), str(JOBS), str(RENEW_S), str(seconds),
             str(sum(shares[:number]))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )
        for number, share in enumerate(shares)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def _claims(client: Ours, seconds: float, name: str) -> list[float]:
    """Claims of new runs at a steady pace. Returns the milliseconds of each."""
    taken: list[float] = []
    began = time.monotonic()
    while (at := began + len(taken) / CLAIMS_S) < began + seconds:
        time.sleep(max(0.0, at - time.monotonic()))
        asked = time.monotonic()
        assert client.claim(f"{name}-{len(taken)}")
        taken.append((time.monotonic() - asked) * 1e3)
    return taken
