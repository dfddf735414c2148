"""Sinks in the service of hooks: which ends they are sent, what a document has, and that none is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.small_cluster import EPOCH

from coordd.config.hooks.sink import SinkHook
from coordd.core.jobs.after import TOLD_MAX
from coordd.core.jobs.arguments import packed, unpacked
from coordd.core.wire import events
from coordd.services.hooks import outcome, service as module
from services.hooks.test_service import Machine, failed, row

ALL = SinkHook(on=("run.failure", "run.lost", "run.success"), to="file:///o", name="sink.o", patterns=("etl*",))


def ended(run: str, state: str = "failure", **fields: Any) -> Any:
    said = {
        "token": 7,
        "exit_code": 3,
        "fire_at": 0.0,
        "scheduled": False,
        "args": '{"day": "x"}',
        "by": "after extract@1, load@2",
        **fields,
    }
    return row(run, state, started_at=EPOCH - 2.5, reason="exit code 3", **said)


def test_only_ends_of_its_jobs_are_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, monkeypatch, ALL)
    machine.look()
    lost = events.TaskRetried(uuid="u", name="etl", run="etl#2", attempt=0, node="b.2", result="lost")
    machine.rows = {"etl#1": ended("etl#1"), "other#1": ended("other#1"), "etl#2": ended("etl#2", "retry", attempt=1)}
    machine.journals(failed("etl#1"), failed("other#1"), lost)

    (document,) = machine.look(1.0)
    assert document == {
        "id": "etl#1", "job": "etl", "state": "failure", "attempt": 0, "node": "a", "token": 7, "exit_code": 3,
        "reason": "exit code 3", "fire_time": None, "started_at": document["started_at"],
        "ended_at": document["ended_at"], "runtime_s": 2.5, "parents": ["extract@1", "load@2"], "cluster": "c1",
    }  # fmt: skip
    assert machine.look(60.0) == []


def test_a_burst_waits_and_none_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SINK_A_MINUTE", 2)
    machine = Machine(tmp_path, monkeypatch, ALL)
    machine.look()
    machine.rows = {f"etl#{number}": ended(f"etl#{number}") for number in range(5)}
    machine.journals(*[failed(run) for run in machine.rows])

    sent = [one["id"] for minute in range(3) for one in machine.look(60.0 if minute else 1.0)]
    assert sorted(sent) == sorted(machine.rows)
    assert machine.hooks.dropped == 0


def test_ends_that_nobody_heard_of_are_read_a_part_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OFFERED_MAX", 2)
    monkeypatch.setattr(module, "SINK_ROWS", 7)
    monkeypatch.setattr(module, "READ_ROWS", 1)
    machine = Machine(tmp_path, monkeypatch, ALL)
    machine.look()
    machine.look(1.0)
    machine.rows = {f"etl#{number}": ended(f"etl#{number}") for number in range(7)}

    assert len(machine.look(module.READ_S)) == 1
    assert len(machine.look(module.SINK_READ_S)) == 6
    machine.hooks._ended_rows.extend(machine.rows.values())
    machine.hooks._offer_rows()
    assert len(machine.hooks._ended_rows) == 5


@pytest.mark.parametrize(("args", "said"), [('{"day": "x"}', {"day": "x"}), (json.dumps({"a": "x" * 3000}), None)])
def test_arguments_are_bounded(args: str, said: Any) -> None:
    found = json.loads(outcome.document(ended("etl#1", args=args), cluster="c", args=True))

    assert found["args"] == said
    assert len(json.dumps(found)) < 4096


def test_the_largest_document_is_still_an_argument_of_the_calls_run() -> None:
    """Of a run with many parents, and a reason that is not ASCII; otherwise its end never reaches the sink."""
    parents = ", ".join([f"extract-{number:03}@2026-11-28T02:00:00Z" for number in range(28)])
    assert len(parents) <= TOLD_MAX
    row = ended("join@2026-11-28T02:00:00Z", by=f"after {parents}", args=json.dumps({"a": "x" * 2000}))
    row.reason = "\N{CYRILLIC SMALL LETTER EN}" * 400
    told = outcome.document(row, cluster="prod", args=True)
    assert json.loads(unpacked(packed({"event": told}))["event"])["args"] is None
    row.reason = "exit code 3"
    assert json.loads(outcome.document(row, cluster="prod", args=True))["args"] == {"a": "x" * 2000}
