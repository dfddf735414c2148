"""When tasks that look again and again take their turns: together.

An idle daemon spends its time on waking up, not on what it looks at. So all tasks with the same period wake at the same
moments, and those with a longer period at some of them.
"""

from __future__ import annotations

import math

import trio

# How often (seconds) tasks look for something to look at, while there is nothing.
IDLE_S = 1.0


def next_turn(every_s: float) -> float:
    """The next multiple of ``every_s`` (seconds) on trio's clock; now if that is 0."""
    now = trio.current_time()
    if every_s <= 0.0:
        return now
    at = (math.floor(now / every_s) + 1) * every_s
    return at if at > now else at + every_s  # rounding


async def turn(every_s: float) -> None:
    """Sleep until that moment: at most ``every_s``."""
    await trio.sleep_until(next_turn(every_s))
