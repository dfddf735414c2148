"""When tasks that look again and again take their turns: together. And their threads, which a machine may lack.

An idle daemon spends its time on waking up, not on what it looks at. So all tasks with the same period wake at the same
moments, and those with a longer period at some of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import trio

from coordd.errors import UnavailableError

T = TypeVar("T")

# How often (seconds) tasks look for something to look at, while there is nothing.
IDLE_S = 1.0

# What Python says when the system has no room for another thread.
NO_THREAD = "can't start new thread"


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


async def in_thread(
    act: Callable[[], T], limiter: trio.CapacityLimiter | None = None, *, abandon_on_cancel: bool = False
) -> T:
    """``trio.to_thread.run_sync`` for what the daemon cannot do without.

    Raises UnavailableError when the machine has no room for another thread: the programs of runs may have taken it all
    (they count with the daemon), and it comes back. Raises what ``act`` raises.
    """
    try:
        return await trio.to_thread.run_sync(act, limiter=limiter, abandon_on_cancel=abandon_on_cancel)
    except RuntimeError as exc:
        if str(exc) != NO_THREAD:
            raise
        raise UnavailableError(
            "this machine has no room for another thread: TasksMax of the daemon's unit, or ulimit -u, is used up; "
            "systemd-cgls shows by what"
        ) from exc
