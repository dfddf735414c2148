"""The control methods about jobs: list, show, next, activate."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from coordd.core.jobs.job import HOOK, Job
from coordd.core.ledger.requests import Activate
from coordd.core.ledger.words import OUTDATED, RECOVERING
from coordd.errors import RefusedError, UnavailableError
from coordd.services.breakers.view import of_jobs
from coordd.services.control.callers import OPERATOR, VIEWER, Caller, Method
from coordd.services.control.core_methods import VIEWER_LIST_MAX
from coordd.services.control.lookups import Work
from coordd.services.control.rpc import take
from coordd.services.following import lineal
from coordd.services.ledger import ONLY_LOOKS, boottime
from coordd.services.views import jobview, objects
from coordd.services.views.explanations import Explanations
from coordd.services.views.fire_methods import FIRES_MAX
from coordd.services.views.objects import Stop
from coordd.services.views.troubles import Trouble


class NextFire(NamedTuple):
    """The first fire time of a job after an instant: to find it takes a quarter of a millisecond."""

    job: Job
    after: float
    at: float


class JobMethods(Explanations):
    """The methods that show a job, or activate it."""

    _last_won: dict[str, float] = {}  # noqa: RUF012 - replaced, never changed
    _next_fires: dict[str, NextFire]  # made by the class that has all methods

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {
            "job.list": Method(self.job_list),
            "job.show": Method(self.job_show),
            "job.next": Method(self.job_next),
            "job.fires": Method(self.job_fires),
            "job.activate": Method(self.job_activate, OPERATOR, changes=True),
            **super().table(),
        }

    def _job(self, params: dict[str, Any]) -> Job:
        name = take(params, "job", str, "") or take(params, "name", str)
        job = self._driver.node.jobs.get(name)
        if job is None:
            problems = self._job_problems().get(name)
            if problems:
                raise RefusedError(f"the job {name} is disabled: {problems[0]}", kind="bad_job")
            near = self._like(name)
            hint = f"did you mean {near}?" if near else "coordctl job list shows all jobs"
            raise RefusedError(f"no job {name!r} on this node", kind="unknown_job", hint=hint)
        return job

    def _may_start(self, job: Job) -> None:
        """Raises RefusedError for a job that is held."""
        if not job.enabled:
            raise RefusedError(
                f"{job.name} is held: its job file says enabled = false, so nothing launches it",
                kind="held",
                hint="set enabled = true in the job file on every node, then coordctl reload",
            )

    def _may_trigger(self, job: Job) -> None:
        """Raises RefusedError for a job that is held, and for a hook: its argument would be an event that never was."""
        if job.name.startswith(HOOK):
            raise RefusedError(
                f"{job.name} is a hook: only events call it",
                kind="not_permitted",
                hint="coordctl deadletter replay makes a failed call again",
            )
        self._may_start(job)

    def _may_operate(self, caller: Caller, job: str) -> None:
        owner = self._driver.node.jobs[job].owner if job in self._driver.node.jobs else ""
        if caller.role < OPERATOR and not (owner and owner in caller.groups):
            raise RefusedError(
                f"{caller.name} may not operate {job}",
                kind="not_permitted",
                hint="this needs the operator group" + (f" or the group {owner}" if owner else ""),
            )
        ONLY_LOOKS.set(False)  # an owner's change need not wait behind viewers

    async def job_list(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        stopped, won = await self._stopped(), await self._won(tuple(self._driver.node.jobs))
        now = self._ledger_wall()
        # A copy of the present jobs: the rest is done in a thread.
        jobs = {name: job for name, job in self._driver.node.jobs.items() if not name.startswith(HOOK)}

        self._next_fires = {name: known for name, known in self._next_fires.items() if name in jobs}

        def look(work: Work) -> list[dict[str, Any]]:
            all_problems = self._job_problems()
            listed = [self._job_view(job, stopped, won, now, caller, all_problems, work) for job in jobs.values()]
            listed += [
                {"name": name, "enabled": False, "problems": problems}
                for name, problems in all_problems.items()
                if name not in jobs
            ]
            return sorted(listed, key=lambda view: str(view["name"]))

        return await self._lookups.do(look, looks=caller.role <= VIEWER)

    def _job_view(
        self,
        job: Job,
        stopped: dict[str, Stop],
        won: dict[str, float],
        now: float,
        caller: Caller,
        all_problems: dict[str, list[str]],
        work: Work,
    ) -> dict[str, Any]:
        """Runs in a thread."""
        work.check()
        stop = stopped.get(job.name)
        begins = max(now, stop.hold.until) if stop and stop.hold else now  # nothing starts before the end of a hold
        problems = all_problems.get(job.name, [])
        node = self._driver.node
        problem = (
            node.launch_problems.get(job.name, "")
            or node.abstains_from.get(job.name, "")
            or node.rulebook.definitions.stale.get(job.name, "")
            or (problems[0] if problems else "")
        )
        if not problem and job.overlap != "allow":
            problem = next((blocked(one) for one in self._troubles.found.unknown if one.job == job.name), "")
        breakers = of_jobs({job.name: job}, self._driver.node.drains.holds)
        return objects.job_view(
            job,
            stop=stop,
            next_at=self._next_fire(job, begins),
            problem=problem,
            redacted=caller.role <= VIEWER,
            succeeded_at=won.get(job.name, 0.0),
            late=job.name in self._troubles.found.late_jobs,
            breaker=one.state if (one := breakers.get(job.name)) is not None else "",
        )

    def _next_fire(self, job: Job, begins: float) -> float | None:
        """The first fire time after an instant (Unix seconds); None for a job without one. Runs in a thread."""
        known = self._next_fires.get(job.name)
        if known is not None and known.job is job and known.after <= begins < known.at:
            return known.at
        fires = objects.next_fires(job, begins, 1)
        if not fires:
            return None
        self._next_fires[job.name] = NextFire(job, begins, fires[0])
        return fires[0]

    async def _won(self, jobs: Sequence[str]) -> dict[str, float]:
        """The end of the last success of each of these jobs that has one."""
        last, now = self._troubles.successes.last, boottime()
        with contextlib.suppress(UnavailableError):  # then the last known ones; the ledger's state is shown beside them
            won = await self._ledger.query(lambda ledger: last(ledger, jobs, now))
            self._last_won = {job: at for job, at in (self._last_won | won).items() if job in self._driver.node.jobs}
        return self._last_won

    async def job_show(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        job = self._job(params)
        stopped, won, now = await self._stopped(), await self._won((job.name,)), self._ledger_wall()
        counts = await self.fire_counts(job, looks=caller.role <= VIEWER)
        return await self._lookups.do(
            lambda work: {
                **self._job_view(job, stopped, won, now, caller, self._job_problems(), work),
                **jobview.everything(job, redacted=caller.role <= VIEWER),
                "children": lineal.children_of(job.name, self._driver.node.jobs),
                "fires": counts,
            },
            looks=caller.role <= VIEWER,
        )

    async def job_next(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        job = self._job(params)
        looks, now = caller.role <= VIEWER, self._ledger_wall()
        count = min(max(1, take(params, "count", int, 5)), VIEWER_LIST_MAX if looks else FIRES_MAX)
        fires = await self._lookups.do(lambda work: objects.next_fires(job, now, count, work.check), looks=looks)
        return objects.fire_views(job, fires, now, self._driver.node.identity_from)

    async def job_fires(self, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        return await self.fires_of(self._job(params), params, caller)

    async def job_activate(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        job = self._job(params)
        self._may_start(job)
        node = self._driver.node
        activate = Activate(job=job.name, digest=job.digest, schedule=job.schedule_digest, how="person", by=caller.name)
        answer = await self._change(activate)
        if answer.word == RECOVERING:
            raise RefusedError(f"the ledger is recovering, for {answer.left_s:.0f} s", kind="try_later")
        if answer.word == OUTDATED:
            held = ", ".join(node.rulebook.held_back_by())
            then = f"these nodes must be upgraded first: {held}" if held else "the new ones begin soon"
            raise RefusedError(
                f"the old ledger rules are still in force; {then}",
                kind="try_later",
                hint="upgrade those nodes; `coordctl status` shows which rules are in force",
            )
        self._audit(caller, "job.activate", job.name)
        self._driver.feed(node.look_again)
        return {"job": job.name, "digest": job.digest, "sequence": answer.token}


def blocked(unknown: Trouble) -> str:
    """How an unknown run affects its job."""
    return f"{unknown.run} is unknown, and counts as running: coordctl run resolve {unknown.run}"
