"""Fire times: which scheduled runs are due, and which were missed.

There is no master: every node computes the same nominal fire times, so every node opens the same runs, and the ledger
grants each only once. A job starts at the ledger's horizon, so that no settled fire time is opened again, and not
before its definition counts. All instants here are due times; the ids of the runs follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping

from coordd.core.context import LEAD_S, Context
from coordd.core.groups.members import members_of
from coordd.core.jobs.job import Job, fire_time, scheduled_run
from coordd.core.jobs.limits import claimed_policy
from coordd.core.jobs.schedule import fires_between, next_fire
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import NOTHING_SETTLED, Register, Settled
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Now
from coordd.core.runs.passing import settled
from coordd.core.wire.events import Action

# With misfire = "skip", a fire time older than this (seconds) counts as missed: no node was there to launch it.
SKIP_GRACE_S = 30.0

# With misfire = "all", at most this many missed fire times are caught up; older ones are settled.
CATCH_UP_MAX = 1000

# A node with a wrong clock checks this often (seconds) whether the clock is right again.
CLOCK_RECHECK_S = 1.0

# The wall clock may step: it is checked this often (seconds) even when nothing is due.
RECHECK_S = 30.0


class Planner:
    """The next fire time of every job with a schedule."""

    __slots__ = (
        "_arrived",
        "_begin",
        "_brought_back",
        "_ctx",
        "_horizons",
        "_offset",
        "_settled",
        "_stale",
        "_starts",
        "cursors",
        "next_at",
    )

    def __init__(
        self,
        ctx: Context,
        begin: Callable[[Action, Now, Settled], object],
        stale: Callable[[], Mapping[str, str]],
        brought_back: Container[str],
    ) -> None:
        """``stale``: the jobs whose scheduled runs this node does not open, because another definition counts.
        ``brought_back``: those that were missing here and have begun to count since.
        """
        self._ctx = ctx
        self._stale = stale
        self._brought_back = brought_back
        self._begin = begin
        self.cursors: dict[str, float] = {}  # job -> the fire time up to which this node has opened runs
        self.next_at: dict[str, float] = {}  # job -> the next fire time (Unix seconds)
        self._settled: dict[str, float] = {}  # job -> its horizon in the ledger, as last heard
        self._starts: dict[str, tuple[float, float]] = {}  # job -> where it starts: counts_from, horizon before any run
        self._horizons: dict[str, float] = {}  # job -> up to where the ledger has settled its fire times
        self._arrived: dict[str, tuple[float, float]] = {}  # job -> when a reload brought its schedule (mono, wall)
        self._offset = float("-inf")  # wall clock minus the clock that never steps

    def horizons(self, answer: OpenAnswer, now: Now) -> None:
        """The ledger has sent the horizon of each job: start with the jobs that are new here."""
        for name, stands in answer.jobs.items():
            job = self._ctx.jobs.get(name)
            if job is None or job.schedule is None:
                continue
            if name in self._stale():
                self.forget(name)
                continue
            current = answer.current.get(name)
            counts_from = current.counts_from if current is not None else 0.0
            self._horizons[name] = max(stands.horizon, counts_from)
            self._settled[name] = max(stands.horizon, stands.last_fire_at, counts_from, self._arrived_at(name, now))
            if name not in self.cursors or self.cursors[name] < counts_from:
                self.cursors[name] = self._settled[name]
                self.plan(name, now)
            begins = stands.horizon if stands.fence == 0 else math.inf
            told_counts, told_begins = self._starts.get(name, (counts_from, begins))
            if counts_from < told_counts or begins < told_begins:
                # The ledger's clock was ahead when it said where the job starts, and it has been set right.
                self.cursors[name] = min(self.cursors[name], self._settled[name])
                self.plan(name, now)
            self._starts[name] = counts_from, begins

    def take(self, before: Mapping[str, Job], now: Now, *, reloaded: bool) -> None:
        """The job files are other ones now; ``reloaded``: by a reload, not at the start.

        A schedule that a reload brings opens nothing here that was due before: nodes that had it open that. Or it had
        been removed on all of them, and nobody opens what was due meanwhile. This node cannot tell which, and may be
        the first to ask. (Of a published revision the ledger knows it: its definitions count from one instant.)
        But a job that was missing here and has begun to count since counts from then: another node has brought it
        back, and may have died before it opened what was due.
        """
        jobs = self._ctx.jobs
        self._arrived = {name: at for name, at in self._arrived.items() if name in jobs}
        for name, job in jobs.items():
            if reloaded and job.schedule is not None and (name not in before or before[name].schedule is None):
                self._arrived[name] = now.mono, now.wall - self._ctx.skew_s(now)
        for name in before:
            if name not in jobs or jobs[name].digest != before[name].digest:
                self.forget(name)

    def _arrived_at(self, name: str, now: Now) -> float:
        """When a reload brought that schedule, in Unix seconds by the ledger's clock; 0.0: it was here at the start, or
        begins where the ledger says.

        That clock may have been set since: the earlier of what it said then and what it says now of that instant.
        """
        if name not in self._arrived or name in self._brought_back:
            return 0.0
        mono, told = self._arrived[name]
        return min(told, now.wall - self._ctx.skew_s(now) - (now.mono - mono))

    def settled_to(self, name: str) -> float | None:
        """The horizon of a job in the ledger, as last heard; None: not known yet."""
        return self._settled.get(name)

    def forget(self, name: str) -> None:
        """The job was changed or removed, or is stale here: its schedule is read again with the next sweep."""
        for told in (self.cursors, self.next_at, self._settled, self._starts, self._horizons):
            told.pop(name, None)

    def open_again(self, name: str, due: float, now: Now) -> None:
        """Open runs from then on once more: they were opened under other ids."""
        if name in self.cursors:
            self.cursors[name] = min(self.cursors[name], math.nextafter(due, -math.inf))
            self.plan(name, now)

    def plan(self, name: str, now: Now) -> None:
        """Open the due runs of one job, and set the timer for the next."""
        job = self._ctx.jobs.get(name)
        if job is None or job.schedule is None or name not in self.cursors:
            return
        self._look_for_a_step(now)
        if self._ctx.clock_is_off(now):  # other nodes open them; this node does once its clock is right
            self._ctx.arm(now.mono + CLOCK_RECHECK_S, "plan", name)
            return
        until = now.wall + LEAD_S
        fires = fires_between(job.schedule, self.cursors[name], until, CATCH_UP_MAX)
        if fires:
            if job.follows is None:  # core/node/following.py opens the others, when their parents have ended too
                self._open(job, fires, now)
            self.cursors[name] = fires[-1]
        upcoming = next_fire(job.schedule, max(self.cursors[name], until))
        if upcoming is None:
            self.next_at.pop(name, None)
            return
        self.next_at[name] = upcoming
        wait_s = max(0.0, upcoming - LEAD_S - now.wall)
        self._ctx.arm(now.mono + min(wait_s, RECHECK_S), "plan", name)

    def _look_for_a_step(self, now: Now) -> None:
        """The wall clock was set back, so some opened fire times are in the future again: restart at the ledger's
        horizon.

        Opening a run twice does no harm: the ledger knows it.
        """
        offset = now.wall - now.mono
        if offset < self._offset - LEAD_S:
            self._ctx.note("wall_clock.set_back", seconds=round(self._offset - offset, 1))
            for name in self.cursors:
                self.cursors[name] = min(self.cursors[name], self._settled[name])
        self._offset = offset

    def _open(self, job: Job, fires: list[float], now: Now) -> None:
        """Apply the misfire policy to the fire times since the last check."""
        settled_to = self.cursors[job.name]
        if job.misfire == "skip":
            missed = [fire_at for fire_at in fires if fire_at < now.wall - SKIP_GRACE_S]
            if missed:
                settled_to = missed[-1]
                self._passed_over("skipped", job, missed, fires[len(missed) :])
            fires = fires[len(missed) :]
        elif job.misfire == "once" and len(fires) > 1:
            settled_to = fires[-2]
            self._passed_over("coalesced", job, fires[:-1], fires[-1:])
            fires = fires[-1:]
        if job.misfire == "all" or job.expand is not None:
            # Without the ledger, earlier fire times were opened and may have no row yet. Of a group, the first granted
            # member of one fire time would settle members of an earlier one, of which others run: Passing settles them.
            settled_to = 0.0
        if job.misfire == "all":
            for due in fires if len(fires) > 1 else ():  # oldest first, so that a crash now loses none
                for named in self._actions(job, due):
                    of = Registration(
                        named.run,
                        job.name,
                        job.digest,
                        claimed_policy(job, named.args, self._ctx.hostname, self._ctx.concurrency),
                        named.fire_at,
                        scheduled=True,
                        args=named.args,
                        due=named.due,
                        identity_from=self._ctx.identity_from,
                    )
                    self._ctx.ask(Register(of=of))
        known = settled(job, settled_to, self._horizons.get(job.name, 0.0)) if settled_to else NOTHING_SETTLED
        for due in fires:
            for action in self._actions(job, due):
                self._begin(action, now, known)

    def _passed_over(self, word: str, job: Job, fires: list[float], opened: list[float]) -> None:
        """Note the fire times that get no run. ``run``: the launch that settles them, if one is opened."""
        run = scheduled_run(job.name, fire_time(job, opened[0], self._ctx.identity_from)) if opened else ""
        self._ctx.note(f"fires.{word}", job=job.name, count=len(fires), first=fires[0], last=fires[-1], run=run)

    def _actions(self, job: Job, due: float) -> list[Action]:
        """One run, or the members of a group."""
        fire_at = fire_time(job, due, self._ctx.identity_from)
        run = scheduled_run(job.name, fire_at)
        later = due if due > fire_at else 0.0
        return [
            Action(job.name, one.run, 0, fire_at, True, job.digest, one.args, later)
            for one in members_of(job, run, fire_at)
        ]
