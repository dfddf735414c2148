"""HK: each end of a run that a hook wants is told once: one run of the hook, and never two.

The judge keeps its own account of the ends that the ledger was told of. In the end each of them that still stands has
been told, also if the node that knew it has died. One may stay untold only if all nodes that are left have got the
hook later.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from coordd.core.jobs.job import HOOK
from coordd.core.ledger.words import LOST, TERMINAL, UNKNOWN
from simulator.policies import HOOKS

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

# The event, the run and its attempt.
End = tuple[str, str, int]


class Told:
    """What the hook of one world is told of."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.ends: set[End] = set()
        self.told: dict[End, str] = {}  # the run of the hook

    def operation(
        self, _host: Host, _request: Request[Any], _answer: Answer, before: Row | None, row: Row | None
    ) -> None:
        """Note each end, and check each run of the hook that gets its row."""
        if row is None or HOOKS not in self.world.plan.kinds:
            return
        if row.job.startswith(HOOK):
            if before is None:
                self._is_news(row)
            return
        if row.state in (*TERMINAL, UNKNOWN):
            self.ends.add(_end(row))

    def _is_news(self, row: Row) -> None:
        said = json.loads(json.loads(row.args)["event"])
        end = said["event"], said["run"], said["attempt"]
        if said["job"].startswith(HOOK):
            self.world.violate(f"HK {row.run} tells of {said['run']}, a run of a hook")
        stands = self.world.server.row(said["run"])  # the operation of another run may have ended it
        true = end in self.ends or stands is None or self.world.server.setbacks or _end(stands) == end
        if not true and said["event"] != f"run.{LOST}":  # which the lost attempt's node tells before the ledger
            self.world.violate(f"HK {row.run} tells that {said['sentence']}, and it has not ended so")
        if self.told.setdefault(end, row.run) != row.run:
            self.world.violate(f"HK {said['run']}/{said['attempt']} is told twice, as {self.told[end]} and {row.run}")

    def untold(self) -> list[End]:
        """The ends that stand, and that were not told."""
        world = self.world
        if HOOKS not in world.plan.kinds:
            return []
        seats = [host.daemon.hooks for host in world.hosts if host.daemon is not None and not host.gone]
        since = min((seat.since for seat in seats if seat is not None), default=float("inf"))
        return [
            _end(row)
            for row in world.ledger.runs(limit=100_000)
            if row.state in (*TERMINAL, UNKNOWN)
            and not row.job.startswith(HOOK)
            and _end(row) not in self.told
            and (row.ended_at or row.started_at or row.received_at) >= since
        ]


def _end(row: Row) -> End:
    return f"run.{row.state}", row.run, row.attempt
