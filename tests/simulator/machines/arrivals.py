"""The real service of triggers (services/triggering) of each daemon: a directory, a queue and a stream that it polls.

The files of the directory stay. The messages of the queue and the stream are there until they are acknowledged: the
queue gives each to one connection, until that ends; the stream gives those without an acknowledgement to all.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from coordd.core.jobs.trigger import AMQP, FILE, Trigger
from coordd.core.ledger.runner_requests import Registration
from coordd.core.triggers import duplicates
from coordd.core.triggers.files import Found
from coordd.core.triggers.messages import Batch, Message
from coordd.core.triggers.polling import subject
from coordd.errors import UnavailableError
from coordd.ports import Listing
from coordd.services.triggering import registering, service, sources, taking
from coordd.services.triggering.service import Triggering
from simulator.machines.arriving import ASK, AWAY, DROP
from simulator.machines.revisions import Log
from simulator.machines.seat import Seat, Services
from simulator.policies import TRIGGERS

if TYPE_CHECKING:
    from simulator.item import Item
    from simulator.machines.daemon import Daemon
    from simulator.machines.waiting import Turns
    from simulator.world import World

# The numbers of requests of triggers begin here, above those of hooks; those of people with `dedupe`, above these.
REQUESTS = 2_000_000
ASKED = 3_000_000

# How long the ledger keeps runs (seconds): longer than a world lasts.
KEEP_S = 30 * 86_400.0

NOT_THERE = "the source is away"


class Box:
    """The messages of one trigger. ``held``: message -> the connection that it was given to, of a queue."""

    def __init__(self) -> None:
        self.messages: dict[str, Message] = {}
        self.held: dict[str, Connection] = {}
        self.done: set[str] = set()
        self.aside: list[str] = []
        self.number = 0

    def put(self, ident: str, value: str) -> None:
        """A sender adds a message; ``value``: its only field, none if it is empty."""
        self.number += 1
        place = str(self.number)
        digest = hashlib.sha256(value.encode()).hexdigest()
        self.messages[place] = Message(place, ident, digest, {"value": value} if value else {})

    @property
    def left(self) -> dict[str, Message]:
        """Those without an acknowledgement."""
        return {place: message for place, message in self.messages.items() if place not in self.done}


class Connection:
    """ports.MessageQueue: one daemon's connection to the messages of one trigger."""

    def __init__(self, arrivals: Arrivals, daemon: Daemon, job: str, trigger: Trigger) -> None:
        self._arrivals, self._daemon, self._trigger = arrivals, daemon, trigger
        self._of = subject(job, trigger.name)
        self._box = arrivals.boxes[job]

    async def read(self, most: int) -> Batch:
        batch: Batch = await self._call(partial(self._read, most))
        return batch

    async def acknowledge(self, places: Sequence[str]) -> None:
        if places:
            await self._call(partial(self._acknowledge, places))

    async def put_aside(self, dead: Sequence[tuple[str, str]]) -> None:
        if dead:
            await self._call(partial(self._put_aside, dead))

    async def close(self) -> None:
        """The queue gives the messages to others."""
        self._box.held = {place: by for place, by in self._box.held.items() if by is not self}

    async def _call(self, call: Callable[[], Any]) -> Any:
        return await self._arrivals.turns.run_sync(call)

    def _mine(self, place: str) -> bool:
        """True if this connection may acknowledge it. What a queue has given back comes again."""
        return place not in self._box.done and (
            self._trigger.kind != AMQP or self._box.held.get(place) is self  # else it was given to another one
        )

    def _read(self, most: int) -> Batch:
        self._arrivals.looked(self._daemon, self._of)
        box = self._box
        left = box.left
        if self._trigger.kind == AMQP:
            box.held = {place: by for place, by in box.held.items() if by._daemon.alive}
            left = {place: one for place, one in left.items() if box.held.get(place, self) is self}
        given = list(left.values())[:most]
        box.held |= dict.fromkeys([message.place for message in given], self)
        return Batch(given, len(left), len(box.aside))

    def _acknowledge(self, places: Sequence[str]) -> None:
        self._arrivals.reach(self._daemon)
        for place in filter(self._mine, places):
            self._box.done.add(place)
            self._arrivals.world.arrived.acknowledged(self._of, self._box.messages[place])

    def _put_aside(self, dead: Sequence[tuple[str, str]]) -> None:
        self._arrivals.reach(self._daemon)
        for place in [place for place, _ in dead if self._mine(place)]:
            self._box.done.add(place)
            self._box.aside.append(place)


