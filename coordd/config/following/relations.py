"""Checks of `after` that need all job files: circles, parents that do not exist, cadences that never meet; and warnings
about keys that do not go together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from coordd.core.jobs.after import floored, period_end
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import After, Concurrency, Job, Schedule, SparkSubmit
from coordd.core.jobs.schedule import next_fire
from coordd.core.ledger import words

# So many fire times of one job are compared with those of another.
FIRES_MAX = 60

# So many fire times are looked at for expect_within: those of a week's working days, or of a day's working hours.
EXPECTED_MAX = 12

# From here (Unix seconds: 2024-01-01T00:00:00Z) fire times are compared, where a schedule has no start; so the result
# does not depend on the day.
FROM = 1_704_067_200.0

# The file systems of Hadoop and of the clouds, as programs and files of Spark are addressed. Others need a class.
SCHEMES = re.compile(
    "file|local|https?|s?ftp|hdfs|viewfs|s?webhdfs|har|s3[an]?|gs|abfss?|wasbs?|adl|o3fs|ofs|oss|cosn|obs|tos|swift"
    "|maprfs|alluxio|dbfs",
    re.IGNORECASE,
)


class Wrong(NamedTuple):
    """One problem of a job. ``fatal``: the job can never run as it is."""

    job: str
    text: str
    fatal: bool


def problems(jobs: Mapping[str, Job]) -> list[Wrong]:
    """Everything that is wrong between these jobs. A parent that does not exist here may exist on other nodes."""
    found: list[Wrong] = []
    for name, job in jobs.items():
        if job.after is None:
            continue
        for parent in job.after.jobs:
            if parent not in jobs:
                text = f'there is no job "{parent}" here; {nearest(parent, sorted(jobs))}'
                found.append(Wrong(name, f"{text}. This job never runs unless another node has it", False))
        circle = _circle(name, jobs)
        if circle:
            found.append(Wrong(name, f"the jobs wait for each other: {' after '.join(circle)}", True))
            continue
        text = _cadence(job, job.after, jobs)
        if text:
            found.append(Wrong(name, text, True))
    return found


def _circle(name: str, jobs: Mapping[str, Job]) -> list[str]:
    """The way from a job over its parents back to itself; [] if there is none."""
    ways = [[name]]
    seen: set[str] = set()
    while ways:
        way = ways.pop()
        job = jobs.get(way[-1])
        for parent in job.after.jobs if job is not None and job.after is not None else ():
            if parent == name:
                return [*way, parent]
            if parent not in seen:
                seen.add(parent)
                ways.append([*way, parent])
    return []


def _cadence(job: Job, after: After, jobs: Mapping[str, Job]) -> str:
    """Why runs of the parents, and fire times of the job, never have a period in common; "" if they may."""
    cadences = {name: cadence for name in after.jobs if (cadence := _of(name, jobs)) is not None}
    if len(cadences) < len(after.jobs):
        return ""  # one of them is not here
    if job.schedule is not None:
        cadences[job.name] = Cadence(job.schedule, 0.0, job.timezone)
    by_hand = [name for name, cadence in cadences.items() if cadence.schedule is None]
    if len(by_hand) not in (0, len(cadences)) and after.needs == "all":
        other = next(name for name in cadences if name not in by_hand)
        return (
            f"{by_hand[0]} runs only by hand and {other} by its schedule: a fire time and an id are never the same"
            " period"
        )
    timed = {name: cadence for name, cadence in cadences.items() if cadence.schedule is not None}
    parents = [cadence for name, cadence in timed.items() if name != job.name]
    if not after.period_s and any(one.key() != parents[0].key() for one in parents[1:]):
        names = ", ".join(name for name in timed if name != job.name)
        return f'the schedules of {names} differ: say the period in which their runs belong together (period = "1d")'
    first = next(iter(timed.items()), None)
    for name, cadence in list(timed.items())[1:] if after.needs == "all" or job.schedule is not None else ():
        assert first is not None
        if not _meet(first[1], cadence, after.period_s, job.timezone):
            of = f" within a period of {after.period_s:g} s" if after.period_s else ""
            return f"{first[0]} and {name} never fire at the same time{of}: no run of this job would ever start"
    return ""


class Cadence(NamedTuple):
    """When runs of a job are: its schedule (None: by hand), floored to a period (0.0: as it is)."""

    schedule: Schedule | None
    period_s: float
    timezone: str

    def key(self) -> object:
        """Equal for jobs that fire at the same times; without the jitter, which is not in a run's id."""
        schedule = self.schedule
        told = None if schedule is None else (schedule.kind, schedule.cron, schedule.every_s, schedule.at)
        zone = schedule.timezone if schedule is not None and schedule.kind == "cron" else ""
        return told, zone, self.period_s

    def fires(self, after: float) -> Iterator[float]:
        """The times in the ids of its runs, from then on."""
        at = next_fire(self.schedule, after) if self.schedule is not None else None
        while at is not None and self.schedule is not None:
            nominal = at - self.schedule.offset_s
            yield floored(nominal, self.period_s, self.timezone) if self.period_s else nominal
            at = next_fire(self.schedule, at)


