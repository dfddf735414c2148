"""How nodes hear each other: datagrams on one machine, or a broker with connections that are lost.

With a broker, a lost connection loses heartbeats and elections. Messages that must arrive (the news of runs) wait in
their node's outbox, which outlives the daemon. They leave when the connection is back: late, and sometimes twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from coordd.core.wire import codec
from coordd.core.wire.events import PROTOCOL_MAJOR, Event, Packet
from simulator.terms import MUST_ARRIVE

if TYPE_CHECKING:
    from simulator.machines.daemon import Daemon
    from simulator.world import Host, World

# A message that nobody confirms within this time (seconds) is sent again, at most once per interval.
CONFIRM_S = 10.0

# A waiting message is on the disk after this time (seconds).
SAVED_S = 0.05

# For this time (seconds) after our own reconnect, a returned message does not prove that its addressee is dead.
DOUBT_S = 5.0

# Maximum number of events in one message. The real driver splits the events of one tick in the same way.
PACKET_EVENTS = 100

# How long a node takes to notice that a cut has silenced its connection in one direction or both.
NOTICED_S = (0.5, 4.0)

DUPLICATED = 0.1
STRAGGLING = 0.02
STRAGGLES_S = (3.0, 60.0)


class Bus(Protocol):
    """The methods that a world calls on its bus."""

    def join(self, daemon: Daemon) -> tuple[str, ...] | None:
        """A daemon starts; returns the peers that it can see, None when it can see none."""

    def publish(self, daemon: Daemon, events: list[Event]) -> None: ...
    def send(self, daemon: Daemon, name: str, event: Event) -> None: ...
    def cut(self, host: Host) -> None:
        """That machine's network was cut, in one direction or both. Its daemon may notice the cut."""

    def lose_connection(self, host: Host, seconds: float) -> None: ...
    def down(self, seconds: float) -> None: ...
    def heal(self) -> None: ...
    def heard(self, host: Host) -> bool:
        """True if another daemon would hear a message that this machine's daemon sends now."""

    def arrives(self, peer: Daemon) -> bool:
        """True if a message that is under way now can reach that peer."""

    def hand(self, peer: Daemon, packet: Any) -> None:
        """Deliver the packet to that peer."""


class Datagrams:
    """The bus of one machine: every message travels alone, and there is no connection."""

    def __init__(self, world: World) -> None:
        self.world = world

    def join(self, daemon: Daemon) -> tuple[str, ...] | None:
        peers = [h.daemon for h in self.world.hosts if h.daemon is not None and h.daemon is not daemon]
        return tuple(peer.node.ctx.full_hostname for peer in peers)

    def publish(self, daemon: Daemon, events: list[Event]) -> None:
        for at in range(0, len(events), PACKET_EVENTS):
            self._pass_on(daemon, packet_of(daemon, events[at : at + PACKET_EVENTS]))

    def send(self, daemon: Daemon, name: str, event: Event) -> None:
        self._pass_on(daemon, packet_of(daemon, [event]), only=name)

    def cut(self, host: Host) -> None:
        """Do nothing: there is no connection that could notice the cut."""

    def lose_connection(self, host: Host, seconds: float) -> None:
        """Do nothing: there is no connection."""

    def down(self, seconds: float) -> None:
        """Do nothing: there is no broker."""

    def heal(self) -> None:
        """Do nothing: this bus has no faults except the cuts, and the world heals each host's cuts."""

    def arrives(self, peer: Daemon) -> bool:
        """True if a message that is under way now can reach that peer."""
        now, host = self.world.now, peer.host
        return now >= host.bus_cut and now >= host.deaf

    def leaves(self, host: Host) -> bool:
        """True if a message that this machine sends now leaves the machine."""
        return self.world.now >= host.bus_cut and self.world.now >= host.mute

    def heard(self, host: Host) -> bool:
        daemon = host.daemon
        others = [h.daemon for h in self.world.hosts if h.daemon is not None and h is not host]
        return daemon is not None and self.leaves(host) and any(self.arrives(peer) for peer in others)

    def _pass_on(self, daemon: Daemon, packet: Packet, *, only: str = "", loses: bool = True) -> None:
        world, host = self.world, daemon.host
        world.hearing.said(daemon, packet)
        if not self.leaves(host):
            return
        sent: Any = codec.encode(packet) if world.plan.packs else packet
        rng = world.rng
        rough = world.rough
        for other in world.hosts:
            peer = other.daemon
            if other is host or peer is None or not self.arrives(peer):
                continue
            if only and peer.name != only:
                continue
            if world.pairs and world.now < world.pairs.get((host.index, other.index), 0.0):
                continue
            if rough:
                if loses and "loss" in rough and rng.random() < world.plan.loss:
                    world.fault_log["loss"] += 1
                    continue
                if "duplication" in rough and rng.random() < DUPLICATED:
                    world.fault_log["duplication"] += 1
                    world.at(rng.uniform(0.0005, 5 * world.delay), self.hand, peer, sent)
                if "straggler" in rough and rng.random() < STRAGGLING:
                    world.fault_log["straggler"] += 1
                    world.at(world.before_quiet(rng.uniform(*STRAGGLES_S)), self.hand, peer, sent)
                    continue
            world.at(rng.uniform(0.0005, world.delay), self.hand, peer, sent)

    def hand(self, peer: Daemon, packet: Any) -> None:
        """Deliver the packet to that peer."""
        peer.deliver(packet)


