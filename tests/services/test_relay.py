"""Questions between nodes: answered, bounded, and dropped when nobody can answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from coordd.core.wire.codec import encode_event
from coordd.core.wire.events import MESSAGE_BYTES_MAX, PeerAnswer, PeerAsk
from coordd.errors import UnavailableError
from coordd.services import relay as relay_module
from coordd.services.relay import BODY_BYTES_MAX, KEPT_MAX, KEPT_OF_ONE_MAX, Relay


class Net:
    """Nodes that send to each other's inboxes."""

    def __init__(self) -> None:
        self.nodes: dict[str, Relay] = {}
        self.sent: list[tuple[str, str, Any]] = []

    def node(self, name: str, **answers: Callable[[str], str]) -> Relay:
        def send(to: str, event: Any) -> None:
            self.sent.append((name, to, event))
            if to in self.nodes:
                self.nodes[to].heard(name, event)

        driver: Any = SimpleNamespace(say_to=send)
        self.nodes[name] = Relay(driver, answers)
        return self.nodes[name]


def failing(_: str) -> str:
    raise UnavailableError("cannot read the journal")


def test_each_node_that_can_answers_and_the_others_are_known() -> None:
    async def main() -> None:
        net = Net()
        asker = net.node("a.1")
        net.node("b.2", journal=lambda subject: f"b knows {subject}")
        net.node("c.3", journal=failing)
        net.node("d.4", journal=lambda _: "x" * (BODY_BYTES_MAX + 1))
        net.node("e.5")
        async with trio.open_nursery() as nursery:
            for name in ("b.2", "c.3", "d.4", "e.5"):
                nursery.start_soon(net.nodes[name].run)
            said = await asker.ask("journal", "sales#1", ["b.2", "c.3", "d.4", "e.5"], wait_s=30.0)
            nursery.cancel_scope.cancel()
        assert said == {"b.2": "b knows sales#1", "c.3": None, "d.4": None, "e.5": None}

    trio.run(main)


def test_a_node_that_never_answers_holds_nobody_up_and_a_late_answer_is_dropped() -> None:
    async def main() -> None:
        net = Net()
        asker = net.node("a.1")
        assert await asker.ask("journal", "sales#1", ["gone.9"], wait_s=0.01) == {"gone.9": None}
        ((_, _, asked),) = net.sent
        asker.heard("gone.9", PeerAnswer(id=asked.id, body="late"))
        assert asker._asked == {}

    trio.run(main)


def test_an_answer_counts_once_and_only_from_a_node_that_was_asked() -> None:
    async def main() -> None:
        net = Net()
        asker = net.node("a.1")
        said: list[dict[str, str | None]] = []

        async def ask() -> None:
            said.append(await asker.ask("journal", "sales#1", ["b.2", "c.3"], wait_s=30.0))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            ident = net.sent[0][2].id
            asker.heard("x.9", PeerAnswer(id=ident, body="a stranger"))
            asker.heard("b.2", PeerAnswer(id=ident, body="first"))
            asker.heard("b.2", PeerAnswer(id=ident, body="second"))
            asker.heard("c.3", PeerAnswer(id=ident, error="cannot"))
        assert said == [{"b.2": "first", "c.3": None}]

    trio.run(main)


def test_questions_that_cannot_be_kept_are_dropped_and_counted() -> None:
    net = Net()
    slow = net.node("b.2", journal=lambda _: "")
    for number in range(KEPT_MAX + 5):
        slow.heard(f"a.{number}", PeerAsk(id=str(number), what="journal", subject="sales#1"))
    assert slow.dropped == 5


def test_one_node_that_asks_and_asks_leaves_room_for_the_others() -> None:
    async def main() -> None:
        net = Net()
        busy = net.node("b.2", journal=lambda _: "told")
        for number in range(KEPT_MAX):
            busy.heard("greedy.1", PeerAsk(id=str(number), what="journal", subject="sales#1"))
        assert busy.dropped == KEPT_MAX - KEPT_OF_ONE_MAX
        other = net.node("c.3")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.run)
            assert await other.ask_one("journal", "sales#1", "b.2", wait_s=30.0) == "told"
            for number in range(KEPT_OF_ONE_MAX):  # those that were answered make room again
                busy.heard("greedy.1", PeerAsk(id=f"again-{number}", what="journal", subject="sales#1"))
            nursery.cancel_scope.cancel()
        assert busy.dropped == KEPT_MAX - KEPT_OF_ONE_MAX

    trio.run(main)


def test_one_node_that_is_asked_says_why_it_cannot_answer() -> None:
    async def main() -> None:
        net = Net()
        asker = net.node("a.1")
        net.node("b.2", journal=failing)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(net.nodes["b.2"].run)
            with pytest.raises(UnavailableError, match="b: cannot read the journal"):
                await asker.ask_one("journal", "sales#1", "b.2", wait_s=30.0)
            with pytest.raises(UnavailableError, match="b: this node does not know the question 'log'"):
                await asker.ask_one("log", "sales#1", "b.2", wait_s=30.0)
            with pytest.raises(UnavailableError, match=r"gone did not answer within 0\.01 s"):
                await asker.ask_one("journal", "sales#1", "gone.9", wait_s=0.01)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_bug_in_an_answer_ends_that_question_and_not_the_daemon() -> None:
    async def main() -> None:
        net = Net()
        asker = net.node("a.1")

        async def fails(_sender: str, subject: str) -> str:
            return str(1 // len(subject))

        busy = net.node("b.2")
        busy.serve("sum", fails)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.run)
            with pytest.raises(UnavailableError, match="b: a bug in coordd: ZeroDivisionError"):
                await asker.ask_one("sum", "", "b.2", wait_s=30.0)
            assert await asker.ask_one("sum", "x", "b.2", wait_s=30.0) == "1"
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_slow_kind_of_question_does_not_hold_up_another() -> None:
    async def main() -> None:
        net = Net()
        asker = net.node("a.1")

        async def hangs(_sender: str, _subject: str) -> str:
            await trio.sleep_forever()
            raise AssertionError

        async def quick(sender: str, subject: str) -> str:
            return f"{sender} asks for {subject}"

        busy = net.node("b.2")
        busy.serve("slow", hangs)
        busy.serve("quick", quick)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy.run)
            busy.heard("a.1", PeerAsk(id="1", what="slow", subject="x"))
            assert await asker.ask_one("quick", "y", "b.2", wait_s=30.0) == "a.1 asks for y"
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_more_callers_than_the_limit_get_no_answer_at_once() -> None:
    async def main() -> None:
        net = Net()
        asker = net.node("a.1")
        async with trio.open_nursery() as nursery:
            for _ in range(relay_module.ASKED_MAX):
                nursery.start_soon(asker.ask, "journal", "sales#1", ["b.2"])
            await trio.testing.wait_all_tasks_blocked()
            sent = len(net.sent)
            assert await asker.ask("journal", "sales#1", ["b.2"], wait_s=1000.0) == {"b.2": None}
            assert len(net.sent) == sent
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_largest_answer_fits_into_a_message() -> None:
    assert len(encode_event(PeerAnswer(id="x" * 32, body="\u00e9" * (BODY_BYTES_MAX // 2)))) < MESSAGE_BYTES_MAX - 4096
