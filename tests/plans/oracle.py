"""When a described schedule fires, found by looking at every minute of every local day that its fields name.

Nothing here uses the code that is tested, except the time zones and the position of a job in its jitter.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import NamedTuple

from coordd.core.jobs.schedule import zone

DAY_S = 86400
BEGIN, END = 2024, 2029  # the years whose clock changes are known here


class Cron(NamedTuple):
    """A cron line with the values of its fields. Days of the week count from Sunday, 0."""

    line: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    weekdays: tuple[int, ...]

    def fires_on(self, day: date) -> bool:
        fields = self.line.split()
        in_month, in_week = day.day in self.days, (day.weekday() + 1) % 7 in self.weekdays
        if fields[2].startswith("*") or fields[4].startswith("*"):
            return in_month and in_week
        return in_month or in_week

    @property
    def is_wild(self) -> bool:
        minute, hour = self.line.split()[:2]
        return minute.startswith("*") or hour.startswith("*")


class Described(NamedTuple):
    """A schedule. Instants in Unix seconds; blackouts: (from, to), or (cron line, seconds)."""

    cron: Cron | None = None
    every_s: int = 0
    at: int = 0
    timezone: str = "UTC"
    offset_s: int = 0
    start: int = 0
    end: int = 2**40
    blackouts: tuple[tuple[int, int] | tuple[Cron, int], ...] = ()


@lru_cache(maxsize=64)
def changes(timezone: str) -> tuple[int, ...]:
    """The instants at which the clocks of a zone change."""
    found = []
    at, until = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) for year in (BEGIN, END))
    while at < until:
        if _offset(timezone, at) != _offset(timezone, at + 3600):
            found.append(
                next(s for s in range(at, at + 3601, 60) if _offset(timezone, s) == _offset(timezone, at + 3600))
            )
        at += 3600
    return tuple(found)


def _offset(timezone: str, at: int) -> int:
    offset = datetime.fromtimestamp(at, zone(timezone)).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def spans(schedules: list[Described], now: float) -> list[tuple[float, float]]:
    """What a plan looks at: 30 days back and ahead, and a day around the next change of each zone's clocks."""
    wanted = [(now - 30 * DAY_S, now + 30 * DAY_S)]
    for one in schedules:
        coming = [at for at in changes(one.timezone) if now < at <= now + 400 * DAY_S]
        wanted += [(at - DAY_S, at + DAY_S) for at in coming[:1]]
    return wanted


def fires(one: Described | None, within: list[tuple[float, float]]) -> set[float]:
    """The fire times of a schedule in any of these spans: after the first instant, up to the second."""
    if one is None:
        return set()
    found = {float(at + one.offset_s) for low, high in within for at in _nominal(one, low - one.offset_s, high)}
    covered = [
        (at, at + length)
        for begins, length in one.blackouts
        if isinstance(begins, Cron)
        for low, high in within
        for at in _cron(begins, one.timezone, low - length, high)
    ]
    covered += [(begins, ends) for begins, ends in one.blackouts if not isinstance(begins, Cron)]
    return {
        at
        for at in found
        if one.start <= at <= one.end
        and any(low < at <= high for low, high in within)
        and not any(begins <= at < ends for begins, ends in covered)
    }


def _nominal(one: Described, low: float, high: float) -> Iterator[int]:
    if one.cron is not None:
        yield from _cron(one.cron, one.timezone, low, high)
    elif one.every_s:
        first = int(low) // one.every_s * one.every_s
        yield from range(first, int(high) + 1, one.every_s)
    else:
        yield one.at


def _cron(cron: Cron, timezone: str, low: float, high: float) -> Iterator[int]:
    tz = zone(timezone)
    day = datetime.fromtimestamp(low, tz).date() - timedelta(days=1)
    last = datetime.fromtimestamp(high, tz).date() + timedelta(days=1)
    while day <= last:
        if cron.fires_on(day):
            midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
            calm = not any(midnight - 2 * DAY_S < at < midnight + 2 * DAY_S for at in changes(timezone))
            offset = _offset(timezone, midnight)
            for hour in cron.hours:
                for minute in cron.minutes:
                    local = midnight + 3600 * hour + 60 * minute
                    yield from ((local - offset,) if calm else _real(cron, timezone, tz, local))
        day += timedelta(days=1)


def _real(cron: Cron, timezone: str, tz: tzinfo, local: int) -> list[int]:
    """The instants at which clocks show that time (Unix seconds as if they were UTC's)."""
    shown = datetime.fromtimestamp(local, UTC).replace(tzinfo=None)
    both = [int(shown.replace(tzinfo=tz, fold=fold).timestamp()) for fold in (0, 1)]
    there = sorted({at for at in both if datetime.fromtimestamp(at, tz).replace(tzinfo=None) == shown})
    if cron.is_wild:
        return there
    if there:
        return there[:1]
    return [next(at for at in changes(timezone) if min(both) <= at <= max(both))]


def moved(go: set[float], come: set[float], timezone: str) -> list[tuple[float, float]]:
    """Times that go and times that come on one day of the zone, pair by pair."""
    tz = zone(timezone)
    pairs: list[tuple[float, float]] = []
    for day in sorted({datetime.fromtimestamp(at, tz).date() for at in go}):
        gone, came = (sorted(at for at in some if datetime.fromtimestamp(at, tz).date() == day) for some in (go, come))
        pairs += zip(gone, came, strict=False)
    return pairs
