"""The judge of the kills. What counts is what the programs wrote themselves. The functions here are pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from system.lab.cluster import Entry

# Power is cut after a program's last line, while its runner still lives: its end is not in the ledger yet, and nobody
# can tell. Seconds from that line to the kill; a runner reports at once, and a busy machine takes its time.
UNREPORTED_S = 10.0

# A daemon that was killed comes back within this time (seconds). An end in between may be reported too late.
AWAY_S = 15.0

# The wall clock may have been slewed against CLOCK_BOOTTIME since the trial began, by up to this (seconds).
SLEW_S = 0.05


class Cut(NamedTuple):
    """One kill. ``at``: on CLOCK_BOOTTIME, when all was dead. ``power``: with runners and programs; else the daemon."""

    node: str
    pid: int
    at: float
    power: bool
    alive: frozenset[str] = frozenset()  # the words in the command lines of its runners, right before the power cut


class Record(NamedTuple):
    """All that is judged. ``expected``: run -> its time on CLOCK_BOOTTIME, each exactly once."""

    expected: Mapping[str, float]
    entries: Sequence[Entry]
    cuts: Sequence[Cut]
    states: Mapping[str, str]  # run -> its state in the ledger at the end
    decisions: Mapping[str, Sequence[str]] | None = None  # run -> what `job fires` says of it; None: not asked


class Verdict(NamedTuple):
    violations: list[str]
    counts: dict[str, int]


def judge(record: Record) -> Verdict:
    """Every expected run has one success, nothing else ran, and no two lived at a time."""
    violations: list[str] = []
    lives: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in record.entries:
        lives[entry.run].append(entry)
        if entry.word in ("overlap", "crossed", "overfull"):
            violations.append(f"{entry.run}/{entry.attempt} on {entry.node}: {entry.word}")
    violations += [f"{run} ran, and nobody wanted it" for run in lives.keys() - record.expected.keys()]
    counts: Counter[str] = Counter()
    for run, at in record.expected.items():
        said = sorted(lives[run], key=lambda entry: entry.at)
        starts = [entry for entry in said if entry.word == "start"]
        ends = [entry for entry in said if entry.word == "end"]
        launched = Counter(entry.attempt for entry in starts)
        violations += [f"{run}/{attempt} started {count} times" for attempt, count in launched.items() if count > 1]
        violations += [f"{run} started {at - one.at:.3f} s before its time" for one in starts if one.at < at - SLEW_S]
        if not ends:
            violations.append(f"{run} has no success: {record.states.get(run, 'no row')}, {len(starts)} starts")
        elif record.states.get(run) != "success":
            violations.append(f"{run} ended and is {record.states.get(run, 'without a row')}")
        for earlier, _ in pairwise(ends):
            if _unreported(earlier, record.cuts):
                counts["ended again: killed before its end was reported"] += 1
            else:
                violations.append(f"{run}/{earlier.attempt} ended, and the run was started again")
        if record.decisions is not None:
            told = list(record.decisions.get(run, ()))
            if told != ["launched"]:
                violations.append(f"{run}: job fires says {told}")
        counts["one success"] += len(ends) == 1
        counts["taken over"] += len(starts) > 1 or any(one.attempt for one in starts)
    return Verdict(
        violations,
        {
            "expected": len(record.expected),
            "starts": sum(entry.word == "start" for entry in record.entries),
            "kills": len(record.cuts),
            "power cuts": sum(cut.power for cut in record.cuts),
            **counts,
        },
    )


def _unreported(end: Entry, cuts: Sequence[Cut]) -> bool:
    """True if its node was killed so that the end of this program may not have reached the ledger."""
    here = [cut for cut in cuts if cut.node == end.node]
    its = {end.run, end.run.partition("#")[0]}  # the name of a job stands in the command line of `coordd exec`
    return any(
        (end.at <= cut.at <= end.at + UNREPORTED_S and bool(its & cut.alive))
        if cut.power
        else cut.at - UNREPORTED_S <= end.at <= cut.at + AWAY_S
        for cut in here
    )
