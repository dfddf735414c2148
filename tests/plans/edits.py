"""A random edit of one job file, and what brute force says of it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coordd.cli import plan
from coordd.config.jobfile import load_job
from coordd.config.sections import Config
from coordd.core.jobs.job import Job
from coordd.core.jobs.plan import Change
from coordd.core.jobs.schedule import jitter_offset
from coordd.services.views import jobview, objects
from plans.oracle import DAY_S, Cron, Described, changes, fires, moved, spans

NAME = "sales"
LEAD_S = 1.0

# Changes of a whole hour, of half an hour, at midnight, twice a year, never.
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "America/Havana", "Australia/Lord_Howe")
HALF_HOURS = "Australia/Lord_Howe"  # wildcard lines are not promised there: core/jobs/schedule.py

MINUTES = {"0": (0,), "30": (30,), "15,45": (15, 45), "7-9": (7, 8, 9), "*/30": (0, 30)}
HOURS = {"2": (2,), "0": (0,), "3,23": (3, 23), "1-4": (1, 2, 3, 4), "*/6": (0, 6, 12, 18), "*": tuple(range(24))}
DAYS = {"*": tuple(range(1, 32)), "1": (1,), "28-31": (28, 29, 30, 31), "*/3": tuple(range(1, 32, 3))}
WEEKDAYS = {"*": tuple(range(7)), "1-5": (1, 2, 3, 4, 5), "0": (0,), "6,0": (0, 6)}


class Version(NamedTuple):
    """One version of a job file; ``schedule`` None: it fires never."""

    text: str
    schedule: Described | None


class Edit(NamedTuple):
    """None: there is no file."""

    now: float
    old: Version | None
    new: Version | None


def edit(seed: int) -> Edit:
    """The edit with that number. Now is often near a change of clocks."""
    rng = random.Random(seed)
    timezone = rng.choice(ZONES)
    now = rng.uniform(*(datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2025, 2027)))
    if changes(timezone) and rng.random() < 0.6:
        near = rng.choice([at for at in changes(timezone) if abs(at - now) < 500 * DAY_S])
        now = near + rng.choice((rng.uniform(-2, 2) * DAY_S, rng.uniform(-7200, 7200), -0.5, 0.0, 30.0 * DAY_S))
    old = _version(rng, timezone, now) if rng.random() < 0.9 else None
    if old is not None and rng.random() < 0.1:
        return Edit(now, old, rng.choice((None, old)))
    zone = timezone if rng.random() < 0.7 else rng.choice(ZONES)
    return Edit(now, old, _version(rng, zone, now))


def _cron(rng: random.Random, timezone: str) -> Cron:
    while True:
        minute, hour = rng.choice(list(MINUTES)), rng.choice(list(HOURS))
        day, weekday = rng.choice(list(DAYS)), rng.choice(list(WEEKDAYS))
        cron = Cron(f"{minute} {hour} {day} * {weekday}", MINUTES[minute], HOURS[hour], DAYS[day], WEEKDAYS[weekday])
        if timezone != HALF_HOURS or not cron.is_wild:
            return cron


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def _version(rng: random.Random, timezone: str, now: float) -> Version:
    lines: list[str] = []
    cron, every_s, at = None, 0, 0
    kind = rng.random()
    if kind < 0.7:
        cron = _cron(rng, timezone)
        lines.append(f'schedule = "{cron.line}"')
    elif kind < 0.85:
        every_s = rng.choice((5, 36, 7)) * 3600
        lines.append(f'schedule = "every {every_s // 3600}h"')
    elif kind < 0.95:
        at = int(now) + rng.choice((1, rng.randrange(-40 * DAY_S, 40 * DAY_S)))
        lines.append(f'schedule = "at {_text(at)}"')
    lines.append(f'timezone = "{timezone}"')
    described = Described(cron, every_s, at, timezone)
    if len(lines) == 2:
        described = _around(rng, described, now, lines)
    enabled = rng.random() < 0.93
    lines += [] if enabled else ["enabled = false"]
    body = "\n".join([*lines, "[command]", f'argv = ["/bin/echo", "{rng.randrange(3)}"]', ""])
    return Version(body, described if enabled and len(lines) > 1 and lines[0].startswith("schedule") else None)


def _around(rng: random.Random, one: Described, now: float, lines: list[str]) -> Described:
    """Jitter, start, end and blackouts, each now and then."""
    if rng.random() < 0.2:
        jitter_s = rng.choice((600, 7200))
        lines.append(f'jitter = "{jitter_s}s"')
        one = one._replace(offset_s=int(jitter_offset(NAME, float(jitter_s))))
    if rng.random() < 0.15:
        one = one._replace(start=int(now) + rng.randrange(-35 * DAY_S, 35 * DAY_S))
        lines.append(f"start = {_text(one.start)}")
    if rng.random() < 0.15:
        one = one._replace(end=max(one.start, int(now)) + rng.randrange(1, 35 * DAY_S))
        lines.append(f"end = {_text(one.end)}")
    told = []
    if rng.random() < 0.2:
        begins = int(now) + rng.randrange(-35 * DAY_S, 30 * DAY_S)
        ends = begins + rng.randrange(60, 6 * DAY_S)
        told.append(f"{{ from = {_text(begins)}, to = {_text(ends)} }}")
        one = one._replace(blackouts=((begins, ends),))
    if rng.random() < 0.15:
        length_s = rng.choice((1800, 2 * 3600, 26 * 3600))
        repeated = Cron("0 1 * * 0", (0,), (1,), DAYS["*"], (0,))
        told.append(f'{{ cron = "{repeated.line}", duration = "{length_s}s" }}')
        one = one._replace(blackouts=(*one.blackouts, (repeated, length_s)))
    if told:
        lines.append(f"blackout = [{', '.join(told)}]")
    return one


def expected(of: Edit) -> Change:
    """By brute force."""
    if of.old == of.new and of.old is not None:
        return Change(NAME, "same")
    change = "added" if of.old is None else "removed" if of.new is None else "changed"
    old, new = (version.schedule if version is not None else None for version in (of.old, of.new))
    within = spans([one for one in (old, new) if one is not None], of.now)
    before, then = fires(old, within), fires(new, within)
    go, come = before - then, then - before
    last = new or old
    pairs = moved(go, come, last.timezone) if last is not None else []
    soon = fires(new, [(of.now, of.now + LEAD_S)])
    return Change(
        NAME,
        change,
        added=tuple(sorted(come - {after for _, after in pairs})),
        removed=tuple(sorted(go - {before for before, _ in pairs})),
        moved=tuple(sorted(pairs)),
        launches_now=(min(soon),) if soon else (),
    )


def planned(of: Edit, directory: Path) -> Change | None:
    """By `coordctl plan`: the old job as the daemon shows it, the new one from its file. None if a file is refused,
    because it never fires.
    """
    old, new = (_loaded(version, directory) for version in (of.old, of.new))
    if (old is None, new is None) != (of.old is None, of.new is None):
        return None

    class Daemon:
        """Its answer to job.show."""

        def call(self, method: str, **params: Any) -> Any:
            assert (method, params, old is not None) == ("job.show", {"job": NAME}, True)
            assert old is not None
            return row(old) | jobview.everything(old, redacted=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "asked", Daemon)
        found = plan._change(NAME, row(old) if old is not None else None, new, of.now)
    return found._replace(moved=tuple(sorted(found.moved)))


def row(job: Job) -> dict[str, Any]:
    """As in job.list."""
    return objects.job_view(job, stop=None, next_at=None, problem="", redacted=False)


def _loaded(version: Version | None, directory: Path) -> Job | None:
    if version is None:
        return None
    path = directory / f"{NAME}.toml"
    path.write_text(version.text)
    job, problems = load_job(str(path), Config())
    assert job is not None or all("never fires" in str(problem) for problem in problems), problems
    return job
