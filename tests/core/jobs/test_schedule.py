"""Fire times: clock changes in both directions, intervals, blackouts, limits."""

import math
import re
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coordd.core.jobs import schedule as schedule_module
from coordd.core.jobs.job import Blackout, Schedule, iso
from coordd.core.jobs.schedule import (
    DURATION_MAX_S,
    fires_between,
    jitter_offset,
    next_fire,
    parse_cron,
    parse_duration,
    parse_instant,
    parse_schedule,
    zone,
)

DAY_S = 86400.0


def instant(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def fires(schedule: Schedule, after: str, count: int) -> list[str]:
    """The next fire times, in UTC."""
    at: float | None = instant(after)
    told = []
    for _ in range(count):
        assert at is not None
        at = next_fire(schedule, at)
        told.append("none" if at is None else iso(at))
        if at is None:
            break
    return told


# Clocks in Berlin: forward on 2026-03-29 at 02:00 (01:00Z), back on 2026-10-25 at 03:00 (01:00Z).
# In New York: forward on 2026-03-08 at 02:00 (07:00Z). In Cairo: forward on 2026-04-24 at 00:00 (2026-04-23T22:00Z).
CLOCK_CHANGES = [
    # A fixed time in the gap fires at the first minute after it, and only once.
    (
        "30 2 * * *",
        "Europe/Berlin",
        "2026-03-28T00:00",
        ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"],
    ),
    ("0,30 2 * * *", "Europe/Berlin", "2026-03-29T00:00", ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z"]),
    ("30 2 * * *", "America/New_York", "2026-03-08T00:00", ["2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"]),
    ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-23T22:00:00Z", "2026-04-24T21:00:00Z"]),
    # A fixed time that occurs twice fires the first time.
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
    # When the question is asked inside the repeated hour, a time that fired in the first hour does not fire again.
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10", ["2026-10-26T01:30:00Z"]),
    # Wildcards follow real time: no fire in the gap, and the repeated hour fires twice.
    (
        "30 * * * *",
        "Europe/Berlin",
        "2026-03-28T23:40",
        ["2026-03-29T00:30:00Z", "2026-03-29T01:30:00Z", "2026-03-29T02:30:00Z"],
    ),
    (
        "30 * * * *",
        "Europe/Berlin",
        "2026-10-25T00:00",
        ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:30:00Z"],
    ),
    ("*/20 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["2026-03-30T00:00:00Z", "2026-03-30T00:20:00Z"]),
    # If the first minute of the day does not exist, a wildcard line starts with the first minute that exists.
    ("*/30 * 24 4 *", "Africa/Cairo", "2026-04-20T00:00", ["2026-04-23T22:00:00Z", "2026-04-23T22:30:00Z"]),
    # The same if the hours of its line begin after the gap.
    ("*/30 1-4 * * 0", "America/Havana", "2026-03-08T02:00", ["2026-03-08T05:00:00Z", "2026-03-08T05:30:00Z"]),
    ("*/30 1 1 * 0", "America/Havana", "2026-03-02T00:00", ["2026-03-08T05:00:00Z", "2026-03-08T05:30:00Z"]),
    ("*/30 1 * 3 0", "America/Havana", "2026-03-02T00:00", ["2026-03-08T05:00:00Z", "2026-03-08T05:30:00Z"]),
    # In an hour that does not exist no line fires, at whatever instant the question is asked.
    ("*/30 0 24 4 *", "Africa/Cairo", "2026-04-20T00:00", ["2027-04-23T22:00:00Z"]),
    ("*/30 0 24 4 *", "Africa/Cairo", "2026-04-23T21:59:59", ["2027-04-23T22:00:00Z"]),
    # `every` ignores changes of clocks.
    (
        "every 12h",
        "Europe/Berlin",
        "2026-03-28T13:00",
        ["2026-03-29T00:00:00Z", "2026-03-29T12:00:00Z", "2026-03-30T00:00:00Z"],
    ),
]


@pytest.mark.parametrize(("text", "timezone", "after", "expected"), CLOCK_CHANGES)
def test_clock_changes(text: str, timezone: str, after: str, expected: list[str]) -> None:
    assert fires(parse_schedule(text, timezone), after, len(expected)) == expected


@pytest.mark.parametrize(
    ("text", "after", "expected"),
    [
        ("0 2 * * *", "2026-05-01T02:00", ["2026-05-02T02:00:00Z"]),  # strictly after the given instant
        ("@daily", "2026-05-01T02:00", ["2026-05-02T00:00:00Z"]),
        (
            "0 0 13 * 5",
            "2026-02-01T00:00",
            ["2026-02-06T00:00:00Z", "2026-02-13T00:00:00Z"],
        ),  # it is enough that one of the two day fields matches
        ("0 0 29 2 *", "2026-01-01T00:00", ["2028-02-29T00:00:00Z"]),
        ("0 9 * * MON-FRI", "2026-05-01T10:00", ["2026-05-04T09:00:00Z"]),
        ("every 15m", "2026-05-01T02:07", ["2026-05-01T02:15:00Z", "2026-05-01T02:30:00Z"]),
        ("every 7d", "2026-05-01T00:00", ["2026-05-07T00:00:00Z"]),  # counted from 1970-01-01, a Thursday
        ("at 2026-12-01T02:00", "2026-05-01T00:00", ["2026-12-01T02:00:00Z", "none"]),
        ("at 2026-12-01T02:00+02:00", "2026-05-01T00:00", ["2026-12-01T00:00:00Z"]),
    ],
)
def test_fire_times(text: str, after: str, expected: list[str]) -> None:
    assert fires(parse_schedule(text), after, len(expected)) == expected


def test_every_counts_from_the_epoch() -> None:
    assert next_fire(parse_schedule("every 15m"), -1.0) == 0.0
    assert next_fire(parse_schedule("every 15m"), 0.0) == 900.0


def test_start_and_end_are_the_first_and_last_instants_that_fire() -> None:
    schedule = parse_schedule("every 1h", start=7200.0, end=10800.0)
    assert fires_between(schedule, 0.0, math.inf, 10) == [7200.0, 10800.0]
    assert next_fire(schedule, -math.inf) == 7200.0
    assert next_fire(schedule, 10800.0) is None


def test_jitter_is_carried_by_the_fire_time() -> None:
    schedule = parse_schedule("0 * * * *", offset_s=90.0)
    assert fires(schedule, "2026-05-01T02:00", 2) == ["2026-05-01T02:01:30Z", "2026-05-01T03:01:30Z"]
    # Still strictly after: asked at the fire time itself, and just before it.
    at = instant("2026-05-01T02:01:30")
    assert next_fire(schedule, at) == at + 3600
    assert next_fire(schedule, at - 0.001) == at


def test_jitter_is_stable_bounded_and_differs() -> None:
    offsets = [jitter_offset(f"job-{n}", 300.0) for n in range(200)]
    assert offsets == [jitter_offset(f"job-{n}", 300.0) for n in range(200)]
    assert all(0 <= offset <= 300 and offset == int(offset) for offset in offsets)
    assert len(set(offsets)) > 100
    # every version must compute the same value, because run ids contain it
    assert jitter_offset("nightly-sales", 300.0) == 172.0
    assert jitter_offset("nightly-sales", 0.0) == 0.0


class TestBlackout:
    def test_fixed(self) -> None:
        blackout = Blackout(start=instant("2026-05-01T03:00"), end=instant("2026-05-01T05:00"))
        schedule = parse_schedule("0 * * * *", blackout=[blackout])
        # The end is not part of the blackout.
        assert fires(schedule, "2026-05-01T01:30", 3) == [
            "2026-05-01T02:00:00Z",
            "2026-05-01T05:00:00Z",
            "2026-05-01T06:00:00Z",
        ]

    def test_repeated(self) -> None:
        weekend = Blackout(cron="0 0 * * SAT", duration_s=2 * DAY_S)
        schedule = parse_schedule("0 6 * * *", blackout=[weekend])
        assert fires(schedule, "2026-05-01T00:00", 2) == ["2026-05-01T06:00:00Z", "2026-05-04T06:00:00Z"]

    def test_is_judged_with_the_jitter(self) -> None:
        blackout = Blackout(start=instant("2026-05-01T02:01"), end=instant("2026-05-01T02:10"))
        schedule = parse_schedule("0 2 * * *", offset_s=120.0, blackout=[blackout])
        assert fires(schedule, "2026-05-01T00:00", 1) == ["2026-05-02T02:02:00Z"]

    def test_at_within_never_fires(self) -> None:
        blackout = Blackout(start=instant("2026-05-01T00:00"), end=instant("2026-05-02T00:00"))
        assert next_fire(parse_schedule("at 2026-05-01T02:00", blackout=[blackout]), 0.0) is None

    def test_windows_that_overlap_are_left_together(self) -> None:
        december = Blackout(cron="*/10 * * 12 *", duration_s=1200.0)
        schedule = parse_schedule("*/5 * * * *", blackout=[december])
        assert fires(schedule, "2026-11-30T23:50", 2) == ["2026-11-30T23:55:00Z", "2027-01-01T00:10:00Z"]

    def test_that_never_ends_is_given_up(self) -> None:
        always = Blackout(cron="* * * * *", duration_s=DAY_S)
        assert next_fire(parse_schedule("every 30d", blackout=[always]), 0.0) is None

    def test_a_long_one_before_many_fires_does_not_cost_their_number(self) -> None:
        # Six years with one fire time per second lie before the blackout. Only the newest ones are examined.
        blackout = Blackout(start=1.7e9, end=1.8e9)
        schedule = parse_schedule("every 1s", blackout=[blackout])
        assert fires_between(schedule, 1.5e9, 1.8e9 - 1, 3) == [1.7e9 - 3, 1.7e9 - 2, 1.7e9 - 1]


@pytest.mark.parametrize("text", ["every 1s", "* * * * *", "0 2 * * *", "0 0 29 2 *", "at 2026-12-01T02:00"])
def test_fires_between_looks_at_few_fires_however_long_the_range(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from coordd.core.jobs import schedule as module

    looked = 0
    true_next = module._next

    def counted(schedule: Schedule, after: float) -> float | None:
        nonlocal looked
        looked += 1
        return true_next(schedule, after)

    monkeypatch.setattr(module, "_next", counted)
    found = fires_between(parse_schedule(text, "Europe/Berlin"), 0.0, instant("2030-01-01T00:00"), 5)
    assert found == sorted(found)
    assert 1 <= len(found) <= 5
    assert looked < 200


def test_fires_between_takes_the_newest_and_includes_until() -> None:
    schedule = parse_schedule("every 10s")
    assert fires_between(schedule, 0.0, 60.0, 3) == [40.0, 50.0, 60.0]
    assert fires_between(schedule, 0.0, 20.0, 3) == [10.0, 20.0]
    assert fires_between(schedule, 0.0, 60.0, 0) == []
    assert fires_between(schedule, 60.0, 60.0, 3) == []
    assert fires_between(schedule, 61.0, 60.0, 3) == []


SCHEDULES = st.builds(
    parse_schedule,
    st.sampled_from(
        [
            "0 2 * * *",
            "30 2 * * *",
            "*/15 * * * *",
            "*/30 1-3 * * *",
            "15,45 0,2 * * *",
            "0 0 * * SUN",
            "30 * 29 3 *",
            "every 7m",
            "every 1h",
            "at 2026-03-29T05:00",
        ]
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Africa/Cairo"]),
    offset_s=st.sampled_from([0.0, 1.0, 90.0, 4000.0, 0.25]),
    end=st.sampled_from([math.inf, instant("2026-10-25T00:30")]),
    blackout=st.sampled_from(
        [
            (),
            (Blackout(start=instant("2026-03-28T20:00"), end=instant("2026-03-29T00:45")),),
            # Not for every day: for a line that never fires, the search covers years.
            (
                Blackout(cron="0 1 1-8,24-31 * *", duration_s=5400.0),
                Blackout(cron="0 2 1-8,24-31 * *", duration_s=1800.0),
            ),
            (Blackout(cron="*/20 0-5 1-8,24-31 * *", duration_s=900.0),),
        ]
    ),
)
# Around both clock changes of 2026.
INSTANTS = st.sampled_from(["2026-03-07T00:00", "2026-03-28T00:00", "2026-04-23T00:00", "2026-10-24T00:00"]).flatmap(
    lambda day: st.floats(0, 3 * DAY_S).map(lambda s: instant(day) + s)
)


@settings(max_examples=300, deadline=None)
@given(SCHEDULES, INSTANTS, st.floats(0, 2 * DAY_S), st.integers(1, 40))
def test_fires_between_is_next_fire_again_and_again(
    schedule: Schedule, after: float, range_s: float, limit: int
) -> None:
    until = after + range_s
    expected = []
    fire = next_fire(schedule, after)
    while fire is not None and fire <= until:
        expected.append(fire)
        following = next_fire(schedule, fire)
        assert following is None or following > fire
        fire = following
    assert fires_between(schedule, after, until, limit) == expected[-limit:]


@settings(max_examples=300, deadline=None)
@given(SCHEDULES, INSTANTS, st.floats(0, DAY_S))
def test_next_fire_depends_on_the_definition_alone(schedule: Schedule, after: float, later_s: float) -> None:
    """Two nodes that ask at different instants before a fire time get the same fire time."""
    fire = next_fire(schedule, after)
    if fire is not None and after + later_s < fire:
        assert next_fire(schedule, after + later_s) == fire


@settings(max_examples=200, deadline=None)
@given(SCHEDULES, INSTANTS)
def test_nothing_fires_in_a_blackout_or_past_the_end(schedule: Schedule, after: float) -> None:
    fire = next_fire(schedule, after)
    if fire is None:
        return
    assert after < fire <= schedule.end
    for blackout in schedule.blackout:
        if not blackout.cron:
            assert not blackout.start <= fire < blackout.end
            continue
        line = parse_schedule(blackout.cron, schedule.timezone)
        assert fires_between(line, fire - blackout.duration_s, fire, 1) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("15m", 900),
        ("1h30m", 5400),
        ("90d", 90 * DAY_S),
        ("2w", 14 * DAY_S),
        ("250ms", 0.25),
        ("1.5h", 5400),
        (5, 5),
        (0, 0),
        (2.5, 2.5),
        ("0s", 0),
        (" 30s ", 30),
    ],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.integers(0, 300), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_that_was_written_is_read_back(days: int, hours: int, minutes: int, seconds: int) -> None:
    units = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")]
    text = "".join([f"{n}{unit}" for n, unit in units if n]) or "0s"
    meant = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    assert parse_duration(text) == meant.total_seconds()
    assert parse_duration(meant.total_seconds()) == meant.total_seconds()


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "5",
        "m",
        "5x",
        "5 m",
        "30m1h",
        "1h1h",
        "-5m",
        "1e3s",
        "5m!",
        "٣m",
        True,
        None,
        [],
        -1,
        math.nan,
        math.inf,
        10**400,
        "999999w",
        DURATION_MAX_S * 2,
    ],
)
def test_bad_durations_say_what_was_expected(bad: object) -> None:
    with pytest.raises(ValueError, match="expected a duration") as caught:
        parse_duration(bad)  # type: ignore[arg-type]  # a file may contain it
    assert "found" in str(caught.value)  # 10**400 is refused by its size, before Python would print it


BAD_SCHEDULES = [
    ("", "UTC", 'found ""'),
    ("daily", "UTC", 'found "daily"'),
    ("@dialy", "UTC", 'found "@dialy"'),
    ("61 2 * * *", "UTC", "bad minute"),
    ("0 25 * * *", "UTC", "bad hour"),
    ("0 0 31 2 *", "UTC", "bad day-of-month"),
    ("0 0 * 13 *", "UTC", "bad month"),
    ("0 0 * * 8", "UTC", "bad day-of-week"),
    ("0 2 * *", "UTC", "five fields"),
    ("0 0 2 * * *", "UTC", "five fields"),
    ("* " * 200, "UTC", "five fields"),
    ("every", "UTC", "expected a duration"),
    ("every 15", "UTC", "expected a duration"),
    ("every 0s", "UTC", "whole seconds"),
    ("every 1500ms", "UTC", "whole seconds"),
    ("at", "UTC", "expected an instant"),
    ("at noon", "UTC", 'found "noon"'),
    ("at 2026-02-30T00:00", "UTC", "that the calendar has"),
    ("at 1969-12-31T00:00", "UTC", "between the years"),
    ("at 2026-03-29T02:30", "Europe/Berlin", "does not exist in Europe/Berlin"),
    ("0 2 * * *", "Europe/Berln", 'found "Europe/Berln"'),
    ("0 2 * * *", "../../etc/passwd", "time zone"),
    ("0 2 * * *", "Europe", "time zone"),
    ("0 2 * * *", "tzdata.zi", "time zone"),
    ("0 2 * * *", "", "time zone"),
]


@pytest.mark.parametrize(("text", "timezone", "said"), BAD_SCHEDULES)
def test_bad_schedules_say_what_was_expected_and_found(text: str, timezone: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_schedule(text, timezone)
    assert len(str(caught.value)) < 300


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="0123456789*/,-L#W@ MONSTUEJAFB", max_size=25) | st.text(max_size=25))
def test_any_text_is_a_schedule_or_a_sentence(text: str) -> None:
    for read in (parse_schedule, parse_cron):
        with suppress(ValueError):  # any other exception would stop the daemon
            read(text)


def test_instants() -> None:
    assert parse_instant("2026-12-01T02:00", "Europe/Berlin") == instant("2026-12-01T01:00")
    assert parse_instant("2026-12-01T02:00Z", "Europe/Berlin") == instant("2026-12-01T02:00")
    assert parse_instant("2026-12-01", "UTC") == instant("2026-12-01")
    assert parse_instant(date(2026, 12, 1), "UTC") == instant("2026-12-01")
    assert parse_instant(datetime(2026, 12, 1, 2), "UTC") == instant("2026-12-01T02:00")  # noqa: DTZ001 - as TOML gives it
    # Of two possible instants the first one counts: still summer time.
    assert parse_instant("2026-10-25T02:30", "Europe/Berlin") == instant("2026-10-25T00:30")


def test_zones_come_from_the_package_and_not_from_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zones of hosts have different versions. The digest of a job contains the version of the package."""
    import zoneinfo

    def refuse(_name: str) -> None:
        raise AssertionError("the host's zone files were asked")

    zone.cache_clear()
    monkeypatch.setattr(zoneinfo, "ZoneInfo", refuse)
    assert datetime(2026, 7, 1, tzinfo=zone("Asia/Tokyo")).utcoffset() == timedelta(hours=9)


def test_blackouts_that_last_for_years_are_not_followed_for_millennia(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    real = schedule_module._next_cron

    def counted(*args: Any) -> float | None:
        asked.append(args)
        return real(*args)

    monkeypatch.setattr(schedule_module, "_next_cron", counted)
    dark = Blackout(cron="0 22 * * 0#1", duration_s=65535 * 3600.0)
    assert next_fire(Schedule(kind="cron", cron="5 * * * *", timezone="UTC", blackout=(dark,)), 1.7e9) is None
    assert len(asked) < 500
