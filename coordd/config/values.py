"""Readers of single values in TOML files.

Every reader raises ValueError with the expected and the found value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from coordd.core.jobs.arguments import control_character, nearest
from coordd.core.jobs.schedule import parse_duration
from coordd.core.names import NAME, NAME_RULE
from coordd.core.redaction import redact_text
from coordd.core.visible import visible
from coordd.plugins import GROUPS, STRATEGIES
from coordd.plugins.installed import misfit, package_of, points

# A file with more unknown keys is another kind of file; naming all of them would take quadratic time.
UNKNOWN_MAX = 20

# The size of a pool, a concurrency, a rate or a queue, and how many pools there may be.
SIZE_MAX = 1_000_000
POOLS_MAX = 1000

_SIZE = re.compile(r"([0-9]{1,9})([KMGT]?)", re.ASCII)

Reader = Callable[[Any], Any]


def printable(text: str) -> str:
    """The text with control characters escaped, safe for a terminal."""
    return visible(text)


def found(value: object) -> str:
    """A value as an error message shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'the text "{printable(redact_text(value))[:60]}"'
    if isinstance(value, (int, float)):
        return f"the number {value!r:.60}"
    if isinstance(value, dict):
        return "a table"
    return "a list" if isinstance(value, (list, tuple)) else "a date or time"


def converted(value: object, kind: Any, expected: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as exc:
        raise ValueError(f"expected {expected}, found {found(value)}") from exc


def text(value: object) -> str:
    """A text of one line."""
    read: str = converted(value, str, "a text")
    bad = control_character(read)
    if bad:
        raise ValueError(f"expected a text of one line, found the control character {bad!r} in it")
    return read


def number(value: object) -> float:
    read: float = converted(value, float, "a number")
    if not math.isfinite(read):
        raise ValueError(f"expected a number, found {read}")
    return read


def whole(least: int, most: int) -> Reader:
    """The reader of a whole number in these bounds."""

    def read(value: object) -> int:
        given: int = converted(value, int, "a whole number")
        if not least <= given <= most:
            raise ValueError(f"expected a whole number from {least} to {most}, found {given}")
        return given

    return read


def one_of(*words: str) -> Reader:
    """The reader of one of these words."""

    def read(value: object) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}; found {found(value)}")
        return str(value)

    return read


def parse_size(value: str) -> int:
    """Bytes, from a text such as "512M" or "10G"; "0" is 0. Raises ValueError with a sentence."""
    match = _SIZE.fullmatch(value)
    if not match:
        raise ValueError(f'expected a size such as "512M" or "10G" (K, M, G or T; "0": any), found {found(value)}')
    size: int = int(match[1]) << 10 * " KMGT".index(match[2] or " ")
    return size


def flag(value: object) -> bool:
    read: bool = converted(value, bool, "true or false")
    return read


def texts(value: object) -> tuple[str, ...]:
    items = converted(value, tuple[Any, ...], "a list of texts")
    only_texts(items)
    return tuple([text(item) for item in items])


def only_texts(items: Iterable[object]) -> None:
    """Raises ValueError for the first item that is not a text."""
    wrong = next(((place, item) for place, item in enumerate(items, 1) if not isinstance(item, str)), None)
    if wrong is not None:
        place, item = wrong
        raise ValueError(f"expected a list of texts, found {found(item)} as item {place}{_quotes(item)}")


def _quotes(value: object) -> str:
    """A hint for a value that was meant as a text."""
    return "" if isinstance(value, (dict, list, tuple)) else ": write it in quotes"


def program(value: object) -> tuple[str, ...]:
    """A program by its absolute path, and its arguments."""
    words = texts(value)
    if not words or not words[0].startswith("/"):
        raise ValueError("expected a program with its absolute path, and its arguments")
    return words


def like(pattern: re.Pattern[str], expected: str) -> Reader:
    """A reader of texts that match a pattern as a whole. ``expected``: what they are, for people."""

    def read(value: object) -> str:
        said = text(value)
        if not pattern.fullmatch(said):
            raise ValueError(f"expected {expected}, found {found(said)}")
        return said

    return read


