"""A circuit breaker: after repeated failures, a connection is not used for a while, then tried once.

    closed --n failures in a row, or too many of the last ones--> open
    open --the cool-down has passed--> half_open
    half_open --the probe succeeded--> closed
    half_open --the probe failed--> open, and the cool-down grows
    any --a person resets it--> closed

An outcome carries the permit of its attempt. If the state has changed since, the outcome is ignored: it is out of date.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

CLOSED = "closed"
OPEN = "open"
HALF_OPEN = "half_open"

# (state, event) -> state; only ``Breaker._move`` changes a breaker's state.
MOVES: dict[tuple[str, str], str] = {
    (CLOSED, "tripped"): OPEN,
    (OPEN, "cooled"): HALF_OPEN,
    (HALF_OPEN, "succeeded"): CLOSED,
    (HALF_OPEN, "tripped"): OPEN,
    (CLOSED, "reset"): CLOSED,
    (OPEN, "reset"): CLOSED,
    (HALF_OPEN, "reset"): CLOSED,
}

# This many failures in a row open it: the first may be an accident, the second the same accident seen again.
FAILURES_MAX = 3

# It also opens if every other attempt fails. Judged over the last WINDOW outcomes.
WINDOW = 20
FAILURE_RATE_MAX = 0.5

# The first cool-down and the longest (seconds). About a renew interval: until the next probe, nothing new is launched
# here.
COOL_DOWN_MIN_S = 0.5
COOL_DOWN_MAX_S = 5.0

# A probe without an outcome (its thread is stuck) blocks the next one for at most this long (seconds).
PROBE_LIMIT_S = 30.0


FIXED, LINEAR, EXPONENTIAL = "fixed", "linear", "exponential"
GROWTHS = (FIXED, LINEAR, EXPONENTIAL)


class Rule(NamedTuple):
    """What a person may say of the breaker of a connection: after that many failures in a row it opens, for the first
    time for ``open_for_s`` seconds. That grows with each further failure of a probe, up to ``open_for_max_s``.
    """

    after: int = FAILURES_MAX
    open_for_s: float = COOL_DOWN_MIN_S
    open_for_max_s: float = COOL_DOWN_MAX_S
    growth: str = EXPONENTIAL


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
        "growth",
        "loudness",
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
        self.growth = EXPONENTIAL
        self.loudness = Loudness()
        self.state = CLOSED
        self.failures = 0  # in a row
        self.reason = ""  # of the last failure
        self.opened = 0  # how often it opened since the start
        self.changed_at = 0.0
        self.retry_at = 0.0  # while open: the time of the next probe
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
            self._permit += 1  # the probe's own: earlier permits no longer count
            self._probe_until = now + PROBE_LIMIT_S
        return self._permit

    def succeeded(self, permit: int, now: float) -> None:
        """The attempt under this permit has succeeded."""
        if permit != self._permit or self.state == OPEN:
            return
        self.failures = 0
        self._outcomes.append(True)
        if self.state == HALF_OPEN:
            self._close("succeeded", now)

    def failed(self, permit: int, reason: str, now: float, jitter: float) -> None:
        """The attempt has failed. ``jitter`` (0 to 1) is random: breakers of many nodes must not probe in step."""
        if permit != self._permit or self.state == OPEN:
            return
        self.failures += 1
        self.reason = reason
        self._outcomes.append(False)
        if self.state == HALF_OPEN:
            self._cool_down_s = min(self._grown_s(), self.cool_down_max_s)
        elif self.failures < self.failures_max and not self._fails_often():
            return
        self.opened += 1
        self.retry_at = now + self._cool_down_s * (0.5 + 0.5 * jitter)
        self._move("tripped", now)

    def reset(self, now: float) -> None:
        """A person, or the connection itself, says that it works again."""
        self._close("reset", now)

    @property
    def is_open(self) -> bool:
        """True if not closed: attempts may be refused."""
        return self.state != CLOSED

    def retry_in_s(self, now: float) -> float:
        """Seconds until the next probe; 0.0 if an attempt is possible now."""
        return max(0.0, self.retry_at - now) if self.state == OPEN else 0.0

    def use(self, rule: Rule) -> None:
        """Go by this rule from now on; the state stays."""
        self.failures_max, self.growth = rule.after, rule.growth
        self.cool_down_min_s, self.cool_down_max_s = rule.open_for_s, rule.open_for_max_s
        if not self.is_open:
            self._cool_down_s = rule.open_for_s

    def is_loud(self, now: float) -> bool:
        """It has just opened: is that an error by now, after repeated trips, or still a warning?"""
        return self.loudness.tripped(now)

    def _grown_s(self) -> float:
        if self.growth == FIXED:
            return self.cool_down_min_s
        return self._cool_down_s + (self._cool_down_s if self.growth == EXPONENTIAL else self.cool_down_min_s)

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


# Three trips within five minutes are more than an accident; after half an hour without one, the next may be one again.
LOUD_AFTER = 3
LOUD_WITHIN_S = 300.0
LOUD_FOR_S = 1800.0


class Loudness:
    """Whether a trip is told as an error, not as a warning: after repeated trips, until there was none for a while."""

    __slots__ = ("_after", "_for_s", "_trips", "_until", "_within_s")

    def __init__(self, after: int = LOUD_AFTER, within_s: float = LOUD_WITHIN_S, for_s: float = LOUD_FOR_S) -> None:
        self._after = after
        self._within_s = within_s
        self._for_s = for_s
        self._trips: deque[float] = deque(maxlen=after)
        self._until = float("-inf")

    def tripped(self, now: float, in_a_row: int = 1) -> bool:
        """The breaker has opened. ``in_a_row``: for the how-manieth time without having closed between."""
        self._trips.append(now)
        often = len(self._trips) == self._after and now - self._trips[0] <= self._within_s
        if often or in_a_row >= self._after or now < self._until:
            self._until = now + self._for_s
            return True
        return False
