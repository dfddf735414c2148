"""Notices what this node has decided and what has ended on it, reads the rows, and offers the spans.

The spans of an attempt come from the node that records its end: its own, or the one that finds it lost and takes over.
The span of the run comes from the node that records the last end. Their ids are computed, so no node asks another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import structlog
import trio

from coordd.core.jobs.job import HOOK
from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import RECEIVED, STARTED, TERMINAL, UNKNOWN
from coordd.core.ready import Notice
from coordd.core.wire import events
from coordd.core.wire.events import Event
from coordd.errors import UnavailableError
from coordd.ports import Ledger, SpanExporter
from coordd.services.driver import Driver
from coordd.services.ledger import LedgerService, boottime
from coordd.services.tracing import spans

log = structlog.get_logger("tracing")

# How often (seconds) the service looks at what it waits for.
LOOK_S = 0.5

# The ledger is read this long (seconds) after an end, and again until it has the end. An unknown end waits for
# people.
FIRST_S = 0.3
AGAIN_S = 2.0
GIVE_UP_S = 120.0
UNKNOWN_S = 60.0

# Ends that wait, and ends that are looked up at a time.
WAITING_MAX = 2000
LOOKED_UP_MAX = 50

# When the daemon stops, spans that wait are sent within this time (seconds).
CLOSE_S = 2.0

ENDS = (events.TaskSucceeded, events.TaskFailed, events.TaskRevoked, events.TaskRejected, events.TaskRetried)


class Ended(NamedTuple):
    """An attempt that has ended: look ``at`` that time (CLOCK_BOOTTIME), until ``until``."""

    at: float
    until: float
    runtime_s: float | None


class Tracing:
    """The traces of one daemon."""

    def __init__(self, exporter: SpanExporter, driver: Driver, ledger: LedgerService) -> None:
        self._exporter = exporter
        self._driver = driver
        self._ledger = ledger
        self._ended: dict[tuple[str, int], Ended] = {}
        self._problem = ""
        self.untold = 0  # ends that found no room here, or that the ledger never had
        driver.listeners.append(self._saw)

    @property
    def counts(self) -> dict[str, int]:
        """Spans that were sent and dropped since the start, and those that wait."""
        sent, dropped = self._exporter.counts["sent"], self._exporter.counts["dropped"]
        return {"sent": sent, "dropped": dropped + self.untold, "waiting": self._exporter.waiting}

    @property
    def problem(self) -> str:
        """For `doctor`: what is lost, or ""."""
        lost = self.counts["dropped"]
        why = self._exporter.problem
        if lost:
            return f"{lost} spans were dropped since the start" + (f"; {why}" if why else "")
        return why

    async def run(self) -> None:
        """Watch for ever."""
        try:
            while True:
                try:
                    await self._look()
                except UnavailableError as exc:  # the next look tries again
                    log.debug("tracing.ledger_not_read", reason=str(exc))
                self._tell_problem()
                await trio.sleep(LOOK_S)
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._exporter.close, CLOSE_S)

    def _tell_problem(self) -> None:
        why = self._exporter.problem
        if why and not self._problem:
            log.warning("tracing.not_sent", reason=why, effect="jobs do not depend on it")
        elif self._problem and not why:
            log.info("tracing.sent_again")
        self._problem = why

    def _saw(self, journal: Sequence[Event], _notices: Sequence[Notice]) -> None:
        """This node's own deeds."""
        node = self._driver.node
        for event in journal:
            if isinstance(event, events.ElectionDecided):
                if event.opened_by == node.full_hostname and event.run and not event.run.startswith(HOOK):
                    self._exporter.offer([spans.of_election(node.settings.cluster, event)])
            elif isinstance(event, ENDS) and not event.name.startswith(HOOK):
                self._wait_for(event.run, event.attempt, event.runtime)

    def _wait_for(self, run: str, attempt: int, runtime_s: float | None) -> None:
        if len(self._ended) >= WAITING_MAX:
            self.untold += 1
            return
        now = boottime()
        self._ended[run, attempt] = Ended(now + FIRST_S, now + GIVE_UP_S, runtime_s)

    async def _look(self) -> None:
        now = boottime()
        due = [key for key, ended in self._ended.items() if ended.at <= now][:LOOKED_UP_MAX]
        if not due:
            return

        def read(ledger: Ledger) -> dict[str, tuple[Row | None, list[AttemptRow]]]:
            return {run: (ledger.run(run), ledger.attempts(run)) for run in {run for run, _ in due}}

        rows = await self._ledger.query(read)
        for key in due:
            self._looked_up(key, *rows[key[0]], now)

    def _looked_up(self, key: tuple[str, int], row: Row | None, attempts: list[AttemptRow], now: float) -> None:
        """Offer the spans if the ledger has the end; else look again."""
        _, number = key
        ended = self._ended[key]
        state = next((one.state for one in attempts if one.attempt == number), "")
        if row is None or run_fault(row) or _is_open(state, row):
            if now < ended.until:
                self._ended[key] = ended._replace(at=now + AGAIN_S)
                return
            del self._ended[key]
            self.untold += 1
            return
        if state == UNKNOWN and row.state == UNKNOWN:
            self._ended[key] = ended._replace(at=now + UNKNOWN_S)
            return
        del self._ended[key]
        cluster = self._driver.node.settings.cluster
        try:
            found = spans.of_attempt(cluster, row, attempts, number, ended.runtime_s)
            if row.state in TERMINAL and row.attempt == number:
                found += spans.of_run(cluster, row)
        except Exception as exc:  # whatever somebody has written into the ledger: a trace must not end the daemon
            log.error("tracing.not_made", run=row.run, attempt=number, reason=f"{type(exc).__name__}: {exc!s:.300}")
            self.untold += 1
            return
        self._exporter.offer(found)


def _is_open(state: str, row: Row) -> bool:
    """True if the attempt's runner has not reported its end yet. ``state``: of the attempt; "" without a row of it."""
    return state in (RECEIVED, STARTED) or (not state and row.state not in TERMINAL)
