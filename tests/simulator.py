"""A whole cluster on one thread under virtual time: the real core, the ledger's real rules, every fault; one seed.

``run(seed)`` draws a world (nodes, jobs, faults) from the seed, lets it live through chaos, heals it, and
judges: safety after every event, liveness after healing. The same seed gives the same run, so a seed is the
bug report. What is simulated is everything around the core: bus, disk, clocks, processes, the ledger's storage.

As in TigerBeetle's VOPR each seed draws *which* faults exist and how strong they are (swarm testing).
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coordd.adapters.memory import MemoryLedger
from coordd.core import attempt as life, wire
from coordd.core.attempt import Attempt, Terms
from coordd.core.context import Settings
from coordd.core.events import PROTOCOL_MAJOR, Event, Packet
from coordd.core.job import Command, Job, Retry, Schedule, scheduled_run
from coordd.core.node import Node
from coordd.core.ready import Launch, Now
from coordd.core.rows import (
    GRANTED,
    OK,
    RECEIVED,
    RHO,
    TERMINAL,
    UNAVAILABLE,
    UNKNOWN,
    Answer,
    LedgerTime,
    Registration,
)
from coordd.core.schedule import fires_between

LEASE, RENEW, LEDGER_TIMEOUT, KILL_GRACE = 8.0, 1.0, 1.0, 3.0
SETTINGS = Settings(
    lease_s=LEASE, renew_interval_s=RENEW, ledger_timeout_s=LEDGER_TIMEOUT, kill_grace_s=KILL_GRACE,
    heartbeat_interval_s=2.0, election_timeout_s=1.0, mingle_timeout_s=1.0, budget_client=6,
)  # fmt: skip
WALL = 1_700_000_000.0  # Unix time at the beginning of every world
CHAOS_S = 45.0
SCHEDULES_END_S = 60.0  # nothing new fires after this
SETTLED_LIMIT_S = 600.0  # a queue of long programs on the one node that is left takes its time, but not for ever
HEALED_S = 90.0  # the longest a healed cluster may need: skewed clocks, leases, watches, back-offs, long programs

FAULTS = (
    "loss", "duplication", "slow", "bus_cut", "ledger_cut", "crash", "power", "pause_daemon", "pause_runner",
    "kill_runner", "ledger_down", "ledger_step", "skew", "step", "late_join", "lost_reply", "gone", "freeze",
)  # fmt: skip

# A machine that was frozen whole ends its late programs within this time after it thaws.
THAW_S = 0.5

# A world has some 6,000 events; one that has this many turns in circles.
EVENTS_MAX = 150_000

# Without any of these no attempt has a reason to be lost.
VIOLENT = frozenset((
    "ledger_cut", "crash", "power", "pause_daemon", "pause_runner", "kill_runner", "ledger_down", "ledger_step",
    "gone", "freeze",
))  # fmt: skip


class Violation(Exception):  # it is a verdict
    """A property of docs/protocol.md does not hold. The text begins with its name."""


@dataclass(slots=True)
class Child:
    """The launched program."""

    run: str
    attempt: int
    node: int
    started: float
    exit_code: int = 0
    ended: float | None = None
    how: str = ""


@dataclass(slots=True)
class Host:
    """One machine: what survives its daemon."""

    index: int
    rate: float
    skew: float
    daemon: Daemon | None = None
    boots: int = 0
    clock_mark: int = 0
    requests: dict[str, Registration] = field(default_factory=dict)
    runners: list[Runner] = field(default_factory=list)
    bus_cut: float = 0.0
    ledger_cut: float = 0.0
    down_until: float = 0.0
    gone: bool = False  # for good
    frozen_until: float = 0.0  # the whole machine stands still: daemon, runners, watchers, programs

    @property
    def name(self) -> str:
        return f"n{self.index}"


class World:
    """Everything of one seed."""

    def __init__(
        self, seed: int, *, trace: bool = False, faults: tuple[str, ...] | None = None, forgets: bool | None = None
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.serial = 0
        self.events = 0
        self.trace: list[str] | None = [] if trace else None
        self.faults = set(faults) if faults is not None else {f for f in FAULTS if rng.random() < 0.4}
        self.fault_log: Counter[str] = Counter()
        self.packing = seed % 50 == 0  # the real bytes, now and then: they cost more than all the rest
        self.forgets = (
            seed % 10 == 9 if forgets is None else forgets
        )  # the ledger may lose acknowledged writes: only S3 is promised then
        self.chaos_over = False
        self.loss = rng.choice((0.05, 0.15, 0.3)) if "loss" in self.faults else 0.0
        self.delay = rng.choice((0.05, 0.5, 2.0)) if "slow" in self.faults else 0.02

        self.ledger_rate = 1 + rng.uniform(-RHO, RHO)
        self.ledger_step = 0.0
        self.ledger_down = 0.0
        self.ledger = MemoryLedger(clock=self.ledger_time)
        self.history: list[tuple[float, Any]] = []

        self.launches: Counter[tuple[str, int]] = Counter()
        self.live: dict[str, Child] = {}
        self.children: list[Child] = []
        self.last_token: dict[str, int] = {}
        self.terminal: dict[str, str] = {}
        self.commits: dict[str, int] = {}
        self.accepted: dict[str, Host | None] = {}  # run -> the only machine that has it, if the ledger had not
        self.succeeded: Counter[str] = Counter()
        self.takeovers = 0
        self.answers: Counter[str] = Counter()

        self.jobs = self._jobs()
        self.hosts = [
            Host(
                i,
                1 + rng.uniform(-RHO, RHO) * 0.99,
                rng.choice((0.0, rng.uniform(-40, 40))) if "skew" in self.faults else 0.0,
            )
            for i in range(rng.choice((3, 3, 3, 4, 5)))
        ]
        for host in self.hosts:
            at = rng.uniform(5, 30) if "late_join" in self.faults and host.index else rng.uniform(0, 0.5)
            self.at(at, self.boot, host)
        self._plan_triggers()
        self._plan_faults(narrowed=faults is not None)

    # ---- the world's machinery

    def at(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (self.now + (delay if delay > 0 else 0.0), self.serial, call, args))

    def until(self, end: float) -> None:
        queue = self.queue
        pop = heapq.heappop
        while queue and queue[0][0] <= end:
            self.now, _, call, args = pop(queue)
            self.events += 1
            if self.events > EVENTS_MAX:
                self.violate(f"T a runaway: {EVENTS_MAX} events, and no end")
            call(*args)
        self.now = end

    def say(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:8.3f}  {text}")

    def violate(self, what: str) -> None:
        self.say(f"VIOLATION {what}")
        raise Violation(what)

    def ledger_time(self) -> LedgerTime:
        wall = WALL + self.now * self.ledger_rate + self.ledger_step
        return LedgerTime(wall, wall)

    # ---- the ledger, across a network

    def ask(self, host: Host, op: str, args: tuple[Any, ...], answered: Callable[[Any], None]) -> None:
        """One call: it may be lost on the way there (never executed) or back (executed, unanswered)."""
        state = [False]

        def finish(answer: Any) -> None:
            if not state[0]:
                state[0] = True
                answered(answer)

        self.at(LEDGER_TIMEOUT / host.rate, finish, None)
        if self._ledger_reaches(host):
            self.at(self.rng.uniform(0.0005, 0.02), self._execute, host, op, args, finish)

    def _ledger_reaches(self, host: Host) -> bool:
        return self.now >= host.ledger_cut and self.now >= self.ledger_down

    def _execute(self, host: Host, op: str, args: tuple[Any, ...], finish: Callable[[Any], None]) -> None:
        if not self._ledger_reaches(host):
            return
        before = self.ledger.run(args[0].of.run) if op == "claim" else None
        try:
            answer = self.ledger.call(op, *args)
        except AssertionError as exc:
            self.violate(f"S5 {exc}")
        self._observe(op, args, answer)
        if before is not None and answer.word == GRANTED and before.state == RECEIVED and not self.forgets:
            if before.nonce != args[0].nonce and self.ledger_time().lease < before.until:
                self.violate(f"C {before.run} was granted again while its claim had not lapsed")
        if self.trace is not None and (op not in ("open", "renew") or answer.word != OK):
            what = args[0].of.run if op == "claim" else getattr(args[0], "run", args[0])
            self.say(f"{host.name} {op} {what} -> {answer!r}")
        if "lost_reply" in self.faults and not self.chaos_over and self.rng.random() < 0.1:
            self.fault_log["lost_reply"] += 1
            return
        self.at(self.rng.uniform(0.0005, 0.02), finish, answer)

    def _observe(self, op: str, args: tuple[Any, ...], answer: Any) -> None:
        """Safety of the ledger itself, at each of its operations."""
        self.answers[answer.word] += 1
        if op == "open":
            return
        run = args[0].of.run if op == "claim" else args[0].run if op == "register" else args[0]
        row = self.ledger.run(run)
        if answer.word == GRANTED:
            self._observe_grant(args[0], answer, row)
        if self.forgets:
            self.history.append((self.now, self.ledger.snapshot()))
            return
        if row is not None:
            was = self.terminal.get(run)
            if was is not None and row.state != was:
                self.violate(f"S5 {run} left the terminal state {was} for {row.state}")
            if row.state in TERMINAL:
                self.terminal[run] = row.state

    def _observe_grant(self, claim: Any, answer: Answer, row: Any) -> None:
        job = claim.of.job
        key = (claim.of.run, claim.attempt, claim.nonce)
        if self.last_token.get(repr(key)) == answer.token:
            return  # the same grant, told again
        self.last_token[repr(key)] = answer.token
        if answer.token <= self.last_token.get(job, 0):
            self.violate(f"S3 token {answer.token} of {job} after {self.last_token[job]}")
        self.last_token[job] = answer.token
        if claim.attempt:
            self.takeovers += 1

    # ---- the launched programs

    def launched(self, child: Child, on_lost: str) -> None:
        key = (child.run, child.attempt)
        self.say(f"n{child.node} LAUNCH {child.run}/{child.attempt}")
        self.launches[key] += 1
        earlier = [c for c in self.children if c.run == child.run]
        self.children.append(child)
        if not self.forgets:
            if self.launches[key] > 1:
                self.violate(f"S1 {child.run} attempt {child.attempt} was launched twice")
            other = self.live.get(child.run)
            if other is not None and self.now < self.hosts[other.node].frozen_until + THAW_S:
                self.fault_log["overlap_by_freeze"] += 1  # said to be impossible to prevent: docs/reliability.md
            elif other is not None:
                self.violate(
                    f"S2 {child.run}: attempt {other.attempt} on n{other.node} lives while {child.attempt} starts"
                )
            if on_lost == "hold" and any(c.how != "exit" for c in earlier):
                self.violate(f"H {child.run} is held, and was launched again after an unknown end")
            row = self.ledger.run(child.run)
            if row is not None and self.ledger_time().wall < row.fire_at - 0.001 and not self.fault_log["ledger_step"]:
                self.violate(f"E {child.run} was launched before its fire time")
        self.live[child.run] = child

    def died(self, child: Child, how: str) -> None:
        if child.ended is None:
            child.ended, child.how = self.now, how
            self.say(f"n{child.node} END {child.run}/{child.attempt} {how} {child.exit_code if how == 'exit' else ''}")
            if self.live.get(child.run) is child:
                del self.live[child.run]

    # ---- hosts

    def boot(self, host: Host) -> None:
        if host.daemon is None and self.now >= host.down_until and not host.gone:
            host.boots += 1
            host.daemon = Daemon(self, host)
            host.daemon.begin()

    def crash_daemon(self, host: Host, back_in: float) -> None:
        if host.daemon is not None:
            self.say(f"{host.name} daemon killed")
            host.daemon.alive = False
            host.daemon = None
        self.at(back_in, self.boot, host)

    def power_cut(self, host: Host, back_in: float) -> None:
        self.crash_daemon(host, back_in)
        host.down_until = self.now + back_in
        for runner in host.runners:
            runner.vanish()
        host.runners.clear()

    def freeze(self, host: Host, seconds: float) -> None:
        """The whole machine stands still, and goes on as if nothing had been."""
        host.frozen_until = max(host.frozen_until, self.now + seconds)
        if host.daemon is not None:
            host.daemon.pause(seconds)
        for runner in host.runners:
            runner.pause(seconds)

    def goes_for_good(self) -> None:
        """A machine burns down; at least one always stays."""
        there = [h for h in self.hosts if not h.gone]
        busy = [h for h in there if h.runners]
        if len(there) > 1:
            host = self.rng.choice(busy or there)
            self.fault_log["gone"] += 1
            self.say(f"FAULT gone {host.name}")
            host.gone = True
            self.power_cut(host, 1.0)

    # ---- what happens in this world

    def _jobs(self) -> dict[str, Job]:
        rng = self.rng
        launch = Command(argv=("/bin/true",))
        every = rng.choice((11.0, 14.0, 19.0))
        end = WALL + SCHEDULES_END_S
        jobs = [
            Job(
                name="sched", digest="d1", launch=launch, schedule=Schedule(kind="every", every_s=every, end=end),
                lease_s=LEASE, misfire=rng.choice(("once", "all")), overlap=rng.choice(("forbid", "queue", "allow")),
            ),
            Job(
                name="spread", digest="d2", launch=launch, lease_s=LEASE,
                schedule=Schedule(kind="every", every_s=13.0, end=end),
                placement="spread", overlap="allow", retry=Retry(attempts=3, delay_s=2.0, relaunches=50),
            ),
            Job(
                name="held", digest="d3", launch=launch, lease_s=LEASE, on_lost="hold", overlap="allow",
                retry=Retry(attempts=2, delay_s=1.0),
            ),
            Job(name="hand", digest="d4", launch=launch, lease_s=LEASE, overlap="allow", retry=Retry(relaunches=50)),
        ]  # fmt: skip
        return {job.name: job for job in jobs}

    def _plan_triggers(self) -> None:
        for number in range(self.rng.choice((10, 12, 16))):
            job = self.jobs[self.rng.choice(("held", "hand", "hand"))]
            run = f"{job.name}#{number}"
            for _ in range(self.rng.choice((1, 1, 2))):  # the same id, on whichever nodes, is the same run
                self.at(self.rng.uniform(2, CHAOS_S), self._trigger, job, run)

    def _trigger(self, job: Job, run: str) -> None:
        there = [h for h in self.hosts if h.daemon is not None and h.daemon.node.ctx.state == "ready"]
        host = self.rng.choice(there or self.hosts)
        if host.daemon is None or not there:
            self.at(1.0, self._trigger, job, run)  # people try again
        else:
            of = Registration(run, job.name, job.digest, job.policy(), self.wall(host), scheduled=False)
            host.daemon.node.trigger(of, 1 + int(run.split("#")[1]), host.daemon.time())
            host.daemon.pump()

    def _plan_faults(self, *, narrowed: bool) -> None:
        rng = self.rng
        each: dict[str, Callable[[Host], None]] = {
            "crash": lambda h: self.crash_daemon(h, rng.uniform(0.5, 15)),
            "power": lambda h: self.power_cut(h, rng.uniform(2, 20)),
            "bus_cut": lambda h: setattr(h, "bus_cut", self.now + rng.uniform(1, 25)),
            "ledger_cut": lambda h: setattr(h, "ledger_cut", self.now + rng.uniform(0.5, 20)),
            "pause_daemon": lambda h: h.daemon and h.daemon.pause(rng.uniform(0.2, 20)),
            "pause_runner": lambda h: [r.pause(rng.uniform(3, 30)) for r in h.runners],
            "freeze": lambda h: self.freeze(h, rng.uniform(1, 30)),
            "kill_runner": lambda h: [r.killed() for r in list(h.runners) if rng.random() < 0.7],
            "step": lambda h: setattr(h, "skew", h.skew + rng.choice((-30, -5, 5, 30))),
        }
        chosen = [fault for fault in each if fault in self.faults]
        if len(chosen) < 2 and not narrowed:
            chosen = sorted({*chosen, *rng.sample(list(each), 2)})  # every world has its faults
            self.faults.update(chosen)
        for fault in chosen:
            for _ in range(rng.choice((3, 4, 6))):
                self.at(rng.uniform(3, CHAOS_S), self._strike, fault, each[fault])
        if "gone" in self.faults:
            for _ in range(rng.choice((1, 2, 4))):
                self.at(rng.uniform(5, CHAOS_S), self.goes_for_good)
        if "ledger_down" in self.faults:
            for _ in range(rng.choice((1, 2))):
                self.at(rng.uniform(3, CHAOS_S), self._ledger_fault, "ledger_down", rng.uniform(0.5, 15))
        back = 5.0 if self.forgets else -5.0  # S3 leans on a clock that does not go back then
        if "ledger_step" in self.faults:
            for _ in range(rng.choice((1, 2))):
                self.at(rng.uniform(3, CHAOS_S), self._ledger_fault, "ledger_step", rng.choice((back, 5.0, 12.0, 20.0)))
        if self.forgets:
            self.at(rng.uniform(8, CHAOS_S), self._ledger_fault, "ledger_forgets", rng.uniform(0.0, 1.5))

    def _strike(self, fault: str, strike: Callable[[Host], object]) -> None:
        """Half of the faults strike at random, half where something is running."""
        busy = [h for h in self.hosts if h.runners]
        host = self.rng.choice(busy if busy and self.rng.random() < 0.6 else self.hosts)
        self.fault_log[fault] += 1
        self.say(f"FAULT {fault} {host.name}")
        strike(host)

    def _ledger_fault(self, fault: str, amount: float) -> None:
        self.fault_log[fault] += 1
        self.say(f"FAULT {fault} {amount:.2f}")
        if fault == "ledger_down":
            self.ledger_down = self.now + amount
        elif fault == "ledger_step":
            self.ledger_step += amount
        else:
            past = [shot for at, shot in self.history if at <= self.now - amount]
            if past:
                self.ledger.restore(past[-1])

    def unsettled(self) -> bool:
        """Something is still to be done."""
        if any(not host.gone and self.wall(host) < WALL + SCHEDULES_END_S + 5.0 for host in self.hosts):
            return True  # a clock that is behind: for that node the last fire time is still to come
        return any(row.state not in TERMINAL and row.state != UNKNOWN for row in self.ledger.runs(limit=100_000))

    def heal(self) -> None:
        self.say("HEAL")
        self.chaos_over = True
        self.loss = 0.0
        self.delay = 0.02
        self.ledger_down = 0.0
        for host in self.hosts:
            host.bus_cut = host.ledger_cut = host.down_until = host.frozen_until = 0.0
            if host.daemon is not None:
                host.daemon.resume()
            else:
                self.at(0.5, self.boot, host)
            for runner in host.runners:
                runner.resume()

    # ---- time of a host

    def mono(self, host: Host) -> float:
        return 1000.0 + self.now * host.rate

    def wall(self, host: Host) -> float:
        return WALL + self.now * host.rate + host.skew


class Daemon:
    """A node's shell in the simulator: it does what ``Ready`` says, in its order."""

    def __init__(self, world: World, host: Host) -> None:
        self.world, self.host = world, host
        self.alive = True
        self.paused_until = 0.0
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.timer_set = float("inf")
        self.seq = 0
        self.pid = 100 + host.boots
        self.incarnation = f"{host.boots}-{world.rng.getrandbits(64):016x}"
        self.node = Node(
            hostname=host.name, pid=self.pid, incarnation=self.incarnation, settings=SETTINGS,
            clock_mark=host.clock_mark, rng=world.rng,
        )  # fmt: skip

    def time(self) -> Now:
        return Now(self.world.mono(self.host), self.world.wall(self.host))

    def begin(self) -> None:
        now = self.time()
        self.node.set_jobs(self.world.jobs, now)
        for runner in self.host.runners:
            runner.told = False  # what the dead daemon was told, this one must be told again
            self.node.runner_adopted(
                runner.launch.run, runner.launch.job, runner.launch.attempt, runner.launch.token, waits=False
            )
        for of in self.host.requests.values():
            self.node.recover_request(of, now)
        peers = [h.daemon for h in self.world.hosts if h.daemon is not None and h is not self.host]
        self.node.start(tuple(p.node.ctx.full_hostname for p in peers), now)
        self.pump()
        for runner in list(self.host.runners):
            runner.tell()

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
        self.node.receive(packet, self.time())
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
        for of in ready.requests_kept:
            host.requests[of.run] = of
        for run in ready.requests_done:
            host.requests.pop(run, None)
        for request in ready.ledger:
            sent = world.mono(host)
            world.ask(host, request.op, request.args, lambda a, r=request.id, s=sent: self.answered(r, s, a))
        for launch in ready.launches:
            world.at(world.rng.uniform(0.005, 0.05), self._spawn, launch)
        for run, reason in ready.cancels:
            for runner in host.runners:
                if runner.launch.run == run:
                    runner.cancel(reason)
        if ready.messages:
            self._broadcast(ready.messages)
        for name, event in ready.letters:
            self._broadcast([event], only=name)
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

    def _broadcast(self, events: list[Event], only: str = "") -> None:
        world, host = self.world, self.host
        if world.now < host.bus_cut:
            return
        packet: Any = Packet(
            PROTOCOL_MAJOR,
            "default",
            host.name,
            self.pid,
            self.incarnation,
            self.seq,
            0,
            events,  # type: ignore[arg-type]
        )
        self.seq += len(events)
        if world.packing:
            packet = wire.encode(packet)
        rng = world.rng
        for other in world.hosts:
            peer = other.daemon
            if other is host or world.now < other.bus_cut:
                continue
            if peer is None:
                continue
            if only and peer.node.ctx.full_hostname != only:
                continue
            if world.loss and rng.random() < world.loss:
                world.fault_log["loss"] += 1
                continue
            world.at(rng.uniform(0.0005, world.delay), peer.deliver, packet)
            if "duplication" in world.faults and not world.chaos_over and rng.random() < 0.1:
                world.fault_log["duplication"] += 1
                world.at(rng.uniform(0.0005, 5 * world.delay), peer.deliver, packet)