@dataclass(slots=True, eq=False)
class OutboxEntry:
    """A message that must arrive."""

    packet: Packet
    on_disk: bool = False


class Broker(Datagrams):
    """A broker: every daemon has one connection to it.

    The seed decides which messages are lost, and when a node notices that its connection is lost.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.down_until = 0.0

    def join(self, daemon: Daemon) -> tuple[str, ...] | None:
        daemon.bus_changed(False)  # until the bus tells the daemon that it is connected
        self._connect(daemon)
        return None

    def publish(self, daemon: Daemon, events: list[Event]) -> None:
        for at in range(0, len(events), PACKET_EVENTS):
            self._publish(daemon, events[at : at + PACKET_EVENTS])

    def _publish(self, daemon: Daemon, events: list[Event]) -> None:
        kept = [event for event in events if isinstance(event, MUST_ARRIVE)]
        passing = [event for event in events if not isinstance(event, MUST_ARRIVE)]
        if passing:
            packet = packet_of(daemon, passing)
            if daemon.connected and self._up(daemon.host):
                self._pass_on(daemon, packet)
        if kept:
            outbox = daemon.host.outbox
            entry = OutboxEntry(packet_of(daemon, kept))
            waits = not daemon.connected or any(other.on_disk for other in outbox)
            outbox.append(entry)
            if waits:
                self.world.at(SAVED_S, self._saved, daemon, entry)
            else:
                self._post(daemon, entry)

    def send(self, daemon: Daemon, name: str, event: Event) -> None:
        if not daemon.connected or not self._up(daemon.host) or not self.leaves(daemon.host):
            return
        addressee = next((h.daemon for h in self.world.hosts if h.daemon and h.daemon.name == name), None)
        if addressee is not None and addressee.connected and self._up(addressee.host):
            self._pass_on(daemon, packet_of(daemon, [event]), only=name)
        elif self.world.now > daemon.connected_at + DOUBT_S and self.world.now >= daemon.host.deaf:
            self.world.at(0.02, daemon.peer_dead, name)  # the broker returned the message

    # ---- faults

    def cut(self, host: Host) -> None:
        """A daemon notices a cut only by silence, so it does not notice a short cut."""
        if host.daemon is not None:
            self.world.at(self.world.rng.uniform(*NOTICED_S), self._look, host.daemon)

    def lose_connection(self, host: Host, seconds: float) -> None:
        if host.daemon is not None:
            host.bus_cut = max(host.bus_cut, self.world.now + seconds)
            self.world.at(0.01, self._look, host.daemon)

    def down(self, seconds: float) -> None:
        self.down_until = max(self.down_until, self.world.now + seconds)
        for host in self.world.hosts:
            if host.daemon is not None:
                self.world.at(self.world.rng.uniform(0.0, 0.05), self._look, host.daemon)

    def heal(self) -> None:
        self.down_until = 0.0
        for host in self.world.hosts:
            if host.daemon is not None and not host.daemon.connected:
                self._connect(host.daemon)

    # ---- connections

    def arrives(self, peer: Daemon) -> bool:
        return peer.connected and self._up(peer.host) and super().arrives(peer)

    def _up(self, host: Host) -> bool:
        """True if bytes pass between the broker and that machine, in at least one direction."""
        return self.world.now >= self.down_until and self.world.now >= host.bus_cut

    def _stands(self, host: Host) -> bool:
        """True if that machine can open or keep a connection to the broker."""
        return self._up(host) and self.world.now >= host.deaf and self.world.now >= host.mute

    def _look(self, daemon: Daemon) -> None:
        """If the daemon's connection is lost or useless, the daemon notices that now."""
        if daemon.alive and daemon.connected and not self._stands(daemon.host):
            for entry in daemon.host.outbox:
                entry.on_disk = True
            self._tell(daemon, up=False)
            self._connect(daemon)

    def _connect(self, daemon: Daemon) -> None:
        host = daemon.host
        wait_s = max(self.down_until, host.bus_cut, host.deaf, host.mute) - self.world.now
        self.world.at(max(0.0, wait_s) + self.world.rng.uniform(0.05, 0.8), self._try, daemon)

    def _try(self, daemon: Daemon) -> None:
        if not daemon.alive or daemon.connected:
            return
        if not self._stands(daemon.host):
            self._connect(daemon)
            return
        self._tell(daemon, up=True)
        for number, entry in enumerate(list(daemon.host.outbox)):
            self.world.at(0.01 + 0.002 * number, self._post, daemon, entry)

    def _tell(self, daemon: Daemon, *, up: bool) -> None:
        daemon.connected = up
        if up:
            daemon.connected_at = self.world.now
        daemon.bus_changed(up)

    # ---- messages that must arrive

    def _saved(self, daemon: Daemon, entry: OutboxEntry) -> None:
        """The message is now on the disk, behind the messages that already wait there."""
        entry.on_disk = True
        self._post(daemon, entry)

    def _post(self, daemon: Daemon, entry: OutboxEntry) -> None:
        """Send the message. If nobody confirms it, send it again later."""
        if not daemon.alive or not daemon.connected or entry not in daemon.host.outbox:
            return  # this node sends it after its next connection, or after its next start
        if entry.packet.incarnation != daemon.incarnation:
            entry.packet = packet_of(daemon, entry.packet.events)
        self.world.at(CONFIRM_S, self._post, daemon, entry)
        if self._up(daemon.host):
            if entry.on_disk:
                self.world.fault_log["late_news"] += 1
            self._pass_on(daemon, entry.packet, loses=False)
            self.world.at(self.world.rng.uniform(0.001, 0.05), self._confirmed, daemon, entry)

    def _confirmed(self, daemon: Daemon, entry: OutboxEntry) -> None:
        if daemon.alive and daemon.connected and self._stands(daemon.host) and entry in daemon.host.outbox:
            daemon.host.outbox.remove(entry)

    def hand(self, peer: Daemon, packet: Any) -> None:
        if self.arrives(peer):  # a peer's queue is lost together with its connection
            peer.deliver(packet)


def packet_of(daemon: Daemon, events: list[Any]) -> Packet:
    """A packet of these events, with this daemon's identity and its next sequence numbers."""
    packet = Packet(PROTOCOL_MAJOR, "default", daemon.host.name, daemon.pid, daemon.incarnation, daemon.seq, 0, events)
    daemon.seq += len(events)
    return packet
