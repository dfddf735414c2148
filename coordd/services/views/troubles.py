"""Troubles that need a person, from the ledger: runs that are unknown, late, stuck or given up, and late jobs.

Every node judges the whole cluster, by reading the ledger now and then (``look``). If a look fails, the last result
stays; the ledger's own trouble is shown beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import structlog
import trio

from coordd.core.jobs.job import Job
from coordd.core.ledger.requests import ListOpen, Page
from coordd.core.ledger.rows import Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import FAILURE, LOST, PENDING, RECEIVED, RETRY, STARTED, SUCCESS, TERMINAL, UNKNOWN
from coordd.core.ready import Now
from coordd.core.runs.pursued import BUDGET, Pursuit
from coordd.core.wire.events import JobLate
from coordd.errors import UnavailableError
from coordd.ports import Ledger
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService, boottime
from coordd.services.pace import turn
from coordd.services.views.letters import is_letter
from coordd.services.waiting import due

log = structlog.get_logger()

# A run that is due for longer than this (seconds), and has not started, is late.
LATE_RUN_S = 60.0

# How often (seconds) the ledger is read, and the maximum age of an answer to a person.
LOOK_S = 10.0
FRESH_S = 1.0
# With thousands of open runs a look takes long. Then a person gets the last result for as many times that long: people
# who ask again and again (watch, monitoring) must not keep the daemon and the ledger busy.
FRESH_LOOKS = 50

# After a longer pause between looks, the time between them counts as unknown.
BLIND_S = 3 * LOOK_S

# The ledger keeps the last success of each job. Only an older version's runner reports it to the run's row alone, so
# the rows of a job are searched this seldom (seconds).
SEARCH_S = 300.0

# The type of ``JobLate`` in the journal.
LATE = "job-late"

# Instants that are nearer to each other (seconds) are the same one.
SAME_S = 0.001

# Maximum number of runs in one look that failed, that were lost (the newest), and that are read one by one (the longest
# due).
ROWS_MAX = 200

# Maximum number of open runs in one look, the longest due first: those in trouble are old.
OPEN_MAX = 2000
NOT_ALL = "not all open runs were looked at, only those that are due longest"

_TO_START = (RECEIVED, RETRY, PENDING)
_GIVEN_UP = (FAILURE, LOST)


class Trouble(NamedTuple):
    """One run that needs a person."""

    run: str
    job: str
    text: str


class Found(NamedTuple):
    """The result of one look. ``late_jobs``: job to a sentence."""

    unknown: tuple[Trouble, ...] = ()
    late: tuple[Trouble, ...] = ()
    stuck: tuple[Trouble, ...] = ()
    late_jobs: Mapping[str, str] = {}
    dead: tuple[Trouble, ...] = ()  # given up
    cut: bool = False  # there are more open runs than one look reads

    def reduced(self, reason: Callable[[str], str]) -> Found:
        """The same for somebody who may read recorded reasons only as ``reason`` returns them."""
        unknown, dead = (
            tuple(one._replace(text=reason(one.text)) for one in runs) for runs in (self.unknown, self.dead)
        )
        return self._replace(unknown=unknown, dead=dead)

    def sentence(self) -> str:
        """The result in one line, for STATUS and `status`; "" when there is no trouble."""
        parts = [
            f"{len(runs)} run{'s' if len(runs) != 1 else ''} {word} ({_names(trouble.job for trouble in runs)})"
            for word, runs in ((UNKNOWN, self.unknown), ("stuck", self.stuck), ("late", self.late))
            if runs
        ]
        if self.late_jobs:
            parts.append(f"no success in time: {_names(self.late_jobs)}")
        if self.cut:
            parts.append(NOT_ALL)
        return " · ".join(parts)


class Beat(NamedTuple):
    """The last known beat of a holder, and since when (CLOCK_BOOTTIME) it is unchanged."""

    token: int
    beat: int
    since: float


class Terms(NamedTuple):
    """Limits of silence (seconds)."""

    renew_interval_s: float
    ledger_timeout_s: float
    kill_grace_s: float

    @property
    def silent_s(self) -> float:
        """Three renewals are missing."""
        return 3 * self.renew_interval_s + 2 * self.ledger_timeout_s

    @property
    def cancelled_s(self) -> float:
        """A holder learns of a cancellation at a renewal; then come TERM, and KILL after the grace."""
        return self.silent_s + self.kill_grace_s


class Successes:
    """The last success of each job."""

    def __init__(self) -> None:
        self._searched: dict[str, tuple[float, float]] = {}  # job -> (when its rows were searched, the end in them)

    def last(self, ledger: Ledger, jobs: Sequence[str], now: float) -> dict[str, float]:
        """Runs in the ledger's thread: the end (Unix seconds) of the last success of each job that has one. ``now``:
        seconds, monotonic.
        """
        found = ledger.succeeded(jobs)
        for job in jobs:
            known = self._searched.get(job)
            first_at = now - crc32(job.encode()) % SEARCH_S  # then not all jobs are searched again at one time
            if known is None and job in found:
                known = (first_at, 0.0)
            if known is None or now - known[0] >= SEARCH_S:
                known = (now if known else first_at, _newest_success(ledger, job))
            self._searched[job] = known
            if known[1] > found.get(job, 0.0):
                found[job] = known[1]
        return found


class Troubles:
    """Reads the ledger repeatedly, and remembers enough to see that something does not move."""

    def __init__(self, driver: Driver, ledger: LedgerService) -> None:
        self._driver = driver
        self._ledger = ledger
        self._beats: dict[str, Beat] = {}
        self._cancelled: dict[tuple[str, int], float] = {}
        self._seen: dict[str, float] = {}  # job -> when this node first saw it (Unix seconds)
        self._since: dict[str, float] = {}  # job -> since when it has had no success (Unix seconds)
        self._told: dict[str, float] = {}  # job -> that instant, of the last lateness that is in the journal
        self._looked_at = self._failed_at = float("-inf")
        self._took_s = 0.0  # the last look
        self._looking = trio.Lock()
        self.successes = Successes()
        self.found = Found()

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await self.look(older_than_s=LOOK_S / 2)
            await turn(LOOK_S)

    def recall(self, record: Mapping[str, Any]) -> None:
        """A line of this node's journal from before its start, oldest first: a lateness is told once."""
        job, since = record.get("job"), record.get("since")
        if record.get("type") == LATE and isinstance(job, str) and isinstance(since, (int, float)):
            self._told[job] = float(since)

    def _tell_late(self, before: Mapping[str, str]) -> None:
        """An event for each job that has become late."""
        node, late = self._driver.node, self.found.late_jobs
        for job in sorted(late.keys() - before.keys()):
            since = self._since[job]
            if abs(self._told.get(job, 0.0) - since) > SAME_S:
                self._told[job] = since
                now = self._driver.now()
                event = JobLate(clock=node.stamp(), timestamp=now.wall, job=job, since=since, reason=late[job])
                self._driver.tell(event)

    async def look(self, *, older_than_s: float = FRESH_S) -> Found:
        """Read the ledger, unless the last result is newer than ``older_than_s``, or the last look took long and is at
        most half as old as the looks of ``run`` are apart; returns the result.
        """
        node = self._driver.node
        jobs, settings = node.jobs, node.settings
        async with self._looking:
            now = boottime()
            older_than_s = max(older_than_s, min(FRESH_LOOKS * self._took_s, LOOK_S / 2))
            in_vain = now - self._failed_at < LOOK_S / 2  # do not wait for a failing ledger again so soon
            if self._ledger.error or in_vain or now - self._looked_at < older_than_s:
                return self.found
            expecting = [job.name for job in jobs.values() if job.expect_within_s]
            pursuits = node.pursuits.pursuits
            untaken = [one.action.run for one in _untaken(pursuits, self._present())]
            waiting = {run for run, pursuit in pursuits.items() if _waits_its_turn(pursuit)}
            look = partial(read, waits=waiting.__contains__, untaken=untaken)
            try:
                looked = await self._ledger.query(lambda ledger: look(ledger, expecting, self.successes, now))
            except UnavailableError:
                self._failed_at = boottime()
                return self.found
            if boottime() - self._looked_at > BLIND_S:
                self._beats.clear()  # silence cannot be judged over a time without looks
            self._looked_at = boottime()
            terms = Terms(settings.renew_interval_s, settings.ledger_timeout_s, settings.kill_grace_s)
            before = self.found.late_jobs
            self.found = self.judge(looked, jobs, pursuits, terms, self._present())
            _log_late(before, self.found.late_jobs)
            self._tell_late(before)
            self._took_s = boottime() - now
            return self.found

    def _present(self) -> Now:
        """Now, with the wall clock of the ledger: its times are in the rows."""
        now = self._driver.now()
        return Now(now.mono, now.wall - self._driver.node.skew_s(now))

    def judge(
        self, looked: Looked, jobs: Mapping[str, Job], pursuits: Mapping[str, Pursuit], terms: Terms, now: Now
    ) -> Found:
        """The troubles in what a look has read."""
        unknown, late, stuck, dead = [], [], [], []
        for row in looked.rows:
            if run_fault(row):
                continue  # an invalid row; `run list` names it
            if row.state in _GIVEN_UP:
                if is_letter(row):
                    dead.append(Trouble(row.run, row.job, row.reason))
            elif row.state == UNKNOWN:
                unknown.append(Trouble(row.run, row.job, row.reason))
            elif row.state == STARTED:
                text = self._stuck(row, terms, now.mono)
                if text:
                    stuck.append(Trouble(row.run, row.job, text))
            elif now.wall - row.not_before > LATE_RUN_S and not _waits_its_turn(pursuits.get(row.run)):
                late.append(Trouble(row.run, row.job, f"due for {now.wall - row.not_before:.0f} s, and not started"))
        late += [
            Trouble(
                one.action.run, one.action.job, f"due for {now.wall - one.action.due_at:.0f} s, and no node took it"
            )
            for one in _untaken(pursuits, now)
            if one.action.run not in looked.recorded and not _waits_its_turn(one)
        ]
        self._forget({row.run for row in looked.rows})
        late_jobs = {
            name: text
            for name in sorted(jobs)
            if (text := self._late(jobs[name], looked.last.get(name, (0.0, 0.0)), now.wall))
        }
        return Found(tuple(unknown), tuple(late), tuple(stuck), late_jobs, tuple(dead), looked.cut)

    def silence_s(self, row: Row, now: float) -> float:
        """How long (seconds) the holder's lease was not renewed, as seen by this node; 0.0 at its first look."""
        beat = self._beats.get(row.run)
        return now - beat.since if beat is not None and (beat.token, beat.beat) == (row.token, row.beat) else 0.0

    def _stuck(self, row: Row, terms: Terms, now: float) -> str:
        silent_s = self.silence_s(row, now)
        if not silent_s:
            self._beats[row.run] = Beat(row.token, row.beat, now)
        if silent_s > terms.silent_s:
            return f"its holder {row.node} has not renewed its lease for {silent_s:.0f} s"
        if row.cancel:
            since = self._cancelled.setdefault((row.run, row.token), now)
            if now - since > terms.cancelled_s:
                return (
                    f"its cancellation was requested at least {now - since:.0f} s ago, and it still runs on {row.node}"
                )
        return ""

    def _late(self, job: Job, last: tuple[float, float], wall: float) -> str:
        if not (job.expect_within_s and job.enabled):
            self._seen.pop(job.name, None)
            self._since.pop(job.name, None)
            return ""
        succeeded_at, oldest_at = last
        first_seen_at = self._seen.setdefault(job.name, wall)
        since = succeeded_at or min(first_seen_at, oldest_at or first_seen_at)
        begins_at, ends_at = _life(job, succeeded_at)
        self._since[job.name] = since = max(since, begins_at)
        if wall - since <= job.expect_within_s or since + job.expect_within_s > ends_at:
            return ""
        what = "its last success" if succeeded_at else "it was first seen, and it never succeeded"
        what = "its start" if since == begins_at else what
        return f"expected to succeed every {job.expect_within_s:.0f} s; it is {wall - since:.0f} s since {what}"

    def _forget(self, runs: set[str]) -> None:
        self._beats = {run: beat for run, beat in self._beats.items() if run in runs}
        self._cancelled = {key: at for key, at in self._cancelled.items() if key[0] in runs}


