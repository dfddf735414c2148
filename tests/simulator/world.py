"""One simulated world: its time, its machines, and the faults that strike them."""

from __future__ import annotations

import contextlib
import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

from coordd.core.context import SKEW_MAX_S
from coordd.core.jobs.job import Job, scheduled_run
from coordd.core.jobs.schedule import fires_between
from coordd.core.ledger.identity import Known
from coordd.core.ledger.words import PENDING, RECEIVED, RETRY, TERMINAL, UNKNOWN
from coordd.core.ready import Launch
from coordd.core.wire import windows
from simulator.configuration import CONFIGURES, FAR, Configuration
from simulator.intruder import Intruder
from simulator.item import Item
from simulator.judging.answers import Answers
from simulator.judging.final import owes, takes_turns
from simulator.judging.hearing import Hearing
from simulator.judging.judge import Child, Judge, Violation
from simulator.judging.line import Line
from simulator.judging.policies import unsettled, watches
from simulator.judging.policies.arrived import Arrived
from simulator.judging.policies.holds import Holds
from simulator.judging.policies.rooms import Rooms
from simulator.judging.policies.told import Told
from simulator.judging.records import ALL, Records
from simulator.machines import arriving
from simulator.machines.arrivals import Arrivals
from simulator.machines.bus import Broker, Bus, Datagrams, OutboxEntry
from simulator.machines.checks import Checking
from simulator.machines.daemon import Daemon
from simulator.machines.disk import Disk
from simulator.machines.hooks import HookServices
from simulator.machines.runner import Runner
from simulator.machines.server import Elsewhere, Server
from simulator.machines.waiting import Turns
from simulator.people import People
from simulator.plan import ACTS, CONTINUOUS, FAILOVER, MOVED, RESTART, RESTARTS, SETBACKS, Plan
from simulator.policies import HOLD
from simulator.publishing import KINDS, Publishing
from simulator.terms import (
    CHAOS_S,
    LOOK_AGAIN_S,
    NEWCOMER_S,
    PASSED_S,
    SCHEDULES_END_S,
    SETTLED_LIMIT_S,
    SILENCE_S,
    WALL,
)

# A world has about 6,000 events. A world with more events than this is in an endless loop.
EVENTS_MAX = 400_000

# The ledger's identity in worlds in which every node has used the ledger before.
IDENTITY = "0123456789abcdef"

# Maximum delay (seconds) of a message if no fault slows it down.
DELAY_S = 0.02

# A message that is delayed by a fault arrives at most this long (seconds) after the faults have ended.
LATEST_S = 5.0

# At this time (seconds) after the healing, every frozen machine runs again.
THAWED_S = 0.001

# For this long (seconds) a lie may make a node take others for gone.
LIE_S = 20.0

# The faults that keep nodes from hearing each other, or make them believe that others are gone.
APART = frozenset(("broker_down", "liar", "pair_cut", "connection_lost", "bus_cut", "deaf", "mute"))

# Proportion of the faults on one machine that choose a machine on which a runner runs.
AIMED = 0.6


@dataclass(slots=True)
class Host:
    """One machine, with the state that survives its daemon. An instant says until when a fault lasts."""

    index: int
    rate: float
    skew: float
    disk: Disk
    jobs: dict[str, Job]
    daemon: Daemon | None = None
    misplaced: bool = False  # its configuration names another ledger
    known: Known | None = None  # the ledger that it has used, if ledgers have identities
    boots: int = 0
    runners: list[Runner] = field(default_factory=list)
    bus_cut: float = 0.0
    deaf: float = 0.0  # no message of the bus arrives here
    mute: float = 0.0  # no message leaves this machine
    ledger_cut: float = 0.0
    ledger_deaf: float = 0.0  # calls reach the ledger, but their answers do not come back
    down_until: float = 0.0
    gone: bool = False  # this machine never comes back
    frozen_until: float = 0.0  # the whole machine is frozen: daemon, runners, watchers, programs
    said_by: str = ""  # incarnation of the daemon that sent the last message
    acted: dict[tuple[str, int], str] = field(default_factory=dict)  # message -> its daemon's incarnation that took it
    mark_lost: bool = False  # the previous daemon died with a clock's mark that the full disk had not accepted
    outbox: list[OutboxEntry] = field(default_factory=list)
    facts: list[tuple[Launch, str, int | None, str]] = field(default_factory=list)  # ends that no daemon has read yet
    slowness: float = 1.0  # its calls of other servers than the ledger take this many times as long
    place: dict[str, str] = field(default_factory=dict)  # as in core/runs/knowledge.py

    @property
    def name(self) -> str:
        return f"n{self.index}"


