"""The judge. The programs' own files tell which attempts were launched and which are missing. The daemons' answers tell
only the state and the reason of each run that never started or never succeeded. The functions here are pure.

A ledger may lose acknowledged writes. If the log of faults alone explains them, three consequences are not violations.
The report counts each of the three on its own line, and each fault explains a bounded number of them:

- a second launch, if the first launcher could not report its launch: it was cut off from the new master and from the
  bus, from the loss to the end of the quarantine;
- a trigger that was accepted right before the loss, and was not yet granted to any node;
- a fire time that was rejected right before the loss.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from system.lab.cluster import Entry, fire_time

from chaos.load import KINDS, Accepted, Edit
from chaos.nemesis import Fault

# The last word of a program that ended by itself. A program without a last word was killed.
KNOWN_ENDS = ("end", "fail")

# The states of a run that is not over. After everything is mended, no run may stay in these states.
OPEN = ("pending", "received", "started", "retry")

# A failover loses only writes that were acknowledged at most this long (seconds) before it: min-replicas-max-lag and
# the interval of its check.
LAG_S = 5.0
# For this time (seconds) after a setback nothing is launched, and witnesses restore what they know: lease + 10 s, plus
# the time until the setback is detected.
QUARANTINE_S = 25.0

# A child that a program leaves behind ends with the attempt, within this time (seconds). The time is long enough for
# SIGTERM, SIGKILL and a busy machine.
CHILD_S = 12.0

# The maximum of launches, and of triggers and fire times, that one fault explains. In the seconds of which writes are
# lost, one node launches three programs, about, and a cluster accepts and rejects ten runs.
LAUNCHES_LOST = 8
RUNS_LOST = 40

TICK_S = 0.05  # tolerance: the clocks of one machine are read one after the other


class Answer(NamedTuple):
    """A daemon's answer about a run. ``state`` "": the ledger does not know the run."""

    state: str
    reason: str
    why: str


class Life(NamedTuple):
    """One program, from its start to its last sign of life (CLOCK_BOOTTIME). ``end``: its last word, "" if killed."""

    start: Entry
    last: float
    end: str

    @property
    def key(self) -> tuple[str, int, int]:
        return self.start.run, self.start.attempt, self.start.token


class Record(NamedTuple):
    """Everything that was seen. ``beats``: (token, pid) -> last sign of life. ``children``: (token, pid of the program,
    last sign of life) of each child that made itself a daemon. ``edits``: each change of a job file, with its time."""

    entries: Sequence[Entry]
    beats: Mapping[tuple[int, int], float]
    expected: Sequence[str]
    accepted: Sequence[Accepted]
    faults: Sequence[Fault]
    answers: Mapping[str, Answer]
    children: Sequence[tuple[int, int, float]] = ()
    edits: Sequence[Edit] = ()


class Verdict(NamedTuple):
    """``violations`` are sentences. ``takeovers_s``: from the last sign of life of a lost program to the start of the
    next attempt. ``rescues_s``: for attempts that were granted and not started, from the fault to the run's start."""

    violations: list[str]
    counts: dict[str, int]
    takeovers_s: list[float]
    rescues_s: list[float]
    states: dict[str, int]  # of the runs that never started or never succeeded


def lives(entries: Iterable[Entry], beats: Mapping[tuple[int, int], float]) -> dict[str, list[Life]]:
    """Run -> the run's programs, in the order of their starts."""
    said: dict[tuple[str, int, int, int], list[Entry]] = defaultdict(list)
    for entry in entries:
        said[entry.run, entry.attempt, entry.token, entry.pid].append(entry)
    found: dict[str, list[Life]] = defaultdict(list)
    for lines in said.values():
        start = next((line for line in lines if line.word == "start"), lines[0])
        ends = [line.word for line in lines if line.word in (*KNOWN_ENDS, "term")]
        last = max([*[line.at for line in lines], beats.get((start.token, start.pid), 0.0)])
        found[start.run].append(Life(start, last, ends[-1] if ends else ""))
    for of_run in found.values():
        of_run.sort(key=lambda life: life.start.at)
    return found


