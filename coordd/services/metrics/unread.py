"""The newest messages that this node could not use: damaged, forged, or sealed with a key that it does not have."""

from __future__ import annotations

import time
from collections import deque
from typing import Any, NamedTuple

import structlog

log = structlog.get_logger("bus")

# A flood must fill neither memory nor log. Bytes of each message that are kept.
KEPT_MAX = 20
HEAD_BYTES = 512


class Message(NamedTuple):
    """One message. ``at``: Unix seconds, when it came. ``head``: its first bytes."""

    at: float
    reason: str
    size: int
    head: bytes


class Unread:
    """How many there were since the start, and the newest of them."""

    def __init__(self, event: str) -> None:
        """``event``: its name in the log."""
        self.newest: deque[Message] = deque(maxlen=KEPT_MAX)
        self._event = event

    def add(self, reason: str, data: bytes, count: int, **more: str) -> None:
        """Keep one; ``count`` with it. It is logged at 1, 2, 4, 8, …"""
        self.newest.append(Message(time.time(), reason, len(data), data[:HEAD_BYTES]))
        if count & (count - 1) == 0:
            log.warning(self._event, reason=reason, size=len(data), count=count, **more)

    def told(self) -> str:
        """The newest one, in words; "" without one. Its bytes may name arguments, so they are only in ``dump``."""
        if not self.newest:
            return ""
        last = self.newest[-1]
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(last.at))
        return f"the newest at {at}, {last.size} bytes: {last.reason}"

    def dump(self) -> None:
        """Write all that is kept to the log, oldest first, with the first bytes in hexadecimal."""
        for one in self.newest:
            about: dict[str, Any] = {"came_at": round(one.at, 3), "size": one.size, "reason": one.reason}
            log.info("message.kept", was=self._event, **about, head=one.head.hex())


def dump_unread(*of: object) -> None:
    """Write what these keep to the log; a bus without seals keeps nothing."""
    for one in of:
        unread = getattr(one, "unread", None)
        if isinstance(unread, Unread):
            unread.dump()
