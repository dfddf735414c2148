"""Checks of messages, and of the decisions that nodes make from them: I8, S6, S8 and A.

The judge compares what nodes gave to the bus with what the bus delivered. It believes a node only about which members
the node takes for lost: a failure detector may be wrong, and V and L check at the end that it was not wrong for long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordd.core.election import ELECTION_MEMBERS_MAX, Election
from coordd.core.members.membership import ALIVE, SUSPECT
from coordd.core.ready import Now
from coordd.core.wire import windows
from coordd.core.wire.events import Packet, WorkerElect, WorkerElectAck
from simulator.judging.excuses import LIED_TO
from simulator.terms import MUST_ARRIVE

if TYPE_CHECKING:
    from simulator.machines.daemon import Daemon
    from simulator.world import World

# Before its timeout (by the node's own clock) an election is decided only when all members have stated. If a decision
# comes at most this long (seconds) before the timeout, it counts as made at the timeout.
DECIDE_SLACK_S = 0.001


class Hearing:
    """Listens to one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._clocks: dict[int, int] = {}  # host -> the highest stamp that it has ever said
        self._unsaid: dict[tuple[str, str], Election] = {}  # (node, id) -> decided before its own message was sent
        self._lies: set[tuple[str, str]] = set()  # (the node that was told, the election or the name in the lie)

    def said(self, daemon: Daemon, packet: Packet) -> None:
        """I8: a node's stamps only grow, over its restarts too, unless its disk was full when the mark was due."""
        world, host = self.world, daemon.host
        if "forged" in world.plan.faults:
            world.intruder.hears(packet)
        newest = self._clocks.get(host.index, 0)
        self._views(daemon, daemon.name, packet)
        if not isinstance(packet.events[0], MUST_ARRIVE):  # a message that waited may have an earlier daemon's stamp
            if host.mark_lost:
                newest = 0
            if daemon.incarnation != host.said_by and packet.events[0].clock <= newest:
                world.violate(f"I8 {host.name} says {packet.events[0].clock} after {newest}")
            host.said_by, host.mark_lost = daemon.incarnation, False
        self._clocks[host.index] = max(newest, *(event.clock for event in packet.events))

    def admitted(self, daemon: Daemon, packet: Packet, events: list[Any]) -> None:
        """S6, S8: a message that acts is accepted once, and not after many later messages of its sender.

        The judge remembers every message that this incarnation of the node was given. If an earlier one took it, the
        message has no stamp above the mark that the clock of this one began with: new stamps are told by that.
        """
        heard = daemon.given.setdefault(packet.incarnation, [0, set()])
        if any(isinstance(event, windows.ACTS) for event in events):
            if packet.seq in heard[1]:
                self.world.violate(f"S6 {daemon.name} takes message {packet.seq} of {packet.sender} a second time")
            taken_by = daemon.host.acted.setdefault((packet.incarnation, packet.seq), daemon.incarnation)
            if taken_by != daemon.incarnation and packet.events[0].clock > daemon.began_with > 0:
                self.world.violate(f"S6 {daemon.name} takes for new what {taken_by} heard, by {packet.sender}'s stamp")
            if packet.seq <= heard[0] - self.world.plan.reach:
                self.world.violate(f"S8 {daemon.name} acts on the backlog of {packet.sender}")
        heard[0] = max(heard[0], packet.seq)
        heard[1].add(packet.seq)

    def handed(self, daemon: Daemon, packet: Packet) -> None:
        """The daemon is handed these events."""
        self.world.judge.knowledge.told(daemon, packet.events)
        self._views(daemon, packet.sender, packet)
        for event in packet.events:
            if isinstance(event, (WorkerElect, WorkerElectAck)):
                daemon.stated.add((event.id, packet.sender))

    def _views(self, daemon: Daemon, opener: str, packet: Packet) -> None:
        """Note the elections that the daemon has opened or is told of: the time and the view of each.

        The opener may forget an election, and open it again with another view.
        """
        for event in packet.events:
            if isinstance(event, WorkerElect):
                views = daemon.views.setdefault((event.id, opener), [])
                views.append((self.world.mono(daemon.host), event.view))
                election = self._unsaid.pop((opener, event.id), None) if opener == daemon.name else None
                if election is not None and election.opened_at == views[-1][0]:  # else it was decided without messages
                    self._complete(daemon, election, event.view)

    def lied(self, to: str, in_the_name_of: str, about: str) -> None:
        """The intruder lies to node ``to`` in the name of another. ``about``: the id of an election, or ""."""
        self._lies |= {(to, in_the_name_of), (to, about)}

    def decided(self, daemon: Daemon, election: Election, now: Now) -> None:
        """A: before the timeout a node decides only with a statement of each living member of the frozen view."""
        if now.mono >= election.opened_at + daemon.node.ctx.settings.election_timeout_s - DECIDE_SLACK_S:
            return
        if not daemon.connected or daemon.bus_changed_at >= election.opened_at:
            return
        views = daemon.views.get((election.id, election.opened_by), [])
        if election.opened_by == daemon.name and (not views or views[-1][0] < election.opened_at):
            # The daemon opened and decided the election in one step. The election's message, which has the view, goes
            # out after that step. The daemon may have opened the election before, with another view. If no message
            # follows, the view was too large, and a hash decided.
            self._unsaid[daemon.name, election.id] = election
            return
        self._complete(daemon, election, next((view for at, view in reversed(views) if at <= election.opened_at), ()))

    def _complete(self, daemon: Daemon, election: Election, view: tuple[str, ...]) -> None:
        """A: every member of that view has stated, or was lost."""
        node = daemon.node
        if len(view) > ELECTION_MEMBERS_MAX:
            return
        members = {member.name: member for member in node.ctx.membership.members.values()}
        for name in view:
            if name == daemon.name or (election.id, name) in daemon.stated:
                continue
            member = members.get(name)
            # No member has that name: the daemon has not heard of it yet, or that node's next daemon has replaced it.
            left = name in daemon.changed_at if member is None else member.state not in (ALIVE, SUSPECT)
            if left or daemon.changed_at.get(name, -1.0) >= election.opened_at:
                continue
            verdict = f"A {daemon.name} decides {election.id} without {name}, which is of its view"
            if (daemon.name, name) in self._lies or (daemon.name, election.id) in self._lies:
                self.world.judge.excuse(LIED_TO, verdict)
            else:
                self.world.violate(verdict)
