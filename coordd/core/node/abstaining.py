"""The jobs that this node leaves to others because a check is bad.

It only orders who tries: the node abstains in elections, and waits with what it pursues. The ledger knows nothing of
it.
"""

from __future__ import annotations

from collections.abc import Callable

from coordd.core.context import Context
from coordd.core.ready import Now


class Abstaining:
    """What checks say, as the shell tells it."""

    __slots__ = ("_ctx", "_freed")

    def __init__(self, ctx: Context, freed: Callable[[Now], None]) -> None:
        """``freed``: some runs that wait may start here."""
        self._ctx = ctx
        self._freed = freed

    def take(self, reasons: dict[str, str], now: Now) -> None:
        """Job -> why this node takes none of its runs; the complete present list."""
        before, self._ctx.abstaining = self._ctx.abstaining, reasons
        for job in sorted(reasons.keys() - before.keys()):
            self._ctx.note("job.abstained", job=job, reason=reasons[job])
        if over := sorted(before.keys() - reasons.keys()):
            for job in over:
                self._ctx.note("job.taken_again", job=job)
            self._freed(now)
