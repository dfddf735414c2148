"""Every kind of fault: how it strikes, and how it is mended."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from support import servers
from system.lab.processes import warm_parents

from chaos.cluster import BROKER, Arena, Member
from chaos.grants import Grant, Grants, facts
from chaos.load import Jobs
from chaos.net import Way, both_ways

Mend = Callable[[], object]

# Durations (seconds) that are shorter than the lease of 8 s, and longer.
SHORT_S = (1.0, 4.0)
LONG_S = (10.0, 18.0)


class Done(NamedTuple):
    """A fault that has struck: its duration, how to mend it, and its effects."""

    lasts_s: float
    mend: Mend
    detail: str = ""
    cut_off: tuple[str, ...] = ()  # nodes that reach neither bus nor ledger meanwhile
    forgets: bool = False  # the ledger may lose writes that it has acknowledged


class Scene(NamedTuple):
    """The target of a fault: a node, and perhaps the grant of an attempt."""

    arena: Arena
    grants: Grants
    chance: random.Random
    node: Member
    grant: Grant | None
    jobs: Jobs

    def seconds(self, bounds: tuple[float, float]) -> float:
        return self.chance.uniform(*bounds)

    def pids(self) -> dict[str, int]:
        """The pids of runner and watcher of the attempt, or of any attempt on the node; {} without one."""
        chosen = [self.grant] if self.grant else self.grants.alive(self.node.name)
        said = [fact for one in chosen if (fact := facts(one.directory).get("adopted"))]
        if not said:
            return {}
        adopted = self.chance.choice(said)
        return {"runner": adopted["pid"], "watcher": adopted["watcher"]}


class Kind(NamedTuple):
    """``harms``: node | bus | ledger | files. ``strike`` returns None if it finds nothing to strike at."""

    harms: str
    weight: float
    strike: Callable[[Scene], Done | None]


def _signalled(pid: int, number: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


# ---- daemons and what they have started


def kill_daemon(scene: Scene) -> Done:
    scene.node.kill()
    return Done(scene.seconds((0.5, 6.0)), scene.node.launch)


def power_cut(scene: Scene) -> Done:
    count = scene.node.kill_family()
    return Done(scene.seconds((1.0, 10.0)), scene.node.launch, f"{count} processes")


def kill_runner(scene: Scene) -> Done | None:
    pids = scene.pids()
    return Done(0.0, _nothing) if pids and _signalled(pids["runner"], signal.SIGKILL) else None


def kill_watcher(scene: Scene) -> Done | None:
    pids = scene.pids()
    return Done(0.0, _nothing) if pids and _signalled(pids["watcher"], signal.SIGKILL) else None


def kill_runner_and_watcher(scene: Scene) -> Done | None:
    """Kill runner and watcher at once: only the daemon is left to end the program."""
    pids = scene.pids()
    if not pids:
        return None
    for pid in pids.values():
        _signalled(pid, signal.SIGSTOP)
    for pid in pids.values():
        _signalled(pid, signal.SIGKILL)
    return Done(0.0, _nothing)


def kill_runner_and_daemon(scene: Scene) -> Done | None:
    pids = scene.pids()
    if not pids:
        return None
    scene.node.signal(signal.SIGSTOP)  # so that it does not see its runner die
    _signalled(pids["runner"], signal.SIGKILL)
    return kill_daemon(scene)


def _warm_parent(scene: Scene) -> int:
    """The pid of the node's warm parent; 0 without one."""
    process = scene.node.process
    return next(iter(warm_parents(process.pid)), 0) if process else 0


def kill_warm_parent(scene: Scene) -> Done | None:
    pid = _warm_parent(scene)
    return Done(0.0, _nothing) if pid and _signalled(pid, signal.SIGKILL) else None


def stop_warm_parent(scene: Scene) -> Done | None:
    """It is not continued: the daemon kills it when it does not answer."""
    pid = _warm_parent(scene)
    return Done(0.0, _nothing) if pid and _signalled(pid, signal.SIGSTOP) else None


