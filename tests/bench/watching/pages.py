"""The cost of the pages of coordctl web: the first content with much history, and what open pages cost the daemon."""

from __future__ import annotations

import http.client
import os
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

from bench.cluster import Cluster, Row, cluster, copy_rows
from bench.figures import Figure, summary

SECTION = "pages with 1,000 jobs and 100,000 runs"
JOBS, RUNS = 1000, 100_000
OPEN = 20

JOB = 'schedule = "0 2 * * *"\nexpect_within = "2d"\n[command]\nargv = ["/bin/true"]\n'
BUSY_JOB = 'schedule = "every 5s"\noverlap = "allow"\n[command]\nargv = ["/bin/true"]\n'

# Answers are kept for a few seconds: each look here comes when they are no longer fresh.
APART_S = 11.0

PAGES = ("/", "/jobs", "/jobs/job-7", "/runs", "/runs/job-7@copy-1", "/cluster")


def measure(*, quick: bool) -> list[Figure]:
    """One node with much history; one job runs every five seconds, so that pages change."""
    watch_s = 15.0 if quick else 60.0
    jobs = {f"job-{number}": JOB for number in range(JOBS)} | {"busy": BUSY_JOB}
    with cluster(1, jobs) as nodes:
        fill(nodes)
        with web(nodes) as pages:
            first = {path: [pages.get(path) for _ in pages.rounds(2 if quick else 6)] for path in PAGES}
            without = nodes.usage(watch_s)
            with pages.opened([PAGES[number % len(PAGES)] for number in range(OPEN)]):
                used = nodes.usage(watch_s)
    more = used.cpu_percent - without.cpu_percent
    slowest = max(first, key=lambda path: statistics.median(first[path]))
    figures = [
        Figure(SECTION, f"{path}: first content, p50", statistics.median(times), "ms", 300, "<=",
               f"slowest {max(times):.0f} ms; nothing was kept", {"ms": summary(times)})
        for path, times in first.items() if path in ("/", slowest)
    ]  # fmt: skip
    return [
        *figures,
        Figure(SECTION, f"CPU of the daemon for {OPEN} open pages", more, "% of a core", 2, "<=",
               f"{used.cpu_percent:.2f} % with them, {without.cpu_percent:.2f} % without; over {watch_s:g} s"),
    ]  # fmt: skip


def fill(nodes: Cluster) -> None:
    """Copy one run that has ended, until there are RUNS of them: 100 of each job, the newest of today."""
    node = nodes.nodes[0]
    node.call("run.trigger", job="job-0", id="first")
    nodes.reached("job-0#first", "success", node)
    with sqlite3.connect(f"{nodes.root}/ledger.db", timeout=60) as db:
        copy_rows(db, "runs", "job-0#first", _changes)


def _changes(template: Row) -> Iterator[Row]:
    for number in range(RUNS):
        job, copy = number % JOBS, number // JOBS
        changed = {"run": f"job-{job}@copy-{copy}", "job": f"job-{job}", "token": template["token"] - number - 1}
        for name in ("fire_at", "created_at", "received_at", "started_at", "ended_at"):
            changed[name] = template[name] - copy * 86_400.0 / 4 - job
        yield changed


class Pages:
    """A browser's part."""

    def __init__(self, port: int, root: str, cookie: str) -> None:
        self._port = port
        self._root = root
        self._headers = {"Host": f"127.0.0.1:{port}", "Cookie": cookie}

    @staticmethod
    def rounds(count: int) -> Iterator[int]:
        """Wait before each round until nothing is kept."""
        for number in range(count):
            time.sleep(APART_S)
            yield number

    def get(self, path: str) -> float:
        """Milliseconds until the page is there."""
        began = time.perf_counter()
        answer = self._ask(quote(path))
        text = answer.read()
        assert answer.status == 200, f"{path}: {answer.status} {text[-300:]!r}"
        return (time.perf_counter() - began) * 1e3

    @contextmanager
    def opened(self, paths: list[str]) -> Iterator[None]:
        """Keep pages open, and read their changes."""
        streams = [self._ask(f"/live?page={quote(quote(path))}") for path in paths]
        threads = [threading.Thread(target=_read, args=(stream,), daemon=True) for stream in streams]
        for thread in threads:
            thread.start()
        yield
        assert all(thread.is_alive() for thread in threads), "a page was closed"

    def _ask(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("GET", self._root + path, headers=self._headers)
        return connection.getresponse()


def _read(stream: http.client.HTTPResponse) -> None:
    with suppress(OSError, ValueError):
        while stream.readline():
            pass


@contextmanager
def web(nodes: Cluster) -> Iterator[Pages]:
    """coordctl web on the first node."""
    command = "from coordd.cli.coordctl import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "--socket", nodes.nodes[0].socket, "web"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
        text=True,
    )
    assert process.stdout is not None
    try:
        port, root, token = process.stdout.readline().strip().removeprefix("http://127.0.0.1:").split("/")
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
        connection.request("GET", f"/{root}/{token}", headers={"Host": f"127.0.0.1:{port}"})
        yield Pages(int(port), f"/{root}", str(connection.getresponse().getheader("Set-Cookie")).partition(";")[0])
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()
