"""Forged and repeated messages.

On a broker the intruder can publish, but it does not have the key. It sends spoilt copies of messages: no node may open
a spoilt copy. It also sends true copies, at once or much later: if a copy acts, the receiver's windows must refuse it.
The envelopes are really sealed and opened.

On the bus of one machine the socket's permissions replace the key. There the intruder is a member that lies: it sends
elections, answers, farewells and heartbeats in the name of others. An election decides nothing (S7), so safety must
hold, and liveness must return soon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordd.core.jobs.job import scheduled_run
from coordd.core.wire import codec
from coordd.core.wire.envelope import SIGN, EnvelopeError, Envelopes, Key, Keyring
from coordd.core.wire.events import (
    PROTOCOL_MAJOR,
    Action,
    Candidacy,
    Event,
    Packet,
    WorkerElect,
    WorkerElectAck,
    WorkerHeartbeat,
    WorkerOffline,
)
from simulator.terms import WALL

if TYPE_CHECKING:
    from simulator.world import World

# Maximum number of messages that the intruder keeps.
HEARD_MAX = 200

OURS = Keyring((Key("a1", SIGN, b"the cluster's key, 32 bytes long"),))
THEIRS = Keyring((Key("a1", SIGN, b"another secret under the same id"),))


class Intruder:
    """Listens to the bus, and sends copied, spoilt and made-up messages."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: list[Packet] = []
        self._seals = Envelopes(OURS, "default", "n0.100")
        self._other = Envelopes(OURS, "another", "n0.100")
        self._false = Envelopes(THEIRS, "default", "n0.100")

    def hears(self, packet: Packet) -> None:
        """A node sends a message on the bus."""
        if len(self.heard) < HEARD_MAX:
            self.heard.append(packet)
        else:
            self.heard[self.world.rng.randrange(HEARD_MAX)] = packet

    def forges(self) -> None:
        """Try to open spoilt copies of a message: each try must fail. Then deliver a true copy of it again."""
        rng = self.world.rng
        if not self.heard:
            return
        packet = rng.choice(self.heard)
        payload = codec.encode(packet)
        true = self._seals.seal(payload)
        at = rng.randrange(len(true))
        flipped = bytes([*true[:at], true[at] ^ (1 << rng.randrange(8)), *true[at + 1 :]])
        spoilt = (
            flipped,
            true[:at],
            true + rng.randbytes(rng.randint(1, 40)),
            rng.randbytes(rng.randint(0, 200)),
            self._seals.seal(payload, "n0.999"),
            self._other.seal(payload),
            self._false.seal(payload),
            payload,
        )
        for data in spoilt:
            try:
                self._seals.open(data)
            except EnvelopeError:
                continue
            self.world.violate(f"S6 a message that nobody sealed was opened: {data.hex()}")
        again, _ = codec.decode(self._seals.open(true))
        for host in self.world.hosts:
            if host.daemon is not None and host.name != packet.hostname and self.world.bus.arrives(host.daemon):
                self.world.at(self.world.before_quiet(rng.uniform(0.0, 20.0)), self.world.bus.hand, host.daemon, again)

    def lies(self) -> None:
        """Send one node a made-up message in the name of another node."""
        world, rng = self.world, self.world.rng
        there = [h for h in world.hosts if h.daemon is not None]
        if len(there) < 2:
            return
        other, to = rng.sample(there, 2)
        assert other.daemon is not None
        assert to.daemon is not None
        event = self._lie(other.daemon.name, to.daemon.name)
        event.clock = max(0, other.daemon.node.ctx.clock.value + rng.choice((-50, 0, 3, 2**20, 2**40)))
        event.timestamp = world.wall(other) + rng.choice((-100.0, 0.0, 100.0))
        packet = Packet(
            PROTOCOL_MAJOR,
            "default",
            other.name,
            other.daemon.pid,
            other.daemon.incarnation,
            rng.randrange(10_000),
            0,
            [event],  # type: ignore[list-item]  # one of AnyEvent
        )
        about = event.id if isinstance(event, (WorkerElect, WorkerElectAck)) else ""
        world.hearing.lied(to.daemon.name, other.daemon.name, about)
        world.at(0.001, world.bus.hand, to.daemon, codec.encode(packet) if world.plan.packs else packet)

    def _lie(self, other: str, to: str) -> Event:
        world, rng = self.world, self.world.rng
        rows = world.ledger.runs(limit=20)
        run, job = rng.choice([(row.run, row.job) for row in rows] or [("hand#0", "hand")])
        if rng.random() < 0.2:
            run, job = scheduled_run("sched", WALL + 9.0 * rng.randrange(1, 7)), "sched"
        attempt = rng.choice((0, 0, 1, 7))
        candidacy = Candidacy(0, rng.choice((0, 5, 10**6)), rng.choice((other, to)), rng.choice(("", "drained")))
        view = tuple(rng.sample((other, to, "n77.1"), rng.randint(0, 3)))
        kind = rng.randrange(4)
        if kind == 0:
            digest = rng.choice((world.plan.jobs[job].digest, "", "made up"))
            fire_at = rng.choice((0.0, WALL + 20.0))
            action = Action(job, run, attempt, fire_at, "@" in run, digest) if rng.random() < 0.9 else None
            return WorkerElect(id=f"{run}/{attempt}", topic="command", candidacy=candidacy, view=view, action=action)
        if kind == 1:
            return WorkerElectAck(id=f"{run}/{attempt}", candidacy=candidacy, acks=other)
        if kind == 2:
            return WorkerOffline()
        return WorkerHeartbeat(freq=rng.choice((0.0, 2.0, 5.0)), state="ready", jobs_digest=rng.choice(("", "x")))