def _stop(name: str, bounds: tuple[float, float]) -> Callable[[Scene], Done | None]:
    def strike(scene: Scene) -> Done | None:
        pid = scene.node.process.pid if name == "daemon" and scene.node.process else scene.pids().get(name, 0)
        if not pid or not _signalled(pid, signal.SIGSTOP):
            return None
        return Done(scene.seconds(bounds), lambda: _signalled(pid, signal.SIGCONT))

    return strike


def jump(scene: Scene) -> Done | None:
    if not scene.node.env:
        return None  # without a compiler, clocks are not moved
    ahead_s = scene.chance.choice((-1, 1)) * scene.seconds(
        scene.chance.choice(((2.0, 25.0), (40.0, 120.0), (3500.0, 3700.0)))
    )
    scene.node.set_clock(ahead_s)
    return Done(scene.seconds((4.0, 20.0)), lambda: scene.node.set_clock(0.0), f"{ahead_s:+.0f} s")


def fill_disk(scene: Scene) -> Done:
    scene.node.fill(scene.node.state_dir)
    return Done(scene.seconds((3.0, 12.0)), scene.node.empty)


def fill_runtime_directory(scene: Scene) -> Done:
    scene.node.fill(scene.node.runtime_dir)
    return Done(scene.seconds((1.0, 8.0)), scene.node.empty)


# ---- people


def _edited(edit: Callable[[Jobs, random.Random], str]) -> Callable[[Scene], Done]:
    """Change a job file. One node reads it at once, the others later, one after the other."""

    def strike(scene: Scene) -> Done:
        what = edit(scene.jobs, scene.chance)
        _reload(scene.node)
        others = [node for node in scene.arena.nodes if node is not scene.node]
        return Done(scene.seconds((0.2, 6.0)), partial(_reload, *others), what)

    return strike


def _reload(*nodes: Member) -> None:
    """Reload as `systemctl reload` does, without waiting. A node that is down reads the files when it starts."""
    for node in nodes:
        if node.up:
            node.signal(signal.SIGHUP)


def _nothing() -> None:
    """There is nothing to mend."""


# ---- the net


def _ways(scene: Scene, hosts: list[str]) -> tuple[list[Way], str]:
    """The ways between the node and these hosts, in both directions or in one. Also returns which direction."""
    name = scene.node.name
    way = scene.chance.choice(("both ways", "both ways", "out", "in"))
    chosen = {
        "both ways": both_ways([name], hosts),
        "out": [(name, host) for host in hosts],
        "in": [(host, name) for host in hosts],
    }[way]
    return chosen, way


def _cut(scene: Scene, hosts: list[str], *, off: bool = False) -> Done:
    ways, detail = _ways(scene, hosts)
    scene.arena.net.cut(ways)
    lasts_s = scene.seconds(scene.chance.choice((SHORT_S, LONG_S, LONG_S)))
    return Done(lasts_s, lambda: scene.arena.net.heal(ways), detail, cut_off=(scene.node.name,) if off else ())


def cut_from_bus(scene: Scene) -> Done:
    return _cut(scene, [BROKER])


def cut_from_ledger(scene: Scene) -> Done:
    return _cut(scene, scene.arena.ledger_hosts)


def cut_from_both(scene: Scene) -> Done:
    return _cut(scene, [BROKER, *scene.arena.ledger_hosts], off=True)


def cut_bus_from_all(scene: Scene) -> Done:
    ways = both_ways([BROKER], [node.name for node in scene.arena.nodes])
    scene.arena.net.cut(ways)
    return Done(scene.seconds((2.0, 10.0)), lambda: scene.arena.net.heal(ways))


# ---- servers


def _restart(server: servers.Server, scene: Scene, bounds: tuple[float, float]) -> Done:
    server.kill()
    return Done(scene.seconds(bounds), server.launch, scene.arena.host_of(server))


def _pause(server: servers.Server, scene: Scene, bounds: tuple[float, float]) -> Done:
    server.pause()
    return Done(scene.seconds(bounds), server.resume, scene.arena.host_of(server))


