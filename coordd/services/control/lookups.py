"""Look-ups that take longer than a moment: in threads, few at a time, so that the loop goes on.

A thread of Python takes turns with the loop every few milliseconds; what runs in the loop itself holds up heartbeats,
elections and the watchdog.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import trio

from coordd.errors import RefusedError

T = TypeVar("T")

# At a time. Those who may only look share one thread; the others have their own.
VIEWERS_MAX = 1
OTHERS_MAX = 2

# Who asks waits no longer than this, the wait for a thread included.
LOOKUP_S = 5.0


class Work:
    """What a look-up asks now and then: does anybody still wait for it?"""

    def __init__(self) -> None:
        self.given_up = False

    def check(self) -> None:
        """Raises RefusedError (which nobody sees) when nobody does."""
        if self.given_up:
            raise RefusedError("given up", kind="try_later")


class Lookups:
    """The threads."""

    def __init__(self) -> None:
        self._viewers = trio.CapacityLimiter(VIEWERS_MAX)
        self._others = trio.CapacityLimiter(OTHERS_MAX)

    async def do(self, call: Callable[[Work], T], *, looks: bool, limit_s: float = LOOKUP_S) -> T:
        """Call it in a thread; ``looks``: for somebody who may only look.

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
