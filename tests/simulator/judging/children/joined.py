"""AF: a child has exactly one run for each period in which its parents have ended, or a row that says why not.

The judge looks at the rows of the parents, and keeps the ends that a replay or a backfill takes back. When a child's
row is made, the parents that it needs must have ended as it says, or their time must be over. At the end, each period
has its row. Retention does not strike in these worlds: ``within`` is shorter than what is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from coordd.core.groups.expand import group_of, how_it_ended, rows_of
from coordd.core.jobs.job import scheduled_run, triggered_run
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.words import ABSENT, FAILURE, LOST, SUCCESS, TERMINAL
from simulator.following import PARTS
from simulator.judging.leave import nominal
from simulator.policies import AFTER
from simulator.terms import SCHEDULES_END_S, WALL

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

FITS = {"success": (SUCCESS,), "failure": (FAILURE, LOST), "done": TERMINAL}

# A parent may be late by this much (seconds), and a row by as much more, once the faults are over.
GRACE_S = 5.0
LATE_S = 45.0

# More fire times than this of one child never pass in a world.
FIRES_MAX = 100


class End(NamedTuple):
    """One end of a run of a parent, at that time by the ledger's clock."""

    at: float
    job: str
    run: str
    state: str


class Joined:
    """The children of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.children = [job for job in world.jobs.values() if job.after is not None]
        self._past: set[End] = set()  # ends whose run has begun again
        self._since: dict[str, float] = {}  # runs whose row is late -> since when, in the world's time
        self._latest = 0.0  # the most that the ledger's clock has shown

    def operation(self, _: Host, request: Request[Any], _answer: Answer, before: Row | None, row: Row | None) -> None:
        """Check each row of a child that is made, and keep what a new attempt takes back."""
        if AFTER not in self.world.plan.kinds:
            return
        self._latest = max(self._latest, self.world.server.wall())
        if before is not None and row is not None and before.state in TERMINAL and row.attempt != before.attempt:
            self._past.add(End(before.ended_at, before.job, before.run, before.state))
        if before is None and row is not None and isinstance(request, Register | Claim):
            for child in self.children:
                if child.name == row.job:
                    self._opened(child, row)

    def _opened(self, child: Job, row: Row) -> None:
        assert child.after is not None
        world = self.world
        if child.schedule is None and group_of(row.run) != self._run_of(child, row):
            world.violate(f"AF {row.run} is a second run for the period of {self._run_of(child, row)}")
        if not isinstance(row.by, str) or not row.by:  # by a claim: also when the ledger has forgotten the first row
            world.violate(f"AF {row.run} was opened by no parent")
        if world.server.setbacks:
            return  # the ledger may have lost the rows of parents that nodes have seen
        if any(group_of(end.run) != end.run for end in self._past):
            return  # a member of a group has begun again
        # A replay takes an end back. A node that started since reads only the rows, and counts from the ends in them.
        period = self._period(child, row)
        ends, shown = (self._ends(child, past=past).get(period, set()) for past in (True, False))
        wrong = self._wrong(child, row, ends)
        if wrong and not (shown and shown != ends and not self._wrong(child, row, shown)):
            world.violate(f"AF {row.run} was {wrong}")

    def _wrong(self, child: Job, row: Row, ends: set[End]) -> str:
        """What a new row of a child says that is not so by these ends of its parents; "" if it is right."""
        assert child.after is not None
        after = child.after
        came = {end.job for end in ends if end.state in FITS[after.on] and end.job}
        enough = bool(came) if after.needs == "any" else len(came) == len(after.jobs)
        if not row.by.startswith(ABSENT):
            return "" if enough else f"opened {row.by}, and of {after.jobs} only {sorted(came)} have ended so"
        until = self._until(child, row.run, ends)
        if self._latest <= until:
            return f"missed, and its parents are awaited until {until:.3f}"
        early = {end.job for end in ends if end.state in FITS[after.on] and end.at <= until and end.job}
        if early if after.needs == "any" else len(early) == len(after.jobs):
            return "missed, and its parents have ended in time"
        unnamed = sorted(parent for parent in set(after.jobs) - early if parent not in row.by)
        return f"missed, and its row does not name {unnamed[0]}: {row.by}" if unnamed else ""

    # ---- after the faults

    def unsettled(self) -> bool:
        """True if some period has no row yet."""
        return bool(self._open())

    def wait(self) -> None:
        """After the faults a row comes soon after its time."""
        wall, now = self.world.server.wall(), self.world.now
        late = {run for run, due in self._open().items() if due < wall}
        self._since = {run: self._since.get(run, now) for run in late}
        for run, since in self._since.items():
            if now - since > LATE_S:
                self.world.violate(f"AF {run} has no row, and its time came {now - since:.0f} s ago")

    def end(self) -> None:
        """Long after the faults each period has its row."""
        for run in self._open():
            self.world.violate(f"AF {run} has no row, and parents of its period have ended")

    def _open(self) -> dict[str, float]:
        """The runs of children that must have a row, and have none; and from when on (by the ledger's clock)."""
        if AFTER not in self.world.plan.kinds:
            return {}
        found = {}
        for child in self.children:
            ends = self._ends(child, past=False)
            wanted = {self._name(child, period): of for period, of in ends.items()} if child.schedule is None else {}
            if child.schedule is not None:
                for at in fires_between(child.schedule, WALL, WALL + SCHEDULES_END_S, FIRES_MAX):
                    wanted[scheduled_run(child.name, at)] = ends.get(self._floored(child, at), set())
            for run, of in sorted(wanted.items()):
                rows = [self.world.server.row(name) for name in rows_of(child.expand, run)]
                due = self._due(child, run, of) if None in rows else None
                if due is not None:
                    found[run] = due
        return found

    def _due(self, child: Job, run: str, ends: set[End]) -> float | None:
        """From when on a run must have a row; None: its definition did not count when it was due, or was missed."""
        assert child.after is not None
        known = self.world.server.job(child.name)
        # A sweep under a clock that was set back takes the instant back; what is dated before it opens nothing.
        told = self.world.judge.counts_from.get(child.name, 0.0)
        counts_from = max(told, known.counts_from if known is not None else 0.0)
        own, until = self._own(child, run), self._until(child, run, ends)
        if child.schedule is not None and own <= counts_from:
            return None  # its own fire time came before; parents that a person backfills end later
        named = own or (nominal(run) if "@" in run else 0.0)
        if named and named <= self.world.server.known_again.get(child.name, 0.0):
            return None  # a ledger that went back had forgotten the job and its parents' first ends: it begins again
        fitting = sorted([end.at for end in ends if end.state in FITS[child.after.on] and end.job])
        came = {end.job for end in ends if end.state in FITS[child.after.on] and end.job}
        if child.after.needs == "any" and fitting:
            at = fitting[0]
        elif child.after.needs == "all" and len(came) == len(child.after.jobs):
            at = max(min(end.at for end in ends if end.job == job and end.at in fitting) for job in came)
        else:
            at = float("inf")
        if at > until:
            at = min([end.at for end in ends], default=own)
            return until + GRACE_S if at > counts_from else None
        return max(at, own) if max(at, own) > counts_from else None

    # ---- periods

    def _ends(self, child: Job, *, past: bool = True) -> dict[object, set[End]]:
        """The ends of its parents' runs, by period."""
        assert child.after is not None
        found: dict[object, set[End]] = {}
        rows = self.world.ledger.runs(limit=100_000)
        ends = {End(row.ended_at, row.job, row.run, row.state): row for row in rows if row.state in TERMINAL}
        groups: dict[str, list[End]] = {}
        for end in [*ends, *(self._past if past else ())]:
            if end.job not in child.after.jobs:
                continue
            of, row = found.setdefault(self._period_of(child, end.run), set()), self.world.server.row(end.run)
            if row is None:
                continue
            group = group_of(end.run)
            if group == end.run:
                of.add(end)
            else:  # it is a first end, and none of its parent
                of.add(end._replace(job=""))
                groups.setdefault(group, []).append(end)
        for group, members in groups.items():
            if len({end.run for end in members}) == len(PARTS):
                how = how_it_ended([end.state for end in members])
                at = max(end.at for end in members)
                found[self._period_of(child, group)].add(End(at, members[0].job, group, how))
        return {period: of for period, of in found.items() if of}

    def _period_of(self, child: Job, run: str) -> object:
        group = group_of(run)
        return group.partition("#")[2] or self._floored(child, nominal(group))

    def _period(self, child: Job, row: Row) -> object:
        return self._period_of(child, row.run)

    def _run_of(self, child: Job, row: Row) -> str:
        return self._name(child, self._period(child, row))

    def _name(self, child: Job, period: object) -> str:
        return triggered_run(child.name, period) if isinstance(period, str) else scheduled_run(child.name, period)  # type: ignore[arg-type]  # a float

    def _floored(self, child: Job, at: float) -> float:
        """All periods here divide a minute, and the worlds' clocks show UTC."""
        assert child.after is not None
        return at - at % child.after.period_s if child.after.period_s else at

    def _own(self, child: Job, run: str) -> float:
        """The fire time of the child's own schedule; 0.0: it has none."""
        if child.schedule is None:
            return 0.0
        fires = fires_between(child.schedule, WALL, WALL + SCHEDULES_END_S, FIRES_MAX)
        return next((at for at in fires if scheduled_run(child.name, at) == run), 0.0)

    def _until(self, child: Job, run: str, ends: set[End]) -> float:
        assert child.after is not None
        after, own = child.after, self._own(child, run)
        if after.period_s and "@" in run:
            return max(self._floored(child, nominal(run)) + after.period_s, own) + after.within_s
        return max(min([end.at for end in ends], default=0.0), own) + after.within_s