class Runner:
    """A runner and its watcher: the real decisions of core.attempt, simulated processes."""

    def __init__(self, world: World, host: Host, launch: Launch) -> None:
        self.world, self.host, self.launch = world, host, launch
        job = world.jobs[launch.job]
        self.on_lost = job.on_lost
        now = world.mono(host)
        self.attempt = Attempt(
            Terms(
                deadline=launch.deadline, lease_s=launch.lease_s, renew_interval_s=RENEW,
                ledger_timeout_s=LEDGER_TIMEOUT, kill_grace_s=KILL_GRACE, on_lost=job.on_lost,
            ),
            wait_s=launch.due_at - now, now=now,
        )  # fmt: skip
        self.child: Child | None = None
        self.alive = True
        self.paused_until = 0.0
        self.waiting: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.watcher_at = float("inf")
        self.timer_set = float("inf")
        self.told = False
        host.runners.append(self)
        self.timer(0.0)

    def _late(self, call: Callable[..., None], *args: Any) -> bool:
        if not self.alive:
            return True
        if self.world.now < self.paused_until:
            self.waiting.append((call, args))
            return True
        return False

    def pause(self, seconds: float) -> None:
        if self.alive:
            self.world.say(f"{self.host.name} runner of {self.launch.run}/{self.launch.attempt} paused {seconds:.1f}")
            self.paused_until = max(self.paused_until, self.world.now + seconds)
            self.world.at(seconds, self.resume)

    def resume(self) -> None:
        if self.world.now < self.paused_until and not self.world.chaos_over:
            return
        self.paused_until = 0.0
        waiting, self.waiting = self.waiting, []
        for call, args in waiting:
            call(*args)

    def timer(self, at: float) -> None:
        if self._late(self.timer, at):
            return
        if at == self.timer_set:
            self.timer_set = float("inf")
        self.attempt.timer(self.world.mono(self.host))
        self.obey()

    def cancel(self, reason: str) -> None:
        if not self._late(self.cancel, reason):
            self.attempt.cancel(reason, now=self.world.mono(self.host))
            self.obey()

    def obey(self) -> None:
        world, host = self.world, self.host
        for action in self.attempt.take_actions():
            word = action[0]
            key = (self.launch.run, self.launch.attempt, self.launch.token, self.launch.nonce)
            if word == life.ASK_GATE:
                self._ask("gate", key)
            elif word == life.ASK_RENEW:
                self._ask("renew", (*key, self.launch.lease_s, ""))
            elif word == life.ASK_REPORT:
                _, state, code, reason, final = action
                self._ask("report", (*key, state, code, reason, "", final))
                self.tell()
            elif word == life.PET:
                if self.on_lost != "hold":
                    self.watcher_at = life.watcher_kill_at(float(str(action[1])), KILL_GRACE)
                    world.at((self.watcher_at - world.mono(host)) / host.rate, self._watch, self.watcher_at)
            elif word == life.EXEC:
                self._strike_before_exec()
                world.at(world.rng.uniform(0.0, 0.003), self._exec)
            elif word == life.TERM:
                if self.child is not None:
                    world.at(world.rng.choice((0.05, 0.5, 2.0, 30.0)), self._child_dies, "term")
            elif word == life.KILL:
                self._child_dies("kill")
            elif word == life.EXIT:
                self._leave()
                return
        at = self.attempt.timer_at()
        if at < self.timer_set and at != float("inf"):
            self.timer_set = at
            world.at((at - world.mono(host)) / host.rate, self.timer, at)

    def _strike_before_exec(self) -> None:
        """Between the gate and exec, where it hurts most."""
        world = self.world
        if world.chaos_over or world.rng.random() > 0.08:
            return
        fault = world.rng.choice(sorted(world.faults & {"pause_runner", "freeze", "kill_runner", "power"}) or [""])
        if fault:
            world.fault_log[fault + "_before_exec"] += 1
            world.say(f"FAULT {fault} {self.host.name} before exec")
        if fault == "pause_runner":
            self.pause(world.rng.uniform(1, 20))
        elif fault == "freeze":
            world.freeze(self.host, world.rng.uniform(1, 20))
        elif fault == "kill_runner":
            self.killed()
        elif fault == "power":
            world.at(0.0, world.power_cut, self.host, world.rng.uniform(2, 20))

    def _ask(self, op: str, args: tuple[Any, ...]) -> None:
        sent = self.world.mono(self.host)
        question = f"ask_{op}"
        self.world.ask(self.host, op, args, lambda answer: self._answered(answer, sent, question))

    def _answered(self, answer: Any, sent: float, question: str) -> None:
        if not self._late(self._answered, answer, sent, question):
            self.attempt.answered(answer, sent_at=sent, now=self.world.mono(self.host), question=question)
            self.obey()

    def _exec(self) -> None:
        if self._late(self._exec) or self.attempt.phase not in (life.RUNNING, life.ENDING):
            return
        world = self.world
        # Between the action and exec nothing else happens in the real runner; here a pause may have come between.
        if self.attempt.phase == life.ENDING or not self.attempt.may_exec(world.mono(self.host)):
            self.attempt.refused_late(now=world.mono(self.host))
            self.obey()
            return
        code = 0 if world.rng.random() < 0.8 else 3
        self.child = Child(self.launch.run, self.launch.attempt, self.host.index, world.now, code)
        world.launched(self.child, self.on_lost)
        if self.host.daemon is not None:
            self.host.daemon.runner_started(self.launch)
        world.at(world.rng.choice((0.5, 3.0, 6.0, 12.0, 25.0)), self._child_dies, "exit")

    def _child_dies(self, how: str) -> None:
        child = self.child
        if child is None or child.ended is not None:
            return
        if self.world.now < self.host.frozen_until:
            self.world.at(self.host.frozen_until - self.world.now + 0.1, self._child_dies, how)
            return
        self.world.died(child, how)
        self._reap(child.exit_code if how == "exit" else -15)

    def _reap(self, code: int) -> None:
        if not self._late(self._reap, code) and self.attempt.phase in (life.RUNNING, life.ENDING):
            self.attempt.ended(code, now=self.world.mono(self.host))
            self.obey()

    def tell(self) -> None:
        """The daemon hears how it ended, now or when it is back."""
        attempt = self.attempt
        if attempt.phase in (life.REPORTING, life.DONE) and self.host.daemon is not None and not self.told:
            self.told = True
            self.host.daemon.runner_ended(self.launch, attempt.outcome, attempt.exit_code, attempt.reason)

    def _leave(self) -> None:
        self.alive = False
        if self in self.host.runners:
            self.host.runners.remove(self)
        if self.host.daemon is not None and not self.told:
            self.host.daemon.runner_gone(self.launch)

    # ---- the watcher, and violent deaths

    def _watch(self, at: float) -> None:
        if self.world.now < self.host.frozen_until:
            self.world.at(self.host.frozen_until - self.world.now + self.world.rng.uniform(0, 0.1), self._watch, at)
        elif at == self.watcher_at and self in self.host.runners and self.attempt.phase != life.DONE:
            self._emptied("watcher: the lease was not renewed in time")

    def killed(self) -> None:
        """SIGKILL of the runner alone: its watcher ends everything and says so."""
        if self.alive:
            self.world.say(f"{self.host.name} runner of {self.launch.run}/{self.launch.attempt} killed")
            self.alive = False
            self.world.at(self.world.rng.uniform(0.01, 0.2), self._emptied, "watcher: the runner died")

    def _emptied(self, reason: str) -> None:
        if self not in self.host.runners:
            return
        self.alive = False
        if self.child is not None:
            self.world.died(self.child, "watcher")
        key = (self.launch.run, self.launch.attempt, self.launch.token, self.launch.nonce)
        state = "lost" if self.child is not None or self.attempt.phase == life.RUNNING else "retry"
        ended = self.child is not None and self.child.how == "exit"
        if not ended:
            self.world.ask(self.host, "report", (*key, state, None, reason, "", False), lambda _: None)
        self._leave()

    def vanish(self) -> None:
        """The machine loses power."""
        self.alive = False
        if self.child is not None:
            self.world.died(self.child, "power")


