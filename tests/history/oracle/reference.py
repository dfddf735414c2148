"""What the tables must hold, in plain Python, from the files that the pipeline reads.

The state and the fields of a run are those of core.wire.merge. The rest is said in docs/history.md, and is written down
here for a second time, without a look at Spark. A row is a dictionary without its nulls.
"""

from __future__ import annotations

import gzip
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from coordd.core.ledger.fires import HELD_BY_OTHERS, HELD_BY_SUSPENSION
from coordd.core.ledger.words import INSTANT_MAX
from coordd.core.wire.journal_line import TAIL_END, TAIL_LENGTH, TAIL_START, decode_line
from coordd.core.wire.merge import LIFE, merge, precedence, state_of
from coordd.history.schema import EVENTS, FIELDS, IDENTITY, RUN_FIELDS
from history.oracle.delivery import OPEN

Row = dict[str, Any]

ENDS = ("task-succeeded", "task-failed", "task-revoked", "task-retried")


def row_of(**fields: Any) -> Row:
    """Null and absent are the same."""
    return {name: value for name, value in fields.items() if value is not None}


def date_of(instant: float) -> str:
    return datetime.fromtimestamp(math.floor(instant), UTC).date().isoformat()


# ---- lines


class Spoilt(NamedTuple):
    """A line that is not an event, with the day of its file's last change."""

    source: str
    line_number: int
    problem: str
    line: bytes
    date: str


class Reader:
    """Reads a directory again and again, each closed segment once; one with the bytes of another one never."""

    def __init__(self) -> None:
        self.spoilt: dict[str, list[Spoilt]] = {}
        self.lines = 0
        self._digests: set[bytes] = set()
        self._read: set[str] = set()

    def read(self, top: Path) -> Iterator[tuple[bytes, Row]]:
        """The events that are new, and those of open segments; an event may come several times."""
        for source in [source for source in self.spoilt if source.endswith(OPEN)]:
            del self.spoilt[source]
        for path in sorted((path for path in top.rglob("*.jsonl*")), key=lambda path: path.parts):
            source, data = str(path), path.read_bytes()
            if path.name != OPEN:
                digest = hashlib.sha256(data).digest()
                if source in self._read or digest in self._digests:
                    continue
                self._read.add(source)
                self._digests.add(digest)
            text = gzip.decompress(data) if source.endswith(".gz") else data
            yield from self._segment(source, text, date_of(path.stat().st_mtime))

    def _segment(self, source: str, data: bytes, date: str) -> Iterator[tuple[bytes, Row]]:
        spoilt = self.spoilt[source] = []
        lines = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            self.lines += 1
            record = decode_line(line)
            if record is not None and is_event(record):
                yield line, record
            else:
                problem = problem_of(line) if record is None else "not an event"
                spoilt.append(Spoilt(source, number, problem, line, date))


def is_event(record: Row) -> bool:
    """Does it say what each node's record says, with values that the columns can hold?"""
    for name, kind in {**IDENTITY, **FIELDS}.items():
        value = record.get(name)
        if value is None:
            continue
        number = isinstance(value, int) and not isinstance(value, bool)
        bits = {"bigint": 63, "int": 31}.get(kind)
        if bits is not None and not (number and -(2**bits) <= value < 2**bits):
            return False
        if kind == "double" and not (number or isinstance(value, float)):
            return False
    if any(record.get(name) is None for name in ("type", "hostname", "clock", "timestamp")):
        return False
    if not 0 <= record["timestamp"] <= INSTANT_MAX:
        return False
    return not record["type"].startswith("task-") or bool(record.get("uuid"))


def problem_of(line: bytes) -> str:
    """Why a line has not been read. It is cut if it has no checksum at its end, and altered if it has."""
    ends = [at for at in range(len(line)) if _is_tail(line[at : at + TAIL_LENGTH])]
    if any(line[at + TAIL_LENGTH :].startswith(b"{") for at in ends):
        return "glued"
    if not ends or ends[-1] != len(line) - TAIL_LENGTH:
        return "torn"
    return "glued" if b'{"type":' in line[1:] else "checksum"


def _is_tail(data: bytes) -> bool:
    digits = data[len(TAIL_START) : -len(TAIL_END)]
    return (
        len(data) == TAIL_LENGTH
        and data.startswith(TAIL_START)
        and data.endswith(TAIL_END)
        and all(digit in b"0123456789abcdef" for digit in digits)
    )


# ---- events


def told(line: bytes) -> Row:
    """The record of a good line, as a table can hold it."""
    record = decode_line(line)
    assert record is not None
    return _as_text_can(record) if b"\\ud" in line else record


def _as_text_can(record: Row) -> Row:
    """UTF-8 has no half of a character, as JSON's ``\\udcff``: it becomes a question mark."""

    def text(value: Any) -> Any:
        return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value

    return {name: text(value) for name, value in record.items()}


