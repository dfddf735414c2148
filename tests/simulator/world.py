"""Everything of one seed: time, machines, and what befalls them."""

from __future__ import annotations

import contextlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from coordd.core import windows
from coordd.core.events import Task
from coordd.core.ready import Launch
from coordd.core.rows import RHO, TERMINAL, UNKNOWN, Registration
from simulator.bus import Broker, Bus, Datagrams, Letter
from simulator.daemon import Daemon
from simulator.judge import Child, Judge, Violation
from simulator.plan import FAULTS, PRODUCTION_FAULTS, jobs, plan_faults, plan_triggers
from simulator.runner import Runner
from simulator.server import Server
from simulator.terms import SCHEDULES_END_S, WALL

# A world has some 6,000 events; one that has this many turns in circles.
EVENTS_MAX = 150_000

# Last digits of the seeds whose clusters have a broker and a ledger of their own machines, and of those among them
# whose ledger goes back. The others are one machine's: datagrams, and a ledger that forgets nothing.
PRODUCTION = frozenset((1, 4, 5, 8, 9))
FORGETS = frozenset((4, 5, 9))

# Messages that a receiver remembers of each sender, in the worlds in which late ones come: else hardly any is late.
REACH = 16


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
    journal: list[Task] = field(default_factory=list)
    outbox: list[Letter] = field(default_factory=list)
    facts: list[tuple[Launch, str, int | None, str]] = field(default_factory=list)  # ends that no daemon has read yet

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
        self.forgets = seed % 10 in FORGETS if forgets is None else forgets
        self.production = self.forgets or bool(self.faults & set(PRODUCTION_FAULTS))
        if faults is None and forgets is None:
            self.production = seed % 10 in PRODUCTION
        self.chaos_over = False
        self.loss = rng.choice((0.05, 0.15, 0.3)) if "loss" in self.faults else 0.0
        self.delay = rng.choice((0.05, 0.5, 2.0)) if "slow" in self.faults else 0.02

        self.server = Server(self, 1 + rng.uniform(-RHO, RHO))
        self.ledger = self.server.ledger
        self.judge = Judge(self)
        self.accepted: dict[str, Host | None] = {}  # run -> the only machine that has it, if the ledger had not
        self.asked: set[str] = set()  # runs that people ask for, whether or not anybody can take them
        self.jobs = jobs(rng)
        self.hosts = [
            Host(
                i,
                1 + rng.uniform(-RHO, RHO) * 0.99,
                rng.choice((0.0, rng.uniform(-40, 40))) if "skew" in self.faults else 0.0,
            )
            for i in range(rng.choice((3, 3, 3, 4, 5)))
        ]
        self.bus: Bus = Broker(self) if self.production else Datagrams(self)
        for host in self.hosts:
            at = rng.uniform(5, 30) if "late_join" in self.faults and host.index else rng.uniform(0, 0.5)
            self.at(at, self.boot, host)
        plan_triggers(self)
        plan_faults(self, narrowed=faults is not None)
        self.reach = rng.choice((REACH, windows.REACH)) if self.production else windows.REACH

    def memory_of_receivers(self) -> contextlib.AbstractContextManager[Any]:
        """How many messages of each sender are remembered, while this world lives."""
        return mock.patch.multiple(windows, REACH=self.reach, _FULL=(1 << self.reach) - 1)

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

    # ---- what the tests and tools look at

    @property
    def takeovers(self) -> int:
        return self.judge.takeovers

    @property
    def answers(self) -> Counter[str]:
        return self.server.answers

    @property
    def children(self) -> list[Child]:
        return self.judge.children

    # ---- hosts

    def boot(self, host: Host) -> None:
        if self.now < host.frozen_until:
            self.at(host.frozen_until - self.now, self.boot, host)  # nothing starts on a machine that stands still
        elif host.daemon is None and self.now >= host.down_until and not host.gone:
            host.boots += 1
            host.daemon = Daemon(self, host)
            host.daemon.begin()

    def crash_daemon(self, host: Host, back_in: float) -> None:
        if host.daemon is not None:
            self.say(f"{host.name} daemon killed")
            host.daemon.alive = False
            host.daemon = None
            host.outbox = [letter for letter in host.outbox if letter.on_disk]
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

    # ---- healing

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
        self.server.down_until = 0.0
        for host in self.hosts:
            host.bus_cut = host.ledger_cut = host.down_until = 0.0
            host.frozen_until = min(host.frozen_until, self.now)
            if host.daemon is not None:
                host.daemon.resume()
            else:
                self.at(0.5, self.boot, host)
            for runner in host.runners:
                runner.resume()
        self.bus.heal()

    # ---- time of a host

    def mono(self, host: Host) -> float:
        return 1000.0 + self.now * host.rate

    def wall(self, host: Host) -> float:
        return WALL + self.now * host.rate + host.skew
