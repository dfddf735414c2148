"""What must hold at every step: each operation of the ledger, each launch and end, each message, each decision.

Where a ledger went back, an attempt is known as long as one witness reaches the ledger in the quarantine: its runner,
its node, or a node that has heard of it. What none of them could tell may be launched a second time: that is counted
by its reason (``unwitnessed``), and is no violation. Who reached whom, and when, decides which it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordd.core import windows
from coordd.core.election import ELECTION_MEMBERS_MAX, Election
from coordd.core.events import Packet, TaskReceived, WorkerElect
from coordd.core.job import Job
from coordd.core.membership import ALIVE, SUSPECT
from coordd.core.ready import Launch, Now
from coordd.core.rows import (
    CANCEL,
    GRANTED,
    OK,
    RECEIVED,
    RECOVERING,
    RHO,
    TERMINAL,
    Answer,
)
from simulator.terms import LEDGER_TIMEOUT, MUST_ARRIVE, RENEW, WALL

if TYPE_CHECKING:
    from simulator.daemon import Daemon
    from simulator.runner import Runner
    from simulator.server import Setback
    from simulator.world import Host, World

# A machine that was frozen whole ends its late programs within this time after it thaws.
THAW_S = 0.5

# How often it is looked who reaches whom, and for how long a witness must reach the ledger in one piece so that it has
# certainly said what it knows: its next sweep, one answer to that lost, one to what it puts back.
LOOK_S = 0.25
REACH_S = RENEW + 2 * LEDGER_TIMEOUT

# The judge counts a quarantine on true time, the ledger on its own clock.
SLACK_S = 0.5

# A lease is counted by three clocks that may each be 1 % off; what is killed needs a moment to be gone.
LEASE_SLACK_S = 0.5

# Before its timeout (by the node's own clock) an election is decided only when everybody has stated.
DECIDE_SLACK_S = 0.001

# Why nobody could tell the ledger what it forgot.
CUT_OFF = "the launcher was cut off"  # from ledger and bus, from the lost write to the end of the quarantine
WITNESSES_LOST = "no witness was left"  # others had heard of it: dead since, cut off from the ledger, or frozen
PUBLISHED = "its commit was forgotten"
STEPPED = "the clock stepped"  # the ledger's own, forward: the quarantine was shorter than it should be

Key = tuple[str, int, int]  # run, attempt, token
Reach = tuple[int, Key, int]  # which setback, whose knowledge of what


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
    token: int = 0
    published: bool = False
    fences: bool = True  # it must not outlive its lease


class Judge:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.launches: Counter[tuple[str, int]] = Counter()
        self.live: dict[str, Child] = {}
        self.children: list[Child] = []
        self.last_token: dict[str, int] = {}
        self.written: dict[Key, list[float]] = {}  # when the ledger was told that this attempt is
        self.same_grant: dict[tuple[str, int, str], int] = {}
        self.terminal: dict[str, str] = {}
        self.transitions: set[tuple[str, str]] = set()  # every step of a run's life that was seen
        self.gated: set[tuple[str, int, int, str]] = set()  # (run, attempt, token, nonce) that the gate let through
        self.leased: dict[Key, float] = {}  # until when the ledger has lent that attempt, on true time
        self.published: dict[str, tuple[int, float]] = {}  # run -> the token under which it was published, and when
        self.people_resolved: set[str] = set()
        self.forgotten_by_retention: set[str] = set()
        self.kept_from = 0.0  # what ended or was due before is forgotten, by the ledger's wall clock
        self.clocks: dict[int, int] = {}  # host -> the highest stamp that it has ever said
        self.views: dict[tuple[str, str], tuple[str, ...]] = {}  # (election, opener) -> the view it was opened with
        self.takeovers = 0
        self.unwitnessed: Counter[str] = Counter()  # second launches of what nobody could tell the ledger of, by why
        self.forgotten: Counter[str] = Counter()  # runs that were due or accepted, and no row is left of
        self._heard: dict[int, list[tuple[float, bool]]] = defaultdict(list)  # host -> (when, others hear it)
        self._stays: dict[int, list[tuple[Key, float]]] = defaultdict(list)  # host -> who should be there, until when
        self._reached: dict[Reach, float] = {}  # for how long that witness has reached the ledger by now
        self.longest: dict[Reach, float] = {}  # and at the longest
        if world.plan.forgets:
            world.at(0.0, self._look)

    # ---- the ledger, at each of its operations

    def operation(self, op: str, args: tuple[Any, ...], answer: Answer, before: Any, row: Any) -> None:
        """``before`` and ``row``: the run before it, and now."""
        world = self.world
        if row is not None and (before is None or before.state != row.state):
            self.transitions.add((before.state if before is not None else "", row.state))
        if op == "gate" and answer.word == OK:
            self.gated.add((args[0], args[1], args[2], args[3]))
        if op == "commit" and answer.word == OK:
            self._publishes(args[0], args[2])
        if op in ("gate", "renew", "claim", "restore") and answer.word in (OK, CANCEL, GRANTED) and answer.left_s > 0:
            key = (args[0].of.run, args[0].attempt, answer.token) if op == "claim" else self._key(op, args)
            lent_until = world.now + answer.left_s / world.server.rate
            self.leased[key] = max(self.leased.get(key, 0.0), lent_until)
        if answer.word == GRANTED:
            if (
                row is not None
                and world.server.suspended(row.job)
                and (before is None or before.nonce != args[0].nonce)
            ):
                world.violate(f"P {row.run} was granted while its job is suspended")
            if before is not None and before.state == RECEIVED and before.nonce != args[0].nonce:
                clock = world.server.time()
                if clock.lease < before.until and clock.boot == before.boot:
                    world.violate(f"C {before.run} was granted again while its claim had not lapsed")
            self._grant(args[0], answer)
        if op == "restore" and answer.word == OK:
            self.written.setdefault((args[0].run, args[1], args[2]), []).append(world.now)
        if world.plan.forgets:
            self._quarantine(op, answer, before, row)
        elif row is not None:
            was = self.terminal.get(row.run)
            if was is not None and row.state != was:
                world.violate(f"S5 {row.run} left the terminal state {was} for {row.state}")
            if row.state in TERMINAL:
                self.terminal[row.run] = row.state

    def _key(self, op: str, args: tuple[Any, ...]) -> Key:
        return (args[0].run, args[1], args[2]) if op == "restore" else (args[0], args[1], args[2])

    def _publishes(self, run: str, token: int) -> None:
        """S4: at most one attempt of a run publishes. No witness tells the ledger of a commit that it forgot."""
        now, (other, at) = self.world.now, self.published.setdefault(run, (token, self.world.now))
        if other != token and any(setback.kept_to < at <= setback.at for setback in self.world.server.setbacks):
            self.unwitnessed[PUBLISHED] += 1
            self.published[run] = (token, now)
        elif other != token:
            self.world.violate(f"S4 {run} was published under {other} and under {token}")

    def pruned(self, runs: set[str], before: float) -> None:
        """Retention has forgotten them, and settled what was due before.

        Whoever asks for a run of that id again asks for a new one.
        """
        self.forgotten_by_retention |= runs
        if runs:
            self.kept_from = max(self.kept_from, before)
        again = {run for run in runs if "#" in run}
        for run in again:
            self.terminal.pop(run, None)
            self.published.pop(run, None)
        self.launches = Counter({key: count for key, count in self.launches.items() if key[0] not in again})
        for child in self.children:
            if child.run in again:
                child.run += " (pruned)"
        self.live = {child.run: child for child in self.live.values()}

    def resolved(self, run: str) -> None:
        """A person says what became of it: that is no unknown end any more."""
        self.people_resolved.add(run)

    def _grant(self, claim: Any, answer: Answer) -> None:
        job = claim.of.job
        key = (claim.of.run, claim.attempt, claim.nonce)
        if self.same_grant.get(key) == answer.token:
            return  # the same grant, told again
        self.same_grant[key] = answer.token
        if answer.token <= self.last_token.get(job, 0):
            self.world.violate(f"S3 token {answer.token} of {job} after {self.last_token[job]}")
        self.last_token[job] = answer.token
        self.written[claim.of.run, claim.attempt, answer.token] = [self.world.now]
        if claim.attempt:
            self.takeovers += 1

    def _quarantine(self, op: str, answer: Answer, before: Any, row: Any) -> None:
        """It is one quarantine for all: nothing is granted or let through in it, and afterwards everything is."""
        world = self.world
        if not world.server.setbacks:
            return
        last = world.server.setbacks[-1]
        if world.now < last.opens_at - SLACK_S and not last.shortened:
            if op == "gate" and answer.word == OK and before is not None and before.state == RECEIVED:
                world.violate(f"Q {row.run} was let through the gate while the ledger was recovering")
        if answer.word == RECOVERING and world.now > last.opens_at + SLACK_S:
            world.violate("Q the ledger says that it recovers, and its quarantine is over")

    # ---- the launched programs

    def spawned(self, host: Host, launch: Launch) -> None:
        """A runner is started: the intent must be on the disk (I-12)."""
        disk = host.disk
        if not any(
            isinstance(event, TaskReceived) and event.token == launch.token and event.run == launch.run
            for event in disk.journal[: disk.synced]
        ):
            self.world.violate(f"I12 {launch.run}/{launch.attempt} is launched, and its intent is not on the disk")

    def launched(self, child: Child, launch: Launch, job: Job) -> None:
        world = self.world
        on_lost = job.on_lost
        child.fences = on_lost != "hold"
        if (launch.run, launch.attempt, launch.token, launch.nonce) not in self.gated:
            world.violate(f"I3 {launch.run}/{launch.attempt} was launched, and the ledger has not let it through")
        key = (child.run, child.attempt)
        world.say(f"n{child.node} LAUNCH {child.run}/{child.attempt}")
        if "@" in launch.run and launch.fire_at < WALL:
            world.violate(f"N {launch.run} was due before its job was known")
        self.launches[key] += 1
        earlier = [c for c in self.children if c.run == child.run]
        self.children.append(child)
        if self.launches[key] > 1:
            others = [c for c in earlier if c.attempt == child.attempt]
            self._unless_unknown(others, f"S1 {child.run} attempt {child.attempt} was launched twice")
        other = self.live.get(child.run)
        if other is not None and child.run in self.people_resolved:
            world.fault_log["overlap_by_resolve"] += 1  # somebody said what became of it, and was wrong
        elif other is not None and world.now < world.host(other.node).frozen_until + THAW_S:
            world.fault_log["overlap_by_freeze"] += 1  # said to be impossible to prevent: docs/reliability.md
        elif other is not None:
            self._unless_unknown(
                [other],
                f"S2 {child.run}: attempt {other.attempt} on n{other.node} lives while {child.attempt} starts",
            )
        self._overlap(child, job)
        if on_lost == "hold" and any(c.how != "exit" for c in earlier) and child.run not in self.people_resolved:
            held = [c for c in earlier if c.how != "exit"]
            self._unless_unknown(held, f"H {child.run} is held, and was launched again after an unknown end")
        row = world.ledger.run(child.run)
        if row is not None and world.server.wall() < row.fire_at - 0.001 and not world.fault_log["ledger_step"]:
            world.violate(f"E {child.run} was launched before its fire time")
        self.live[child.run] = child

    def _overlap(self, child: Child, job: Job) -> None:
        """O: of a job that forbids it no two runs live at a time."""
        world = self.world
        if job.overlap == "allow" or world.plan.forgets:
            return
        for other in self.live.values():
            if other.run != child.run and other.run.startswith((f"{job.name}@", f"{job.name}#")):
                if world.now < world.host(other.node).frozen_until + THAW_S:
                    world.fault_log["overlap_by_freeze"] += 1
                else:
                    world.violate(f"O {other.run} lives while {child.run} starts, and {job.name} says {job.overlap}")

    def fenced_by_watcher(self, runner: Runner) -> None:
        """F: the watcher is for runners that cannot act; one that can ends its program itself, and sooner."""
        world = self.world
        if world.now >= runner.awake_at + THAW_S and runner.alive:
            world.violate(f"F {runner.launch.run}: its watcher had to end it, and its runner could have")

    def died(self, child: Child, how: str) -> None:
        world = self.world
        if child.ended is None:
            lent = self.leased.get((child.run, child.attempt, child.token), float("inf"))
            frozen = world.host(child.node).frozen_until + THAW_S
            if child.fences and world.now > max(lent * (1 + 2 * RHO) + LEASE_SLACK_S, frozen):
                if not child.run.endswith("(pruned)"):
                    world.violate(f"I13 {child.run}/{child.attempt} has outlived its lease by {world.now - lent:.2f} s")
            child.ended, child.how = self.world.now, how
            code = child.exit_code if how == "exit" else ""
            self.world.say(f"n{child.node} END {child.run}/{child.attempt} {how} {code}")
            if self.live.get(child.run) is child:
                del self.live[child.run]

    # ---- messages and decisions

    def said(self, daemon: Daemon, packet: Packet) -> None:
        """I8: a node's stamps only grow, over its restarts too, unless its disk was full when the mark was due."""
        world, host = self.world, daemon.host
        if "forged" in world.plan.faults:
            world.intruder.hears(packet)
        newest = self.clocks.get(host.index, 0)
        for event in packet.events:
            if isinstance(event, WorkerElect):
                self.views[event.id, daemon.name] = event.view
        if not isinstance(packet.events[0], MUST_ARRIVE):  # what had to wait was stamped by an earlier life
            if host.mark_lost:
                newest = 0
            if daemon.incarnation != host.said_by and packet.events[0].clock <= newest:
                world.violate(f"I8 {host.name} says {packet.events[0].clock} after {newest}")
            host.said_by, host.mark_lost = daemon.incarnation, False
        self.clocks[host.index] = max(newest, *(event.clock for event in packet.events))

    def admitted(self, daemon: Daemon, packet: Packet, events: list[Any]) -> None:
        """S6, S8: what acts is taken once, and not when its sender has said so much since.

        Judged by a memory without bounds of what this life of the node was given.
        """
        heard = daemon.given.setdefault(packet.incarnation, [0, set()])
        if any(isinstance(event, windows.ACTS) for event in events):
            if packet.seq in heard[1]:
                self.world.violate(f"S6 {daemon.name} takes message {packet.seq} of {packet.sender} a second time")
            if packet.seq <= heard[0] - self.world.plan.reach:
                self.world.violate(f"S8 {daemon.name} acts on the backlog of {packet.sender}")
        heard[0] = max(heard[0], packet.seq)
        heard[1].add(packet.seq)

    def decided(self, daemon: Daemon, election: Election, now: Now) -> None:
        """A: before its timeout nobody decides without the statement of a member of the frozen view that lives."""
        node = daemon.node
        if now.mono >= election.opened_at + node.ctx.settings.election_timeout_s - DECIDE_SLACK_S:
            return
        if "liar" in self.world.plan.faults:
            return  # the view that it was told may be made up
        view = self.views.get((election.id, election.opened_by), ())
        if not node.ballots.bus_up or len(view) > ELECTION_MEMBERS_MAX or daemon.bus_changed_at >= election.opened_at:
            return
        members = {member.name: member for member in node.ctx.membership.members.values()}
        for name in view:
            if name == daemon.name or name in election.statements:
                continue
            member = members.get(name)
            # Not known by that name: nobody has heard of it yet, or its successor has taken its place.
            left = name in daemon.changed_at if member is None else member.state not in (ALIVE, SUSPECT)
            if not left and daemon.changed_at.get(name, -1.0) < election.opened_at:
                self.world.violate(f"A {daemon.name} decides {election.id} without {name}, which is of its view")

    # ---- who could have told

    def _unless_unknown(self, earlier: list[Child], verdict: str) -> None:
        """A violation, unless nobody could tell the ledger of what was launched before."""
        world = self.world
        for child in earlier:
            for number, setback in enumerate(world.server.setbacks):
                why = self._nobody_could_tell(child, number, setback)
                if why:
                    world.say(f"UNWITNESSED ({why}) {verdict}")
                    self.unwitnessed[why] += 1
                    return
        world.violate(verdict)

    def _nobody_could_tell(self, child: Child, number: int, setback: Setback) -> str:
        """Why what this setback forgot of an attempt could not be put back; "" when it could, or need not."""
        key = (child.run, child.attempt, child.token)
        end = child.ended if child.ended is not None else self.world.now
        written = (*self.written.get(key, ()), child.started, end)
        lost = min((at for at in written if setback.kept_to < at <= setback.at), default=None)
        if lost is None:
            return ""  # nothing of it was forgotten
        if setback.shortened:
            return STEPPED
        if self.world.now < setback.opens_at:
            return ""  # nothing at all may be launched yet that was not let through before
        reached_s = [s for (which, known, _), s in self.longest.items() if which == number and known == key]
        if reached_s and max(reached_s) >= REACH_S:
            return ""
        until = min(self.world.now, setback.opens_at)
        told = any(up for when, up in self._heard[child.node] if lost < when <= until)
        return WITNESSES_LOST if told else CUT_OFF

    def left(self, key: Key, host: Host, told_until: float) -> None:
        """A runner goes by itself. In a quarantine that it was told of it stays: its report may be forgotten again."""
        if self.world.now < told_until - SLACK_S:
            self.world.violate(f"R the runner of {key[0]} has reported once, and the ledger still recovers")
        last = self.world.server.setbacks[-1] if self.world.server.setbacks else None
        if last is not None and self.world.now < last.opens_at < float("inf"):
            self._stays[host.index].append((key, last.opens_at))

    def _look(self) -> None:
        """Note whose daemon is heard, and in a quarantine which witnesses reach the ledger, and for how long."""
        world = self.world
        number = len(world.server.setbacks) - 1
        recovers = number >= 0 and world.now < world.server.setbacks[-1].opens_at
        reaching = set()
        for host in world.hosts:
            daemon = host.daemon if host.daemon is not None and not host.daemon.paused else None
            self._heard[host.index].append((world.now, daemon is not None and world.bus.heard(host)))
            if recovers and world.server.reaches(host):
                known = {r.key for r in host.runners if r.alive and world.now >= r.paused_until}
                if not host.gone and world.now >= max(host.down_until, host.frozen_until):
                    known.update(key for key, until in self._stays[host.index] if world.now < until)
                if daemon is not None and daemon.node.ctx.state == "ready":
                    known.update(daemon.node.witness.seen)
                reaching.update((number, key, host.index) for key in known)
        for which in reaching:
            self._reached[which] = self._reached.get(which, -LOOK_S) + LOOK_S
            self.longest[which] = max(self.longest.get(which, 0.0), self._reached[which])
        for which in self._reached.keys() - reaching:
            del self._reached[which]
        world.at(LOOK_S, self._look)
