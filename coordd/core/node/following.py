"""Jobs after jobs: this node's part (core/jobs/after.py has the rule).

After each sweep a node asks the ledger which runs of parents have ended since it asked last. When the rows say that a
child's run is to start, or that its parents did not come in time, it registers that run. Every node does so, and the
ledger keeps one row for each id. So no end is lost: it is in the ledger, and every node reads it.

Nothing is kept but a memory of what was asked. A node that starts, and each of them now and then, reads again as far
back as an end may matter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from coordd.core.context import Context
from coordd.core.groups.expand import number_of, rows_of
from coordd.core.groups.members import Member, members_of
from coordd.core.jobs.after import Ends, Period, Verdict, judged, lookback_s, period_of
from coordd.core.jobs.job import After, Job, fire_time, run_uuid, scheduled_run
from coordd.core.jobs.limits import claimed_policy
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import Current, OpenAnswer, OpenRun
from coordd.core.ledger.requests import ListEnded, Register
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import CONFLICT, EXISTS, FINISHED, NEVER, OK, OPEN_PAGE, OPENED, PENDING
from coordd.core.ready import Now
from coordd.core.runs.pursued import OF_PARENTS, Pursuit
from coordd.core.wire.events import Action, TaskSent

# A question begins this long (seconds) before the last one: an end may have been written while it was answered.
OVERLAP_S = 15.0

# How often (seconds) a node reads again as far back as an end may matter.
WHOLE_S = 600.0

# By how much (seconds) the date of an end may be too early, because the ledger's clock was behind for a moment.
BEHIND_S = 3600.0

# Maximum number of runs that are registered at a time; others follow with the next sweep.
AT_A_TIME = 500

# Maximum number of fire times of one child that wait for its parents.
FIRES_MAX = 1000


class Child:
    """What this node knows of one child: the ends of its parents, by period, and the fire times of its own schedule."""

    __slots__ = ("due", "ends", "job", "upto")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.ends: dict[Period, Ends] = {}
        self.due: dict[str, tuple[float, float, Period]] = {}  # run -> fire time in its id, due time, period
        self.upto = 0.0  # its own fire times are listed up to then


class Waiting:
    """A child's run that has no row yet, for people. ``until`` in Unix seconds."""

    __slots__ = ("absent", "run", "until")

    def __init__(self, run: str, absent: str, until: float) -> None:
        self.run = run
        self.absent = absent
        self.until = until


class FarLook(NamedTuple):
    """A look at ends far back: when it began by the ledger's clock, and how far back it goes (seconds)."""

    began_at: float
    back_s: float


