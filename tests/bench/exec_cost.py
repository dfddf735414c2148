"""The overhead of `coordd exec` for a command that does nothing, compared with flock and
with the start of Python alone.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from bench.cluster import Cluster, cluster
from bench.figures import Figure, summary

SECTION = "exec"

# Pause between two measurements; after it all processes are at rest.
PAUSE_S = 0.05


def measure(*, quick: bool) -> list[Figure]:
    """Measure a free lock, and an id that has already run, on one node with SQLite."""
    rounds = 10 if quick else 40
    with cluster(1, {}) as nodes:
        return _figures(nodes, rounds)


def _figures(nodes: Cluster, rounds: int) -> list[Figure]:
    (node,) = nodes.nodes
    program = [sys.executable, "-m", "coordd", "exec", "--socket", str(node.socket), "--job"]
    ways = {
        "python": [sys.executable, "-c", "pass"],
        "flock": ["flock", f"{node.socket}.lock", "true"],
        "lock": [*program, "lock", "--", "true"],
        "repeated": [*program, "id", "--id", "1", "--", "true"],
    }
    _took(ways["repeated"])
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, command in ways.items():
            took[way].append(_took(command))
    middle = {way: statistics.median(times) for way, times in took.items()}
    named = {way: summary(times, 1e3) for way, times in took.items()}
    text = ", ".join(f"{way} {seconds * 1e3:.1f} ms" for way, seconds in middle.items()) + f"; {rounds} of each in turn"
    return [
        Figure(SECTION, f"{what}: p50 ÷ bare start of python", middle[way] / middle["python"], "x", most, "<=", text,
               {"milliseconds": named})
        for way, what, most in (("lock", "a lock, granted and reported", 4.0), ("repeated", "an id that has run", 2.5))
    ]  # fmt: skip


def _took(command: list[str]) -> float:
    """The time from just before the start to the exit."""
    time.sleep(PAUSE_S)
    began = time.perf_counter()
    subprocess.run(command, check=False, env={**os.environ, "COORDD_SOCKET": ""}, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