def judge(world: World) -> None:
    """Liveness, once the faults have stopped (L1, L2, L3): nothing hangs, nothing is forgotten, all is explained."""
    for row in world.ledger.runs(limit=100_000):
        held = row.state == UNKNOWN and row.policy.startswith("hold")
        if row.state not in TERMINAL and not held:
            world.violate(f"L {row.run} is still {row.state} long after healing")
        if row.state in ("missed", "rejected", "revoked", "lost") and not row.reason:
            world.violate(f"L {row.run} is {row.state} without a reason")
    if not world.faults & VIOLENT:
        for row in world.ledger.runs(limit=100_000):
            if row.relaunches or row.state == UNKNOWN:
                world.violate(f"G {row.run} was lost ({row.reason}) though nothing was killed, paused or cut off")
    for run in sorted(world.accepted):
        row = world.ledger.run(run)
        keeper = world.accepted[run]
        if row is None and keeper is not None and keeper.gone:
            continue  # accepted as durable on that node only, and said so
        if row is None:
            world.violate(f"L the trigger {run} was accepted and is nowhere")
        elif row.state not in TERMINAL and row.state != UNKNOWN:
            world.violate(f"L the trigger {run} was accepted and is {row.state}")
    for job in world.jobs.values():
        if job.schedule is not None:
            _judge_schedule(world, job)
    for host in world.hosts:
        if not host.gone and (host.daemon is None or host.daemon.node.ctx.state != "ready"):
            world.violate(f"L {host.name} is not ready after healing")


def _judge_schedule(world: World, job: Job) -> None:
    """The newest fire time of all has its row: whatever the misfire policy, that one is never skipped over."""
    assert job.schedule is not None
    last = fires_between(job.schedule, WALL, WALL + SCHEDULES_END_S, 1)[-1]
    if world.ledger.run(scheduled_run(job.name, last)) is None:
        world.violate(f"L {scheduled_run(job.name, last)} has no row: it never ran, and nothing says why")


def run(seed: int, *, trace: bool = False, faults: tuple[str, ...] | None = None, forgets: bool | None = None) -> World:
    """One world, from its seed; raises Violation with the world attached as ``world``."""
    world = World(seed, trace=trace, faults=faults, forgets=forgets)
    try:
        world.until(CHAOS_S)
        world.heal()
        world.until(CHAOS_S + HEALED_S)
        while world.unsettled() and world.now < CHAOS_S + SETTLED_LIMIT_S:
            world.until(world.now + 20.0)  # long programs, one after the other
        if not world.forgets:
            judge(world)
    except Violation as exc:
        exc.world = world  # type: ignore[attr-defined]  # for the transcript
        raise
    return world
