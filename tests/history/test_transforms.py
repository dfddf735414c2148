"""Spark's result equals that of the plain reference, line by line and run by run."""

from __future__ import annotations

import random
from typing import Any

from pyspark.sql import Row

from coordd.core.wire.journal_line import decode_line, encode_line
from coordd.core.wire.merge import LIFE, RunState, merge
from coordd.history import transforms
from coordd.history.schema import RUN_FIELDS
from history.conftest import Frame, at_rest
from history.journals import Record, busy_day, disorder


def encoded(records: list[Record]) -> list[bytes]:
    return [encode_line(record) for record in records]


def as_spark_says(row: Row) -> dict[str, Any]:
    """The known fields of a run; null and absent are the same."""
    skipped = ("events", "job", "first_at", "date")
    return {name: value for name, value in row.asDict().items() if value is not None and name not in skipped}


def as_reference_says(run: RunState) -> dict[str, Any]:
    said: dict[str, Any] = {"uuid": run.uuid, "state": run.state, "timestamp": run.timestamp}
    said |= {name: run.fields[name] for name in RUN_FIELDS if name in run.fields}
    words = [word.removeprefix("task-") for word in LIFE]
    return said | {word: run.seen[word] for word in words if word in run.seen}


def spark_runs(lines: Frame, data: list[bytes]) -> dict[str, dict[str, Any]]:
    events = at_rest(transforms.events(transforms.checked(lines(data))))
    return {row.uuid: as_spark_says(row) for row in transforms.runs(events).collect()}


def test_disorderly_runs_are_rebuilt_as_the_reference_does(lines: Frame) -> None:
    records = disorder(seed=7, count=4000, uuids=400)
    expected = {uuid: as_reference_says(run) for uuid, run in merge(records).items()}
    assert len(expected) == 400
    assert spark_runs(lines, encoded(records)) == expected


def test_neither_order_nor_duplicates_matter(lines: Frame) -> None:
    records = disorder(seed=11, count=600, uuids=40)
    data = encoded(records)
    once = spark_runs(lines, data)
    rng = random.Random(3)
    again = data + rng.sample(data, 200)
    rng.shuffle(again)
    assert spark_runs(lines, again) == once


def test_events_come_once(lines: Frame) -> None:
    records = busy_day(seed=2, runs=12).records()
    data = encoded(records) * 2
    random.Random(5).shuffle(data)
    rows = transforms.events(transforms.checked(lines(data))).collect()
    assert sorted(row.line.encode() + b"\n" for row in rows) == sorted(encoded(records))
    assert {row.date.isoformat() for row in rows} == {"2026-09-21"}


def test_a_busy_day(lines: Frame) -> None:
    cluster = busy_day(seed=3, runs=20)
    events = at_rest(transforms.events(transforms.checked(lines(encoded(cluster.records())))))
    runs = {row.uuid: row for row in transforms.runs(events).collect()}
    reference = merge(cluster.records())
    assert {uuid: row.state for uuid, row in runs.items()} == {uuid: run.state for uuid, run in reference.items()}
    assert {row.job for row in runs.values()} == {"nightly-sales", "hourly-clicks", "load-orders", "compact"}
    launched = [r for r in cluster.records() if r["type"] == "task-started"]
    attempts = transforms.attempts(transforms.granted(events)).collect()
    assert sorted((a.run, a.attempt, a.token, a.nonce, a.hostname, a.started) for a in attempts) == sorted(
        (r["run"], r["attempt"], r["token"], r["nonce"], r["hostname"], r["timestamp"]) for r in launched
    )
    ended = {(r["run"], r["attempt"]): r for r in cluster.records() if r["type"] in transforms.ENDS}
    for attempt in attempts:
        end = ended.get((attempt.run, attempt.attempt))
        if end is None:
            assert (attempt.ended, attempt.outcome) == (None, None)
        else:
            assert abs(attempt.ended - end["timestamp"]) < 1e-3
            assert (attempt.exit_code, attempt.application_id) == (end["exit_code"], end["application_id"])


def test_every_kind_of_broken_line_is_kept_aside_with_its_reason(lines: Frame) -> None:
    whole = encode_line({"type": "task-started", "hostname": "edge-1", "clock": 1, "timestamp": 2.0, "uuid": "u"})
    other = encode_line({"type": "worker-online", "hostname": "edge-2", "clock": 2, "timestamp": 3.0})
    broken = {
        transforms.TORN: [whole[:20], whole[:-3], b"not json at all", whole[:-1] + b"\r", b'{"a":"\xff\xfe'],
        transforms.GLUED: [whole[:-1] + other[:-1], whole[:25] + other[:-1], other[:-1] + whole[:30]],
        transforms.CHECKSUM: [whole[:-1].replace(b'"clock":1', b'"clock":9'), whole[:-1].replace(b"edge", b"edg\xff")],
        transforms.NOT_AN_EVENT: [
            encode_line({"hello": 1})[:-1],
            encode_line({"type": "task-started", "hostname": "edge-1", "clock": "soon", "timestamp": 2.0})[:-1],
            encode_line({"type": "task-started", "hostname": "edge-1", "clock": 1, "timestamp": 2.0})[:-1],
        ],
    }
    data = [whole, b"\n"]
    for kind in broken.values():
        data += [line + b"\n" for line in kind]
    given = lines([*data, other])
    checked = transforms.checked(given)
    found = transforms.corrupt(checked, given).groupBy("problem").count().collect()
    assert {row.problem: row["count"] for row in found} == {kind: len(some) for kind, some in broken.items()}
    assert {row.type for row in transforms.events(checked).collect()} == {"task-started", "worker-online"}


def test_intact_is_what_the_line_format_says(lines: Frame) -> None:
    """Spark's checksum and the reference agree on good lines and on every one-byte change of one."""
    line = encode_line(
        {"type": "task-sent", "hostname": "edge-1", "clock": 1, "timestamp": 2.0, "uuid": "u", "args": "Grüße ☂"}
    )
    rng = random.Random(8)
    data = [line]
    for _ in range(300):
        at = rng.randrange(len(line) - 1)
        byte = rng.choice([b for b in range(256) if b not in (10, line[at])])
        data.append(line[:at] + bytes([byte]) + line[at + 1 :])
    assert sum(decode_line(one) is not None for one in data) == 1
    rows = transforms.checked(lines(data)).collect()
    assert len(rows) == 301
    assert [row.line for row in rows if row.kind == transforms.GOOD] == [line.decode()[:-1]]


def test_an_end_that_was_journalled_late_does_not_stretch_the_attempt(lines: Frame) -> None:
    base = {"hostname": "edge-1", "pid": 1, "uuid": "u", "run": "j#1", "attempt": 0, "token": 5, "nonce": "n"}
    started = {**base, "type": "task-started", "clock": 1, "timestamp": 100.0}
    told_late = {**base, "type": "task-succeeded", "clock": 9, "timestamp": 500.0, "runtime": 30.0, "exit_code": 0}
    other_grant = {**base, "type": "task-retried", "clock": 10, "timestamp": 101.0, "token": 4}
    hearsay = {**base, "type": "task-retried", "clock": 3, "timestamp": 120.0, "token": 0, "nonce": ""}
    events = transforms.events(transforms.checked(lines(encoded([started, told_late, other_grant, hearsay]))))
    (attempt,) = transforms.attempts(transforms.granted(events)).collect()
    assert (attempt.job, attempt.started, attempt.ended, attempt.outcome) == ("j", 100.0, 130.0, "success")
