"""The latest fire time of a cron line, for `coordd exec --tick`."""

from __future__ import annotations

from datetime import datetime

import pytest

from coordd.core.jobs.schedule import last_fire


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("cron", "zone", "now", "fired"),
    [
        ("* * * * *", "UTC", "2026-11-22T12:00:59.9Z", "2026-11-22T12:00:00Z"),
        ("*/5 * * * *", "UTC", "2026-11-22T12:05:00Z", "2026-11-22T12:05:00Z"),
        ("*/5 * * * *", "UTC", "2026-11-22T12:04:59.999Z", "2026-11-22T12:00:00Z"),
        ("0 2 * * *", "UTC", "2026-11-22T01:59:00Z", "2026-11-21T02:00:00Z"),
        ("0 2 * * *", "Europe/Berlin", "2026-11-22T12:00:00Z", "2026-11-22T01:00:00Z"),
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T12:00:00Z", "2026-03-29T01:00:00Z"),  # the clocks skipped it
        ("0 0 1 1 *", "UTC", "2026-11-22T12:00:00Z", "2026-01-01T00:00:00Z"),
        ("0 0 29 2 *", "UTC", "2027-11-22T12:00:00Z", "2024-02-29T00:00:00Z"),
        ("@hourly", "UTC", "2026-11-22T12:10:00Z", "2026-11-22T12:00:00Z"),
    ],
)
def test_it_is_the_latest_up_to_that_instant(cron: str, zone: str, now: str, fired: str) -> None:
    assert last_fire(cron, zone, at(now)) == at(fired)


@pytest.mark.parametrize(("cron", "zone"), [("every day", "UTC"), ("* * * * *", "Moon")])
def test_what_cannot_be_read_is_an_error(cron: str, zone: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        last_fire(cron, zone, 0.0)
