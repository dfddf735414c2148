"""From the fire time of a scheduled run to its call of execve: on an idle machine, and next to four CPU hogs."""

from __future__ import annotations

import glob
import math
import statistics
import subprocess
import sys
import time
from datetime import datetime

from bench.cluster import Cluster, cluster, read_facts
from bench.figures import Figure, percentile, summary

SECTION = "scheduled run, exec after its fire time"

# One run at a time. The next run is claimed a second before its fire time, when the last program has ended.
EVERY_S = 2
JOBS = {"tick": f'schedule = "every {EVERY_S}s"\nmisfire = "skip"\n[command]\nargv = ["/bin/sleep", "0.6"]\n'}
HOGS = 4


Late = tuple[list[float], list[float]]


def measure(*, quick: bool) -> list[Figure]:
    """Measure at least 30 fire times in each case."""
    instants = 6 if quick else 31
    with cluster(3, JOBS) as nodes:
        figures = _figures("idle", _late(nodes, instants), 0.5, 2.0)
        hogs = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(HOGS)]
        try:
            figures += _figures(f"{HOGS} CPU hogs", _late(nodes, instants), 1.0, 5.0)
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
    return figures


def _late(nodes: Cluster, instants: int) -> Late:
    """The delays (seconds) of the runs of the next fire times: until execve was called, and until it had succeeded."""
    first = math.ceil(time.time() / EVERY_S + 1) * EVERY_S
    last = first + (instants - 1) * EVERY_S
    late: dict[str, tuple[float, float]] = {}
    at = float(first)
    while at <= last:
        time.sleep(max(0.0, at + 0.3 - time.time()))  # while they run, and far from a fire time
        for directory in glob.glob(f"{nodes.root}/run*/runs/*"):
            facts = read_facts(directory)
            if "adopted" in facts and "started" in facts:
                run = str(facts["adopted"]["run"])
                fire_at = _fire_at(nodes, run)
                if first <= fire_at <= last:
                    late[run] = facts["started"]["called"] - fire_at, facts["started"]["at"] - fire_at
        at += EVERY_S
    expected = instants * len(JOBS)
    if len(late) < expected * 0.9:
        raise RuntimeError(f"{len(late)} runs were seen of {expected}")
    return [called for called, _ in late.values()], [done for _, done in late.values()]


def _fire_at(nodes: Cluster, run: str) -> float:
    return datetime.fromisoformat(nodes.nodes[0].call("run.show", id=run)["fire_time"]).timestamp()


def _figures(where: str, delays: Late, p50_ms: float, p95_ms: float) -> list[Figure]:
    late, done = delays
    samples = {"milliseconds": summary(late, 1e3), "milliseconds_until_execve_has_succeeded": summary(done, 1e3)}
    told = f"{len(late)} fires, latest {max(late) * 1e3:.1f} ms"
    return [
        Figure(SECTION, f"{where}: p50", statistics.median(late) * 1e3, "ms", p50_ms, "<=", told, samples),
        Figure(SECTION, f"{where}: p95", percentile(late, 0.95) * 1e3, "ms", p95_ms, "<="),
        Figure(SECTION, f"{where}: p50, until execve has succeeded", statistics.median(done) * 1e3, "ms"),
        Figure(SECTION, f"{where}: earliest", min(late) * 1e3, "ms", 0, ">=", "never before its fire time"),
    ]
