"""What must hold: safety at every operation of the ledger and at every launch, liveness once the faults have stopped.

Where a ledger went back, an attempt is known as long as one witness reaches the ledger in the quarantine: its runner,
its node, or a node that has heard of it. What none of them could tell may be launched a second time: that is counted
by its reason (``unwitnessed``), and is no violation. Who reached whom, and when, decides which it is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordd.core.job import Job, scheduled_run
from coordd.core.rows import GRANTED, OK, RECEIVED, RECOVERING, TERMINAL, UNKNOWN, Answer
from coordd.core.schedule import fires_between
from simulator.terms import LEDGER_TIMEOUT, RENEW, SCHEDULES_END_S, WALL

if TYPE_CHECKING:
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

# Why nobody could tell the ledger what it forgot.
CUT_OFF = "the launcher was cut off"  # from ledger and bus, from the lost write to the end of the quarantine
WITNESSES_LOST = "no witness was left"  # others had heard of it: dead since, cut off from the ledger, or frozen
STEPPED = "the clock stepped"  # the ledger's own, forward: the quarantine was shorter than it should be

Key = tuple[str, int, int]  # run, attempt, token
Reach = tuple[int, Key, int]  # which setback, whose knowledge of what

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
    token: int = 0


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
        self.takeovers = 0
        self.unwitnessed: Counter[str] = Counter()  # second launches of what nobody could tell the ledger of, by why
        self.forgotten: Counter[str] = Counter()  # runs that were due or accepted, and no row is left of
        self._heard: dict[int, list[tuple[float, bool]]] = defaultdict(list)  # host -> (when, others hear it)
        self._stays: dict[int, list[tuple[Key, float]]] = defaultdict(list)  # host -> who should be there, until when
        self._reached: dict[Reach, float] = {}  # for how long that witness has reached the ledger by now
        self.longest: dict[Reach, float] = {}  # and at the longest
        if world.forgets:
            world.at(0.0, self._look)

    # ---- the ledger, at each of its operations

    def operation(self, op: str, args: tuple[Any, ...], answer: Answer, before: Any, row: Any) -> None:
        """``before`` and ``row``: the run before it, and now."""
        world = self.world
        if answer.word == GRANTED:
            if before is not None and before.state == RECEIVED and before.nonce != args[0].nonce:
                if world.server.wall() < before.until:
                    world.violate(f"C {before.run} was granted again while its claim had not lapsed")
            self._grant(args[0], answer)
        if op == "restore" and answer.word == OK:
            self.written.setdefault((args[0].run, args[1], args[2]), []).append(world.now)
        if world.forgets:
            self._quarantine(op, answer, before, row)
        elif row is not None:
            was = self.terminal.get(row.run)
            if was is not None and row.state != was:
                world.violate(f"S5 {row.run} left the terminal state {was} for {row.state}")
            if row.state in TERMINAL:
                self.terminal[row.run] = row.state

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

    def launched(self, child: Child, on_lost: str) -> None:
        world = self.world
        key = (child.run, child.attempt)
        world.say(f"n{child.node} LAUNCH {child.run}/{child.attempt}")
        self.launches[key] += 1
        earlier = [c for c in self.children if c.run == child.run]
        self.children.append(child)
        if self.launches[key] > 1:
            others = [c for c in earlier if c.attempt == child.attempt]
            self._unless_unknown(others, f"S1 {child.run} attempt {child.attempt} was launched twice")
        other = self.live.get(child.run)
        if other is not None and world.now < world.hosts[other.node].frozen_until + THAW_S:
            world.fault_log["overlap_by_freeze"] += 1  # said to be impossible to prevent: docs/reliability.md
        elif other is not None:
            self._unless_unknown(
                [other],
                f"S2 {child.run}: attempt {other.attempt} on n{other.node} lives while {child.attempt} starts",
            )
        if on_lost == "hold" and any(c.how != "exit" for c in earlier):
            held = [c for c in earlier if c.how != "exit"]
            self._unless_unknown(held, f"H {child.run} is held, and was launched again after an unknown end")
        row = world.ledger.run(child.run)
        if row is not None and world.server.wall() < row.fire_at - 0.001 and not world.fault_log["ledger_step"]:
            world.violate(f"E {child.run} was launched before its fire time")
        self.live[child.run] = child

    def died(self, child: Child, how: str) -> None:
        if child.ended is None:
            child.ended, child.how = self.world.now, how
            code = child.exit_code if how == "exit" else ""
            self.world.say(f"n{child.node} END {child.run}/{child.attempt} {how} {code}")
            if self.live.get(child.run) is child:
                del self.live[child.run]

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


def judge(world: World) -> None:
    """Liveness, once the faults have stopped (L1, L2, L3): nothing hangs, nothing is forgotten, all is explained."""
    for row in world.ledger.runs(limit=100_000):
        held = row.state == UNKNOWN and row.policy.startswith("hold")
        if row.state not in TERMINAL and not held:
            world.violate(f"L {row.run} is still {row.state} long after healing")
        if row.state in ("missed", "rejected", "revoked", "lost") and not row.reason and not world.forgets:
            world.violate(f"L {row.run} is {row.state} without a reason")
    if not world.faults & VIOLENT and not world.forgets:
        for row in world.ledger.runs(limit=100_000):
            if row.relaunches or row.state == UNKNOWN:
                world.violate(f"G {row.run} was lost ({row.reason}) though nothing was killed, paused or cut off")
    _judge_witnesses(world)
    for run in sorted(world.accepted):
        _judge_trigger(world, run, world.accepted[run])
    for job in world.jobs.values():
        if job.schedule is not None:
            _judge_schedule(world, job)
    for host in world.hosts:
        if not host.gone and (host.daemon is None or host.daemon.node.ctx.state != "ready"):
            world.violate(f"L {host.name} is not ready after healing")


def _judge_witnesses(world: World) -> None:
    """After the last setback: what a witness that reached the ledger long enough had seen has its row."""
    number = len(world.server.setbacks) - 1
    if number < 0 or world.server.setbacks[number].shortened:
        return
    for (which, (run, attempt, _), host), reached_s in world.judge.longest.items():
        if which == number and reached_s >= REACH_S and world.ledger.run(run) is None:
            world.violate(f"W {run} attempt {attempt} was known to n{host}, and the ledger was not told")


def _judge_trigger(world: World, run: str, keeper: Host | None) -> None:
    row = world.ledger.run(run)
    if row is None and keeper is not None and keeper.gone:
        return  # accepted as durable on that node only, and said so
    if row is None and world.forgets and world.server.setbacks:
        world.judge.forgotten["trigger"] += 1
    elif row is None:
        world.violate(f"L the trigger {run} was accepted and is nowhere")
    elif row.state not in TERMINAL and row.state != UNKNOWN:
        world.violate(f"L the trigger {run} was accepted and is {row.state}")


def _judge_schedule(world: World, job: Job) -> None:
    """The newest fire time of all has its row: whatever the misfire policy, that one is never skipped over."""
    assert job.schedule is not None
    last = fires_between(job.schedule, WALL, WALL + SCHEDULES_END_S, 1)[-1]
    if world.ledger.run(scheduled_run(job.name, last)) is not None:
        return
    if world.server.setbacks:
        # Forgotten with its job (one that the ledger does not know begins anew), or rejected before the setback.
        world.judge.forgotten["fire time"] += 1
    else:
        world.violate(f"L {scheduled_run(job.name, last)} has no row: it never ran, and nothing says why")
