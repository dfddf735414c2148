"""Sends what this node does to the mirror. Each node sends its own events, so of each event there is one copy."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import structlog
import trio

from coordd.core.ready import Notice
from coordd.core.wire.events import Event
from coordd.ports import Mirror
from coordd.services.driver import Driver
from coordd.services.mirror import form

log = structlog.get_logger("mirror")

# How often (seconds) a heartbeat is sent, as by a worker of Celery, and how often the connection is looked at.
HEARTBEAT_S = 2.0


class Mirrored:
    """The mirror of one daemon."""

    def __init__(self, mirror: Mirror, driver: Driver, *, arguments: bool) -> None:
        """``arguments``: parameters of runs are sent too."""
        self.mirror = mirror
        self._driver = driver
        self._arguments = arguments
        self._told = ""
        driver.listeners.append(self._saw)

    @property
    def _sender(self) -> form.Sender:
        """Now: summer time comes and goes."""
        node = self._driver.node
        west_s = time.altzone if time.localtime().tm_isdst > 0 else time.timezone
        return form.Sender(f"coordd@{node.hostname}", node.pid, west_s / 3600)

    def _saw(self, journal: Sequence[Event], _notices: Sequence[Notice]) -> None:
        """What this node did. It must not raise, and it costs some microseconds an event."""
        sender = self._sender
        for event in journal:
            said = form.task(event, sender, arguments=self._arguments)
            if said is not None:
                self.mirror.put(form.routing_key(said["type"]), form.body(said))

    def _worker(self, kind: str) -> None:
        node = self._driver.node
        said = form.worker(
            kind,
            self._sender,
            clock=node.clock,
            timestamp=time.time(),
            freq=HEARTBEAT_S,
            active=len(node.pursuits.running),
            processed=node.processed,
            loadavg=os.getloadavg(),
            sw_ident="coordd",
            sw_ver=node.settings.version,
            sw_sys=node.settings.system,
        )
        self.mirror.put(form.routing_key(kind), form.body(said))

    async def run(self) -> None:
        """Send for ever; at the end say goodbye, if there is a connection."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.mirror.run, lambda: self._worker(form.ONLINE))
            try:
                while True:
                    await trio.sleep(HEARTBEAT_S)
                    if not self.mirror.error:  # old heartbeats would push out what happened
                        self._worker(form.HEARTBEAT)
                    self._tell()
            finally:
                self._worker(form.OFFLINE)

    def _tell(self) -> None:
        """Log each change of the connection."""
        if self.mirror.error != self._told:
            self._told = self.mirror.error
            if self._told:
                log.warning("mirror.lost", reason=self._told, **self.mirror.statistics())
            else:
                log.info("mirror.connected", exchange=self.mirror.exchange)
