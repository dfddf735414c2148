"""The checks of rows, and of peers' messages, before the node uses them."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from support.small_cluster import EPOCH, Lone, job

from coordd.core.jobs.arguments import packed, unpacked
from coordd.core.ledger.rows import LedgerTime, Row
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.sound import policy_fault, run_fault
from coordd.core.ledger.steps import Life
from coordd.core.ledger.words import Policy
from coordd.core.wire import codec
from coordd.core.wire.events import Action, Candidacy, WorkerElect, WorkerHeartbeat
from coordd.errors import RefusedError, RemoteProtocolError

TASK = {"type": "task-started", "uuid": "u", "run": "sales#1", "name": "sales", "token": 7, "nonce": "n"}
ELECT = {"type": "worker-elect", "id": "sales#1/0", "topic": "spark", "candidacy": [0, 7, "b.2"]}


def row(**columns: Any) -> Row:
    made = Life()._new_row(
        Registration("sales#1", "sales", "d1", Policy(), EPOCH, scheduled=False), LedgerTime(EPOCH, 1.0)
    )
    for column, value in columns.items():
        setattr(made, column, value)
    return made


def test_what_a_node_writes_is_sound() -> None:
    assert run_fault(row()) == ""
    assert run_fault(row(exit_code=-9, reason="line one\nline two \u00e9", args='{"who": "x"}')) == ""


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("fire_at", math.nan),
        ("fire_at", math.inf),
        ("fire_at", 1e308),
        ("fire_at", -1.0),
        ("fire_at", "x"),
        ("fire_at", True),
        ("token", 2**60),
        ("token", 1.0),
        ("attempt", 10**9),
        ("state", "resting"),
        ("run", None),
        ("run", b"x"),
        ("job", "a\0b"),
        ("args", "x" * 70_000),
        ("reason", "\udc80"),
        ("exit_code", 1.5),
        ("cancel", 2),
    ],
)
def test_a_value_that_no_node_writes_is_named_by_its_column(column: str, value: Any) -> None:
    assert run_fault(row(**{column: value})).startswith(f"{column}: ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "relaunch forbid 1 5 30.0 fixed",
        "relaunch forbid 1 5 nan fixed 1.0",
        "relaunch forbid -1 5 1.0 fixed 1.0",
        "relaunch forbid 1 5 1.0 fixed inf",
        "relaunch maybe 1 5 1.0 fixed 1.0",
        "relaunch forbid 1e3 5 1.0 fixed 1.0",
        "relaunch forbid 1 5 1.0 fixed 1.0 more",
    ],
)
def test_a_policy_that_no_node_writes(text: str) -> None:
    assert policy_fault(text).startswith("policy: ")
    assert policy_fault(Policy().pack()) == ""


def packet(*said: dict[str, Any], **head: Any) -> bytes:
    fields = {"v": 1, "cluster": "default", "hostname": "b", "pid": 2, "incarnation": "1-b", "seq": 1, "utcoffset": 0}
    return msgspec.msgpack.encode({**fields, **head, "events": list(said)})


@pytest.mark.parametrize(
    "fields",
    [
        {"fire_at": 1e308},
        {"fire_at": math.nan},
        {"fire_at": -1.0},
        {"attempt": 2**40},
        {"attempt": -1},
        {"token": 2**63},
        {"token": -5},
        {"timestamp": math.nan},
        {"timestamp": math.inf},
        {"runtime": math.inf},
        {"exit_code": 2**50},
        {"retries": -1},
        {"run": "r" * 2000},
        {"node": "n" * 5000},
    ],
)
def test_an_event_with_a_value_out_of_bounds_is_dropped_and_the_others_are_read(fields: dict[str, Any]) -> None:
    beat = {"type": "worker-heartbeat", "freq": 2.0}
    read, dropped = codec.decode(packet(beat, {**TASK, **fields}))
    assert (dropped, [type(event) for event in read.events]) == (1, [WorkerHeartbeat])


@pytest.mark.parametrize("head", [{"pid": -1}, {"seq": -1}, {"utcoffset": 2**40}, {"hostname": "h" * 2000}])
def test_a_packet_whose_head_is_out_of_bounds_is_refused(head: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode(packet(TASK, **head))


@pytest.mark.parametrize(
    "said",
    [
        {"type": "worker-heartbeat", "freq": math.nan},
        {"type": "worker-heartbeat", "loadavg": [math.nan, 0.0, 0.0]},
        {"type": "worker-hello-reply", "tokens": {"sales": 2**62}},
        {"type": "worker-heartbeat", "active": -1},
        {**ELECT, "action": {"job": "sales", "run": "sales#1", "fire_at": 1e300}},
        {**ELECT, "action": {"job": "sales", "run": "sales#1", "attempt": 2**50}},
    ],
)
def test_other_events_out_of_bounds(said: dict[str, Any]) -> None:
    assert codec.decode(packet(said))[1] == 1


@pytest.mark.parametrize(
    "text", ['{"who": 5}', "not json", "[]", "null", "", '{"a": null}', "[" * 20_000, '{"a": "b\\u0000"}', "x" * 40_000]
)
def test_arguments_of_others_are_an_object_of_single_lines(text: str) -> None:
    with pytest.raises(RefusedError):
        unpacked(text)
    assert unpacked(packed({"who": "ann", "day": "{x}"})) == {"who": "ann", "day": "{x}"}


@pytest.mark.parametrize(
    "action",
    [
        Action("sales", "sales#1", args='{"who": 5}'),
        Action("sales", "sales#1", args="not json"),
        Action("sales", "../../x"),
        Action("sales", "other#1"),
        Action("sales", "sales#a/b"),
        Action("sales", "sales"),
        Action("sales", "sales@1e308", fire_at=3e10, scheduled=True),
    ],
)
def test_a_peer_cannot_make_a_run_of_what_nobody_could_have_asked_for(action: Action) -> None:
    lone = Lone(job("sales"), peers=("b.1",)).ready()
    elect = WorkerElect(
        id=f"{action.run}/0", topic="command", candidacy=Candidacy(0, 5, "b.1"), view=("a.1", "b.1"), action=action
    )
    lone.hear("b.1", elect)
    assert lone.node.pursuits.pursuits == {}
