"""The events of hooks: every node makes the same id of the same event, and a document that fits and says enough."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from support.small_cluster import EPOCH

from coordd.core.jobs.arguments import check_value
from coordd.core.jobs.job import IDENT
from coordd.core.ledger.rows import Hold
from coordd.core.ledger.words import STATES, TERMINAL, UNKNOWN
from coordd.services.hooks import happenings
from coordd.services.hooks.happenings import APART_S, Happening

FIELDS = {"event", "at", "cluster", "node", "job", "run", "attempt", "state", "reason", "sentence"}


def row(state: str, **fields: Any) -> Any:
    return SimpleNamespace(
        **{"run": "etl@2026-11-21T02:00:00Z", "job": "etl", "attempt": 2, "state": state, "node": "edge-1.7",
           "reason": "exit code 3: boom", **fields}
    )  # fmt: skip


def document(happening: Happening) -> dict[str, Any]:
    text = happening.document(at=EPOCH, cluster="c1", node="edge-9")
    check_value("event", text)  # it fits into an argument of a run
    read: dict[str, Any] = json.loads(text)
    return read


@pytest.mark.parametrize("state", STATES)
def test_the_end_of_a_run_is_an_event_and_nothing_else(state: str) -> None:
    happening = happenings.of_row(row(state))

    assert (happening is not None) == (state in TERMINAL or state == UNKNOWN)
    if happening is not None:
        told = document(happening)
        assert set(told) == FIELDS
        assert told["event"] == f"run.{state}"
        assert (told["job"], told["attempt"], told["state"], told["node"]) == ("etl", 2, state, "edge-1")
        assert told["sentence"].startswith("etl@2026-11-21T02:00:00Z ")


@pytest.mark.parametrize("text", ["x\x1b[31m\n\U0001f600", "\U0001f600", "é", "漢", '"', "\\", "\x1b", "x"])
def test_all_kinds_of_events_fit_and_have_ids(text: str) -> None:
    long = text * 5000
    every = [
        happenings.of_row(row("failure", reason=long)),
        happenings.lost_attempt("etl#1", 0, "edge-1.7", long),
        happenings.taken_over("etl#1", 0, "edge-1.7", long),
        happenings.late("etl", long, 0.0),
        happenings.lost_attempt("etl#1", 0, f"{long}.7", long),
        happenings.node_lost("edge-1.7", EPOCH),
        happenings.cluster_ready(3, EPOCH),
        happenings.node_joined("edge-1.7", "1-a", EPOCH),
        happenings.node_joined("edge-1.7", "", EPOCH),
        happenings.node_left("edge-1.7", "1-a", EPOCH),
        happenings.node_drained("edge-1", Hold(by=long, at=EPOCH, note=long)),
        happenings.node_resumed("edge-1", Hold(by=long, at=EPOCH)),
        happenings.breaker_opened("edge-1", "1-a", "ledger", 2, long),
    ]
    for happening in every:
        assert happening is not None
        assert set(document(happening)) == FIELDS
        assert IDENT.fullmatch(happening.ident())


def test_a_text_of_another_alphabet_is_told_too() -> None:
    told = document(happenings.late("etl", "не было успеха " * 100, 0.0))

    assert told["reason"].startswith("не было успеха не было успеха ")
    assert len(told["reason"]) > 100


def test_what_is_different_has_another_id() -> None:
    made = [
        happenings.late("etl", "", 0.0),
        happenings.late("etl", "", 5.0),
        happenings.late("sales", "", 0.0),
        happenings.of_row(row("failure")),
        happenings.of_row(row("failure", attempt=3)),
        happenings.of_row(row("lost")),
        happenings.lost_attempt("etl@2026-11-21T02:00:00Z", 1, "", ""),
        happenings.taken_over("etl@2026-11-21T02:00:00Z", 1, "", ""),
        happenings.breaker_opened("a", "1", "bus", 1, ""),
        happenings.breaker_opened("a", "1", "bus", 2, ""),
        happenings.breaker_opened("b", "1", "bus", 1, ""),
        happenings.node_lost("a.1", EPOCH),
        happenings.node_lost("a.2", EPOCH),
        happenings.node_lost("a.1", EPOCH + 2 * APART_S),
    ]

    assert len({happening.ident() for happening in made if happening is not None}) == len(made)


def test_an_attempt_that_is_lost_and_the_run_that_ends_so_are_one_event() -> None:
    ended = happenings.of_row(row("lost"))
    assert ended is not None
    assert ended.ident() == happenings.lost_attempt("etl@2026-11-21T02:00:00Z", 2, "edge-1.7", "x").ident()


@pytest.mark.parametrize("later_s", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("begin", [0.0, APART_S / 2, APART_S - 2.0])
def test_nodes_that_notice_the_same_within_seconds_know_each_others_ids(begin: float, later_s: float) -> None:
    at = EPOCH // APART_S * APART_S + begin
    first, second = happenings.node_lost("a.1", at), happenings.node_lost("a.1", at + later_s)

    assert first.ident() in second.idents()
