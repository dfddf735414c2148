"""Five daemons on RabbitMQ and Redis, with clocks that are off, kills by a seed, and restarts."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from support.skew import skew_library, skewed
from system.lab.cluster import Cluster, Node
from system.lab.processes import LOOK_S, boottime, kill_at_once

from kills.judge import Cut, Verdict

PROGRAM = Path(__file__).with_name("program.py")

# Restarts come this long (seconds) after the kill; a daemon alone comes back sooner than a machine.
POWER_BACK_S = (1.0, 8.0)
DAEMON_BACK_S = (0.2, 2.0)
POWER_SHARE = 0.7


class Stage:
    """The cluster, and what happens to it when. Times are on CLOCK_BOOTTIME unless they are called wall."""

    def __init__(self, cluster: Cluster, seed: int, skew_max_s: float) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.cuts: list[Cut] = []
        self.off: set[str] = set()  # machines without power
        self.ended_alone: list[str] = []
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self._down: set[str] = set()
        library = skew_library(cluster.path)
        size = len(cluster.nodes)
        steps = [skew_max_s * (2 * number / (size - 1) - 1) for number in range(size)]
        self.chance.shuffle(steps)
        self.skews = dict(zip([node.name for node in cluster.nodes], steps, strict=True))
        self.skewed = library is not None
        for node in cluster.nodes:
            node.env = skewed(library, Path(f"{node.state_dir}.skew"), self.skews[node.name])

    @staticmethod
    def at_wall(wall: float) -> float:
        """The boot time of an instant of the true wall clock."""
        return wall - time.time() + boottime()

    def at(self, when: float, what: Callable[[], object]) -> None:
        """Call it at that time."""
        heapq.heappush(self._events, (when, next(self._count), what))

    def play(self, look: Callable[[], object]) -> None:
        """Let everything happen; returns when nothing is left to happen. ``look`` is called all the time."""
        while self._events:
            while self._events and self._events[0][0] <= boottime():
                heapq.heappop(self._events)[2]()
            self.watch()
            look()
            time.sleep(LOOK_S)

    def watch(self) -> None:
        """A daemon that ended although nobody killed it is a defect. It is started again."""
        for node in self.cluster.nodes:
            if node.name not in self._down and not node.up:
                self.ended_alone.append(node.name)
                node.launch()

    def strike(self, name: str) -> None:
        """Kill a node, unless it is down; it comes back by itself."""
        node = self.cluster.node(name)
        if name in self._down or node.process is None:
            return
        power, pid = self.chance.random() < POWER_SHARE, node.process.pid
        self._down.add(name)
        alive: set[str] = set()
        if power:
            self.off.add(name)
            kill_at_once(lambda: _named(node, alive))
            node.wait()
        else:
            node.kill()
        self.cuts.append(Cut(name, pid, boottime(), power, frozenset(alive)))
        back_s = self.chance.uniform(*(POWER_BACK_S if power else DAEMON_BACK_S))
        self.at(boottime() + back_s, lambda: self._back(node))

    def _back(self, node: Node) -> None:
        self._down.discard(node.name)
        self.off.discard(node.name)
        node.launch()


def _named(node: Node, words: set[str]) -> set[int]:
    """All processes that this node has started; the words in their command lines are added to ``words``."""
    family = node.family()
    for pid in family:
        with contextlib.suppress(OSError):  # it is gone
            words.update(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0"))
    return family


def keep(cluster: Cluster, verdict: Verdict) -> None:
    """If something was violated, keep logs, journals and the programs' record for a person."""
    if verdict.violations:
        os.environ["COORDD_TESTS_KEEP"] = f"{cluster.path}"
        verdict.violations.append(f"the evidence is in {cluster.path}")
