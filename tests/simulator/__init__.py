"""A whole cluster on one thread, under virtual time, from one seed: real core, the ledger's real rules, every fault.

``run(seed)`` draws a world (nodes, jobs, people, faults) from the seed, runs it with faults, heals it, and judges it:
safety after every event, liveness after healing. The same seed gives the same run, so a bug report needs only the seed.
The core is real. Everything around it is simulated: bus, disk, clocks, processes, the ledger's storage.

    plan        what a seed draws: jobs, triggers, faults   world       time, machines, faults
    server      the ledger, its network and lost writes     bus         datagrams, or a broker with its outboxes
    daemon      a node's shell                              runner      a runner, its watcher, its program
    disk        files, and power cuts                       people      triggers, revocations, suspensions
    intruder    forged messages, and lies                   records     the faults of each machine, with times
    judge       checks of ledger, launches and ends         hearing     checks of messages and decisions
    final       checks at the end                           knowledge   which node had heard of which attempt
    excuses     allowed exceptions, and how often           answers     what a node that joins is told of ends
    terms       durations that all share                    shrink      the smallest plan that still fails

As in TigerBeetle's VOPR, each seed draws *which* faults exist and how strong they are (swarm testing).
"""

from __future__ import annotations

from simulator.judging.final import judge as judge_at_last, judge_waiting
from simulator.judging.judge import Violation
from simulator.plan import Plan, draw
from simulator.terms import CHAOS_S, LOOK_AGAIN_S, QUIET_S
from simulator.world import World

__all__ = ["Violation", "World", "draw", "live", "run"]


def run(
    seed: int,
    *,
    trace: bool = False,
    faults: tuple[str, ...] | None = None,
    forgets: bool | None = None,
    redis_url: str = "",
) -> World:
    """Run the world of one seed. Raises Violation, which has the world as its attribute ``world``.

    ``faults``: only these faults strike. ``forgets``: True makes the ledger lose acknowledged writes, and False makes
    it keep all writes.
    """
    return live(draw(seed, faults, forgets), trace=trace, redis_url=redis_url)


def live(plan: Plan, *, trace: bool = False, redis_url: str = "") -> World:
    """Run the world of one plan. Raises Violation, as ``run`` does."""
    world = World(plan, trace=trace, redis_url=redis_url)
    try:
        with world.memory_of_receivers():
            world.until(CHAOS_S)
            world.heal()
            world.until(CHAOS_S + QUIET_S)
            while world.unsettled() and world.now < CHAOS_S + world.patience_s():
                world.until(world.now + LOOK_AGAIN_S)  # long programs may run one after the other
                judge_waiting(world)
            judge_at_last(world)
            world.judge_identity()
    except Violation as exc:
        exc.world = world  # type: ignore[attr-defined]  # for the transcript
        raise
    except Exception as exc:  # a defect too: a real daemon would end with this exception
        crash = Violation(f"X {type(exc).__name__}: {exc}")
        crash.world = world  # type: ignore[attr-defined]  # set here, read by the caller
        raise crash from exc
    finally:
        if world.server.scripts is not None:
            world.server.scripts.close()
    return world
