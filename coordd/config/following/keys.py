"""The reader of `after`."""

from __future__ import annotations

from typing import Any

from coordd.config import values
from coordd.config.values import converted
from coordd.core.jobs.arguments import nearest
from coordd.core.jobs.job import After
from coordd.core.jobs.schedule import parse_duration

# More parents than this are a mistake: of that many runs of one job, see `expand`.
PARENTS_MAX = 100

FORMS = '["a", "b"], { all = ["a", "b"] } or { any = ["a", "b"] }'
KEYS = ("all", "any", "on", "period", "within")

# A period is at most this long (seconds): it is counted in days of the calendar, from 1970.
PERIOD_MAX_S = 366 * 86400.0


def read(value: object) -> After:
    """The parents of a job. Raises ValueError with a sentence."""
    if not isinstance(value, dict):
        return After(_names(value))
    for key in value:
        if key not in KEYS:
            raise ValueError(f'unknown key "{key:.60}"; {nearest(key, KEYS)}')
    needs = [key for key in ("all", "any") if key in value]
    if len(needs) != 1:
        raise ValueError(f"expected {FORMS}, found {'both all and any' if needs else 'neither all nor any'}")
    usual = After(())
    return After(
        jobs=_of(needs[0], _names, value[needs[0]]),
        needs="any" if needs == ["any"] else "all",
        on=_of("on", values.one_of("success", "failure", "done"), value["on"]) if "on" in value else usual.on,
        period_s=_of("period", _period, value["period"]) if "period" in value else usual.period_s,
        within_s=_of("within", _above_zero, value["within"]) if "within" in value else usual.within_s,
    )


def _of(key: str, reader: values.Reader, value: object) -> Any:
    try:
        return reader(value)
    except ValueError as exc:
        raise ValueError(f"{key}: {exc}") from exc


def _names(value: object) -> tuple[str, ...]:
    names: list[str] = converted(value, list[str], f"names of jobs: {FORMS}")
    if not 1 <= len(names) <= PARENTS_MAX:
        raise ValueError(f"expected 1 to {PARENTS_MAX} names of jobs, found {len(names)}")
    read = tuple([values.name(name) for name in names])
    twice = next((name for name in read if read.count(name) > 1), "")
    if twice:
        raise ValueError(f'expected each job once, found "{twice}" twice')
    return read


def _above_zero(value: object) -> float:
    seconds = parse_duration(value)  # type: ignore[arg-type]  # it says what it expected
    if seconds <= 0:
        raise ValueError(f"expected a duration above zero, found {value!r}")
    return seconds


def _period(value: object) -> float:
    seconds = _above_zero(value)
    if seconds != int(seconds) or seconds > PERIOD_MAX_S:
        raise ValueError(f'expected whole seconds, at most "366d"; found {value!r}')
    if seconds < 86400 and 86400 % seconds:
        raise ValueError(f"expected a period that divides a day, or whole days; found {value!r}")
    if seconds > 86400 and seconds % 86400:
        raise ValueError(f"expected whole days; found {value!r}")
    return seconds