def judge(record: Record) -> Verdict:
    """Check everything that must hold. Returns the violations and the figures."""
    runs = lives(record.entries, record.beats)
    counts: Counter[str] = Counter()
    excuses = Excuses(record.faults)
    violations = [
        *_launches(runs, record, excuses, counts),
        *_locks(runs, record, excuses, counts),
        *_children(runs, record, excuses, counts),
        *_before_their_definition(runs, record),
        *_missing(runs, record, excuses, counts),
        *excuses.over(),
    ]
    takeovers = [
        later.start.at - earlier.last
        for of_run in runs.values()
        for earlier, later in pairwise(of_run)
        if later.start.attempt > earlier.start.attempt and earlier.end not in KNOWN_ENDS
    ]
    caught, rescues = _before_start(runs, record.faults)
    figures = {
        **counts,
        "launches": sum([len(of_run) for of_run in runs.values()]),
        "runs": len(runs),
        "takeovers": len(takeovers),
        "taken over before they started": len(rescues),
        "retries after a failure": sum(earlier.end == "fail" for of_run in runs.values() for earlier in of_run[:-1]),
        "faults": len(record.faults),
        "faults between claim and started": caught,
        "accepted triggers": len({one.run for one in record.accepted}),
        "accepted while the ledger was away": len({one.run for one in record.accepted if one.durable == "node"}),
    }
    states = Counter([record.answers[run].state or "unknown to the ledger" for run in record.answers])
    return Verdict(violations, figures, sorted(takeovers), sorted(rescues), dict(states))


