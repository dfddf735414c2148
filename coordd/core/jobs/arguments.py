"""The arguments of a run, and how they fill the {placeholders} of a job's definition.

An election, a trigger and a ledger row carry names and values, never a command line. Values are bounded text;
a value can never become a second argument, because every text is split before it is filled.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

import msgspec

from coordd.core.jobs.choosing import choosing_places, conf_chooses, env_chooses
from coordd.core.jobs.job import Command, SparkSubmit, iso
from coordd.core.jobs.schedule import zone
from coordd.core.ledger.sound import printable
from coordd.core.ledger.words import INSTANT_MAX
from coordd.errors import RefusedError

# Arguments travel as JSON in messages of at most 64 KiB, which contain other fields too. Every row of the ledger stores
# them.
VALUE_BYTES_MAX = 4 * 1024
VALUES_BYTES_MAX = 32 * 1024

# Half of Linux's limit for one argument (MAX_ARG_STRLEN).
FILLED_BYTES_MAX = 64 * 1024

# Names that every definition may use without a declaration.
BUILT_IN = ("fire_time", "date", "run", "job", "attempt", "token", "node")

# A definition with more wrong placeholders is another kind of text; a hint for each would take quadratic time.
WRONG_MAX = 20

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def control_character(text: str) -> str:
    """The first character that is not allowed in one line of text (C0, C1, DEL, lone surrogates), or ""."""
    found = _CONTROL.search(text)  # a look at a directory asks of 200,000 names
    return found.group() if found is not None else ""


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the most similar name, or all names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f'did you mean "{close[0]}"?'
    return f"known: {', '.join(names)}" if names else "none is known"


def placeholders(text: str) -> tuple[str, ...]:
    """The names of the placeholders, in order. Raises RefusedError when the braces do not match."""
    names = []
    for match in _PART.finditer(text):
        name = match.group(1)
        if name is not None:
            if not NAME.fullmatch(name):
                raise _refused(f'"{{{name:.60}}}" in "{text:.60}" names no argument', BRACES)
            names.append(name)
        elif match.group() in "{}":
            raise _refused(f'a single "{match.group()}" in "{text:.60}"', BRACES)
    return tuple(names)


BRACES = "a placeholder is {name}; write {{ and }} for braces"


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with each {name} replaced by its value, and {{ and }} by braces.

    Values are inserted unchanged: braces in them have no meaning. Raises RefusedError for a name without a value.
    """
    for name in placeholders(text):
        if name not in values:
            raise _refused(f'"{{{name}}}" in "{text:.60}" has no value', nearest(name, values))

    def part(match: re.Match[str]) -> str:
        name = match.group(1)
        return match.group()[0] if name is None else values[name]

    filled = _PART.sub(part, text)
    if len(filled.encode()) > FILLED_BYTES_MAX:
        raise _refused(f'"{text:.60}" is more than {FILLED_BYTES_MAX} bytes long when filled', "pass a path instead")
    return filled


