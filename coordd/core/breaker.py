"""A circuit breaker: who has failed again and again is left alone for a while, then tried once.

    closed --n failures in a row, or too many of the last ones--> open
    open --the cool-down has passed--> half-open
    half-open --the probe succeeded--> closed
    half-open --the probe failed--> open, and the cool-down doubles
    any --a person resets it--> closed

An outcome carries the permit under which its attempt began. One that comes back after the state has changed is
ignored: it tells of another time.
"""

from __future__ import annotations

from collections import deque

CLOSED = "closed"
OPEN = "open"
HALF_OPEN = "half-open"

# (state, what happened) -> state; the one place where a breaker's state changes is ``Breaker._move``.
MOVES: dict[tuple[str, str], str] = {
    (CLOSED, "tripped"): OPEN,
    (OPEN, "cooled"): HALF_OPEN,
    (HALF_OPEN, "succeeded"): CLOSED,
    (HALF_OPEN, "tripped"): OPEN,
    (CLOSED, "reset"): CLOSED,
    (OPEN, "reset"): CLOSED,
    (HALF_OPEN, "reset"): CLOSED,
}

# So many failures in a row open it: one is an accident, a second one may be the same accident seen again.
FAILURES_MAX = 3

# Also what fails every other time is of no use. Judged over the last WINDOW outcomes, once there are so many.
WINDOW = 20
FAILURE_RATE_MAX = 0.5

# The first cool-down, and the longest. It must stay in the order of a renew interval: until the next probe nothing
# new is launched here.
COOL_DOWN_MIN_S = 0.5
COOL_DOWN_MAX_S = 5.0

# A probe whose outcome is never told (its thread is stuck) does not block the next one for longer than this.
PROBE_LIMIT_S = 30.0


class Breaker:
    """The breaker of one connection. Times are seconds on one monotonic clock, given by the caller."""

    __slots__ = (
        "_cool_down_s",
        "_outcomes",
        "_permit",
        "_probe_until",
        "changed_at",
        "cool_down_max_s",
        "cool_down_min_s",
        "failures",
        "failures_max",
        "name",
        "opened",
        "reason",
        "retry_at",
        "state",
    )

    def __init__(
        self,
        name: str,
        *,
        failures_max: int = FAILURES_MAX,
        cool_down_min_s: float = COOL_DOWN_MIN_S,
        cool_down_max_s: float = COOL_DOWN_MAX_S,
    ) -> None:
        self.name = name
        self.failures_max = failures_max
        self.cool_down_min_s = cool_down_min_s
        self.cool_down_max_s = cool_down_max_s
        self.state = CLOSED
        self.failures = 0  # in a row
        self.reason = ""  # of the last failure
        self.opened = 0  # how often, since the start
        self.changed_at = 0.0
        self.retry_at = 0.0  # while open: when the next probe may be made
        self._cool_down_s = cool_down_min_s
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)
        self._permit = 1
        self._probe_until = 0.0

    def allow(self, now: float) -> int:
        """A permit to try (above 0), or 0: not now. Half-open gives one permit at a time."""
        if self.state == OPEN and now >= self.retry_at:
            self._move("cooled", now)
        elif self.state == OPEN or (self.state == HALF_OPEN and now < self._probe_until):
            return 0
        if self.state == HALF_OPEN:
            self._permit += 1  # the probe's own: that of one before it no longer counts
            self._probe_until = now + PROBE_LIMIT_S
        return self._permit

    def succeeded(self, permit: int, now: float) -> None:
        """What was tried under this permit has worked."""
        if permit != self._permit or self.state == OPEN:
            return
        self.failures = 0
        self._outcomes.append(True)
        if self.state == HALF_OPEN:
            self._close("succeeded", now)

    def failed(self, permit: int, reason: str, now: float, jitter: float) -> None:
        """It has not. ``jitter`` (0 to 1) is random: breakers of many nodes must not probe in step."""
        if permit != self._permit or self.state == OPEN:
            return
        self.failures += 1
        self.reason = reason
        self._outcomes.append(False)
        if self.state == HALF_OPEN:
            self._cool_down_s = min(2 * self._cool_down_s, self.cool_down_max_s)
        elif self.failures < self.failures_max and not self._fails_often():
            return
        self.opened += 1
        self.retry_at = now + self._cool_down_s * (0.5 + 0.5 * jitter)
        self._move("tripped", now)

    def reset(self, now: float) -> None:
        """A person says that it works again, or the connection itself does."""
        self._close("reset", now)

    @property
    def is_open(self) -> bool:
        """Not closed: what is asked may be refused."""
        return self.state != CLOSED

    def retry_in_s(self, now: float) -> float:
        """Seconds until the next probe may be made; 0.0 when something may be tried now."""
        return max(0.0, self.retry_at - now) if self.state == OPEN else 0.0

    def _fails_often(self) -> bool:
        outcomes = self._outcomes
        return len(outcomes) == WINDOW and outcomes.count(False) > FAILURE_RATE_MAX * WINDOW

    def _close(self, happened: str, now: float) -> None:
        self.failures = 0
        self._cool_down_s = self.cool_down_min_s
        self._outcomes.clear()
        self._move(happened, now)

    def _move(self, happened: str, now: float) -> None:
        state = MOVES[self.state, happened]
        self._permit += 1
        if state != self.state:
            self.state = state
            self.changed_at = now
