"""RabbitMQ and Redis with faults: a node is killed, a broker restarts, and nodes have nothing to do."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from support.servers import Rabbit, rabbit, redis

from bench.cluster import cluster
from bench.figures import Figure, summary
from bench.gossip.peers import Coordd

SECTION = "RabbitMQ and Redis, faults and idleness"

# Time limit for all nodes to have gossip again after the broker accepts connections. Beyond it the round is given up.
BACK_LIMIT_S = 30.0


def measure(*, quick: bool) -> list[Figure]:
    """Run each measurement with servers of its own."""
    return [*deaths(3 if quick else 10), *restarts(5 if quick else 50), *idle(10.0 if quick else 60.0)]


@contextlib.contextmanager
def members(count: int, broker: Rabbit, ledger_url: str) -> Iterator[Coordd]:
    """A cluster of nodes that know each other."""
    with tempfile.TemporaryDirectory(prefix="cdb-", dir="/tmp") as root:
        side = Coordd(root, count, broker.url, ledger_url)
        try:
            side.wait_ready()
            yield side
        finally:
            side.close()


def deaths(rounds: int) -> list[Figure]:
    """SIGKILL to one of three nodes, then an election: the time until the opener knows that no answer will come."""
    took = []
    with rabbit() as broker, redis() as ledger:
        for number in range(rounds):
            with members(3, broker, ledger.url) as side:
                victim = side.processes[-1]
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                side.watcher.clear()
                began = time.monotonic_ns()
                side.tell(side.processes[0], "drill", ident=f"death-{number}")

                def known(facts: list[dict[str, object]]) -> bool:
                    return any(fact["k"] == "lost" and fact["w"] == "n0" for fact in facts)

                if not side.watcher.until(known, 10.0):
                    raise TimeoutError("the dead node was not noticed within 10 s")
                took.append(min(fact["t"] for fact in side.watcher.facts if fact["k"] == "lost") - began)
    ms = [one / 1e6 for one in took]
    return [
        Figure(
            SECTION,
            "a killed node is lost at the next election: slowest",
            max(ms),
            "ms",
            50,
            "<=",
            f"p50 {statistics.median(ms):.1f} ms of {rounds} kills",
            {"ms": summary(ms)},
        )
    ]


def restarts(rounds: int) -> list[Figure]:
    """SIGKILL to the broker and a restart: the time from its first accept until every node has decided an election."""
    took: list[float] = []
    with rabbit() as broker, redis() as ledger, members(3, broker, ledger.url) as side:
        for number in range(rounds):
            broker.kill()
            side.watcher.clear()
            broker.launch()
            broker.ready()
            accepted = time.monotonic()
            for attempt in range(int(BACK_LIMIT_S * 10)):
                ident = f"restart-{number}-{attempt}"
                side.tell(side.processes[number % 3], "drill", ident=ident)
                # All nodes decide it, from the statements of all nodes. Without a bus a node decides only its own
                # elections.
                if side.watcher.until(lambda facts, i=ident: sum(f.get("id") == i for f in facts) >= side.count, 0.1):  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
                    took.append(time.monotonic() - accepted)
                    break
        died = side.dead()
    if not took:
        raise TimeoutError("gossip never came back")
    return [
        Figure(
            SECTION,
            f"gossip back after a broker restart: slowest of {len(took)}",
            max(took),
            "s",
            3.0,
            "<=",
            f"p50 {statistics.median(took):.2f} s; {rounds - len(took)} of {rounds} never, {died} processes lost",
            {"s": summary(took)},
        ),
        Figure(SECTION, "restarts after which all nodes had it back", len(took), "", rounds, ">="),
        Figure(SECTION, "processes lost", died, "", 0, "<="),
    ]


def idle(watch_s: float) -> list[Figure]:
    """Measure five real daemons with nothing to do."""
    with rabbit() as broker, redis() as ledger, tempfile.TemporaryDirectory(prefix="cdb-", dir="/tmp") as root:
        keys = os.path.join(root, "keys.toml")
        subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "coordd"), "keys", "new", "--output", keys],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        timings = f'keyring = "{keys}"'
        with cluster(5, {}, timings, bus=broker.url, ledger=ledger.url) as nodes:
            used = nodes.usage(watch_s)
    return [
        Figure(
            SECTION, "idle, one of five: RSS", used.rss_mb, "MB", 60, "<=", f"the largest; PSS {used.pss_mb:.1f} MB"
        ),
        Figure(
            SECTION,
            "idle, one of five: CPU",
            used.cpu_percent,
            "% of a core",
            0.5,
            "<=",
            f"the busiest, over {watch_s:g} s",
        ),
    ]