class Excuses:
    """What a ledger that lost writes explains, by the log of faults alone; and how often each fault was named."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._setbacks = [fault for fault in faults if fault.forgets]
        self._launches: dict[int, set[tuple[str, int, int]]] = defaultdict(set)
        self._runs: dict[int, set[str]] = defaultdict(set)

    def unwitnessed(self, earlier: Life, later: Life) -> bool:
        """True if the ledger lost the earlier program's grant with its last writes, and the program's node was cut off
        from the new master and from the bus from then until the end of the quarantine."""
        for number, fault in enumerate(self._setbacks):
            until = min(later.start.at, fault.struck + QUARANTINE_S)
            if _lost(earlier.start.at, fault) and earlier.start.node in fault.cut_off and fault.until >= until:
                self._launches[number].add(earlier.key)
                return True
        return False

    def forgotten(self, run: str, at: float) -> bool:
        """True if what was written about this run at that time (CLOCK_BOOTTIME) may be lost."""
        for number, fault in enumerate(self._setbacks):
            if _lost(at, fault):
                self._runs[number].add(run)
                return True
        return False

    def over(self) -> Iterable[str]:
        """The budgets that are exceeded."""
        for number, fault in enumerate(self._setbacks):
            for what, most, named in (
                ("launches", LAUNCHES_LOST, self._launches[number]),
                ("runs", RUNS_LOST, self._runs[number]),
            ):
                if len(named) > most:
                    yield f"{fault.kind} at {fault.began:.1f} explains {len(named)} {what}, and may explain {most}"


def _lost(at: float, fault: Fault) -> bool:
    return fault.began - LAG_S < at < fault.struck + LAG_S


# ---- launches


def _launches(runs: Mapping[str, list[Life]], record: Record, excuses: Excuses, counts: Counter[str]) -> Iterable[str]:
    for run, of_run in runs.items():
        job = KINDS[_job(run)]
        for attempt, many in Counter(life.start.attempt for life in of_run).items():
            if many > 1:
                same = [life for life in of_run if life.start.attempt == attempt]
                if excuses.unwitnessed(same[0], same[1]):
                    counts["launched again: the launcher was cut off while the ledger lost writes"] += many - 1
                else:
                    yield f"{run}/{attempt} was launched {many} times: {_told(same)}"
        for earlier, later in pairwise(of_run):
            pair = _told([earlier, later])
            alive = earlier.last > later.start.at + TICK_S
            excused = (alive or job.holds) and excuses.unwitnessed(earlier, later)
            if alive:
                counts["overlaps"] += not excused
                counts["overlaps: the launcher was cut off while the ledger lost writes"] += excused
                if not excused:
                    yield f"{run}: two attempts alive: {pair}"
            if later.start.token <= earlier.start.token:
                yield f"{run}: the token did not rise: {pair}"
            if job.holds and not excused:
                yield f"{run} holds, and was launched again: {pair}"
            if earlier.end == "end":
                counts["run again after a success that could not be reported"] += 1
                if not _kept_from_reporting(earlier, later, record.faults):
                    yield f"{run} was launched again after a success that nothing kept from being reported: {pair}"
        early_s = fire_time(run) - of_run[0].start.wall
        if early_s > TICK_S:
            yield f"{run} was started {early_s:.2f} s before its time"


def _kept_from_reporting(earlier: Life, later: Life, faults: Sequence[Fault]) -> bool:
    """True if a fault could prevent the report of the earlier program's success.

    Such a fault harmed the program's node or the ledger between the program's last word and the next launch, or right
    before that time.
    """
    return any(
        fault.began < later.start.at and fault.until > earlier.last - LAG_S
        for fault in faults
        if fault.node == earlier.start.node or fault.harms == "ledger"
    )


def _locks(runs: Mapping[str, list[Life]], record: Record, excuses: Excuses, counts: Counter[str]) -> Iterable[str]:
    """Overlaps that the programs found by file locks. Where a ledger that lost writes explains one, it is the ledger
    that lost the grant of a program that may have held the lock."""
    for entry in record.entries:
        if entry.word == "overlap":
            counts["overlaps by lock"] += 1
            if not _is_unwitnessed(entry, runs.get(entry.run, ()), excuses):
                yield f"{entry.run}/{entry.attempt} on {entry.node} found an earlier attempt alive"
        if entry.word == "crossed":
            counts["two runs of a job that allows one"] += 1
            siblings = [run for run in runs if _job(run) == _job(entry.run) and run != entry.run]
            if not _is_unwitnessed(entry, [life for run in siblings for life in runs[run]], excuses):
                yield f"{entry.run}/{entry.attempt} on {entry.node} found another run of its job alive"


def _is_unwitnessed(entry: Entry, others: Iterable[Life], excuses: Excuses) -> bool:
    """True if one of these programs started before ``entry``, and that nobody knew of it has an excuse."""
    mine = Life(entry, entry.at, "")
    return any(excuses.unwitnessed(life, mine) for life in others if life.start.at < entry.at)


def _children(runs: Mapping[str, list[Life]], record: Record, excuses: Excuses, counts: Counter[str]) -> Iterable[str]:
    """A child that made itself a daemon ends with its attempt. It is never alive beside the next attempt. It does not
    outlive its program by more than CHILD_S, unless a fault stopped or killed the process that should have ended it."""
    for of_run in runs.values():
        for number, life in enumerate(of_run):
            mine = (life.start.token, life.start.pid)
            for last in [at for *owner, at in record.children if tuple(owner) == mine]:
                counts["children that made themselves daemons"] += 1
                later = next(iter(of_run[number + 1 :]), None)
                if later and last > later.start.at + TICK_S and not excuses.unwitnessed(life, later):
                    both = _told([life, later])
                    yield f"{life.start.run}: a child of the attempt before is alive to {last:.2f}: {both}"
                elif last > life.last + CHILD_S and not _harmed(life.start.node, life.last, last, record.faults):
                    yield f"{life.start.run}: a child was left for {last - life.last:.1f} s: {_told([life])}"


def _harmed(node: str, since: float, until: float, faults: Sequence[Fault]) -> bool:
    """True if a fault struck that node or the ledger in this time, or ended shortly before."""
    return any(
        fault.began < until and fault.until > since - CHILD_S
        for fault in faults
        if fault.node == node or fault.harms == "ledger"
    )


def _before_their_definition(runs: Mapping[str, list[Life]], record: Record) -> Iterable[str]:
    """A changed schedule launches nothing for the time before the change."""
    for run, of_run in runs.items():
        at, mine = fire_time(run), [edit for edit in record.edits if edit.job == _job(run)]
        if at and mine and not any(at % edit.every_s == 0 and at >= edit.wall - TICK_S for edit in mine):
            yield f"{run} was launched, and no definition stood that fires then: {_told(of_run)}"


def _before_start(runs: Mapping[str, list[Life]], faults: Sequence[Fault]) -> tuple[int, list[float]]:
    """Returns (number of faults that struck between an attempt's claim and its start, for each such attempt that did
    not start: seconds from the fault to the next start of its run)."""
    started = {life.key: life.start.at for of_run in runs.values() for life in of_run}
    caught = 0
    rescues = {}
    for fault in faults:
        late = [key for key in fault.before_start if started.get(key, float("inf")) > fault.struck]
        caught += bool(late)
        for key in late:
            if key not in started:
                again = [life.start.at for life in runs.get(key[0], ()) if life.start.at > fault.struck]
                if again:
                    rescues[key] = again[0] - fault.began
    return caught, list(rescues.values())


# ---- runs that were not launched


def _missing(runs: Mapping[str, list[Life]], record: Record, excuses: Excuses, counts: Counter[str]) -> Iterable[str]:
    accepted: dict[str, list[Accepted]] = defaultdict(list)
    for one in record.accepted:
        accepted[one.run].append(one)
    for run in dict.fromkeys([*record.expected, *accepted, *runs]):
        of_run = runs.get(run, [])
        if any(life.end == "end" for life in of_run):
            continue
        counts["never succeeded" if of_run else "never started"] += 1
        answer = record.answers.get(run, Answer("", "", "nobody was asked"))
        if not answer.state:
            if not of_run and all(excuses.forgotten(run, one.at) for one in accepted.get(run, ())) and run in accepted:
                counts["triggers forgotten by a ledger that lost writes"] += 1
                continue
            if not of_run and KINDS[_job(run)].overlap == "forbid" and _rejection_forgotten(run, record, excuses):
                counts["rejected, and forgotten by a ledger that lost writes"] += 1
                continue
            counts["lost without an explanation"] += 1
            what = "never succeeded" if of_run else "never started"
            yield f"{run} {what}, and the ledger does not know it: {answer.why}"
        elif answer.state == "success":
            yield f"{run} is a success, and no program of it came to its end"
        elif answer.state in OPEN:
            yield f"{run} is not over long after all was mended: {answer.state}: {answer.why}"
        elif not answer.reason or not answer.why:
            counts["lost without an explanation"] += 1
            yield f"{run} is {answer.state} without a reason"
        elif answer.state == "unknown" and not KINDS[_job(run)].holds:
            yield f"{run} is unknown, and its job does not hold"


def _rejection_forgotten(run: str, record: Record, excuses: Excuses) -> bool:
    """True if the run's fire time came while rows were lost. A run that is not launched has no witness to restore its
    row."""
    if not record.entries:
        return False
    at = fire_time(run) - record.entries[0].wall + record.entries[0].at  # on CLOCK_BOOTTIME
    return excuses.forgotten(run, at)


def _job(run: str) -> str:
    return run.partition("@")[0].partition("#")[0]


def _told(some: Iterable[Life]) -> str:
    return "; ".join(
        [
            f"attempt {one.start.attempt} token {one.start.token} on {one.start.node} pid {one.start.pid}"
            f" from {one.start.at:.2f} to {one.last:.2f} ({one.end or 'killed'})"
            for one in some
        ]
    )
