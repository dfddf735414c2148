"""SK: with ``misfire = "skip"`` a fire time that no node was there for gets no run, and no other one is skipped.

The judge looks itself who is there. A daemon that lives may open a fire time by its own clock, from a second before it
until SKIP_S after it. A node that has been there from long before a fire time until now opened it, so that it is not
skipped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.context import LEAD_S
from coordd.core.jobs.job import scheduled_run
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.fires import SKIPPED
from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.rows import is_backfill
from simulator.judging.fires import FIRES_MAX, job_asked_about, word_of
from simulator.judging.records import KNOWN_S
from simulator.policies import SKIP_S, SKIPS

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.machines.daemon import Daemon
    from simulator.world import Host, World

# How often it is looked who is there (seconds).
LOOK_S = 0.25

# The clock of a node that is there differs from the ledger's by less than this (seconds).
RIGHT_S = 1.0


class Skips:
    """The fire times of one world that are skipped."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._attended: list[float] = []  # what the clocks of living daemons showed
        # (machine, job) -> its daemon, the job's definition, and since when it can open runs (the ledger's wall clock)
        self._there: dict[tuple[int, str], tuple[Daemon, Job, float]] = {}
        self._step = 0.0
        if SKIPS in world.plan.kinds:
            world.at(0.0, self._look)

    def operation(
        self, _host: Host, request: Request[Any], _answer: Answer, before: Row | None, row: Row | None
    ) -> None:
        """Check each scheduled run that gets its row, and what is settled beside it."""
        if SKIPS not in self.world.plan.kinds:
            return
        self._attend()  # some daemons live for less than LOOK_S
        if before is None and row is not None and isinstance(request, Claim | Register):
            self._is_in_time(row)
        name = job_asked_about(request)
        known = self.world.server.job(name) if name else None
        job = self.world.known_jobs.get(known.digest) if known is not None else None
        if job is not None and job.schedule is not None and job.misfire == "skip":
            self._nobody_was_there(job)

    def _is_in_time(self, row: Row) -> None:
        job = self.world.known_jobs.get(row.digest)
        if job is None or job.misfire != "skip" or not row.scheduled or is_backfill(row):
            return
        begin, end = row.due_at - LEAD_S - LOOK_S, row.due_at + SKIP_S + LOOK_S
        if not any(begin <= wall <= end for wall in self._attended):
            self.world.violate(f"SK {row.run} is opened, and no node was there when it was due")

    def _nobody_was_there(self, job: Job) -> None:
        server = self.world.server
        stretches = server.ledger.fires(job.name).stretches
        since = [at for (_, name), (_, of, at) in self._there.items() if name == job.name and of is job]
        if not since or job.schedule is None:
            return
        for due in fires_between(job.schedule, min(since) + KNOWN_S, server.wall() - SKIP_S, FIRES_MAX):
            run = scheduled_run(job.name, due - job.offset_s)
            forgotten = run in self.world.judge.forgotten_by_retention
            if word_of(stretches, due) == SKIPPED and server.first_row(run, job) is None and not forgotten:
                self.world.violate(f"SK {run} was skipped, and a node was there")

    def _attend(self) -> None:
        there = [host for host in self.world.hosts if host.daemon is not None and not host.daemon.paused]
        self._attended += [self.world.wall(host) for host in there]

    def _look(self) -> None:
        world = self.world
        world.at(LOOK_S, self._look)
        self._attend()
        there = {}
        same = world.server.step == self._step
        self._step = world.server.step
        for host in world.hosts:
            for name in world.jobs if self._can_open(host) else ():
                job = host.jobs.get(name)
                known = world.server.job(name) if job is not None and job.misfire == "skip" else None
                if job is None or host.daemon is None or known is None or known.digest != job.digest:
                    continue
                before = self._there.get((host.index, name))
                goes_on = same and before is not None and before[0] is host.daemon and before[1] is job
                since = before[2] if goes_on and before is not None else world.server.wall()
                there[host.index, name] = host.daemon, job, since
        self._there = there

    def _can_open(self, host: Host) -> bool:
        """True if nothing keeps that machine's node from opening and claiming runs."""
        world, daemon = self.world, host.daemon
        return (
            daemon is not None
            and not host.gone
            and daemon.alive
            and not daemon.paused
            and not daemon.full
            and daemon.node.ctx.state == "ready"
            and abs(world.wall(host) - world.server.wall()) < RIGHT_S
            and world.server.reaches(host)
            and world.server.recovering_s(world.server.wall()) <= 0
            and not world.holds.all_stand
        )
