"""What must hold at last, once the faults have stopped: nothing hangs, nothing is forgotten, all is explained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordd.core.job import Job, scheduled_run
from coordd.core.rows import TERMINAL, UNKNOWN
from coordd.core.schedule import fires_between
from simulator.judge import REACH_S
from simulator.terms import SCHEDULES_END_S, WALL

if TYPE_CHECKING:
    from simulator.world import Host, World

# Without any of these no attempt has a reason to be lost.
VIOLENT = frozenset((
    "ledger_cut", "ledger_deaf", "crash", "power", "shutdown", "pause_daemon", "pause_runner", "kill_runner",
    "ledger_down", "ledger_step", "gone", "freeze", "reboot", "disk_full", "launch_fails",
))  # fmt: skip


# What ends a daemon.
DEADLY = frozenset(("crash", "power", "shutdown", "reboot", "gone"))

# So many lost replies about one run may cost it its lease: those to its claim, and then to its renewals.
MANY_REPLIES = 3


def judge(world: World) -> None:
    """Liveness, once the faults have stopped (L1, L2, L3): nothing hangs, nothing is forgotten, all is explained."""
    for row in world.ledger.runs(limit=100_000):
        held = row.state == UNKNOWN and row.policy.startswith("hold")
        if row.state not in TERMINAL and not held:
            world.violate(f"L {row.run} is still {row.state} long after healing")
        if row.state in ("missed", "rejected", "revoked", "lost") and not row.reason and not world.plan.forgets:
            world.violate(f"L {row.run} is {row.state} without a reason")
    if not world.plan.faults & VIOLENT and not world.plan.forgets:
        for row in world.ledger.runs(limit=100_000):
            if (row.relaunches or row.state == UNKNOWN) and world.server.unanswered[row.run] < MANY_REPLIES:
                world.violate(f"G {row.run} was lost ({row.reason}) though nothing was killed, paused or cut off")
    _judge_witnesses(world)
    for run in sorted(world.accepted):
        _judge_trigger(world, run, world.accepted[run])
    for job in world.jobs.values():
        if job.schedule is not None:
            _judge_schedule(world, job)
    _judge_nodes(world)


def _judge_nodes(world: World) -> None:
    """Every machine that is still there takes part, sees who takes part, and has nothing left to say."""
    there = [host for host in world.hosts if not host.gone]
    for host in there:
        if host.daemon is None or host.daemon.node.ctx.state != "ready":
            world.violate(f"L {host.name} is not ready after healing")
        if host.outbox:
            world.violate(f"L {host.name} still has {len(host.outbox)} messages in its outbox")
        if host.disk.requests:
            world.violate(f"L {host.name} still keeps the triggers {sorted(host.disk.requests)}")
    names = {host.daemon.name for host in there if host.daemon is not None}
    for host in there:
        assert host.daemon is not None
        view = set(host.daemon.node.ctx.membership.view())
        if view != names:
            world.violate(f"V {host.name} sees {sorted(view)}, and there are {sorted(names)}")


def _judge_witnesses(world: World) -> None:
    """After the last setback: what a witness that reached the ledger long enough had seen has its row."""
    number = len(world.server.setbacks) - 1
    if number < 0 or world.server.setbacks[number].shortened:
        return
    for (which, (run, attempt, _), host), reached_s in world.judge.longest.items():
        if which == number and reached_s >= REACH_S and world.ledger.run(run) is None:
            world.violate(f"W {run} attempt {attempt} was known to n{host}, and the ledger was not told")


def _judge_trigger(world: World, run: str, keeper: Host | None) -> None:
    row = world.ledger.run(run)
    if row is None and keeper is not None and keeper.gone:
        return  # accepted as durable on that node only, and said so
    if row is None and run in world.judge.forgotten_by_retention:
        return
    if row is None and world.plan.forgets and world.server.setbacks:
        world.judge.forgotten["trigger"] += 1
    elif row is None:
        world.violate(f"L the trigger {run} was accepted and is nowhere")
    elif row.state not in TERMINAL and row.state != UNKNOWN:
        world.violate(f"L the trigger {run} was accepted and is {row.state}")


def _judge_schedule(world: World, job: Job) -> None:
    """The newest fire time of all has its row: whatever the misfire policy, that one is never skipped over.

    With ``misfire = "all"`` every one has, from when the ledger first heard of the job; unless daemons died while the
    ledger was away, before they could write it there, or it was older than what retention keeps (a clock that steps
    ahead of a frozen cluster makes it so).
    """
    assert job.schedule is not None
    if job.misfire == "all" and not world.plan.forgets and not world.plan.faults & DEADLY:
        for at in fires_between(job.schedule, world.server.known_from, WALL + SCHEDULES_END_S, 100):
            run = scheduled_run(job.name, at)
            if world.ledger.run(run) is None and at >= world.judge.kept_from:
                world.violate(f"L {run} has no row, and no fire time may be left out")
    last = fires_between(job.schedule, WALL, WALL + SCHEDULES_END_S, 1)[-1]
    run = scheduled_run(job.name, last)
    if world.ledger.run(run) is not None or run in world.judge.forgotten_by_retention:
        return
    if world.server.setbacks:
        # Forgotten with its job (one that the ledger does not know begins anew), or rejected before the setback.
        world.judge.forgotten["fire time"] += 1
    else:
        world.violate(f"L {run} has no row: it never ran, and nothing says why")
