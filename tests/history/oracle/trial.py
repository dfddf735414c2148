"""One trial: journals are made and delivered in parts, the pipeline adds each part, and the tables are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from coordd.core.jobs.job import run_uuid
from coordd.history.schema import TABLES
from history.oracle import celery_state, findings
from history.oracle.comparing import Parts, Tally, rows_of
from history.oracle.delivery import Sink
from history.oracle.events import Troubled
from history.oracle.reference import (
    Lives,
    Reader,
    Row,
    attempt_rows,
    breaker_rows,
    corrupt_rows,
    election_rows,
    event_row,
    fire_rows,
    grant_rows,
    granted_rows,
    run_rows,
    told,
)

Say = Callable[[str], None]

# The pipeline: adds what is new in a directory to an output.
Add = Callable[[Path, Path], None]

CELERY = "Celery's State"

# Lines of which the reference has the events in memory at a time.
IN_MEMORY = 50_000

# What the rows of a table are called by.
GRANT = ("job", "run", "attempt", "token", "nonce")
KEYS = {
    "events": ("line",),
    "runs": ("uuid",),
    "attempts": GRANT,
    "grants": GRANT,
    "fires": ("run",),
    "elections": ("id",),
    "nodes": ("hostname", "incarnation"),
    "breakers": ("breaker", "hostname", "since"),
    "corrupt": ("source", "line_number"),
    "audit": ("kind", "job", "run", "attempt", "at", "detail", "number"),
}

# The tables that are large.
IN_PARTS = ("events", "runs", "attempts", "grants", "fires", "elections")


class Plan(NamedTuple):
    """``parts``: how often the pipeline runs. ``segment``: the lines of a segment, about."""

    seed: int
    events: int
    parts: int = 3
    nodes: int = 5
    segment: int = 1500


class Verdict(NamedTuple):
    """``tallies``: by table."""

    events: int
    lines: int
    tallies: dict[str, Tally]

    @property
    def mismatches(self) -> int:
        return sum(tally.mismatches for tally in self.tallies.values())


def play(plan: Plan, directory: Path, add: Add, say: Say = lambda _text: None) -> Verdict:
    """All of it, below ``directory``, which is left with the journals and the tables."""
    journals, output = directory / "journals", directory / "output"
    reader = Reader()
    judge = Judge(directory / "parts", plan.events // IN_MEMORY + 1)
    made = 0
    for part, number in _delivered(plan, journals):
        made = number
        say(f"part {part + 1} of {plan.parts}: the reference reads, {number:,} events")
        for line, record in reader.read(journals):
            judge.expect(line, record)
        say(f"part {part + 1} of {plan.parts}: the pipeline adds it")
        add(journals, output)
    say("the tables are read")
    judge.find(output)
    judge.compare(reader, output, say)
    return Verdict(made, reader.lines, judge.tallies)


def _delivered(plan: Plan, journals: Path) -> Iterator[tuple[int, int]]:
    """The number of each part once it is on the disk, and how many events are made. The first part has the most."""
    cluster = Troubled(plan.seed, plan.events, plan.nodes)
    sink = Sink(journals, plan.seed, plan.nodes, plan.segment)
    for part in range(plan.parts):
        sink.begin_part()
        until = plan.events - plan.events * (plan.parts - part - 1) // (2 * plan.parts)
        for line in cluster.lines(until):
            sink.take(line)
        sink.end_part(last=part == plan.parts - 1)
        yield part, cluster.made


class Judge:
    """Holds what was read and what was found in parts on the disk, and compares part by part."""

    def __init__(self, directory: Path, count: int) -> None:
        self.count = count
        self.tallies = {name: Tally() for name in (*TABLES, CELERY)}
        self._lines = Parts(directory / "lines", count)
        self._elections = Parts(directory / "election lines", count)
        self._of_jobs = Parts(directory / "grants of jobs", count)
        self._found = {name: Parts(directory / name, count) for name in IN_PARTS}
        self._findings: list[Row] = []
        self._of_breakers: list[Row] = []

    def expect(self, line: bytes, record: Row) -> None:
        """One good line of a journal; it may come several times."""
        self._lines.put(_place(record, line), line)
        if record["type"] == "election-decided" and record.get("id"):
            self._elections.put(record["id"], line)
        if record["type"] == "breaker-changed":
            self._of_breakers.append(record)

    def find(self, output: Path) -> None:
        """The rows of the large tables. Those about a run go where its lines are: a run's uuid is made of its id."""
        for name in IN_PARTS:
            for row in rows_of(output / name):
                if name == "events":
                    del row["id"]  # a hash that Python does not know
                    place = _place(row, row["line"].encode())
                else:
                    place = row["id"] if name == "elections" else row.get("uuid") or run_uuid(row["run"])
                self._found[name].put(place, row)

    def compare(self, reader: Reader, output: Path, say: Say) -> None:
        """Everything."""
        lives = Lives()
        for number in range(self.count):
            say(f"compared: {number} of {self.count} parts, {self.mismatches} mismatches")
            self._part(number, lives)
        for number in range(self.count):
            self._findings += findings.of_grants(self._of_jobs.take(number))
        spoilt = [one for segment in reader.spoilt.values() for one in segment]
        self._hold("nodes", lives.rows(), rows_of(output / "nodes"))
        self._hold("breakers", breaker_rows(self._of_breakers), rows_of(output / "breakers"))
        self._hold("corrupt", corrupt_rows(spoilt), rows_of(output / "corrupt"))
        expected = {_key("audit", row): row for row in numbered(self._findings)}
        self._hold("audit", expected, numbered(rows_of(output / "audit")))

    @property
    def mismatches(self) -> int:
        return sum(tally.mismatches for tally in self.tallies.values())

    def _part(self, number: int, lives: Lives) -> None:
        """All that is about the runs of this part."""
        lines = {line: told(line) for line in self._lines.take(number)}
        records = list(lines.values())
        for record in records:
            lives.take(record)
        events = {line.decode(): event_row(line, record) for line, record in lines.items()}
        self._hold("events", events, self._found["events"].take(number))
        del events
        runs, granted = run_rows(records), granted_rows(records)
        attempts, grants = attempt_rows(granted), grant_rows(granted)
        found_runs = list(self._found["runs"].take(number))
        self._hold("runs", runs, found_runs)
        self._hold("attempts", attempts, self._found["attempts"].take(number))
        self._hold("grants", grants, self._found["grants"].take(number))
        self._hold("fires", fire_rows(runs.values(), attempts.values()), self._found["fires"].take(number))
        about = election_rows(map(told, set(self._elections.take(number))))
        self._hold("elections", about, self._found["elections"].take(number))
        celery_state.compare(records, {row["uuid"]: row for row in found_runs}, self.tallies[CELERY])
        self._findings += findings.of_launches(attempts.values())
        for row in grants.values():
            self._of_jobs.put(row.get("job") or "", row)

    def _hold(self, name: str, expected: Mapping[Any, Row], found: Iterable[Row]) -> None:
        self.tallies[name].compare(expected, found, partial(_key, name))


def _place(record: Row, line: bytes) -> str | bytes:
    """What comes together is in one part: all events of a run, and a line that comes twice."""
    return str(record["uuid"]) if record["type"].startswith("task-") else line


def numbered(findings: Iterable[Row]) -> Iterator[Row]:
    """Some findings have the same words: of two launches by one node at one instant. ``number`` tells them apart."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for row in findings:
        words = tuple(row.get(name) for name in KEYS["audit"])
        yield {**row, "number": seen[words]}
        seen[words] += 1


def _key(name: str, row: Row) -> tuple[Any, ...] | str:
    """What a row of a table is called by, as in the reference."""
    columns = KEYS[name]
    return row[columns[0]] if len(columns) == 1 else tuple(row.get(column) for column in columns)
