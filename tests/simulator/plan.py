"""What a seed draws: the jobs, who asks for what, and what goes wrong when."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from coordd.core.job import Command, Job, Retry, Schedule
from coordd.core.rows import Registration
from simulator.terms import CHAOS_S, LEASE, SCHEDULES_END_S, WALL

if TYPE_CHECKING:
    from simulator.world import Host, World

FAULTS = (
    "loss", "duplication", "slow", "bus_cut", "ledger_cut", "crash", "power", "pause_daemon", "pause_runner",
    "kill_runner", "ledger_down", "ledger_step", "skew", "step", "late_join", "lost_reply", "gone", "freeze",
)  # fmt: skip

# What only a cluster of several machines can meet: the broker is away for all, one node's connection is lost.
PRODUCTION_FAULTS = ("broker_down", "connection_lost")

# How a ledger goes back: a replica takes over that lacks the last writes; a restart from an old snapshot; a flush.
SETBACKS = ("failover", "old_snapshot", "flush")


def jobs(rng: random.Random) -> dict[str, Job]:
    """Four jobs: scheduled, spread, held, by hand."""
    launch = Command(argv=("/bin/true",))
    every = rng.choice((11.0, 14.0, 19.0))
    end = WALL + SCHEDULES_END_S
    made = [
        Job(
            name="sched", digest="d1", launch=launch, schedule=Schedule(kind="every", every_s=every, end=end),
            lease_s=LEASE, misfire=rng.choice(("once", "all")), overlap=rng.choice(("forbid", "queue", "allow")),
        ),
        Job(
            name="spread", digest="d2", launch=launch, lease_s=LEASE,
            schedule=Schedule(kind="every", every_s=13.0, end=end),
            placement="spread", overlap="allow", retry=Retry(attempts=3, delay_s=2.0, relaunches=50),
        ),
        Job(
            name="held", digest="d3", launch=launch, lease_s=LEASE, on_lost="hold", overlap="allow",
            retry=Retry(attempts=2, delay_s=1.0),
        ),
        Job(name="hand", digest="d4", launch=launch, lease_s=LEASE, overlap="allow", retry=Retry(relaunches=50)),
    ]  # fmt: skip
    return {job.name: job for job in made}


def plan_triggers(world: World) -> None:
    """Who asks for what, and when."""
    rng = world.rng
    for number in range(rng.choice((10, 12, 16))):
        job = world.jobs[rng.choice(("held", "hand", "hand"))]
        run = f"{job.name}#{number}"
        for _ in range(rng.choice((1, 1, 2))):  # the same id, on whichever nodes, is the same run
            world.asked.add(run)
            world.at(rng.uniform(2, CHAOS_S), _trigger, world, job, run)


def _trigger(world: World, job: Job, run: str) -> None:
    there = [h for h in world.hosts if h.daemon is not None and h.daemon.node.ctx.state == "ready"]
    host = world.rng.choice(there or world.hosts)
    if host.daemon is None or not there:
        world.at(1.0, _trigger, world, job, run)  # people try again
    else:
        of = Registration(run, job.name, job.digest, job.policy(), world.wall(host), scheduled=False)
        host.daemon.node.trigger(of, 1 + int(run.split("#")[1]), host.daemon.time())
        host.daemon.pump()


def plan_faults(world: World, *, narrowed: bool) -> None:
    """What goes wrong, and when."""
    rng = world.rng
    each: dict[str, Callable[[Host], object]] = {
        "crash": lambda h: world.crash_daemon(h, rng.uniform(0.5, 15)),
        "power": lambda h: world.power_cut(h, rng.uniform(2, 20)),
        "bus_cut": lambda h: world.bus.cut(h, rng.uniform(1, 25)),
        "ledger_cut": lambda h: setattr(h, "ledger_cut", world.now + rng.uniform(0.5, 20)),
        "pause_daemon": lambda h: h.daemon and h.daemon.pause(rng.uniform(0.2, 20)),
        "pause_runner": lambda h: [r.pause(rng.uniform(3, 30)) for r in h.runners],
        "freeze": lambda h: world.freeze(h, rng.uniform(1, 30)),
        "kill_runner": lambda h: [r.killed() for r in list(h.runners) if rng.random() < 0.7],
        "step": lambda h: setattr(h, "skew", h.skew + rng.choice((-30, -5, 5, 30))),
    }
    chosen = [fault for fault in each if fault in world.faults]
    if len(chosen) < 2 and not narrowed:
        chosen = sorted({*chosen, *rng.sample(list(each), 2)})  # every world has its faults
        world.faults.update(chosen)
    for fault in chosen:
        for _ in range(rng.choice((3, 4, 6))):
            world.at(rng.uniform(3, CHAOS_S), _strike, world, fault, each[fault])
    if "gone" in world.faults:
        for _ in range(rng.choice((1, 2, 4))):
            world.at(rng.uniform(5, CHAOS_S), world.goes_for_good)
    if "ledger_down" in world.faults:
        for _ in range(rng.choice((1, 2))):
            world.at(rng.uniform(3, CHAOS_S), world.server.fault, "ledger_down", rng.uniform(0.5, 15))
    back = 5.0 if world.forgets else -5.0  # S3 leans on a clock that does not go back then
    if "ledger_step" in world.faults:
        for _ in range(rng.choice((1, 2))):
            world.at(rng.uniform(3, CHAOS_S), world.server.fault, "ledger_step", rng.choice((back, 5.0, 12.0, 20.0)))
    if world.production:
        _plan_production(world, narrowed=narrowed)


def _plan_production(world: World, *, narrowed: bool) -> None:
    """What several machines can meet; drawn last, so that the other worlds stay what they are."""
    rng = world.rng
    if not narrowed:
        world.faults.update(fault for fault in PRODUCTION_FAULTS if rng.random() < 0.6)
    if "broker_down" in world.faults:
        for _ in range(rng.choice((1, 2))):
            world.at(rng.uniform(2, CHAOS_S), _broker_down, world, rng.uniform(0.5, 20))
    if "connection_lost" in world.faults:
        for _ in range(rng.choice((2, 4, 6))):
            world.at(rng.uniform(2, CHAOS_S), _strike, world, "connection_lost", world.bus.lose_connection)
    if world.forgets:
        first = rng.uniform(8, CHAOS_S)
        again = first + rng.choice((rng.uniform(1, 12), rng.uniform(12, 30)))
        for at in (first, min(again, CHAOS_S))[: rng.choice((1, 1, 2))]:
            world.at(at, world.server.fault, rng.choice(SETBACKS), rng.uniform(0.2, 3.0))


def _broker_down(world: World, seconds: float) -> None:
    world.fault_log["broker_down"] += 1
    world.say(f"FAULT broker_down {seconds:.2f}")
    world.bus.down(seconds)


def _strike(world: World, fault: str, strike: Callable[[Host], object]) -> None:
    """Half of the faults strike at random, half where something is running."""
    busy = [h for h in world.hosts if h.runners]
    host = world.rng.choice(busy if busy and world.rng.random() < 0.6 else world.hosts)
    world.fault_log[fault] += 1
    world.say(f"FAULT {fault} {host.name}")
    strike(host)
