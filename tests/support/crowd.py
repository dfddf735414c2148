"""Many nodes in virtual time: whole core nodes, and a broker that counts messages. No ledger, no jobs, no processes."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from coordd.core.context import Settings
from coordd.core.members.membership import ALIVE, LOST, Member
from coordd.core.node.node import Node
from coordd.core.perform import pump
from coordd.core.ready import Now
from coordd.core.wire import codec
from coordd.core.wire.events import PROTOCOL_MAJOR, Event, Packet, PeerSummary, event_type
from support.small_cluster import QuietShell

EPOCH = 1_738_137_600.0

# From one node through the broker to another. The timers of two nodes are never due at the same instant by accident.
LATENCY_S = 0.002

SETTINGS = Settings(mingle=False, version="0.2.0", tags=("linux",))


NEWCOMER = Settings(version="0.2.0", tags=("linux",))


class Place(QuietShell):
    """A machine of the crowd, and its faults."""

    def __init__(self, crowd: Crowd, number: int, node: Node) -> None:
        self.crowd = crowd
        self.number = number
        self.node = node
        self.alive = True
        self.gone = False  # its inbox is gone too: the broker can prove its death
        self.hung = False
        self.deaf = False
        self.group = 0
        self.armed = float("inf")
        self.kept: list[Packet] = []  # messages that wait for a hung process

    def now(self) -> Now:
        return self.crowd.time()

    def publish(self, events: list[Event]) -> None:
        self.crowd._publish(self, self.crowd._packet(self.node, events))

    def send(self, name: str, event: Event) -> None:
        self.crowd._send(self, name, self.crowd._packet(self.node, [event]))


class Crowd:
    """N nodes that know each other already. With ``strangers`` they do not, and each must be told to ``join``."""

    newcomer = NEWCOMER  # the settings of a node that mingles

    def __init__(self, count: int, *, seed: int = 1, loss: float = 0.0, strangers: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.loss = loss
        self.places: list[Place] = []
        self.by_name: dict[str, Place] = {}
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.serial = 0
        self.published: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        self.bytes = 0
        self.said: list[tuple[float, str, Event]] = []
        for _ in range(count):
            self.boot()
        if not strangers:
            self._know_each_other()

    def boot(self, settings: Settings = SETTINGS, hostname: str = "", pid: int = 4711) -> Place:
        number = len(self.places)
        hostname = hostname or f"edge-{number:04}.site.example"
        node = Node(
            hostname=hostname,
            pid=pid,
            incarnation=f"{pid - 4708}-{self.rng.getrandbits(64):016x}",
            settings=settings,
            clock_mark=0,
            rng=random.Random(f"{number}/{self.rng.random()}"),
        )
        place = Place(self, number, node)
        self.places.append(place)
        self.by_name[node.ctx.full_hostname] = place
        return place

    def join(self, place: Place) -> None:
        """Let a node mingle, if its settings say so. The broker cannot say which nodes are there."""
        self.do(place, place.node.start, None)

    def do(self, place: Place, call: Callable[..., Any], *args: Any) -> None:
        """Give a node one input now."""
        call(*args, self.time())
        self._pump(place)

    def _know_each_other(self) -> None:
        """Make the state after a long life: every node has sent heartbeats, at different times."""
        roster = [PeerSummary(p.node.ctx.full_hostname, p.node.ctx.incarnation, "", SETTINGS.tags) for p in self.places]
        for place in self.places:
            membership = place.node.ctx.membership
            membership.told(roster, self.now, vouched=False)
            for member in membership.members.values():
                member.freq = membership.fanout_interval_s
            membership.heard_at = self.now
            membership.take_changes()
        for place in self.places:
            self.now = 1000.0 + self.rng.random() * SETTINGS.heartbeat_interval_s
            place.node.start(None, self.time())
            place.node.ctx.out.messages.clear()
            self._arm(place)
        self.now = 1000.0 + SETTINGS.heartbeat_interval_s

    # ---- observations

    def time(self) -> Now:
        return Now(self.now, EPOCH + self.now)

    def there(self) -> list[Place]:
        return [place for place in self.places if place.alive and not place.hung]

    def sees(self, place: Place, of: Place) -> Member:
        return place.node.ctx.membership.members[of.node.ctx.hostname]

    def lost_for_all(self, of: Iterable[Place]) -> bool:
        gone = list(of)
        return all(self.sees(place, one).state == LOST for place in self.there() for one in gone)

    def all_alive(self) -> bool:
        """True if every living node sees every other living node as alive."""
        there = self.there()
        return all(
            len(place.node.ctx.membership.view()) == len(there)
            and all(self.sees(place, one).state == ALIVE for one in there if one is not place)
            for place in there
        )

    def wrongly_lost(self) -> list[str]:
        there = self.there()
        return [
            f"{place.node.ctx.hostname} has lost {one.node.ctx.hostname}"
            for place in there
            for one in there
            if one is not place and self.sees(place, one).state == LOST
        ]

    def count(self) -> None:
        """Start to count from here."""
        self.published.clear()
        self.delivered.clear()
        self.bytes = 0
        self.said.clear()

    # ---- time

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False, every_s: float = 0.25) -> float:
        """Let time pass until ``until`` is true, up to a limit (seconds). Returns the seconds that passed."""
        began = self.now
        end = began + seconds
        while self.now < end:
            stop = min(end, self.now + every_s)
            while self.queue and self.queue[0][0] <= stop:
                self.now, _, call, args = heapq.heappop(self.queue)
                call(*args)
            self.now = stop
            if until():
                break
        return self.now - began

    def _at(self, at: float, call: Callable[..., None], *args: Any) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (at, self.serial, call, args))

    def _arm(self, place: Place) -> None:
        at = max(place.node.timer_at(), self.now)
        if at < place.armed:
            place.armed = at
            self._at(at, self._timer, place, at)

    def _timer(self, place: Place, at: float) -> None:
        if place.armed != at:
            return
        place.armed = float("inf")
        if place.alive and not place.hung:
            place.node.handle_timer(self.time())
            self._pump(place)

    # ---- the broker

    def _pump(self, place: Place) -> None:
        pump(place.node, place)
        self._arm(place)

    def _packet(self, node: Node, events: list[Event]) -> Packet:
        ctx = node.ctx
        self.said += [(self.now, ctx.full_hostname, event) for event in events]
        return Packet(PROTOCOL_MAJOR, "default", ctx.hostname, ctx.pid, ctx.incarnation, 7000, 1, list(events))  # type: ignore[arg-type]  # each Event is one of AnyEvent

    def _publish(self, place: Place, packet: Packet) -> None:
        kind = event_type(packet.events[0])
        self.published[kind] += 1
        self._at(self.now + LATENCY_S, self._arrive_everywhere, place, packet, kind)

    def _arrive_everywhere(self, sender: Place, packet: Packet, kind: str) -> None:
        size = len(codec.encode(packet))
        for place in self.places:
            if place is not sender and not place.gone and place.group == sender.group:
                self._arrive(place, packet, kind, size)

    def _send(self, sender: Place, name: str, packet: Packet) -> None:
        kind = event_type(packet.events[0])
        self.published[kind] += 1
        place = self.by_name.get(name)
        if place is None or place.gone:
            self._at(self.now + LATENCY_S, self._unroutable, sender, name)
        elif place.group == sender.group:
            self._at(self.now + LATENCY_S, self._arrive, place, packet, kind, len(codec.encode(packet)))

    def _unroutable(self, place: Place, name: str) -> None:
        if place.alive and not place.hung:
            place.node.peer_dead(name, self.time())
            self._pump(place)

    def _arrive(self, place: Place, packet: Packet, kind: str, size: int) -> None:
        self.delivered[kind] += 1
        self.bytes += size
        if self.loss and self.rng.random() < self.loss:
            return
        if place.hung:
            place.kept.append(packet)
        elif place.alive and not place.deaf and place.node.ctx.state != "starting":
            place.node.receive(packet, self.time())
            if place.node.wants_something() or place.node.timer_at() < place.armed:
                self._pump(place)

    # ---- faults

    def kill(self, *places: Place) -> None:
        """The process is gone, and its inbox too."""
        for place in places:
            place.alive, place.gone = False, True

    def hang(self, *places: Place) -> None:
        """The process stands still. Its inbox still accepts messages."""
        for place in places:
            place.hung = True

    def thaw(self, place: Place, *, timers_first: bool) -> None:
        """The process continues. Its timer may come first, or its messages."""
        place.hung = False
        kept, place.kept = place.kept, []
        if timers_first:
            place.node.handle_timer(self.time())
            self._pump(place)
        for packet in kept[-2000:]:
            place.node.receive(packet, self.time())
        place.node.handle_timer(self.time())
        self._pump(place)

    def cut(self, *groups: Iterable[Place]) -> None:
        """Each group hears only itself. A node that is in no group stays in group 0."""
        for number, group in enumerate(groups, 1):
            for place in group:
                place.group = number

    def heal(self) -> None:
        for place in self.places:
            place.group = 0

    def forge(self, sender: Place, event: Event) -> None:
        """Send messages of a faulty node."""
        event = msgspec.structs.replace(event, clock=sender.node.ctx.clock.forward())
        self._publish(sender, self._packet(sender.node, [event]))
