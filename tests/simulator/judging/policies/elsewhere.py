"""TE: a retry is on another node than the attempt before it. TA: a node on which fails what succeeds on others stands
aside, and never more than (N - 1)/2 of N nodes do.

Both are judged once all is calm. The judge counts failures and successes itself, from what the ledger was told. TE: in
each order that a node decides, the one that failed is the last. It starts the retry where no other node can take it. It
leaves the retry to those that stand until their elections have timed out. So it asks later than each of them, whatever
they wait for. It may still ask first: a clock that is faster by 1 % ends a pause sooner. That is excused only if the
clock of each other node was slower by more than that timeout. TA is judged for nodes that began to fail when all was
calm: what is known of earlier failures depends on the messages that were lost.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coordd.core.ledger.requests import Claim
from coordd.core.ledger.words import FAILURE, GRANTED, RECEIVED, RETRY, STARTED, SUCCESS
from simulator.judging.excuses import OUTRUN
from simulator.judging.policies.able import CALM_FROM_S, Able, machine_of
from simulator.policies import ASIDE_S, RETRIES
from simulator.terms import SETTINGS

if TYPE_CHECKING:
    from coordd.core.election import Election
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.world import Host, World

# Of docs/policies.md: this many runs make a node stand aside, and it says so in this many heartbeats before.
STRIKES, ANNOUNCED = 3, 3

# Until all have heard of an end, or a claim has its answer (seconds).
HEARD_S = 2.0

LOOK_S = 0.5

# A node that stood aside this long ago (seconds) may have said so in the election.
FRESH_S = 5.0


@dataclass
class Node:
    """What the judge knows of one daemon."""

    earlier: bool = False  # it failed before all was calm
    failed: set[str] = field(default_factory=set)  # runs of which an attempt failed there
    strikes: dict[str, set[str]] = field(default_factory=dict)  # job -> those that succeeded elsewhere
    since: float = float("inf")  # when it had enough of them
    away_at: float = 0.0  # when it was last seen not to be ready: it announces itself again after that


class Elsewhere:
    """The failures of one world, by daemon (full_hostname)."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.able = Able(world)
        self.nodes: dict[str, Node] = defaultdict(Node)
        # run -> the node on which its last attempt was over, when, who could take it then, and the next attempt
        self._over: dict[str, tuple[str, float, set[int], int]] = {}
        self._could: dict[str, tuple[float, set[int]]] = {}  # run -> since when it waits, and who could take it then
        self._aside_at: dict[str, float] = {}  # node -> when it was last seen to stand aside
        self.judged = 0
        self.ordered = 0
        self.stood_aside = 0
        self.outrun = False
        if RETRIES in world.plan.kinds:
            world.at(CALM_FROM_S, self._look)

    def operation(self, host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """Check one operation that was executed."""
        if row is None or RETRIES not in self.world.plan.kinds:
            return
        if before is not None and before.state in (RECEIVED, STARTED) and row.state not in (RECEIVED, STARTED):
            self._ended(before, row)
        if before is None or (before.state != row.state and row.state == RETRY):
            self._could[row.run] = self.world.now, self._can(row)
        if isinstance(request, Claim) and answer.word == GRANTED and (before is None or before.nonce != request.nonce):
            self._taken(request.node, row)

    def _can(self, row: Row) -> set[int]:
        job = self.able.free(row)
        return {host.index for host in self.world.hosts if job is not None and self.able.can(host, job, row.run)}

    def _ended(self, before: Row, row: Row) -> None:
        """An attempt is over: ``before`` has its node."""
        node, now = before.node, self.world.now
        self._over.pop(row.run, None)
        if row.state == RETRY and row.attempt == before.attempt + 1:
            self._over[row.run] = node, now, self._can(row), row.attempt
        here = self.nodes[node]
        if row.failures > before.failures or row.state == FAILURE:
            here.failed.add(row.run)
            here.earlier = here.earlier or not self.able.calm(now)
        elif row.state == SUCCESS:
            here.failed.discard(row.run)
            here.strikes.pop(row.job, None)
            for name, other in self.nodes.items():
                if name != node and row.run in other.failed:
                    other.failed.discard(row.run)
                    self._strikes(other, row)

    def _strikes(self, other: Node, row: Row) -> None:
        other.strikes.setdefault(row.job, set()).add(row.run)
        if other.since == float("inf") and sum(len(runs) for runs in other.strikes.values()) >= STRIKES:
            other.since = self.world.now

    def _taken(self, node: str, row: Row) -> None:
        """A node was granted an attempt: TE and TA."""
        others = self._can(row) & {host.index for host in self.world.hosts if self._takes(host, node)}
        over = self._over.pop(row.run, None)
        known = self.able.knows(self.world.host(machine_of(node)))
        if over is not None and self.able.calm(over[1]) and known:
            self.judged += 1
            if over[0] == node and others & over[2]:
                verdict = f"TE {row.run}/{row.attempt} is on {node} again, and {sorted(others & over[2])} could take it"
                if not self._was_outrun(node, others & over[2], self.world.now - over[1]):
                    self.world.violate(verdict)
                if not self.outrun:  # the same two nodes meet again and again: it counts once in a world
                    self.world.judge.excuse(OUTRUN, verdict)
                self.outrun = True
        since, could = self._could.get(row.run, (0.0, set()))
        if self._stands_aside(node) and self.able.calm(since) and known and others & could:
            self.world.violate(
                f"TA {node} takes {row.run}/{row.attempt}, although what fails there succeeds elsewhere, "
                f"and {sorted(others & could)} could take it"
            )

    def _was_outrun(self, node: str, others: set[int], waited_s: float) -> bool:
        """True if each other node was slower: its clock has measured less of the pause, by more than it was given."""
        rate, given_s = self.world.host(machine_of(node)).rate, SETTINGS.election_timeout_s
        return all((rate - host.rate) * waited_s > given_s for host in map(self.world.host, others))

    def decided(self, election: Election) -> None:
        """TE: in the order that a node has decided, the one that failed comes last."""
        action, order = election.action, election.succession or ()
        over = self._over.get(action.run) if action is not None else None
        if action is None or over is None or over[3] != action.attempt or over[0] not in order:
            return
        began_s = (election.decided_at - election.opened_at) + HEARD_S
        if not self.able.calm(over[1]) or not self.able.calm(self.world.now - began_s):
            return
        if not self.able.knows(self.world.host(machine_of(over[0]))):
            return
        self.ordered += 1
        if order[-1] != over[0]:
            self.world.violate(f"TE {over[0]} failed, and is before others for {election.id}: {', '.join(order)}")

    def _takes(self, host: Host, node: str) -> bool:
        """True if that is another node, which has not stood aside for a while."""
        aside_at = self._aside_at.get(self._name(host), float("-inf"))
        return self._name(host) != node and not self._aside(host) and self.world.now - aside_at > FRESH_S

    def _stands_aside(self, name: str) -> bool:
        """True if that node must stand aside now: it has its strikes, and may."""
        node, now = self.nodes[name], self.world.now
        announced_s = ANNOUNCED * SETTINGS.heartbeat_interval_s
        begins = node.since + announced_s
        back_at = node.away_at + SETTINGS.heartbeat_interval_s + announced_s
        if node.earlier or not max(begins, back_at) + HEARD_S < now < begins + ASIDE_S - HEARD_S:
            return False
        others = [other for other in map(self._name, self.world.hosts) if other and other < name]
        before = [other for other in others if self.nodes[other].earlier or self.nodes[other].since < float("inf")]
        return len(before) < (self._ready() - 1) // 2

    def _name(self, host: Host) -> str:
        return host.daemon.name if host.daemon is not None and not host.gone else ""

    def _aside(self, host: Host) -> bool:
        return host.daemon is not None and bool(host.daemon.node.ctx.aside)

    def _ready(self) -> int:
        return sum(
            1
            for host in self.world.hosts
            if host.daemon is not None and not host.gone and host.daemon.node.ctx.state == "ready"
        )

    def _look(self) -> None:
        """TA: how many stand aside?"""
        world = self.world
        world.at(LOOK_S, self._look)
        aside = [host.name for host in world.hosts if not host.gone and self._aside(host)]
        self._aside_at.update({self._name(host): world.now for host in world.hosts if self._aside(host)})
        for host in world.hosts:
            if host.daemon is not None and host.daemon.node.ctx.state != "ready":
                self.nodes[host.daemon.name].away_at = world.now
        self.stood_aside = max(self.stood_aside, len(aside))
        if len(aside) > max(0, self._ready() - 1) // 2:
            world.violate(f"TA {', '.join(aside)} stand aside, of {self._ready()} nodes")
