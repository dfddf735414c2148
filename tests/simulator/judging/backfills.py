"""Z: a plan opens each fire time of its range once, and no more of its runs are alive than it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Fill, Replay, Rerun
from coordd.core.ledger.runner_requests import Request
from coordd.core.ledger.words import OK, TERMINAL

if TYPE_CHECKING:
    from coordd.core.ledger.rows import Row
    from simulator.world import World


class Backfills:
    """What the plans of one world have opened."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.opened: set[str] = set()  # runs, also those that the ledger has forgotten since
        self._filled: set[tuple[str, str]] = set()  # (plan, run)
        self._replayed: set[str] = set()  # by people: the plan does not count those

    def went_back(self) -> None:
        """The ledger may have forgotten what a plan has opened."""
        self._filled.clear()

    def operation(self, request: Request[Any], answer: Answer, row: Row | None) -> bool:
        """Check one operation that was executed. True if it has opened a fire time, or a run once more: the run begins
        another life.
        """
        if isinstance(request, Replay) and answer.word == OK:
            self._replayed.add(request.run)
        again = isinstance(request, Rerun) or (isinstance(request, Replay) and request.whole)
        if again and answer.word == OK and row is not None:
            self.opened.add(row.run)
            self._replayed.add(row.run)
            return True
        if not isinstance(request, Fill) or answer.word != OK:
            return False
        world, plan = self.world, self.world.people.plans[request.plan]
        assert row is not None
        if (request.plan, row.run) in self._filled:
            world.violate(f"Z {row.run} was opened twice by the backfill {request.plan}")
        self._filled.add((request.plan, row.run))
        self.opened.add(row.run)
        self._replayed.discard(row.run)
        if not plan.begin <= row.fire_at < plan.end:
            world.violate(f"Z {row.run} is not in the range of the backfill {request.plan}")
        mine = [world.server.row(run) for ident, run in self._filled if ident == request.plan]
        alive = sorted(
            one.run
            for one in mine
            if one is not None and one.by == row.by and one.state not in TERMINAL and one.run not in self._replayed
        )
        if len(alive) > plan.at_most:
            world.violate(f"Z {alive} are alive, and the backfill {request.plan} allows {plan.at_most}")
        return True
