"""`job show`: what the keys of a job file mean, as JSON has it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest

from coordd.cli.show import tables
from coordd.cli.show.firing import fire_columns
from coordd.core.groups.expand import Expand
from coordd.core.jobs.job import After, Command, Dedupe, Job
from coordd.core.jobs.schedule import parse_schedule
from coordd.core.jobs.trigger import Trigger
from coordd.services.views import objects, why
from coordd.services.views.jobview import everything


def test_keys_with_several_values_are_objects_and_no_text_of_python() -> None:
    job = Job(
        name="each",
        digest="d",
        launch=Command(argv=("/bin/true",)),
        after=After(jobs=("load",)),
        dedupe=Dedupe(key="{day}"),
        expand=Expand(key="part", values=("a", "b", "c"), chunk=2),
    )
    shown = everything(job, redacted=False)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["after"]["jobs"] == ["load"]
    assert shown["dedupe"] == {"key": "{day}", "period_s": 0.0, "then": "same"}
    assert (shown["expand"]["values"], shown["chunk"]) == (["a", "b", "c"], 2)


@pytest.mark.parametrize(
    ("more", "told", "why_so"),
    [
        ({}, "by hand", "it runs when somebody triggers it"),
        (
            {"after": After(jobs=("load", "rates"))},
            "after load, rates",
            "It runs when all of load, rates have succeeded",
        ),
        (
            {"triggers": (Trigger(kind="file", name="f"), Trigger(kind="sql", name="s"))},
            "triggers: file, sql",
            "its triggers start it (file, sql), or a person: `coordctl run trigger each`",
        ),
    ],
)
def test_what_starts_a_job_without_a_schedule(more: dict[str, Any], told: str, why_so: str) -> None:
    """It was said to run by hand only."""
    each = Job(name="each", digest="d", launch=Command(argv=("/bin/true",)), **more)
    shown = objects.job_view(each, stop=None, next_at=None, problem="", redacted=False)
    assert shown["started_by"] == told
    assert tables._schedule(shown) == told
    assert why_so in why._next_time(each, None, None)


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.parametrize(
    ("cron", "start", "now", "clocks_s"),
    [
        ("30 4 * * *", "2026-01-01T00:00:00Z", "2026-03-28T20:00:00Z", 3600.0),  # spring comes in this night
        ("30 4 * * *", "2026-01-01T00:00:00Z", "2026-07-01T00:00:00Z", 0.0),
        ("0 0 1 1 *", "2020-01-01T00:00:00Z", "2026-07-01T00:00:00Z", 0.0),  # in winter, as every year
        ("30 4 * * *", "2027-07-01T00:00:00Z", "2026-11-28T00:00:00Z", 0.0),  # nothing was before it
    ],
)
def test_the_clocks_of_the_first_fire_time_are_compared_with_those_of_the_one_before(
    cron: str, start: str, now: str, clocks_s: float
) -> None:
    schedule = parse_schedule(cron, "Europe/Berlin", start=at(start))
    each = Job(name="each", digest="d", launch=Command(argv=("/bin/true",)), schedule=schedule)
    fires = objects.fire_views(each, objects.next_fires(each, at(now), 2), at(now), 0.0)
    assert fires[0]["clocks_s"] == clocks_s


def test_the_due_time_is_shown_where_jitter_moves_it() -> None:
    fire = {"fire_time": "2026-11-28T02:00:00Z", "due": "2026-11-28T02:00:00Z"}
    assert "DUE (UTC)" not in [column.title for column in fire_columns([fire])]
    moved = {**fire, "due": "2026-11-28T02:13:00Z"}
    assert [column.title for column in fire_columns([fire, moved])][:2] == ["FIRE TIME (UTC)", "DUE (UTC)"]


def test_empty_parts_of_a_cell_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    told = {"concurrency": {"max": 2, "per": "", "min": 0, "by": ""}, "params": {"empty": ""}}
    tables.draw_facts(told, "each")
    shown = capsys.readouterr().out
    assert "max=2, min=0" in shown
    assert "per=" not in shown
    assert "empty=" in shown, "the default of a parameter"
