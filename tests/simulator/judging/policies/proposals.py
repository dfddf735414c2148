"""S8: an election proposes a triggered run, and only the ledger's record makes it one. A node that has never had the
ledger's word on such a run gives it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.ledger.requests import Claim

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

# After the last fault a node has given up what was never recorded, and so never had a row (seconds).
GIVEN_UP_S = 20.0


class Proposals:
    """The triggered runs of one world that had a row at some time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._recorded: set[str] = set()

    def operation(
        self, _host: Host, request: Request[Any], _answer: Answer, before: Row | None, row: Row | None
    ) -> None:
        if row is None or row.scheduled:
            return
        if before is None and isinstance(request, Claim) and row.run not in self._recorded:
            self.world.violate(f"S8 a claim made the row of {row.run}, and the ledger had not recorded that trigger")
        self._recorded.add(row.run)

    def end(self) -> None:
        """No node goes on with a run that never had a row."""
        for host in self.world.hosts:
            if host.daemon is None:
                continue
            for run, pursuit in host.daemon.node.pursuits.pursuits.items():
                age_s = self.world.mono(host) - pursuit.begun_at
                if not pursuit.action.scheduled and run not in self._recorded and age_s > GIVEN_UP_S:
                    self.world.violate(f"S8 {host.name} pursues {run} for {age_s:.0f} s, which was never recorded")
