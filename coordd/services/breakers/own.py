"""The breakers of one node: of its connections to bus and ledger, and of the services of packages."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from coordd.core.breaker import Breaker
from coordd.ports import Bus

log = structlog.get_logger()


class OwnBreakers:
    """All of them. ``of_services`` is set by the composition root."""

    def __init__(self, ledger: Breaker) -> None:
        self.bus = Breaker("bus")
        self.ledger = ledger
        self.of_services: Callable[[], tuple[Breaker, ...]] = tuple

    @property
    def connections(self) -> tuple[Breaker, Breaker]:
        """Those that `[breakers]` of coordd.toml speaks of."""
        return self.bus, self.ledger

    @property
    def all(self) -> tuple[Breaker, ...]:
        """Every one, for people."""
        return *self.connections, *self.of_services()

    def look_at(self, bus: Bus, now: float) -> None:
        """The bus reconnects by itself. Its breaker does not prevent that; it only shows for how long it has failed."""
        breaker = self.bus
        if bus.state != "disconnected":
            if breaker.failures or breaker.is_open:
                breaker.restored(now)
        elif permit := breaker.allow(now):
            was_closed = not breaker.is_open
            breaker.failed(permit, bus.error or "not connected", now, 1.0)
            if was_closed and breaker.is_open:
                tell = log.error if breaker.is_loud(now) else log.warning
                tell("breaker.opened", name=breaker.name, reason=breaker.reason)
