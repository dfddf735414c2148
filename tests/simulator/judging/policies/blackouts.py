"""BL: no scheduled run has a fire time in a blackout of its definition."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from coordd.core.ledger.requests import Claim, Register
from coordd.core.ledger.rows import is_backfill
from coordd.core.ledger.words import GRANTED

if TYPE_CHECKING:
    from coordd.core.jobs.job import Blackout
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

# The only cron line that worlds draw: a blackout begins with each minute.
EACH_MINUTE = "* * * * *"


class Blackouts:
    """The fire times of one world that may not be."""

    def __init__(self, world: World) -> None:
        self.world = world

    def operation(
        self, _host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None
    ) -> None:
        """Check each row that a node opens, and each grant."""
        if not isinstance(request, Claim | Register) or row is None or not row.scheduled:
            return
        job = self.world.known_jobs.get(row.digest)
        if (before is not None and answer.word != GRANTED) or job is None or job.schedule is None or is_backfill(row):
            return
        for black in job.schedule.blackout:
            if covers(black, row.due_at):
                self.world.violate(f"BL {row.run} is due at {row.due_at:.0f}, in the blackout {black}")


def covers(black: Blackout, at: float) -> bool:
    """True if that instant (Unix seconds) lies in it. Its end does not."""
    if not black.cron:
        return black.start <= at < black.end
    assert black.cron == EACH_MINUTE, black
    return at - 60.0 * math.floor(at / 60.0) < black.duration_s
