"""The cost of a growing cluster: messages, deliveries and bytes per second, and the time until all know of a hung node.

The counts are in virtual time with whole core nodes (tests/support/crowd.py), so the machine's speed does not matter.
To run this benchmark alone:

    PYTHONPATH=.:tests python -m bench.gossip.growth [N ...]
"""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from support.crowd import Crowd

from bench.claims import sweeps
from bench.figures import Figure

TOP = Path(__file__).resolve().parents[3]
SECTION = "growth"

SIZES = (3, 5, 8, 16, 17, 50, 100, 300, 1000)
QUICK = (3, 8, 16, 17, 100, 300)

# The limits for the largest cluster.
DELIVERIES_MAX_S = 5_000
LOST_MAX_S = 30.0

# Seconds until all nodes are at rest, and seconds of counting after that.
SETTLED_S = 4.0
COUNTED_S = 20.0
PATIENCE_S = 120.0


@dataclass
class Cost:
    """The cost of one cluster size."""

    nodes: int
    messages_s: float
    deliveries_s: float
    bytes_s: float
    bytes_per_delivery: float
    election_messages: int
    election_deliveries: int
    hung_lost_s: float
    killed_lost_s: float
    join_messages: int
    wrongly_lost: int


def cost(nodes: int) -> Cost:
    """Run a cluster through four events: an election, a node that hangs, a node that is killed, a new node."""
    crowd = Crowd(nodes)
    gc.freeze()  # otherwise the garbage collector would visit a million member objects again and again
    try:
        crowd.run(SETTLED_S)
        crowd.count()
        crowd.run(COUNTED_S)
        delivered = sum(crowd.delivered.values())
        messages, size = sum(crowd.published.values()), crowd.bytes
        elects = _election(crowd)
        joining = _join(crowd)
        wrong = len(crowd.wrongly_lost())
        hung, killed = crowd.places[nodes // 2], crowd.places[0]
        crowd.hang(hung)
        hung_s = crowd.run(PATIENCE_S, lambda: crowd.lost_for_all([hung]))
        crowd.kill(killed)
        killed_s = crowd.run(PATIENCE_S, lambda: crowd.lost_for_all([killed]))
    finally:
        gc.unfreeze()
    return Cost(
        nodes,
        messages / COUNTED_S,
        delivered / COUNTED_S,
        size / COUNTED_S,
        size / max(1, delivered),
        *elects,
        hung_s,
        killed_s,
        joining,
        wrong,
    )


def _election(crowd: Crowd) -> tuple[int, int]:
    """The cost of one election that all nodes open at once."""
    crowd.count()
    for place in crowd.places:
        place.node.topics.add("growth")
        crowd.do(place, place.node.open_election, "growth/1", "growth", None)
    crowd.run(1.5)
    kinds = ("worker-elect", "worker-elect-ack")
    return sum(crowd.published[kind] for kind in kinds), sum(crowd.delivered[kind] for kind in kinds)


def _join(crowd: Crowd) -> int:
    """The number of messages that a new node causes, without the messages that are sent anyway."""
    crowd.count()
    crowd.join(crowd.boot(crowd.newcomer))
    crowd.run(2.0)
    return sum(crowd.published[kind] for kind in ("worker-hello", "worker-hello-reply", "worker-online"))


def measure(*, quick: bool) -> list[Figure]:
    """Messages in virtual time; then sweeps of the ledger on real servers (bench.claims.sweeps)."""
    return [*_messages(quick=quick), *sweeps.measure(quick=quick)]


def _messages(*, quick: bool) -> list[Figure]:
    """Measure all sizes. The table compares the largest one with its targets; the JSON has all of them."""
    costs = [cost(nodes) for nodes in (QUICK if quick else SIZES)]
    large = [one for one in costs if one.nodes > 16]
    most, last = max(costs, key=lambda one: one.deliveries_s), costs[-1]
    samples = {"costs": [asdict(one) for one in costs]}
    told = f"at N = {most.nodes}, the costliest of {', '.join(str(one.nodes) for one in costs)}"
    return [
        Figure(SECTION, "deliveries a second", most.deliveries_s, "/s", DELIVERIES_MAX_S, "<=", told, samples),
        Figure(SECTION, f"deliveries a second, N = {last.nodes}", last.deliveries_s, "/s", DELIVERIES_MAX_S, "<="),
        Figure(SECTION, f"bytes delivered a second, N = {last.nodes}", last.bytes_s, "B/s"),
        Figure(SECTION, "a hung node is lost by all", max(one.hung_lost_s for one in costs), "s", LOST_MAX_S, "<="),
        Figure(SECTION, "election messages above 16 nodes", sum(one.election_messages for one in large), "", 0, "="),
        Figure(SECTION, "live nodes believed lost", sum(one.wrongly_lost for one in costs), "", 0, "="),
    ]


def main(sizes: list[int]) -> int:
    """Print the table and write the JSON."""
    console = Console()
    table = Table(title="cost growth, virtual time, heartbeat_interval = 2 s", title_justify="left")
    heads = ("N", "said/s", "heard/s", "kB/s", "B", "elect", "heard", "hung", "killed", "join")
    for head in heads:
        table.add_column(head, justify="right")
    costs = []
    for nodes in sizes or SIZES:
        with console.status(f"{nodes} nodes …"):
            one = cost(nodes)
        costs.append(one)
        table.add_row(
            str(nodes),
            f"{one.messages_s:.4g}",
            f"{one.deliveries_s:.0f}",
            f"{one.bytes_s / 1000:.0f}",
            f"{one.bytes_per_delivery:.0f}",
            str(one.election_messages),
            str(one.election_deliveries),
            f"{one.hung_lost_s:.1f} s",
            f"{one.killed_lost_s:.1f} s",
            str(one.join_messages),
        )
    console.print(table)
    console.print(
        "said, heard: messages published and delivered, heartbeats included. kB/s: delivered. B: bytes of one.\n"
        "elect, heard: messages of one election that all nodes open. hung, killed: until all have lost the node.\n"
        "join: messages about a newcomer.",
        highlight=False,
    )
    path = str(TOP / "artifacts" / "growth.json")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump([asdict(one) for one in costs], file, indent=1)
        file.write("\n")
    console.print(f"written to {os.path.relpath(path)}", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main([int(word) for word in sys.argv[1:]]))
