"""Collects what is known of runs without a row in the ledger; absent.py, due.py and children.py put it into words."""

from __future__ import annotations

from typing import Any

from coordd.core.groups.expand import group_of
from coordd.core.jobs.after import period_of
from coordd.core.jobs.job import After, Job, due_time, job_of, scheduled_run
from coordd.core.jobs.schedule import is_blacked_out, next_fire
from coordd.core.ledger.requests import nominal_time
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import TERMINAL
from coordd.core.runs.pursued import Pursuit
from coordd.errors import UnavailableError
from coordd.services.control import disclosure
from coordd.services.control.callers import VIEWER, Caller
from coordd.services.following import groups, lineal
from coordd.services.views.fire_methods import FireMethods
from coordd.services.views.fires import Fire
from coordd.services.waiting import children, due
from coordd.services.waiting.absent import Absent, not_launched, undecided
from coordd.services.waiting.sentences import clock_off

# The ledger is asked for at most this many rows at a time whether it has them.
RECORDED_MAX = 1000


class Absences(FireMethods):
    """The facts about runs without a row."""

    async def absent(self, run: str, pursuit: Pursuit | None, caller: Caller) -> Absent:
        """Why that run has no row. Raises UnavailableError."""
        found = await self._absent_group(run) or await self._absent(run)
        fire, accepted = await self._decision(run, caller), run in self._driver.node.triggers.requests
        return found._replace(fire=fire, accepted=accepted, given_up=self._given_up(pursuit))

    async def _absent_group(self, run: str) -> Absent | None:
        """What the rows of a group's members tell of it. None: the run is not a group, or none of them has a row."""
        expand = groups.expanded(run, self._driver.node.jobs.get(job_of(run)))
        if expand is None:
            return None
        rows = await self._ledger.query(lambda ledger: groups.member_rows(ledger, run, expand))
        if not rows:
            return None
        ended = groups.state_of(rows, expand.count) in TERMINAL
        said = groups.sentence(run, rows, expand.count)
        return Absent(True, nominal_time(run), group=said, group_ended=ended)

    async def _absent(self, run: str) -> Absent:
        job, fire_at = self._driver.node.jobs.get(job_of(run)), nominal_time(run)
        if job is None:
            return Absent(False, fire_at)
        own, misnamed = job.released.schedule is not None, _misnamed(run, fire_at)
        about = Absent(
            True,
            fire_at,
            own=own,
            held=not job.enabled,
            child=job.after is not None,
            misnamed=misnamed,
            now=self._ledger_wall(),
        )
        if misnamed:
            return about
        if fire_at is not None and own:
            about = about._replace(**self._of_schedule(job.released, fire_at))
        if job.after is None:
            return about
        return about._replace(**await self._of_parents(run, job, job.after, about))

    def _of_schedule(self, job: Job, fire_at: float) -> dict[str, Any]:
        """What the schedule of a job tells of a fire time; what is settled counts with the job's jitter, as it does."""
        node, schedule = self._driver.node, job.schedule
        assert schedule is not None, job.name
        at = due_time(job, fire_at, node.identity_from)
        return {
            "fire_at": at,
            "is_fire_time": next_fire(schedule, at - 1e-6) == at,
            "following": next_fire(schedule, at),
            "settled_to": node.planner.settled_to(job.name),
            "passed_over": self._driver.passed_over(job.name, at),
            "misfire": job.misfire,
            "blacked_out": is_blacked_out(schedule, at),
        }

    async def _of_parents(self, run: str, job: Job, after: After, about: Absent) -> dict[str, Any]:
        """What there is to say of the parents of a child: that it waits for them, or why they have not opened it."""
        node, fire_at, group = self._driver.node, nominal_time(run), group_of(run)
        awaits = next(
            (lineal.awaits(one) for one in node.following.waiting(job.name, about.now) if one.run == group), ""
        )
        if awaits or not job.enabled:
            return {"awaits": awaits, "waits": bool(awaits)}
        period = period_of(after, job.timezone, group, fire_at or 0.0, scheduled=fire_at is not None)
        if fire_at is not None and not about.own and period.at != fire_at:
            at = scheduled_run(job.name, period.at)
            return {"misnamed": f"no period of it begins then; that of this time is {at}"}
        jobs = dict(node.jobs)
        family = await self._ledger.query(lambda ledger: children.read(ledger, job, after, group, period, jobs))
        own_due = (about.fire_at or 0.0) if about.own else 0.0
        return {"awaits": children.told(job, after, period, family, own_due, about.now)}

    async def _decision(self, run: str, caller: Caller) -> Fire | None:
        """What the ledger has decided about a fire time; None also while it does not answer."""
        try:
            fire = await self.decision(run, looks=caller.role <= VIEWER)
        except UnavailableError:
            return None
        return self._as_seen(fire, caller) if fire is not None else None

    @staticmethod
    def _as_seen(fire: Fire, caller: Caller) -> Fire:
        return fire._replace(reason=disclosure.reason(fire.reason)) if caller.role <= VIEWER else fire

    def _given_up(self, pursuit: Pursuit | None) -> str:
        """Until when a run that is due may be launched; "" for another one."""
        wall, node = self._ledger_wall(), self._driver.node
        if pursuit is None or not due.without_row([pursuit], wall):
            return ""
        job = node.definition(pursuit.action.job, pursuit.action.digest) or node.jobs.get(pursuit.action.job)
        return due.given_up(job, pursuit.action.due_at, wall) if job is not None else ""

    def clock_off(self) -> str:
        """Why this node opens no scheduled run: its clock is wrong; "" if it is not."""
        return clock_off(self._driver.node.skew_s(self._driver.now()))

    async def due_now(self, job: Job, rows: list[Row], caller: Caller) -> str:
        """What became of the newest fire times without a run; "" also while the ledger is away."""
        node, wall = self._driver.node, self._ledger_wall()
        waiting = due.without_row(node.pursuits.pursuits.values(), wall)
        waiting = [one for one in waiting if one.action.job == job.name][:RECORDED_MAX]
        names = [one.action.run for one in waiting]
        try:
            known = await self._ledger.query(lambda ledger: ledger.recorded(names)) if names else set()
            newest = await self.newest_without_run(job)
        except UnavailableError:
            return due.told(job, waiting, node.elections.by_id, wall)
        waiting = [one for one in waiting if one.action.run not in known]
        said = [due.told(job, waiting, node.elections.by_id, wall)]
        told = {row.run for row in rows} | {group_of(one.action.run) for one in waiting}
        if newest is not None and newest.run not in told and scheduled_run(job.name, newest.fire_at) not in told:
            seen = self._as_seen(newest, caller) if newest.decision else newest
            said.append(not_launched(seen) if newest.decision else undecided(job, seen, wall))
        return " ".join(filter(None, said))


def _misnamed(run: str, fire_at: float | None) -> str:
    """The id that was expected, if this one does not name a run; "" if it may."""
    job = job_of(run)
    if "#" in run or run == job:
        return ""
    if fire_at is None:
        return f"expected an id with a time, such as {job}@2026-11-21T02:00:00Z"
    named = scheduled_run(job, fire_at)
    return "" if group_of(run) == named else f"the id of the run of that time is {named}"
