"""The judge of a pool: how many programs lived at a time, and how long a free slot was not used. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from system.lab.cluster import Entry

from kills.judge import Cut

# A line of MONITOR: when it was executed, by whom, and its words.
EXECUTED = re.compile(r'\+([0-9.]+) \[[^]]*\] "(ZADD|ZREM)" "([^"]*)" .*"([^"]*)"\s*')


class Change(NamedTuple):
    """What stood in the ledger's Redis from then on. ``at``: Unix seconds. ``waiting``: the runs that wait."""

    at: float
    holders: frozenset[str]
    waiting: frozenset[str]


class Idle(NamedTuple):
    """One slot that was free while a run waited."""

    since: float
    seconds: float
    waiting: int  # how many runs waited at its end


def read(lines: Iterable[str], prefix: str, pool: str) -> list[Change]:
    """The changes that lines of MONITOR tell; each has one member of a sorted set. ``prefix``: of the ledger's keys."""
    slots, waits = f"{prefix}slots:pool/{pool}", (f"{prefix}list:pending:", f"{prefix}list:retry:")
    holders: set[str] = set()
    waiting: set[str] = set()
    changes: list[Change] = []
    for line in lines:
        found = EXECUTED.fullmatch(line)
        if found is None or found[3] not in (slots, *waits):
            continue
        (set.add if found[2] == "ZADD" else set.discard)(holders if found[3] == slots else waiting, found[4])
        changes.append(Change(float(found[1]), frozenset(holders), frozenset(waiting)))
    return changes


def unused(changes: Sequence[Change], size: int) -> list[Idle]:
    """Every stretch in which a slot was free while a run waited for it.

    A slot that is taken is the one that has been free for longest. Of F free slots only as many count as runs wait.
    """
    found: list[Idle] = []
    free: list[float] = []  # since when, oldest first
    held: frozenset[str] = frozenset()
    for change in changes:
        taken = len(change.holders - held)
        count = max(0, min(size - len(change.holders), len(change.waiting)))
        ended = [*free[:taken], *free[taken:][count:]]
        free = free[taken:][:count]
        free += [change.at] * (count - len(free))
        found += [Idle(since, change.at - since, len(change.waiting)) for since in ended if change.at > since]
        held = change.holders
    return found + [Idle(since, changes[-1].at - since, len(changes[-1].waiting)) for since in free]


def alive(entries: Iterable[Entry], cuts: Sequence[Cut]) -> list[tuple[float, int]]:
    """(time, number of programs alive from then on), by their own record.

    One without an end died with its node's power, or (its runner ended it) before the next attempt started.
    """
    lives: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.word in ("start", "end"):
            lives[entry.run].append(entry)
    changes: list[tuple[float, int]] = []
    for said in lives.values():
        said.sort(key=lambda entry: entry.at)
        for number, entry in enumerate(said):
            if entry.word != "start":
                continue
            changes.append((entry.at, 1))
            later = [one.at for one in said[number + 1 :] if one.attempt == entry.attempt and one.word == "end"]
            power = [cut.at for cut in cuts if cut.power and cut.node == entry.node and cut.at >= entry.at]
            others = [one.at for one in said[number + 1 :] if one.word == "start"]
            ended = later or power or others
            if ended:
                changes.append((min(ended), -1))
    count, found = 0, []
    for at, change in sorted(changes):
        count += change
        found.append((at, count))
    return found


def quantile(values: Sequence[float], part: float) -> float:
    """The value below which that part of them lies; 0.0 of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0
