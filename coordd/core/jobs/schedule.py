"""When a job fires: cron lines, intervals and single instants, in time zones and around blackouts.

The fire time is NOMINAL: a function of the definition alone, never "now", so every node computes the same.
It is the schedule's instant plus the job's jitter, and the run's id carries the sum. ``start``, ``end``
and blackouts are judged on that sum: nothing fires in a blackout, jitter or not.

``every 15m`` counts from the Unix epoch, whatever the zone. Cron lines follow the job's zone as Debian's cron
does (the cronsim library, which this file alone may import):

- minute and hour both fixed (``30 2 * * *``): a time that the spring change skips fires at the first minute
  after the gap, once; a time that the autumn change repeats fires the first time only.
- ``*`` in front of minute or hour (``*/15 * * * *``): real time; nothing fires in the gap (there is no such
  time), and the repeated hour fires twice.
- day of month and day of week both restricted: one of them is enough.

This does not promise every fire of a wildcard line on the day of a change that is not of whole hours
(Lord Howe Island): cronsim steps by the hour there.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from coordd.core.jobs.job import Blackout, Schedule

# Instants beyond the year 9800 count as "never": datetime ends in 9999, and cron looks 50 years ahead.
INSTANT_MAX = 247_000_000_000.0

# A hundred years: longer is a mistake.
DURATION_MAX_S = 100 * 366 * 86400.0

# After this many blackouts in a row, or this many seconds of them, without a fire time in between, the schedule counts
# as finished. (Cron lines look 50 years ahead; blackouts that last for years would be followed for millennia.)
SKIPS_MAX = 5000
# Finding the start of a repeated blackout is slow: with more than a few of them, the limit is lower.
LOOKUPS_MAX = 4 * SKIPS_MAX
SILENT_MAX_S = 50 * 366 * 86400.0

# Real schedules are shorter, and int() of a thousand digits is slow.
TEXT_MAX = 200

UNITS = {"w": 604800.0, "d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|[wdhms])", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}", re.ASCII)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)

# How far the latest fire time is looked for: most lines fire daily, and one on February 29 may pause for eight years.
LOOKED_BACK_DAYS = (1, 32, 367, 30 * 366)

SCHEDULE_FORMS = '"0 2 * * *" (cron), "every 15m" or "at 2026-12-01T02:00"'


# ---- reading


def parse_duration(value: str | float) -> float:
    """Seconds, from a number of seconds or a text such as "90d", "1h30m" or "30s".

    Raises ValueError with a sentence.
    """
    expected = 'expected a duration such as "30s", "15m", "1h30m" or "90d", or a number of seconds'
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{expected}; found {value!r:.60}")  # noqa: TRY004 - one kind of error for one caller
    if isinstance(value, str):
        parts = _DURATION.findall(value.strip())
        order = [list(UNITS).index(unit) for _, unit in parts]
        whole = "".join(number + unit for number, unit in parts)
        if not parts or whole != value.strip() or order != sorted(set(order)):
            raise ValueError(f'{expected}; found "{value:.60}"')
        seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    else:
        seconds = float(value) if abs(value) <= DURATION_MAX_S else math.inf
    if not 0 <= seconds <= DURATION_MAX_S:
        raise ValueError(f"{expected}, not negative and at most 100 years; found {value!s:.60}")
    return seconds


def parse_instant(value: str | date, timezone: str) -> float:
    """Unix seconds, from ISO 8601 text or a TOML date; without an offset it is in the zone.

    A local time that a clock change skips is refused; of a repeated one the first counts.
    """
    if isinstance(value, str):
        if not _INSTANT.fullmatch(value):
            raise ValueError(
                f'expected an instant such as "2026-12-01T02:00" (or with Z or +01:00); found "{value:.60}"'
            )
        try:
            value = datetime.fromisoformat(value)
        except ValueError as exc:
            raise ValueError(f'expected an instant that the calendar has; found "{value:.60}" ({exc})') from exc
    if not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day)  # noqa: DTZ001 - the zone is put on below
    if not 1970 <= value.year <= 9700:
        raise ValueError(f"expected an instant between the years 1970 and 9700; found {value.isoformat()}")
    if value.tzinfo is not None:
        return value.timestamp()
    tz = zone(timezone)
    local = value.replace(tzinfo=tz, fold=0)
    if local.astimezone(UTC).astimezone(tz).replace(tzinfo=None) != value:
        raise ValueError(f"{value.isoformat()} does not exist in {timezone}: the clocks go forward over it")
    return local.timestamp()


def parse_cron(text: str) -> str:
    """The cron line, validated and normalised; @daily and similar words are expanded. Raises ValueError with a
    sentence.
    """
    line = " ".join(text.split())
    line = ALIASES.get(line.lower(), line)
    expected = "expected a cron line of five fields (minute hour day-of-month month day-of-week)"
    if len(text) > TEXT_MAX or len(line.split(" ")) != 5:
        raise ValueError(f'{expected}; found "{text:.60}"')
    try:
        CronSim(line, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as exc:
        raise ValueError(f'{expected}; found "{text:.60}": {str(exc).lower()}') from exc
    return line


def parse_schedule(
    text: str,
    timezone: str = "UTC",
    *,
    start: float = 0.0,
    end: float = math.inf,
    offset_s: float = 0.0,
    blackout: Iterable[Blackout] = (),
) -> Schedule:
    """Parse a schedule. Raises ValueError: what was expected, what was found."""
    zone(timezone)
    word, _, rest = text.strip().partition(" ")
    around = {"timezone": timezone, "start": start, "end": end, "offset_s": offset_s, "blackout": tuple(blackout)}
    if word == "every":
        every_s = parse_duration(rest)
        if every_s < 1 or every_s != int(every_s):
            raise ValueError(f'expected "every" and whole seconds, at least one; found "{text:.60}"')
        return Schedule(kind="every", every_s=every_s, **around)  # type: ignore[arg-type]  # the table mixes types
    if word == "at":
        return Schedule(kind="at", at=parse_instant(rest.strip(), timezone), **around)  # type: ignore[arg-type]  # typed where the keywords are made
    if not text.startswith("@") and " " not in text.strip():
        raise ValueError(f'expected {SCHEDULE_FORMS}; found "{text:.60}"')
    return Schedule(kind="cron", cron=parse_cron(text), **around)  # type: ignore[arg-type]  # typed where the keywords are made


@lru_cache(maxsize=256)
def zone(name: str) -> tzinfo:
    """The time zone with that IANA name, from the tzdata package only.

    Never from the operating system's files: their version differs from host to host, but a job's digest names the
    version that its fire times come from. Raises ValueError when there is no such zone.
    """
    if name == "UTC":
        return UTC
    if _ZONE.fullmatch(name):
        file = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
        if file.is_file():
            with file.open("rb") as stream:
                try:
                    return ZoneInfo.from_file(stream, key=name)
                except ValueError:  # a file of the package that is not a zone, such as tzdata.zi
                    pass
    raise ValueError(f'expected the IANA name of a time zone such as "Europe/Berlin" or "UTC"; found "{name:.60}"')


def jitter_offset(job_name: str, jitter_s: float) -> float:
    """The job's fixed position in 0 … jitter_s: whole seconds, always the same on every node."""
    digest = hashlib.blake2b(job_name.encode(), digest_size=8, person=b"coordd-jitter").digest()
    return float(int.from_bytes(digest, "big") % (int(jitter_s) + 1))


