"""GW: what is run is run either as one run or as a group, also where a job gets or loses `expand` meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.groups.expand import group_of

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.judging.judge import Child
    from simulator.world import Host, World


class Whole:
    """The runs and the groups of which something was started."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._first: dict[str, str] = {}  # run, or group -> what was started of it first

    def operation(self, host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """Starts alone count."""

    def launched(self, child: Child) -> None:
        """A program was started."""
        group = group_of(child.run)
        first = self._first.setdefault(group, child.run)
        if (first == group) != (child.run == group):
            self.world.violate(f"GW {child.run} starts, and {first} has started before")
