"""Jobs after jobs, the rule: periods by the clocks of a zone, joins, and what is missed."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, strategies as st

from coordd.core.jobs.after import GRACE_S, Ends, Period, floored, judged, parents_of, period_end, period_of, was_missed
from coordd.core.jobs.job import After

DAY_S, HOUR_S = 86400.0, 3600.0
BOTH = After(("a", "b"), within_s=HOUR_S)
AT = 1_738_137_600.0  # 2025-01-29T08:00:00Z


def instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("at", "period_s", "zone", "begin"),
    [
        ("2026-03-29T12:00+02:00", DAY_S, "Europe/Berlin", "2026-03-29T00:00+01:00"),  # clocks go forward that night
        ("2026-10-25T12:00+01:00", DAY_S, "Europe/Berlin", "2026-10-25T00:00+02:00"),
        ("2026-10-25T02:30+01:00", HOUR_S, "Europe/Berlin", "2026-10-25T02:00+01:00"),  # the repeated hour
        ("2026-10-25T02:30+02:00", HOUR_S, "Europe/Berlin", "2026-10-25T02:00+02:00"),
        ("2026-10-25T02:30+01:00", 2 * HOUR_S, "Europe/Berlin", "2026-10-25T02:00+02:00"),
        ("2026-01-10T23:30+00:00", DAY_S, "Asia/Kolkata", "2026-01-11T00:00+05:30"),
        ("2026-01-10T23:30+00:00", DAY_S, "UTC", "2026-01-10T00:00+00:00"),
        ("2026-11-25T23:59+01:00", 7 * DAY_S, "Europe/Berlin", "2026-11-19T00:00+01:00"),  # Wednesday, and Thursday
        ("2026-11-26T00:00+01:00", 7 * DAY_S, "Europe/Berlin", "2026-11-26T00:00+01:00"),
    ],
)
def test_a_period_begins_by_the_clocks_of_the_zone(at: str, period_s: float, zone: str, begin: str) -> None:
    assert floored(instant(at), period_s, zone) == instant(begin)


@given(
    at=st.integers(1_700_000_000, 1_900_000_000),
    period_s=st.sampled_from((600.0, HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S)),
    zone=st.sampled_from(("UTC", "Europe/Berlin", "America/Havana", "America/Santiago", "Asia/Kathmandu")),
)
def test_an_instant_lies_in_its_period_and_a_begin_is_its_own(at: int, period_s: float, zone: str) -> None:
    begin = floored(float(at), period_s, zone)

    assert begin <= at < period_end(begin, period_s, zone) + HOUR_S
    assert floored(begin, period_s, zone) == begin


def test_runs_by_id_are_joined_by_the_same_id() -> None:
    period = period_of(BOTH, "UTC", "a#42", 0.0, scheduled=False)

    assert period == Period(0.0, "42")
    assert period.run_of("child") == "child#42"
    assert period_of(BOTH, "UTC", "a@x", AT, scheduled=True).run_of("child") == "child@2025-01-29T08:00:00Z"


def ended(*ends: tuple[str, str, float], after: After = BOTH) -> Ends:
    found = Ends("child")
    for parent, state, at in ends:
        found.note(after, parent, f"{parent}#1", state, at)
    return found


def verdict(ends: Ends, wall: float, *, after: After = BOTH, own_due: float = 0.0) -> tuple[str, float]:
    said = judged(after, "UTC", Period(AT), ends, own_due, wall)
    return said.by, said.due


def test_the_last_of_all_parents_opens_the_child_and_says_which_runs_did() -> None:
    assert verdict(ended(("a", "success", AT + 5)), AT + 10) == ("", 0.0)

    by, due = verdict(ended(("a", "success", AT + 5), ("b", "success", AT + 7)), AT + 10)
    assert due == AT + 7
    assert parents_of(by) == ("a#1", "b#1")
    assert was_missed(by) == ""


def test_the_first_end_that_fits_counts_and_later_ends_change_nothing() -> None:
    ends = ended(("a", "failure", AT + 1), ("a", "success", AT + 9), ("a", "success", AT + 5), ("b", "success", AT + 2))
    ends.note(BOTH, "a", "a#2", "failure", AT + 11)

    assert verdict(ends, AT + 20)[1] == AT + 5


@pytest.mark.parametrize(
    ("on", "state", "opens"),
    [
        ("success", "success", True),
        ("success", "failure", False),
        ("success", "missed", False),
        ("failure", "failure", True),
        ("failure", "lost", True),
        ("failure", "success", False),
        ("failure", "revoked", False),
        ("done", "success", True),
        ("done", "missed", True),
        ("done", "rejected", True),
    ],
)
def test_which_ends_fit(on: str, state: str, opens: bool) -> None:
    after = After(("a",), on=on)  # type: ignore[arg-type]  # one of its words

    assert (verdict(ended(("a", state, AT), after=after), AT + 1, after=after)[0] != "") == opens


def test_any_of_the_parents_is_enough() -> None:
    after = After(("a", "b"), needs="any")

    assert verdict(ended(("b", "success", AT + 3), after=after), AT + 4, after=after)[1] == AT + 3


def test_past_within_it_is_missed_and_the_absent_parents_are_named_with_their_ends() -> None:
    after = After(("a", "b", "c"), within_s=HOUR_S)
    ends = ended(("a", "success", AT), ("b", "failure", AT + 1), after=after)

    assert verdict(ends, AT + HOUR_S + GRACE_S, after=after)[0] == ""
    by, due = verdict(ends, AT + HOUR_S + GRACE_S + 0.1, after=after)
    assert was_missed(by) == "b (failure), c"
    assert due == AT


def test_a_parent_that_comes_too_late_does_not_open_it() -> None:
    ends = ended(("a", "success", AT), ("b", "success", AT + HOUR_S + 1))

    assert verdict(ends, AT + HOUR_S + 2)[0] == ""
    assert was_missed(verdict(ends, AT + HOUR_S + 10)[0]) == "b (ended at 2025-01-29T09:00:01Z)"


def test_within_counts_from_the_end_of_the_period() -> None:
    day = After(("a", "b"), period_s=DAY_S, within_s=HOUR_S)
    period = period_of(day, "UTC", "a@x", AT, scheduled=True)
    ends = ended(("a", "success", AT), after=day)

    assert judged(day, "UTC", period, ends, 0.0, AT).until == AT - 8 * HOUR_S + DAY_S + HOUR_S


def test_with_a_schedule_of_its_own_it_waits_for_its_time_and_for_its_parents() -> None:
    ends, own_due = ended(("a", "success", AT + 5), ("b", "success", AT + 7)), AT + 600

    assert verdict(ends, own_due - 1, own_due=own_due)[0] == ""
    assert verdict(ends, own_due, own_due=own_due)[1] == own_due
    assert was_missed(verdict(Ends("child"), own_due + HOUR_S + 10, own_due=own_due)[0]) == "a, b"
    late = ended(("a", "success", AT + 5), ("b", "success", own_due + 60))
    assert verdict(late, own_due + 61, own_due=own_due)[1] == own_due + 60
