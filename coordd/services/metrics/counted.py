"""What this node did itself, counted from what it journals: a sum over all nodes is the cluster.

Whoever reads a count also counts: this module has no names of metrics, no text and no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from coordd.core.jobs.job import HOOK, Job, scheduled_run
from coordd.core.jobs.schedule import fires_between, without_blackouts
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import FAILURE, LOST, MISSED, REJECTED, RETRY, REVOKED, SUCCESS, TERMINAL, Policy
from coordd.core.ready import Notice
from coordd.core.wire import events
from coordd.core.wire.events import Event, Task
from coordd.services.metrics.families import DELAY_S, OTHER, RUN_S
from coordd.services.views.fires import BLACKOUT, LAUNCHED, Fire, missed_as

V = TypeVar("V")

# The launches that will settle fire times, and failures that may be retried: the newest of each are remembered.
REMEMBERED_MAX = 10_000

# At most this many fire times in a blackout are counted before one launch, and they are looked for this far back.
BLACKOUT_MAX = 1000
BLACKOUT_S = 8 * 86400.0


class Buckets:
    """A histogram: how many values are up to each bound, and above the last one."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Count one value; below 0.0 it counts as 0.0 (a clock was set back meanwhile)."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class OfJob:
    """The counts of one job. ``changes`` grows with each of them."""

    __slots__ = ("changes", "delay", "duration", "fires", "runs", "takeovers")

    def __init__(self) -> None:
        self.changes = 0
        self.fires: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.takeovers = 0
        self.duration = Buckets(RUN_S)
        self.delay = Buckets(DELAY_S)


class Stretch(NamedTuple):
    """Fire times that this node has settled, due after ``after``, up to ``upto``: the ledger says how they ended."""

    job: str
    after: float
    upto: float


class Counted:
    """All counts of this node since its start."""

    def __init__(self, own_name: str, jobs: Callable[[], Mapping[str, Job]]) -> None:
        """``own_name``: full_hostname."""
        self._own_name = own_name
        self._jobs = jobs
        self.of_jobs: dict[str, OfJob] = {}
        self.stretches: list[Stretch] = []  # to be counted once the ledger is read
        self.failures: dict[str, TaskEnd] = {}  # run -> a failed attempt that may be retried, likewise
        self._settles: dict[str, tuple[str, int]] = {}  # run -> the decision that its launch settles, and how many

    def job(self, name: str) -> OfJob:
        """The counts of a job, made at its first use."""
        if name not in self._jobs() or name.startswith(HOOK):
            name = OTHER
        found = self.of_jobs.get(name)
        if found is None:
            found = self.of_jobs[name] = OfJob()
        return found

    # ---- what the node journals and notes

    def saw(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        """Count what this node has just done."""
        for notice in notices:
            self._noted(notice)
        for event in journal:
            if isinstance(event, Task):
                self._task(event)

    def _noted(self, notice: Notice) -> None:
        said = notice.fields
        if notice.event in ("fires.skipped", "fires.coalesced") and said.get("run"):
            _remember(self._settles, said["run"], (notice.event.removeprefix("fires."), said["count"]))
        elif notice.event == "fire_times.settled" and len(self.stretches) < REMEMBERED_MAX:
            self.stretches.append(Stretch(said["job"], said["after"], said["upto"]))

    def _task(self, event: Task) -> None:
        of = self.job(event.name)
        of.changes += 1
        first = event.attempt == 0 and is_scheduled(event.run)
        if isinstance(event, events.TaskReceived):
            if first:
                self._launched(of, event)
        elif isinstance(event, events.TaskStarted):
            if event.attempt == 0 and event.fire_at:
                of.delay.add(event.timestamp - max(event.fire_at, event.due))
        elif not isinstance(event, events.TaskSent):
            self._ended(of, event, first and not event.token)

    def _launched(self, of: OfJob, event: Task) -> None:
        of.fires[LAUNCHED] += 1
        word, count = self._settles.pop(event.run, ("", 0))
        if count:
            of.fires[word] += count
        job = self._jobs().get(event.name)
        if job is not None:
            of.fires[BLACKOUT] += blacked_out(job, max(event.fire_at, event.due))

    def _ended(self, of: OfJob, event: Task, unlaunched: bool) -> None:
        """An attempt has ended. ``unlaunched``: it decides a fire time."""
        if event.runtime is not None:
            of.duration.add(event.runtime)
        if isinstance(event, events.TaskSucceeded):
            of.runs[SUCCESS] += 1
        elif isinstance(event, events.TaskRevoked):
            of.runs[REVOKED] += 1
            of.fires[REJECTED] += unlaunched
        elif isinstance(event, events.TaskRejected):
            state = MISSED if event.result == MISSED else REJECTED
            of.runs[state] += 1
            if unlaunched:
                of.fires[missed_as(event.reason) if state == MISSED else REJECTED] += 1
        elif isinstance(event, events.TaskFailed):
            self._failed(of, event)
        elif event.result != RETRY or event.node != self._own_name:
            of.runs[LOST] += 1
            of.takeovers += event.node != self._own_name

    def _failed(self, of: OfJob, event: Task) -> None:
        if not event.policy or Policy.unpack(event.policy).attempts <= 1:
            of.runs[FAILURE] += 1  # nothing follows
        else:
            _remember(self.failures, event.run, TaskEnd(event.name, event.attempt))

    # ---- what only the ledger knows

    def settled(self, job: Job, found: Sequence[Fire]) -> None:
        """These fire times are in a stretch that this node has settled; those with a row are counted elsewhere."""
        of = self.job(job.name)
        of.changes += 1
        for fire in found:
            if fire.decision and fire.decision != BLACKOUT and fire.run != scheduled_run(job.name, fire.fire_at):
                of.fires[fire.decision] += 1

    def failure_is(self, run: str, row: Row | None) -> None:
        """The row of a run whose attempt failed here: was it the last one?"""
        end = self.failures.get(run)
        if end is None or (row is not None and row.attempt == end.attempt and row.state not in TERMINAL):
            return  # its runner has not reported yet
        del self.failures[run]
        if row is not None and row.attempt == end.attempt and row.state == FAILURE:
            of = self.job(end.job)
            of.changes += 1
            of.runs[FAILURE] += 1

    def forget(self) -> None:
        """Drop the counts of jobs that are gone."""
        jobs = self._jobs()
        for name in [name for name in self.of_jobs if name != OTHER and name not in jobs]:
            del self.of_jobs[name]


class TaskEnd(NamedTuple):
    """A failed attempt."""

    job: str
    attempt: int


def is_scheduled(run: str) -> bool:
    """True if the run's id has a fire time."""
    return "@" in run and "#" not in run


def blacked_out(job: Job, due: float) -> int:
    """How many fire times of a blackout are right before the one that is due then."""
    schedule = job.schedule
    if schedule is None or not schedule.blackout:
        return 0
    before = fires_between(schedule, due - BLACKOUT_S, due - 1e-3, 1)
    after = before[-1] if before else due - BLACKOUT_S
    return len(fires_between(without_blackouts(schedule), after, due - 1e-3, BLACKOUT_MAX))


def _remember(kept: dict[str, V], key: str, value: V) -> None:
    kept[key] = value
    if len(kept) > REMEMBERED_MAX:
        del kept[next(iter(kept))]
