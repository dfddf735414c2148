"""Takes arrivals: each becomes one run of the job, which the ledger has once, or waits until there is room."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence, Set as AbstractSet
from typing import Any

import structlog
import trio

from coordd.core.jobs.job import Job
from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import Arrival, choose, run_of, unknown
from coordd.core.triggers.duplicates import run_of_arrival
from coordd.core.visible import visible
from coordd.errors import RefusedError
from coordd.ports import Ledger
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService
from coordd.services.triggering.registering import register
from coordd.services.triggering.rooms import Rooms
from coordd.services.triggering.sources import Known

log = structlog.get_logger("triggers")

# Arrivals that are looked up in the ledger with one look, and with one question.
LOOKED_UP_MAX = 5000
QUESTION_MAX = 250

# Arrivals that one look takes, and how many of them are registered at a time.
TAKEN_MAX = 1000
AT_A_TIME = 200

# What people are shown of each: arrivals that wait, those that were refused, and the last ones that were taken.
SHOWN_MAX = 20


class Taker:
    """The arrivals of one trigger, as this node knows them."""

    def __init__(
        self, job: str, trigger: Trigger, driver: Driver, ledger: LedgerService, rooms: Rooms | None = None
    ) -> None:
        """``rooms``: shared with the other triggers of this node."""
        self.job = job
        self.trigger = trigger
        self._driver = driver
        self._ledger = ledger
        # Keys of present arrivals: those whose runs the ledger has, and those that can start none, with the reason.
        self.recorded: set[str] = set()
        self.impossible: dict[str, str] = {}
        self._refused_as: dict[str, Arrival] = {}  # the latter, as they were
        # Those whose runs are recorded, perhaps only on this node's disk, and those that can start none.
        self._consumed: set[str] = set()
        self._life = ""  # of the ledger that had these runs
        self._rooms = rooms or Rooms(driver, ledger)
        self.waiting: list[Arrival] = []
        self.refused: dict[str, str] = {}  # of the last look: arrival -> why it can start no run
        self.recent: deque[dict[str, Any]] = deque(maxlen=SHOWN_MAX)
        self.counts = {"taken": 0, "refused": 0}

    def forget(self) -> None:
        """Another node looks now: what is known here may be old."""
        self._rooms.forget(self.job)
        self._consumed.clear()
        self.recorded.clear()
        self.impossible.clear()
        self._refused_as.clear()
        self.waiting, self.refused = [], {}

    @property
    def known(self) -> Known:
        """For the next look."""
        return Known((self.recorded, self.impossible), self._consumed)

    async def take(
        self, arrivals: Sequence[Arrival], refused: Sequence[tuple[str, str]] = (), gone: AbstractSet[str] | None = None
    ) -> bool:
        """Take all arrivals that are there now and are new, as far as there is room. True if more can be taken at once.
        ``gone``: as Look has it.

        Raises UnavailableError; the next look finds the rest again.
        """
        present = {arrival.key for arrival in arrivals}
        self._look_at_ledger()
        if gone is None:
            gone = self._consumed - present
        changed = {one.key for one in arrivals if one.key in self._refused_as and one != self._refused_as[one.key]}
        gone = gone | changed  # what could start nothing may be able to now
        self._consumed -= gone
        self.recorded -= gone
        for key in gone:
            self.impossible.pop(key, None)
            self._refused_as.pop(key, None)
        self._refused({**self._impossible(), **dict(refused[:SHOWN_MAX])})
        await self._look_up(unknown(arrivals, self.known, LOOKED_UP_MAX))
        if present <= self._consumed:
            self.waiting = []
            return False
        job = self._driver.node.jobs.get(self.job)
        if job is None:
            self.waiting = choose(arrivals, self._consumed, 0, 0).waiting
            return False
        async with self._rooms.turn(self.job):
            chosen = choose(arrivals, self._consumed, await self._rooms.counted(job, self.trigger.max_open), TAKEN_MAX)
            self.waiting = chosen.taken + chosen.waiting
            for some in _parts(chosen.taken, AT_A_TIME):
                async with trio.open_nursery() as nursery:
                    for arrival in some:
                        nursery.start_soon(self._taken, job, arrival)
        self.waiting = choose(arrivals, self._consumed, 0, 0).waiting
        return bool(self.waiting) and len(chosen.taken) == TAKEN_MAX

    def _look_at_ledger(self) -> None:
        """A ledger that has gone back may have forgotten runs: what is still there is looked up again."""
        life = self._driver.node.heard.life
        if life != self._life:
            self._life = life
            self.recorded.clear()
            self._consumed = set(self.impossible)

    def _impossible(self) -> dict[str, str]:
        """Those that can start no run, and are still there; of them those that people are shown."""
        shown = {one.shown for one in self._refused_as.values()} if self.refused else ()
        return {what: why for what, why in self.refused.items() if what in shown}

    async def _look_up(self, arrivals: Sequence[Arrival]) -> None:
        for some in _parts(arrivals, QUESTION_MAX):

            def read(ledger: Ledger, some: Sequence[Arrival] = some) -> list[str]:
                runs = {one.key: self._run_of(one) for one in some}
                there = ledger.recorded(list(runs.values()))
                return [key for key, run in runs.items() if run in there]

            self.recorded.update(found := await self._ledger.query(read))
            self._consumed.update(found)

    def _run_of(self, arrival: Arrival) -> str:
        job = self._driver.node.jobs.get(self.job)
        if job is None:
            return run_of(self.job, self.trigger.name, arrival.key)
        return run_of_arrival(job, self.trigger, arrival)

    def has_taken(self, key: str) -> bool:
        """True if its run is recorded, perhaps only on this node's disk."""
        return key in self._consumed and key not in self.impossible

    async def room(self) -> int:
        """How many arrivals may be taken now. Raises UnavailableError."""
        job = self._driver.node.jobs.get(self.job)
        return await self._rooms.room(job, self.trigger.max_open) if job is not None else 0

    async def _taken(self, job: Job, arrival: Arrival) -> None:
        """Register the run of an arrival; what could not be recorded waits."""
        try:
            reply = await register(self._driver, job, self.trigger, arrival)
        except RefusedError as exc:
            self._refused({**self.refused, arrival.shown: str(exc)})
            self.impossible[arrival.key] = str(exc)
            self._refused_as[arrival.key] = arrival
            self._consumed.add(arrival.key)
            return
        self._rooms.took(self.job)
        if reply.kind not in ("", "conflict"):  # conflict: it was taken under an earlier definition
            return
        self._consumed.add(arrival.key)
        if not reply.kind:
            if reply.result["durable"] == "ledger":
                self.recorded.add(arrival.key)
            self.counts["taken"] += 1
            run = run_of_arrival(job, self.trigger, arrival)
            self.recent.append({"arrival": visible(arrival.shown), "run": run, "at": self._driver.now().wall})

    def _refused(self, refused: dict[str, str]) -> None:
        for what, why in refused.items():
            if what not in self.refused:
                self.counts["refused"] += 1
                log.warning("trigger.refused", job=self.job, trigger=self.trigger.name, about=visible(what), reason=why)
        self.refused = dict(list(refused.items())[:SHOWN_MAX])


def _parts(arrivals: Sequence[Arrival], size: int) -> Iterator[Sequence[Arrival]]:
    return (arrivals[at : at + size] for at in range(0, len(arrivals), size))