def kill_broker(scene: Scene) -> Done:
    return _restart(scene.arena.rabbit, scene, (0.5, 6.0))


def pause_broker(scene: Scene) -> Done:
    return _pause(scene.arena.rabbit, scene, (2.0, 12.0))


def kill_ledger(scene: Scene) -> Done:
    """Under Sentinel, a replica becomes the master, and writes that it had not received are lost. A single Redis loses
    nothing."""
    sentinel = scene.arena.production.sentinels is not None
    done = _restart(scene.arena.master(), scene, (4.0, 12.0) if sentinel else (0.3, 4.0))
    return done._replace(forgets=sentinel)


def pause_ledger(scene: Scene) -> Done:
    return _pause(scene.arena.master(), scene, scene.chance.choice(((0.5, 3.0), (8.0, 12.0))))


def kill_sentinel(scene: Scene) -> Done | None:
    under = scene.arena.production.sentinels
    return _restart(scene.chance.choice(under.sentinels), scene, (2.0, 10.0)) if under else None


def promote_behind_a_cut(scene: Scene) -> Done | None:
    """The master is cut off from its replicas and sentinels. Nodes still reach it, and its new writes are lost.
    Sometimes one node is on the old master's side of the cut. Then nobody can tell the new master what that node
    launches."""
    if scene.arena.production.sentinels is None:
        return None
    net, master = scene.arena.net, scene.arena.host_of(scene.arena.master())
    others = [host for host in scene.arena.ledger_hosts if host != master]
    ways = both_ways([master], others)
    alone = scene.chance.random() < 0.25
    if alone:
        ways += both_ways([scene.node.name], [BROKER, *others])
    net.cut(ways)
    lasts_s = scene.seconds((30.0, 36.0)) if alone else scene.seconds((8.0, 14.0))
    detail = f"{master}, and {scene.node.name} with it" if alone else master
    return Done(lasts_s, lambda: net.heal(ways), detail, (scene.node.name,) if alone else (), forgets=True)


KINDS = {
    "kill daemon": Kind("node", 4, kill_daemon),
    "power cut": Kind("node", 10, power_cut),
    "kill runner": Kind("node", 7, kill_runner),
    "kill watcher": Kind("node", 2, kill_watcher),
    "kill runner and watcher": Kind("node", 3, kill_runner_and_watcher),
    "kill runner and daemon": Kind("node", 4, kill_runner_and_daemon),
    "stop daemon, short": Kind("node", 2, _stop("daemon", SHORT_S)),
    "stop daemon, long": Kind("node", 3, _stop("daemon", LONG_S)),
    "stop runner, short": Kind("node", 2, _stop("runner", SHORT_S)),
    "stop runner, long": Kind("node", 5, _stop("runner", LONG_S)),
    "stop watcher, short": Kind("node", 1, _stop("watcher", SHORT_S)),
    "stop watcher, long": Kind("node", 2, _stop("watcher", LONG_S)),
    "kill warm parent": Kind("node", 2, kill_warm_parent),
    "stop warm parent": Kind("node", 2, stop_warm_parent),
    "clock jumps": Kind("node", 4, jump),
    "disk full": Kind("node", 3, fill_disk),
    "runtime directory full": Kind("node", 4, fill_runtime_directory),
    "schedule edited": Kind("files", 3, _edited(Jobs.edit_schedule)),
    "description edited": Kind("files", 2, _edited(Jobs.edit_description)),
    "node cut from bus": Kind("node", 3, cut_from_bus),
    "node cut from ledger": Kind("node", 6, cut_from_ledger),
    "node cut from both": Kind("node", 4, cut_from_both),
    "bus cut from all": Kind("bus", 2, cut_bus_from_all),
    "kill broker": Kind("bus", 2, kill_broker),
    "pause broker": Kind("bus", 2, pause_broker),
    "kill ledger": Kind("ledger", 3, kill_ledger),
    "pause ledger": Kind("ledger", 3, pause_ledger),
    "kill sentinel": Kind("ledger", 1, kill_sentinel),
    "promote behind a cut": Kind("ledger", 9, promote_behind_a_cut),
}