class World:
    """One simulated world, made from a plan."""

    def __init__(self, plan: Plan, *, trace: bool = False, redis_url: str = "") -> None:
        """``redis_url``: a private server. If the plan is ``scripted``, the ledger runs the real scripts there."""
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.now = 0.0
        self.queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.serial = 0
        self.events = 0
        self.trace: list[str] | None = [] if trace else None
        self.fault_log: Counter[str] = Counter()
        self.acts: Counter[str] = Counter()
        self.struck = 0  # number of the plan's faults that have struck
        self.chaos_over = False
        self.patient_s = self.turns_s = 0.0  # what ``patience_s`` has said at most, and what it has left out
        # ``rough``: faults of single messages, calls and starts. ``targeted``: faults that strike at the worst moment.
        # Both are empty after the healing.
        self.rough = plan.faults & set(CONTINUOUS)
        self.targeted = plan.faults if "targeted" in plan.faults else frozenset()
        self.delay = plan.delay_s if "slow" in plan.faults else DELAY_S
        self.pairs: dict[tuple[int, int], float] = {}  # (from, to) -> until when nothing passes
        self.jobs = plan.jobs  # the job files as they should be; each machine has its own files
        self.known_jobs = {job.digest: job for job in plan.jobs.values()}  # every definition that ever existed

        self.server = Server(self, plan.ledger_rate, redis_url)
        self.ledger = self.server.ledger
        self.elsewhere = Elsewhere(self, plan.ledger_rate) if plan.misplaced else None
        self.records = Records()
        self.judge = Judge(self)
        self.hearing = Hearing(self)
        self.mingled = Answers(self)
        self.line = Line(self)
        self.holds, self.told, self.arrived = Holds(self), Told(self), Arrived(self)
        self.watches = watches(self)
        self.accepted: dict[str, Host | None] = {}  # run -> the only machine that has it; None: the ledger has it
        self.hosts = [
            Host(index, rate, skew, Disk(packs=plan.packs), plan.jobs)
            for index, (rate, skew) in enumerate(zip(plan.rates, plan.skews, strict=True))
            if f"n{index}" not in plan.without
        ]
        self._place()
        self.unseen: list[Host] = []  # machines, or namespaces, whose disk has moved away: with their runners alone
        self.bus: Bus = Broker(self) if plan.production else Datagrams(self)
        self.intruder = Intruder(self)
        self.people = People(self)
        self.configuration = Configuration(self)
        self.rooms = Rooms(self)
        self.publishing = Publishing(self)
        turns = Turns()
        self.hooks = HookServices(self, turns)
        self.arrivals = Arrivals(self, turns)
        self.checking = Checking(self, turns)
        for host in self.hosts:
            self.at(plan.joins[host.index], self.boot, host)
        for number, item in enumerate(plan.items):
            if str(number) not in plan.without:
                self.at(item.at, self._doer(item.kind), item)

    def _place(self) -> None:
        """Where each machine is, and which ledger it names and has used."""
        plan = self.plan
        for host in self.hosts:
            host.misplaced = host.index >= plan.nodes - plan.misplaced
            host.place = {"machine": f"m{host.index}", "host": host.name, "boot": "1", "pid_ns": "1", "container": ""}
            if plan.pinned:
                host.disk.pin = (IDENTITY, self.server.address)
        if plan.pinned:
            self.ledger._store.metas["identity"] = IDENTITY

    def _doer(self, kind: str) -> Callable[[Item], None]:
        if kind in KINDS:
            return self.publishing.do
        if kind in CONFIGURES:
            return self.configuration.do
        if kind in arriving.KINDS:
            return self.arrivals.do
        return self.people.do if kind in ("trigger", HOLD) or kind in ACTS else self.strike

    def memory_of_receivers(self) -> contextlib.AbstractContextManager[Any]:
        """A context in which this world's limits hold: how many messages of each sender are remembered, and others."""
        patches = contextlib.ExitStack()
        patches.enter_context(mock.patch.multiple(windows, REACH=self.plan.reach, _FULL=(1 << self.plan.reach) - 1))
        patches.enter_context(mock.patch("coordd.core.runs.passing.GRACE_S", PASSED_S))
        patches.enter_context(mock.patch("coordd.core.ledger.marks.rule.NEWCOMER_S", NEWCOMER_S))
        patches.enter_context(mock.patch("coordd.core.runs.sweep.SILENCE_S", SILENCE_S))
        patches.enter_context(self.publishing.patched())
        patches.enter_context(self.hooks.patched())
        patches.enter_context(self.arrivals.patched())
        patches.enter_context(self.checking.patched())
        for name, value in self.plan.limits.items():
            patches.enter_context(mock.patch(name, value))
        return patches

    # ---- the world's machinery

    def at(self, delay: float, call: Callable[..., None], *args: Any) -> None:
        self.serial += 1
        heapq.heappush(self.queue, (self.now + (delay if delay > 0 else 0.0), self.serial, call, args))

    def before_quiet(self, delay: float) -> float:
        """Shorten this delay, so that the message arrives long before the world is judged.

        A message that arrived later would count as a sign of its sender's life.
        """
        return min(delay, CHAOS_S + LATEST_S - self.now)

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

    # ---- figures for tests and tools

    @property
    def takeovers(self) -> int:
        return self.judge.takeovers

    @property
    def answers(self) -> Counter[str]:
        return self.server.answers

    @property
    def children(self) -> list[Child]:
        return self.judge.children

    def runs(self) -> set[str]:
        """Every run that was due, asked for or launched."""
        rows = {row.run for row in self.ledger.runs(limit=100_000)}
        due = {
            scheduled_run(job.name, at - job.offset_s)
            for job in self.jobs.values()
            if job.schedule is not None
            for at in fires_between(job.schedule, self.server.known_from, WALL + SCHEDULES_END_S, 100)
        }
        return due | rows | {child.run for child in self.children} | self.people.asked | set(self.judge.terminal)

    # ---- hosts

    def host(self, index: int) -> Host:
        """The machine with that number. The plan may have left out some machines."""
        return next(host for host in self.hosts if host.index == index)

    def server_of(self, host: Host) -> Server:
        """The ledger that a machine's configuration names."""
        return self.elsewhere if host.misplaced and self.elsewhere is not None else self.server

    def _acquaint(self, host: Host) -> None:
        """Set what a starting daemon knows about its ledger."""
        if self.plan.identified:
            pin, pinned_at = host.disk.pin
            host.known = Known(
                "?",
                pin=pin,
                pinned_at=pinned_at,
                address=self.server_of(host).address,
                proposal=f"{host.index:08x}{host.boots:08x}",
            )

    def boot(self, host: Host) -> None:
        if self.now < host.frozen_until:
            self.at(host.frozen_until - self.now, self.boot, host)  # nothing starts on a frozen machine
        elif host.daemon is None and self.now >= host.down_until and not host.gone:
            host.boots += 1
            self._acquaint(host)
            host.daemon = Daemon(self, host)
            host.daemon.begin()

    def crash_daemon(self, host: Host, back_in: float) -> None:
        if host.daemon is not None:
            self.say(f"{host.name} daemon killed")
            self.records.befell(host.index, "crash", self.now, back_in)
            host.daemon.alive = False
            host.daemon = None
            host.outbox = [entry for entry in host.outbox if entry.on_disk]
        self.at(back_in, self.boot, host)

    def power_cut(self, host: Host, back_in: float) -> None:
        """Cut the power of the machine that ``host`` is, or that its runners were left on when its disk moved away."""
        machine = host.place["machine"]
        for home in self.hosts:
            if home.place["machine"] == machine:
                self.crash_daemon(home, back_in)
                self.records.befell(home.index, "power", self.now, back_in)
                home.disk.power_cut(self.rng)
                home.down_until = self.now + back_in
                home.place = {**home.place, "boot": f"{home.place['boot']}+"}
        for there in (*self.hosts, *self.unseen):  # in all namespaces of this machine
            if there.place["machine"] == machine:
                for runner in list(there.runners):
                    runner.vanish()
                there.runners.clear()

    def shut_down(self, host: Host, back_in: float) -> None:
        """Shut a machine down cleanly.

        The runners end their programs and report that, and the daemon says good-bye. Then the machine loses power.
        """
        if self.now < host.frozen_until:
            return
        daemon = host.daemon
        self.records.befell(host.index, "shutdown", self.now, back_in)
        for runner in list(host.runners):
            runner.shut_down()
        if daemon is not None and not daemon.paused:
            daemon.stopping = True
            daemon.feed(daemon.node.stop)
        self.at(1.0, lambda: self.power_cut(host, 0.5 if self.chaos_over else back_in))

    def reboot(self, back_in: float) -> None:
        """The only machine restarts."""
        for host in self.hosts:
            self.power_cut(host, back_in)
        self.server.reboots()

    def moves(self, host: Host, amount: float) -> None:
        """The next daemon of this disk is on another machine, or in another PID namespace. What runs here goes on."""
        if self.now < host.frozen_until:
            return
        self.crash_daemon(host, amount)
        self.records.befell(host.index, "moved", self.now, amount)
        away = replace(host, runners=list(host.runners), outbox=[], facts=[])
        for runner in away.runners:
            runner.host = away
        host.runners.clear()
        self.unseen.append(away)
        number = str(len(self.unseen) + 1)
        if amount % 1.0 < 0.5:
            host.place = {**host.place, "pid_ns": number}
        else:
            host.place = {**host.place, "machine": f"spare {number}", "boot": number}

    def freeze(self, host: Host, seconds: float) -> None:
        """Freeze the whole machine. After that time its processes go on where they stopped."""
        host.frozen_until = max(host.frozen_until, self.now + seconds)
        self.records.befell(host.index, "freeze", self.now, seconds)
        if host.daemon is not None:
            host.daemon.pause(seconds)
        for runner in list(host.runners):
            runner.pause(seconds)

    def thaws_in(self, host: Host) -> float:
        """Seconds until a frozen machine goes on. Healing thaws every machine."""
        return min(host.frozen_until, CHAOS_S + THAWED_S) - self.now

    def goes_for_good(self, host: Host) -> None:
        """Remove a machine for the rest of the run. At least one machine always stays."""
        if sum(not h.gone for h in self.hosts) > 1:
            host.gone = True
            self.power_cut(host, 1.0)

    # ---- faults

    def strike(self, item: Item) -> None:
        """One fault of the plan: on the ledger, the broker, a pair of nodes or a machine."""
        kind, amount = item.kind, item.amount
        there = [h for h in self.hosts if not h.gone]
        busy = [h for h in there if h.runners]
        aimed = busy if busy and (item.who * 100) % 1 < AIMED else there
        host = aimed[int(item.who * len(aimed))]
        self.fault_log[kind] += 1
        self.struck += 1
        self.say(f"FAULT {kind} {host.name} {amount:.2f}")
        if kind in APART:
            all_of_them = kind in ("broker_down", "liar", "pair_cut")
            self.records.cut_off(ALL if all_of_them else host.index, self.now, LIE_S if kind == "liar" else amount)
        if kind in FAR:
            self.configuration.sets_clock(item, there)
        elif kind in SETBACKS:
            self.server.goes_back(RESTART if kind == FAILOVER and item.who < RESTARTS else kind, amount)
        elif kind == "ledger_down":
            self.server.away(amount)
        elif kind == "ledger_step":
            self.server.steps(amount)
        elif kind == "broker_down":
            self.bus.down(amount)
        elif kind == "connection_lost":
            self.bus.lose_connection(host, amount)
        elif kind in ("bus_cut", "deaf", "mute", "ledger_cut", "ledger_deaf"):
            setattr(host, kind, max(getattr(host, kind), self.now + amount))
            if kind.startswith("ledger"):
                self.records.befell(host.index, kind, self.now, amount)
            else:
                self.bus.cut(host)
        elif kind == "pair_cut":
            others = [h for h in there if h is not host]
            if others:
                other = others[int(amount * 10) % len(others)]
                self.pairs[host.index, other.index] = self.now + amount  # in one direction
        elif kind == "pause_daemon":
            if host.daemon is not None:
                host.daemon.pause(amount)
        elif kind == "pause_runner":
            for runner in list(host.runners):
                runner.pause(amount)
        elif kind == "kill_runner":
            for runner in list(host.runners):
                if self.rng.random() < amount:
                    runner.killed()
        elif kind == "step":
            host.skew += amount
        elif kind == "disk_full":
            host.disk.full_until = max(host.disk.full_until, self.now + amount)
            self.records.befell(host.index, kind, self.now, amount)
        elif kind == MOVED:
            self.moves(host, amount)
        elif kind == "forged":
            self.intruder.forges()
        elif kind == "liar":
            for _ in range(1 + int(amount * 8)):
                self.intruder.lies()
        else:
            self._ends(kind, host, amount)

    def _ends(self, kind: str, host: Host, amount: float) -> None:
        """Strike with a fault that ends a daemon or a machine, or freezes a whole machine."""
        if kind == "crash":
            self.crash_daemon(host, amount)
        elif kind == "power":
            self.power_cut(host, amount)
        elif kind == "shutdown":
            self.shut_down(host, amount)
        elif kind == "reboot":
            self.reboot(amount)
        elif kind == "freeze":
            self.freeze(host, amount)
        else:
            assert kind == "gone", kind
            self.goes_for_good(host)

    # ---- healing

    def unsettled(self) -> bool:
        """True if something is still to be done."""
        if any(not host.gone and self.wall(host) < WALL + SCHEDULES_END_S + 5.0 for host in self.hosts):
            return True  # this node's clock is behind: its last fire time is still to come
        if any(not host.gone and (host.outbox or host.disk.requests) for host in self.hosts):
            return True
        if (self.plan.published and self.publishing.unsettled()) or self.told.untold() or unsettled(self):
            return True
        if owes(self):
            return True
        if self.server.setbacks and self.server.whole_s(self.server.wall()) > 0:
            return True
        return any(row.state not in TERMINAL and row.state != UNKNOWN for row in self.ledger.runs(limit=100_000))

    def patience_s(self) -> float:
        """Seconds after the end of the faults by which everything must be settled.

        If no machine has a run's definition any more, or what it needs, the run ends at its date, and others may wait
        for it. When the ledger set that date, its clock may have been ahead; a rate counts by such a date too, and
        children come after the date of their parents' ends.
        Nothing hangs while a run waits for its turn after programs that live: that time does not count. It is looked
        at each LOOK_AGAIN_S.
        """
        self.turns_s += LOOK_AGAIN_S if takes_turns(self) else 0.0
        rows = self.ledger.runs(limit=100_000)
        waiting = [row for row in rows if row.state in (PENDING, RETRY, RECEIVED)]
        known = {job.digest for host in self.hosts if not host.gone for job in host.jobs.values()}
        wall = self.server.wall()
        dated = any(row.digest not in known or row.not_before > wall for row in waiting)
        dated = dated or any(row.ended_at > wall for row in rows)
        self.patient_s = max(self.patient_s, SETTLED_LIMIT_S + (self.server.ahead_s if dated else 0.0))
        return self.patient_s + self.turns_s

    def heal(self) -> None:
        self.say("HEAL")
        self.chaos_over = True
        self.rough = self.targeted = frozenset()
        self.delay = DELAY_S
        self.pairs.clear()
        self.server.down_until = 0.0
        self.server.steps(-self.server.far, far=True)
        for host in self.hosts:
            host.bus_cut = host.deaf = host.mute = host.ledger_cut = host.ledger_deaf = host.down_until = 0.0
            host.disk.full_until = 0.0
            if abs(host.skew - self.server.step) > SKEW_MAX_S / 2:
                host.skew = self.server.step  # somebody sets it to the ledger's time
            host.frozen_until = min(host.frozen_until, self.now)
            if host.daemon is not None:
                host.daemon.resume()
            else:
                self.at(0.5, self.boot, host)
            for runner in list(host.runners):
                runner.resume()
        for away in self.unseen:
            away.ledger_cut = away.ledger_deaf = 0.0
            away.frozen_until = min(away.frozen_until, self.now)
            for runner in list(away.runners):
                runner.resume()
        self.records.healed(self.now)
        self.bus.heal()
        self._put_right()

    def _put_right(self) -> None:
        """A person reads what the nodes say about their ledgers, and configures the same ledger for all nodes."""
        for host in self.hosts:
            if host.misplaced:
                host.misplaced = False
                self.crash_daemon(host, 0.5)

    def judge_identity(self) -> None:
        """Check property B: after all faults, the ledger still has the identity that its nodes have used."""
        if self.plan.pinned and self.ledger._store.meta("identity") != IDENTITY:
            self.violate(f"B the ledger's identity became {self.ledger._store.meta('identity')!r}")

    # ---- time of a host

    def mono(self, host: Host) -> float:
        return 1000.0 + self.now * host.rate

    def wall(self, host: Host) -> float:
        return WALL + self.now * host.rate + host.skew
