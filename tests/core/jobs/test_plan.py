"""`plan` compared with the plain difference of two lists of fire times."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis.strategies import builds, floats, integers, just, none, one_of, sampled_from, tuples

from coordd.core.jobs.job import Blackout, Schedule
from coordd.core.jobs.plan import DAY_S, compare, next_clock_change, spans
from coordd.core.jobs.schedule import fires_between, parse_schedule

NOW = datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC).timestamp()
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")

crons = builds(
    "{} {} {} {} {}".format,
    sampled_from(("0", "30", "15,45", "*/20")),
    sampled_from(("2", "3", "0", "*/6", "1-4")),
    sampled_from(("*", "1", "*/3")),
    just("*"),
    sampled_from(("*", "1-5", "0")),
)
whole = integers(0, 7200).map(float)
blackouts = tuples(floats(NOW - 40 * DAY_S, NOW + 40 * DAY_S), floats(60.0, 5 * DAY_S)).map(
    lambda span: (Blackout(start=span[0], end=span[0] + span[1]),)
)
schedules = one_of(
    none(),
    builds(
        lambda text, zone, offset_s, around: parse_schedule(text, zone, offset_s=offset_s, blackout=around),
        one_of(crons, sampled_from(("every 5h", "every 36h", "at 2026-03-20T02:30", "@daily"))),
        sampled_from(ZONES),
        whole,
        one_of(just(()), blackouts),
    ),
)


def plainly(old: Schedule | None, new: Schedule | None) -> tuple[set[float], set[float]]:
    """The added and the removed fire times, computed from two complete lists."""
    come: set[float] = set()
    go: set[float] = set()
    for after, until in spans((old, new), NOW):
        before = set(fires_between(old, after, until, 1_000_000)) if old is not None else set()
        then = set(fires_between(new, after, until, 1_000_000)) if new is not None else set()
        come |= then - before
        go |= before - then
    return come, go


@given(schedules, schedules)
@settings(deadline=None)
def test_an_edit_is_the_difference_of_the_fire_times(old: Schedule | None, new: Schedule | None) -> None:
    change = compare("j", "changed", old, new, NOW)
    come, go = plainly(old, new)
    assert change.cut_at is None
    assert {*change.added, *[pair[1] for pair in change.moved]} == come
    assert {*change.removed, *[pair[0] for pair in change.moved]} == go
    assert len(change.added) + len(change.moved) == len(come)
    for before, after in change.moved:
        assert abs(after - before) < 25 * 3600


def test_a_time_that_moves_is_one_that_goes_and_one_that_comes_on_the_same_day() -> None:
    old, new = parse_schedule("30 2 * * *", "UTC"), parse_schedule("45 3 * * *", "UTC")
    change = compare("j", "changed", old, new, NOW)
    assert (change.added, change.removed, len(change.moved)) == ((), (), 60)
    assert {after - before for before, after in change.moved} == {75 * 60.0}


def test_the_next_change_of_clocks_is_looked_at_wherever_it_is() -> None:
    change_at = datetime(2026, 3, 29, 1, 0, tzinfo=UTC).timestamp()
    assert next_clock_change("Europe/Berlin", NOW) == change_at
    assert next_clock_change("UTC", NOW) is None
    july = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    autumn = datetime(2026, 10, 25, 1, 0, tzinfo=UTC).timestamp()
    berlin = parse_schedule("30 2 * * *", "Europe/Berlin")
    assert spans((berlin, None), july) == [(july - 30 * DAY_S, july + 30 * DAY_S), (autumn - DAY_S, autumn + DAY_S)]
    around = compare("j", "changed", berlin, parse_schedule("30 2 * * *", "UTC"), july)
    assert any(autumn - DAY_S < before < autumn + DAY_S for before, _ in around.moved)


def test_a_job_that_fires_every_second_is_compared_as_far_as_there_is_patience() -> None:
    change = compare("j", "changed", parse_schedule("every 2s"), parse_schedule("every 3s"), NOW)
    assert change.cut_at is not None
    assert NOW - 30 * DAY_S < change.cut_at < NOW


def test_what_is_due_within_a_second_could_be_launched_at_once() -> None:
    new = parse_schedule("at 2026-03-01T12:00:08Z")
    assert compare("j", "added", None, new, NOW).launches_now == (NOW + 1.0,)
    assert compare("j", "added", None, new, NOW - 1.0).launches_now == ()
