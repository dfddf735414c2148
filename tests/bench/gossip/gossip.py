"""Elections on RabbitMQ, claims in Redis. Celery's own workers use the same broker in the
same run, alternately with us.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time

from support.servers import Rabbit, rabbit, redis

from bench.figures import Figure, summary
from bench.gossip.peers import Coordd, Peer, Side

SECTION = "election, RabbitMQ and Redis, against Celery"

# (nodes, required speed-up over Celery from trigger to action, required ratio of elections per second, burst size).
CLUSTERS = ((3, 1.2, 15.0, 200), (5, 1.2, 15.0, 100), (8, 1.5, 25.0, 100), (12, 3.0, None, 30))

# Up to this number of nodes, others whose claims cross a thread take part.
THREADS_MAX = 5
SLOWLY = " by thread"

# Pause (seconds) between two elections; after it both sides are at rest.
PAUSE_S = 0.005

# Celery's workers sometimes crash (one worker is too few, N = 2 as well). A round without them does not count.
BLOCK = 10

# Erlang code: the broker's own counters over all protocols. A message that needs no acknowledgement counts once.
COUNTS = """
Sum = fun(Key) -> lists:sum([maps:get(Key, Value, 0) || Value <- maps:values(rabbit_global_counters:overview())]) end,
lists:flatten(io_lib:format("~b ~b", [Sum(messages_received_total), Sum(messages_delivered_total)])).
"""

BURSTS = 3
BURST_LIMIT_S = 60.0


def measure(*, quick: bool) -> list[Figure]:
    """Measure all cluster sizes."""
    figures: list[Figure] = []
    with rabbit() as broker, redis() as ledger:
        for count, faster, rate, burst in CLUSTERS[: 2 if quick else None]:
            with tempfile.TemporaryDirectory(prefix="cdb-", dir="/tmp") as root, contextlib.ExitStack() as stack:
                ours = Coordd(root, count, broker.url, ledger.url)
                stack.callback(ours.close)
                peer = Peer(root, count, broker.url)
                stack.callback(peer.close)
                ours.wait_ready()
                peer.wait_ready()
                slow = Coordd(root, count, broker.url, ledger.url, fast=False) if count <= THREADS_MAX else None
                if slow is not None:
                    stack.callback(slow.close)
                    slow.wait_ready()
                figures += latency(ours, peer, slow, faster, rounds=4 if quick else 20)
                if slow is not None:
                    slow.close()
                figures += messages(ours, broker, rounds=50)
                peer.close()  # its workers sometimes crash, so a burst gets new ones
                peer = Peer(root, count, broker.url)
                stack.callback(peer.close)
                peer.wait_ready()
                figures += bursts(ours, peer, rate, burst)
    return figures


def latency(ours: Coordd, peer: Peer, slow: Coordd | None, faster: float, rounds: int) -> list[Figure]:
    """The time from trigger to action. Celery's worker acts when it has won; our node acts
    when the ledger has granted. ``slow``: our nodes whose claims cross a thread.
    """
    ways: list[tuple[str, Side]] = [("elect", ours), ("Celery", peer), ("trigger", ours)]
    if slow is not None:
        ways += [(f"elect{SLOWLY}", slow), (f"trigger{SLOWLY}", slow)]
    took: dict[str, list[float]] = {way: [] for way, _ in ways}
    lost = dict.fromkeys(took, 0)
    for number in range(rounds):
        for way, side in ways if number % 2 else ways[::-1]:
            for _ in range(BLOCK):
                time.sleep(PAUSE_S)
                ms = side.one(way.removesuffix(SLOWLY))
                if ms is None:
                    lost[way] += 1
                else:
                    took[way].append(ms)
    if not all(took.values()):
        raise RuntimeError(f"N = {ours.count}: nobody acted ({lost})")
    p50 = {way: statistics.median(times) for way, times in took.items()}
    asked = rounds * BLOCK
    detail = (
        f"p50 {p50['elect']:.2f} ms against {p50['Celery']:.2f} ms; without an action {lost['elect']} and "
        f"{lost['Celery']} of {asked}; processes that died {ours.dead()} and {peer.dead()}"
    )
    samples = {way: summary(times) for way, times in took.items()}
    return [
        Figure(
            SECTION,
            f"N = {ours.count}: election asked for to claim granted, Celery's ÷ ours",
            p50["Celery"] / p50["elect"],
            "x",
            faster,
            ">=",
            detail,
            samples,
        ),
        Figure(
            SECTION,
            f"N = {ours.count}: the same for `run trigger`, which records the run too",
            p50["Celery"] / p50["trigger"],
            "x",
            detail=f"p50 {p50['trigger']:.2f} ms; without an action {lost['trigger']} of {asked}",
        ),
        *[
            Figure(
                SECTION,
                f"N = {ours.count}: {what}, with fast_path = false",
                p50["Celery"] / p50[f"{what}{SLOWLY}"],
                "x",
                detail=f"p50 {p50[f'{what}{SLOWLY}']:.2f} ms",
            )
            for what in (("elect", "trigger") if slow is not None else ())
        ],
    ]


def messages(ours: Coordd, broker: Rabbit, rounds: int) -> list[Figure]:
    """The messages of one election, counted at the broker, without heartbeats and without
    news about the ends of runs.
    """
    prefix = "drill-"
    before = broker_counts(broker)
    began = time.monotonic()
    for number in range(rounds):
        ours.watcher.clear()
        ident = f"{prefix}{number}"
        ours.tell(ours.processes[0], "drill", ident=ident)
        ours.watcher.until(lambda facts, i=ident: sum(f.get("id") == i for f in facts) >= ours.count, 3.0)  # type: ignore[misc]  # mypy infers no type for a lambda with defaults
    took_s = time.monotonic() - began
    time.sleep(0.2)
    between = broker_counts(broker)
    time.sleep(took_s + 0.2)  # the same time again, with only the heartbeats of both sides
    after = broker_counts(broker)
    published, delivered = (
        ((middle - first) - (last - middle)) / rounds
        for first, middle, last in zip(before, between, after, strict=True)
    )
    size = ours.count
    return [
        Figure(SECTION, f"N = {size}: messages published per election", round(published, 1), "", size * 1.1),
        Figure(SECTION, f"N = {size}: deliveries per election", round(delivered, 1), "", size**2 * 1.1),
    ]


def broker_counts(broker: Rabbit) -> tuple[int, int]:
    """(received from publishers, delivered to consumers) since the broker's start."""
    said = broker.ctl("eval", COUNTS)
    received, delivered = said.strip().strip('"').split()
    return int(received), int(delivered)


