"""Slow look-ups run in a few threads, so that the event loop continues.

A Python thread and the loop take turns every few milliseconds. A slow look-up in the loop itself would delay
heartbeats, elections and the watchdog.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from coordd.errors import RefusedError

T = TypeVar("T")

# The number of threads. Viewers share one thread; other callers have their own.
VIEWERS_MAX = 1
OTHERS_MAX = 2

# A caller waits no longer than this (seconds), including the wait for a thread.
LOOKUP_S = 5.0


class Work:
    """Tells a running look-up whether its caller still waits."""

    def __init__(self) -> None:
        self.given_up = False

    def check(self) -> None:
        """Raises RefusedError (which nobody sees) when the caller no longer waits."""
        if self.given_up:
            raise RefusedError("given up", kind="try_later")


class Lookups:
    """The threads."""

    def __init__(self) -> None:
        self._viewers = trio.CapacityLimiter(VIEWERS_MAX)
        self._others = trio.CapacityLimiter(OTHERS_MAX)

    async def do(self, call: Callable[[Work], T], *, looks: bool, limit_s: float = LOOKUP_S) -> T:
        """Call it in a thread; ``looks``: the caller is a viewer.

        Raises RefusedError when it takes longer than ``limit_s``.
        """
        work = Work()
        try:
            with trio.move_on_after(limit_s):
                return await trio.to_thread.run_sync(
                    partial(call, work), limiter=self._viewers if looks else self._others, abandon_on_cancel=True
                )
        finally:
            work.given_up = True
        raise RefusedError(
            f"no answer within {limit_s:g} s", kind="try_later", hint="ask for less, or wait until others are served"
        )
