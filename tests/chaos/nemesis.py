"""The faults and their times: drawn from a seed, and recorded. Half of the faults wait for an attempt that has not
started."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from support import servers
from system.lab.processes import boottime

from chaos.cluster import Arena, Member
from chaos.faults import KINDS, Kind, Mend, Scene
from chaos.grants import Grant, Grants
from chaos.load import Jobs

LOOK_S = 0.02
AIM = 0.5  # the proportion of faults that wait for an attempt to strike at
AIM_LIMIT_S = 6.0  # seconds; after this time the fault strikes without such an attempt

# Maximum number of nodes that fail at once, so that others can take over. A broker and a ledger need a pause after a
# fault to show that they are back.
NODES_MAX = 2
REST_S = {"node": 0.0, "files": 5.0, "bus": 15.0, "ledger": 40.0}
RESTART_S = 1.0  # seconds until a daemon that has ended by itself is restarted, as by a service manager


class Fault(NamedTuple):
    """One fault. The strike took from ``began`` to ``struck``, and the fault lasted until ``until`` (CLOCK_BOOTTIME).
    ``before_start``: the attempts on the harmed nodes that were granted and not started when the fault began."""

    kind: str
    harms: str
    node: str
    detail: str
    began: float
    struck: float
    until: float
    before_start: list[tuple[str, int, int]]
    cut_off: tuple[str, ...]
    forgets: bool


class Nemesis:
    """Strikes and mends, in the main thread, because a server dies with the thread that has started it."""

    def __init__(self, arena: Arena, jobs: Jobs, seed: int, per_minute: float, only: Sequence[str] = ()) -> None:
        """``only``: only these kinds of faults strike; () is all kinds."""
        self.arena = arena
        self.jobs = jobs
        self.kinds = {name: kind for name, kind in KINDS.items() if name in (only or KINDS)}
        self.grants = Grants(arena)
        self.chance = random.Random(seed)
        self.pause_s = 60.0 / per_minute
        self.log: list[Fault] = []
        self.ended_alone: list[str] = []  # daemons that nobody had killed
        self._mends: list[tuple[float, int, str, str, Mend]] = []  # at, order, harms, node, mend
        self._numbers = itertools.count()
        self._resting = {"files": 0.0, "bus": 0.0, "ledger": 0.0}
        self._restart_at: dict[str, float] = {}

    def run(self, until: float, show: Callable[[], object]) -> None:
        """Strike until that instant (CLOCK_BOOTTIME). ``heal`` mends the remaining faults."""
        next_at = boottime() + self.pause_s
        aim_until = 0.0
        kind = ""
        while (now := boottime()) < until:
            self._mend(now)
            self._supervise(now)
            self.grants.look()
            show()
            if now >= next_at and not kind:
                kind = self._draw(now)
                aim_until = now + AIM_LIMIT_S if self.chance.random() < AIM else 0.0
            if kind:
                grants = [one for one in self.grants.before_start() if one.node in self._unharmed()]
                if (grants and aim_until) or now >= aim_until:
                    self._strike(kind, grants[-1] if grants and aim_until else None)
                    next_at = max(next_at + self.chance.expovariate(1 / self.pause_s), now)
                    kind = ""
            time.sleep(LOOK_S)

    def heal(self) -> None:
        """Mend everything, and start each server and daemon that is down."""
        self._mend(float("inf"))
        self.arena.net.heal_all()
        under = self.arena.production.sentinels
        for server in (self.arena.rabbit, *self.arena.redises, *(under.sentinels if under else ())):
            if not server.up:
                server.launch()
        for node in self.arena.nodes:
            if not node.up:
                node.launch()

    # ---- one fault

    def _draw(self, now: float) -> str:
        """A fault that may strike now, or ""."""
        possible = {
            name: kind.weight
            for name, kind in self.kinds.items()
            if (self._unharmed() if kind.harms == "node" else now >= self._resting[kind.harms])
        }
        return self.chance.choices(list(possible), list(possible.values()))[0] if possible else ""

    def _unharmed(self) -> list[str]:
        """The nodes that may be struck; [] if NODES_MAX nodes are struck already."""
        harmed = {node for _, _, harms, node, _ in self._mends if harms == "node"}
        free = [node.name for node in self.arena.nodes if node.name not in harmed and node.up]
        return free if len(harmed) < NODES_MAX else []

    def _strike(self, name: str, grant: Grant | None) -> None:
        kind = KINDS[name]
        free = self._unharmed()
        if not free:
            return
        self.chance.shuffle(free)
        # Without a grant: the node with the most runs.
        chosen = grant.node if grant else max(free, key=lambda name: len(self.grants.alive(name)))
        node = next(one for one in self.arena.nodes if one.name == chosen)
        began = boottime()
        before_start = [one.key for one in self.grants.before_start() if kind.harms != "node" or one.node == chosen]
        try:
            done = kind.strike(Scene(self.arena, self.grants, self.chance, node, grant, self.jobs))
        except servers.ServerError:
            return  # nobody knows at this moment which Redis is the master
        if done is None:
            return
        struck = boottime()
        until = struck + done.lasts_s
        self.log.append(
            Fault(
                name,
                kind.harms,
                self._named(kind, node),
                done.detail,
                began,
                struck,
                until,
                before_start,
                done.cut_off,
                done.forgets,
            )
        )
        heapq.heappush(self._mends, (until, next(self._numbers), kind.harms, node.name, done.mend))
        if kind.harms != "node":
            self._resting[kind.harms] = until + REST_S[kind.harms]

    @staticmethod
    def _named(kind: Kind, node: Member) -> str:
        return node.name if kind.harms == "node" else ""

    # ---- repairs and restarts that are due

    def _mend(self, now: float) -> None:
        while self._mends and self._mends[0][0] <= now:
            _, _, _, _, mend = heapq.heappop(self._mends)
            mend()

    def _supervise(self, now: float) -> None:
        """Restart daemons that have ended by themselves, as their unit would."""
        down = {node for _, _, harms, node, _ in self._mends if harms == "node"}
        for node in self.arena.nodes:
            if node.up:
                self._restart_at.pop(node.name, None)
            elif node.name not in self._restart_at and node.name not in down:
                code = node.process.returncode if node.process else None
                self.ended_alone.append(f"{node.name} with {code}")
                self._restart_at[node.name] = now + RESTART_S
            elif now >= self._restart_at.get(node.name, float("inf")):
                node.launch()
                del self._restart_at[node.name]