# ---- fire times


def next_fire(schedule: Schedule, after: float) -> float | None:
    """The first fire time after ``after`` (Unix seconds); None if there is none."""
    return _next_until(schedule, after, schedule.end)


def without_blackouts(schedule: Schedule) -> Schedule:
    """The same schedule, which also fires in blackouts."""
    return msgspec.structs.replace(schedule, blackout=())


def is_blacked_out(schedule: Schedule, at: float) -> bool:
    """True if it would fire at that instant (Unix seconds), and a blackout prevents it."""
    begun = schedule.start <= at <= schedule.end and _next(schedule, at - 1e-6) == at
    return begun and _blackout_end(schedule, at) is not None


def _next_until(schedule: Schedule, after: float, until: float) -> float | None:
    """The first fire time with after < fire <= until."""
    after = max(after, math.nextafter(schedule.start, -math.inf))
    skipped_from = math.inf
    repeated = sum([bool(blackout.cron) for blackout in schedule.blackout])
    for _ in range(min(SKIPS_MAX, LOOKUPS_MAX // max(1, repeated))):
        fire = _next(schedule, after)
        if fire is None or fire > until or fire - skipped_from > SILENT_MAX_S:
            return None
        skipped_from = min(skipped_from, fire)
        over_at = _blackout_end(schedule, fire)
        if over_at is None:
            return fire
        after = math.nextafter(over_at, -math.inf)
    return None


def fires_between(schedule: Schedule, after: float, until: float, limit: int) -> list[float]:
    """The fire times with after < fire <= until, ascending; if there are more than ``limit``, the newest ones.

    The time it takes grows with ``limit``, not with the range: it walks backwards in windows that widen while
    they hold too little and narrow while they hold too much.
    """
    until = min(until, schedule.end, INSTANT_MAX)
    after = max(after, math.nextafter(schedule.start, -math.inf))
    windows: list[list[float]] = []
    count = 0
    high = until
    width_s = (schedule.every_s or 60.0) * (limit + 1)  # a cron line fires once a minute at the most
    while high > after and count < limit:
        low = max(after, high - width_s)
        found = _fires_within(schedule, low, high, 4 * (limit + 1))
        if found is None:
            width_s /= 2
            continue
        windows.append(found)
        count += len(found)
        high = low
        width_s *= 2
    fires = [fire for window in reversed(windows) for fire in window]
    return fires[-limit:] if limit > 0 else []


def _fires_within(schedule: Schedule, low: float, high: float, most: int) -> list[float] | None:
    """All fire times with low < fire <= high, or None when they are more than ``most``."""
    fires: list[float] = []
    fire = _next_until(schedule, low, high)
    while fire is not None:
        if len(fires) == most:
            return None
        fires.append(fire)
        fire = _next_until(schedule, fire, high)
    return fires


def _next(schedule: Schedule, after: float) -> float | None:
    """The next fire time, without regard to blackouts and end."""
    offset_s = schedule.offset_s
    if schedule.kind == "at":
        fire = schedule.at + offset_s
        return fire if fire > after else None
    if after - offset_s > INSTANT_MAX:
        return None
    if schedule.kind == "every":
        steps = math.floor((after - offset_s) / schedule.every_s)
        while (fire := steps * schedule.every_s + offset_s) <= after:  # the division may have rounded
            steps += 1
        return fire
    return _next_cron(schedule.cron, schedule.timezone, after, offset_s)


def _next_cron(cron: str, timezone: str, after: float, offset_s: float = 0.0) -> float | None:
    tz = zone(timezone)
    # A second early, then discarded: fire times are whole seconds, ``after`` and the offset need not be.
    since = math.floor(after - offset_s) - 1
    times = CronSim(cron, datetime.fromtimestamp(since, tz))
    while True:
        local = next(times, None)
        if local is None:
            return None
        nominal = local.timestamp()
        if datetime.fromtimestamp(nominal, tz).replace(tzinfo=None) != local.replace(tzinfo=None):
            # Wildcard lines only: a jump to the day's first minute met a gap. Look again from the real instant.
            times = CronSim(cron, datetime.fromtimestamp(nominal - 1, tz))
        elif nominal + offset_s > after:
            return _not_passed_over(cron, timezone, after - offset_s, nominal) + offset_s


def _not_passed_over(cron: str, timezone: str, after: float, nominal: float) -> float:
    """The first time of a cron line after ``after``; ``nominal`` is the one that cronsim found.

    A wildcard line jumps to the first minute of its next day. If the clocks skip that minute (Havana, Cairo, Santiago),
    cronsim goes on an hour later than the day really begins.
    """
    fields = cron.split(" ")
    if timezone == "UTC" or not (fields[0].startswith("*") or fields[1].startswith("*")):
        return nominal
    tz = zone(timezone)
    for year in range(datetime.fromtimestamp(after, tz).year, datetime.fromtimestamp(nominal, tz).year + 1):
        for begins in _days_without_midnight(timezone, year):
            if after < begins < nominal:
                found = next(CronSim(cron, datetime.fromtimestamp(begins - 1, tz)), None)
                nominal = min(nominal, found.timestamp()) if found is not None else nominal
    return nominal


@lru_cache(maxsize=1024)
def _days_without_midnight(timezone: str, year: int) -> tuple[int, ...]:
    """When those days of a year really begin (Unix seconds)."""
    tz, found = zone(timezone), []
    day = datetime(year, 1, 1)  # noqa: DTZ001 - the zone is put on below
    while day.year == year:
        late = int(day.replace(tzinfo=tz).timestamp())  # of a time that does not exist: by the clocks before the gap
        if datetime.fromtimestamp(late, tz).replace(tzinfo=None) != day:
            low, high = late - 86400, late
            while high - low > 1:
                middle = (low + high) // 2
                shown = datetime.fromtimestamp(middle, tz).replace(tzinfo=None)
                low, high = (low, middle) if shown >= day else (middle, high)
            found.append(high)
        day += timedelta(days=1)
    return tuple(found)


def _blackout_end(schedule: Schedule, at: float) -> float | None:
    """The end of the blackout that covers this instant; None if none does."""
    over_at: float | None = None
    for blackout in schedule.blackout:
        if blackout.cron:
            begun_at = _begun_at(blackout, schedule.timezone, at)
            end = at if begun_at is None else begun_at + blackout.duration_s
        else:
            end = blackout.end if blackout.start <= at else at
        if end > at:
            over_at = max(end, over_at or 0.0)
    return over_at


def _begun_at(blackout: Blackout, timezone: str, at: float) -> float | None:
    """The latest start of a repeated blackout that covers this instant.

    Not the first: if blackouts overlap, that would step through them one by one.
    """
    begun_at = _next_cron(blackout.cron, timezone, at - blackout.duration_s)
    if begun_at is None or begun_at > at:
        return None
    later = _next_cron(blackout.cron, timezone, begun_at)
    if later is None or later > at:
        return begun_at
    none_after = at  # no start in (none_after, at]
    while none_after - begun_at > 60:  # cron lines begin on the minute
        middle = (begun_at + none_after) / 2
        later = _next_cron(blackout.cron, timezone, middle)
        if later is None or later > at:
            none_after = middle
        else:
            begun_at = later
    return begun_at


def last_fire(cron: str, timezone: str, at: float) -> float | None:
    """The latest fire time of a cron line up to this instant; None without one in the last 30 years.

    Raises ValueError for a line or a zone that cannot be read.
    """
    line = parse_cron(cron)
    zone(timezone)
    for days in LOOKED_BACK_DAYS:
        found = _begun_at(Blackout(cron=line, duration_s=days * UNITS["d"]), timezone, at)
        if found is not None:
            return found
    return None
