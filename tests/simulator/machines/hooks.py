"""The real service of hooks (services/hooks/service.py) of each daemon, in a world without trio.

One hook is told of all ends of runs. Its runs are launched as all others are.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from coordd.config.hooks.hook import Hook, jobs_of
from coordd.core.ready import Notice
from coordd.core.wire.events import Event, Packet
from coordd.services.hooks import service, since
from coordd.services.hooks.service import Hooks
from coordd.services.hooks.since import Since
from simulator.machines.revisions import Log
from simulator.machines.seat import Seat, Services
from simulator.policies import HOOKS
from simulator.terms import LEASE

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from simulator.machines.daemon import Daemon
    from simulator.machines.waiting import Turns

HOOK = Hook(on=("run.*",), argv=("/bin/true",), name="told")

# The numbers of requests of hooks begin here; those of people are lower.
REQUESTS = 1_000_000


def jobs() -> dict[str, Job]:
    """The job that the hook is."""
    return jobs_of((HOOK,), LEASE)


class SinceOnDisk(Since):
    """Since when this node has the hook: on the disk of a daemon's machine."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        super().__init__("hooks.json")

    def _load(self) -> dict[str, float]:
        return dict(self._daemon.host.disk.hooks)

    def _save(self) -> None:
        if self._daemon.full:
            raise OSError("the disk is full")
        self._daemon.host.disk.hooks = dict(self._known)


class HooksSeat(Seat):
    """What the service of hooks sees of its daemon."""

    def __init__(self, daemon: Daemon, turns: Turns) -> None:
        super().__init__(daemon, turns, REQUESTS)
        self.breakers = ()
        self.found = SimpleNamespace(late_jobs={})
        self.problem = ""
        self.listeners: list[Callable[[Sequence[Event], Sequence[Notice]], None]] = []
        self.recent: deque[tuple[Packet, Event]] = deque(maxlen=2000)
        self.recent_total = 0
        this: Any = self
        self.hooks = Hooks((HOOK,), "", this, this, this, this)

    # ---- what the daemon hands over

    def heard(self, packet: Packet) -> None:
        """A message of another node."""
        self.recent += [(packet, event) for event in packet.events]
        self.recent_total += len(packet.events)

    def saw(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        """The node's own deeds."""
        with self._turns.of(self._daemon):
            for listener in self.listeners:
                listener(journal, notices)

    @property
    def since(self) -> float:
        """Since when the node has the hook (Unix seconds, by its clock)."""
        return self.hooks._since.of(HOOK)


class HookServices(Services[HooksSeat]):
    """The services of hooks of all daemons of one world."""

    kind, what = HOOKS, "hooks"

    def _seat(self, daemon: Daemon) -> HooksSeat:
        return HooksSeat(daemon, self.turns)

    def _runs(self, seat: HooksSeat) -> Coroutine[Any, Any, Any]:
        return seat.hooks.run()

    def _patch(self, patches: contextlib.ExitStack) -> None:
        log: Any = Log(self.world)
        log.debug = log.info
        for patch in (
            self.turns.patched(service),
            mock.patch.object(service, "Since", lambda _path: SinceOnDisk(self.turns.present)),
            mock.patch.object(service, "log", log),
            mock.patch.object(since, "log", log),
        ):
            patches.enter_context(patch)
