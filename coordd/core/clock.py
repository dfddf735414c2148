"""The Lamport clock that orders events, with a high-water mark that survives a restart.

Rule (Lamport 1978, and Celery's gossip): ``forward()`` before every event that is sent or journalled,
``adjust(remote) = max(local, remote) + 1`` on every message received.
"""

# A forged or corrupt clock must not spoil the order for ever: a larger jump is refused and counted.
CLOCK_JUMP_MAX = 2**32

# The mark is persisted a block ahead, so that one write serves this many events.
CLOCK_BLOCK = 2**16


class LamportClock:
    """A counter that never goes back, not even over a restart."""

    __slots__ = ("jumps_refused", "mark", "value")

    def __init__(self, persisted_mark: int = 0) -> None:
        """Start from the persisted mark: every value handed out before the restart was below it."""
        self.value = persisted_mark
        self.mark = persisted_mark
        self.jumps_refused = 0

    def forward(self) -> int:
        """Step before an event of our own, and return its stamp."""
        self.value += 1
        return self.value

    def adjust(self, remote: int) -> bool:
        """Merge a clock that came with a message; False when it was refused as absurd."""
        if remote - self.value > CLOCK_JUMP_MAX or remote < 0:
            self.jumps_refused += 1
            return False
        self.value = (max(self.value, remote)) + 1
        return True

    def reserve(self) -> int | None:
        """Return a new mark that must be persisted BEFORE any stamp leaves, or None.

        Asked once per Ready. A new block is reserved when half of the last one is used, so the write
        never has to keep up with single events.
        """
        if self.mark - self.value > CLOCK_BLOCK // 2:
            return None
        self.mark = self.value + CLOCK_BLOCK
        return self.mark
