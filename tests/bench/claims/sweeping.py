"""A process that sweeps as several nodes do, each with a connection of its own, through the real adapter: it reads
everything at first and once a minute (core.runs.sweep), and otherwise what has changed.

python -m bench.claims.sweeping URL NODES JOBS EVERY_S SECONDS FIRST     prints one JSON line at its end
"""

from __future__ import annotations

import json
import sys
import time

from bench.claims.clients import PATIENCE_S
from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.core.ledger.requests import ListOpen, Page
from coordd.core.ledger.rows import Cursor
from coordd.core.runs.sweep import WHOLE_EVERY

CLUSTER = "default"


class Sweeper:
    """One node's sweeps, without what a node does with the rows."""

    def __init__(self, url: str, host: str, jobs: int) -> None:
        self.ledger = RedisLedger(
            url, PATIENCE_S, cluster=CLUSTER, fresh=True, quarantine_s=70.0, short_quarantine_s=0.1
        )
        self._host = host
        self._jobs = tuple(f"job-{number}" for number in range(jobs))
        self._cursor = ""
        self.refused = 0  # cursors

    def whole(self) -> int:
        """All pages. Returns how many rows came."""
        answer = self.ledger.ask(ListOpen(jobs=self._jobs, host=self._host))
        self._cursor = answer.cursor
        rows, after = len(answer.runs), answer.after
        while after is not None:
            rows, after = self._page(rows, after)
        return rows

    def changed(self) -> int:
        """The changes since the last sweep; all pages if the ledger cannot say them."""
        rows, more = 0, True
        while more:
            answer = self.ledger.ask(ListOpen(host=self._host, since=self._cursor))
            if answer.whole:
                self.refused += 1
                return self.whole()
            self._cursor, more = answer.cursor, answer.more
            rows += len(answer.runs)
        return rows

    def _page(self, rows: int, after: Cursor) -> tuple[int, Cursor | None]:
        answer = self.ledger.ask(Page(after=after))
        return rows + len(answer.runs), answer.after


def main() -> None:
    """Sweep in turn, each node once in ``every_s``, all pages once in WHOLE_EVERY of these; the turns are spread."""
    url, nodes, jobs, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[6])
    every_s, seconds = float(sys.argv[4]), float(sys.argv[5])
    sweepers = [Sweeper(url, f"node-{first + number}", jobs) for number in range(nodes)]
    for sweeper in sweepers:
        sweeper.whole()
    print("ready", flush=True)
    sys.stdin.readline()
    began, done, whole, rows, late_s = time.monotonic(), 0, 0, 0, 0.0
    cpu_s = time.process_time()
    while True:
        at = began + done * every_s / nodes
        now = time.monotonic()
        if max(at, now) - began >= seconds:
            break
        late_s = max(late_s, now - at)
        time.sleep(max(0.0, at - now))
        turn, number = divmod(done, nodes)
        reads_all = turn % WHOLE_EVERY == number % WHOLE_EVERY
        rows += sweepers[number].whole() if reads_all else sweepers[number].changed()
        whole += reads_all
        done += 1
    found = {"done": done, "whole": whole, "wanted": int(seconds / every_s * nodes), "rows": rows, "late_s": late_s}
    refused = sum(sweeper.refused for sweeper in sweepers)
    print(json.dumps({**found, "refused": refused, "cpu_s": time.process_time() - cpu_s}))


if __name__ == "__main__":
    main()
