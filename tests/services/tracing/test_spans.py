"""The spans of a run, made from its rows."""

from __future__ import annotations

from typing import Any

import pytest
from support.small_cluster import EPOCH

from coordd.core.ledger.rows import ATTEMPT_COLUMNS, RUN_COLUMNS, AttemptRow, Row
from coordd.core.ledger.words import STATES
from coordd.core.trace import Span, span_id, trace_id, traceparent
from coordd.core.wire.events import ElectionDecided
from coordd.services.tracing import spans

RUN = "etl@2026-11-21T02:00:00Z"


def row(state: str = "success", **columns: Any) -> Row:
    values: dict[str, Any] = dict.fromkeys(RUN_COLUMNS, "") | {
        "run": RUN, "job": "etl", "state": state, "attempt": 0, "fire_at": EPOCH, "due": EPOCH,
        "created_at": EPOCH - 1.0, "ended_at": EPOCH + 60.0, **columns,
    }  # fmt: skip
    return Row([values[column] for column in RUN_COLUMNS])


def attempt(number: int = 0, state: str = "success", **columns: Any) -> AttemptRow:
    values: dict[str, Any] = {
        "run": RUN, "attempt": number, "token": 7, "nonce": "secret-nonce", "node": "edge-1.42", "state": state,
        "received_at": EPOCH - 1.0, "started_at": EPOCH, "ended_at": EPOCH + 60.0, "exit_code": 0,
        "application_id": "", "reason": "", **columns,
    }  # fmt: skip
    return AttemptRow([values[column] for column in ATTEMPT_COLUMNS])


def by_name(found: list[Span]) -> dict[str, Span]:
    return {span.name: span for span in found}


def test_the_parts_of_an_attempt_follow_each_other() -> None:
    found = by_name(spans.of_attempt("c", row(), [attempt()], 0, 58.0))

    own = found["attempt 0"]
    assert {span.parent for name, span in found.items() if name != "attempt 0"} == {own.id}
    assert own.parent == span_id(trace_id("c", RUN), "run")
    times = [(found[name].start - EPOCH, found[name].end - EPOCH) for name in ("claim", "gate", "exec", "end")]
    assert times == [(-1.0, -1.0), (-1.0, 0.0), (0.0, 58.0), (58.0, 60.0)]
    assert (own.good, own.links, found["exec"].good) == (True, (), True)
    assert "secret-nonce" not in repr(found)


def test_the_next_attempt_begins_where_the_one_before_ended_and_is_linked_to_it() -> None:
    rows = [
        attempt(0, "lost", node="edge-1.42", ended_at=EPOCH + 30.0, reason="its lease lapsed"),
        attempt(1, node="edge-2.7", received_at=EPOCH + 31.0, started_at=EPOCH + 32.0),
    ]
    first = by_name(spans.of_attempt("c", row(attempt=1), rows, 0, None))
    second = by_name(spans.of_attempt("c", row(attempt=1), rows, 1, 20.0))

    assert (first["attempt 0"].good, first["attempt 0"].reason) == (False, "lost: its lease lapsed")
    assert (first["exec"].end, first["end"].start) == (EPOCH + 30.0, EPOCH + 30.0), "nobody knows how long it ran"
    assert second["attempt 1"].links == (first["attempt 0"].id,)
    assert (second["claim"].start, second["claim"].end) == (EPOCH + 30.0, EPOCH + 31.0)
    assert {span.trace for span in (*first.values(), *second.values())} == {trace_id("c", RUN)}
    assert len({span.id for span in (*first.values(), *second.values())}) == 10


def test_an_attempt_that_was_never_let_go_has_no_program() -> None:
    found = by_name(spans.of_attempt("c", row("revoked"), [attempt(state="revoked", started_at=0.0)], 0, None))

    assert set(found) == {"attempt 0", "claim"}
    assert found["attempt 0"].good is None
    assert spans.of_attempt("c", row(), [], 0, None) == []
    assert spans.of_attempt("c", row(), [attempt(ended_at=0.0)], 0, None) == []


@pytest.mark.parametrize("state", STATES)
def test_the_root_says_how_the_run_ended(state: str) -> None:
    root, fire = spans.of_run("c", row(state, reason="because"))

    assert (root.name, root.parent, fire.parent) == ("run etl", "", root.id)
    assert (root.start, root.end, fire.start) == (EPOCH - 1.0, EPOCH + 60.0, EPOCH)
    assert root.attributes["coordd.state"] == state
    bad = state in ("failure", "lost", "unknown", "missed", "rejected")
    assert root.good is (False if bad else True if state == "success" else None)
    assert root.reason == (f"{state}: because" if bad else "")


def test_an_election_says_who_was_first_and_who_abstained() -> None:
    event = ElectionDecided(
        id=f"{RUN}/1", topic="command", run=RUN, attempt=1, opened_by="a.1", succession=("b.2", "a.1"),
        abstained={"c.3": "drained"}, duration=0.25, timestamp=EPOCH,
    )  # fmt: skip
    span = spans.of_election("c", event)

    assert (span.start, span.end) == (EPOCH - 0.25, EPOCH)
    assert span.attributes["coordd.succession"] == ("b.2", "a.1")
    assert span.attributes["coordd.abstained"] == ("c.3: drained",)
    assert "coordd.silent" not in span.attributes


def test_ids_are_those_of_w3c_and_differ_where_they_must() -> None:
    traces = {trace_id(cluster, run) for cluster in ("a", "b") for run in ("x#1", "x#2")}
    assert len(traces) == 4
    trace = trace_id("a", "x#1")
    assert trace == "55bf212304616cbc8fafb1a6cf52502d", "another version makes the same ones"
    said = traceparent(trace, spans.program_span(trace, 1), sampled=True)
    version, told, span, flags = said.split("-")
    assert (version, told, flags, len(told), len(span)) == ("00", trace, "01", 32, 16)
    assert spans.program_span(trace, 0) != span
    assert traceparent(trace, span, sampled=False).endswith("-00")
