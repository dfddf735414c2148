"""The granted attempts, read from the directories that daemons make for their runners."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from system.lab.processes import boottime, exists

from chaos.cluster import Arena

START_S = 1.5  # seconds from a directory to its runner's first fact, on a busy machine


class Grant(NamedTuple):
    """One attempt on one node: granted, and its runner is being started or waits at the gate."""

    run: str
    attempt: int
    token: int
    node: str
    directory: str
    seen_at: float  # CLOCK_BOOTTIME

    @property
    def key(self) -> tuple[str, int, int]:
        return self.run, self.attempt, self.token


class Grants:
    """Reads every node's runtime directory. ``look`` is cheap enough for fifty calls a second."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.seen: dict[str, Grant] = {}  # by directory
        self._there: set[str] = set()
        self._before_start: dict[str, Grant] = {}

    def look(self) -> None:
        """Add new attempts; forget those that have started or are gone."""
        there: set[str] = set()
        for node in self.arena.nodes:
            runs = f"{node.runtime_dir}/runs"
            with contextlib.suppress(FileNotFoundError):
                there.update([f"{runs}/{name}" for name in os.listdir(runs)])
                for directory in there - self.seen.keys():
                    if directory.startswith(f"{runs}/") and (grant := _read(node.name, directory)):
                        self.seen[directory] = self._before_start[directory] = grant
        self._there = there
        for directory in list(self._before_start):
            if directory not in there or not _waits(self._before_start[directory]):
                del self._before_start[directory]

    def before_start(self) -> list[Grant]:
        """The attempts that were granted and not yet started at the last ``look``. The newest attempt is the last."""
        return list(self._before_start.values())

    def alive(self, node: str) -> list[Grant]:
        """The attempts on a node that run or will run."""
        mine = [grant for directory in self._there if (grant := self.seen.get(directory)) and grant.node == node]
        return [grant for grant in mine if not {"ended", "refused"} & facts(grant.directory).keys()]


def facts(directory: str) -> dict[str, dict[str, Any]]:
    """The facts that a runner has written: word -> fact."""
    said = {}
    with contextlib.suppress(OSError):
        for line in Path(directory, "facts").read_text().splitlines():
            with contextlib.suppress(ValueError):
                fact = json.loads(line)
                said[fact["fact"]] = fact
    return said


def _waits(grant: Grant) -> bool:
    """True if its program may still be started: the runner is alive, or is being started."""
    said = facts(grant.directory)
    if {"started", "ended", "refused"} & said.keys():
        return False
    adopted = said.get("adopted")
    return exists(adopted["pid"]) if adopted else boottime() < grant.seen_at + START_S


def _read(node: str, directory: str) -> Grant | None:
    try:
        spec = json.loads(Path(directory, "spec.json").read_text())
    except (OSError, ValueError):
        return None  # the file is being written
    return Grant(spec["run"], spec["attempt"], spec["token"], node, directory, boottime())
