"""The lock as data: which package of requirements.lock is needed to run, with its version and hashes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]

# The lock says so of what pyproject.toml asks for, whether to run or to test.
ASKED = "coordd (pyproject.toml)"

# Comes with the package: the faster loop under the RabbitMQ and Redis buses.
EXTRAS = ("uvloop",)

_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME = re.compile(r"^[A-Za-z0-9._-]+")


class Locked(NamedTuple):
    """One package of the lock. ``via``: the packages that need it."""

    name: str
    version: str
    hashes: tuple[str, ...]
    via: tuple[str, ...]


class LockError(Exception):
    """The lock does not hold what pyproject.toml asks for. The message is one line."""


def read(text: str) -> dict[str, Locked]:
    """The packages of a lock that pip-compile has written, by name."""
    found: dict[str, Locked] = {}
    for block in re.split(r"(?m)^(?=[A-Za-z0-9])", text):
        entry = _ENTRY.match(block)
        if entry is None:
            continue
        _, _, comment = block.partition("# via")
        via = [line.strip(" #") for line in comment.splitlines()]
        name = _normal(entry[1])
        found[name] = Locked(name, entry[2], tuple(_HASH.findall(block)), tuple([line for line in via if line]))
    return found


def asked(project: dict[str, object], extras: Iterable[str]) -> set[str]:
    """The packages that pyproject.toml names, with those of some extras."""
    table = project["project"]
    assert isinstance(table, dict)
    named = list(table["dependencies"])
    for extra in extras:
        named += table["optional-dependencies"][extra]
    return {_normal(_NAME.match(requirement)[0]) for requirement in named}  # type: ignore[index]  # each has a name


def needed(extras: Iterable[str] = EXTRAS, root: Path = ROOT) -> list[Locked]:
    """The packages that coordd needs to run, sorted by name. Raises LockError if the lock lacks one."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    locked = read((root / "requirements.lock").read_text())
    names = asked(project, extras)
    absent = sorted(names - set(locked))
    if absent:
        raise LockError(f"requirements.lock: expected {', '.join(absent)}, which pyproject.toml names; make it again")
    while more := {name for name, one in locked.items() if {_normal(via) for via in one.via} & names} - names:
        names |= more
    return [locked[name] for name in sorted(names)]


def _normal(name: str) -> str:
    return name if name == ASKED else re.sub(r"[-_.]+", "-", name).lower()
