"""Mingling: before a node takes part, it asks all nodes what it has missed, and waits a short time for the answers."""

from __future__ import annotations

from collections.abc import Callable

from coordd.core.context import Context
from coordd.core.ready import Now
from coordd.core.wire.events import WorkerHello, WorkerState


class Mingling:
    """The nodes whose answers are awaited, and until when."""

    __slots__ = ("_bus_seen", "_ctx", "_enter", "_missing", "_says", "_until")

    def __init__(
        self, ctx: Context, says: Callable[[type[WorkerState]], WorkerState], enter: Callable[[Now], None]
    ) -> None:
        """``enter`` lets the node take part."""
        self._ctx = ctx
        self._says = says
        self._enter = enter
        self._until = 0.0
        self._missing: set[str] | None = None  # None: the transport could not list its peers
        self._bus_seen = False  # it was connected since the start

    def begin(self, peers: tuple[str, ...] | None, bus_up: bool, now: Now) -> None:
        """Ask all nodes. ``peers`` are those that the transport knows, None if it cannot tell."""
        self._missing = None if peers is None else set(peers)
        self._until = now.mono + self._ctx.settings.mingle_timeout_s
        if bus_up:  # otherwise as soon as it is up; if it is late, the ledger is enough
            self._ctx.publish(self._says(WorkerHello), now)
        self._ctx.arm(self._until, "mingle")
        if self._missing is not None and not self._missing:
            self._enter(now)

    def bus_came(self, now: Now) -> None:
        """The bus is there (again)."""
        if self._is_on() and not self._bus_seen:  # only once: an unstable bus must not delay the start
            self._until = now.mono + self._ctx.settings.mingle_timeout_s
        self._bus_seen = True

    def not_missing(self, name: str, now: Now) -> None:
        """That node has answered, or is dead."""
        if self._missing is None or not self._is_on():
            return  # if the transport could not list its peers, only the timeout ends it
        self._missing.discard(name)
        if not self._missing:
            self._enter(now)

    def timer(self, now: Now) -> None:
        """Stop waiting for the missing answers."""
        if not self._is_on():
            return
        if now.mono < self._until:  # the bus came late
            self._ctx.arm(self._until, "mingle")
        else:
            self._enter(now)

    def _is_on(self) -> bool:
        return self._ctx.state == "mingling"
