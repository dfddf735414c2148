"""The cost of metrics: a scrape of 1,000 jobs, and what a node that is scraped costs more than one that is not."""

from __future__ import annotations

import socket
import statistics
import time
import urllib.request

from bench.cluster import Cluster, Node, cluster, cpu_s
from bench.figures import Figure, summary

SECTION = "metrics of 1,000 jobs"
JOBS = 1000

# A scrape within a second of the last one gets the same text.
APART_S = 1.1

# How often Prometheus reads, by default in many places.
EVERY_S = 15.0

JOB = 'schedule = "0 2 * * *"\nexpect_within = "2d"\n[command]\nargv = ["/bin/true"]\n'
# Each of these runs every five seconds: their lines change between scrapes.
BUSY = 20
BUSY_JOB = 'schedule = "every 5s"\noverlap = "allow"\n[command]\nargv = ["/bin/true"]\n'


def measure(*, quick: bool) -> list[Figure]:
    """Scrape one node. The usage without a listener is measured with the same jobs."""
    watch_s = 15.0 if quick else 60.0
    quiet = {f"job-{number}": JOB for number in range(JOBS)}
    with cluster(1, quiet) as nodes:
        without = nodes.usage(watch_s)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    with cluster(1, quiet, COORDD_METRICS_LISTEN=address) as nodes:
        first_s, size = scrape(address)
        used = nodes.usage(watch_s)
        times, cost_s = scrapes(nodes.nodes[0], address, 10 if quick else 40)
    with cluster(1, quiet | {f"busy-{n}": BUSY_JOB for n in range(BUSY)}, COORDD_METRICS_LISTEN=address) as nodes:
        scrape(address)
        busy = changing(nodes, address, 5 if quick else 20)
    more = used.rss_mb - without.rss_mb
    at_15_s = cost_s / EVERY_S * 100
    return [
        Figure(SECTION, "a scrape: p50", statistics.median(times), "ms", 50, "<=", f"{size / 1e6:.1f} MB of text; "
               f"slowest {max(times):.0f} ms, the first {first_s * 1e3:.0f} ms", {"ms": summary(times)}),
        Figure(SECTION, f"a scrape while {BUSY} jobs run every 5 s: p50", statistics.median(busy), "ms", 50, "<=",
               f"slowest {max(busy):.0f} ms", {"ms": summary(busy)}),
        Figure(SECTION, "CPU of a scrape every 15 s", at_15_s, "% of a core", 1, "<=",
               f"at most {cost_s * 1e3:.1f} ms each"),
        Figure(SECTION, "CPU of an idle node with the listener", used.cpu_percent, "% of a core",
               1.1 * without.cpu_percent, "<=", f"without {without.cpu_percent:.2f} %; over {watch_s:g} s"),
        Figure(SECTION, "RSS of an idle node with the listener", used.rss_mb, "MB", 1.1 * without.rss_mb, "<=",
               f"without {without.rss_mb:.1f} MB: {more:.1f} MB more, most of it the text"),
    ]  # fmt: skip


def scrape(address: str) -> tuple[float, int]:
    """Seconds, and bytes."""
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        size = len(answer.read())
    return time.perf_counter() - began, size


def scrapes(node: Node, address: str, count: int) -> tuple[list[float], float]:
    """Milliseconds of each, and the CPU seconds of the daemon for each, with what it uses anyway meanwhile."""
    before = cpu_s(node.pid)
    times = []
    for _ in range(count):
        time.sleep(APART_S)
        times.append(scrape(address)[0] * 1e3)
    return times, (cpu_s(node.pid) - before) / count


def changing(nodes: Cluster, address: str, count: int) -> list[float]:
    """Milliseconds of scrapes every five seconds, while jobs run."""
    times = []
    for _ in range(count):
        time.sleep(5.0)
        times.append(scrape(address)[0] * 1e3)
    assert nodes.nodes[0].call("status")["runs"]["processed"] > 0
    return times
