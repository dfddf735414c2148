"""What became of each call of `coordd exec`: its exit code and its words against the programs' own record. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from system.lab.cluster import Entry

from kills.judge import AWAY_S, Cut

# A call is collected within this time (seconds) after its end.
COLLECTED_S = 1.0

KILLED, OTHERWISE, TERMINATED, UNAVAILABLE = -9, 75, 143, 69


class Call(NamedTuple):
    """One call. Times are on CLOCK_BOOTTIME. ``code``: as subprocess says it, negative for a signal."""

    node: str
    run: str  # the tick that it was started for
    began: float
    ended: float = 0.0
    code: int | None = None
    said: tuple[str, ...] = ()


def account(
    calls: Sequence[Call], entries: Sequence[Entry], cuts: Sequence[Cut], expected: Sequence[str]
) -> tuple[list[str], dict[str, int]]:
    """(violations, causes): every call has one cause that the record proves, and of every tick a caller learned the
    end, unless its machine lost its power in between.
    """
    lives: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        lives[entry.run].append(entry)
    violations: list[str] = []
    causes: Counter[str] = Counter()
    of_run: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for call in calls:
        cause = _cause(call, lives[call.run], cuts)
        if not cause:
            said = " / ".join(call.said[-2:]) or "nothing"
            violations.append(f"{call.run} on {call.node}: code {call.code} is not explained; it said {said}")
        causes[cause or "not explained"] += 1
        of_run[call.run][call.node] = cause
    for run in expected:
        if RAN in of_run[run].values():
            continue
        ends = {entry.node for entry in lives[run] if entry.word == "end"}
        if ends and all(of_run[run].get(node) == POWER for node in ends):
            causes["ticks whose winner lost its power before it exited"] += 1
        else:
            violations.append(f"{run}: no caller returned 0, and the programs ended on {sorted(ends)}")
    return violations, dict(causes)


RAN = "callers that ran it to its end: 0"
WAITED = "callers that waited until it had run elsewhere: 75"
POWER = "callers killed with their machine"
LOST = "callers whose COMMAND was ended with its lease, and ran again elsewhere: 143"
AT_ONCE = "callers whose COMMAND was ended with its lease before its first line, and ran elsewhere: 143"
NO_DAEMON = "callers whose daemon was down when they began: 69"


def _cause(call: Call, lives: Sequence[Entry], cuts: Sequence[Cut]) -> str:
    """Why this call ended as it did; "" if the record does not say."""
    ends = [entry for entry in lives if entry.word == "end" and entry.at <= call.ended]
    here = [entry for entry in lives if entry.node == call.node]
    down = [cut for cut in cuts if cut.node == call.node]
    if call.code == 0 and any(entry.node == call.node for entry in ends):
        return RAN
    if call.code == KILLED and any(cut.power and call.began <= cut.at <= call.ended + COLLECTED_S for cut in down):
        return POWER
    if call.code == OTHERWISE and ends and call.said and f"{call.run} is success" in call.said[-1]:
        return WAITED
    if call.code == TERMINATED and any("lease" in line for line in call.said[-1:]):
        cut_short = [one for one in here if one.word == "start" and not _ended(one, lives)]
        # An attempt without a line: its command was ended before it could write. A busy machine is that slow.
        attempts = {entry.attempt for entry in lives}
        silent = bool(attempts) and len(attempts) <= max(attempts)
        if not any(entry.word == "end" for entry in lives):
            return ""
        return LOST if cut_short else AT_ONCE if silent else ""
    if call.code == UNAVAILABLE and any(cut.at <= call.ended and call.began <= cut.at + AWAY_S for cut in down):
        return NO_DAEMON
    return ""


def _ended(start: Entry, lives: Sequence[Entry]) -> bool:
    return any(entry.word == "end" and entry.attempt == start.attempt for entry in lives)