def text_table(value: object) -> dict[str, str]:
    """A table of texts; numbers and booleans become texts, as written in TOML."""
    table: dict[str, Any] = converted(value, dict[str, Any], "a table of texts")
    wrong = next((key for key, item in table.items() if not isinstance(item, (str, bool, int, float))), None)
    if wrong is not None:
        place = f'{found(table[wrong])} at "{printable(wrong)[:60]}"'
        raise ValueError(f"expected a table of texts, found {place}{_quotes(table[wrong])}")
    return {
        text(key): item if isinstance(item, str) else str(item).lower() if isinstance(item, bool) else str(item)
        for key, item in table.items()
    }


def tags(value: object) -> tuple[str, ...]:
    read = texts(value)
    for tag in read:
        name(tag)
    return read


def name(value: object) -> str:
    read = text(value)
    if not NAME.fullmatch(read):
        raise ValueError(f"expected {NAME_RULE}, found {found(read)}")
    return read


def path(value: object) -> str:
    """An absolute path."""
    read = text(value)
    if not read.startswith("/"):
        raise ValueError(f"expected an absolute path, found {found(read)}")
    return read


def path_or_none(value: object) -> str:
    return path(value) if value != "" else ""


def read_pools(table: Mapping[str, Any], report: Callable[[str, str], None]) -> dict[str, int]:
    """The sizes of pools by name; problems are reported by key."""
    pools: dict[str, int] = {}
    for key, value in table.items():
        if len(pools) >= POOLS_MAX:
            report(printable(key[:60]), f"expected at most {POOLS_MAX} pools, found {len(table)}")
            break
        try:
            size: int = converted(value, int, "a whole number")
            if not 0 <= size <= SIZE_MAX:
                raise ValueError(f"expected a whole number from 0 to {SIZE_MAX}, found {size}")
            pools[name(key)] = size
        except ValueError as exc:
            report(printable(key[:60]), str(exc))
    return pools


def read_table(
    table: Mapping[str, Any], readers: Mapping[str, Reader], report: Callable[[str, str], None]
) -> dict[str, Any]:
    """The values that could be read; problems are reported by key."""
    values: dict[str, Any] = {}
    unknown = 0
    for key, value in table.items():
        if key not in readers:
            unknown += 1
            if unknown <= UNKNOWN_MAX:
                shown = printable(key[:60])
                report(shown, f'unknown key "{shown}"; {nearest(shown, readers)}')
            continue
        try:
            values[key] = readers[key](value)
        except ValueError as exc:
            report(key, str(exc))
    return values


def strategy(value: object, *built_in: str) -> str:
    """The name of a strategy: a built-in one, or one that an installed package brings."""
    return brought(value, STRATEGIES, "a strategy", *built_in)


def seconds(least: float, most: float) -> Reader:
    """The reader of a duration in these bounds (seconds)."""

    def read(value: Any) -> float:
        said: float = parse_duration(value)
        if not least <= said <= most:
            raise ValueError(f"expected {least:g} s to {most:g} s, found {said:g} s")
        return said

    return read


def brought(value: object, group: str, what: str, *built_in: str) -> str:
    """The name of something built in, or of an entry point in that group that an installed package brings."""
    said = text(value)
    if said in built_in:
        return said
    known = {point.name: point for point in points(group)}
    if said not in known:
        near = nearest(said, [*built_in, *known])
        raise ValueError(f"expected {what}, found {found(said)}, which no installed package brings; {near}")
    if wrong := misfit(known[said]):
        raise ValueError(f"expected {what} for this version of coordd, found {found(said)}: {wrong}")
    return said


def installed() -> tuple[str, ...]:
    """Every plug-in that a package brings, with the package and its version."""
    brought_in = sorted((one for group in GROUPS for one in points(group)), key=lambda one: one.name)
    return tuple([f"{one.name} ({package_of(one)})" for one in brought_in])
