"""Plans: which fire times changed job files would add, remove and move. Launches nothing. Pure.

Both schedules are replayed over the last and the next 30 days, and over the days around the next clock change of their
zones, where schedules surprise people.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from coordd.core.context import LEAD_S
from coordd.core.jobs.job import Schedule
from coordd.core.jobs.schedule import next_fire, zone

DAY_S = 86400.0
AROUND_S = 30 * DAY_S
CHANGE_AROUND_S = DAY_S

# A zone with clock changes has one within this time.
CHANGE_AHEAD_DAYS = 400

# A job that fires every second has five million fire times in these days: its comparison ends here, and says so.
COMPARED_MAX = 200_000
DIFFERENCES_MAX = 10_000


class Change(NamedTuple):
    """One job before and after. Instants are Unix seconds; ``cut_at``: the end of the comparison, None if complete."""

    job: str
    change: str  # added | removed | changed | same | wrong: its file cannot be judged
    added: tuple[float, ...] = ()
    removed: tuple[float, ...] = ()
    moved: tuple[tuple[float, float], ...] = ()
    launches_now: tuple[float, ...] = ()
    cut_at: float | None = None


def compare(job: str, change: str, old: Schedule | None, new: Schedule | None, now: float) -> Change:
    """The fire times of one job under two definitions; None: no schedule."""
    if old == new:
        return Change(job, change)
    come: list[float] = []
    go: list[float] = []
    cut_at: float | None = None
    for step, (at, is_old, is_new) in enumerate(_both(old, new, spans((old, new), now))):
        if step >= COMPARED_MAX or len(come) + len(go) >= DIFFERENCES_MAX:
            cut_at = at
            break
        if not is_old:
            come.append(at)
        elif not is_new:
            go.append(at)
    moved = _moved(go, come, new or old)
    sources, targets = {pair[0] for pair in moved}, {pair[1] for pair in moved}
    first = next_fire(new, now) if new is not None else None
    return Change(
        job,
        change,
        added=tuple(at for at in come if at not in targets),
        removed=tuple(at for at in go if at not in sources),
        moved=tuple(moved),
        launches_now=(first,) if first is not None and first <= now + LEAD_S else (),
        cut_at=cut_at,
    )


def spans(schedules: tuple[Schedule | None, ...], now: float) -> list[tuple[float, float]]:
    """The compared times, as (after, until), ascending and disjoint."""
    wanted = [(now - AROUND_S, now + AROUND_S)]
    for schedule in schedules:
        change_at = next_clock_change(schedule.timezone, now) if schedule is not None else None
        if change_at is not None:
            wanted.append((change_at - CHANGE_AROUND_S, change_at + CHANGE_AROUND_S))
    found: list[tuple[float, float]] = []
    for after, until in sorted(wanted):
        if found and after <= found[-1][1]:
            found[-1] = (found[-1][0], max(until, found[-1][1]))
        else:
            found.append((after, until))
    return found


def next_clock_change(timezone: str, after: float) -> float | None:
    """The next clock change of a zone; None without one within CHANGE_AHEAD_DAYS."""
    low = after
    for _ in range(CHANGE_AHEAD_DAYS):
        high = low + DAY_S
        if utc_offset_s(timezone, high) != utc_offset_s(timezone, low):
            while high - low > 1.0:
                middle = (low + high) / 2
                if utc_offset_s(timezone, middle) == utc_offset_s(timezone, low):
                    low = middle
                else:
                    high = middle
            return float(round(high))
        low = high
    return None


def utc_offset_s(timezone: str, at: float) -> float:
    """A zone's offset from UTC at an instant (seconds)."""
    offset = datetime.fromtimestamp(at, UTC).astimezone(zone(timezone)).utcoffset()
    assert offset is not None
    return offset.total_seconds()


def _both(
    old: Schedule | None, new: Schedule | None, compared: list[tuple[float, float]]
) -> Iterator[tuple[float, bool, bool]]:
    """(instant, is an old time, is a new time), ascending."""
    for after, until in compared:
        before, then = _following(old, after, until), _following(new, after, until)
        while before is not None or then is not None:
            at = min(one for one in (before, then) if one is not None)
            yield at, before == at, then == at
            if before == at:
                before = _following(old, at, until)
            if then == at:
                then = _following(new, at, until)


def _following(schedule: Schedule | None, after: float, until: float) -> float | None:
    at = next_fire(schedule, after) if schedule is not None else None
    return at if at is not None and at <= until else None


def _moved(go: list[float], come: list[float], schedule: Schedule | None) -> list[tuple[float, float]]:
    """A removed and an added time on the same day of the job's zone count as one moved time."""
    if schedule is None:
        return []
    tz = zone(schedule.timezone)
    days: dict[str, tuple[list[float], list[float]]] = {}
    for place, times in enumerate((go, come)):
        for at in times:
            days.setdefault(datetime.fromtimestamp(at, tz).date().isoformat(), ([], []))[place].append(at)
    return [pair for gone, came in days.values() for pair in zip(gone, came, strict=False)]
