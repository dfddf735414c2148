"""A node's shell in the simulator: it does what ``Ready`` says, in its order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coordd.core import wire
from coordd.core.events import Task
from coordd.core.node import Node
from coordd.core.ready import Launch, Now
from coordd.core.rows import UNAVAILABLE, Answer
from coordd.core.windows import Windows
from simulator.runner import Runner
from simulator.terms import SETTINGS

if TYPE_CHECKING:
    from simulator.world import Host, World


class Daemon:
    """One life of one node."""

    def __init__(self, world: World, host: Host) -> None:
        self.world, self.host = world, host
        self.alive = True
        self.paused_until = 0.0
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.timer_set = float("inf")
        self.seq = 0
        self.pid = 100 + host.boots
        self.incarnation = f"{host.boots}-{world.rng.getrandbits(64):016x}"
        self.connected = not world.production
        self.connected_at = 0.0
        self.node = Node(
            hostname=host.name, pid=self.pid, incarnation=self.incarnation, settings=SETTINGS,
            clock_mark=host.clock_mark, rng=world.rng,
        )  # fmt: skip
        self.name = self.node.ctx.full_hostname
        self.windows = Windows(*self.time()) if world.production else None

    def time(self) -> Now:
        return Now(self.world.mono(self.host), self.world.wall(self.host))

    def begin(self) -> None:
        host, now = self.host, self.time()
        self.node.set_jobs(self.world.jobs, now)
        for event in host.journal:
            self.node.witness.saw(event)
        for runner in host.runners:
            runner.told = False  # what the dead daemon was told, this one must be told again
            self.node.runner_adopted(
                runner.launch.run, runner.launch.job, runner.launch.attempt, runner.launch.token, waits=False
            )
        for of in host.requests.values():
            self.node.recover_request(of, now)
        self.node.start(self.world.bus.join(self), now)
        self.pump()
        facts, host.facts = host.facts, []
        for fact in facts:
            self.runner_ended(*fact)
        for runner in list(host.runners):
            runner.tell()

    @property
    def paused(self) -> bool:
        return self.world.now < self.paused_until

    def pause(self, seconds: float) -> None:
        self.paused_until = max(self.paused_until, self.world.now + seconds)
        self.world.at(seconds, self.resume)

    def resume(self) -> None:
        if self.world.now < self.paused_until and not self.world.chaos_over:
            return  # a longer pause has come on top of this one
        self.paused_until = 0.0
        waiting, self.waiting = self.waiting, []
        for call, args in waiting:
            call(*args)

    def _late(self, call: Callable[..., None], *args: Any) -> bool:
        """True when nothing may happen now: dead, or paused (then it happens afterwards)."""
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
            packet, _ = wire.decode(packet)
        if self.windows is not None:
            self._admit(packet, self.windows)
        else:
            self.node.receive(packet, self.time())
        self.pump()

    def _admit(self, packet: Any, windows: Windows) -> None:
        """As the driver does it: each message once, and what is late is no sign of life."""
        now, world = self.time(), self.world
        admission = windows.admit(packet, now.mono, now.wall)
        if not admission.events:
            world.fault_log["refused"] += 1
            return
        if admission.refused:
            packet = type(packet)(
                packet.v, packet.cluster, packet.hostname, packet.pid, packet.incarnation, packet.seq,
                packet.utcoffset, admission.events,
            )  # fmt: skip
        if admission.fresh:
            self.node.receive(packet, now)
            return
        world.fault_log["late"] += 1
        before = self._believed()
        self.node.receive_late(packet, now)
        if self._believed() != before:
            world.violate(f"M late news of {packet.hostname} passed for a sign of life on {self.host.name}")

    def _believed(self) -> dict[str, tuple[str, str, float]]:
        members = self.node.ctx.membership.members
        return {name: (one.incarnation, one.state, one.heard_at) for name, one in members.items()}

    def bus_changed(self, up: bool) -> None:
        if not self._late(self.bus_changed, up):
            self.node.bus_changed(up, self.time())
            self.pump()

    def answered(self, request: int, sent_at: float, answer: Any) -> None:
        if self._late(self.answered, request, sent_at, answer):
            return
        said = answer if answer is not None else Answer(UNAVAILABLE)
        self.node.ledger_answered(request, said, sent_at, self.time())
        self.pump()

    def timer(self, at: float) -> None:
        if self._late(self.timer, at):
            return
        if at == self.timer_set:
            self.timer_set = float("inf")
        self.node.handle_timer(self.time())
        self.pump()

    def peer_dead(self, name: str) -> None:
        if not self._late(self.peer_dead, name):
            self.node.peer_dead(name, self.time())
            self.pump()

    def runner_started(self, launch: Launch) -> None:
        if not self._late(self.runner_started, launch):
            self.node.runner_started(launch, self.time())
            self.pump()

    def runner_ended(self, launch: Launch, state: str, code: int | None, reason: str) -> None:
        if not self._late(self.runner_ended, launch, state, code, reason):
            self.node.runner_ended(launch, state, code, reason, "", None, self.time())
            self.pump()

    def runner_gone(self, launch: Launch) -> None:
        if not self._late(self.runner_gone, launch):
            self.node.runner_gone(launch, self.time())
            self.pump()

    # ---- output

    def pump(self) -> None:
        node = self.node
        ready = node.ready()
        while ready.any():
            self._apply(ready)
            ready = node.ready()
        mono = self.world.mono(self.host)
        at = node.timer_at()
        if at < self.timer_set:
            self.timer_set = at
            self.world.at((at - mono) / self.host.rate, self.timer, at)

    def _apply(self, ready: Any) -> None:
        world, host = self.world, self.host
        if ready.clock_mark is not None:
            host.clock_mark = ready.clock_mark
        if world.forgets:
            host.journal += [event for event in ready.journal if isinstance(event, Task)]
        for of in ready.requests_kept:
            host.requests[of.run] = of
        for run in ready.requests_done:
            host.requests.pop(run, None)
        for request in ready.ledger:
            sent = world.mono(host)
            world.server.ask(host, request.op, request.args, lambda a, r=request.id, s=sent: self.answered(r, s, a))
        for launch in ready.launches:
            world.at(world.rng.uniform(0.005, 0.05), self._spawn, launch)
        for run, reason in ready.cancels:
            for runner in host.runners:
                if runner.launch.run == run:
                    runner.cancel(reason)
        if ready.messages:
            world.bus.publish(self, ready.messages)
        for name, event in ready.letters:
            world.bus.send(self, name, event)
        for reply in ready.replies:
            if not reply.kind:
                world.accepted[reply.result["id"]] = host if reply.result["durable"] == "node" else None
        if world.trace is not None:
            for notice in ready.notices:
                world.say(f"{host.name} {notice.event} {notice.fields}")

    def _spawn(self, launch: Launch) -> None:
        if not self.alive or self.host.daemon is not self:
            return
        if "crash" in self.world.faults and not self.world.chaos_over and self.world.rng.random() < 0.05:
            self.world.fault_log["crash_after_claim"] += 1
            self.world.crash_daemon(self.host, self.world.rng.uniform(0.5, 15))  # right after claim and journal
        elif self._late(self._spawn, launch):
            return
        else:
            Runner(self.world, self.host, launch)
