"""The sweep: reads the ledger's open rows every few seconds, so that no run is forgotten.

A *whole pass* reads all of them, in pages. A run without a row is over, but only if all pages have come. An incomplete
pass (no answer, or the ledger went back) proves nothing. After it the ledger is asked only for what has changed since
(core/ledger/feed), and for rows by name: the feed is silent about renewals, so a holder is watched by its row. A run is
over, too, if the ledger names it as one without an open row.

The states of the jobs come likewise: all of them, then those that have changed. What else uses a sweep's answer finds
all of them in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from typing import TypeVar

from coordd.core.context import Context
from coordd.core.jobs.job import Job
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import Current, JobState, OpenAnswer
from coordd.core.ledger.requests import ListOpen, Page
from coordd.core.ledger.rows import OF_JOB, Hold
from coordd.core.ledger.steps import HOLDING
from coordd.core.ledger.words import FEED, OPEN_PAGE, SILENCE_S, hashed
from coordd.core.ready import Now
from coordd.core.runs.pursued import HELD_BY_OTHER, SLEEPING, TURN_S
from coordd.core.runs.pursuit import Pursuits
from coordd.core.wire.events import Task

T = TypeVar("T")

# A hint about a changed row makes the next sweep come sooner, but not closer than this (seconds) to the last one.
SWEEP_APART_S = 0.2

# A whole pass is made again after this many intervals of sweeps: then whatever the feed has missed is seen. The nodes
# differ by up to this part of it: those that have all read everything at one instant do not go on so.
WHOLE_EVERY = 12
WHOLE_SPREAD = 0.25

# What else uses the answer: (its first page, or that there was no answer; when it was requested; now).
Swept = Callable[[Answer | OpenAnswer, float, Now], None]


class Others(Container[str]):
    """All runs but these."""

    __slots__ = ("_seen",)

    def __init__(self, seen: set[str]) -> None:
        self._seen = seen

    def __contains__(self, run: object) -> bool:
        return run not in self._seen


class Heads:
    """The states of the jobs, as far as the ledger has told them."""

    __slots__ = ("_current", "_holds", "_jobs")

    def __init__(self) -> None:
        self._jobs: dict[str, JobState] = {}
        self._current: dict[str, Current] = {}
        self._holds: dict[str, Hold] = {}  # by job

    def missing(self, jobs: Iterable[str], wall: float) -> tuple[str, ...]:
        """The jobs to ask for by name: those that are not known, and those whose suspension ends by itself now."""
        ended = {job for job, hold in self._holds.items() if 0.0 < hold.until <= wall}
        return tuple(job for job in jobs if job not in self._jobs or job in ended)

    def take(self, answer: OpenAnswer, jobs: Collection[str]) -> None:
        """What an answer tells; then the answer has the states of all these jobs. Those of others are not kept."""
        for job, state in answer.jobs.items():
            if job in jobs:
                self._jobs[job] = state
                _keep(self._current, job, answer.current.get(job))
                _keep(self._holds, job, answer.holds.get(OF_JOB + job))
        for job in answer.bad:
            self._jobs.pop(job, None)
        answer.jobs = {job: self._jobs[job] for job in jobs if job in self._jobs}
        answer.current = {job: self._current[job] for job in answer.jobs if job in self._current}
        answer.holds = {key: hold for key, hold in answer.holds.items() if not key.startswith(OF_JOB)}
        answer.holds |= {OF_JOB + job: hold for job, hold in self._holds.items() if job in answer.jobs}


def _keep(known: dict[str, T], job: str, told: T | None) -> None:
    if told is None:
        known.pop(job, None)
    else:
        known[job] = told


class Sweep:
    """One request at a time."""

    __slots__ = (
        "_again",
        "_bad",
        "_begun_at",
        "_ctx",
        "_cursor",
        "_epoch",
        "_heads",
        "_heard",
        "_identity",
        "_jobs",
        "_judged_at",
        "_leased_s",
        "_missed",
        "_next",
        "_offset",
        "_out",
        "_pursuits",
        "_seen",
        "_sent_at",
        "_settled",
        "_swept",
        "_whole_at",
    )

    def __init__(self, ctx: Context, pursuits: Pursuits, swept: Swept) -> None:
        self._ctx = ctx
        self._pursuits = pursuits
        self._swept = swept
        self._sent_at = -SWEEP_APART_S
        self._out = False
        self._again = False  # state changed while a sweep was in flight
        self._missed = False  # it was time for the next one while this one was in flight
        self._seen: set[str] | None = None  # runs of the pages so far; None before the first
        self._bad: dict[str, str] = {}  # unusable rows of these pages
        self._leased_s = 0.0  # the longest lease in these pages
        self._begun_at = 0.0  # when the first page was requested
        self._epoch = self._identity = ""  # of the ledger that told the first page
        self._next = ""  # the cursor that the first page told
        self._cursor = ""  # what this node knows, it knows up to there; "": it must read everything
        self._whole_at = 0.0  # when the last whole pass was begun (mono)
        self._judged_at = 0.0  # when the last sweep was requested that has told what is over (mono)
        self._heads = Heads()
        self._jobs: Mapping[str, Job] = {}  # those that this node had when the last whole pass began
        self._heard: dict[str, Task] = {}  # the ends that it had heard when it asked last
        self._settled: dict[str, Task] = {}  # those of runs without an open row
        self._offset = 0.0  # the ledger's wall clock, at the last whole pass, minus our CLOCK_BOOTTIME

    def begin(self, now: Now) -> None:
        """Ask, unless a request is out."""
        if self._out or self._ctx.state not in ("ready", "draining"):
            self._missed = self._out
            return
        self._out, self._missed = True, False
        self._sent_at = now.mono
        self._seen = None
        self._heard = dict(self._pursuits.endings.finals)
        settings = self._ctx.settings
        silence_s = max(SILENCE_S, 2 * (settings.renew_interval_s + 2 * settings.ledger_timeout_s))
        jobs = tuple(self._ctx.jobs)
        named = ""
        if self._is_fed(now) and len(rows := self._named()) <= OPEN_PAGE:
            named, jobs = "\n".join(rows), self._heads.missing(jobs, self._ctx.ledger_wall(now))
        else:
            self._cursor, self._jobs = "", self._ctx.jobs
        asked = ListOpen(jobs=jobs, host=self._ctx.hostname, silence_s=silence_s, since=self._cursor, named=named)
        self._ctx.ask(asked, self._answered)

    def look_again(self, now: Now) -> None:
        """The ledger has changed: ask now, or again after the answer to the present request."""
        self._again = self._out
        self.begin(now)

    def soon(self, now: Now) -> None:
        """The ledger may have changed."""
        self._ctx.arm(max(now.mono, self._sent_at + SWEEP_APART_S), "sweep_soon")

    def _is_fed(self, now: Now) -> bool:
        """True if it is enough to ask for what has changed.

        A member of an older version changes rows without a number, also one that was lost, and its runners. Where a job
        is new here, its rows were told before, and not pursued.
        """
        ctx = self._ctx
        every_s = WHOLE_EVERY * ctx.settings.renew_interval_s * (1 + WHOLE_SPREAD * (2 * hashed(ctx.hostname) - 1))
        whole_at = min(self._whole_at + every_s, self._pursuits.leftovers.late_at)
        if not self._cursor or ctx.recovering or now.mono >= whole_at or self._jobs is not ctx.jobs:
            return False
        return all(member.rules >= FEED for member in ctx.membership.members.values())

    def _named(self) -> list[str]:
        """The runs whose rows are asked for by name: those with a holder, or whose end is unknown, or was heard and the
        ledger may not have it; and those whose row this node has heard of since the last sweep, which could not say
        that they are over.
        """
        pursuits = self._pursuits
        own = [
            run
            for run, one in pursuits.pursuits.items()
            if one.phase == HELD_BY_OTHER
            or (one.phase == SLEEPING and one.at == float("inf"))
            or self._judged_at <= one.row_at < float("inf")
        ]
        ends = [run for run, event in pursuits.endings.finals.items() if self._settled.get(run) is not event]
        return sorted({*own, *pursuits.leftovers.watched, *ends})

    def _answered(self, answer: Answer | OpenAnswer, sent_at: float, now: Now) -> None:
        """One page, what has changed, or no answer."""
        if not isinstance(answer, OpenAnswer):
            self._out = False
            self._pursuits.unswept()
            self._swept(answer, sent_at, now)
            if self._again or self._missed:
                self._again = False
                self.soon(now)
            return
        self._ctx.compare_clocks(answer.wall, sent_at, now)
        if not answer.whole and (answer.epoch, answer.identity) == (self._epoch, self._identity):
            self._fed(answer, sent_at, now)
        elif self._cursor:  # it cannot be served, or is of another ledger; the states of most jobs were not asked for
            self._cursor, self._out = "", False
            self.begin(now)
        else:
            self._page(answer, sent_at, now)
        if not self._out and self._again:
            self._again = False
            self.soon(now)

    def _page(self, answer: OpenAnswer, sent_at: float, now: Now) -> None:
        first = self._seen is None
        if self._seen is None:
            self._seen, self._bad, self._begun_at, self._epoch = set(), {}, sent_at, answer.epoch
            self._identity = answer.identity
            self._leased_s = 0.0
            self._next = answer.cursor
            self._offset = answer.wall - (sent_at + now.mono) / 2
            self._pursuits.leftovers.begins()
        self._out = answer.after is not None
        if answer.after is not None:
            self._ctx.ask(Page(after=answer.after), self._answered)
        self._seen.update([row.run for row in answer.runs])
        self._bad.update(answer.bad)
        self._note_leases(answer)
        self._pursuits.rows_seen(answer.runs, now)
        if not self._out and answer.epoch == self._epoch:
            self._ctx.name_bad_rows(self._bad)
            recovering = answer.recovering_s > 0
            self._pursuits.swept(Others(self._seen), self._bad, recovering, self._begun_at, now)
            self._settle(() if recovering else Others(self._seen))
            self._cursor, self._whole_at, self._judged_at = self._next, self._begun_at, self._begun_at
        if first:
            self._heads = Heads()
            self._heads.take(answer, self._ctx.jobs)
            self._swept(answer, sent_at, now)

    def _fed(self, answer: OpenAnswer, sent_at: float, now: Now) -> None:
        """The changes since the cursor, and the named rows."""
        ctx, pursuits = self._ctx, self._pursuits
        self._out = False
        self._cursor = answer.cursor
        stepped_s = abs(answer.wall - (sent_at + now.mono) / 2 - self._offset) - (now.mono - sent_at) / 2
        if stepped_s > TURN_S:  # the ledger's clock was set: other rows may be due
            self._cursor, self._again = "", True
        self._again = self._again or answer.more
        ctx.name_bad_rows(answer.bad, swept=False)
        ctx.leased_s = max([ctx.leased_s, *[row.lease for row in answer.runs if row.state in HOLDING]])
        pursuits.rows_seen(answer.runs, now)
        gone = set(answer.gone)
        pursuits.swept(gone, {}, False, sent_at, now)
        self._settle(gone)
        self._judged_at = sent_at
        self._heads.take(answer, ctx.jobs)
        self._swept(answer, sent_at, now)

    def _settle(self, gone: Container[str]) -> None:
        """These runs have had no open row since the ends were heard that this node had when it asked. If one comes back
        (it is restored, or opened once more), the feed tells it.
        """
        self._settled = {
            run: event
            for run, event in self._pursuits.endings.finals.items()
            if self._settled.get(run) is event or (self._heard.get(run) is event and run in gone)
        }

    def _note_leases(self, answer: OpenAnswer) -> None:
        """Update the longest known lease. A quarantine must outlast every attempt, even one of a job that no node knows
        any more. A longer lease counts at once; it stops counting after a whole pass without it, unless the ledger has
        forgotten it.
        """
        ctx = self._ctx
        self._leased_s = max([self._leased_s, *[row.lease for row in answer.runs if row.state in HOLDING]])
        whole = not self._out and answer.epoch == self._epoch and answer.recovering_s <= 0
        ctx.leased_s = self._leased_s if whole else max(ctx.leased_s, self._leased_s)
