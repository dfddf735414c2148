"""A machine dies: from SIGKILL to daemon, runner, watcher and program until another node has executed the program."""

from __future__ import annotations

import os
import random
import signal
import statistics
import threading
import time

from bench.cluster import Cluster, cluster, kill_attempt, until
from bench.figures import Figure, summary

SECTION = "takeover after SIGKILL"

LEASE_S, RENEW_S = 8.0, 1.0
TIMINGS = f"lease = {LEASE_S}\nrenew_interval = {RENEW_S}\nledger_timeout = 1.0\nkill_grace = 3.0"
LIMIT_S = LEASE_S + 2 * RENEW_S + 1.0
GIVE_UP_S = 60.0

JOBS = {"victim": '[command]\nargv = ["/bin/sleep", "600"]\n'}

# Number of clusters at the same time. Most of a takeover is waiting.
LANES = 4


def measure(*, quick: bool) -> list[Figure]:
    """Measure twenty takeovers (four when quick), in four clusters of three nodes."""
    rounds = 1 if quick else 5
    took: list[float] = []
    failed: list[Exception] = []

    def lane(number: int) -> None:
        try:
            with cluster(3, JOBS, TIMINGS) as nodes:
                took.extend(_takeover(nodes, f"{number}-{each}") for each in range(rounds))
        except Exception as exc:  # the caller shows it: a thread must not die silently
            failed.append(exc)

    threads = [threading.Thread(target=lane, args=(number,)) for number in range(LANES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    told = f"lease {LEASE_S:g} s + 2 x renew {RENEW_S:g} s + 1 s; {len(took)} times, in {LANES} clusters of three"
    return [
        Figure(SECTION, "max", max(took), "s", LIMIT_S, "<=", told, {"seconds": summary(took)}),
        Figure(SECTION, "p50", statistics.median(took), "s"),
    ]


def _takeover(nodes: Cluster, ident: str) -> float:
    asked = nodes.nodes[0]
    run = asked.call("run.trigger", job="victim", id=ident)["id"]
    owner, facts = nodes.started(run)
    time.sleep(RENEW_S + random.random() * RENEW_S)  # a random instant between two renewals
    assert owner.process is not None
    os.kill(owner.pid, signal.SIGSTOP)
    kill_attempt(facts)
    at = time.time()
    os.kill(owner.pid, signal.SIGKILL)
    owner.process.wait()
    heir, later = nodes.started(run, but=owner, limit_s=GIVE_UP_S)
    took = float(later["started"]["at"]) - at
    heir.call("run.cancel", id=run)
    nodes.over(run, heir)
    owner.start()
    for node in nodes.nodes:
        until(lambda node=node: node.ready(len(nodes.nodes)), f"{node.name} is ready again")  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
    return took
