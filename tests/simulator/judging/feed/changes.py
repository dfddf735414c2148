"""FD: a sweep with a cursor tells everything that has changed since, and everything that it is asked for by name.

For each cursor the judge keeps what the ledger had when it gave that cursor. When a node comes with it, whatever has
changed since must be in the answer, whichever node got the cursor, and whatever was lost on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import ListOpen
from coordd.core.ledger.rows import fed

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

# Cursors of which the judge knows what the ledger had. Nodes come with their last one, which is among the newest.
KEPT_MAX = 300


class Changes:
    """What one world's ledger tells to nodes with cursors."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._known: dict[str, dict[str, tuple[object, ...]]] = {}  # cursor -> the open rows that there were

    def operation(
        self, host: Host, request: Request[Any], answer: Answer, _before: Row | None, _row: Row | None
    ) -> None:
        """Judge a sweep, and remember what there is at its cursor."""
        if not isinstance(request, ListOpen) or not isinstance(answer, OpenAnswer) or not answer.cursor:
            return
        rows = {row.run: fed(row) for row in self.world.server.open_rows()}
        if not answer.whole and not answer.more:
            self._judge(host, request, answer, rows)
        if answer.more:
            return  # it tells what there was at some instant before
        self._known.pop(answer.cursor, None)
        self._known[answer.cursor] = rows
        while len(self._known) > KEPT_MAX:
            del self._known[next(iter(self._known))]

    def _judge(self, host: Host, request: ListOpen, answer: OpenAnswer, rows: dict[str, tuple[object, ...]]) -> None:
        self.world.fault_log["fed"] += 1
        told = {row.run for row in answer.runs}
        known = self._known.get(request.since)
        if known is None:
            if request.since.rpartition(" ")[0] != answer.cursor.rpartition(" ")[0]:
                self.world.violate(f"FD {host.name} has a cursor of another life of the ledger, and it was served")
            return
        asked = set(filter(None, request.named.split("\n")))
        for run in sorted({*known, *rows, *asked}):
            named = run in asked
            if run in rows and (named or known.get(run) != rows[run]) and run not in told:
                self.world.violate(f"FD {host.name} was not told that {run} is {rows[run][0]}")
            if run not in rows and (named or run in known) and run not in answer.gone:
                self.world.violate(f"FD {host.name} was not told that {run} has no open row any more")
