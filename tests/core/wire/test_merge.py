"""The merge rules, compared with Celery's own event state."""

from __future__ import annotations

import random
from typing import Any

import pytest
from celery import states
from celery.events.state import State
from hypothesis import given, strategies as st
from support.search import examples

from coordd.core.wire import merge as core
from coordd.core.wire.merge import RunState, merge, order_key, run_key

TYPES = (*core.STATE_OF, "task-progress", "task-paused")
TEXT_FIELDS = ("name", "args", "kwargs", "root_id", "parent_id", "eta", "expires", "result", "exception", "nonce")
FIELDS = (*TEXT_FIELDS, "retries", "runtime", "exit_code")

Events = list[dict[str, Any]]


def events(attempts: bool) -> st.SearchStrategy[Events]:
    """Each field has few values, so that ties and late events are common."""
    optional: dict[str, st.SearchStrategy[Any]] = dict.fromkeys(TEXT_FIELDS, st.sampled_from(("x", "y", "z")))
    optional |= {"retries": st.integers(0, 2), "runtime": st.sampled_from((0.0, 1.5)), "exit_code": st.integers(0, 1)}
    if attempts:
        optional |= {
            "attempt": st.integers(0, 2),
            "token": st.integers(0, 2),
            "incarnation": st.sampled_from(("1", "2")),
        }
    required = {
        "type": st.sampled_from(TYPES),
        "uuid": st.sampled_from(("u1", "u2")),
        "hostname": st.sampled_from(("a", "b")),
        "pid": st.integers(1, 2),
        "clock": st.integers(0, 6),
        "timestamp": st.sampled_from((10.0, 10.5, 11.0)),
    }
    # If two events of one run had the same whole key, they would be the same event: nobody could order them.
    return st.lists(
        st.fixed_dictionaries(required, optional=optional), max_size=14, unique_by=lambda e: (e["uuid"], run_key(e))
    )


def celery_says(told: Events) -> dict[str, dict[str, Any]]:
    """Celery's state of each task after these events in this order, in our words."""
    cluster = State()
    for event in told:
        cluster.event({**event, "local_received": 0})
    result = {}
    for uuid, task in cluster.tasks.items():
        seen = {word: getattr(task, word, None) for word in (t.removeprefix("task-") for t in core.STATE_OF)}
        fields = {name: getattr(task, name, None) for name in (*FIELDS, "hostname", "pid", "clock")}
        result[uuid] = {"state": task.state.lower(), "seen": present(seen), "fields": present(fields)}
    return result


def we_say(runs: dict[str, RunState]) -> dict[str, dict[str, Any]]:
    named = {t.removeprefix("task-") for t in core.STATE_OF}
    wanted = {*FIELDS, "hostname", "pid", "clock"}
    return {
        uuid: {
            "state": run.state,
            "seen": {word: at for word, at in run.seen.items() if word in named},
            "fields": {name: value for name, value in run.fields.items() if name in wanted},
        }
        for uuid, run in runs.items()
    }


def everything(runs: dict[str, RunState]) -> dict[str, tuple[Any, ...]]:
    """The known state of each run."""
    return {uuid: (run.state, run.timestamp, run.seen, run.fields) for uuid, run in runs.items()}


