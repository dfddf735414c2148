"""Looks at every check that concerns this node, and tells the core which jobs to leave to others.

A check of scope ``node`` is this node's alone. One that nodes share is looked at by one of them: an election chooses
it, and it goes on until it is gone. How such a check stands is in the ledger's hold ``check:NAME``, which every sweep
tells every node. When nobody has written that hold for a while, the others elect again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import structlog
import trio

from coordd.core.checks import reactions
from coordd.core.checks.check import BUS, COMMAND, DISK, LEDGER, LOAD, MEMORY, REPORT, SUSPEND, Check
from coordd.core.checks.state import (
    BAD,
    DEGRADED,
    HEALTHY,
    STATES,
    TEXT_MAX,
    UNHEALTHY,
    UNKNOWN,
    Result,
    Standing,
    after,
    pack,
    unpack,
    worst,
)
from coordd.core.jobs.job import HOOK, Job
from coordd.core.ledger.requests import Keep, ListOpen, Suspend
from coordd.core.ledger.rows import OF_CHECK, OF_JOB, OF_REPORTED, Hold
from coordd.core.ledger.words import OK, RECOVERING, hashed
from coordd.core.ready import Elected
from coordd.core.redaction import redact_text
from coordd.core.visible import visible
from coordd.core.wire.events import CheckChanged
from coordd.errors import CoorddError
from coordd.services.checks import machine, plugin, reached
from coordd.services.driver import Driver
from coordd.services.ledger import CONNECTED, LedgerService, boottime
from coordd.services.pace import IDLE_S, turn

log = structlog.get_logger("checks")

# How often (seconds) the service looks for checks that came or went, and tells the core what they mean.
LOOK_S = 0.5

# Looks begin within this time (seconds) after the start: not all of them at once.
SPREAD_S = 1.0

# A shared check whose hold was not written for this many periods and seconds has no checker any more.
SILENT_PERIODS, SILENT_S = 2.0, 10.0

# Its hold ends this many periods and seconds after it was written: nobody checks, so nothing is known.
KEPT_PERIODS, KEPT_S = 10.0, 120.0

# Programs that run at a time.
PROGRAMS_MAX = 8

# How long (seconds) a program waits for one of these places, and no longer than its period. Then it did not look.
PLACE_S = 30.0


class Row(NamedTuple):
    """One check as one node sees it. ``reported``: what somebody says of it, beside what looks find."""

    check: Check
    node: str
    standing: Standing
    reported: Hold | None = None

    @property
    def state(self) -> str:
        """What counts: the worse of what looks find and what is reported."""
        return worst(self.standing.state, said(self.reported)[0]) if self.reported is not None else self.standing.state

    @property
    def before(self) -> str:
        """The state before that one."""
        return self.standing.was if self.state == self.standing.state else self.standing.state

    @property
    def since(self) -> float:
        """Since when (Unix seconds) it is in that state."""
        if self.reported is None or said(self.reported)[0] != self.state:
            return self.standing.since
        if self.standing.state != self.state or not self.standing.since:
            return self.reported.at
        return min(self.standing.since, self.reported.at)

    @property
    def text(self) -> str:
        """What it saw, or what was reported."""
        told, text = said(self.reported)
        if self.reported is not None and told == self.state != self.standing.state:
            return f"{text} (reported by {self.reported.by})".strip()
        return self.standing.text


def said(report: Hold | None) -> tuple[str, str]:
    """State and words of a report."""
    state, _, text = report.note.partition(" ") if report is not None else ("", "", "")
    return (state, text) if state in STATES else (UNKNOWN, "")


def is_program(check: Check) -> bool:
    """True if a program looks."""
    return check.kind == COMMAND or check.plugged


class Checks:
    """All checks of one daemon."""

    def __init__(self, checks: Mapping[str, Check], driver: Driver, ledger: LedgerService) -> None:
        """``checks``: those of coordd.toml, by name."""
        self._checks = checks
        self._driver = driver
        self._ledger = ledger
        self._own: dict[str, Standing] = {}  # of scope node, by key
        self._tasks: dict[str, tuple[Check, trio.CancelScope]] = {}
        self._threads: dict[str, trio.CapacityLimiter] = {}
        self._programs = trio.CapacityLimiter(PROGRAMS_MAX)
        self._seen: dict[str, tuple[float, float]] = {}  # shared check -> when its hold was written, and seen first
        self._elected: set[str] = set()  # shared checks whose election this node has won
        self._told: dict[str, str] = {}  # own check -> the state that was told last
        self._reports: dict[str, str] = {}  # shared check -> the state that is reported, as the last sweep told it
        self._looked: set[str] = set()  # shared checks that this node has looked at for all
        self._ill: set[str] = set()  # checks whose looks fail themselves
        self._forsaken: dict[tuple[str, str], float] = {}  # (job, check that suspends it), seen first (mono)

    def use(self, checks: Mapping[str, Check]) -> None:
        """The configuration was read again."""
        self._checks = checks

    async def run(self) -> None:
        """Look for ever."""
        async with trio.open_nursery() as nursery:
            while True:
                any_check = True
                try:
                    any_check = self._look_around(nursery)
                except Exception:
                    # The boundary: a mistake in here must not end the daemon.
                    log.exception("checks.failed")
                await turn(LOOK_S if any_check else IDLE_S)

    # ---- for people

    def known(self) -> dict[str, Check]:
        """Every check that this node knows of, by key: of coordd.toml, and of job files."""
        jobs = self._driver.node.jobs.values()
        return {one.key: one for one in (*self._checks.values(), *(one for job in jobs for one in job.checks))}

    def rows(self) -> Iterator[Row]:
        """The checks that concern this node: its own, and those that are shared."""
        node = self._driver.node
        holds = node.drains.holds
        for key, check in self.known().items():
            if check.shared:
                hold = holds.get(OF_CHECK + key)
                standing = unpack(hold.note) if hold is not None else Standing()
                yield Row(check, hold.by if hold is not None else "", standing, holds.get(OF_REPORTED + key))
            else:
                reported = holds.get(f"{OF_REPORTED}{key}@{node.hostname}")
                yield Row(check, node.hostname, self._own.get(key, Standing()), reported)

    def uses(self, job: Job) -> list[tuple[Row, str]]:
        """The checks that concern a job here, each with what follows."""
        rows = {row.check.key: row for row in self.rows()}
        tags = self._driver.node.settings.tags
        found = reactions.uses(job, self._checks)
        return [(rows[check.key], then) for check, then in found if check.key in rows and check.is_for(tags)]

    async def look_now(self, check: Check) -> Result:
        """One look on this node, at once, which counts as any other."""
        if check.shared:
            return await self._look_for_all(check)
        result = await self._look(check)
        self._take(check, result)
        return result

    # ---- the tasks

    def _look_around(self, nursery: trio.Nursery) -> bool:
        """Follow the checks of this node, and tell the core what they mean. False: there is no check."""
        node = self._driver.node
        known = self.known()
        mine = {key: check for key, check in known.items() if check.is_for(node.settings.tags)}
        for key, (check, scope) in list(self._tasks.items()):
            if mine.get(key) != check:
                scope.cancel()
                self._forget(key)
        for key, check in mine.items():
            if key not in self._tasks and check.kind != REPORT:
                scope = trio.CancelScope()
                self._tasks[key] = check, scope
                nursery.start_soon(self._follow, check, scope)
        states = {}
        for row in self.rows():
            states[row.check.key] = row.state
            if row.check.key in mine:
                self._look_for_change(row)
        self._look_for_forsaken(nursery)
        reasons = reactions.abstentions(node.jobs, self._checks, states, node.settings.tags)
        if reasons != node.abstains_from:
            self._driver.feed(node.abstaining.take, reasons)
        return bool(known)

    def _forget(self, key: str) -> None:
        del self._tasks[key]
        for kept in (self._own, self._threads, self._seen, self._told, self._reports):
            kept.pop(key, None)
        for there in (self._elected, self._looked, self._ill):
            there.discard(key)
        topic = f"check/{key}"
        self._driver.node.topics.discard(topic)
        self._driver.handlers.pop(topic, None)

    async def _follow(self, check: Check, scope: trio.CancelScope) -> None:
        """Look at one check until it is gone."""
        key = check.key
        with scope:
            if check.shared:
                topic = f"check/{key}"
                self._driver.node.topics.add(topic)
                self._driver.handlers[topic] = partial(self._won, key)
            await trio.sleep(SPREAD_S * hashed(key))
            while True:
                try:
                    pause_s = await self._turn(check) if check.shared else await self._own_turn(check)
                except CoorddError as exc:  # the ledger is away: what is shared waits
                    log.debug("check.not_shared", check=key, reason=str(exc))
                    pause_s = check.every_s
                except Exception:
                    # The boundary of one check.
                    log.exception("check.failed", check=key)
                    pause_s = check.every_s
                await trio.sleep(pause_s)

    async def _own_turn(self, check: Check) -> float:
        self._take(check, await self._look(check))
        return check.every_s

    def _take(self, check: Check, result: Result) -> None:
        before = self._own.get(check.key, Standing())
        self._own[check.key] = self._judged(check, before, result)

    def _judged(self, check: Check, before: Standing, result: Result) -> Standing:
        now = self._driver.now().wall
        standing = after(before, result, now, fail_after=check.fail_after, pass_after=check.pass_after)
        if standing.problem and check.key not in self._ill:
            self._ill.add(check.key)
            log.warning("check.ignored", check=check.key, reason=standing.problem, state=standing.state)
        elif not standing.problem:
            self._ill.discard(check.key)
        return standing

    def _look_for_change(self, row: Row) -> None:
        """Tell a change of a check of this node; of a shared one only what reports change, by the node that looks."""
        key = row.check.key
        if not row.check.shared:
            before = self._told.get(key, UNKNOWN)
            self._told[key] = row.state
            self._tell(row, before)
            return
        reported = said(row.reported)[0]
        before = self._reports.get(key, reported)
        self._reports[key] = reported
        if row.node == self._driver.node.hostname:
            self._tell(row, worst(row.standing.state, before))

    def _tell_written(self, check: Check, hold: Hold | None, before: Standing, standing: Standing) -> None:
        """This node has written how a shared check stands, in place of that word: tell what has changed.

        A report counts as the last sweep told it. One that came after the word of a checker that is gone, or of an
        earlier life of this node, was told by nobody.
        """
        key, hostname = check.key, self._driver.node.hostname
        report = self._driver.node.drains.holds.get(OF_REPORTED + key)
        reported = said(report)[0]
        if key in self._looked and hold is not None and hold.by == hostname:
            told = self._reports.get(key, reported)
        else:
            told = reported if hold is not None and report is not None and report.at <= hold.at else UNKNOWN
        self._looked.add(key)
        self._reports[key] = reported
        self._tell(Row(check, hostname, standing, report), worst(before.state, told))

    def _tell(self, row: Row, before: str) -> None:
        """Log that it was in the state ``before``, and journal it, if it is in another one now."""
        key, state = row.check.key, row.state
        if state == before:
            return
        tell = log.warning if state in BAD else log.info
        tell("check.changed", check=key, state=state, before=before, saw=row.text)
        event = CheckChanged(
            clock=self._driver.node.stamp(),
            timestamp=self._driver.now().wall,
            check=key,
            state=state,
            before=before,
            reason=row.text,
        )
        self._driver.tell(event)

    # ---- one look

    async def _look(self, check: Check) -> Result:
        """One look; a mistake of the look itself is a result too, and never raises."""
        try:
            result = await (self._run(check) if is_program(check) else self._seen_in_time(check))
        except Exception as exc:
            # The boundary of one look: whatever it raises says nothing about what it looks at.
            log.exception("check.look_failed", check=check.key)
            result = Result(UNKNOWN, f"the look failed: {type(exc).__name__}")
        # It may quote what a server says: the ledger takes no lone surrogate, and people want one line.
        return Result(result.state, visible(redact_text(result.text))[:TEXT_MAX], visible(result.figures)[:TEXT_MAX])

    async def _run(self, check: Check) -> Result:
        """Run a program when there is a place for it. Its time begins then: others must not make it unhealthy."""
        with trio.move_on_after(min(check.every_s, PLACE_S)) as wait:
            await self._programs.acquire()
        if wait.cancelled_caught:
            return Result(UNKNOWN, f"not looked: {PROGRAMS_MAX} other plug-ins run")
        try:
            return await self._seen_in_time(check)
        finally:
            self._programs.release()

    async def _seen_in_time(self, check: Check) -> Result:
        with trio.move_on_after(check.timeout_s + (5.0 if is_program(check) else 0.0)):
            return await self._seen_by(check)
        return Result(UNHEALTHY, f"no answer within {check.timeout_s:g} s")

    async def _seen_by(self, check: Check) -> Result:
        if check.kind == BUS:
            state, error = self._driver.bus.state, self._driver.bus.error
            return Result(HEALTHY if state == "connected" else UNHEALTHY, error or f"the bus is {state}")
        if check.kind == LEDGER:
            state, error = self._ledger.state, self._ledger.error
            word = {CONNECTED: HEALTHY, RECOVERING: DEGRADED}.get(state, UNHEALTHY)
            return Result(word, error or f"the ledger is {state}")
        if is_program(check):
            return await plugin.look(check, self._driver.node.hostname)
        if check.kind in (DISK, MEMORY, LOAD):
            # A thread of its own: one that hangs (a disk elsewhere) holds up no other check.
            thread = self._threads.setdefault(check.key, trio.CapacityLimiter(1))
            return await trio.to_thread.run_sync(machine.look, check, limiter=thread, abandon_on_cancel=True)
        return await reached.look(check)

    # ---- what nodes share

    async def _turn(self, check: Check) -> float:
        """Look for all, if this node is the checker; stand for election, if there is none."""
        node, key, now = self._driver.node, check.key, boottime()
        if node.state != "ready" or not node.ledger_up or not node.ledger:
            return LOOK_S
        if key in self._elected:
            self._elected.discard(key)
            await self._look_for_all(check)
            return check.every_s
        hold = node.drains.holds.get(OF_CHECK + key)
        written = hold.at if hold is not None else 0.0
        if self._seen.get(key, (-1.0, 0.0))[0] != written:
            self._seen[key] = written, now
        if hold is not None and hold.by == node.hostname:
            await self._look_for_all(check)
            return check.every_s
        if hold is None or now - self._seen[key][1] > SILENT_PERIODS * check.every_s + SILENT_S:
            slot = int(self._driver.now().wall // check.every_s)
            self._driver.feed(node.open_election, f"check/{key}/{slot}", f"check/{key}", None)
            return min(1.0, check.every_s)
        return 1.0

    def _won(self, key: str, _elected: Elected) -> None:
        self._elected.add(key)

    async def _look_for_all(self, check: Check) -> Result:
        """Look, do what follows for jobs, and write it into the ledger.

        A job is suspended before the check is written as bad, and resumed after it is written as good: a checker that
        dies between the two is replaced by one that does what is missing. The ledger takes each word on the check, and
        each resumption, only if the word before it still stands: a checker that was paused has no more say.
        """
        node, key = self._driver.node, OF_CHECK + check.key
        result = await self._look(check)
        jobs = [job for job, then in self._jobs_of(check) if then == SUSPEND]
        names = tuple([job.name for job in jobs])
        holds = await self._ledger.query(lambda ledger: ledger.ask(ListOpen(jobs=names, limit=1)).holds)
        hold = holds.get(key)
        noted = hold.note if hold is not None else ""
        before = unpack(noted) if hold is not None else Standing()
        standing = self._judged(check, before, result)
        if standing.is_bad and not before.is_bad:
            # The earlier word must not stand while jobs are suspended: a checker that was paused would resume them.
            noted = await self._keep(check, before.looked_at(standing.at), noted)
            if not noted:  # another checker has spoken since: its next look does what is missing
                return result
            for name in names:
                held = holds.get(OF_JOB + name)
                if held is None or held.by == reactions.suspender(check.key):  # perhaps it was resumed meanwhile
                    await self._suspend(name, check, standing)
        note = await self._keep(check, standing, noted)
        if not note:
            return result
        self._tell_written(check, hold, before, standing)
        if standing.is_good or (before.is_bad and not standing.is_bad):
            for job in jobs:
                suspended = holds.get(OF_JOB + job.name)
                if suspended is not None and suspended.by == reactions.suspender(check.key):
                    told = reactions.told(check, standing.state, standing.text)
                    await self._resume(job, check.key, told, holds, noted=note)
        if standing.state != before.state:
            self._driver.feed(node.look_again)
        return result

    async def _keep(self, check: Check, standing: Standing, noted: str) -> str:
        """Write how a check stands, if ``noted`` still stands there; returns the note, or "" if it does not."""
        ends = self._driver.now().wall + KEPT_PERIODS * check.every_s + KEPT_S
        key, by, note = OF_CHECK + check.key, self._driver.node.hostname, pack(standing)
        word = Keep(key=key, held=True, by=by, uid=os.getuid(), until=ends, note=note, given=key, noted=noted)
        return note if (await self._ledger.write(word)).word == OK else ""

    async def _suspend(self, job: str, check: Check, standing: Standing) -> None:
        note, uid = reactions.told(check, standing.state, standing.text), os.getuid()
        await self._ledger.write(
            Suspend(job=job, suspended=True, by=reactions.suspender(check.key), uid=uid, note=note)
        )
        self._driver.journal_control("job.suspend", f"{job}: {note}", uid, reactions.suspender(check.key))

    async def _resume(self, job: Job, key: str, why: str, holds: Mapping[str, Hold], *, noted: str) -> None:
        """End what this check has suspended, unless another check of the job is bad: then that one holds it. The ledger
        resumes it only while the check stands there as ``noted``: this node may have been paused since.
        """
        for other, then in reactions.uses(job, self._checks):
            if then == SUSPEND and other.key != key and (hold := holds.get(OF_CHECK + other.key)) is not None:
                found = unpack(hold.note)
                if found.is_bad:
                    await self._suspend(job.name, other, found)
                    return
        uid, by = os.getuid(), reactions.suspender(key)
        end = Suspend(job=job.name, suspended=False, by=by, uid=uid, given=OF_CHECK + key, noted=noted)
        if (await self._ledger.write(end)).word == OK:
            self._driver.journal_control("job.resume", f"{job.name}: {why}", uid, by)

    # ---- what nobody looks at any more

    def _look_for_forsaken(self, nursery: trio.Nursery) -> None:
        """A check that is gone while it suspends a job lets it go. A node that has the check writes how it stands at
        once where the ledger has nothing of it; so the ledger's silence, not this node's configuration, says so. That
        a check is there and suspends the job no more is said by the node that looks for all.
        """
        node, now = self._driver.node, boottime()
        sees = node.state == "ready" and node.ledger_up and self._ledger.state == CONNECTED
        found = self._forsaken_by(node.drains.holds) if sees else ()
        self._forsaken = {one: self._forsaken.get(one, now) for one in found}
        for (name, key), since in self._forsaken.items():
            if now - since > KEPT_S:
                self._forsaken[name, key] = now
                nursery.start_soon(self._let_go, node.jobs[name], key)

    def _forsaken_by(self, holds: Mapping[str, Hold]) -> Iterable[tuple[str, str]]:
        known, node = self.known(), self._driver.node
        found = reactions.forsaken(node.jobs, holds, self._checks, node.hostname)
        # What this node looked at and has no more may be looked at elsewhere: silence tells.
        return [(name, key) for name, key in found if OF_CHECK + key not in holds or key in known]

    async def _let_go(self, job: Job, key: str) -> None:
        try:
            holds = await self._ledger.query(lambda ledger: ledger.ask(ListOpen(jobs=(job.name,), limit=1)).holds)
            seen = holds.get(OF_CHECK + key)
            if seen is None:
                await self._resume(job, key, f"nobody looks at check {key} any more", holds, noted="")
            elif seen.by == self._driver.node.hostname:
                await self._resume(job, key, f"check {key} does not suspend it any more", holds, noted=seen.note)
        except CoorddError as exc:  # the ledger is away: tried again later
            log.debug("check.not_let_go", check=key, job=job.name, reason=str(exc))

    def _jobs_of(self, check: Check) -> Iterator[tuple[Job, str]]:
        for job in self._driver.node.jobs.values():
            if not job.name.startswith(HOOK):
                for one, then in reactions.uses(job, self._checks):
                    if one.key == check.key:
                        yield job, then
