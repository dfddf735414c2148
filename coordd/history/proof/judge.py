"""Judges journals: launches, overlaps, tokens, chains. The rules are those of the audit on Spark (audit.py). Pure.

A *breach* breaks a promise. A *notice* is a gap in the proof, or may be the difference of two clocks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any, NamedTuple

from coordd.core.ledger.words import RESOLVED
from coordd.core.wire.chain import TYPE as CONTROL, Checker, Head, Line
from coordd.core.wire.journal_line import TAIL_END, TAIL_LENGTH, TAIL_START, decode_line
from coordd.core.wire.merge import TASK
from coordd.history.proof.openers import ELECTED, NO, PERHAPS, PERHAPS_FIRST, YES, Openers

BREACH = "breach"
NOTICE = "notice"

# An overlap up to this (seconds) may be the difference of two machines' clocks.
CLOCK_SKEW_S = 0.5
# Grants of different runs that are closer (seconds) may be journalled in another order than the ledger made them. A
# token is the ledger's time: a grant that is journalled further from it has a wrong clock, and orders nothing.
GRANT_ORDER_S = 5.0
BY_CLOCKS = f", by clocks of which one is more than {GRANT_ORDER_S:g} s off the ledger's"

ENDS = ("task-succeeded", "task-failed", "task-revoked", "task-retried")
LOST_PLACE = ("", 0)

# No node was installed again more often under its name.
LIVES_MAX = 100
NUMBER_MAX = 1e15

Place = tuple[str, int]  # file and line


class Finding(NamedTuple):
    """``lines``: all places that show it; the last one is ``file`` and ``line``."""

    kind: str
    severity: str
    run: str
    detail: str
    lines: tuple[Place, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        file, line = self.lines[-1] if self.lines else LOST_PLACE
        return {
            **{name: getattr(self, name) for name in ("kind", "severity", "run")},
            "file": file,
            "line": line,
            "detail": self.detail,
            "lines": [list(place) for place in self.lines],
        }


class Grant(NamedTuple):
    """One grant of an attempt, as events name it."""

    run: str
    attempt: int
    token: int
    nonce: str


class Told:
    """What the journals tell of one grant."""

    __slots__ = (
        "ended",
        "ended_place",
        "exited",
        "granted",
        "granted_place",
        "hosts",
        "job",
        "started",
        "started_place",
    )

    def __init__(self, job: str) -> None:
        self.job = job
        self.granted = self.started = self.ended = self.exited = float("inf")
        self.granted_place = self.started_place = self.ended_place = LOST_PLACE
        self.hosts: dict[str, Place] = {}  # that have started it

    @property
    def over(self) -> float:
        """When it was over; infinity if nothing tells. The program's exit counts before a report of others."""
        at = self.exited if self.exited < float("inf") else self.ended
        return max(at, self.started) if at < float("inf") else at


