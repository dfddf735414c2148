"""O: a node that joins knows the recent ends and revokes that the nodes had heard which answered it.

The product's own memory is under test, so what a node has heard is noted here, by the messages that it was given and
the lines of its own journal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import GRANTED
from coordd.core.members.heartbeat import WATCHERS
from coordd.core.members.outcomes import OUTCOME_AGE_MAX_S, OUTCOMES_MAX
from coordd.core.wire.events import (
    ControlRevoke,
    TaskFailed,
    TaskReceived,
    TaskRejected,
    TaskRetried,
    TaskRevoked,
    TaskStarted,
    TaskSucceeded,
    WorkerHello,
    WorkerHelloReply,
)

if TYPE_CHECKING:
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.runner_requests import Request
    from simulator.machines.daemon import Daemon
    from simulator.world import Host, World

ENDS = (TaskSucceeded, TaskFailed, TaskRejected, TaskRevoked)
GOES_ON = (TaskReceived, TaskStarted, TaskRetried)


class Answers:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        # incarnation -> run -> (token, since when it is known, by the node's wall clock)
        self._ends: dict[str, dict[str, tuple[int, float]]] = defaultdict(dict)

    def knows(self, daemon: Daemon, events: Iterable[Any], *, read: bool = False) -> None:
        """That daemon has taken in these events, or written them; ``read``: it has read them in its journal."""
        ends = self._ends[daemon.incarnation]
        for event in events:
            token, since = ends.get(event.run, (0, 0.0)) if isinstance(event, (*ENDS, *GOES_ON)) else (0, 0.0)
            at = event.timestamp if read else daemon.time().wall
            if isinstance(event, ENDS):
                ends[event.run] = (max(event.token, token), at if event.token >= token else since)
            elif isinstance(event, ControlRevoke):
                ends[event.run] = (0, at)
            elif isinstance(event, GOES_ON) and event.token > token:
                ends.pop(event.run, None)

    def may_know(self, daemon: Daemon, events: Iterable[Any]) -> None:
        """The daemon was given these, late or of an earlier life of their sender: after some of them a run goes on."""
        self.knows(daemon, [event for event in events if isinstance(event, GOES_ON)])

    def operation(self, host: Host, request: Request[Any], answer: Answer, _before: Any, _row: Any) -> None:
        """A run goes on with the node that a claim is granted, also if its full disk keeps it from telling of it."""
        if isinstance(request, Claim) and answer.word == GRANTED and host.daemon is not None:
            ends, run = self._ends[host.daemon.incarnation], request.of.run
            if answer.token > ends.get(run, (0, 0.0))[0]:
                ends.pop(run, None)

    def given(self, daemon: Daemon, packet: Any) -> None:
        """The node has taken the packet in, and has not sent its answers yet."""
        if any(isinstance(event, WorkerHello) for event in packet.events):
            self._answered(daemon, packet.hostname)
        for event in packet.events:
            if isinstance(event, WorkerHelloReply):
                for outcome in event.outcomes:
                    if daemon.node.outcomes.of(outcome.run) is None:
                        self.world.violate(f"O {daemon.name} was told of {outcome.run}, and does not know it")
                    self.world.acts["outcomes_told"] += 1

    def _answered(self, daemon: Daemon, hostname: str) -> None:
        node = daemon.node
        replies = [
            event
            for name, event in node.ctx.out.unicasts
            if isinstance(event, WorkerHelloReply) and name.rpartition(".")[0] == hostname
        ]
        ends = self._ends[daemon.incarnation]
        # With more nodes than these, only those tell that follow the sender, which may have left since.
        there = [name for name in node.ctx.membership.view() if name.rpartition(".")[0] != hostname]
        if not replies or len(there) > WATCHERS or len(ends) > OUTCOMES_MAX:
            return
        told = {outcome.run for reply in replies for outcome in reply.outcomes}
        wall = daemon.time().wall
        young = {run for run, (_, since) in ends.items() if wall - since <= OUTCOME_AGE_MAX_S}
        missing = sorted(young - told)
        if missing:
            self.world.violate(f"O {daemon.name} answers {hostname}, and does not tell of {missing[0]}")
