"""Our events in Celery's form, as Celery itself understands them; and the service that sends them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from celery.events.state import State
from celery.utils.time import adjust_timestamp

from coordd.core.wire import events
from coordd.services.mirror import form, service
from coordd.services.mirror.service import Mirrored

RUN = "sales@2027-01-15T02:00:00Z"
SENDER = form.Sender("coordd@n1", 42, 0)


def task(kind: Any, clock: int = 1, **fields: Any) -> Any:
    said = {"uuid": "u-1", "name": "sales", "run": RUN, "kwargs": '{"day":"today"}', "token": 7, **fields}
    return kind(clock=clock, timestamp=1000.0 + clock, **said)


def sent(event: Any, *, arguments: bool = False) -> dict[str, Any]:
    """The event as a monitor reads it from the wire."""
    said = form.task(event, SENDER, arguments=arguments)
    assert said is not None
    return dict(json.loads(form.body(said)))


def celery(*told: dict[str, Any]) -> State:
    state = State()
    for one in told:
        state.event({**one, "local_received": one["timestamp"]})
    return state


@pytest.mark.parametrize(
    ("kind", "fields", "state"),
    [
        (events.TaskSent, {}, "PENDING"),
        (events.TaskReceived, {}, "RECEIVED"),
        (events.TaskStarted, {"application_id": "local-1"}, "STARTED"),
        (events.TaskSucceeded, {"exit_code": 0, "runtime": 2.5}, "SUCCESS"),
        (events.TaskFailed, {"exit_code": 3, "runtime": 2.5}, "FAILURE"),
        (events.TaskRetried, {"reason": "its lease lapsed", "attempt": 1}, "RETRY"),
        (events.TaskRejected, {"reason": "overlap"}, "REJECTED"),
        (events.TaskRevoked, {"reason": "cancelled"}, "REVOKED"),
    ],
)
def test_celery_knows_each_event(kind: Any, fields: dict[str, Any], state: str) -> None:
    said = sent(task(kind, **fields))
    seen = celery(said).tasks["u-1"]

    assert seen.state == state
    assert (seen.name, seen.args, seen.kwargs) == ("sales", f"('{RUN}',)", "{}")
    assert (seen.client if kind is events.TaskSent else seen.worker.hostname) == "coordd@n1"
    assert seen.retries == fields.get("attempt", 0)
    assert said["run"] == RUN


def test_a_takeover_ends_in_success_with_its_runtime() -> None:
    state = celery(
        sent(task(events.TaskReceived, 1)),
        sent(task(events.TaskStarted, 2)),
        sent(task(events.TaskRetried, 3, reason="its lease lapsed", attempt=0)),
        sent(task(events.TaskReceived, 4, attempt=1)),
        sent(task(events.TaskStarted, 5, attempt=1)),
        sent(task(events.TaskSucceeded, 6, attempt=1, runtime=9.5, exit_code=0)),
    )

    seen = state.tasks["u-1"]
    assert (seen.state, seen.runtime, seen.retries) == ("SUCCESS", 9.5, 1)
    assert (seen.result, seen.exception) == ("exit code 0", "its lease lapsed")


def test_parameters_go_only_when_they_are_asked_for() -> None:
    assert sent(task(events.TaskReceived))["kwargs"] == "{}"
    assert sent(task(events.TaskReceived), arguments=True)["kwargs"] == '{"day":"today"}'


def test_texts_are_cut_and_other_events_have_no_form() -> None:
    assert len(sent(task(events.TaskFailed, exception="x" * 5000))["exception"]) == form.TEXT_MAX
    assert form.task(events.WorkerHeartbeat(), SENDER, arguments=False) is None
    assert form.task(events.JobLate(job="sales"), SENDER, arguments=False) is None
    assert json.loads(form.body({"type": "x", "reason": "\udcff"}))["reason"] == "\udcff"


@pytest.mark.parametrize("zone", ["UTC0", "CET-1CEST,M1.1.0/0,M12.5.0/23", "CET-1", "IST-5:30", "EST5"])
def test_a_monitor_in_the_same_zone_leaves_the_instants_as_they_are(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        store, of = Store(), driver()
        Mirrored(store, of, arguments=False)
        of.listeners[0]([task(events.TaskStarted)], [])
        told = store.told[0]

        assert adjust_timestamp(told["timestamp"], told["utcoffset"]) == told["timestamp"]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_workers_come_beat_and_go() -> None:
    about = {"freq": 2.0, "active": 1, "processed": 5, "loadavg": (0.1, 0.2, 0.3)}
    told = [
        form.worker(kind, SENDER, clock=number, timestamp=1000.0 + number, **about)
        for number, kind in enumerate((form.ONLINE, form.HEARTBEAT, form.OFFLINE))
    ]
    worker = celery(*told[:2]).workers["coordd@n1"]

    assert (worker.active, worker.processed, len(worker.heartbeats)) == (1, 5, 2)
    assert celery(*told).workers["coordd@n1"].heartbeats == []
    assert [form.routing_key(said["type"]) for said in told] == ["worker.online", "worker.heartbeat", "worker.offline"]


# ---- the service


class Store:
    """ports.Mirror in memory."""

    exchange = "coordd.prod:mirror"

    def __init__(self) -> None:
        self.error = "not connected yet"
        self.told: list[dict[str, Any]] = []
        self.connected: Callable[[], None] = lambda: None

    def put(self, key: str, body: bytes) -> None:
        self.told.append({"key": key, **json.loads(body)})

    async def run(self, connected: Callable[[], None]) -> None:
        self.connected = connected
        await trio.sleep_forever()

    def statistics(self) -> dict[str, int]:
        return {}

    def keys(self) -> list[str]:
        return [said["key"] for said in self.told]


def driver() -> Any:
    settings = SimpleNamespace(version="1.0", system="Linux")
    pursuits = SimpleNamespace(running={RUN: (0, 7, False)})
    node = SimpleNamespace(hostname="n1", pid=42, clock=99, processed=5, settings=settings, pursuits=pursuits)
    return SimpleNamespace(node=node, listeners=[])


def test_what_a_node_did_is_sent_and_nothing_else() -> None:
    store, of = Store(), driver()
    Mirrored(store, of, arguments=False)
    (saw,) = of.listeners
    saw([task(events.TaskStarted), events.ElectionDecided(id="x", topic="spark", run=RUN)], [])

    assert store.keys() == ["task.started"]
    assert store.told[0]["hostname"] == "coordd@n1"


def test_it_says_hello_beats_while_it_is_connected_and_says_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HEARTBEAT_S", 0.01)
    store, of = Store(), driver()

    async def play() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Mirrored(store, of, arguments=False).run)
            await trio.sleep(0.1)
            assert store.keys() == [], "heartbeats that are late would push out what happened"
            store.error = ""
            store.connected()
            while store.keys().count("worker.heartbeat") < 2:
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

    trio.run(play)

    assert store.keys()[0] == "worker.online"
    assert store.keys()[-1] == "worker.offline"
    assert (store.told[0]["active"], store.told[0]["processed"], store.told[0]["clock"]) == (1, 5, 99)