class TriggersSeat(Seat):
    """What the service of triggers sees of its daemon. It is ``Queues``, too: its programs are never asked."""

    def __init__(self, arrivals: Arrivals, daemon: Daemon) -> None:
        super().__init__(daemon, arrivals.turns, REQUESTS)
        self._arrivals = arrivals
        this: Any = self
        self.service = Triggering(this, this, partial(arrivals.files, daemon), lambda: KEEP_S, this)

    async def run(self) -> None:
        """Queues have no service of their own here."""

    def open(self, job: str, trigger: Trigger) -> Connection:
        return Connection(self._arrivals, self._daemon, job, trigger)


class Arrivals(Services[TriggersSeat]):
    """What arrives in one world, and the services of all its daemons."""

    kind, what = TRIGGERS, "triggers"

    def __init__(self, world: World, turns: Turns) -> None:
        super().__init__(world, turns)
        triggers = {job.name: one for job in world.plan.jobs.values() for one in job.triggers}
        self.boxes = {job: Box() for job, one in triggers.items() if one.kind != FILE}
        self.there: dict[str, Found] = {}  # the files, by path
        self._away: Counter[int] = Counter()  # machines that reach no source
        self._asked = ASKED

    # ---- what happens

    def do(self, item: Item) -> None:
        """An arrival, a request of a person, or a source that is away from a machine for a while."""
        world = self.world
        job, _, what = item.what.partition("/")
        if item.kind == AWAY:
            host = world.hosts[int(item.who * len(world.hosts))]
            world.say(f"FAULT {AWAY} {host.name} {item.amount:.2f}")
            world.fault_log[AWAY] += 1
            self._away[host.index] += 1
            world.at(item.amount, self._back, host.index)
        elif item.kind == ASK:
            self._ask(item, what)
        elif job == DROP:
            self._write(f"/in/{what}")
            if item.amount:
                world.at(item.amount, self._write, f"/in/{what}")
        else:
            ident, _, value = what.partition("/")
            world.say(f"ARRIVES {item.what}")
            self.boxes[job].put(ident, value)
            world.arrived.arrives(job, self.boxes[job].messages[str(self.boxes[job].number)])

    def _back(self, index: int) -> None:
        self._away[index] -= 1

    def _write(self, path: str) -> None:
        """A writer makes a file, or adds to it."""
        size = self.there[path].size + 1 if path in self.there else 1
        self.world.say(f"ARRIVES {path} of {size} bytes")
        at = int(self.world.server.wall() * 1e9)
        self.there[path] = Found(path, size, at, at)
        self.world.arrived.written(path, size)

    def _ask(self, item: Item, value: str) -> None:
        """As `run.trigger` does: somebody asks for a run of a job that knows triggers by a key."""
        world, host = self.world, self.world.people._somewhere(item.who)
        job = host.jobs.get(item.what.partition("/")[0]) if host is not None else None
        if host is None or host.daemon is None or job is None or job.dedupe is None:
            world.at(1.0, self._ask, item, value)
            return
        wall = world.wall(host)
        run = f"{job.name}#{duplicates.ident_of(job.dedupe, {**job.params, 'value': value}, job.timezone, wall)}"
        world.say(f"PEOPLE ask {run} on {host.name}")
        world.arrived.asked(job, run, value, wall)
        self._asked += 1
        args = f'{{"value":"{value}"}}'
        of = Registration(run, job.name, job.digest, job.policy(), wall, scheduled=False, args=args, by="a person")
        host.daemon.feed(host.daemon.node.trigger, of, self._asked)

    # ---- what a daemon sees

    def reach(self, daemon: Daemon) -> None:
        """Raises UnavailableError if that machine reaches no source."""
        if self._away[daemon.host.index]:
            raise UnavailableError(NOT_THERE)

    def looked(self, daemon: Daemon, of: str) -> None:
        """A daemon looks at a source."""
        self.world.arrived.looked(daemon, of)
        self.reach(daemon)

    def files(self, daemon: Daemon, _pattern: str) -> Listing:
        """ports.Files"""
        self.looked(daemon, subject(DROP, DROP))
        return Listing(list(self.there.values()), [], more=False)

    def _seat(self, daemon: Daemon) -> TriggersSeat:
        return TriggersSeat(self, daemon)

    def _runs(self, seat: TriggersSeat) -> Coroutine[Any, Any, Any]:
        return seat.service.run()

    def _patch(self, patches: contextlib.ExitStack) -> None:
        log: Any = Log(self.world)
        clock = SimpleNamespace(time=lambda: self.turns.present.time().wall)
        for patch in (
            self.turns.patched(service, sources),
            mock.patch.object(sources, "time", clock),
            mock.patch.object(service, "log", log),
            mock.patch.object(registering, "log", log),
            mock.patch.object(taking, "log", log),
        ):
            patches.enter_context(patch)
