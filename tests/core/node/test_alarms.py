"""Two starts of one attempt raise an alarm, which stays until a person clears it."""

from __future__ import annotations

import json

import pytest
from support.small_cluster import Lone, job

from coordd.core.node import alarms as module
from coordd.core.node.alarms import Alarms
from coordd.core.wire.events import ControlClear, Task, TaskReceived, TaskStarted

IDENT = "sales#1/0:5:7"


def started(token: int, node: str, *, run: str = "sales#1", attempt: int = 0, kind: type[Task] = TaskStarted) -> Task:
    return kind(uuid="u", name="sales", run=run, attempt=attempt, token=token, nonce="n", node=node, timestamp=9.0)


def lone() -> Lone:
    return Lone(job("sales")).ready()


def alarms(one: Lone) -> Alarms:
    return one.node.alarms


@pytest.mark.parametrize("order", [(5, 7), (7, 5)])
def test_two_starts_under_different_tokens_raise_one(order: tuple[int, int]) -> None:
    """Whatever the order, and with repeated messages, every node computes the same id."""
    one = lone()
    for token in (*order, *order):
        one.hear(f"n{token}.1", started(token, f"n{token}.1"))
    [alarm] = alarms(one).standing.values()
    assert (alarm["id"], alarm["kind"], alarm["run"], alarm["attempt"]) == (IDENT, "started-twice", "sales#1", 0)
    assert "on n5.1 under token 5, and on n7.1 under token 7" in alarm["text"]
    assert [event for event, _ in one.notices].count("alarm.raised") == 1


@pytest.mark.parametrize(
    "others",
    [
        [started(5, "b.1")],  # the same start again
        [started(7, "b.1", attempt=1)],
        [started(7, "b.1", run="sales#2")],
        [started(7, "b.1", kind=TaskReceived)],  # granted again, but never started under this token
        [started(0, "b.1")],
    ],
)
def test_what_is_no_second_start_raises_none(others: list[Task]) -> None:
    one = lone()
    one.hear("a2.1", started(5, "a2.1"))
    one.hear("b.1", *others)
    assert alarms(one).standing == {}


def test_an_own_start_and_one_of_the_journal_count_too() -> None:
    one = lone()
    one.node.recall(started(5, "a.1"))
    one.do(lambda now: one.node.ctx.record(started(7, "a.1"), now))
    assert list(alarms(one).standing) == [IDENT]


def test_late_news_counts() -> None:
    one = lone()
    one.hear("b.1", started(5, "b.1"))
    packet_of = started(7, "c.1")
    packet_of.clock = 3
    one.node._on_task(packet_of, one.now)
    assert list(alarms(one).standing) == [IDENT]


def test_it_outlives_a_restart_and_is_cleared_by_a_person_for_all() -> None:
    one = lone()
    one.hear("b.1", started(5, "b.1"))
    one.hear("c.1", started(7, "c.1"))
    kept = json.loads(json.dumps(alarms(one).kept()))
    again = lone()
    again.node.alarms.recall(kept)
    assert list(alarms(again).standing) == [IDENT]
    again.forget()
    done: list[str] = []
    again.do(lambda now: done.extend(again.node.clear_alarms((IDENT, "x"), "looked", "ann", now)))
    assert (done, alarms(again).standing) == ([IDENT], {})
    [told] = [event for event in again.said if isinstance(event, ControlClear)]
    assert (told.ids, told.note, told.by) == ((IDENT,), "looked", "ann")
    one.hear("b.1", told)
    assert alarms(one).standing == {}
    for node in (one, again):
        node.hear("b.1", started(5, "b.1"))
        node.hear("c.1", started(7, "c.1"))
        assert alarms(node).standing == {}, "it is not raised again"
    last = lone()
    last.node.alarms.recall(json.loads(json.dumps(alarms(one).kept())))
    assert last.node.alarms.cleared == {IDENT: "looked"}


def test_the_shell_is_told_to_keep_them() -> None:
    one = lone()
    one.node.recall(started(5, "b.1"))
    one.node.recall(started(7, "c.1"))
    assert one.node.ready().alarms_changed
    assert not one.node.ready().alarms_changed


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STARTS_MAX", 3)
    monkeypatch.setattr(module, "ALARMS_MAX", 2)
    monkeypatch.setattr(module, "CLEARED_MAX", 2)
    one = lone()
    for number in range(10):
        one.node.recall(started(5, "b.1", run=f"sales#{number}"))
        one.node.recall(started(7, "b.1", run=f"sales#{number}"))
    assert len(alarms(one)._starts) == 3
    assert len(alarms(one).standing) == 2
    one.do(lambda now: one.node.clear_alarms(tuple(f"x{n}" for n in range(9)), "x", "ann", now))
    assert len(alarms(one).cleared) == 2


@pytest.mark.parametrize(
    "kept", [{}, {"standing": 7, "cleared": []}, {"standing": [7, {}, {"id": "x"}]}, {"standing": [{"id": 7}]}]
)
def test_a_file_that_is_none_of_ours_brings_none(kept: dict[str, object]) -> None:
    one = lone()
    one.node.alarms.recall(kept)
    assert alarms(one).standing == {}
