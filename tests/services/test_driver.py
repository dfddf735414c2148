"""The driver of a node: what arrives at one moment leaves together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing
from structlog.testing import capture_logs
from support.small_cluster import Lone, asked_for, job

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.words import OK, PENDING
from coordd.core.ready import LedgerRequest, Reply
from coordd.core.wire import codec
from coordd.core.wire.events import WorkerElect
from coordd.services.driver import Driver, Keeper

TRIGGERS = 20


class Outside:
    """The bus, the ledger and the disk of one node. ``asked``: what each call of the ledger service had."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.asked: list[list[LedgerRequest]] = []
        this: Any = SimpleNamespace(
            breaker=None, submit=self.asked.append, publish=self.sent.append, append=lambda *_, **__: None
        )
        keeper = Keeper(lambda _: None, lambda _: None, lambda _: None)
        node = Lone(job()).ready().node
        self.driver = Driver(
            node, bus=this, ledger=this, journal=this, keeper=keeper, launch=lambda _: None, cancel=lambda *_: None
        )

    async def trigger(self, count: int) -> list[Reply]:
        """Trigger runs at one moment; the ledger answers when it has heard of all of them."""
        replies: list[Reply] = []

        async def one(number: int) -> None:
            replies.append(await self.driver.trigger(asked_for(f"sales#{number}", self.driver.node.ctx.jobs["sales"])))

        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(one, number)
            await trio.testing.wait_all_tasks_blocked()
            asked = [request for some in self.asked for request in some if request.request.op == "register"]
            self.driver.ledger_answers([(request.id, Answer(OK, state=PENDING), 0.0) for request in asked])
        return replies


def test_the_triggers_of_one_moment_are_one_message_and_one_batch_of_the_ledger() -> None:
    outside = Outside()

    replies = trio.run(outside.trigger, TRIGGERS)

    assert {reply.result["id"] for reply in replies} == {f"sales#{number}" for number in range(TRIGGERS)}
    assert [reply.result["durable"] for reply in replies] == ["ledger"] * TRIGGERS
    registers = [[one for one in some if one.request.op == "register"] for some in outside.asked]
    assert [len(some) for some in registers if some] == [TRIGGERS]
    packets = [codec.decode(data)[0] for data in outside.sent]
    elections = [sum(isinstance(event, WorkerElect) for event in packet.events) for packet in packets]
    assert [count for count in elections if count] == [TRIGGERS]


def test_a_trigger_whose_caller_went_away_still_leaves_the_node() -> None:
    outside = Outside()

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await outside.driver.trigger(asked_for("sales#1", outside.driver.node.ctx.jobs["sales"]))

    trio.run(main)
    assert [one.request.op for some in outside.asked for one in some].count("register") == 1


def test_a_record_that_fits_before_the_next_probe_is_told_as_the_end_of_the_failure() -> None:
    driver = Outside().driver
    driver.node.impaired("its journal cannot be written: No space left on device")
    with capture_logs() as said:
        assert driver.journal([], sync=True) == ""
    assert [line["event"] for line in said] == ["journal.restored"]

    driver.node.impaired("")
    with capture_logs() as said:
        driver.journal([], sync=True)
    assert said == []