def event_row(line: bytes, record: Row) -> Row:
    """Its row of ``events``, but for ``id``: a hash that Python does not know."""
    texts = {name for name, kind in FIELDS.items() if kind == "string"}
    known = {
        name: record.get(name) for name in EVENTS if name != "id" and not (name in texts and record.get(name) == "")
    }
    name = f"{record['hostname']}.{record.get('pid') or 0}"
    return row_of(**{**known, "full_hostname": name, "line": line.decode(), "date": date_of(record["timestamp"])})


# ---- runs


def run_rows(records: Iterable[Row]) -> dict[str, Row]:
    """The runs of all events about each of them."""
    records = [record for record in records if record["type"].startswith("task-")]
    by_uuid: dict[str, list[float]] = defaultdict(list)
    for record in records:
        by_uuid[record["uuid"]].append(record["timestamp"])
    found = {}
    for uuid, run in merge(records).items():
        times = by_uuid[uuid]
        found[uuid] = row_of(
            uuid=uuid,
            state=run.state,
            timestamp=run.timestamp,
            **{name: run.fields.get(name) for name in RUN_FIELDS},
            **{word.removeprefix("task-"): run.seen.get(word.removeprefix("task-")) for word in LIFE},
            events=len(times),
            first_at=min(times),
            job=job_of(run.fields),
            date=date_of(min(times)),
        )
    return found


def job_of(record: Row) -> str | None:
    """Its name, else what the id of its run begins with."""
    run: str | None = record.get("run") or None
    return record.get("name") or (run and run.partition("#")[0].partition("@")[0])


Grant = tuple[str | None, str, int, int, str]  # job, run, attempt, token, nonce


def grant_of(record: Row) -> Grant:
    grant = (record.get("attempt") or 0, record.get("token") or 0, record.get("nonce") or "")
    return (job_of(record), record["run"], *grant)


def granted_rows(records: Iterable[Row]) -> dict[Grant, Row]:
    """All grants, launched or not, with what is known of the launch and of its end."""
    by_attempt: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for record in records:
        if record["type"].startswith("task-") and record.get("run"):
            by_attempt[record["run"], record.get("attempt") or 0].append(record)
    found = {}
    for events in by_attempt.values():
        for grant in {grant_of(one) for one in events if one.get("token") or one["type"] == "task-started"}:
            found[grant] = _granted(grant, events)
    return found


def _granted(grant: Grant, events: list[Row]) -> Row:
    job, run, attempt, token, nonce = grant
    own = [one for one in events if grant_of(one) == grant]
    ends = [
        one
        for one in events
        if one["type"] in ENDS and (one.get("token") or 0) in (0, token) and (one.get("nonce") or "") in ("", nonce)
    ]
    starts = [one for one in own if one["type"] == "task-started"]
    start = min(starts, key=_record_order, default=None)
    row = row_of(job=job, run=run, attempt=attempt, token=token, nonce=nonce)
    row |= row_of(granted=min(one["timestamp"] for one in own))
    if start is None:
        return row
    started = start["timestamp"]
    exits = []
    for one in ends:
        resolved = (one.get("reason") or "").startswith("resolved as ")
        if one.get("exit_code") is not None or (one["type"] == "task-succeeded" and not resolved):
            runtime = one.get("runtime")
            exits.append(min(one["timestamp"], math.inf if runtime is None else started + runtime))
    over = exits or [one["timestamp"] for one in ends]
    last = max(ends, key=_end_order, default={})
    return row | row_of(
        hostname=start["hostname"],
        hosts=sorted({one["hostname"] for one in starts}),
        started=started,
        ended=max(min(over), started) if over else None,
        outcome=state_of(last["type"]) if last else None,
        reason=last.get("reason") or None,
        exit_code=max((one["exit_code"] for one in ends if one.get("exit_code") is not None), default=None),
        application_id=max((one["application_id"] for one in ends if one.get("application_id")), default=None),
    )


def _record_order(one: Row) -> tuple[Any, ...]:
    """Which of several records about one thing was first."""
    return one["clock"], one["timestamp"], f"{one['hostname']}.{one.get('pid') or 0}"


def _end_order(one: Row) -> tuple[Any, ...]:
    return -precedence(state_of(one["type"])), one["timestamp"], one["type"], one.get("reason") or ""


def attempt_rows(granted: dict[Grant, Row]) -> dict[Grant, Row]:
    """The grants that were launched."""
    return {grant: {**row, "date": date_of(row["started"])} for grant, row in granted.items() if "started" in row}


def grant_rows(granted: dict[Grant, Row]) -> dict[Grant, Row]:
    """The grants with a token."""
    names = ("job", "run", "attempt", "token", "nonce", "granted")
    return {
        grant: {**{name: row[name] for name in names if name in row}, "date": date_of(row["granted"])}
        for grant, row in granted.items()
        if row["token"]
    }


def launch_order(row: Row) -> list[Any]:
    """When it started; of several at one instant, by what they were."""
    return [*(row[name] for name in ("started", "attempt", "token", "nonce")), row.get("job") or ""]


