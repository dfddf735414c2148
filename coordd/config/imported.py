"""Job files made from a crontab: their text, and whether a person has edited an existing one.

The first line of such a file holds a checksum of the rest, without the `enabled` line.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from coordd.core.jobs.crontab import PATH, Crontab, Entry, Named, job_name
from coordd.core.visible import visible

HEAD = "# coordd import-crontab"
_HEAD = re.compile(rf"{HEAD} ([0-9a-f]{{16}}) of (.*)\n")
_ENABLED = re.compile(r"(?m)^enabled = (true|false)\b.*\n")
HELD = "enabled = false                 # held: true releases it, and so does coordd import-crontab --release\n"
RELEASED = "enabled = true\n"


class Account(NamedTuple):
    """A user of the machine, as cron needs it; ``home`` is "" when unknown."""

    name: str
    home: str


class Place(NamedTuple):
    """Where a crontab comes from, and values that it does not contain."""

    source: str  # for people: a path, or whose crontab
    timezone: str  # the machine's
    account: Account  # who runs its lines where no column says so
    daemon: str  # the user that runs the jobs here


class File(NamedTuple):
    """A job file made from a line."""

    name: str
    entry: Entry
    text: str  # held
    run_as: str  # "": the daemon's user


class Plan(NamedTuple):
    """What to do with one file: written (new), updated, unchanged, or kept (and why)."""

    file: File
    state: str
    text: str
    why: str = ""


class _Times(NamedTuple):
    """When a job fires."""

    schedule: str
    timezone: str


def job_files(crontab: Crontab, place: Place, there: Mapping[str, str]) -> tuple[list[File], list[Named]]:
    """A job file for each entry, and the lines that cannot become one. ``there``: the job files by name."""
    named = list(crontab.named)
    groups: dict[str, list[tuple[Entry, str]]] = {}  # the lines of one command and user share a name, but for its end
    for entry in crontab.entries:
        user = entry.user or place.account.name
        if user == "root" != place.daemon:
            why = (
                f"it runs as root; jobs run as {place.daemon}, the daemon's user, or as another one by run_as, but"
                " never root: leave it to cron, or name a user there that may do what it needs"
            )
            named.append(Named(entry.line, entry.text, why))
            continue
        suffix = hashlib.sha256(f"{user}\0{entry.shell}\0{entry.script}".encode()).hexdigest()[:6]
        groups.setdefault(job_name(entry, set(), suffix), []).append((entry, user))
    files = [
        File(name, entry, _text(entry, place, user), user if user != place.daemon else "")
        for stem, group in groups.items()
        for (entry, user), name in zip(group, _names(stem, [one for one, _ in group], place, there), strict=True)
    ]
    return sorted(files, key=lambda file: file.entry.line), sorted(named)


def _names(stem: str, entries: Sequence[Entry], place: Place, there: Mapping[str, str]) -> list[str]:
    """The names of the lines of one command: each keeps the file that has its times, wherever the line stands now.

    A file without such a line is taken by another line if it is held; one that is released has lost its line to it.
    """
    suffix = stem.rpartition("-")[2]
    numbers = {name: name[len(stem) + 1 :] for name in there if re.fullmatch(rf"{re.escape(stem)}(-\d{{1,5}})?", name)}
    free = sorted(numbers, key=lambda name: int(numbers[name] or 1))
    wanted = [_times_of(entry, place) for entry in entries]
    found: dict[int, str] = {}
    for length in (2, 1):  # with the same zone first
        for number, times in enumerate(wanted):
            name = next((name for name in free if (_times(there[name]) or ())[:length] == times[:length]), "")
            if number not in found and name:
                found[number] = name
                free.remove(name)
    if len(entries) > 1 or len(numbers) > 1:
        free = [name for name in free if not _is_released(there[name])]
    for number, entry in enumerate(entries):
        if number not in found:
            found[number] = free.pop(0) if free else job_name(entry, {*numbers, *found.values()}, suffix)
    return [found[number] for number in range(len(entries))]


def _times_of(entry: Entry, place: Place) -> _Times:
    return _Times(entry.schedule, entry.timezone or place.timezone)


def _times(text: str) -> _Times | None:
    """When the job of this file fires; None if the text does not say it as an import does."""
    try:
        keys = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    times = _Times(keys.get("schedule", ""), keys.get("timezone", ""))
    return times if all(isinstance(one, str) for one in times) else None


def _is_released(text: str) -> bool:
    """Whether this is the unedited file of an import, and somebody has released it."""
    head = _HEAD.match(text)
    body = text[head.end() :] if head is not None else ""
    if head is None or _checksum(body) != head.group(1):
        return False
    found = _ENABLED.search(body)
    return found is None or found.group(1) == "true"


def _text(entry: Entry, place: Place, user: str) -> str:
    # A job of another user gets HOME on the node where it runs: the homes here may not be those there.
    home = place.account.home if user == place.daemon == place.account.name else ""
    cwd = entry.env.get("HOME", home)
    env = {"SHELL": entry.shell, "PATH": PATH, **({"HOME": home} if home else {}), **entry.env, "LOGNAME": user}
    lines = [
        f"# {visible(place.source)}, line {entry.line}:",
        f"#   {visible(entry.text)}",
        HELD.rstrip("\n"),
        f"schedule = {_quoted(entry.schedule)}",
        f"timezone = {_quoted(_times_of(entry, place).timezone)}",
        *([f'jitter = "{entry.jitter_s / 60:.0f}m"'] if entry.jitter_s else []),
        'misfire = "skip"                # as cron: missed fire times are dropped',
        'overlap = "allow"               # as cron: it starts even if the last run is active',
        *([f"run_as = {_quoted(user)}"] if user != place.daemon else []),
        "",
        "[command]",
        f"argv = [{_quoted(entry.shell)}, {_quoted('-c')}, {_quoted(_braces(entry.script))}]",
        *([f"cwd = {_quoted(cwd)}"] if cwd else []),
        "",
        "[command.env]",
        *[f"{_key(name)} = {_quoted(_braces(value))}" for name, value in sorted(env.items())],
    ]
    return sealed("\n".join(lines) + "\n", place.source)


def sealed(body: str, source: str) -> str:
    """The text with its first line, which later shows whether it was edited."""
    return f"{HEAD} {_checksum(body)} of {visible(source)}\n{body}"


def _checksum(body: str) -> str:
    return hashlib.sha256(_ENABLED.sub("", body).encode()).hexdigest()[:16]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _braces(text: str) -> str:
    """Escapes braces: in a job file's arguments they are placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def planned(file: File, there: str | None, *, release: bool) -> Plan:
    """Decides what to do with one file. ``there``: the file's present content, None if there is no such file."""
    if there is None:
        return Plan(file, "written", _released(file.text) if release else file.text)
    head = _HEAD.match(there)
    if head is None:
        return Plan(file, "kept", there, "a job file of this name exists, and no import wrote it")
    body = there[head.end() :]
    if _checksum(body) != head.group(1):
        return Plan(file, "kept", there, "it was edited after its import; the crontab's line was not applied")
    was_released = _is_released(there)
    times = _times(there)
    if was_released and times is not None and times != _times(file.text):
        why = (
            f"it is released with the schedule {times.schedule} ({times.timezone}), and an import does not change that;"
            " if it is still this line's job, set its schedule in the job file, and take the line out of the crontab;"
            " if the line is a job of its own, copy the job file to another name, and set the schedule there"
        )
        return Plan(file, "kept", there, why)
    text = _released(file.text) if release or was_released else file.text
    return Plan(file, "unchanged" if text == there else "updated", text)


def _released(text: str) -> str:
    return _ENABLED.sub(RELEASED, text, count=1)


def left_behind(source: str, names: Iterable[str], there: Iterable[tuple[str, str]]) -> list[str]:
    """The jobs of an earlier import of this source whose lines are gone."""
    wanted = set(names)
    heads = [(name, _HEAD.match(text)) for name, text in there]
    return sorted(name for name, head in heads if head and head.group(2) == visible(source) and name not in wanted)
