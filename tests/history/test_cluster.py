"""Nodes, elections and fire times, from journals; and the columns that docs/history.md promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coordd.core.wire.events import (
    BreakerChanged,
    ElectionDecided,
    Event,
    TaskReceived,
    TaskRejected,
    TaskSent,
    TaskStarted,
    TaskSucceeded,
    WorkerOffline,
    WorkerOnline,
)
from coordd.core.wire.journal_line import encode_line
from coordd.history import cluster, transforms
from coordd.history.schema import TABLES
from history.conftest import Frame, at_rest
from history.journals import DAY, Cluster

Tables = dict[str, dict[Any, Any]]

GRANT: dict[str, Any] = {
    "uuid": "u1",
    "name": "sales",
    "run": "sales@1",
    "fire_at": DAY,
    "due": DAY + 2.0,
    "token": 7,
    "nonce": "n",
}


def election(number: int) -> ElectionDecided:
    return ElectionDecided(
        id=f"e{number}",
        topic="run",
        run=f"sales@{number}",
        opened_by="edge-1.1000",
        succession=("edge-2.1001", "edge-1.1000"),
        abstained={"edge-3.1002": "budget"},
        duration=0.02,
    )


def told() -> Cluster:
    made = Cluster(nodes=3)
    begin: list[Event] = [
        WorkerOnline(sw_ver="0.2.0", tags=("gpu",)),
        election(1),
        TaskSent(uuid="u1", name="sales", run="sales@1", fire_at=DAY),
        TaskReceived(**GRANT),
    ]
    for event in begin:
        made.say("edge-1", event)
    made.say("edge-2", election(1))
    made.now += 5.0
    ends: list[Event] = [
        TaskStarted(**GRANT),
        TaskSucceeded(**GRANT, exit_code=0),
        TaskRejected(uuid="u2", name="sales", run="sales@2", fire_at=DAY + 60, reason="overlap", result="rejected"),
        TaskRejected(uuid="u3", name="sales", run="sales@3", fire_at=DAY + 120, reason="late", result="missed"),
        TaskRejected(
            uuid="u4", name="sales", run="sales@4", fire_at=DAY, reason="late; its job is suspended", result="missed"
        ),
        TaskRejected(
            uuid="u5", name="sales", run="sales@5", fire_at=DAY, reason="late; it waited for sales@4", result="missed"
        ),
        TaskSent(uuid="u6", name="sales", run="sales@6", fire_at=DAY + 180),
        TaskSent(uuid="u7", name="sales", run="sales#by-hand", fire_at=DAY),
        TaskSent(uuid="u8", name="sales", run="sales@far", fire_at=1e300),
        WorkerOffline(),
    ]
    for event in ends:
        made.say("edge-1", event)
    for node, since, state, trips in (
        ("edge-1", DAY + 1.0, "open", 1),
        ("edge-2", DAY + 1.0, "open", 1),
        ("edge-1", DAY + 3.0, "half_open", 1),
        ("edge-2", DAY + 3.0, "closed", 0),
        ("edge-1", DAY + 3.0, "closed", 0),
        ("edge-1", 1e300, "open", 2),
    ):
        made.now += 0.5
        made.say(node, BreakerChanged(breaker="job:sales", state=state, since=since, trips=trips, reason=f"is {state}"))
    for state in ("open", "closed"):
        made.now += 1.0
        made.say("edge-2", BreakerChanged(breaker="ledger", state=state, since=DAY, trips=3, reason="no answer"))
    return made


@pytest.fixture(scope="module")
def tables(lines: Frame) -> Tables:
    events = at_rest(transforms.events(transforms.checked(lines(map(encode_line, told().records())))))
    runs, attempts = transforms.runs(events), transforms.attempts(transforms.granted(events))
    return {
        "nodes": {row.hostname: row for row in cluster.nodes(events).collect()},
        "elections": {row.id: row for row in cluster.elections(events).collect()},
        "breakers": {(row.breaker, row.since): row for row in cluster.breakers(events).collect()},
        "fires": {row.run: row for row in cluster.fires(runs, attempts).collect()},
    }


def test_a_node_has_a_row_for_each_life(tables: Tables) -> None:
    one, two = tables["nodes"]["edge-1"], tables["nodes"]["edge-2"]
    assert (one.version, one.launches, one.events) == ("0.1.0", 1, 19), "it came online twice: the first counts"
    assert (one.first_at, one.online_at, one.offline_at) == (DAY, DAY, DAY + 5.0)
    assert (two.pid, two.offline_at, two.version) == (1001, None, "0.1.0")


def test_an_election_that_two_nodes_record_is_one(tables: Tables) -> None:
    (one,) = tables["elections"].values()
    assert (one.job, one.run, one.first, one.told_by) == ("sales", "sales@1", "edge-2.1001", ["edge-1", "edge-2"])
    assert (one.abstained, one.silent, one.duration_s) == ({"edge-3.1002": "budget"}, None, 0.02)


def test_each_time_that_a_breaker_is_not_closed_is_a_row(tables: Tables) -> None:
    found = tables["breakers"]
    assert found.keys() == {("job:sales", DAY + 1.0), ("job:sales", DAY + 3.0), ("ledger", DAY)}
    opened, tried, own = found["job:sales", DAY + 1.0], found["job:sales", DAY + 3.0], found["ledger", DAY]
    assert (opened.state, opened.trips, opened.closed_at, opened.told_by) == ("open", 1, None, ["edge-1", "edge-2"])
    assert (opened.hostname, opened.job, opened.reason) == ("", "sales", "is open")
    assert (tried.state, tried.closed_at) == ("half_open", DAY + 7.0), "the first node that saw it closed"
    assert (own.hostname, own.job, own.state, own.trips, own.closed_at - own.since) == ("edge-2", None, "open", 3, 10.0)


def test_each_fire_time_has_its_decision(tables: Tables) -> None:
    assert {run: row.decision for run, row in tables["fires"].items()} == {
        "sales@1": "launched",
        "sales@2": "rejected",
        "sales@3": "missed",
        "sales@4": "suspended",
        "sales@5": "limited",
        "sales@6": None,
    }
    assert (tables["fires"]["sales@1"].due, tables["fires"]["sales@1"].delay_s) == (DAY + 2.0, 3.0)


def test_the_docs_name_every_column() -> None:
    text = (Path(__file__).parents[2] / "docs" / "history.md").read_text()
    sections = dict(re.findall(r"### `(\w+)`\n(.*?)(?=\n### |\Z)", text, re.DOTALL))
    assert sections.keys() == TABLES.keys()
    for name, columns in TABLES.items():
        inherited = set(TABLES["events"]) if name == "runs" else set()
        missing = [column for column in columns if f"`{column}`" not in sections[name] and column not in inherited]
        assert not missing, f"docs/history.md, {name}"
