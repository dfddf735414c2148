"""The time from a trigger to the execution of the program, compared with the start of
Python alone; a runner's memory.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from bench.cluster import SETTLE_S, Cluster, cluster, memory_mb
from bench.figures import Figure, summary

SECTION = "trigger to exec"

JOBS = {"probe": '[command]\nargv = ["/bin/sleep", "0.25"]\n', "long": '[command]\nargv = ["/bin/sleep", "60"]\n'}

# Pause between two measurements; after it all processes are at rest.
PAUSE_S = 0.1

# After this time a runner has renewed its lease, and has loaded every module that it ever loads.
RENEWED_S = 6.0


def measure(*, quick: bool) -> list[Figure]:
    """Measure the latency on one node, with and without its warm parent, and in a cluster of three; and the runner's
    memory."""
    rounds = 10 if quick else 40
    with cluster(1, JOBS) as warm, cluster(1, JOBS, COORDD_NODE_FAST_START="false") as cold:
        figures = _latency({"N = 1": (warm, 0.6), "N = 1, fast_start = false": (cold, 1.5)}, rounds)
        figures += _memory(warm)
    with cluster(3, JOBS) as nodes:
        return figures + _latency({"N = 3": (nodes, 1.5)}, rounds)


def _latency(clusters: dict[str, tuple[Cluster, float]], rounds: int) -> list[Figure]:
    """A figure for each cluster and its target; the clusters and bare starts are measured in turn."""
    time.sleep(SETTLE_S)  # a warm parent is started after READY
    bare: list[float] = []
    fsyncs: list[float] = []
    triggered: dict[str, list[float]] = {name: [] for name in clusters}
    for nodes, _ in clusters.values():
        _trigger(nodes, "warm")
    _bare_start()
    for number in range(rounds):
        bare.append(_bare_start())
        for name, (nodes, _) in clusters.items():
            triggered[name].append(_trigger(nodes, str(number)))
            fsyncs.append(_fsync(nodes.root))
    base, fsync = statistics.median(bare), statistics.median(fsyncs)
    figures = []
    for name, (_, most) in clusters.items():
        reached = statistics.median(triggered[name])
        figures.append(
            Figure(
                SECTION,
                f"{name}: p50 ÷ bare start of python -I -S -E",
                reached / base,
                "x",
                most,
                "<=",
                f"p50 {reached * 1e3:.1f} ms, bare {base * 1e3:.1f} ms, fsync {fsync * 1e3:.1f} ms; {rounds} of each",
                {"milliseconds": {"bare": summary(bare, 1e3), "triggered": summary(triggered[name], 1e3)}},
            )
        )
    return figures


def _fsync(directory: str) -> float:
    """The time of one fsync there: a launch waits for several."""
    path = f"{directory}/fsync"
    with open(path, "wb", buffering=0) as file:
        file.write(bytes(4096))
        began = time.perf_counter()
        os.fsync(file.fileno())
        return time.perf_counter() - began


def _bare_start() -> float:
    """The time from just before the start to the exit."""
    time.sleep(PAUSE_S)
    began = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-E", "-c", "import sqlite3"], {})
    os.waitpid(pid, 0)
    return time.perf_counter() - began


def _trigger(nodes: Cluster, ident: str) -> float:
    """The time from just before the client connects to the instant in the runner's ``started`` fact."""
    node = nodes.nodes[0]
    time.sleep(PAUSE_S)
    began = time.time()
    run = node.call("run.trigger", job="probe", id=ident)["id"]
    time.sleep(PAUSE_S)  # nothing polls while it starts
    _, facts = nodes.started(run)
    nodes.over(run, node)
    return float(facts["started"]["at"]) - began


def _memory(nodes: Cluster) -> list[Figure]:
    run = nodes.nodes[0].call("run.trigger", job="long", id="memory")["id"]
    _, facts = nodes.started(run)
    time.sleep(RENEWED_S)
    figures = []
    for who, pid in (("the runner", facts["adopted"]["pid"]), ("its watcher", facts["adopted"]["watcher"])):
        rss, pss = memory_mb(pid)
        figures.append(Figure(SECTION, f"RSS of {who}", rss, "MB", 16, "<=", f"PSS {pss:.1f} MB"))
    nodes.nodes[0].call("run.cancel", id=run)
    nodes.over(run, nodes.nodes[0])
    return figures