def bursts(ours: Coordd, peer: Peer, rate: float | None, size: int) -> list[Figure]:
    """Elections per second when many are due at once. Celery's end at the winner's action,
    ours when every node has decided.
    """
    decided: list[float] = []
    granted: list[float] = []
    theirs: list[float] = []
    missing = {ours.name: 0, peer.name: 0}
    for _ in range(BURSTS):
        elections, grants, count = ours.decided(size, BURST_LIMIT_S)
        missing[ours.name] += size - count
        decided.append(elections)
        granted.append(grants)
        ours.rest()
        per_s, count = peer.many(size, BURST_LIMIT_S)
        missing[peer.name] += size - count
        if count == size:
            theirs.append(per_s)
        peer.rest()
    decided_p50, granted_p50 = statistics.median(decided), statistics.median(granted)
    if not theirs:
        what = f"N = {ours.count}: burst of {size}, elections a second"
        return [Figure(SECTION, what, decided_p50, detail=f"Celery has finished none: {peer.dead()} workers died")]
    peer_p50 = statistics.median(theirs)
    lost = f"never acted on: {missing[ours.name]} and {missing[peer.name]} of {BURSTS * size}"
    return [
        Figure(
            SECTION,
            f"N = {ours.count}: burst of {size}, elections a second, ours ÷ Celery's",
            decided_p50 / peer_p50,
            "x",
            rate,
            ">=",
            f"{decided_p50:,.0f} a second, decided on all nodes, against {peer_p50:,.0f}; {lost}",
        ),
        Figure(
            SECTION,
            f"N = {ours.count}: the same until the ledger has granted every run",
            granted_p50 / peer_p50,
            "x",
            detail=f"{granted_p50:,.0f} a second",
        ),
    ]


if __name__ == "__main__":
    sys.exit("python tests/bench/command.py --only gossip")
