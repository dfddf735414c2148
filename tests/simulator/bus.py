"""How nodes hear each other: datagrams on one machine, or a broker with connections that are lost.

At a broker what is of the moment is lost with a connection, and what must arrive (the news of runs) waits in its
node's outbox, which outlives the daemon. It leaves when the connection is back: late, and sometimes twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from coordd.core import wire
from coordd.core.events import PROTOCOL_MAJOR, ControlCancel, ControlRevoke, Event, Packet, Task

if TYPE_CHECKING:
    from simulator.daemon import Daemon
    from simulator.world import Host, World

MUST_ARRIVE = (Task, ControlRevoke, ControlCancel)

# A confirmation that has not come after this long will not come: sent again. So often at the most.
CONFIRM_S = 10.0

# What waits is on the disk after so long.
SAVED_S = 0.05

# A message that comes back proves nothing of its addressee so soon after our own connection came back.
DOUBT_S = 5.0


class Bus(Protocol):
    """What a world needs of its bus."""

    def join(self, daemon: Daemon) -> tuple[str, ...] | None:
        """A daemon starts; returns the peers that it can see, None when it can see none."""

    def publish(self, daemon: Daemon, events: list[Event]) -> None: ...
    def send(self, daemon: Daemon, name: str, event: Event) -> None: ...
    def cut(self, host: Host, seconds: float) -> None: ...
    def lose_connection(self, host: Host) -> None: ...
    def down(self, seconds: float) -> None: ...
    def heal(self) -> None: ...
    def heard(self, host: Host) -> bool:
        """What that machine's daemon says now is heard by another."""


class Datagrams:
    """The bus of one machine: each message on its own, and no connection."""

    def __init__(self, world: World) -> None:
        self.world = world

    def join(self, daemon: Daemon) -> tuple[str, ...] | None:
        peers = [h.daemon for h in self.world.hosts if h.daemon is not None and h.daemon is not daemon]
        return tuple(peer.node.ctx.full_hostname for peer in peers)

    def publish(self, daemon: Daemon, events: list[Event]) -> None:
        self._pass_on(daemon, packet_of(daemon, events))

    def send(self, daemon: Daemon, name: str, event: Event) -> None:
        self._pass_on(daemon, packet_of(daemon, [event]), only=name)

    def cut(self, host: Host, seconds: float) -> None:
        host.bus_cut = self.world.now + seconds

    def lose_connection(self, host: Host) -> None:
        """There is none."""

    def down(self, seconds: float) -> None:
        """There is no broker."""

    def heal(self) -> None:
        """Nothing but the cuts, which are the hosts'."""

    def arrives(self, peer: Daemon) -> bool:
        """A message that is sent now can reach that peer."""
        return self.world.now >= peer.host.bus_cut

    def heard(self, host: Host) -> bool:
        daemon = host.daemon
        others = [h.daemon for h in self.world.hosts if h.daemon is not None and h is not host]
        return daemon is not None and self.arrives(daemon) and any(self.arrives(peer) for peer in others)

    def _pass_on(self, daemon: Daemon, packet: Packet, *, only: str = "", loses: bool = True) -> None:
        world, host = self.world, daemon.host
        if world.now < host.bus_cut:
            return
        sent: Any = wire.encode(packet) if world.packing else packet
        rng = world.rng
        for other in world.hosts:
            peer = other.daemon
            if other is host or peer is None or not self.arrives(peer):
                continue
            if only and peer.node.ctx.full_hostname != only:
                continue
            if loses and world.loss and rng.random() < world.loss:
                world.fault_log["loss"] += 1
                continue
            world.at(rng.uniform(0.0005, world.delay), self._hand, peer, sent)
            if "duplication" in world.faults and not world.chaos_over and rng.random() < 0.1:
                world.fault_log["duplication"] += 1
                world.at(rng.uniform(0.0005, 5 * world.delay), self._hand, peer, sent)

    def _hand(self, peer: Daemon, packet: Any) -> None:
        peer.deliver(packet)


@dataclass(slots=True, eq=False)
class Letter:
    """A message that must arrive."""

    packet: Packet
    on_disk: bool = False


