"""The reader of `expand` and `chunk`, and what goes with them in one file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from typing import Any

from coordd.config import values
from coordd.config.values import converted, found
from coordd.core.groups.expand import MEMBERS_MAX, OF_THE_RUN, Expand
from coordd.core.groups.members import texts_of
from coordd.core.jobs.arguments import BUILT_IN, NAME, VALUE_BYTES_MAX, check_value, nearest
from coordd.errors import RefusedError

FORMS = '{ region = ["eu", "us"] } or { day = { from = "{date}", days = 7 } }'

# A group may have more values than members, in chunks.
VALUES_MAX = 100_000
DAYS_MAX = 36_525

CHUNK = values.whole(1, VALUES_MAX)


def read(value: object) -> Expand:
    """What `expand` says, without `chunk`. Raises ValueError with a sentence."""
    if not isinstance(value, dict) or len(value) != 1:
        what = f"{len(value)} parameters" if isinstance(value, dict) else found(value)
        raise ValueError(f"expected one parameter with its values, {FORMS}; found {what}")
    [(key, given)] = value.items()
    if not NAME.fullmatch(key):
        raise ValueError(f'expected a name of letters, digits and _ (at most 64), found "{key:.60}"')
    if key in BUILT_IN:
        raise ValueError(f'"{key}" is a name that coordd sets itself; choose another')
    return _days(key, given) if isinstance(given, dict) else Expand(key, _values(key, given))


def _values(key: str, given: object) -> tuple[str, ...]:
    if not isinstance(given, list) or not given:
        raise ValueError(f"{key}: expected a list of values, or a table with from and days; found {_what(given)}")
    if len(given) > VALUES_MAX:
        raise ValueError(f"{key}: expected at most {VALUES_MAX} values, found {len(given)}")
    read: list[str | int] = converted(given, list[str | int], f"texts or whole numbers for {key}")
    texts = [str(one) for one in read]
    for text in texts:
        try:
            check_value(key, text)
        except RefusedError as exc:
            raise ValueError(f"{key}: {exc}") from exc
    seen: set[str] = set()
    for one in texts:
        if one in seen:
            raise ValueError(f'{key}: expected each value once, found "{one:.60}" twice')
        seen.add(one)
    return tuple(texts)


def _what(given: object) -> str:
    return "an empty list" if given == [] else found(given)


def _days(key: str, given: Mapping[str, object]) -> Expand:
    for name in given:
        if name not in ("from", "days"):
            raise ValueError(f'{key}: unknown key "{name:.60}"; {nearest(name, ("from", "days"))}')
    days: int = converted(given.get("days"), int, f"a whole number for {key}.days")
    if not 1 <= days <= DAYS_MAX:
        raise ValueError(f"{key}.days: expected a whole number from 1 to {DAYS_MAX}, found {days}")
    begin = given.get("from", OF_THE_RUN)
    if isinstance(begin, date):
        begin = begin.isoformat()[:10]
    if begin == OF_THE_RUN:
        return Expand(key, begin=OF_THE_RUN, days=days)
    try:
        first = date.fromisoformat(str(begin))
        first + timedelta(days=days)
    except (ValueError, OverflowError) as exc:
        wanted = f'{key}.from: expected "{OF_THE_RUN}" (the day of the run), or a date such as "2026-01-31"'
        raise ValueError(f"{wanted}; found {found(begin)}") from exc
    return Expand(key, begin=first.isoformat(), days=days)


def settle(table: Mapping[str, object], said: dict[str, Any], wrong: Callable[[str, str], None]) -> None:
    """Put into ``said`` what follows from `expand` and `chunk`: together they are one value, the parameter is declared,
    and runs are there at the same time. ``wrong`` is told what does not go with them.
    """
    expand = _beside(said, wrong)
    if expand is None:
        return
    said["expand"] = expand
    said.setdefault("overlap", "allow")
    if ("params" in table) == ("params" in said):  # otherwise they are wrong anyway
        first = expand.values[0] if expand.values else ""
        said["params"] = {**said.get("params", {}), expand.key: first}


def _beside(said: Mapping[str, Any], wrong: Callable[[str, str], None]) -> Expand | None:
    expand, chunk = said.get("expand"), said.get("chunk", 0)
    if not isinstance(expand, Expand):
        if "chunk" in said:
            wrong("chunk", f"chunk says how many values of expand a run has, and there is no expand: expected {FORMS}")
        return None
    whole = Expand(expand.key, expand.values, expand.begin, expand.days, chunk)
    if whole.count > MEMBERS_MAX:
        size = -(-(len(expand.values) or expand.days) // MEMBERS_MAX)
        wrong(
            "expand",
            f"expected at most {MEMBERS_MAX} runs, found {whole.count}; chunk = {size} gives each {size} values",
        )
    else:
        for number, text in enumerate(texts_of(whole, 0.0, "UTC")):
            if len(text.encode()) > VALUE_BYTES_MAX:
                wrong(
                    "chunk",
                    f"chunk {number} is {len(text.encode())} bytes long, at most {VALUE_BYTES_MAX} are accepted",
                )
                break
    params = said.get("params")
    if isinstance(params, dict) and expand.key in params:
        wrong("expand", f'"{expand.key}" is in params too: expand declares it, take it out of params')
    if said.get("overlap", "allow") != "allow":
        wrong(
            "overlap", f'expected "allow", found "{said["overlap"]}": the runs of one group are there at the same time'
        )
    if said.get("dedupe"):
        wrong("dedupe", "dedupe beside expand is not available in this version: give it to a job, and run after it")
    if said.get("trigger"):
        wrong(
            "expand",
            "expand beside [[trigger]] is not available in this version: give the trigger to a job, and run after it",
        )
    return whole