def present(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def fold(told: Events) -> dict[str, RunState]:
    runs: dict[str, RunState] = {}
    for event in told:
        runs.setdefault(event["uuid"], RunState(event["uuid"])).apply(event)
    return runs


@given(events(attempts=False))
def test_fold_is_celerys_in_whatever_order_events_arrive(told: Events) -> None:
    assert we_say(fold(told)) == celery_says(told)


@given(events(attempts=False))
def test_merge_is_celerys_over_the_total_order(told: Events) -> None:
    in_order = sorted(told, key=lambda e: (order_key(e), core.life_rank(e["type"]), e["type"]))
    assert we_say(merge(told)) == celery_says(in_order)


@examples(200)
@given(events(attempts=True), st.randoms(use_true_random=False))
def test_merge_minds_neither_order_nor_duplicates(told: Events, rng: random.Random) -> None:
    again = told + [event for event in told if rng.random() < 0.5]
    rng.shuffle(again)
    assert everything(merge(told)) == everything(merge(again))


@examples(200)
@given(events(attempts=True))
def test_merge_is_what_the_rules_say_without_any_fold(told: Events) -> None:
    """The rules applied to the whole history at once, as the pipeline on Spark does."""
    expected = {}
    for uuid in {event["uuid"] for event in told}:
        story = sorted((event for event in told if event["uuid"] == uuid), key=run_key)
        states_told = [core.state_of(event["type"]) for event in story]
        attempts = [event.get("attempt") or 0 for event in story]
        since = max((n for n, state in enumerate(states_told) if state == "retry"), default=0)
        since = max(since, attempts.index(max(attempts)))
        if states_told[since] == "retry" and since < len(story) - 1:
            since += 1  # every event after it counts
        last = min((core.precedence(state), -n) for n, state in enumerate(states_told) if n >= since)[1]
        fields: dict[str, Any] = {}
        for n, event in enumerate(story):
            begun = max((m for m in range(n) if states_told[m] == "retry"), default=-1)
            begun = max(begun, attempts.index(attempts[n]) - 1)
            best = min((core.precedence(state) for state in states_told[begun + 1 : n]), default=99)
            late = states_told[n] == "received" and best < core.precedence("received")
            kept = core.MERGE_RULES["received"] if late else event.keys() - {"type", "timestamp"}
            fields |= {name: value for name, value in event.items() if name in kept and value not in (None, "")}
        seen = {event["type"].removeprefix("task-"): event["timestamp"] for event in story}
        expected[uuid] = (states_told[-last], story[-last]["timestamp"], seen, fields)

    assert everything(merge(told)) == expected


@pytest.mark.parametrize("one", core.PRECEDENCE)
@pytest.mark.parametrize("other", core.PRECEDENCE)
def test_precedence_is_celerys(one: str | None, other: str | None) -> None:
    def ours(state: str | None) -> int:
        return core.precedence(state or "a state of its own")

    def theirs(state: str | None) -> int:
        return int(states.precedence((state or "a state of its own").upper()))

    assert (ours(one) < ours(other)) == (theirs(one) < theirs(other))


def event(kind: str, clock: int, **more: Any) -> dict[str, Any]:
    return {
        "type": f"task-{kind}",
        "uuid": "u",
        "hostname": "a",
        "pid": 1,
        "clock": clock,
        "timestamp": clock / 2,
        **more,
    }


def test_a_late_received_still_brings_name_and_args() -> None:
    (run,) = fold(
        [
            event("succeeded", 4, runtime=2.0),
            event("received", 2, name="sales", args="[1]", root_id="r", retries=1, node="late", reason="late"),
        ]
    ).values()
    assert (run.state, run.timestamp) == ("success", 2.0)
    assert run.fields["name"] == "sales"
    assert run.fields["root_id"] == "r"
    assert "node" not in run.fields
    assert "reason" not in run.fields


def test_timestamp_is_that_of_the_state_where_celery_mixes_two_events() -> None:
    told = [event("succeeded", 4), event("started", 2)]
    cluster = State()
    for one in told:
        cluster.event({**one, "local_received": 0})
    task = cluster.tasks["u"]
    assert (task.state, task.timestamp) == ("SUCCESS", 1.0)  # the moment it started
    (run,) = fold(told).values()
    assert (run.state, run.timestamp) == ("success", 2.0)


def test_a_loss_that_is_told_late_does_not_undo_the_next_attempt() -> None:
    told = [
        event("started", 1, attempt=0),
        event("started", 3, attempt=1, token=9),
        event("succeeded", 5, attempt=1, token=9),
        event("retried", 8, attempt=0, token=7, reason="its runner is gone"),
    ]
    run = merge(told)["u"]
    assert (run.state, run.fields["attempt"], run.fields["token"]) == ("success", 1, 9)


def test_a_later_attempt_counts_whatever_became_of_the_one_before() -> None:
    """The holder says ``failed`` also when tries are left, and no event opens the next attempt."""
    for first in ("failed", "succeeded", "revoked"):
        told = [event("started", 1), event(first, 2), event("received", 4, attempt=1), event("started", 5, attempt=1)]
        assert [merge(told[:n])["u"].state for n in (3, 4)] == ["received", "started"], first
        for last, state in (("failed", "failure"), ("revoked", "revoked"), ("succeeded", "success")):
            assert merge([*told, event(last, 6, attempt=1)])["u"].state == state, (first, last)


def test_what_an_earlier_attempt_tells_late_changes_nothing_of_the_standing() -> None:
    told = [
        event("started", 3, attempt=1, node="b"),
        event("succeeded", 4, attempt=0, node="a", exit_code=0),
        event("retried", 5, attempt=0, node="a"),
    ]
    (run,) = fold(told).values()
    assert (run.state, run.timestamp) == ("started", 1.5)
    assert (run.fields["attempt"], run.fields["node"], run.fields["exit_code"]) == (1, "b", 0)


def test_retry_counts_and_what_follows_it_counts() -> None:
    told = [event("started", 1), event("failed", 2), event("retried", 3), event("received", 4)]
    assert [merge(told[:n])["u"].state for n in (2, 3, 4)] == ["failure", "retry", "received"]


def test_absent_none_and_empty_never_erase() -> None:
    told = [event("received", 1, name="sales"), event("started", 2, name=None), event("succeeded", 3, name="")]
    assert merge(told)["u"].fields["name"] == "sales"


def test_what_is_not_about_a_run_is_passed_over() -> None:
    heartbeat = {"type": "worker-heartbeat", "hostname": "a", "pid": 1, "clock": 1, "timestamp": 1.0}
    assert merge([heartbeat, {**event("started", 2), "uuid": ""}]) == {}
