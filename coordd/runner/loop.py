"""Waits for descriptors and for a time: the little of an event loop that a runner needs."""

import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

# CLOCK_BOOTTIME may have run on while a poll slept (suspend): look at least this often.
LOOK_S = 1.0

# The last stretch before a fire time is slept in small pieces: a poll may be late by this much.
FINE_WAIT_S = 0.002
FINE_PIECE_S = 0.0002


class Loop:
    """Calls a handler for each descriptor that is readable."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[int], None]] = {}

    def on(self, fd: int, handler: "Callable[[int], None]") -> None:
        """Call ``handler`` with the descriptor whenever it is readable, or its other end is closed."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def off(self, fd: int) -> None:
        """Never again; to be said before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def has(self, fd: int) -> bool:
        """Whether somebody waits for it."""
        return fd in self._handlers

    def wait(self, wait_s: float, *, fine: bool) -> None:
        """Wait once, and handle what has come. ``fine``: never wait too long, rather a little too short."""
        if not fine:
            milliseconds = int(min(max(0.0, wait_s), LOOK_S) * 1000 + 0.999)
        elif wait_s <= FINE_WAIT_S:
            time.sleep(max(0.0, min(wait_s, FINE_PIECE_S)))
            return
        else:
            milliseconds = int(min(wait_s - FINE_WAIT_S, LOOK_S) * 1000)
        for fd, _ in self._poll.poll(milliseconds):
            handler = self._handlers.get(fd)
            if handler is not None:  # else a handler before it has closed it
                handler(fd)


def is_readable(fd: int) -> bool:
    """Something is there to be read now, an end of file included."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
