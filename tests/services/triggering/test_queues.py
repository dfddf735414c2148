"""Messages of a queue: acknowledged when the ledger has their runs, put aside when they can start none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio

from coordd.core.jobs.trigger import Trigger
from coordd.core.triggers.arrivals import run_of
from coordd.core.triggers.messages import Batch, Message
from coordd.errors import UnavailableError
from coordd.services.triggering.queues import READ_MAX, QueueSource
from coordd.services.triggering.sources import Look

from .test_taking import Machine

ORDERS = Trigger(kind="redis", name="drop", stream="orders", args={"file": "{trigger.body.what}"}, max_open=3)


class Queue:
    """ports.MessageQueue in memory."""

    def __init__(self, *messages: Message) -> None:
        self.messages = list(messages)
        self.asked: list[int] = []
        self.dead: list[tuple[str, str]] = []
        self.closed = 0

    async def read(self, most: int) -> Batch:
        self.asked.append(most)
        return Batch(self.messages[:most], len(self.messages), len(self.dead))

    async def acknowledge(self, places: Sequence[str]) -> None:
        self.messages = [one for one in self.messages if one.place not in places]

    async def put_aside(self, dead: Sequence[tuple[str, str]]) -> None:
        self.dead += dead
        await self.acknowledge([place for place, _ in dead])

    async def take_back(self, dead: str, *, again: bool) -> bool:
        found = [one for one in self.dead if one[0] == dead]
        self.dead = [one for one in self.dead if one[0] != dead]
        self.messages += [Message(place, "") for place, _ in found if again]
        return bool(found)

    async def close(self) -> None:
        self.closed += 1

    def left(self) -> list[str]:
        return [one.place for one in self.messages]


def message(number: int, what: str = "", **more: Any) -> Message:
    return Message(f"p{number}", f"m{number}", f"d{number}", {"what": what or str(number)}, **more)


class Poller:
    """A node that polls: a source, and a taker with its ledger."""

    def __init__(self, queue: Queue, trigger: Trigger = ORDERS, machine: Machine | None = None) -> None:
        self.machine = machine or Machine(trigger)
        self.source = QueueSource(trigger, queue)

    def look(self, *, settles: bool = True) -> tuple[Look, bool]:
        async def turn() -> tuple[Look, bool]:
            taker = self.machine.taker
            look = await self.source.look(taker.room)
            await taker.take(look.arrivals, look.refused)
            return look, settles and await self.source.settle(taker.recorded, taker.impossible)

        return trio.run(turn)


def rows(*idents: str) -> set[str]:
    return {run_of("j", "drop", ident) for ident in idents}


def test_a_message_is_acknowledged_when_its_run_is_in_the_ledger_and_others_stay_where_they_are() -> None:
    queue = Queue(*[message(number) for number in range(5)])
    poller = Poller(queue)
    look, again = poller.look()
    assert (set(poller.machine.rows), queue.left(), queue.asked) == (rows("m0", "m1", "m2"), ["p3", "p4"], [0, 3])
    assert (look.behind, again) == (2, True)

    look, again = poller.look()
    assert (look.arrivals, look.behind, again, queue.asked[2:]) == ([], 5 - 3, False, [0])
    poller.machine.rows = dict.fromkeys(poller.machine.rows, "success")
    poller.look()
    assert (len(poller.machine.rows), queue.left()) == (5, [])


def test_a_poller_that_dies_between_row_and_acknowledgement_makes_no_second_run() -> None:
    queue = Queue(message(0), message(1))
    first = Poller(queue)
    first.look(settles=False)
    assert queue.left() == ["p0", "p1"]

    second = Poller(queue)
    second.machine.rows = first.machine.rows
    second.look()
    second.look()
    assert (second.machine.triggered, queue.left()) == ([], [])


def test_a_run_that_is_only_on_this_nodes_disk_acknowledges_nothing() -> None:
    queue = Queue(message(0))
    poller = Poller(queue)
    poller.machine.durable = "node"
    poller.look()
    assert (queue.left(), len(poller.machine.triggered)) == (["p0"], 1)
    poller.machine.rows.clear()  # the ledger does not have it yet
    poller.look()
    assert (queue.left(), len(poller.machine.triggered)) == (["p0"], 1)
    poller.machine.rows = dict.fromkeys(rows("m0"), "pending")
    poller.look()
    assert queue.left() == []


def test_nothing_is_acknowledged_while_the_ledger_is_away() -> None:
    queue = Queue(message(0))
    poller = Poller(queue)
    poller.machine.down = True
    with pytest.raises(UnavailableError):
        poller.look()
    assert queue.left() == ["p0"]


def test_a_poisoned_message_is_put_aside_and_the_others_are_taken() -> None:
    bad = message(0, problem="expected JSON")
    empty = Message("p1", "m1", "d1", {})
    long = message(2, "x" * 5000)
    queue = Queue(bad, empty, long, message(3))
    poller = Poller(queue, ORDERS)
    poller.look()
    poller.look()
    dead = dict(queue.dead)
    assert (sorted(dead), len(queue.dead), dead["p0"]) == (["p0", "p1", "p2"], 3, "expected JSON")
    assert "{trigger.body.what}" in dead["p1"]
    assert (queue.left(), set(poller.machine.rows)) == ([], rows("m3"))
    assert poller.machine.taker.counts["refused"] == 3


def test_a_message_that_cannot_be_put_aside_does_not_hold_up_the_others() -> None:
    """As where the user has no right to the queue of dead messages; the connection, and what it holds, is gone then."""
    queue = Queue(message(0, problem="expected JSON"), message(1), message(2))

    async def refuse(dead: Sequence[tuple[str, str]]) -> None:
        if dead:
            raise UnavailableError("RabbitMQ: ACCESS_REFUSED")

    queue.put_aside = refuse  # type: ignore[method-assign]  # of this one
    poller = Poller(queue)
    for _ in "12":
        with pytest.raises(UnavailableError, match="ACCESS_REFUSED"):
            poller.look()
    assert (set(poller.machine.rows), queue.left(), queue.dead) == (rows("m1", "m2"), ["p0"], [])
    del queue.put_aside  # the right is there
    poller.look()
    assert (queue.left(), queue.dead) == ([], [("p0", "expected JSON")])


def test_the_key_is_what_the_trigger_says() -> None:
    body = Trigger(kind="redis", name="drop", key="body", max_open=9)
    queue = Queue(Message("p0", "", "same"), Message("p1", "", "same"), Message("p2", "", "other"))
    poller = Poller(queue, body)
    poller.look()
    assert (set(poller.machine.rows), queue.left()) == (rows("same", "other"), [])

    field = Trigger(kind="redis", name="drop", key="body.order", max_open=9)
    queue = Queue(Message("p0", "a", "a", {"order": 7}), Message("p1", "b", "b", {"order": "7"}), Message("p2", "c"))
    poller = Poller(queue, field)
    poller.look()
    assert (set(poller.machine.rows), queue.left()) == (rows("7"), [])
    assert 'the field "order"' in queue.dead[0][1]

    queue = Queue(Message("p0", ""), Message("p1", "x\ny"), Message("p2", "x" * 2000))
    Poller(queue).look()
    assert [why[:16] for _, why in queue.dead] == ["expected an id, ", "its key has the ", "expected a key o"]


def test_one_look_reads_a_bounded_number_and_a_suspended_job_reads_none() -> None:
    many = Trigger(kind="redis", name="drop", max_open=20_000)
    queue = Queue(*[message(number) for number in range(READ_MAX + 5)])
    poller = Poller(queue, many)
    _, again = poller.look()
    assert (queue.asked, again, len(queue.left())) == ([0, READ_MAX], True, 5)
    poller.machine.node.drains.suspended = frozenset(("j",))
    look, again = poller.look()
    assert (queue.asked[2:], look.behind, again) == ([0], 5, False)
    trio.run(poller.source.close)
    assert queue.closed == 1
