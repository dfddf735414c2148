"""Tasks that look again and again take their turns together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from coordd.services.pace import next_turn, turn


def in_a_jumping_clock(run: Callable[[], Awaitable[None]]) -> None:
    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


def test_tasks_with_one_period_wake_at_one_moment_whenever_they_began() -> None:
    woken: list[tuple[float, float]] = []

    async def look(after_s: float, every_s: float) -> None:
        await trio.sleep(after_s)
        for _ in range(3):
            await turn(every_s)
            woken.append((trio.current_time(), every_s))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for after_s, every_s in ((0.0, 1.0), (0.3, 1.0), (0.9, 2.0)):
                nursery.start_soon(look, after_s, every_s)

    in_a_jumping_clock(main)
    each_s = [at for at, every_s in woken if every_s == 1.0]
    assert sorted(each_s) == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0]
    assert [at for at, every_s in woken if every_s == 2.0] == [2.0, 4.0, 6.0]


def test_the_next_turn_is_later_than_now_and_at_most_a_period_away() -> None:
    async def main() -> None:
        for every_s in (0.1, 0.3, 0.7):
            for _ in range(200):
                now, at = trio.current_time(), next_turn(every_s)
                assert now < at <= now + 1.0001 * every_s
                await trio.sleep_until(at)
        assert next_turn(0.0) == trio.current_time()

    in_a_jumping_clock(main)


def test_a_turn_that_has_come_already_waits_for_nothing() -> None:
    async def main() -> None:
        began = trio.current_time()
        await turn(0.0)
        assert trio.current_time() >= began

    trio.run(main)  # the real clock: it goes on between two looks at it