def _of(name: str, jobs: Mapping[str, Job]) -> Cadence | None:
    """The cadence of a job: its own, or that of its first parent; None if a job is missing."""
    period_s, zone = 0.0, "UTC"
    for _ in range(len(jobs) + 1):
        job = jobs.get(name)
        if job is None:
            return None
        planned = job.schedule or job.held
        if planned is not None or job.after is None:
            return Cadence(planned, period_s, zone)
        period_s, zone = max(((period_s, zone), (job.after.period_s, job.timezone)))
        name = job.after.jobs[0]
    return None  # a circle


def _meet(one: Cadence, other: Cadence, period_s: float, timezone: str) -> bool:
    """True if some of their first fire times belong to the same period."""
    begin = max([FROM, *(cadence.schedule.start for cadence in (one, other) if cadence.schedule is not None)]) - 1.0
    return any(
        _fires_in(second, at, period_s, timezone)
        for first, second in ((one, other), (other, one))
        for at, _ in zip(first.fires(begin), range(FIRES_MAX), strict=False)
    )


def _fires_in(cadence: Cadence, at: float, period_s: float, timezone: str) -> bool:
    """True if that job has a run in the period of an instant."""
    assert cadence.schedule is not None
    low, high = at, at
    if period_s:
        low = floored(at, period_s, timezone)
        high = period_end(low, period_s, timezone) - 1.0
    if cadence.period_s:
        high = max(high, period_end(low, cadence.period_s, cadence.timezone) - 1.0)
    due = next_fire(cadence.schedule, low + cadence.schedule.offset_s - 0.001)
    return due is not None and due - cadence.schedule.offset_s <= high


# A warning about misfire beside overlap.
ALL_FORBIDDEN = (
    'misfire = "all" with overlap = "forbid": of several missed fire times one runs and the others are rejected; write'
    ' overlap = "queue" to run them one after the other'
)
ALL_REPLACED = (
    'misfire = "all" with overlap = "replace": missed fire times start at once, and the newest revokes the others;'
    ' write overlap = "queue" to run them one after the other, or misfire = "once" to run the newest alone'
)

# Of each field of a cron line: how many there are of what in what, and the unit of "every".
CRON_FIELDS = (
    (60, "minutes", "an hour", "m"),
    (24, "hours", "a day", "h"),
    (31, "days", "a month", "d"),
    (12, "months", "a year", ""),
    (7, "days", "a week", "d"),
)


def all_at_once(said: Mapping[str, Any]) -> str:
    """A warning: what misfire = "all" catches up stands in its own way; "" if it does not."""
    if said.get("misfire") != "all":
        return ""
    return {"forbid": ALL_FORBIDDEN, "replace": ALL_REPLACED}.get(said.get("overlap", "forbid"), "")


