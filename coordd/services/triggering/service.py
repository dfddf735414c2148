"""The service of triggers that are polled: a task for each of them looks while this node is the one that polls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog
import trio

from coordd.core.jobs.job import Job
from coordd.core.jobs.trigger import AMQP, FILE, REDIS, SQL, Trigger
from coordd.core.triggers.polling import subject
from coordd.core.visible import visible
from coordd.errors import CoorddError
from coordd.ports import Files, MessageQueue
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService, boottime
from coordd.services.pace import IDLE_S, turn
from coordd.services.triggering.calls import Calls
from coordd.services.triggering.polling import Polling
from coordd.services.triggering.programs import CommandSource, PluggedSource, SqlSource
from coordd.services.triggering.queues import QueueSource
from coordd.services.triggering.rooms import Rooms
from coordd.services.triggering.sources import FileSource, Look, Source
from coordd.services.triggering.taking import SHOWN_MAX, Taker

log = structlog.get_logger("triggers")

# How often (seconds) the jobs, and who polls, are looked at; and the pause before a look that may find more.
TURN_S = 0.5
SOON_S = 1.0

# A failed look keeps a node from the next elections for this long (seconds).
FAILED_S = 150.0

# How long (seconds) a source may take to give back what it holds.
CLOSE_S = 2.0


class Queues(Protocol):
    """Where messages come from."""

    async def run(self) -> None:
        """Serve for ever."""

    def open(self, job: str, trigger: Trigger) -> MessageQueue:
        """The queue or the stream of a trigger. It connects when it is read."""

    def program(self, trigger: Trigger, rows_max: int) -> tuple[Sequence[str], bytes]:
        """What asks a database: its argv, and what it reads. Blocks; raises UnavailableError."""


class Watched:
    """One trigger that is polled, as this node sees it."""

    def __init__(
        self,
        job: str,
        trigger: Trigger,
        driver: Driver,
        ledger: LedgerService,
        polling: Polling,
        source: Source,
        rooms: Rooms | None = None,
    ) -> None:
        self.job = job
        self.trigger = trigger
        self.source = source
        self.subject = subject(job, trigger.name)
        self.taker = Taker(job, trigger, driver, ledger, rooms)
        self.scope = trio.CancelScope()
        self.looked_at = 0.0  # Unix seconds; 0.0: not yet
        self.problem = ""
        self.last = Look([], [])
        self.failed_at = float("-inf")  # CLOCK_BOOTTIME
        self.driver = driver
        self._polling = polling

    @property
    def polls(self) -> bool:
        """True if this node does."""
        return self._polling.poller(self.subject) == self.driver.node.full_hostname

    async def run(self) -> None:
        """Look for ever, whenever this node polls."""
        try:
            with self.scope:
                await self._look_on()
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await self.source.close()

    async def _look_on(self) -> None:
        """Until the trigger is gone."""
        polled, next_at = False, 0.0
        while True:
            job = self.driver.node.jobs.get(self.job)
            if job is not None:
                failed = boottime() - self.failed_at < FAILED_S
                polls = self._polling.look(self.subject, job, failed=failed)
                if polls and not polled:
                    log.info("trigger.polls", job=self.job, trigger=self.trigger.name)
                    next_at = 0.0
                elif polled and not polls:
                    self.taker.forget()
                    self.last = Look([], [])
                    await self.source.close()
                polled = polls
                if polls and boottime() >= next_at:
                    pause_s = await self._look()
                    next_at = boottime() + pause_s
                    if not pause_s:
                        continue  # there is more, and a look waits for a source and for the ledger
            await turn(TURN_S)

    async def _look(self) -> float:
        """One look. Returns the pause before the next one (seconds)."""
        every_s = self.trigger.every_s
        try:
            self.source.known = self.taker.known
            look = await self.source.look(self.taker.room)
            self.last = look._replace(arrivals=[], gone=None)  # there may be many
            more = await self.taker.take(look.arrivals, look.refused, look.gone)
            more = await self.source.settle(self.taker.recorded, self.taker.impossible) or more
        except CoorddError as exc:
            self._failed(str(exc))
            return every_s
        except Exception as exc:
            # The boundary of one trigger: whatever its source says must not end the daemon, nor the next poller's.
            why = f"the look failed: {type(exc).__name__}"
            if why != self.problem:
                log.exception("trigger.look_broken", job=self.job, trigger=self.trigger.name)
            self._failed(why)
            return every_s
        self.looked_at, self.failed_at = self.driver.now().wall, float("-inf")
        if self.problem and not look.problem:
            log.info("trigger.looks_again", job=self.job, trigger=self.trigger.name)
        self.problem = look.problem
        if more:
            return 0.0
        return min(every_s, SOON_S) if look.soon or self.waiting else every_s

    def _failed(self, why: str) -> None:
        self.failed_at = boottime()
        why = visible(why)
        if why != self.problem:
            log.warning("trigger.look_failed", job=self.job, trigger=self.trigger.name, reason=why)
        self.problem = why

    @property
    def waiting(self) -> int:
        """Arrivals that wait, here and where they come from."""
        return len(self.taker.waiting) + self.last.behind

    def summary(self) -> dict[str, Any]:
        """What the node that polls tells of it."""
        taker = self.taker
        return {
            "job": self.job,
            "name": self.trigger.name,
            "looked_at": self.looked_at,
            "waiting": self.waiting,
            "dead": self.last.dead,
            "taken": taker.counts["taken"],
            "refused": taker.counts["refused"],
            "problem": self.problem[:500],
        }

    def details(self) -> dict[str, Any]:
        """The same, with the arrivals themselves."""
        taker = self.taker
        return {
            **self.summary(),
            "waiting_first": [visible(one.shown)[:300] for one in taker.waiting[:SHOWN_MAX]],
            "refused_now": [
                {"arrival": visible(what)[:300], "reason": why} for what, why in list(taker.refused.items())[:SHOWN_MAX]
            ],
            "dead_last": [
                {
                    "at": one.at,
                    "message": visible(one.ident)[:100],
                    "reason": visible(one.reason)[:300],
                    "place": one.place,
                }
                for one in self.last.dead_last
            ],
            "taken_last": [dict(one) for one in reversed(taker.recent)],
        }


class Triggering:
    """All triggers of one daemon that are polled."""

    def __init__(
        self,
        driver: Driver,
        ledger: LedgerService,
        files: Files,
        keep_s: Callable[[], float],
        queues: Queues,
        calls: Calls | None = None,
    ) -> None:
        """``keep_s``: how long the ledger remembers runs. ``calls``: the listener for HTTP calls, if there is one."""
        self._driver = driver
        self._ledger = ledger
        self._files = files
        self._keep_s = keep_s
        self._queues = queues
        self.calls = calls
        self._rooms = calls.rooms if calls is not None else Rooms(driver, ledger)
        self._digest = ""
        self.polling = Polling(driver)
        self.watched: dict[str, Watched] = {}  # by subject

    async def run(self) -> None:
        """Serve for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._queues.run)
            if self.calls is not None:
                nursery.start_soon(self.calls.run)
                nursery.start_soon(self.calls.read_again)
            while True:
                if self._digest != self._driver.node.jobs_digest:
                    self._digest = self._driver.node.jobs_digest
                    self._use(nursery)
                await turn(TURN_S if self.watched else IDLE_S)

    def _use(self, nursery: trio.Nursery) -> None:
        """The jobs have changed: tasks of triggers that are gone end, and new ones begin."""
        wanted = {subject(job.name, one.name): (job, one) for job, one in polled_of(self._driver.node.jobs.values())}
        for of, known in list(self.watched.items()):
            if of not in wanted or wanted[of][1] != known.trigger:
                known.scope.cancel()
                del self.watched[of]
                self.polling.forget(of)
        for of, (job, trigger) in wanted.items():
            if of not in self.watched:
                source = self._source(job, trigger)
                watched = self.watched[of] = Watched(
                    job.name, trigger, self._driver, self._ledger, self.polling, source, self._rooms
                )
                nursery.start_soon(watched.run)

    def _source(self, job: Job, trigger: Trigger) -> Source:
        if trigger.kind == FILE:
            return FileSource(trigger, self._files, self._keep_s)
        if trigger.kind in (AMQP, REDIS):
            return QueueSource(trigger, self._queues.open(job.name, trigger))
        if trigger.kind == SQL:
            return SqlSource(trigger, self._queues.program)
        if trigger.plugged:
            return PluggedSource(job.name, trigger, self._driver.node.hostname)
        return CommandSource(trigger)

    def own(self, job: str, name: str) -> Watched | None:
        """The trigger, if this node polls it."""
        watched = self.watched.get(subject(job, name))
        return watched if watched is not None and watched.polls else None

    async def take_back(self, job: str, trigger: Trigger, dead: str, *, again: bool) -> bool:
        """Remove a dead message, or put it back into its queue (``again``). False if it is not there. On any node, by a
        connection of its own.
        """
        queue = self._queues.open(job, trigger)
        try:
            return await queue.take_back(dead, again=again)
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await queue.close()

    def counted(self) -> dict[str, tuple[int, int, bool, int]]:
        """For metrics: taken, waiting, whether it works, and dead messages, of what this node polls or answers."""
        found = {
            f"{one.job}/{one.trigger.name}": (one.taker.counts["taken"], one.waiting, not one.problem, one.last.dead)
            for one in self.polled()
        }
        if self.calls is not None:
            for job, trigger in self.calls.routes().values():
                of = job.name, trigger.name
                works = not self.calls.problem and of not in self.calls.problems
                found[f"{job.name}/{trigger.name}"] = (self.calls.taken[of], 0, works, 0)
        return found

    def view(self) -> dict[str, Any]:
        """For `status`: what this node polls."""
        polled = self.polled()
        return {
            "polled": len(polled),
            "waiting": sum(one.waiting for one in polled),
            "failing": sorted(name for name, (_, _, works, _) in self.counted().items() if not works),
            "routes": len(self.calls.routes()) if self.calls is not None else 0,
        }

    def polled(self) -> list[Watched]:
        """Those that this node polls."""
        return [watched for watched in self.watched.values() if watched.polls]


def polled_of(jobs: Any) -> list[tuple[Job, Trigger]]:
    """The triggers that a node looks for, with their jobs."""
    return [(job, one) for job in jobs for one in job.triggers if one.polled]
