"""A circuit breaker: after repeated failures, a connection is not used for a while, then tried once.

    closed --n failures in a row, or too many of the last ones--> open
    closed --with a window: n failures within it, whatever succeeded between them--> open
    open --the cool-down has passed--> half_open
    half_open --the probe succeeded--> closed
    half_open --n probes failed--> open, and the cool-down grows
    any --a person resets it--> closed

What counts, and how many of each kind, is said as for the breakers of jobs (core/ledger/breaker/text.py). An outcome
carries the permit of its attempt. If the state has changed since, the outcome is ignored: it is out of date.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from coordd.core.ledger.breaker import text
from coordd.core.ledger.words import FAILURE

CLOSED, OPEN, HALF_OPEN = text.CLOSED, text.OPEN, text.HALF_OPEN
FIXED, LINEAR, EXPONENTIAL = GROWTHS = text.GROWTH

# How an attempt may fail: refused or broken; no answer in time; an answer that came almost too late, which counts as a
# failure only where a rule names it.
TIMEOUT, SLOW = text.TIMEOUT, "slow"
FAILURES = (FAILURE, TIMEOUT)
KINDS = (*FAILURES, SLOW)

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


# The largest number of trips that a rule may name.
LOUD_AFTER_MAX = 100


class Loud(NamedTuple):
    """When a trip is told as an error: the ``after``-th without having closed between, or within ``within_s`` seconds;
    and each further one, until there was none for ``for_s`` seconds.

    After three trips within five minutes something is wrong; half an hour later, the next may be an accident.
    """

    after: int = 3
    within_s: float = 300.0
    for_s: float = 1800.0


class Rule(NamedTuple):
    """What a person may say of the breaker of a connection.

    ``groups``: while it is closed, that many failures of these kinds open it; in a row, or within ``window_s`` seconds
    if there is a window. ``probes``: while it is half-open, that many failures. It stays open for ``open_for_s``
    seconds at first, which grows each time that it opens again, up to ``open_for_max_s``.
    """

    groups: tuple[tuple[int, tuple[str, ...]], ...] = ((FAILURES_MAX, FAILURES),)
    window_s: float = 0.0
    probes: int = 1
    open_for_s: float = COOL_DOWN_MIN_S
    open_for_max_s: float = COOL_DOWN_MAX_S
    growth: str = EXPONENTIAL
    loud: Loud = Loud()


class Breaker:
    """The breaker of one connection. Times are seconds on one monotonic clock, given by the caller."""

    __slots__ = (
        "_cool_down_s",
        "_counted",
        "_outcomes",
        "_permit",
        "_probe_until",
        "_probes",
        "changed_at",
        "failures",
        "loudness",
        "name",
        "opened",
        "reason",
        "retry_at",
        "rule",
        "state",
    )

    def __init__(self, name: str, rule: Rule = Rule()) -> None:  # noqa: B008 - a rule never changes
        self.name = name
        self.rule = rule
        self.loudness = Loudness(rule.loud)
        self.state = CLOSED
        self.failures = 0  # that count: in a row, or within the window
        self.reason = ""  # of the last failure
        self.opened = 0  # how often it opened since the start
        self.changed_at = 0.0
        self.retry_at = 0.0  # while open: the time of the next probe
        self._cool_down_s = rule.open_for_s
        self._counted: list[tuple[int, int]] = []  # (group, milliseconds)
        self._outcomes: deque[bool] = deque(maxlen=WINDOW)
        self._permit = 1
        self._probe_until = 0.0
        self._probes = 0  # that failed, since it is half-open

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
        if self.state == HALF_OPEN:
            self._close("succeeded", now)
        else:
            self._ends_row(now)

    def failed(self, permit: int, reason: str, now: float, jitter: float, kind: str = FAILURE) -> None:
        """The attempt has failed. ``jitter`` (0 to 1) is random: breakers of many nodes must not probe in step.

        A failure of a ``kind`` that the rule does not name ends the row; a probe that failed has failed.
        """
        if permit != self._permit or self.state == OPEN:
            return
        if self.state == HALF_OPEN:
            self.failures += 1
            self._probes += 1
            self._probe_until = now
            if self._probes >= self.rule.probes:
                self._cool_down_s = min(self._grown_s(), self.rule.open_for_max_s)
                self._trip(now, jitter)
        elif not (groups := self._groups_of(kind)):
            self._ends_row(now)
        elif self._count(groups, now):
            self._trip(now, jitter)
        self.reason = reason

    def counts(self, kind: str) -> bool:
        """True if a failure of that kind may open it."""
        return bool(self._groups_of(kind))

    def restored(self, now: float) -> None:
        """The connection itself says that it works again. What a window has counted stays, unless it was open."""
        if self.state == CLOSED and self.rule.window_s:
            self._ends_row(now)
        else:
            self._close("reset", now)

    def reset(self, now: float) -> None:
        """A person says that it works again."""
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
        if rule.groups != self.rule.groups:
            self._counted.clear()  # they name groups by number
            self.failures = 0
        self.rule = rule
        self.loudness.rule = rule.loud
        if not self.is_open:
            self._cool_down_s = rule.open_for_s

    def is_loud(self, now: float) -> bool:
        """It has just opened: is that an error by now, after repeated trips, or still a warning?"""
        return self.loudness.tripped(now)

    def _grown_s(self) -> float:
        first_s, growth = self.rule.open_for_s, self.rule.growth
        if growth == FIXED:
            return first_s
        return self._cool_down_s + (self._cool_down_s if growth == EXPONENTIAL else first_s)

    def _groups_of(self, kind: str) -> list[int]:
        return [number for number, (_, kinds) in enumerate(self.rule.groups, 1) if kind in kinds]

    def _count(self, groups: list[int], now: float) -> bool:
        """One more failure that these groups count, while it is closed; True if it is one too many."""
        full = self._keep([*self._counted, *[(group, int(now * 1000)) for group in groups]], now)
        self.failures = self._within() if self.rule.window_s else self.failures + 1
        self._outcomes.append(False)
        return full or self._fails_often()

    def _ends_row(self, now: float) -> None:
        """Something worked while it is closed. A window goes on: it counts whatever succeeded between."""
        self._outcomes.append(True)
        self._keep(self._counted if self.rule.window_s else [], now)
        self.failures = self._within()

    def _keep(self, failures: list[tuple[int, int]], now: float) -> bool:
        counts = [count for count, _ in self.rule.groups]
        self._counted, full = text.counted(failures, counts, int(now * 1000), int(self.rule.window_s * 1000))
        return full

    def _within(self) -> int:
        return max((sum(group == number for group, _ in self._counted) for number, _ in self._counted), default=0)

    def _fails_often(self) -> bool:
        if self.rule.window_s:  # it says what is often
            return False
        outcomes = self._outcomes
        return len(outcomes) == WINDOW and outcomes.count(False) > FAILURE_RATE_MAX * WINDOW

    def _trip(self, now: float, jitter: float) -> None:
        self.opened += 1
        self.retry_at = now + self._cool_down_s * (0.5 + 0.5 * jitter)
        self._move("tripped", now)

    def _close(self, happened: str, now: float) -> None:
        self.failures = 0
        self._cool_down_s = self.rule.open_for_s
        self._counted.clear()
        self._outcomes.clear()
        self._move(happened, now)

    def _move(self, happened: str, now: float) -> None:
        state = MOVES[self.state, happened]
        self._permit += 1
        if state != self.state:
            self.state = state
            self.changed_at = now
            self._probes = 0


class Loudness:
    """Whether a trip is told as an error, not as a warning: after repeated trips, until there was none for a while."""

    __slots__ = ("_trips", "_until", "rule")

    def __init__(self, rule: Loud = Loud()) -> None:  # noqa: B008 - a rule never changes
        self.rule = rule
        self._trips: deque[float] = deque(maxlen=LOUD_AFTER_MAX)
        self._until = float("-inf")

    def tripped(self, now: float, in_a_row: int = 1) -> bool:
        """The breaker has opened. ``in_a_row``: for the how-manieth time without having closed between."""
        self._trips.append(now)
        after, within_s, for_s = self.rule
        often = len(self._trips) >= after and now - self._trips[-after] <= within_s
        if often or in_a_row >= after or now < self._until:
            self._until = now + for_s
            return True
        return False
