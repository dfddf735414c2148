"""Checks at the end, after the faults have stopped: nothing hangs, nothing is forgotten, everything has a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from coordd.core.jobs.job import Job, scheduled_run
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.fires import COALESCED, GIVEN_UP, REDEFINED, SKIPPED, SUSPENDED
from coordd.core.ledger.words import PENDING, RETRY, TERMINAL, UNKNOWN, Policy
from coordd.core.runs.planner import CATCH_UP_MAX
from simulator.configuration import CATCH_UP
from simulator.judging import policies
from simulator.judging.excuses import (
    COUNTED_LATER,
    FIRE_TIME_FORGOTTEN,
    NEVER_WRITTEN,
    NOBODYS,
    NOT_CAUGHT_UP,
    TRIGGER_FORGOTTEN,
)
from simulator.judging.fires import word_of
from simulator.judging.leave import nominal
from simulator.judging.limits import slots_of, taken_for_good, waits_for_good
from simulator.terms import CHAOS_S, QUIET_S, SCHEDULES_END_S, WALL

if TYPE_CHECKING:
    from simulator.world import Host, World

# The faults that end a daemon.
DEADLY = frozenset(("crash", "power", "shutdown"))

# This long (seconds) after the last file has changed on the last machine, all nodes plan with the new files.
OF_ONE_MIND_S = 5.0

# Once no node is cut off, a waiting row ends at most this long (seconds) after its ``start_within``.
ENDED_S = 30.0


def judge(world: World) -> None:
    """Liveness after the faults (L1, L2, L3): nothing hangs, nothing is forgotten, everything has a reason."""
    rows = world.ledger.runs(limit=100_000)
    taken = taken_for_good(world)
    for row in rows:
        held = row.state == UNKNOWN and row.policy.startswith("hold")
        if row.state not in TERMINAL and not held and not waits_for_good(world, row, taken):
            world.violate(f"L {row.run} is still {row.state} long after healing")
        if row.state in ("missed", "rejected", "revoked", "lost") and not row.reason:
            world.violate(f"L {row.run} is {row.state} without a reason")
    _judge_witnesses(world)
    if world.plan.published and world.publishing.unsettled():
        world.violate("L the newest revision is sound, and it is not in force on every node")
    for run in sorted(world.accepted):
        _judge_trigger(world, run, world.accepted[run], taken)
    for job in _scheduled(world):
        _judge_schedule(world, job)
    _judge_nodes(world)
    policies.ended(world)
    for event, run, attempt in world.told.untold():
        world.violate(f"HK nobody has told a hook {event} of {run}/{attempt}")


def _scheduled(world: World) -> list[Job]:
    """The jobs with a schedule of their own; AF judges those that come after others."""
    return [job for job in world.jobs.values() if job.schedule is not None and job.after is None]


def takes_turns(world: World) -> bool:
    """True if a run waits for slots all of which are taken, one at least by a program that lives: its turn comes after
    that one. Others may be taken until a person resolves their runs. So does a run that is due while programs take all
    the room of every machine.
    """
    rows = world.ledger.runs(limit=100_000)
    live = {child.run for child in world.judge.live.values()}
    alive = Counter(key for row in rows if row.run in live for key in slots_of(world, row))
    held = Counter(key for row in rows if row.state == UNKNOWN and row.run not in live for key in slots_of(world, row))
    waiting = [row for row in rows if row.state in (PENDING, RETRY)]
    if live and world.rooms.full() and any(row.not_before <= world.server.wall() for row in waiting):
        return True
    return any(
        alive[key] and alive[key] + held[key] >= size for row in waiting for key, size in slots_of(world, row).items()
    )


def judge_waiting(world: World) -> None:
    """U: a run that could not be started within ``start_within`` ends, also if no node has its definition."""
    healed_at = world.server.wall() - (world.now - CHAOS_S) * world.server.rate
    for row in world.ledger.runs(limit=100_000):
        if row.state in (PENDING, RETRY):
            due = max(row.not_before, row.created_at) + Policy.unpack(row.policy).start_within_s
            if world.server.wall() > max(due, healed_at) + ENDED_S:
                world.violate(f"U {row.run} is {row.state}, and its time to start is long over")
    policies.waited(world)


def _judge_nodes(world: World) -> None:
    """Every remaining node is ready, sees all other nodes, and has no message and no trigger left to deliver."""
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
    """W: if a witness reached the ledger long enough after the last setback, every attempt that it knew has a row."""
    for (run, attempt, _), host in world.judge.knowledge.untold():
        world.violate(f"W {run} attempt {attempt} was known to n{host}, and the ledger was not told")


def _judge_trigger(world: World, run: str, keeper: Host | None, taken: set[str]) -> None:
    row = world.server.first_row(run, world.jobs.get(run.partition("#")[0]))
    verdict = f"L the trigger {run} was accepted and is nowhere"
    if row is None and keeper is not None and keeper.gone:
        return  # the answer said that only that node keeps the trigger
    if row is None and run in world.judge.forgotten_by_retention:
        return
    if row is None and any(run in setback.runs for setback in world.server.setbacks):
        world.judge.excuse(TRIGGER_FORGOTTEN, verdict)
    elif row is None:
        world.violate(verdict)
    elif row.state not in TERMINAL and row.state != UNKNOWN and not waits_for_good(world, row, taken):
        world.violate(f"L the trigger {run} was accepted and is {row.state}")


def _judge_schedule(world: World, job: Job) -> None:
    """L: the newest fire time of a job has a row. No misfire policy ever skips that fire time.

    With ``misfire = "all"``, every fire time since the ledger first heard of the job has a row.
    """
    for run, at, later in _without_a_row(world, job):
        _nothing_says_why(world, job, run, at, later)


def owes(world: World) -> bool:
    """True if a fire time that _judge_schedule is about has no row, and no node was ready for the quiet time yet, or no
    machine may take the job, so that it is missed later.
    """
    wall, quiet_since = world.server.wall(), world.now - QUIET_S
    was_ready = any(host.daemon is not None and host.daemon.ready_at <= quiet_since for host in world.hosts)
    tags = [set(world.plan.tags[host.index]) for host in world.hosts if not host.gone]
    for job in _scheduled(world):
        waits_s = job.start_within_s + ENDED_S
        if was_ready and any(set(job.tags) <= there for there in tags):
            continue
        for _, at, _ in _without_a_row(world, job):
            if not (was_ready and at + waits_s <= wall) and not _said(world, job, at):
                return True
    return False


def _said(world: World, job: Job, at: float) -> str:
    """Why a fire time has no row, in one word of the ledger; "" if nothing says it."""
    return word_of(world.server.ledger.fires(job.name).stretches, at)


def _without_a_row(world: World, job: Job) -> Iterator[tuple[str, float, int]]:
    """The fire times (run, Unix time, how many came after it) that must have a row, and have none."""
    assert job.schedule is not None
    # N and D judge the fire times that came up while the files were changed. Here all machines have the same files.
    since = max(world.server.known_from, WALL + world.configuration.settled_at + OF_ONE_MIND_S)
    every = fires_between(job.schedule, since, WALL + SCHEDULES_END_S, 100)
    newest = fires_between(job.schedule, WALL, WALL + SCHEDULES_END_S, 1)
    for at in every if job.misfire == "all" else newest:
        run = scheduled_run(job.name, at - job.offset_s)
        if world.server.first_row(run, job) is None and at >= world.judge.kept_from:
            yield run, at, sum(1 for fire_at in every if fire_at > at)


def _is_there(world: World, job: str) -> bool:
    """True if some machine that is left has the definition that counts, or none counts."""
    row = world.server.job(job)
    digest = row.digest if row is not None else ""
    return not digest or any(
        host.jobs[job].digest == digest for host in world.hosts if not host.gone and job in host.jobs
    )


def _has_a_later_run(world: World, job: str, at: float) -> bool:
    """True if a run of that job has a later fire time."""
    runs = [row.run for row in world.ledger.runs(limit=100_000) if row.job == job and "@" in row.run]
    return any(nominal(run) > at for run in runs)


def _nothing_says_why(world: World, of: Job, run: str, at: float, later: int) -> None:
    """Excuse or report a fire time without a row. ``at``: Unix time; a node's clock may show it earlier or later."""
    judge, job = world.judge, of.name
    if run in judge.forgotten_by_retention:
        return
    decision = _said(world, of, at)
    if decision in (SUSPENDED, REDEFINED) or (decision == GIVEN_UP and world.server.wall() > at + of.start_within_s):
        return
    if decision == COALESCED and of.misfire == "once" and _has_a_later_run(world, job, at):
        return  # one of an earlier definition
    if decision == SKIPPED and any(one.name == job and one.misfire == "skip" for one in world.known_jobs.values()):
        return  # SK judges that nobody was there
    verdict = f"L {run} has no row: it never ran, and nothing says why"
    if world.plan.published and at <= judge.counts_from.get(job, 0.0):
        return  # its revision came into force later
    if any(run in setback.runs for setback in world.server.setbacks):
        judge.excuse(FIRE_TIME_FORGOTTEN, verdict)
    elif at <= world.server.known_again.get(job, 0.0):
        # The ledger had forgotten the job, too. A job that the ledger does not know begins when the ledger hears of it.
        judge.excuse(FIRE_TIME_FORGOTTEN, verdict)
    elif not _is_there(world, job):
        judge.excuse(NOBODYS, verdict)
    elif at <= judge.counts_from.get(job, 0.0):
        judge.excuse(COUNTED_LATER, verdict)
    elif later >= world.plan.limits.get(CATCH_UP, CATCH_UP_MAX):
        judge.excuse(NOT_CAUGHT_UP, verdict)
    elif later and any(world.records.between(h.index, at - WALL - 1, CHAOS_S, DEADLY) for h in world.hosts):
        judge.excuse(NEVER_WRITTEN, verdict)
    else:
        world.violate(verdict)
