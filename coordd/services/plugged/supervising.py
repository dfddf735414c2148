"""Starts the services of packages, and starts them again when they end: with growing pauses, then by a breaker."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import partial

import structlog
import trio

from coordd import plugins
from coordd.config.plugged.services import ServiceTable
from coordd.core.breaker import FAILURES, Breaker, Rule
from coordd.services.control.doctor import FAIL, OK, WARN, Check, check
from coordd.services.ledger import boottime
from coordd.services.pace import IDLE_S, turn
from coordd.services.plugged.process import served

log = structlog.get_logger("services")

# A service that has been ready for this long (seconds) works: what was before does not count.
STABLE_S = 60.0

# After this many failures in a row the breaker opens, for this long (seconds) at first, and at most.
FAILURES_MAX = 5
OPEN_MIN_S, OPEN_MAX_S = 60.0, 3600.0

# The names of these breakers begin so.
OF_SERVICE = "service:"

# The first pause (seconds) between two starts, and the longest. It doubles.
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 30.0

LOOK_S = 0.5

# What a service is.
STARTING, READY, WAITING, STOPPED = "starting", "ready", "waiting", "stopped by its breaker"


class Service:
    """One of them."""

    def __init__(self, table: ServiceTable, about: dict[str, str]) -> None:
        self.table = table
        self.state = STARTING
        self.text = ""  # what it said last, or why it ended last
        self.starts = 0
        rule = Rule(((FAILURES_MAX, FAILURES),), open_for_s=OPEN_MIN_S, open_for_max_s=OPEN_MAX_S)
        self.breaker = Breaker(OF_SERVICE + table.name, rule)
        self._about = about
        self._ready = trio.Event()

    async def run(self) -> None:
        """Keep it running for ever."""
        while True:
            permit = self.breaker.allow(boottime())
            if not permit:
                self.state = STOPPED
                await trio.sleep(min(LOOK_S, self.breaker.retry_in_s(boottime()) + 0.01))
                continue
            self.starts += 1
            self.state, self._ready = STARTING, trio.Event()
            log.info("service.starting", service=self.table.name, start=self.starts)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stable, permit)
                why = await served(self.table, self._about, self._heard)
                nursery.cancel_scope.cancel()
            await self._ended(permit, why)

    async def _ended(self, permit: int, why: str) -> None:
        now = boottime()
        self.state, self.text = WAITING, why
        # A probe that worked for a while has another permit by now.
        self.breaker.failed(self.breaker.allow(now) or permit, why, now, random.random())  # noqa: S311 - it only spreads probes
        if self.breaker.is_open:
            tell = log.error if self.breaker.is_loud(now) else log.warning
            tell("service.stopped", service=self.table.name, reason=why, for_s=round(self.breaker.retry_in_s(now)))
            return
        pause_s = min(PAUSE_MAX_S, PAUSE_MIN_S * 2 ** (self.breaker.failures - 1))
        log.warning("service.ended", service=self.table.name, reason=why, again_in_s=pause_s)
        await trio.sleep(pause_s)

    async def _stable(self, permit: int) -> None:
        await self._ready.wait()
        await trio.sleep(STABLE_S)
        self.breaker.succeeded(permit, boottime())

    def _heard(self, word: str, text: str) -> None:
        self.text = text
        if word == plugins.READY and self.state != READY:
            self.state = READY
            self._ready.set()
            log.info("service.ready", service=self.table.name, text=text or None)

    def check(self) -> Check:
        """For `doctor`."""
        mark = {READY: OK, STOPPED: FAIL}.get(self.state, WARN if self.breaker.failures else OK)
        text = f"{self.state}, started {self.starts} times" + (f": {self.text}" if self.text else "")
        return check(f"service {self.table.name}", mark, text, "the log has service.said; jobs do not depend on it")


class Services:
    """All services of one daemon."""

    def __init__(self, tables: Iterable[ServiceTable], about: dict[str, str]) -> None:
        """``about``: node, cluster and socket, for the contexts."""
        self._tables = {table.name: table for table in tables}
        self._about = about
        self.running: dict[str, Service] = {}

    def use(self, tables: Iterable[ServiceTable]) -> None:
        """The configuration was read again: what changed is started again, what is gone is ended."""
        self._tables = {table.name: table for table in tables}

    async def run(self) -> None:
        """Serve for ever."""
        scopes: dict[str, trio.CancelScope] = {}
        async with trio.open_nursery() as nursery:
            while True:
                for name, service in list(self.running.items()):
                    if self._tables.get(name) != service.table:
                        scopes.pop(name).cancel()
                        del self.running[name]
                for name, table in self._tables.items():
                    if name not in self.running:
                        self.running[name] = service = Service(table, self._about)
                        scopes[name] = trio.CancelScope()
                        nursery.start_soon(partial(self._within, scopes[name], service))
                await turn(LOOK_S if self.running else IDLE_S)

    async def _within(self, scope: trio.CancelScope, service: Service) -> None:
        with scope:
            try:
                await service.run()
            except Exception:
                # The boundary: a mistake in here must not end the daemon.
                log.exception("service.failed", service=service.table.name)

    def breakers(self) -> tuple[Breaker, ...]:
        """Those of all services."""
        return tuple([service.breaker for service in self.running.values()])

    def checks(self) -> list[Check]:
        """For `doctor`."""
        return [service.check() for service in self.running.values()]
