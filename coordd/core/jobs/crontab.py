"""Crontabs: their lines become entries for job files; lines that cannot be carried over are listed. Pure.

The dialect is that of Debian's cron and of cronie (crontab(5)): environment lines apply to the lines below them, ``%``
ends the command and begins its standard input, ``CRON_TZ`` is the zone, ``RANDOM_DELAY`` (minutes) is a jitter.
No line is dropped silently: every line is empty, a comment, an environment line, an entry, or listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from coordd.core.jobs.schedule import ALIASES, parse_cron, zone

# The environment that cron adds to the crontab's own variables. HOME is the user's, and known only on the machine.
SHELL = "/bin/sh"
PATH = "/usr/bin:/bin"

# crontab(5) of Debian: a command has at most 998 characters. Twice that is a mistake or another kind of file.
LINE_LENGTH_MAX = 4000
LINES_MAX = 10_000

# Shells with here-documents, which pass a command's standard input.
SHELLS = ("sh", "bash", "dash", "ash", "ksh", "mksh", "zsh")

_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|\"[^\"]+\"|'[^']+')\s*=\s*(.*)", re.DOTALL)
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}\$?")
_FIELD = re.compile(r"[0-9*?LW#/,~H()-]+|(?:[A-Za-z]{3}[,-]?)+")
_SIXTH = re.compile(r"[0-9*?LW#/,-]*[*?][0-9*?LW#/,-]*|\d{4}")
_TEXT = "COORDD_STANDARD_INPUT"


class Entry(NamedTuple):
    """One line that starts a command at certain times."""

    line: int
    schedule: str
    timezone: str  # from CRON_TZ; "": the machine's
    user: str  # from the user column; "" without one
    script: str  # for the shell, including standard input
    shell: str
    env: dict[str, str]
    jitter_s: float
    text: str  # the unchanged line


class Named(NamedTuple):
    """A line that is not carried over, or only partly, and why."""

    line: int
    text: str
    reason: str


class Crontab(NamedTuple):
    """The contents of a crontab."""

    entries: list[Entry]
    named: list[Named]


def read_crontab(text: str, *, system: bool) -> Crontab:
    """Parse every line of a crontab. ``system``: its lines have a user column (/etc/crontab, /etc/cron.d)."""
    entries: list[Entry] = []
    named: list[Named] = []
    env: dict[str, str] = {}
    lines = text.split("\n")
    if len(lines) > LINES_MAX:
        named.append(Named(LINES_MAX + 1, "", f"expected at most {LINES_MAX} lines, found {len(lines)}: not read"))
    for number, raw in enumerate(lines[:LINES_MAX], 1):
        line = raw.strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        try:
            variable = None if len(line) > LINE_LENGTH_MAX else _VARIABLE.fullmatch(line)
            if variable is not None:
                _take_variable(env, variable)
            else:
                entries.append(_entry(line, number, env, system=system))
        except _NotTakenError as exc:
            named.append(Named(number, line[:LINE_LENGTH_MAX], str(exc)))
    return Crontab(entries, named)


class _NotTakenError(Exception):
    """The line is not carried over; the text says why."""


def _take_variable(env: dict[str, str], variable: re.Match[str]) -> None:
    name, value = _unquoted(variable.group(1)), _unquoted(variable.group(2).strip())
    if "\0" in value:
        raise _NotTakenError("expected a value without NUL characters")
    if name == "CRON_TZ":
        try:
            zone(value)
        except ValueError as exc:
            env.pop(name, None)
            raise _NotTakenError(f"CRON_TZ: {exc}; the lines below it get the machine's zone") from exc
    if name == "RANDOM_DELAY" and not re.fullmatch(r"\d{1,5}", value):
        raise _NotTakenError(f'RANDOM_DELAY: expected whole minutes, found "{value:.40}"')
    env[name] = value
    if name == "MAILTO" and value:
        raise _NotTakenError("coordd sends no mail: look with coordctl run logs, or at the log")


def _unquoted(text: str) -> str:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return text


def _entry(line: str, number: int, env: dict[str, str], *, system: bool) -> Entry:
    if len(line) > LINE_LENGTH_MAX:
        raise _NotTakenError(f"expected a line of at most {LINE_LENGTH_MAX} characters, found {len(line)}")
    if any(ord(character) < 32 and character != "\t" for character in line) or "\x7f" in line:
        raise _NotTakenError("expected text, found control characters")
    if line.startswith("-"):
        raise _NotTakenError("a line that begins with - is of another dialect (SUSE: no log); remove the -")
    schedule, rest = _schedule(line)
    user = ""
    if system:
        user, _, rest = _cut(rest, 1)
        if not _USER.fullmatch(user):
            raise _NotTakenError(f'expected the name of a user before the command, found "{user:.40}"')
    elif _SIXTH.fullmatch(rest.split()[0] if rest.split() else ""):
        raise _NotTakenError(f'"{rest.split()[0]:.20}" is a sixth time field: a dialect with seconds or years')
    if not rest.strip():
        raise _NotTakenError("expected a command, found the end of the line")
    shell = env.get("SHELL", SHELL)
    command, given = _percent(rest)
    if given is not None and shell.rpartition("/")[2] not in SHELLS:
        raise _NotTakenError(f"the command reads the text after %, and {shell:.40} has no known here-document")
    script = command if given is None else f"{{ {command}\n}} <<'{_TEXT}'\n{given}\n{_TEXT}"
    told = {key: value for key, value in env.items() if key not in ("SHELL", "MAILTO", "CRON_TZ", "RANDOM_DELAY")}
    delay_s = 60.0 * int(env.get("RANDOM_DELAY", "0"))
    return Entry(number, schedule, env.get("CRON_TZ", ""), user, script, shell, told, delay_s, line)


def _schedule(line: str) -> tuple[str, str]:
    """The schedule of a line, as in a job file, and the rest of the line."""
    if line.startswith("@"):
        word, _, rest = _cut(line, 1)
        if word.lower() == "@reboot":
            raise _NotTakenError("@reboot is a time of one machine, not of a cluster: leave it to cron or systemd")
        if word.lower() not in ALIASES:
            raise _NotTakenError(f'expected one of {", ".join(sorted(ALIASES))}; found "{word:.40}"')
        return word.lower(), rest
    fields, found, rest = _cut(line, 5)
    if found < 5:
        raise _NotTakenError(f"expected five time fields and a command, found {found} of them")
    odd = next((field for field in fields.split() if not _FIELD.fullmatch(field)), None)
    if odd is not None:
        raise _NotTakenError(f'expected a time field, found "{odd:.40}"')
    if "~" in fields or "H" in fields.replace("THU", "").replace("thu", ""):
        raise _NotTakenError("~ and H stand for a time that differs from machine to machine; write it out")
    try:
        return parse_cron(fields), rest
    except ValueError as exc:
        raise _NotTakenError(str(exc)) from exc


def _cut(line: str, count: int) -> tuple[str, int, str]:
    """The first words of a line, separated by one space; their number; and the rest unchanged."""
    words = re.split(r"[ \t]+", line, maxsplit=count)
    return " ".join(words[:count]), min(count, len(words)), words[count] if len(words) > count else ""


def _percent(text: str) -> tuple[str, str | None]:
    """The command and its standard input: an unescaped % ends the command; later ones are line ends."""
    parts = re.split(r"(?<!\\)%", text)
    command, *given = [part.replace("\\%", "%") for part in parts]
    return command, "\n".join(given) if given else None


def job_name(entry: Entry, taken: set[str], suffix: str) -> str:
    """A name from the command's path and a hash, different from all names in ``taken``."""
    word = next((word for word in _words(entry.script) if word), "command")
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", word.rstrip("/").rpartition("/")[2]).strip("-.")[:40] or "command"
    name, number = f"{stem}-{suffix}", 1
    while name in taken:
        number += 1
        name = f"{stem}-{suffix}-{number}"
    return name


# Words before the program that a line is about.
_BEFORE = ("exec", "nice", "ionice", "nohup", "time", "sudo", "env", "setsid", "timeout", "flock", "chronic", "{", "(")


def _words(script: str) -> Iterator[str]:
    """The words of a script that may name its program, the best first; without words that only precede it."""
    parts = re.split(r"&&|;|\|\|", script.split("\n", 1)[0])
    for part in parts:
        for word in part.split():
            bare = word.strip("\"'(){}[]")
            if bare in ("cd", "test", "[", "[[", "", "mkdir", "export", "umask", ".", "source", "command"):
                break  # this part only prepares
            if bare in _BEFORE or "=" in bare or bare.startswith(("-", "$", "<", ">")) or bare.isdigit():
                continue
            yield bare
            break