def merge_params(declared: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The job's params, replaced by the given values. Raises RefusedError for invalid arguments."""
    for name, value in given.items():
        if name not in declared:
            raise _refused(f'the job declares no param "{name:.60}"', nearest(name, declared))
        check_value(name, value)
    merged = {**declared, **given}
    size = len(packed(merged))
    if size > VALUES_BYTES_MAX:
        raise _refused(
            f"the arguments are {size} bytes long; at most {VALUES_BYTES_MAX} are accepted", "pass a path instead"
        )
    return merged


def packed(values: Mapping[str, str]) -> str:
    """Arguments in the format of a row and a message: a JSON object of ASCII, names sorted."""
    return json.dumps(values, sort_keys=True)


def unpacked(text: str) -> dict[str, str]:
    """The arguments of a row or a message: the inverse of ``packed``.

    Raises RefusedError for invalid text: ledgers and peers are not trusted.
    """
    if len(text) > VALUES_BYTES_MAX:
        raise _refused(
            f"the arguments are {len(text)} characters long; at most {VALUES_BYTES_MAX} are accepted", NOT_PACKED
        )
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise _refused(f'the arguments are not JSON: {exc!s:.100}, in "{printable(text)[:60]}"', NOT_PACKED) from exc
    if not isinstance(values, dict):
        raise _refused(f'the arguments are not a JSON object: "{printable(text)[:60]}"', NOT_PACKED)
    for name, value in values.items():
        check_value(printable(name)[:64], value)
    return values


def fits(text: str) -> bool:
    """True if ``unpacked`` can read it."""
    try:
        unpacked(text)
    except RefusedError:
        return False
    return True


# The advice for arguments that no trigger of coordd has written.
NOT_PACKED = "the arguments in the ledger's row, or from a peer, are invalid: revoke the run, and trigger it again"


def check_value(name: str, value: object) -> None:
    """Refuse a value that is not one bounded line of text."""
    if not isinstance(value, str):
        raise _refused(f'the value of "{name}" must be text, not {type(value).__name__}', "put it in quotes")
    bad = control_character(value)
    if bad:
        raise _refused(f'the value of "{name}" holds the control character {bad!r}', "one line of text is accepted")
    size = len(value.encode())
    if size > VALUE_BYTES_MAX:
        raise _refused(
            f'the value of "{name}" is {size} bytes long; at most {VALUE_BYTES_MAX} are accepted', "pass a path instead"
        )


def built_in(
    *, run: str, job: str, fire_at: float, timezone: str, attempt: int, token: int, node: str
) -> dict[str, str]:
    """The values of BUILT_IN for one attempt; ``fire_time`` and ``date`` are in the job's zone.

    Raises RefusedError for a fire time that no calendar has.
    """
    if not 0.0 <= fire_at <= INSTANT_MAX:
        raise _refused(f"the fire time {fire_at!r} is on no calendar", NOT_PACKED)
    local = datetime.fromtimestamp(fire_at, zone(timezone))
    return {
        "fire_time": iso(fire_at) if timezone == "UTC" else local.isoformat(),
        "date": local.date().isoformat(),
        "run": run,
        "job": job,
        "attempt": str(attempt),
        "token": str(token),
        "node": node,
    }


def fill_launch(launch: SparkSubmit | Command, values: Mapping[str, str]) -> SparkSubmit | Command:
    """The definition with all placeholders filled. Raises RefusedError as ``fill`` does."""
    return _each_text(launch, lambda _key, text, _fixed: fill(text, values))


def check_launch(launch: SparkSubmit | Command, declared: Iterable[str]) -> list[tuple[str, str]]:
    """(key, problem) for every text whose placeholders cannot be filled, or must not be.

    At most WRONG_MAX of them. Texts that decide which code runs, as which user and where, accept only built-in names:
    people who may trigger a job choose its arguments, not its program.
    """
    known = {*BUILT_IN, *declared}
    wrong: list[tuple[str, str]] = []

    def check(key: str, text: str, fixed: str) -> str:
        if len(wrong) >= WRONG_MAX:
            return text
        try:
            names = placeholders(text)
        except RefusedError as exc:
            wrong.append((key, f"{exc}: {exc.hint}"))
            return text
        for name in dict.fromkeys(names):
            if len(wrong) >= WRONG_MAX:
                break
            if name not in known:
                wrong.append((key, f'"{{{name}}}" is not declared under params: {nearest(name, known)}'))
            elif fixed and name not in BUILT_IN:
                wrong.append((key, f'"{{{name}}}" may not stand here: {fixed}'))
        return text

    _each_text(launch, check)
    return wrong


# Reasons why a param must not be used in a text.
CHOOSES = "a param must not choose what is run"


def _each_text(launch: SparkSubmit | Command, change: Callable[[str, str, str], str]) -> SparkSubmit | Command:
    """A copy with ``change(key, text, fixed)`` applied to each text. ``fixed``: why the text decides which code runs,
    or "".
    """
    free = ("args", "conf", "env", "name")
    chooses = {"conf": conf_chooses, "env": env_chooses}
    changed: dict[str, object] = {}
    for field, value in msgspec.structs.asdict(launch).items():
        if value is None or isinstance(value, bool):
            continue
        fixed = "" if field in free else CHOOSES
        if isinstance(value, str):
            changed[field] = change(field, value, fixed)
        elif isinstance(value, dict):
            changed[field] = {
                name: change(f"{field}.{name}", text, CHOOSES if chooses[field](name) else "")
                for name, text in value.items()
            }
        elif field == "argv":
            places = choosing_places(value)
            why = {place: said if place else CHOOSES for place, said in places.items()}
            changed[field] = tuple([change(field, text, why.get(place, "")) for place, text in enumerate(value)])
        else:
            changed[field] = tuple([change(field, text, fixed) for text in value])
    return msgspec.structs.replace(launch, **changed)


def _refused(message: str, hint: str) -> RefusedError:
    return RefusedError(message, kind="bad_argument", hint=hint)
