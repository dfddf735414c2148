"""A process that sweeps as several nodes do, each with a connection of its own, through the real adapter.

python -m bench.claims.sweeping URL NODES JOBS EVERY_S SECONDS FIRST     prints one JSON line at its end
"""

from __future__ import annotations

import json
import resource
import sys
import time

from bench.claims.clients import PATIENCE_S
from coordd.adapters.ledger.redis_ledger import RedisLedger
from coordd.core.ledger.requests import ListOpen, Page
from coordd.core.ledger.rows import Cursor

CLUSTER = "default"


class Sweeper:
    """One node's sweeps, without what a node does with the rows."""

    def __init__(self, url: str, host: str, jobs: int) -> None:
        self.ledger = RedisLedger(
            url, PATIENCE_S, cluster=CLUSTER, fresh=True, quarantine_s=70.0, short_quarantine_s=0.1
        )
        self._host = host
        self._jobs = tuple(f"job-{number}" for number in range(jobs))

    def sweep(self) -> int:
        """All pages. Returns how many rows came."""
        answer = self.ledger.ask(ListOpen(jobs=self._jobs, host=self._host))
        rows, after = len(answer.runs), answer.after
        while after is not None:
            rows, after = self._page(rows, after)
        return rows

    def _page(self, rows: int, after: Cursor) -> tuple[int, Cursor | None]:
        answer = self.ledger.ask(Page(after=after))
        return rows + len(answer.runs), answer.after


def main() -> None:
    """Sweep in turn, each node once in ``every_s``; the turns are spread over that time."""
    url, nodes, jobs, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[6])
    every_s, seconds = float(sys.argv[4]), float(sys.argv[5])
    sweepers = [Sweeper(url, f"node-{first + number}", jobs) for number in range(nodes)]
    began, done, rows, late_s = time.monotonic(), 0, 0, 0.0
    while True:
        at = began + done * every_s / nodes
        now = time.monotonic()
        if max(at, now) - began >= seconds:
            break
        late_s = max(late_s, now - at)
        time.sleep(max(0.0, at - now))
        rows += sweepers[done % nodes].sweep()
        done += 1
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"done": done, "wanted": int(seconds / every_s * nodes), "rows": rows, "late_s": late_s,
                      "cpu_s": used.ru_utime + used.ru_stime}))  # fmt: skip


if __name__ == "__main__":
    main()
