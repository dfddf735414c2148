"""Fire times around clock changes and leap days, compared with an oracle that checks every single minute.

cronsim computes our fire times. The oracle here reads cron lines itself: it goes through real time minute by minute
and asks the zone for the local time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given
from support.search import examples

from coordd.core.jobs.schedule import fires_between, parse_schedule, zone

DAY_S = 86400.0

# A zone, and days on which its clocks go forward or back. On the other days, such as leap days, no clock changes.
CHANGES = {
    "Europe/Berlin": ("2026-03-29", "2026-10-25"),
    "America/New_York": ("2026-03-08", "2026-11-01"),
    "America/St_Johns": ("2026-03-08", "2026-11-01"),  # by half an hour
    "Africa/Cairo": ("2026-04-24", "2026-10-29"),  # at midnight
    "Australia/Sydney": ("2026-10-04", "2026-04-05"),
    "America/Havana": ("2026-03-08", "2026-11-01"),  # midnight is skipped
    "Asia/Kolkata": ("2026-05-01",),  # no change
    "UTC": ("2028-02-29",),
}
LEAP_DAYS = ("2028-02-28", "2028-02-29", "2027-02-28", "2024-12-31")

minutes = st.sampled_from(("0", "30", "59", "0,15,45"))
hours = st.sampled_from(("0", "1", "2", "3", "0,2", "23"))
days = st.sampled_from(("* * *", "* * 0", "29 2 *", "1,29 * *"))
FIXED = st.builds(lambda minute, hour, day: f"{minute} {hour} {day}", minutes, hours, days)
WILD = st.builds(
    lambda minute, hour: f"{minute} {hour} * * *", st.sampled_from(("*/15", "*/20", "*")), st.sampled_from(("*", "*/2"))
) | st.builds(lambda minute: f"{minute} * * * *", minutes)
PLACES = st.sampled_from([(name, day) for name, changes in CHANGES.items() for day in (*changes, *LEAP_DAYS)])


def members(field: str, low: int, high: int) -> set[int]:
    """The numbers that a field of a cron line names."""
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        found |= set(range(low, high + 1, int(step or 1))) if span == "*" else {int(span)}
    return found


def matches(line: str, local: datetime) -> bool:
    minute, hour, day, month, weekday = line.split()
    return (
        local.minute in members(minute, 0, 59)
        and local.hour in members(hour, 0, 23)
        and local.day in members(day, 1, 31)
        and local.month in members(month, 1, 12)
        and local.isoweekday() % 7 in members(weekday, 0, 6)
    )


def expected(line: str, name: str, after: float, until: float) -> Iterator[float]:
    """The rule in the docstring of core/jobs/schedule.py, applied minute by minute."""
    tz = zone(name)
    wild = line.startswith("*") or line.split()[1].startswith("*")
    instant = datetime.fromtimestamp(after - after % 60 - DAY_S, UTC)
    before = instant.astimezone(tz).replace(tzinfo=None)
    highest = before  # the clocks have shown all local times up to this one
    while instant.timestamp() <= until:
        local = instant.astimezone(tz).replace(tzinfo=None)
        skipped = [before + timedelta(minutes=n) for n in range(1, int((local - before) / timedelta(minutes=1)))]
        repeated = local <= highest and local != before
        if not wild:
            fires = any(matches(line, moment) for moment in (*skipped, local)) and not repeated
        else:
            fires = matches(line, local)
        if fires and after < instant.timestamp() <= until:
            yield instant.timestamp()
        before, highest = local, max(highest, local)
        instant += timedelta(minutes=1)


@examples(60)
@given(FIXED | WILD, PLACES, st.floats(-DAY_S, DAY_S), st.sampled_from((0.0, 3600.0, 1.5 * DAY_S)))
def test_a_line_fires_as_the_clocks_on_the_wall_say(
    line: str, place: tuple[str, str], offset_s: float, range_s: float
) -> None:
    name, day = place
    after = datetime.fromisoformat(day).replace(tzinfo=zone(name)).timestamp() + offset_s
    until = after + range_s

    assert fires_between(parse_schedule(line, name), after, until, 10_000) == list(expected(line, name, after, until))


@examples(200)
@given(
    st.one_of(FIXED, WILD, st.sampled_from(("every 7m", "every 1h", "0 0 L * *", "@daily", "30 2 * * 7#L"))),
    PLACES,
    st.floats(-DAY_S, DAY_S),
    st.lists(st.floats(0.0, 2 * DAY_S), min_size=3, max_size=5),
    st.sampled_from((0.0, 61.0, 0.5)),
)
def test_a_range_that_is_split_anywhere_has_the_same_fires(
    line: str, place: tuple[str, str], offset_s: float, cuts: list[float], jitter_s: float
) -> None:
    name, day = place
    try:
        schedule = parse_schedule(line, name, offset_s=jitter_s)
    except ValueError:
        assert "#L" in line
        return
    begin = datetime.fromisoformat(day).replace(tzinfo=zone(name)).timestamp() + offset_s
    cuts = sorted(begin + cut for cut in cuts)
    # Also exactly at a fire time: the rule after < fire <= until says which interval a fire time belongs to.
    whole = fires_between(schedule, cuts[0], cuts[-1], 10_000)
    cuts = sorted({*cuts, *whole[:2]})

    parts = [fires_between(schedule, after, until, 10_000) for after, until in pairwise(cuts)]

    assert [fire for part in parts for fire in part] == whole
    assert all(one < other for one, other in pairwise(whole)), "in order, and each once"
    assert all(cuts[0] < fire <= cuts[-1] for fire in whole)