def one_at_a_time(said: Mapping[str, Any], concurrency: Concurrency) -> str:
    """A warning: overlap lets fewer runs be there than concurrency; "" if it does not."""
    if said.get("overlap", "forbid") == "allow" or concurrency.max <= (0 if concurrency.per else 1):
        return ""
    what = "per" if concurrency.per else "concurrency above 1"
    return f'{what} has no effect without overlap = "allow": one run of the job is in the way of another'


def too_long_a_step(schedule: Schedule | None) -> str:
    """A warning: a step of a cron line that is longer than what it counts in; "" without one."""
    fields = schedule.cron.split(" ") if schedule is not None and schedule.cron else []
    for field, (most, what, whole, unit) in zip(fields, CRON_FIELDS, strict=False):
        for part in field.split(","):
            step = part.partition("/")[2]
            if step.isdecimal() and int(step) > most:
                instead = f'; "every {int(step)}{unit}" goes on counting' if unit else ""
                return (
                    f'"{part}" is longer than the {most} {what} of {whole}: it begins again in each one, and fires only'
                    f" in the first of its {what}{instead}"
                )
    return ""


def too_late_for_all(said: Mapping[str, Any], schedule: Schedule | None) -> str:
    """A warning: what misfire = "all" catches up is too late to start; "" if some of it is not."""
    if said.get("misfire") != "all" or schedule is None or said.get("after"):
        return ""
    within_s: float = said.get("start_within", words.Policy().start_within_s)
    apart_s = min(_apart(schedule, FIRES_MAX), default=0.0)
    if within_s > apart_s:
        return ""
    return (
        f'misfire = "all" catches up one fire time at the most: they are {apart_s:g} s apart, and start_within gives up'
        f' those that are more than {within_s:g} s late; write a longer start_within, or misfire = "once"'
    )


def late_between(said: Mapping[str, Any], schedule: Schedule | None) -> str:
    """A warning: a job whose runs all succeed is late all the same, by its expect_within; "" if it is not.

    One with triggers may succeed between its fire times.
    """
    if "expect_within" not in said or schedule is None or said.get("trigger"):
        return ""
    within_s: float = said["expect_within"]
    # Many jobs have the same schedule, but each a jitter of its own.
    apart_s = _longest_apart(msgspec.structs.replace(schedule, offset_s=0.0))
    if within_s >= apart_s:
        return ""
    return (
        f"the fire times are up to {apart_s:g} s apart: from {within_s:g} s after a success until the next one the job"
        " is late, although nothing failed; write a longer expect_within"
    )


@lru_cache(maxsize=1024)
def _longest_apart(schedule: Schedule) -> float:
    return max(_apart(schedule, EXPECTED_MAX), default=0.0)


def _apart(schedule: Schedule, most: int) -> list[float]:
    """The times (seconds) between each of its first fire times and the next one."""
    fires = [next_fire(schedule, max(FROM, schedule.start) - 1)]
    while fires[-1] is not None and len(fires) < most:
        fires.append(next_fire(schedule, fires[-1]))
    return [two - one for one, two in pairwise(fires) if one is not None and two is not None]


def odd_schemes(launch: object) -> Iterator[tuple[str, str]]:
    """Warnings about places in a file system that nobody knows: Spark would say so only when the job runs."""
    if not isinstance(launch, SparkSubmit):
        return
    for key in ("application", "jars", "py_files", "files"):
        said = getattr(launch, key)
        for place in (said,) if isinstance(said, str) else said:
            scheme = place.partition(":")[0]
            if "/" in scheme or scheme == place or "{" in scheme or SCHEMES.fullmatch(scheme):
                continue
            if f"spark.hadoop.fs.{scheme}.impl" not in launch.conf:
                told = f"check the spelling, unless core-site.xml or the properties name its class (fs.{scheme}.impl)"
                yield f"spark.{key}", f"no file system that Spark brings is called {scheme}: {told}"
                break