class Broker(Datagrams):
    """Every daemon has one connection to it. What is lost, and when somebody notices, is drawn from the seed."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.down_until = 0.0

    def join(self, daemon: Daemon) -> tuple[str, ...] | None:
        daemon.bus_changed(False)  # until it says that it is connected
        self._connect(daemon)
        return None

    def publish(self, daemon: Daemon, events: list[Event]) -> None:
        kept = [event for event in events if isinstance(event, MUST_ARRIVE)]
        passing = [event for event in events if not isinstance(event, MUST_ARRIVE)]
        if passing:
            packet = packet_of(daemon, passing)
            if daemon.connected and self._up(daemon):
                self._pass_on(daemon, packet)
        if kept:
            outbox = daemon.host.outbox
            letter = Letter(packet_of(daemon, kept))
            waits = not daemon.connected or any(other.on_disk for other in outbox)
            outbox.append(letter)
            if waits:
                self.world.at(SAVED_S, self._saved, letter)
            else:
                self._post(daemon, letter)

    def send(self, daemon: Daemon, name: str, event: Event) -> None:
        if not daemon.connected or not self._up(daemon):
            return
        addressee = next((h.daemon for h in self.world.hosts if h.daemon and h.daemon.name == name), None)
        if addressee is not None and self.arrives(addressee):
            self._pass_on(daemon, packet_of(daemon, [event]), only=name)
        elif self.world.now > daemon.connected_at + DOUBT_S:
            self.world.at(0.02, daemon.peer_dead, name)  # it came back

    # ---- what befalls it

    def cut(self, host: Host, seconds: float) -> None:
        """The network: no one notices but by silence, and what is short goes unnoticed."""
        host.bus_cut = self.world.now + seconds
        if host.daemon is not None:
            self.world.at(self.world.rng.uniform(0.5, 4.0), self._look, host.daemon)

    def lose_connection(self, host: Host) -> None:
        if host.daemon is not None:
            host.bus_cut = max(host.bus_cut, self.world.now + self.world.rng.choice((0.1, 2.0, 12.0)))
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
        return peer.connected and self._up(peer)

    def _up(self, daemon: Daemon) -> bool:
        return self.world.now >= self.down_until and self.world.now >= daemon.host.bus_cut

    def _look(self, daemon: Daemon) -> None:
        """The daemon finds that its connection is gone, if it is."""
        if daemon.alive and daemon.connected and not self._up(daemon):
            for letter in daemon.host.outbox:
                letter.on_disk = True
            self._tell(daemon, up=False)
            self._connect(daemon)

    def _connect(self, daemon: Daemon) -> None:
        wait_s = max(self.down_until, daemon.host.bus_cut) - self.world.now
        self.world.at(max(0.0, wait_s) + self.world.rng.uniform(0.05, 0.8), self._try, daemon)

    def _try(self, daemon: Daemon) -> None:
        if not daemon.alive or daemon.connected:
            return
        if not self._up(daemon):
            self._connect(daemon)
            return
        self._tell(daemon, up=True)
        for number, letter in enumerate(list(daemon.host.outbox)):
            self.world.at(0.01 + 0.002 * number, self._post, daemon, letter)

    def _tell(self, daemon: Daemon, *, up: bool) -> None:
        daemon.connected = up
        if up:
            daemon.connected_at = self.world.now
        daemon.bus_changed(up)

    # ---- what must arrive

    def _saved(self, letter: Letter) -> None:
        letter.on_disk = True

    def _post(self, daemon: Daemon, letter: Letter) -> None:
        """Send it, and again when nobody confirms."""
        if not daemon.alive or not daemon.connected or letter not in daemon.host.outbox:
            return  # the next connection, or the next life of this node, sends it
        if letter.packet.incarnation != daemon.incarnation:
            letter.packet = packet_of(daemon, letter.packet.events)
        self.world.at(CONFIRM_S, self._post, daemon, letter)
        if self._up(daemon):
            if letter.on_disk:
                self.world.fault_log["late_news"] += 1
            self._pass_on(daemon, letter.packet, loses=False)
            self.world.at(self.world.rng.uniform(0.001, 0.05), self._confirmed, daemon, letter)

    def _confirmed(self, daemon: Daemon, letter: Letter) -> None:
        if daemon.alive and daemon.connected and self._up(daemon) and letter in daemon.host.outbox:
            daemon.host.outbox.remove(letter)

    def _hand(self, peer: Daemon, packet: Any) -> None:
        if self.arrives(peer):  # its queue went with its connection
            peer.deliver(packet)


def packet_of(daemon: Daemon, events: list[Any]) -> Packet:
    """Events as this daemon says them."""
    packet = Packet(PROTOCOL_MAJOR, "default", daemon.host.name, daemon.pid, daemon.incarnation, daemon.seq, 0, events)
    daemon.seq += len(events)
    return packet
