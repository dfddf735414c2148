"""Which nodes knew of an attempt and could tell a ledger that went back, judged by the messages that were delivered.

The product's own memory is under test, so it is not asked. An attempt is known to

- its runner, as long as it is there;
- its node, whose daemon wrote it into the journal, or read it there when it started;
- each node whose daemon was handed a message about it since that daemon started.

If one of them reached the ledger in the quarantine for long enough without a break, it had to tell the ledger.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from coordd.core.wire.events import TaskFailed, TaskReceived, TaskRetried, TaskRevoked, TaskStarted, TaskSucceeded
from simulator.judging.excuses import CUT_OFF, STEPPED, WITNESSES_LOST, Excuse
from simulator.terms import LEDGER_TIMEOUT, RENEW

if TYPE_CHECKING:
    from simulator.machines.daemon import Daemon
    from simulator.world import Host, World

# LOOK_S: how often the judge looks who reaches whom.
# REACH_S: if a witness reaches the ledger for this time without a break, it has certainly said what it knows. This is
# enough for a sweep without an answer just before, its next sweep, one lost answer to the sweep, and one lost answer
# when it puts the attempt back.
LOOK_S = 0.25
REACH_S = RENEW + 3 * LEDGER_TIMEOUT

# A daemon takes part at most this long (seconds) after its start. It mingles, and again if the bus came up since.
ENTERS_S = 2.5

# The events that tell of a granted attempt.
TELLS = (TaskReceived, TaskStarted, TaskSucceeded, TaskFailed, TaskRevoked, TaskRetried)

Key = tuple[str, int, int]  # run, attempt, token
Reach = tuple[int, Key, int]  # number of the setback, attempt, machine of the witness


def keys_of(events: Iterable[Any]) -> set[Key]:
    """The attempts that these events tell of."""
    return {
        (event.run, event.attempt, event.token)
        for event in events
        if isinstance(event, TELLS) and event.token and event.nonce
    }


class Knowledge:
    """Watches one world whose ledger goes back."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._heard: dict[int, list[tuple[float, bool]]] = defaultdict(list)  # host -> (when, others hear it)
        self._stays: dict[int, list[tuple[Key, float]]] = defaultdict(list)  # host -> (attempt, until when)
        self._reached: dict[Reach, float] = {}  # how long that witness has reached the ledger by now
        self.longest: dict[Reach, float] = {}  # the longest such time
        self.forgets = world.plan.forgets
        if self.forgets:
            world.at(0.0, self._look)

    def told(self, daemon: Daemon, events: Iterable[Any]) -> None:
        """The daemon was handed these events, has written them, or has read them at its start."""
        if self.forgets:
            daemon.told |= keys_of(events)

    def stays(self, host: Host, key: Key, until: float) -> None:
        """A runner has left, but should have stayed until then to repeat its report."""
        self._stays[host.index].append((key, until))

    def nobody_could_tell(
        self, key: Key, written: Iterable[float], node: int, number: int, granted_at: float
    ) -> Excuse | None:
        """Why no witness could put back what a setback made the ledger forget of an attempt.

        None if a witness could, or if nothing had to be put back. ``number``: the setback; ``written``: when the ledger
        was told of the attempt; ``node``: where it was launched; ``granted_at``: when the ledger granted what was
        launched beside it. If the ledger goes back again after ``granted_at``, witnesses tell it too late.
        """
        setbacks = self.world.server.setbacks
        setback = setbacks[number]
        lost = min((at for at in written if setback.kept_to < at <= setback.at), default=None)
        if lost is None or self.world.now < setback.opens_at:
            return None  # nothing of it was forgotten, or nothing at all may be launched yet
        reached_s = [
            s
            for (which, known, _), s in self.longest.items()
            if known == key and which >= number and setbacks[which].at < granted_at
        ]
        if max(reached_s, default=0.0) >= REACH_S:
            return None
        if setback.shortened:
            return STEPPED
        until = min(self.world.now, setback.opens_at)
        told = any(up for when, up in self._heard[node] if lost < when <= until)
        return WITNESSES_LOST if told else CUT_OFF

    def untold(self) -> list[tuple[Key, int]]:
        """(attempt, node) of each witness that reached the ledger after the last setback, if the run has no row."""
        world = self.world
        number = len(world.server.setbacks) - 1
        return [
            (key, host)
            for (which, key, host), reached_s in self.longest.items()
            if which == number and reached_s >= REACH_S and world.ledger.run(key[0]) is None
        ]

    def _look(self) -> None:
        """Note which daemons are heard. In a quarantine, note which witnesses reach the ledger, and for how long."""
        world = self.world
        number = len(world.server.setbacks) - 1
        recovers = number >= 0 and world.now < world.server.setbacks[-1].opens_at
        reaching: set[Reach] = set()
        for host in world.hosts:
            daemon = host.daemon if host.daemon is not None and not host.daemon.paused else None
            self._heard[host.index].append((world.now, daemon is not None and world.bus.heard(host)))
            if recovers and world.server.reaches(host):
                known: set[Key] = {r.key for r in host.runners if r.alive and world.now >= r.paused_until}
                if not host.gone and world.now >= max(host.down_until, host.frozen_until):
                    known.update(key for key, until in self._stays[host.index] if world.now < until)
                if daemon is not None and world.now >= daemon.began_at + ENTERS_S and not daemon.stopping:
                    known.update(daemon.told)
                reaching.update((number, key, host.index) for key in known)
        for which in reaching:
            self._reached[which] = self._reached.get(which, -LOOK_S) + LOOK_S
            self.longest[which] = max(self.longest.get(which, 0.0), self._reached[which])
        for which in self._reached.keys() - reaching:
            del self._reached[which]
        world.at(LOOK_S, self._look)