class Judge:
    """Takes the lines of all journals, one journal after the other."""

    def __init__(self, clock_skew_s: float = CLOCK_SKEW_S) -> None:
        self.clock_skew_s = clock_skew_s
        self.lines = self.records = self.chains = 0
        self.nodes: set[str] = set()
        self.findings: list[Finding] = []
        self.told: dict[Grant, Told] = {}
        self._ends: list[tuple[Grant, float, float, bool, Place]] = []
        self._openers = Openers()
        self._chains = [Checker()]
        self._is_copy = False
        self._oldest = 0.0

    # ---- reading

    def begin(self, *, is_copy: bool = False) -> None:
        """The lines that follow are of another journal. ``is_copy``: it has no head, as in a sink, where a node that
        was installed again begins once more.
        """
        self._chains, self._is_copy, self._oldest = [Checker()], is_copy, 0.0

    def take(self, line: Line, *, last: bool = False) -> None:
        """One line. ``last``: of an open segment, which may be half written."""
        if line.data == b"\n":
            return
        self.lines += 1
        record = decode_line(line.data)
        self._chain_of(record, line).take(line)
        if record is None:
            if not (last and not line.data.endswith(b"\n")):
                self._damaged(line)
            return
        kind, at = record.get("type"), _number(record.get("timestamp"))
        if not isinstance(kind, str) or at is None:
            return
        self._oldest = self._oldest or at
        if isinstance(record.get("hostname"), str):
            self.nodes.add(record["hostname"])
        if kind == CONTROL:
            self._openers.take(record, at)
            return
        if kind != ELECTED and not kind.startswith(TASK):
            return
        run, attempt = record.get("run"), record.get("attempt") or 0
        token, nonce = record.get("token") or 0, record.get("nonce") or ""
        if not (isinstance(run, str) and run and _is_count(attempt) and _is_count(token)):
            return
        if not token:
            self._openers.named(kind, run, attempt, record.get("succession"))
        if kind != ELECTED:
            self._task(kind, record, Grant(run, attempt, token, str(nonce)), at, (line.file, line.number))

    def _chain_of(self, record: dict[str, Any] | None, line: Line) -> Checker:
        """The chain that an audit record continues. In a sink the segments of a node's lives lie side by side."""
        number, prev = (record.get("n"), record.get("prev")) if record and record.get("type") == CONTROL else (0, "")
        if not (self._is_copy and _is_count(number) and number):
            return self._chains[-1]
        if number == 1 and not prev and self._chains[-1].total and len(self._chains) < LIVES_MAX:
            again = "a new chain begins: the node was installed again under its name, or has lost its state"
            self._found("chain", NOTICE, "", again, _at(line))
            self._chains.append(Checker())
            return self._chains[-1]
        follows = [chain for chain in self._chains[::-1] if chain.last == number - 1]
        same = [chain for chain in follows if chain.reached.hash == prev]
        return [*same, *follows, self._chains[-1]][0]

    def finish_journal(self, head: Head | None, head_now: Head | None, directory: str) -> None:
        """The journal is read: judge its chains. Without a head, their end cannot be judged.

        ``head``: before the first line was read. ``head_now``: after the last one; the node may have written on.
        """
        last = self._chains[-1]
        if head is not None and head_now is not None and last.last > head.number:
            head = head_now if last.last >= head_now.number else last.reached
        place = f"{directory}/../audit.json"
        for checker in self._chains:
            checked = checker.finish(head, place, oldest=self._oldest)
            self.chains += checked.total > 0
            self.records += checked.total
            for at in checked.breaks:
                gap = head is None and at.line == 0
                if not (gap and checker is not last):  # it is said once
                    self._found("chain", NOTICE if gap else BREACH, "", at.problem, (at.file, at.line))

    def _damaged(self, line: Line) -> None:
        """A line that was cut by a crash is a gap; one that has a whole end was altered."""
        data = line.data.removesuffix(b"\n")
        tail = data[-TAIL_LENGTH:]
        whole = tail.startswith(TAIL_START) and tail.endswith(TAIL_END) and data.count(TAIL_START) == 1
        if whole and data.startswith(b"{") and b'{"type":' not in data[1:]:
            self._found("altered", BREACH, "", "its checksum is wrong: it is not what was written", _at(line))
        else:
            self._found("damaged", NOTICE, "", "a line was cut by a crash: what it said is not judged", _at(line))

    def _task(self, kind: str, record: dict[str, Any], grant: Grant, at: float, place: Place) -> None:
        if kind in ENDS:
            runtime_s = _number(record.get("runtime"))
            resolved = str(record.get("reason") or "").startswith(RESOLVED)  # by a person, when it had long ended
            exited = record.get("exit_code") is not None or (kind == "task-succeeded" and not resolved)
            self._ends.append((grant, at, float("inf") if runtime_s is None else runtime_s, exited, place))
        if not grant.token and kind != "task-started":
            return  # it does not say which grant it means
        job = record.get("name") or grant.run.partition("#")[0].partition("@")[0]
        told = self.told.get(grant)
        if told is None:
            told = self.told[grant] = Told(str(job))
        if at < told.granted:
            told.granted, told.granted_place = at, place
        if kind == "task-started":
            told.hosts.setdefault(str(record.get("hostname")), place)
            if at < told.started:
                told.started, told.started_place = at, place

    # ---- judging

    def verdict(self) -> list[Finding]:
        """All findings, breaches first, each in the order of its place."""
        self._join_ends()
        by_run: dict[str, list[tuple[Grant, Told]]] = defaultdict(list)
        by_token: dict[tuple[str, int], list[tuple[Grant, Told]]] = defaultdict(list)
        for grant, told in self.told.items():
            by_run[grant.run].append((grant, told))
            if grant.token:
                by_token[told.job, grant.token].append((grant, told))
        for run, grants in by_run.items():
            self._run(run, grants)
        for (_, token), grants in by_token.items():
            self._token_once(token, grants)
        self._tokens_rise(by_run)
        return sorted(self.findings, key=lambda one: (one.severity != BREACH, one.run, one.kind, one.lines))

    @property
    def launches(self) -> int:
        """How many grants were started."""
        return sum(bool(told.hosts) for told in self.told.values())

    @property
    def runs(self) -> int:
        """How many runs were started."""
        return len({grant.run for grant, told in self.told.items() if told.hosts})

    def _join_ends(self) -> None:
        """An end without a token or a nonce comes from a node that did not know the grant: it counts for all."""
        by_attempt: dict[tuple[str, int], list[Grant]] = defaultdict(list)
        for grant in self.told:
            by_attempt[grant.run, grant.attempt].append(grant)
        for end, at, runtime_s, exited, place in self._ends:
            for grant in by_attempt.get((end.run, end.attempt), ()):
                if end.token not in (0, grant.token) or end.nonce not in ("", grant.nonce):
                    continue
                told = self.told[grant]
                if at < told.ended:
                    told.ended, told.ended_place = at, place
                if exited:
                    told.exited = min(told.exited, at, told.started + runtime_s)
        self._ends.clear()

    def _run(self, run: str, grants: list[tuple[Grant, Told]]) -> None:
        started = sorted(
            [(grant, told) for grant, told in grants if told.hosts], key=lambda one: (one[1].started, one[0][1:])
        )
        by_attempt: dict[int, list[tuple[Grant, Told]]] = defaultdict(list)
        for grant, told in started:
            by_attempt[grant.attempt].append((grant, told))
            if len(told.hosts) > 1:
                where = ", ".join(sorted(told.hosts))
                self._found(
                    "launched_twice", BREACH, run, f"{_name(grant)} was launched on {where}", *told.hosts.values()
                )
        for attempt, several in by_attempt.items():
            if len(several) > 1:
                who = ", ".join(f"{next(iter(told.hosts))} {_name(grant)}" for grant, told in several)
                places = [told.started_place for _, told in several]
                self._found("launched_twice", BREACH, run, f"attempt {attempt} was launched by {who}", *places)
        self._overlaps(run, started)
        self._unseen(run, grants)

    def _unseen(self, run: str, grants: list[tuple[Grant, Told]]) -> None:
        seen = {grant.attempt for grant, _ in grants}
        of_1 = [told.granted for grant, told in grants if grant.attempt == 1]
        how = self._openers.first(run, min(of_1), self.nodes) if min(seen) == 1 else NO
        first, last = int(how == YES), max(seen)
        if missing := last + 1 - first - len(seen):
            detail = f"no journal here has {missing} of the attempts {first} to {last}"
            detail += f"; {PERHAPS_FIRST}" if how == PERHAPS else ""
            self._found("unseen", NOTICE, run, detail, min(told.granted_place for _, told in grants))

    def _overlaps(self, run: str, started: list[tuple[Grant, Told]]) -> None:
        """Each launch beside the one that ended last among the launches before it."""
        latest: tuple[Grant, Told] | None = None
        for index, (grant, told) in enumerate(started):
            if latest is not None and told.started < latest[1].over:
                before, other = latest
                alive_s = min(told.over, other.over) - told.started
                detail = f"{_name(grant)} was alive for {alive_s:.3f} s beside {_name(before)}"
                severity = BREACH if alive_s > self.clock_skew_s else NOTICE
                places = (other.started_place, other.ended_place, told.started_place)
                self._found("overlap", severity, run, detail, *places)
            if told.over == float("inf"):
                if index + 1 < len(started):
                    after, other = started[index + 1]
                    detail = f"no journal here tells how {_name(grant)} ended, and {_name(after)} was launched after it"
                    self._found("end_unknown", NOTICE, run, detail, told.started_place, other.started_place)
            elif latest is None or told.over > latest[1].over:
                latest = (grant, told)

    def _token_once(self, token: int, grants: list[tuple[Grant, Told]]) -> None:
        if len(grants) > 1:
            who = ", ".join(sorted(f"{grant.run}/{grant.attempt}" for grant, _ in grants))
            places = [told.granted_place for _, told in sorted(grants, key=lambda one: one[1].granted)]
            self._found("token_repeated", BREACH, grants[-1][0].run, f"token {token} was granted to {who}", *places)

    def _tokens_rise(self, by_run: dict[str, list[tuple[Grant, Told]]]) -> None:
        """A later attempt of a run has a higher token; so has a later grant of a job, if it is late enough."""
        shown: set[Grant] = set()
        for grants in by_run.values():
            highest: tuple[Grant, Told] | None = None
            known = [one for one in grants if one[0].token]
            for grant, told in sorted(known, key=lambda one: (one[0].attempt, one[0].token)):
                if highest and highest[0].attempt < grant.attempt and highest[0].token > grant.token:
                    self._backwards(highest, (grant, told), BREACH, shown)
                if highest is None or grant.token > highest[0].token:
                    highest = (grant, told)
        by_job: dict[str, list[tuple[Grant, Told]]] = defaultdict(list)
        for grant, told in self.told.items():
            if grant.token:
                by_job[told.job].append((grant, told))
        for grants in by_job.values():
            grants.sort(key=lambda one: (one[1].granted, one[0].token))
            self._rise([one for one in grants if _is_in_time(*one)], BREACH, shown)
            self._rise(grants, NOTICE, shown)

    def _rise(self, grants: list[tuple[Grant, Told]], severity: str, shown: set[Grant]) -> None:
        """Each grant of a job beside the highest token of those that were granted long enough before."""
        times = [told.granted for _, told in grants]
        peaks: list[tuple[Grant, Told]] = []
        for one in grants:
            peaks.append(one if not peaks or one[0].token > peaks[-1][0].token else peaks[-1])
        for grant, told in grants:
            index = bisect_right(times, told.granted - GRANT_ORDER_S) - 1
            if index >= 0 and peaks[index][0].token > grant.token:
                self._backwards(peaks[index], (grant, told), severity, shown)

    def _backwards(
        self, higher: tuple[Grant, Told], lower: tuple[Grant, Told], severity: str, shown: set[Grant]
    ) -> None:
        if lower[0] in shown:
            return
        shown.add(lower[0])
        detail = f"{_name(lower[0])} came after {_name(higher[0])} of {higher[0].run}"
        detail += BY_CLOCKS if severity == NOTICE else ""
        places = (higher[1].granted_place, lower[1].granted_place)
        self._found("token_backwards", severity, lower[0].run, detail, *places)

    def _found(self, kind: str, severity: str, run: str, detail: str, *places: Place) -> None:
        known = tuple(place for place in places if place != LOST_PLACE)
        self.findings.append(Finding(kind, severity, run, detail, known))


def _is_in_time(grant: Grant, told: Told) -> bool:
    """True if the clock of the node that told of it agrees with the ledger's, which its token is made of."""
    return abs(int(told.granted * 1e6) - grant.token) <= GRANT_ORDER_S * 1e6


def _name(grant: Grant) -> str:
    return f"attempt {grant.attempt} (token {grant.token}, nonce {grant.nonce})"


def _number(value: object) -> float | None:
    """Seconds from JSON, whatever stands there."""
    return float(value) if isinstance(value, (int, float)) and abs(value) < NUMBER_MAX else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _at(line: Line) -> Place:
    return line.file, line.number