def expected_s(job: Job, wall: float, succeeded_at: float) -> float:
    """How long (seconds) a job may be without a success; 0.0 for any time: also while nothing may launch it."""
    begins_at, ends_at = _life(job, succeeded_at)
    return job.expect_within_s if job.enabled and begins_at <= wall <= ends_at else 0.0


def _life(job: Job, succeeded_at: float) -> tuple[float, float]:
    """From when until when (Unix seconds) successes are expected of a job."""
    schedule = job.schedule
    if schedule is None or job.triggers:
        return 0.0, math.inf
    if schedule.kind == "at":
        return schedule.at, schedule.at if succeeded_at >= schedule.at else math.inf
    return schedule.start, schedule.end


def _waits_its_turn(pursuit: Pursuit | None) -> bool:
    """True if its job's policy holds it back (suspended, overlap, a queue, the line of a pool)."""
    return pursuit is not None and (pursuit.limited or pursuit.slots not in ("", BUDGET))


def _untaken(pursuits: Mapping[str, Pursuit], now: Now) -> list[Pursuit]:
    """The runs that are late, and have no row as far as this node knows."""
    return due.without_row(pursuits.values(), now.wall - LATE_RUN_S)[:ROWS_MAX]


class Looked(NamedTuple):
    """What a look has read: rows, for each job its last success and since when it is known, the runs of those asked for
    that have a row; and whether there was more than it reads.
    """

    rows: list[Row]
    last: dict[str, tuple[float, float]]
    recorded: set[str]
    cut: bool


