"""A node's shell in the simulator: it does the steps of ``core.perform`` on a simulated machine."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

from msgspec import structs
from support.small_cluster import QuietShell

from coordd.core.election import Election
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import UNAVAILABLE
from coordd.core.node import node as nodes
from coordd.core.node.definitions import Had
from coordd.core.node.elections import Elections
from coordd.core.node.node import Node
from coordd.core.perform import pump
from coordd.core.ready import Elected, Launch, LedgerRequest, Notice, Now, Reply
from coordd.core.runs import knowledge
from coordd.core.wire import codec
from coordd.core.wire.events import Event, Task, TaskFailed, TaskRetried, TaskRevoked, TaskSucceeded
from coordd.core.wire.windows import Windows
from simulator.judging import policies
from simulator.judging.knowledge import Key
from simulator.machines.runner import Runner
from simulator.machines.waiting import CALL_S
from simulator.terms import SETTINGS

if TYPE_CHECKING:
    from coordd.services.backends.published import PublishedSource
    from simulator.machines.checks import ChecksSeat
    from simulator.machines.hooks import HooksSeat
    from simulator.machines.seat import Seat
    from simulator.world import Host, World

# Interval (seconds) at which a daemon with a full disk checks whether the disk accepts data again.
PROBE_S = 2.0

# Seconds until a node looks again at the jobs that it could not launch.
CHECK_S = 5.0
LAUNCH_FAILS = 0.1

# Interval (seconds) at which a daemon repeats a testimony without an answer.
AGAIN_S = 1.0

# The events of the journal that tell of an attempt's end.
ENDS = (TaskSucceeded, TaskFailed, TaskRevoked, TaskRetried)

# Faults by which a daemon dies between two steps.
DEADLY = frozenset(("crash", "power"))


# In worlds that strike at the worst moment, a daemon dies before each step with this probability.
DIES = 0.01


class Died(Exception):  # noqa: N818  # a death, not an error
    """The daemon died before it had done everything that its node wanted."""


class WatchedElections(Elections):
    """The real elections. The judge is told when an election is decided."""

    __slots__ = ("daemon",)

    def __init__(self, daemon: Daemon, *of_node: Any) -> None:
        self.daemon = daemon
        super().__init__(*of_node)

    def _settled(self, election: Election, now: Now) -> None:
        self.daemon.world.hearing.decided(self.daemon, election, now)
        policies.decided(self.daemon.world, election)
        super()._settled(election, now)


class WatchedNode(Node):
    """The real node. The judge learns what the node decides, and when the node found that a member came or was lost."""

    def __init__(self, daemon: Daemon, **given: Any) -> None:
        self.daemon = daemon
        with mock.patch.object(nodes, "Elections", partial(WatchedElections, daemon)):
            super().__init__(**given)

    def _members_changed(self, now: Now) -> None:
        for _, member in self.ctx.membership.changes:
            self.daemon.changed_at[member.name] = now.mono
        super()._members_changed(now)


class Daemon(QuietShell):
    """One process of one node's daemon, from its start to its end."""

    def __init__(self, world: World, host: Host) -> None:
        self.world, self.host = world, host
        self.alive = True
        self.paused_until = 0.0
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.timer_set = float("inf")
        self.seq = 0
        self.pid = 100 + host.boots
        self.incarnation = f"{host.boots}-{world.rng.getrandbits(64):016x}"
        self.connected = not world.plan.production
        self.connected_at = 0.0
        # full_hostname -> when (mono) this node last found that the member had come or gone
        self.changed_at: dict[str, float] = {}
        self.bus_changed_at = 0.0  # mono
        # incarnation -> [highest number, all numbers] of the messages of that incarnation that this node was given
        self.given: dict[str, list[Any]] = {}
        self.stated: set[tuple[str, str]] = set()  # (election, full_hostname) of each statement given to this node
        # (election, opener) -> when (mono) this node heard of it or opened it, and the view that it was opened with
        self.views: dict[tuple[str, str], list[tuple[float, tuple[str, ...]]]] = {}
        self.told: set[Key] = set()  # attempts that this node was told of, or that its journal has
        self.began_at = world.now
        self.ready_at = float("inf")  # since when this node takes part
        self.stopping = False
        self.rng = random.Random(f"steps of {world.plan.seed} {host.index} {host.boots}")
        self.unkept: Any = None  # definitions that are not on the disk yet
        self.node = WatchedNode(
            self,
            hostname=host.name,
            pid=self.pid,
            incarnation=self.incarnation,
            settings=structs.replace(
                SETTINGS,
                kill_grace_s=world.plan.kill_grace_s,
                tags=world.plan.tags[host.index],
                budget_client=world.rooms.largest(host),
            ),
            clock_mark=host.disk.clock_mark,
            rng=world.rng,
            pin=host.disk.pin[0],
        )
        self.name = self.node.full_hostname
        self.node.pursuits.scored(world.plan.scores)
        self.calls = random.Random(f"calls of {world.plan.seed} {host.index} {host.boots}")
        self.source: PublishedSource | None = None
        self.hooks: HooksSeat | None = None
        self.checks: ChecksSeat | None = None
        self.seats: list[Seat] = []  # of its services
        self.began_with = host.disk.clock_mark
        self.windows = Windows(*self.time(), host.disk.clock_mark, self.name) if world.plan.production else None

    def call_s(self) -> float:
        """Seconds that a call of another server takes, one way."""
        return self.calls.uniform(*CALL_S) * self.host.slowness

    def time(self) -> Now:
        return Now(self.world.mono(self.host), self.world.wall(self.host))

    def begin(self) -> None:
        host, now = self.host, self.time()
        self.hooks = self.world.hooks.start(self)
        self.checks = self.world.checking.start(self)
        seats = (self.hooks, self.world.arrivals.start(self), self.checks)
        self.seats = [seat for seat in seats if seat is not None]
        host.mark_lost, host.disk.unsaved_mark = host.mark_lost or bool(host.disk.unsaved_mark), 0
        if host.mark_lost:
            host.acted.clear()
        self.node.rulebook.definitions.had = {job: Had(*one) for job, one in host.disk.definitions.items()}
        if self.world.plan.published:
            self.source = self.world.publishing.sources.start(self)
        self.world.configuration.noticed(host, host.jobs, now)
        self.world.judge.knowledge.told(self, host.disk.journal)
        self.world.mingled.knows(self, host.disk.journal, read=True)
        for event in host.disk.journal:
            self.node.witness.saw(event)
            self.node.outcomes.saw(event, event.timestamp)
        for runner in list(host.runners):
            runner.told = False  # the runner told the dead daemon; it must tell this daemon again
            self.node.runner_adopted(
                runner.launch.run, runner.launch.job, runner.launch.attempt, runner.launch.token, waits=False
            )
        for of in host.disk.requests.values():
            self.node.recover_request(of, now)
        self.node.start(self.world.bus.join(self), now)
        self.pump()
        if not self.alive:
            return
        self._testify(now)
        facts, host.facts = host.facts, []
        for fact in facts:
            self.runner_ended(*fact)
        for runner in list(host.runners):
            runner.tell()

    def _testify(self, now: Now) -> None:
        """As services.runners does: tell the ledger of attempts that left neither a runner nor an end in its file."""
        host, testimonies = self.host, self.node.testimonies
        known = {runner.launch.token for runner in host.runners} | {launch.token for launch, *_ in host.facts}
        ends = {(event.run, event.token): event for event in host.disk.journal if isinstance(event, ENDS)}
        for name, (launch, then) in list(host.disk.attempts.items()):
            why = knowledge.is_over(then, host.place, knowledge.NOTHING, "")
            if launch.token in known:
                continue
            if (end := ends.get((launch.run, launch.token))) is not None:
                testimonies.ended(name, end, now)
            elif why:
                self.world.fault_log["testified"] += 1
                self.world.judge.testified(self, launch, why)
                testimonies.over(name, launch, why, now)
            else:
                self.world.fault_log["cannot_tell"] += 1
                del host.disk.attempts[name]
        self.world.at(AGAIN_S, self._repeat)

    def _repeat(self) -> None:
        """Ask again what had no answer. The other records are not needed any more, once their runners are gone."""
        if self._late(self._repeat):
            return
        waiting = self.node.testimonies.waiting
        known = {runner.launch.token for runner in self.host.runners} | {launch.token for launch, *_ in self.host.facts}
        for name, (launch, _) in list(self.host.disk.attempts.items()):
            if name not in waiting and launch.token not in known:
                del self.host.disk.attempts[name]
        if waiting:
            self.feed(self.node.testimonies.again)
        self.world.at(AGAIN_S, self._repeat)

    @property
    def paused(self) -> bool:
        return self.world.now < self.paused_until

    def pause(self, seconds: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.world.records.befell(self.host.index, "pause_daemon", self.world.now, seconds)
        self.world.at(seconds, self.resume)

    def resume(self) -> None:
        if self.world.now < self.paused_until and not self.world.chaos_over:
            return  # a longer pause has begun meanwhile
        self.paused_until = 0.0
        waiting, self.waiting = self.waiting, []
        for call, args in waiting:
            call(*args)

    def _late(self, call: Callable[..., None], *args: Any) -> bool:
        """True if the daemon is dead or paused. If it is paused, the call is kept and made after the pause."""
        if not self.alive:
            return True
        if self.world.now < self.paused_until:
            self.waiting.append((call, args))
            return True
        return False

    # ---- inputs

    def deliver(self, packet: Any) -> None:
        if self._late(self.deliver, packet):
            return
        if isinstance(packet, bytes):
            packet, _ = codec.decode(packet)
        if self.windows is not None:
            self._admit(packet, self.windows)
        else:
            self._receive(packet, self.time())
        self.pump()

    def _receive(self, packet: Any, now: Now) -> None:
        clock = self.node.ctx.clock
        refused = clock.jumps_refused
        self.world.hearing.handed(self, packet)
        self.world.mingled.may_know(self, packet.events)
        self._tell_hooks(packet)
        self.node.receive(packet, now)
        # If a sender greets under a known name, the node only answers it. The node ignores its own echoes.
        heard = self.node.ctx.membership.members.get(packet.hostname)
        if heard is not None and heard.incarnation == packet.incarnation and clock.jumps_refused == refused:
            self.world.mingled.knows(self, packet.events)
            self.world.mingled.given(self, packet)
            newest = max(event.clock for event in packet.events)
            if clock.value <= newest:
                self.world.violate(f"I8 {self.name} heard {newest} of {packet.hostname}, and its clock is not above it")

    def _admit(self, packet: Any, windows: Windows) -> None:
        """Admit messages as the driver does: each message once, and a late message is not a sign of life."""
        now, world = self.time(), self.world
        admission = windows.admit(packet, now.mono, now.wall)
        world.hearing.admitted(self, packet, admission.events)
        if not admission.events:
            world.fault_log["refused"] += 1
            return
        if admission.refused:
            packet = type(packet)(
                packet.v,
                packet.cluster,
                packet.hostname,
                packet.pid,
                packet.incarnation,
                packet.seq,
                packet.utcoffset,
                admission.events,
            )
        if admission.fresh:
            self._receive(packet, now)
            return
        world.fault_log["late"] += 1
        before = self._believed()
        world.hearing.handed(self, packet)
        world.mingled.may_know(self, packet.events)
        self._tell_hooks(packet)
        self.node.receive_late(packet, now)
        if self._believed() != before:
            world.violate(f"M late news of {packet.hostname} passed for a sign of life on {self.host.name}")

    def _tell_hooks(self, packet: Any) -> None:
        if self.hooks is not None:
            self.hooks.heard(packet)

    def _believed(self) -> dict[str, tuple[str, str, float]]:
        members = self.node.ctx.membership.members
        return {name: (one.incarnation, one.state, one.heard_at) for name, one in members.items()}

    def bus_changed(self, up: bool) -> None:
        if not self._late(self.bus_changed, up):
            self.bus_changed_at = self.world.mono(self.host)
            self.node.bus_changed(up, self.time())
            self.pump()

    def answered(self, request: int, sent_at: float, answer: Any) -> None:
        if self._late(self.answered, request, sent_at, answer):
            return
        said = answer if answer is not None else Answer(UNAVAILABLE)
        self.node.ctx.heard.hear(said.epoch, said.grants)
        self.node.ledger_answered(request, said, sent_at, self.time())
        self.pump()

    def timer(self, at: float) -> None:
        if self._late(self.timer, at):
            return
        if at == self.timer_set:
            self.timer_set = float("inf")
        self.node.handle_timer(self.time())
        self.pump()

    def feed(self, call: Callable[..., Any], *args: Any) -> None:
        """Give the node an input from a person or the machine.

        ``call`` is a method of the node, or another function that takes ``now`` as its last argument.
        """
        if not self._late(self.feed, call, *args):
            call(*args, self.time())
            self.pump()

    def peer_dead(self, name: str) -> None:
        self.feed(self.node.peer_dead, name)

    def runner_started(self, launch: Launch) -> None:
        self.feed(self.node.runner_started, launch)

    def runner_ended(self, launch: Launch, state: str, code: int | None, reason: str) -> None:
        self.feed(self.node.runner_ended, launch, state, code, reason, "", None)

    def runner_gone(self, launch: Launch) -> None:
        self.feed(self.node.runner_gone, launch)

    # ---- output

    def pump(self) -> None:
        with contextlib.suppress(Died):
            pump(self.node, self)
        mono = self.world.mono(self.host)
        at = self.node.timer_at()
        if at < self.timer_set:
            self.timer_set = at
            self.world.at((at - mono) / self.host.rate, self.timer, at)

    now = time

    @property
    def full(self) -> bool:
        """True while its disk accepts no data."""
        return self.world.now < self.host.disk.full_until

    def stop(self, reason: str) -> None:
        self.world.violate(f"X {self.name} refuses to go on: {reason}")

    def _step(self) -> None:
        """Called before each step of ``perform``: the daemon may die here."""
        world = self.world
        ways = DEADLY & world.targeted
        if ways and self.rng.random() < DIES:
            world.fault_log["died_between_steps"] += 1
            back_in = self.rng.uniform(0.5, 15)
            world.crash_daemon(self.host, back_in)
            if self.rng.choice(sorted(ways)) == "power":
                world.at(0.0, world.power_cut, self.host, back_in)
            raise Died

    def save_mark(self, mark: int) -> None:
        if self.full:
            self.host.disk.unsaved_mark = mark
            self.world.at(PROBE_S, self._probe)
        else:
            self.host.disk.save_mark(mark)

    def save_pin(self, identity: str) -> None:
        host = self.host
        if host.known is not None:
            host.known.use(identity)
            host.disk.pin = (identity, host.known.address)

    def save_definitions(self, definitions: Any) -> None:
        self.unkept = definitions
        self._keep_definitions()

    def journal(self, events: Sequence[Event], *, sync: bool) -> str:
        if self.full:
            if not self.node.journal_failure:
                self.world.at(PROBE_S, self._probe)
            self.world.mingled.may_know(self, events)  # it tells the others all the same
            return "it is full"
        lines = [event for event in events if isinstance(event, Task)]
        self._step()
        self.host.disk.append(lines, sync=sync)
        self.world.judge.knowledge.told(self, lines)
        self.world.mingled.knows(self, lines)
        return ""

    def keep_request(self, of: Registration) -> str:
        self._step()
        if self.full:
            return "it is full"
        self.host.disk.requests[of.run] = of
        return ""

    def forget_request(self, run: str) -> None:
        self.host.disk.requests.pop(run, None)

    def ask(self, requests: Sequence[LedgerRequest]) -> None:
        self._step()
        world, host = self.world, self.host
        sent = world.mono(host)
        for request in requests:
            world.server_of(host).ask(host, request.request, partial(self.answered, request.id, sent))

    def launch(self, launch: Launch) -> None:
        self._step()
        self.world.at(self.world.rng.uniform(0.005, 0.05), self._spawn, launch)

    def cancel(self, run: str, reason: str) -> None:
        for runner in list(self.host.runners):
            if runner.launch.run == run:
                runner.cancel(reason)

    def publish(self, events: list[Event]) -> None:
        self._step()
        self.world.judge.announced(self, events)
        self.world.bus.publish(self, events)

    def send(self, name: str, event: Event) -> None:
        self.world.bus.send(self, name, event)

    def reply(self, reply: Reply) -> None:
        self._step()
        for seat in self.seats:
            seat.replied(reply)
        if reply.kind:
            self.world.fault_log[f"trigger_{reply.kind}"] += 1
        else:
            self.world.accepted[reply.result["id"]] = self.host if reply.result["durable"] == "node" else None

    def elected(self, elected: Elected) -> None:
        if self.checks is not None:
            self.checks.elected(elected)

    def state(self, state: str) -> None:
        self.ready_at = self.world.now if state == "ready" else float("inf")

    def log(self, journal: Sequence[Event], notices: Sequence[Notice]) -> None:
        if self.world.trace is not None:
            for notice in notices:
                self.world.say(f"{self.host.name} {notice.event} {notice.fields}")
        if self.hooks is not None:
            self.hooks.saw(journal, notices)

    def _keep_definitions(self) -> None:
        """Write the definitions to the disk. If the disk is full, try again later."""
        disk = self.host.disk
        if self.unkept is None or not self.alive:
            return
        if self.world.now < disk.full_until:
            self.world.at(PROBE_S, self._keep_definitions)
        else:
            disk.definitions, self.unkept = self.unkept, None

    def _probe(self) -> None:
        """Check whether the disk accepts data again."""
        disk = self.host.disk
        if self._late(self._probe):
            return
        if self.world.now < disk.full_until:
            self.world.at(PROBE_S, self._probe)
            return
        if disk.unsaved_mark:
            disk.save_mark(disk.unsaved_mark)
        self.node.impaired("")
        self._check()

    def _check(self) -> None:
        """Let the node try again to launch the jobs that it could not launch."""
        if not self._late(self._check):
            self.node.cannot_launch({})
            self.node.look_again(self.time())
            self.pump()

    def _spawn(self, launch: Launch) -> None:
        if not self.alive or self.host.daemon is not self:
            return
        world = self.world
        if "crash" in world.targeted and world.rng.random() < 0.05:
            world.fault_log["crash_after_claim"] += 1
            world.crash_daemon(self.host, world.rng.uniform(0.5, 15))  # right after the claim and the journal entry
        elif self._late(self._spawn, launch):
            return
        elif "launch_fails" in world.rough and world.rng.random() < LAUNCH_FAILS:
            world.fault_log["launch_fails"] += 1
            world.records.befell(self.host.index, "launch_fails", world.now)
            self.node.launch_failed(launch, "no memory", self.time())
            self.pump()
            world.at(CHECK_S, self._check)
        else:
            self._start(launch)

    def _start(self, launch: Launch) -> None:
        """Start a runner as the launch builder does: the job's definition now must be the one that was granted."""
        job = self.node.definition(launch.job, launch.digest)
        if job is None:
            self.world.fault_log["launch_outdated"] += 1
            self.node.launch_failed(launch, "the definition was changed after the attempt was granted", self.time())
            self.pump()
            return
        self.world.judge.spawned(self.host, launch)
        self.world.rooms.judge(self.host, launch)
        if not self.full:
            self.host.disk.attempts[f"{launch.run}.{launch.token}"] = (launch, self.host.place)
        Runner(self.world, self.host, launch, job)
