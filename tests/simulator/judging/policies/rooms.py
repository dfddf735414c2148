"""The budgets of machines: how many runs each has room for, which may change. BU: never has it more.

The room counts when a node claims. So a run that is started now may use what was there since its claim was sent.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from coordd.core import attempt as life
from coordd.core.jobs.job import HOOK
from simulator.policies import SAME_S
from simulator.terms import LEDGER_TIMEOUT, SETTINGS

if TYPE_CHECKING:
    from coordd.core.ready import Launch, Now
    from simulator.machines.runner import Runner
    from simulator.world import Host, World

# Phases of a runner whose attempt is not over.
TAKES_ROOM = frozenset((life.WAITING, life.GATING, life.READY, life.RUNNING, life.ENDING))

# Calls of hooks on a node have a room of their own.
CALLS = 8

# A claim was sent at most this long (seconds) before the ledger took it.
SENT_S = 1.1 * LEDGER_TIMEOUT


class Rooms:
    """The room on each machine of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"changes of rooms of {world.plan.seed}")
        self._had: dict[int, list[tuple[float, int]]] = {}  # machine -> since when it has had room for how many
        for host in world.hosts:
            if len(world.plan.rooms[host.index]) > 1:
                world.at(self.rng.uniform(*SAME_S), self._change, host, 0)

    def largest(self, host: Host) -> int:
        """The budget of a daemon that begins now; what its strategy says comes later."""
        most = max(self.world.plan.rooms[host.index], default=SETTINGS.budget_client)
        self._had.setdefault(host.index, []).append((self.world.now, most))
        return most

    def present(self, host: Host) -> int:
        """The room on that machine now."""
        return self._had[host.index][-1][1]

    def judge(self, host: Host, launch: Launch) -> None:
        """BU: a runner is about to be started."""
        hooks = launch.job.startswith(HOOK)
        here = self._here(host, hooks)
        since = self.world.judge.grants[launch.run, launch.attempt, launch.token].at - SENT_S
        had = self._had[host.index]
        room = max(size for number, (_, size) in enumerate(had) if number + 1 == len(had) or had[number + 1][0] > since)
        room = CALLS if hooks else room
        if len(here) >= room:
            runs = ", ".join(runner.launch.run for runner in here)
            self.world.violate(f"BU {host.name} starts {launch.run} beside {runs}, and has room for {room}")

    def full(self) -> bool:
        """True if programs of runs take all the room of every machine that is left."""
        left = [host for host in self.world.hosts if not host.gone]
        return bool(left) and all(len(self._here(host, hooks=False)) >= self.present(host) > 0 for host in left)

    @staticmethod
    def _here(host: Host, hooks: bool) -> list[Runner]:
        """The runners on that machine that take room: those of calls of hooks, or those of runs."""
        return [
            runner
            for runner in host.runners
            if runner.alive and runner.attempt.phase in TAKES_ROOM and runner.launch.job.startswith(HOOK) == hooks
        ]

    def _change(self, host: Host, number: int) -> None:
        drawn = self.world.plan.rooms[host.index]
        self.world.at(self.rng.uniform(*SAME_S), self._change, host, number + 1)
        if host.daemon is not None:
            host.daemon.feed(self._told, host, drawn[number % len(drawn)])

    def _told(self, host: Host, size: int, now: Now) -> None:
        """Its strategy has said another number."""
        if host.daemon is not None:
            host.daemon.node.loaded((0.0, 0.0, 0.0), size, {})
            self._had[host.index].append((self.world.now, size))
