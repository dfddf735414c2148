"""The bridge between trio and asyncio: calls, cancellations, crashes on both sides, and the end of the bridge."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.lowlevel

from contract.bus.listeners import until
from coordd.adapters.bus import aio as bridge
from coordd.adapters.bus.aio import Aio, Crossing, open_aio
from coordd.errors import UnavailableError

LOOPS = [False, True]  # with uvloop


def run(main: Callable[[Aio], Any], *, uvloop: bool = False) -> Any:
    async def outer() -> Any:
        with trio.fail_after(30):
            async with open_aio("test", uvloop=uvloop) as aio:
                return await main(aio)

    threads = threading.active_count()
    try:
        return trio.run(outer)
    finally:
        assert threading.active_count() <= threads + 1, "trio may keep one worker of its own"


@pytest.mark.parametrize("uvloop", LOOPS)
class TestCalls:
    def test_a_coroutine_runs_in_the_other_thread_and_returns_its_result(self, uvloop: bool) -> None:
        async def work(a: int, b: int) -> tuple[int, str]:
            await asyncio.sleep(0)
            return a + b, threading.current_thread().name

        assert run(lambda aio: aio.call(work, 1, 2), uvloop=uvloop) == (3, "test")

    def test_its_exception_comes_with_it(self, uvloop: bool) -> None:
        async def work() -> None:
            raise ZeroDivisionError("in there")

        async def main(aio: Aio) -> None:
            with pytest.raises(ZeroDivisionError, match="in there"):
                await aio.call(work)

        run(main, uvloop=uvloop)

    def test_a_cancelled_call_waits_for_the_cleanup(self, uvloop: bool) -> None:
        steps: list[str] = []
        begun = threading.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                steps.append("cancelled")
                await asyncio.sleep(0.05)
                steps.append("cleaned up")
                raise

        async def main(aio: Aio) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(aio.call, work)
                await until(begun.is_set)
                nursery.cancel_scope.cancel()
            steps.append("back")

        run(main, uvloop=uvloop)
        assert steps == ["cancelled", "cleaned up", "back"]

    def test_a_call_cancelled_before_it_began_leaves_nothing(self, uvloop: bool) -> None:
        async def work() -> None:
            await asyncio.sleep(60)

        async def count() -> int:
            return len(asyncio.all_tasks())

        async def main(aio: Aio) -> None:
            before = await aio.call(count)
            for _ in range(100):
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await aio.call(work)
                assert scope.cancelled_caught
            assert await aio.call(count) == before

        run(main, uvloop=uvloop)

    def test_a_result_that_is_there_all_the_same_is_not_thrown_away(self, uvloop: bool) -> None:
        begun = threading.Event()

        async def work() -> str:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "done anyway"
            return "slept"

        async def main(aio: Aio) -> str:
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel() -> None:
                        await until(begun.is_set)
                        scope.cancel()

                    nursery.start_soon(cancel)
                    return await aio.call(work)
            pytest.fail("the call was cancelled")

        assert run(main, uvloop=uvloop) == "done anyway"


class Stubborn:
    """Work that ignores its cancellation until the test lets it go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.let_go = threading.Event()

    async def work(self) -> None:
        self.begun.set()
        while not self.let_go.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue


def test_a_call_that_does_not_clean_up_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "CLEANUP_S", 0.1)
    stubborn = Stubborn()

    async def main(aio: Aio) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def cancel() -> None:
                    await until(stubborn.begun.is_set)
                    scope.cancel()

                nursery.start_soon(cancel)
                try:
                    with pytest.raises(UnavailableError, match="did not end"):
                        await aio.call(stubborn.work)
                finally:
                    stubborn.let_go.set()

    run(main)


def test_a_call_cancelled_by_its_own_side_says_so() -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    async def main(aio: Aio) -> None:
        with pytest.raises(UnavailableError, match="by its own side"):
            await aio.call(work)

    run(main)


def test_context_variables_come_along() -> None:
    variable = contextvars.ContextVar("variable", default="unset")

    async def work() -> str:
        return variable.get()

    async def main(aio: Aio) -> str:
        variable.set("set by trio")
        return await aio.call(work)

    assert run(main) == "set by trio"