def fire_rows(runs: Iterable[Row], attempts: Iterable[Row]) -> dict[str, Row]:
    """The fire times that have a run."""
    launches: dict[str, list[Row]] = defaultdict(list)
    for row in attempts:
        launches[row["run"]].append(row)
    found = {}
    for run in runs:
        if "@" not in run.get("run", "") or not 0.0 < run.get("fire_at", 0.0) < INSTANT_MAX:
            continue
        first = min(launches[run["run"]], key=launch_order, default={})
        due = max(run["fire_at"], run.get("due", 0.0))
        found[run["run"]] = row_of(
            **{name: run.get(name) for name in ("job", "run", "fire_at", "reason", "state")},
            due=due,
            decision=_decision(run, launched=bool(first)),
            started=first.get("started"),
            delay_s=first["started"] - due if first else None,
            hostname=first.get("hostname"),
            date=date_of(run["fire_at"]),
        )
    return found


def _decision(run: Row, *, launched: bool) -> str | None:
    reason = run.get("reason", "")
    if launched or run.get("token", 0):
        return "launched"
    if run["state"] == "rejected" and run.get("result") == "missed":
        if HELD_BY_SUSPENSION in reason:
            return "suspended"
        return "limited" if HELD_BY_OTHERS in reason else "missed"
    return "rejected" if run["state"] in ("rejected", "revoked") else None


# ---- nodes and elections


class Lives:
    """The table ``nodes``: takes events one by one, each once."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str | None], Row] = {}
        self._online: dict[tuple[str, str | None], list[Any]] = {}

    def take(self, record: Row) -> None:
        key = record["hostname"], record.get("incarnation")
        at, kind = record["timestamp"], record["type"]
        row = self._rows.setdefault(key, {"first_at": at, "last_at": at, "events": 0, "launches": 0})
        row["pid"] = max(row.get("pid", 0), record.get("pid") or 0)
        row["first_at"], row["last_at"] = min(row["first_at"], at), max(row["last_at"], at)
        row["events"] += 1
        row["launches"] += kind == "task-started"
        if kind == "worker-online":
            said = [at, *((record.get(name) is not None, record.get(name)) for name in ("sw_ver", "sw_sys", "tags"))]
            self._online[key] = min(self._online.get(key, said), said)
        elif kind == "worker-offline":
            row["offline_at"] = max(row.get("offline_at", at), at)

    def rows(self) -> dict[tuple[str, str | None], Row]:
        found = {}
        for key, row in self._rows.items():
            at, *said = self._online.get(key, (None, (), (), ()))
            version, system, tags = (each[1] if each else None for each in said)
            about = row_of(online_at=at, version=version, system=system, tags=tags)
            named = row_of(hostname=key[0], incarnation=key[1], date=date_of(row["first_at"]))
            found[key] = {**row, **about, **named}
        return found


def election_rows(records: Iterable[Row]) -> dict[str, Row]:
    """The elections of these records, by id."""
    by_id: dict[str, list[Row]] = defaultdict(list)
    for record in records:
        by_id[record["id"]].append(record)
    found = {}
    for number, several in by_id.items():
        one = min(several, key=_record_order)
        run = one.get("run") or None
        found[number] = row_of(
            id=number,
            job=job_of({"run": run}),
            run=run,
            attempt=one.get("attempt") or 0,
            decided_at=one["timestamp"],
            duration_s=one.get("duration"),
            first=next(iter(one.get("succession") or ()), None),
            told_by=sorted({each["hostname"] for each in several}),
            date=date_of(one["timestamp"]),
            **{name: one.get(name) for name in ("topic", "opened_by", "succession", "abstained", "silent")},
        )
    return found


def breaker_rows(records: Iterable[Row]) -> dict[tuple[str, str, float], Row]:
    """The table ``breakers``, from the events about breakers."""
    found: dict[tuple[str, str, float], Row] = {}
    told: dict[tuple[str, str, float], list[Any]] = {}
    for record in records:
        since, name, state = record.get("since") or 0.0, record.get("breaker"), record.get("state")
        if not 0.0 < since < INSTANT_MAX or name is None or state is None:
            continue
        of_job = name.startswith("job:")
        key = name, "" if of_job else record["hostname"], since
        row = found.setdefault(key, {"breaker": key[0], "hostname": key[1], "since": since, "told_by": []})
        row["date"] = date_of(since)
        row["told_by"] = sorted({*row["told_by"], record["hostname"]})
        if of_job:
            row["job"] = name.removeprefix("job:")
        if state == "closed":
            row["closed_at"] = min(row.get("closed_at", record["timestamp"]), record["timestamp"])
        else:
            said = [(record.get(name) is not None, record.get(name)) for name in ("state", "trips", "reason")]
            told[key] = max(told.get(key, said), said)
            row |= row_of(**{name: one for name, (_, one) in zip(("state", "trips", "reason"), told[key], strict=True)})
    return found


def corrupt_rows(spoilt: Iterable[Spoilt]) -> dict[tuple[str, int], Row]:
    """The table ``corrupt``."""
    return {(one.source, one.line_number): one._asdict() for one in spoilt}