def read(
    ledger: Ledger,
    expecting: list[str],
    successes: Successes,
    now: float,
    waits: Callable[[str], bool] = lambda _: False,
    untaken: Sequence[str] = (),
) -> Looked:
    """Runs in the ledger's thread. ``waits``: whether a run waits its turn; ``untaken``: runs that may have no row."""
    answer = ledger.ask(ListOpen(jobs=tuple(expecting)))
    runs, after = list(answer.runs), answer.after
    while after is not None and after.not_before <= answer.wall and len(runs) < OPEN_MAX:
        page = ledger.ask(Page(after=after))
        runs, after = runs + page.runs, page.after
    unread = after is not None and after.not_before <= answer.wall
    started = [one.run for one in runs if one.state == STARTED]
    known = {row.run: row for row in ledger.runs(state=STARTED, limit=len(started))} if started else {}
    alone = [run for run in started if run not in known]
    alone += [one.run for one in runs if one.state == UNKNOWN]
    alone += [one.run for one in runs if one.state in _TO_START and one.due_in_s <= 0.0 and not waits(one.run)]
    found = [known[run] if run in known else ledger.run(run) for run in (*known, *alone[:ROWS_MAX])]
    if len(alone) > ROWS_MAX and not _is_new(found[-1], answer.wall):  # the others are as new, or newer
        unread = True
    rows = [row for row in found if row is not None and row.state not in TERMINAL]  # it may have ended meanwhile
    rows += [row for state in _GIVEN_UP for row in ledger.runs(state=state, limit=ROWS_MAX)]
    last = {}
    won = successes.last(ledger, expecting, now)
    for job in expecting:
        since = answer.current[job].counts_from if job in answer.current else 0.0
        if job not in won and not since:
            sound = [row for row in ledger.runs(job=job, limit=ROWS_MAX) if not run_fault(row)]
            since = min((row.created_at for row in sound), default=0.0)
        last[job] = (won.get(job, 0.0), since)
    recorded = ledger.recorded(untaken) if untaken else set()
    return Looked(rows, last, recorded, unread)


def _is_new(row: Row | None, wall: float) -> bool:
    """True if it waits to be launched, and is not late yet."""
    waits = row is not None and not run_fault(row) and row.state in _TO_START
    return waits and row is not None and wall - row.not_before <= LATE_RUN_S


def _newest_success(ledger: Ledger, job: str) -> float:
    won = ledger.runs(job=job, state=SUCCESS, limit=1)
    return won[0].ended_at if won and not run_fault(won[0]) else 0.0


def _log_late(before: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Each job that has become late, or is on time again, is logged once, by each node."""
    for job in sorted(now.keys() - before.keys()):
        log.warning("job.late", job=job, reason=now[job])
    for job in sorted(before.keys() - now.keys()):
        log.info("job.on_time", job=job)


def _names(jobs: Iterable[str]) -> str:
    names = sorted(set(jobs))
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
