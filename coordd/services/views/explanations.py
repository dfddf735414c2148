"""`why`: collects what is known of one run or one job; why.py puts it into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import trio

from coordd.core.groups.expand import group_of
from coordd.core.jobs.job import Job, job_of, unpinned
from coordd.core.ledger.requests import ListOpen, nominal_time
from coordd.core.ledger.rows import ALL, OF_JOB, Hold, Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import RECEIVED, STARTED, TERMINAL
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.core.names import host_of
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Ledger
from coordd.services.breakers.view import of_jobs
from coordd.services.control import disclosure
from coordd.services.control.callers import VIEWER, Caller, Method
from coordd.services.control.core_methods import VIEWER_LIST_MAX
from coordd.services.control.rpc import take
from coordd.services.driver import Driver
from coordd.services.following import lineal
from coordd.services.ledger import LedgerService, boottime
from coordd.services.relay import Relay
from coordd.services.views import objects, recorded, timeline, whatif, why
from coordd.services.views.objects import Stop
from coordd.services.views.timeline import Step
from coordd.services.views.troubles import Troubles
from coordd.services.views.why import CALM, Holder, Obstacles, Surroundings
from coordd.services.waiting.absences import Absences
from coordd.services.waiting.absent import Absent

# A sentence, and what happened.
Explained = tuple[str, list[Step]]

# For a job without a file: this many runs are counted, and this many of them are named.
ROWS_MAX = 1000


class Explanations(Absences):
    """Explains what delays a run or a job."""

    def __init__(
        self,
        driver: Driver,
        ledger: LedgerService,
        troubles: Troubles,
        *,
        ledger_url: str,
        job_problems: Callable[[], dict[str, list[str]]],
        relay: Relay,
    ) -> None:
        """``relay``: asks the other nodes."""
        super().__init__(driver, ledger, ledger_url)
        self._relay = relay
        self._troubles = troubles
        self._job_problems = job_problems
        self._last_stopped: dict[str, Stop] = {}

    def table(self) -> dict[str, Method]:
        """Every method, with the lowest role that may call it."""
        return {"why": Method(self.why), **super().table()}

    async def why(self, params: dict[str, Any], caller: Caller) -> dict[str, Any]:
        subject = take(params, "id", str, "") or take(params, "job", str)
        of_job = job_of(subject) == subject
        said, steps = await (self._why_job if of_job else self._why_run)(subject, caller)
        unheard: list[str] = []
        heard = [] if of_job or steps else self._heard(subject)
        if not of_job and caller.role > VIEWER:  # journals say what people did: viewers see what the ledger tells
            steps, unheard = await self._with_journals(subject, steps, heard)
        else:
            steps = steps or heard
        found = bool(steps) or await self._is_known(subject, caller, of_job=of_job)
        told = {"id": subject, "why": said, "sentence": said, "timeline": timeline.shown(steps), "unheard": unheard}
        told["found"] = found
        away = take(params, "without", str, "")
        return told | {"what_if": await self._without(subject, away)} if away else told

    async def _is_known(self, subject: str, caller: Caller, *, of_job: bool) -> bool:
        """True if there is such a run or job, or may be while the ledger does not answer; also for a fire time of a
        known job, of which ``why`` can tell why there is no run.
        """
        node, job = self._driver.node, job_of(subject)
        if of_job and (job in node.jobs or job in self._job_problems()):
            return True
        try:
            if of_job:
                return bool(await self._ledger.query(lambda ledger: ledger.runs(job=job, limit=1)))
            if any(subject in (run, group_of(run)) for run in (*node.pursuits.pursuits, *node.triggers.requests)):
                return True
            if await self._ledger.query(lambda ledger: ledger.run(subject)) is not None:
                return True
            absent = await self.absent(subject, None, caller)
            return bool(absent.group) or self._was_to_be(subject, absent)
        except UnavailableError:
            return True

    def _was_to_be(self, run: str, absent: Absent) -> bool:
        """True for a run without a row that is, or was, a fire time of its job, as far as this node knows."""
        if nominal_time(run) is None or absent.misnamed:
            return False
        if not absent.known:
            return job_of(run) in self._job_problems()  # nobody can read its schedule
        if absent.waits or absent.is_fire_time or absent.blacked_out or (absent.child and not absent.own):
            return True
        return absent.fire is not None  # by an earlier definition

    def _heard(self, run: str) -> list[Step]:
        """How it ended, as far as this node has heard: the ledger may be away."""
        known = self._driver.node.outcomes.of(run)
        return recorded.ended(known.outcome) if known is not None else []

    async def _with_journals(self, run: str, steps: list[Step], heard: list[Step]) -> tuple[list[Step], list[str]]:
        """The timeline with what the journals of all nodes tell of the run; and the nodes that could not be asked."""
        relay, members = self._relay, self._driver.node.members.values()
        told = await relay.ask("journal", run, [member.name for member in members if member.state == ALIVE])
        told[""] = await trio.to_thread.run_sync(relay.own, "journal", run)
        unheard = [member.hostname for member in members if told.get(member.name) is None]
        return recorded.merged(steps, heard, *(recorded.unpacked(body) for body in told.values() if body)), sorted(
            unheard
        )

    async def _without(self, subject: str, away: str) -> str:
        """What would be without that node."""
        node, name = self._driver.node, job_of(subject)
        alive = [m.hostname for m in node.members.values() if m.state == ALIVE and m.hostname != away]
        if away not in (node.hostname, *node.members):
            known = ", ".join(sorted([node.hostname, *node.members]))
            raise RefusedError(f'there is no node "{away}"', kind="unknown_node", hint=f"known here: {known}")

        def read(ledger: Ledger) -> Row | None:
            return ledger.run(subject) if name != subject else next(iter(ledger.runs(job=name, limit=1)), None)

        row = await self._ledger.query(read)
        elections = [
            one
            for one in node.elections.by_id.values()
            if one.action is not None and one.action.job == name and one.succession is not None
        ]
        of_run = [one for one in elections if row is not None and one.action is not None and one.action.run == row.run]
        election = max(of_run or elections, key=lambda one: one.decided_at, default=None)
        left_s = 0.0
        if row is not None and row.state in (RECEIVED, STARTED):
            left_s = max(0.0, row.lease - self._troubles.silence_s(row, boottime()))
        others = sorted([*alive, *([node.hostname] if node.hostname != away else [])])
        return whatif.without(away, row.run if row is not None else subject, row, left_s, election, others)

    async def _stopped(self) -> dict[str, Stop]:
        """The jobs that a hold prevents, each with that hold."""

        def read(ledger: Ledger) -> dict[str, Stop]:
            answer = ledger.ask(ListOpen(jobs=tuple(self._driver.node.jobs)))
            pause = answer.holds.get(ALL)
            stopped = {name: Stop(pause, common=True) for name in answer.jobs} if pause is not None else {}
            own = {name: Stop(answer.holds.get(OF_JOB + name)) for name, at in answer.jobs.items() if at.suspended}
            return stopped | own

        try:
            self._last_stopped = await self._ledger.query(read)
        except UnavailableError:
            return self._last_stopped  # the last known ones; the ledger's state is shown beside it
        return self._last_stopped

    # ---- runs

    async def _why_run(self, run: str, caller: Caller, around: Surroundings | None = None) -> Explained:
        node = self._driver.node
        pursuit = node.pursuits.pursuits.get(run)
        attempt = pursuit.attempt if pursuit else 0
        election = node.elections.by_id.get(f"{run}/{attempt}")
        holder = absent = None
        try:
            row = await self._ledger.query(lambda ledger: ledger.run(run))
            attempts = await self._ledger.query(lambda ledger: ledger.attempts(run))
            if row is None:
                absent = await self.absent(run, pursuit, caller)
        except UnavailableError as exc:
            around, known = self._around(str(exc)), node.outcomes.of(run)
            heard = ""
            if known is not None:
                why_so = known.outcome.reason
                heard = why.as_heard(known, disclosure.reason(why_so) if caller.role <= VIEWER else why_so)
            here = node.pursuits.running.get(run)
            held = why.as_held(here[0] if here is not None else None, pursuit)
            unknown = Absent(False, heard=heard, holder=held, accepted=run in node.triggers.requests)
            return why.why_run(run, None, [], pursuit, election, around, absent=unknown), []
        if caller.role <= VIEWER:  # here, where a reason is still separate
            for told in (row, *attempts):
                if told is not None:
                    told.reason = disclosure.reason(told.reason)
        if row is not None and row.state in (RECEIVED, STARTED):
            holder = self._holder(row)
        job = node.jobs.get(job_of(run))
        no_file, stopped = job is None, {} if job is None else await self._stopped()
        stop = stopped.get(job_of(run))
        if absent is not None and absent.waits and around is None and job is not None:
            absent = absent._replace(awaits=" ".join([absent.awaits, *self._parents_stopped(job, stopped)]))
        obstacles = self._obstacles(row, no_file, stop)
        if row is None and nominal_time(run) is not None:
            obstacles = obstacles._replace(clock=self.clock_off())
        if around is not None:  # a part of what is said of its job, which tells what concerns all of its runs
            obstacles = obstacles._replace(stop=None, drained={}, breaker="", breaker_told=bool(obstacles.breaker))
        said = why.why_run(
            run,
            row,
            attempts,
            pursuit,
            election,
            around or self._around(),
            holder=holder,
            absent=absent,
            obstacles=obstacles,
        )
        return said + lineal.rerun_told(run, row, node.drains.holds), timeline.of_run(row, attempts, stop)

    def _obstacles(self, row: Row | None, no_file: bool, stop: Stop | None) -> Obstacles:
        """What prevents the launch of a run, beside the surroundings."""
        if row is None or run_fault(row):
            return Obstacles(no_file, stop, self._drained(""))
        node = self._driver.node
        definition, only = unpinned(row.digest)
        known, member = node.jobs.get(row.job), node.members.get(only)
        redefined = known is not None and definition != known.digest
        only_is = ""
        if only not in ("", node.hostname) and (member is None or member.state != ALIVE):
            only_is = member.state if member is not None else "not known here"
        return Obstacles(no_file, stop, self._drained(only), redefined, self._breaker(row.job), only_is)

    def _holder(self, row: Row) -> Holder:
        """Known facts about the node that holds an attempt, and what happens if it is gone."""
        node = self._driver.node
        now = boottime()
        pursuit = node.pursuits.pursuits.get(row.run)
        watch = pursuit.watch if pursuit is not None else None
        silent_s = self._troubles.silence_s(row, now)
        if watch is not None and (watch.token, watch.beat) == (row.token, row.beat):
            silent_s = max(silent_s, now - watch.since)
        turn_in_s = pursuit.at - now if pursuit is not None and pursuit.at != float("inf") else None
        hostname = host_of(row.node)
        if hostname == node.hostname:
            return Holder(ALIVE, 0.0, None, silent_s, row.lease, turn_in_s)
        member = node.members.get(hostname)
        if member is None:
            return Holder("", None, None, silent_s, row.lease, turn_in_s)
        gone_at = self._driver.lost_at.get(hostname)
        lost_s = now - gone_at if gone_at is not None else None
        return Holder(member.state, now - member.heard_at, lost_s, silent_s, row.lease, turn_in_s)

    def _around(self, error: str = "") -> Surroundings:
        """``error``: the error of this query. A ledger that fails only for writes can still answer it."""
        bus, breaker = self._driver.bus, self._ledger.breaker
        return Surroundings(
            ledger_error=error or self._ledger.error,
            recovering_s=self._ledger.recovering_s,
            breaker_open=breaker.is_open,
            retry_in_s=breaker.retry_in_s(boottime()),
            bus_down=bus.state == "disconnected",
            bus_error=bus.error,
        )

    # ---- jobs

    async def _why_job(self, name: str, caller: Caller) -> Explained:
        node = self._driver.node
        job = node.jobs.get(name)
        error, rows = "", []
        try:
            most = 1 if job else VIEWER_LIST_MAX if caller.role <= VIEWER else ROWS_MAX
            rows = await self._ledger.query(lambda ledger: ledger.runs(job=name, limit=most))
        except UnavailableError as exc:
            error = str(exc)
        problems = self._job_problems().get(name, [])
        around = self._around(error)
        if job is None:
            others = [m.hostname for m in node.members.values() if self._has_other_jobs(m.jobs_digest)]
            problem = problems[0] if problems else ""
            last_word, steps = await self._why_run(rows[0].run, caller, CALM) if rows else ("", [])
            like, source = self._like(name), self._jobs_from(name)
            return why.why_no_job(name, problem, rows, sorted(others), like, around, last_word, source), steps
        # what concerns the whole job is explained only once
        last_word, last_steps = await self._why_run(rows[0].run, caller, CALM) if rows else ("", [])
        stopped = await self._stopped()
        stop = stopped.get(name)
        steps = (
            last_steps if rows and rows[0].state not in TERMINAL else [*last_steps, *timeline.of_run(None, [], stop)]
        )
        fires = objects.next_fires(job, self._ledger_wall(), 1)
        late = self._troubles.found.late_jobs.get(name, "")
        awaits = lineal.sentence(name, node.following.waiting(name, self._ledger_wall()))
        said = why.why_job(
            job,
            stop,
            fires[0] if fires else None,
            rows[0] if rows else None,
            last_word,
            node,
            around,
            late,
            node.rulebook.definitions.stale.get(name, ""),
            self._breaker(name),
            " ".join(filter(None, [awaits, *self._parents_stopped(job, stopped)])),
            self._bad_checks(job),
            await self.due_now(job, rows, caller),
            self.clock_off() if job.schedule is not None else "",
            self._jobs_from(name),
        )
        return said, sorted(steps, key=lambda step: step.at)

    def _parents_stopped(self, job: Job, stopped: Mapping[str, Stop]) -> list[str]:
        """The parents of a child that are held or suspended, a sentence each; what stops all jobs is told of itself."""
        parents = job.after.jobs if job.follows is not None and job.after is not None else ()
        jobs = self._driver.node.jobs
        held = [name for name in parents if name in jobs and not jobs[name].enabled]
        told = [f"Its parent {name} is held: its job file says enabled = false." for name in held]
        stops = {name: stopped[name] for name in parents if name in stopped and name not in held}
        return told + [f"Its parent {why.stopped(name, stop)}" for name, stop in stops.items() if not stop.common]

    def _jobs_from(self, job: str) -> str:
        """Where a job's definition comes from, if that explains anything; backends/methods.py knows it."""
        return ""

    def _bad_checks(self, job: Job) -> list[str]:
        """The checks of a job that are not good; checks/methods.py knows them."""
        return []

    def _drained(self, only: str) -> dict[str, Hold]:
        """The drained nodes that are here; with ``only``, at most that one."""
        node = self._driver.node
        here = (
            [only]
            if only
            else [node.hostname, *[m.hostname for m in node.members.values() if m.state in (ALIVE, SUSPECT)]]
        )
        found = {name: node.drains.of_node(name) for name in sorted(here)}
        return {name: hold for name, hold in found.items() if hold is not None}

    def _breaker(self, job: str) -> str:
        """What the job's breaker does, as the last sweep knows it; "" if it is closed, or there is none."""
        node = self._driver.node
        known = {job: node.jobs[job]} if job in node.jobs else {}
        return "".join([one.sentence() for one in of_jobs(known, node.drains.holds).values()])

    def _has_other_jobs(self, digest: str) -> bool:
        return bool(digest) and digest != self._driver.node.jobs_digest

    def _like(self, name: str) -> str:
        """The most similar job name; "" when none is similar."""
        import difflib

        known: Mapping[str, Job] = self._driver.node.jobs
        near = difflib.get_close_matches(name, [*known, *self._job_problems()], n=1)
        return near[0] if near else ""