class Following:
    """Opens the runs of children."""

    __slots__ = (
        "_asked",
        "_begin",
        "_children",
        "_counts",
        "_ctx",
        "_done",
        "_far",
        "_limit",
        "_look_back_s",
        "_out",
        "_reads",
        "_seen",
        "_since",
        "_wall",
        "_whole",
    )

    def __init__(self, ctx: Context, begin: Callable[..., Pursuit]) -> None:
        """``begin``: pursue a run (Pursuits.begin)."""
        self._ctx = ctx
        self._begin = begin
        self._children: dict[str, Child] = {}
        self._counts: Mapping[str, Current] = {}  # the definitions that count
        self._asked: set[str] = set()  # runs whose registration is out
        self._done: set[str] = set()  # runs that need no registration; forgotten when everything is read again
        self._out = False
        self._limit = OPEN_PAGE
        self._since = float("inf")  # nothing is read yet
        self._wall = 0.0  # what the ledger's clock showed last
        self._whole = float("-inf")  # when this node last began to read everything (mono)
        self._seen = ("", "")  # epoch and identity of the ledger
        self._look_back_s = 0.0  # how far the next question goes back before a run is called missed
        self._reads: FarLook | None = None  # the look far back whose pages are coming
        self._far = FarLook(float("-inf"), 0.0)  # the last one whose pages have all come

    # ---- after a sweep

    def swept(self, answer: OpenAnswer, now: Now) -> None:
        """The sweep of this node has begun: ask which runs of parents have ended."""
        if answer.recovering_s > 0 or answer.identity_from == NEVER or self._ctx.braked or not self._take(answer):
            return
        self._counts = answer.current
        if self._out:
            return
        if answer.wall < self._wall:
            # Its clock was set back: ends that are still to come may be dated before the last ones.
            self._whole = float("-inf")
        self._wall = answer.wall
        if now.mono - self._whole >= WHOLE_S:
            self._whole = now.mono
            self._done.clear()
            back_s = max(lookback_s(child.job.after) for child in self._children.values() if child.job.after)
            self._look_back_s = max(self._look_back_s, back_s)
        if self._look_back_s:
            self._reads, self._look_back_s = FarLook(answer.wall, self._look_back_s), 0.0
            self._since = min(self._since, answer.wall - self._reads.back_s)
        self._ask()

    def _take(self, answer: OpenAnswer) -> bool:
        """The children among the jobs; False: there are none. Whatever is new is read from the beginning."""
        jobs = {name: job for name, job in self._ctx.jobs.items() if job.follows is not None}
        known = {name: child.job for name, child in self._children.items()}
        if known != jobs or self._seen != (answer.epoch, answer.identity):
            self._seen = (answer.epoch, answer.identity)
            self._children = {name: Child(job) for name, job in jobs.items()}
            self._whole = float("-inf")
        return bool(jobs)

    def _ask(self) -> None:
        names = {name for child in self._children.values() if child.job.after for name in child.job.after.jobs}
        self._out = True
        asked = ListEnded(since=self._since, jobs=tuple(sorted(names | self._children.keys())), limit=self._limit)
        self._ctx.ask(asked, self._answered)

    def _answered(self, answer: Answer | OpenAnswer, _sent_at: float, _now: Now) -> None:
        """One page of ends, or no answer."""
        self._out = False
        if not isinstance(answer, OpenAnswer) or answer.epoch != self._seen[0]:
            return
        for row in answer.runs:
            self._note(row)
        if answer.after is not None:  # many may have ended at one instant: then a longer page gets past it
            self._limit = 2 * self._limit if answer.after.not_before == self._since else OPEN_PAGE
            self._since = answer.after.not_before
            self._ask()
            return
        self._since, self._limit = answer.wall - OVERLAP_S, OPEN_PAGE
        self._far, self._reads = self._reads or self._far, None
        if self._ctx.braked or self._ctx.state not in ("ready", "draining"):
            return
        for name, child in self._children.items():
            counts = self._counts.get(name)
            if counts is not None and counts.digest == child.job.digest:  # another node has the one that counts
                self._judge(child, counts.counts_from, answer.wall)

    def _note(self, row: OpenRun) -> None:
        if row.job in self._children:
            self._done.add(row.run)
        for child in self._children.values():
            after = child.job.after
            if after is not None and row.job in after.jobs:
                scheduled = bool(row.scheduled)
                period = period_of(after, child.job.timezone, row.run, row.fire_at, scheduled=scheduled)
                ends = child.ends.get(period)
                if ends is None:
                    ends = child.ends[period] = Ends(period.run_of(child.job.name))
                self._note_end(ends, after, row)

    def _note_end(self, ends: Ends, after: After, row: OpenRun) -> None:
        """The end of a run, or of a member of a group. How many members a group has is in the file of its job."""
        if number_of(row.run) is None:
            ends.note(after, row.job, row.run, row.state, row.ended_at)
            return
        parent = self._ctx.jobs.get(row.job)
        if parent is None or parent.expand is None:
            ends.unknown = True  # nodes that have its file decide
        else:
            ends.note_member(after, row.job, row.run, parent.expand.count, row.state, row.ended_at)

    # ---- one child

    def _judge(self, child: Child, counts_from: float, wall: float) -> None:
        after, job = child.job.after, child.job
        assert after is not None, job.name
        for run, fire_at, period, verdict in self._verdicts(child, counts_from, wall):
            if not verdict.by:
                continue
            if not verdict.by.startswith(OPENED) and not self._is_sure(verdict.until, lookback_s(after) + BEHIND_S):
                continue
            if verdict.due <= counts_from:  # its parents ended before this definition counted
                self._done.update(rows_of(job.expand, run))
                continue
            for one in members_of(job, run, verdict.due if period.ident else fire_at):
                if one.run not in self._asked and one.run not in self._done and len(self._asked) < AT_A_TIME:
                    self._register(job, one, fire_at, period, verdict, wall)
        oldest = wall - lookback_s(after) - WHOLE_S
        for period in [period for period, ends in child.ends.items() if ends.last_at < oldest]:
            del child.ends[period]

    def _is_sure(self, until: float, back_s: float) -> bool:
        """True if no parent has ended in time: a look that began later than ``until`` has found none.

        While the ledger's clock was behind, an end got a date that this node had read past. So it looks far back once
        more, before a run is called missed.
        """
        if self._far.began_at > until and self._far.back_s >= back_s:
            return True
        self._look_back_s = max(self._look_back_s, back_s)
        return False

    def _verdicts(self, child: Child, counts_from: float, wall: float) -> list[tuple[str, float, Period, Verdict]]:
        """Run, fire time in its id, period and verdict of each run that is undecided as far as this node knows."""
        after, job = child.job.after, child.job
        assert after is not None, job.name
        if job.schedule is None:
            return [
                (ends.run, period.at, period, judged(after, job.timezone, period, ends, 0.0, wall))
                for period, ends in child.ends.items()
                if not self._is_done(job, ends.run) and not ends.unknown
            ]
        self._list_fires(child, counts_from, wall)
        found = []
        for run, (fire_at, due, period) in child.due.items():
            ends = child.ends.get(period) or Ends(run)
            if not ends.unknown:
                found.append((run, fire_at, period, judged(after, job.timezone, period, ends, due, wall)))
        return found

    def _list_fires(self, child: Child, counts_from: float, wall: float) -> None:
        """The fire times of the child's own schedule that have come."""
        after, job = child.job.after, child.job
        assert after is not None, job.name
        assert job.schedule is not None, job.name
        begin = max(child.upto, counts_from, wall - lookback_s(after))
        for due in fires_between(job.schedule, begin, wall, FIRES_MAX):
            fire_at = fire_time(job, due, self._ctx.identity_from)
            run = scheduled_run(job.name, fire_at)
            child.due[run] = fire_at, due, period_of(after, job.timezone, run, fire_at, scheduled=True)
        child.upto = max(child.upto, begin, wall)
        for run in [run for run in child.due if self._is_done(job, run)]:
            del child.due[run]

    def _is_done(self, job: Job, run: str) -> bool:
        return all(one in self._done for one in rows_of(job.expand, run))

    def _register(self, job: Job, one: Member, fire_at: float, period: Period, verdict: Verdict, wall: float) -> None:
        policy = claimed_policy(job, one.args, self._ctx.hostname, self._ctx.concurrency)
        opened = verdict.by.startswith(OPENED)
        if not opened:
            policy.start_within_s = 0.0  # each node that looks at the row has it ended as missed
        scheduled = not period.ident
        of = Registration(
            one.run,
            job.name,
            job.digest,
            policy,
            fire_at if scheduled else verdict.due,
            scheduled=scheduled,
            args=one.args,
            by=verdict.by,
            age_s=0.0 if scheduled else max(0.0, wall - verdict.due),
            due=verdict.due if scheduled else 0.0,
            identity_from=self._ctx.identity_from,
        )
        self._asked.add(one.run)
        self._ctx.ask(Register(of=of), partial(self._registered, of, opened))

    def _registered(self, of: Registration, opened: bool, answer: Answer, _sent_at: float, now: Now) -> None:
        """The ledger has a row for it, or wants none. Otherwise the next sweep asks again."""
        self._asked.discard(of.run)
        if answer.word not in (OK, EXISTS, CONFLICT, FINISHED):
            return
        self._done.add(of.run)
        if answer.word == OK:
            sent = TaskSent(uuid=run_uuid(of.run), name=of.job, kwargs=of.args, run=of.run, fire_at=of.fire_at)
            self._ctx.record(sent, now)
            self._ctx.note("run.opened_by_parents" if opened else "run.parents_absent", run=of.run, by=of.by)
        if opened and answer.word in (OK, EXISTS) and answer.state == PENDING:
            later = of.due if of.scheduled and of.due > of.fire_at else 0.0
            action = Action(of.job, of.run, 0, of.fire_at, of.scheduled, of.digest, of.args, later)
            self._begin(action, now, in_ledger=True).recorded = OF_PARENTS

    # ---- for people

    def waiting(self, name: str, wall: float) -> list[Waiting]:
        """The runs of a child that wait for its parents, or for its own time, at that time by the ledger's clock."""
        child = self._children.get(name)
        if child is None or child.job.after is None:
            return []
        counts = self._counts.get(name)
        found = self._verdicts(child, counts.counts_from if counts else 0.0, wall)
        return [
            Waiting(run, (child.ends.get(period) or Ends(run)).absent(child.job.after), verdict.until)
            for run, _, period, verdict in found
            if not verdict.by
        ]
