"""The cost of an idle node in a cluster of three, and the time until a new node is ready."""

from __future__ import annotations

import os
import select
import socket
import statistics

from bench.cluster import LIMIT_S, Cluster, Node, boottime, cluster
from bench.figures import Figure, summary

SECTION = "idle node in a cluster of three"


def measure(*, quick: bool) -> list[Figure]:
    """Measure start-up time, memory, and CPU over a minute (ten seconds when quick)."""
    with cluster(3, {}) as nodes:
        starts = [_ready_after(nodes, nodes.nodes[-1], number) for number in range(3 if quick else 9)]
        watch_s = 10.0 if quick else 60.0
        used = nodes.usage(watch_s)
    return [
        Figure(SECTION, "RSS", used.rss_mb, "MB", 45, "<=", f"the largest of three; PSS {used.pss_mb:.1f} MB"),
        Figure(SECTION, "CPU", used.cpu_percent, "% of a core", 0.2, "<=", f"the busiest of three, over {watch_s:g} s"),
        Figure(
            SECTION,
            "READY=1 after exec, two peers up: p50",
            statistics.median(starts),
            "s",
            1.0,
            "<=",
            f"{len(starts)} starts, slowest {max(starts):.2f} s",
            {"seconds": summary(starts)},
        ),
    ]


def _ready_after(nodes: Cluster, node: Node, number: int) -> float:
    """Stop a node and start it again. Returns the time until its READY=1, as systemd measures it."""
    node.stop()
    path = os.path.join(nodes.root, f"notify-{number}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(path)
        began = node.start(NOTIFY_SOCKET=path)
        limit = began + LIMIT_S
        while boottime() < limit:
            if select.select([sock], [], [], limit - boottime())[0]:
                lines = sock.recv(65536).decode().split("\n")
                if "READY=1" in lines:
                    return boottime() - began
    raise TimeoutError(f"{node.name} was not ready within {LIMIT_S:g} s")
