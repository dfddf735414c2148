"""The records of a run, from journals: in order, each with its place, and what else the nodes wrote at the time."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from coordd.core.jobs.job import job_of
from coordd.core.ledger.runner_requests import Grant
from coordd.core.ledger.words import ATTEMPT_MAX, INSTANT_MAX, RATE, SLOTS, TOKEN_MAX, AttemptNumber, Policy, Token
from coordd.core.wire.chain import TYPE as CONTROL, Line
from coordd.core.wire.journal_line import decode_line
from coordd.core.wire.merge import TASK, order_key
from coordd.errors import UnavailableError
from coordd.history.proof.acts import BACKFILL, REFUSED, REPEATS, backfill, follows
from coordd.history.proof.reading import Journal, find

ELECTED = "election-decided"
CANCEL_HEARD = "control-cancel"

# The records of nodes as such that belong to an incident.
OF_NODES = ("worker-online", "worker-offline")

# How far (seconds) before a run's first record other runs may have begun that still prevent it.
BEFORE_S = 86_400.0
# A backfill, or a re-run with children, goes on for longer: this far back is an act looked for that may have opened it.
OPENED_S = 30 * 86_400.0
# How far (seconds) around its records a node's start or stop is shown.
AROUND_S = 60.0

# No incident has more records than this; beyond it, a file is not what it seems.
RECORDS_MAX = 200_000

# A person's acts that concern no run.
ALARMS = "alarm."


class Record(NamedTuple):
    """One line of a journal. ``at``: Unix seconds, by the clock of the node that wrote it."""

    data: dict[str, Any]
    file: str
    line: int
    at: float

    @property
    def kind(self) -> str:
        """Its type."""
        return str(self.data["type"])

    @property
    def host(self) -> str:
        """The node that wrote it."""
        return self.text("hostname")

    @property
    def full_hostname(self) -> str:
        """The same, with its pid."""
        return f"{self.host}.{self.count('pid')}"

    @property
    def clock(self) -> int:
        """Its logical clock."""
        return self.count("clock")

    @property
    def run(self) -> str:
        """The run that it is about; "" for none, and for a person's act (``is_about``)."""
        return self.text("run")

    @property
    def grant(self) -> Grant:
        """The grant that it names."""
        return Grant(
            run=self.run,
            attempt=AttemptNumber(self.count("attempt", ATTEMPT_MAX)),
            token=Token(self.count("token")),
            nonce=self.text("nonce"),
        )

    @property
    def job(self) -> str:
        """The job of its run."""
        return self.text("name") or job_of(self.run)

    def is_about(self, run: str) -> bool:
        """True if it tells of this run. The subject of a person's act may have more after the run's id."""
        if self.kind != CONTROL:
            return self.run == run
        if self.text("method").startswith(ALARMS):  # its subject is a person's text
            return False
        subject = self.text("subject")
        return subject == run or (subject.startswith(run) and subject[len(run)] in "/: ")

    def event(self) -> dict[str, Any]:
        """The event of a run, for core.wire.merge, with values of the right types."""
        texts = {name: self.text(name) for name in ("hostname", "incarnation", "run")}
        counts = {name: self.count(name) for name in ("pid", "clock", "attempt", "token")}
        return {"type": self.kind, "timestamp": self.at, "uuid": self.run, **texts, **counts}

    def text(self, name: str) -> str:
        """A text of it; "" if there is none."""
        value = self.data.get(name)
        return value if isinstance(value, str) else ""

    def texts(self, name: str) -> dict[str, str]:
        """A table of texts; empty if there is none."""
        value = self.data.get(name)
        return {str(key): str(text) for key, text in value.items()} if isinstance(value, dict) else {}

    def names(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if there is none."""
        value = self.data.get(name)
        return tuple([str(one) for one in value]) if isinstance(value, list) else ()

    def count(self, name: str, most: int = TOKEN_MAX) -> int:
        """A whole number of it; 0 if there is none."""
        value = self.data.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else 0

    def number(self, name: str) -> float | None:
        """A number of it; None if there is none."""
        value = self.data.get(name)
        known = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= INSTANT_MAX
        return float(value) if known and isinstance(value, (int, float)) else None

    def policy(self) -> Policy | None:
        """The granted policy; None if it does not say it (an older version), or not so that it can be read."""
        try:
            return Policy.unpack(self.text("policy"))
        except (ValueError, TypeError):
            return None


class Incident(NamedTuple):
    """``records``: of the run, and of what may have prevented it, in order. ``lives``: when each node wrote a line."""

    run: str
    records: list[Record]
    lines: list[Line]  # those of the run, as they stand, and of acts that may have opened it
    lives: dict[str, list[float]]
    journals: int
    damaged: int

    def silence(self, host: str, at: float) -> tuple[float | None, float | None]:
        """When that node wrote its last line up to an instant, and its next one after it."""
        told = self.lives.get(host, [])
        index = bisect_right(told, at)
        return (told[index - 1] if index else None), (told[index] if index < len(told) else None)


def collect(places: Sequence[str], run: str) -> Incident:
    """The incident of a run. Raises UnavailableError if a journal cannot be read, or none has the run."""
    journals = find(places)
    mine: dict[bytes, Record] = {}
    at_lines: list[Line] = []
    name = json.dumps(run, ensure_ascii=False)[1:-1].encode("utf-8", "backslashreplace")
    damaged = 0
    for journal in journals:
        for line, _ in journal.lines():
            if name not in line.data:
                continue
            record = _read(line)
            if record is None:
                damaged += 1
            elif record.is_about(run) and line.data not in mine:
                if len(mine) >= RECORDS_MAX:
                    raise UnavailableError(f"{line.file}:{line.number}: more than {RECORDS_MAX:,} lines tell of {run}")
                mine[line.data] = record
                at_lines.append(line)
    if not mine or job_of(run) == run:  # a job, which is not a run
        raise UnavailableError(f"no journal here tells of {run}: is the id whole, as `coordctl run list` shows it?")
    first, last = min(record.at for record in mine.values()), max(record.at for record in mine.values())
    keys = {key for record in mine.values() for key in shared(record)}
    lives: dict[str, list[float]] = {}
    others: dict[bytes, Record] = {}
    job = job_of(run)
    for record, data in _between(journals, first - OPENED_S, last + AROUND_S):
        if data in mine or len(others) >= RECORDS_MAX:
            pass
        elif record.kind == CONTROL and record.at <= last and opens_others(record, job, run):
            others[data] = record
            at_lines.append(Line(record.file, record.line, data))
        elif record.at >= first - BEFORE_S and _matters(record, job, keys, first, last):
            others[data] = record
        if record.at >= first - BEFORE_S:
            lives.setdefault(record.host, []).append(record.at)
    for told in lives.values():
        told.sort()
    ordered = sorted([*mine.values(), *others.values()], key=_order)
    return Incident(run, _late_last(ordered), at_lines, lives, len(journals), damaged)


def opens_others(record: Record, job: str, run: str) -> bool:
    """True for a person's act that opens runs beside its subject, that run or others of the job among them."""
    subject, method = record.text("subject"), record.text("method")
    if record.text("outcome") == REFUSED:
        return False
    plan = backfill(subject) if method == BACKFILL else None
    return plan.job == job if plan is not None else method in REPEATS and follows(subject, run)


def shared(record: Record) -> set[str]:
    """The limits that this run shares with other jobs: pools, rates."""
    policy = record.policy()
    items = policy.limits.split(",") if policy is not None and policy.limits else []
    return {item.partition("=")[0] for item in items if item.startswith((SLOTS, RATE))}


def by_another(record: Record) -> bool:
    """True for an end that a claim has caused: its writer is not the holder, or says that the lease lapsed."""
    holder = record.text("node")
    return holder not in ("", record.full_hostname) or record.text("reason").startswith("its lease lapsed")


def _matters(record: Record, job: str, keys: set[str], first: float, last: float) -> bool:
    if record.kind in OF_NODES:
        return first - AROUND_S <= record.at <= last + AROUND_S
    if record.at > last:
        return False
    if record.kind == CONTROL:
        return record.is_about(job) and record.text("method") in ("job.suspend", "job.resume")
    return record.kind.startswith(TASK) and (record.job == job or bool(keys and keys & shared(record)))


def _between(journals: Sequence[Journal], begin: float, until: float) -> Iterator[tuple[Record, bytes]]:
    for journal in journals:
        for line, _ in journal.lines():
            record = _read(line)
            if record is not None and record.host and begin <= record.at <= until:
                yield record, line.data


def _read(line: Line) -> Record | None:
    data = decode_line(line.data)
    if data is None or not isinstance(data.get("type"), str):
        return None
    at = data.get("timestamp")
    if not isinstance(at, (int, float)) or isinstance(at, bool) or not 0 <= at <= INSTANT_MAX:
        return None
    return Record(data, line.file, line.number, float(at))


def _order(record: Record) -> tuple[Any, ...]:
    """(clock, timestamp, origin); ``order_key`` with values that can be compared, whatever stands there."""
    clean = {"hostname": record.host, "pid": record.count("pid"), "clock": record.clock, "timestamp": record.at}
    return (*order_key(clean), record.kind, record.file, record.line)


def _late_last(ordered: list[Record]) -> list[Record]:
    """The holder's own report of an end comes after the claim that had ended the attempt before it: a node that was cut
    off has a low clock.
    """
    taken = {_grant_of(one): one.at for one in ordered if one.kind.startswith(TASK) and by_another(one)}
    late = [one for one in ordered if _is_late(one, taken)]
    if not late:
        return ordered
    rest = [one for one in ordered if not _is_late(one, taken)]
    for one in late:
        before = [n for n, other in enumerate(rest) if _precedes(other, one)]
        rest.insert(before[-1] + 1 if before else 0, one)
    return rest


def _precedes(other: Record, late: Record) -> bool:
    if by_another(other) and _grant_of(other) == _grant_of(late):
        return True
    return other.run == late.run and other.at <= late.at


def _is_late(record: Record, taken: dict[Any, float]) -> bool:
    ends = record.kind in ("task-succeeded", "task-failed", "task-retried", "task-revoked")
    return ends and not by_another(record) and taken.get(_grant_of(record), record.at) < record.at


def _grant_of(record: Record) -> tuple[str, int, int, str]:
    grant = record.grant
    return grant.run, grant.attempt, grant.token, grant.nonce