class TestTasks:
    def test_a_task_that_dies_is_the_end_of_the_block(self) -> None:
        async def work() -> None:
            await asyncio.sleep(0)
            raise ZeroDivisionError

        async def main(aio: Aio) -> None:
            aio.start(work)
            await trio.sleep_forever()

        with pytest.RaisesGroup(ZeroDivisionError):
            run(main)

    def test_a_task_that_ends_is_no_trouble(self) -> None:
        ended: list[str] = []

        async def work() -> None:
            ended.append("ended")

        async def main(aio: Aio) -> None:
            aio.start(work)
            await until(lambda: ended)
            await trio.lowlevel.checkpoint()

        run(main)

    def test_leaving_cancels_the_tasks_and_waits_for_them(self) -> None:
        steps: list[str] = []
        begun = threading.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                steps.append("cleaned up")

        async def main(aio: Aio) -> None:
            aio.start(work)
            await until(begun.is_set)
            steps.append("leaving")

        run(main)
        assert steps == ["leaving", "cleaned up"]

    def test_a_task_that_does_not_end_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bridge, "CLEANUP_S", 0.1)
        stubborn = Stubborn()

        async def main(aio: Aio) -> None:
            aio.start(stubborn.work)
            await until(stubborn.begun.is_set)

        try:
            with pytest.RaisesGroup(pytest.RaisesExc(UnavailableError, match="did not end")):
                run(main)
        finally:
            stubborn.let_go.set()

    def test_what_is_told_last_still_arrives(self) -> None:
        told: list[str] = []

        async def main(aio: Aio) -> None:
            begun = threading.Event()

            async def work() -> None:
                begun.set()
                try:
                    await asyncio.sleep(60)
                finally:
                    aio.to_trio(lambda: told.append("last words"))

            aio.start(work)
            await until(begun.is_set)

        run(main)
        assert told == ["last words"]

    def test_a_call_into_trio_that_fails_is_the_end_of_the_block(self) -> None:
        async def main(aio: Aio) -> None:
            def fail() -> None:
                raise ZeroDivisionError

            aio.to_aio(aio.to_trio, fail)
            await trio.sleep_forever()

        with pytest.RaisesGroup(ZeroDivisionError):
            run(main)


def test_asyncio_goes_on_while_trio_stands_still() -> None:
    """A broker's heartbeats must not depend on the core."""
    beats: list[int] = []
    enough = threading.Event()

    async def beat() -> None:
        for n in range(20):
            beats.append(n)
            await asyncio.sleep(0.001)
        enough.set()

    async def main(aio: Aio) -> None:
        aio.start(beat)
        assert enough.wait(20), "this blocks trio's thread"

    run(main)
    assert len(beats) == 20


class TestCrossing:
    def test_it_wakes_once_for_all_that_waits(self) -> None:
        wakes: list[int] = []
        crossing: Crossing[str] = Crossing(10, 100, lambda: wakes.append(1))
        for word in "abc":
            assert crossing.put(word, 1)
        assert len(wakes) == 1
        assert crossing.take() == ["a", "b", "c"]
        assert crossing.put("d", 1)
        assert len(wakes) == 2

    def test_what_has_no_room_is_refused(self) -> None:
        crossing: Crossing[str] = Crossing(2, 10, lambda: None)
        assert not crossing.put("too large", 11)
        assert crossing.put("a", 9)
        assert not crossing.put("b", 2)
        assert crossing.put("c", 1)
        assert not crossing.put("d", 0)
        assert crossing.take() == ["a", "c"]
        assert crossing.put("e", 10)

    def test_the_newest_may_push_out_the_oldest(self) -> None:
        crossing: Crossing[str] = Crossing(3, 10, lambda: None)
        assert [crossing.put_newest(word, 3) for word in "abcd"] == [0, 0, 0, 1]
        assert crossing.put_newest("large", 7) == 2
        assert crossing.take() == ["d", "large"]

    def test_a_batch_is_bounded(self) -> None:
        crossing: Crossing[int] = Crossing(10, 10, lambda: None)
        for n in range(5):
            crossing.put(n)
        assert crossing.take(3) == [0, 1, 2]
        assert len(crossing) == 2

    def test_what_comes_while_we_look_wakes_again(self) -> None:
        wakes: list[int] = []
        crossing: Crossing[str] = Crossing(10, 10, lambda: wakes.append(1))

        class Racing(deque[tuple[int, str]]):
            """The other thread puts an item just after this thread has found the queue empty."""

            def popleft(self) -> tuple[int, str]:
                if self:
                    return super().popleft()
                if len(wakes) == 1:
                    crossing.put("late")
                raise IndexError

        crossing._items = Racing()
        crossing.put("early")
        assert crossing.take() == ["early"]
        assert len(wakes) == 2
        assert crossing.take() == ["late"]

    def test_nothing_is_lost_between_two_threads(self) -> None:
        """After each wake-up the reader takes items until nothing is left."""
        total = 20_000
        woken = threading.Event()
        crossing: Crossing[int] = Crossing(100, 1_000_000, woken.set)
        taken: list[int] = []

        def take() -> None:
            while len(taken) < total and woken.wait(20):
                woken.clear()
                while got := crossing.take():
                    taken.extend(got)

        thread = threading.Thread(target=take)
        thread.start()
        for n in range(total):
            while not crossing.put(n, 1):
                pass
        thread.join(30)
        assert taken == list(range(total))
