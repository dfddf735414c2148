"""A minimal event loop: waits for descriptors and for a time."""

import select
import time

from coordd.runner.kernel import boottime

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# CLOCK_BOOTTIME may have advanced while a poll slept (suspend): check at least this often (seconds).
LOOK_S = 1.0

# The last seconds before a fire time are slept in small pieces: a poll may be late by this much.
FINE_WAIT_S = 0.002
FINE_PIECE_S = 0.0002


# If this machine's clock and the ledger's differ by less than this (seconds), this machine's is more precise: the
# ledger's time has an error of half a round trip.
CLOCKS_AGREE_S = 0.05


def until_due(spec: "dict[str, Any]") -> float:
    """Seconds until an attempt is due; the gate decides finally."""
    by_our_clock = max(float(spec["fire_at"]), float(spec.get("due", 0.0))) - time.time()
    by_the_ledger = float(spec["due_at"]) - boottime() if "due_at" in spec else by_our_clock
    return by_our_clock if abs(by_our_clock - by_the_ledger) < CLOCKS_AGREE_S else by_the_ledger


class Loop:
    """Calls a handler for each readable descriptor."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def on(self, fd: int, handler: "Callable[[int], None]") -> None:
        """Call ``handler`` with the descriptor whenever it is readable, or its other end is closed."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def off(self, fd: int) -> None:
        """Stop that; to be called before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def has(self, fd: int) -> bool:
        """True if a handler is registered."""
        return fd in self._handlers

    def wait(self, wait_s: float, *, fine: bool) -> None:
        """Wait once, and call the handlers. ``fine``: rather wait a little too short than too long."""
        if not fine:
            milliseconds = int(min(max(0.0, wait_s), LOOK_S) * 1000 + 0.999)
        elif wait_s <= FINE_WAIT_S:
            time.sleep(max(0.0, min(wait_s, FINE_PIECE_S)))
            return
        else:
            milliseconds = int(min(wait_s - FINE_WAIT_S, LOOK_S) * 1000)
        self.look(milliseconds)

    def look(self, milliseconds: int = 0) -> None:
        """Call the handlers of what is readable, or will be in that time."""
        for fd, _ in self._poll.poll(milliseconds):
            handler = self._handlers.get(fd)
            if handler is not None:  # otherwise an earlier handler has closed it
                handler(fd)


def is_readable(fd: int) -> bool:
    """True if data, or an end of file, can be read now."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
