"""Checks at every step of a run: each operation of the ledger, each launch and each end.

The judge asks the world, never the product: the ledger's answers, the bus's deliveries, the disk's contents, and their
times. A lease is counted in true time, from the instant when the ledger took the claim or the renewal.

After a ledger went back, an attempt is known if one witness reaches the ledger in the quarantine (``knowledge``). An
attempt that no witness could tell of may be launched a second time. Such exceptions are counted by their reason, and
each reason has a budget (``excuses``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coordd.core.jobs.job import Job
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Claim, Register, Replay, Resolve
from coordd.core.ledger.runner_requests import Commit, Renew, Request, Restore
from coordd.core.ledger.words import CANCEL, EARLY, GRANTED, OK, RECEIVED, RECOVERING, RHO, STARTED, TERMINAL, UNKNOWN
from coordd.core.ready import Launch
from coordd.core.wire.events import TaskReceived
from simulator.judging import limits, policies
from simulator.judging.backfills import Backfills
from simulator.judging.excuses import (
    DUE_AGAIN,
    END_FORGOTTEN,
    FROZEN,
    GIVEN_BACK,
    MANY_REPLIES,
    PUBLISHED,
    RESOLVED,
    SET_BACK,
    STEPPED,
    STRANGER,
    UNANSWERED,
    Excuse,
)
from simulator.judging.fires import Fires
from simulator.judging.knowledge import Key, Knowledge
from simulator.judging.leave import EXACT_S, Leave, nominal
from simulator.judging.records import LEDGER, THAW_S
from simulator.terms import LEDGER_TIMEOUT, WALL

if TYPE_CHECKING:
    from coordd.core.ledger.rows import Row
    from simulator.machines.daemon import Daemon
    from simulator.machines.runner import Runner
    from simulator.world import Host, World

# The judge measures a quarantine in true time, the ledger by its own clock. They may differ by this much (seconds).
SLACK_S = 0.5

# A fire time at most this long (seconds) before a new schedule may already belong to that schedule.
ACTIVE_S = 1.0

# Operations whose answer says how long a lease lasts.
LENDS = frozenset(("claim", "gate", "renew", "commit"))

# If each attempt is lost as soon as it is granted, the pause before the next attempt doubles up to this (seconds). The
# pauses that the jobs here define are shorter.
PAUSE_MAX_S = 64.0

# A fault may show its effect up to this long (seconds) later, because a claim or its answer was under way.
BEFORE_S = 2 * LEDGER_TIMEOUT


class Violation(Exception):  # noqa: N818  # it is a verdict
    """A property of docs/protocol.md does not hold. The text begins with its name."""


@dataclass(slots=True)
class Child:
    """One launched program."""

    run: str
    attempt: int
    node: int
    started: float
    exit_code: int = 0
    ended: float | None = None
    how: str = ""
    token: int = 0
    published: bool = False
    key: Key = ("", 0, 0)
    job: Job | None = None  # the definition that it executes
    pruned: bool = False  # retention has forgotten the run: a later request with its id is another run

    @property
    def fences(self) -> bool:
        """The program must not outlive its lease."""
        return self.job is not None and self.job.on_lost != "hold"


@dataclass(slots=True)
class Grant:
    """One grant, as the world has recorded it."""

    at: float
    node: int
    lent_until: float  # on true time
    boots: int  # how often the ledger's machine had booted
    digest: str  # the definition and the policy that its row had
    policy: str
    written: list[float]  # when the ledger was told that this attempt exists


class Judge:
    """Watches one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.knowledge = Knowledge(world)
        self.fires = Fires(world)
        self.launches: Counter[tuple[str, int]] = Counter()
        self.live: dict[str, Child] = {}
        self.children: list[Child] = []
        self.last_token: dict[str, int] = {}
        self.grants: dict[Key, Grant] = {}
        self.same_grant: dict[tuple[str, int, str], int] = {}
        self.terminal: dict[str, tuple[str, float]] = {}  # run -> its last state, and when it was due
        self.transitions: set[tuple[str, str]] = set()  # every step of a run's life that was seen
        self.leave = Leave(world)
        self.backfills = Backfills(world)
        self.published: dict[str, tuple[int, float]] = {}  # run -> the token under which it was published, and when
        self.resolved: set[Key] = set()  # attempts whose end a person has stated
        self.forgotten: set[Key] = set()  # attempts whose unknown end nobody could tell the ledger of
        self.forgotten_by_retention: set[str] = set()
        self.kept_from = 0.0  # runs that ended or were due before are forgotten (the ledger's wall clock)
        self.takeovers = 0
        self.sequences: dict[str, int] = {}  # job -> number of the definition that counts
        self.scheduled_as: dict[str, str] = {}  # job -> the schedule that the ledger was told of last
        self.starts = limits.Starts()
        self.counts_from: dict[str, float] = {}  # job -> since when that schedule counts (the ledger's wall clock)
        # run -> (when the ledger made its first row, when the world began by the ledger's clock as it was at that time)
        self.opened: dict[str, tuple[float, float]] = {}
        self.ends_forgotten: set[str] = set()  # runs whose end a ledger that went back has forgotten
        self.excused: Counter[str] = Counter()  # by the excuse's name

    def excuse(self, excuse: Excuse, verdict: str) -> None:
        """Count an exception. It would be a violation, but coordd promises nothing where it has this cause."""
        self.world.say(f"EXCUSED ({excuse.name}) {verdict}")
        self.excused[excuse.name] += 1

    # ---- the ledger, at each of its operations

    def operation(self, request: Request[Any], answer: Answer, before: Any, row: Any) -> None:
        """Check one operation. ``before`` and ``row``: the row of the run before the operation and after it."""
        world, op = self.world, request.op
        if row is not None and (before is None or before.state != row.state):
            self.transitions.add((before.state if before is not None else "", row.state))
        if before is None and row is not None:
            self.opened.setdefault(row.run, (world.now, world.server.began(row)))
            if isinstance(request, Claim | Register):
                world.publishing.judge.opened(row)
        elif row is not None:
            self._lost(before, row)
            if isinstance(request, Claim) and before.state in (RECEIVED, STARTED):
                self._taken_away(before, row, request.nonce)
            if op in LENDS and answer.word in (OK, CANCEL, GRANTED) and answer.left_s > row.lease + EXACT_S:
                world.violate(f"K {row.run}: {op} lends {answer.left_s:.3f} s, and its lease lasts {row.lease:g} s")
        self.leave.operation(request, answer, before)
        world.line.operation(before, row)
        if answer.word == EARLY and row is not None:
            self._waits(answer, row)
        if isinstance(request, Commit) and answer.word == OK:
            self._publishes(request.grant.run, request.grant.token)
        if isinstance(request, Replay) and answer.word == OK:
            self.terminal.pop(row.run, None)
        if self.backfills.operation(request, answer, row):
            self._is_another({row.run} & self.forgotten_by_retention)
            self.leave.is_another(row.run)
            self.terminal.pop(row.run, None)
            self.published.pop(row.run, None)
        if isinstance(request, Resolve) and answer.word == OK:
            self.resolved.add((before.run, before.attempt, before.token))
        if isinstance(request, Renew) and answer.word in (OK, CANCEL):
            grant = request.grant
            self._lend((grant.run, grant.attempt, grant.token), request.lease_s)
        if isinstance(request, Claim) and answer.word == GRANTED:
            if before is None or before.nonce != request.nonce:
                world.line.granted(world.host(machine_of(request.node)), before, row)
            self._grant(request, answer, row)
        if isinstance(request, Restore) and answer.word == OK:
            self._restored(request, before, row)
        if world.plan.forgets:
            self._quarantine(op, answer, before, row)
        if row is not None:
            self._ends_once(row)

    def _ends_once(self, row: Row) -> None:
        """S5: no run leaves a terminal state, even if retention has forgotten its row."""
        was, due = self.terminal.get(row.run, ("", 0.0))
        if was and row.state != was:
            verdict = f"S5 {row.run} left the terminal state {was} for {row.state}"
            if row.run in self.forgotten_by_retention and row.due_at > due:
                self.excuse(DUE_AGAIN, verdict)
                self._is_another({row.run})
            else:
                self.world.violate(verdict)
        if row.state in TERMINAL:
            self.terminal[row.run] = row.state, row.due_at

    def activated(self, job: str, schedule: str, how: str, sequence: int) -> None:
        """The ledger was told of a definition. A changed schedule, or a job that returns, counts from now."""
        if how == "restored" or self.sequences.get(job) == sequence:
            return
        self.sequences[job] = sequence
        if how == "returned" or self.scheduled_as.get(job) != schedule:
            self.counts_from[job] = max(self.counts_from.get(job, 0.0), self.world.server.wall())
            self.world.server.set_back.pop(job, None)
        self.scheduled_as[job] = schedule

    def _grant(self, claim: Any, answer: Answer, row: Any) -> None:
        job = claim.of.job
        mark = (claim.of.run, claim.attempt, claim.nonce)
        if self.same_grant.get(mark) == answer.token:
            self._lend((claim.of.run, claim.attempt, answer.token), claim.lease_s)  # answered again: a whole lease
            return
        self.same_grant[mark] = answer.token
        if answer.token <= self.last_token.get(job, 0):
            self.world.violate(f"S3 token {answer.token} of {job} after {self.last_token[job]}")
        self.last_token[job] = answer.token
        world = self.world
        key = (claim.of.run, claim.attempt, answer.token)
        self.grants[key] = Grant(
            world.now, machine_of(claim.node), 0.0, world.server.boots, row.digest, row.policy, [world.now]
        )
        self._lend(key, claim.lease_s)
        definition = world.known_jobs.get(row.digest)
        if definition is not None:
            at = max(world.server.wall(), row.not_before)
            self.starts.granted(self, f"{row.run}/{row.attempt}", definition, at, machine_of(claim.node))
        if claim.attempt:
            self.takeovers += 1

    def _lend(self, key: Key, lease_s: float) -> None:
        """The ledger has lent that attempt a whole lease now."""
        grant = self.grants[key]
        grant.lent_until = max(grant.lent_until, self.world.now + lease_s / self.world.server.rate)
        grant.boots = self.world.server.boots

    def _restored(self, said: Restore, before: Any, row: Any) -> None:
        """A witness has put a grant back. It gets a whole lease, unless the ledger already knew as much of the attempt.

        D: the grant is put back with the definition and the policy that were granted.
        """
        of, attempt, token, lease_s, state = said.of, said.attempt, said.token, said.lease_s, said.state
        key = (of.run, attempt, token)
        grant = self.grants[key]
        grant.written.append(self.world.now)
        others = (other.policy for key, other in self.grants.items() if key[0] == of.run)
        same = row.digest == grant.digest and row.policy in policies.put_back(grant.policy, others)
        if (row.attempt, row.token) == key[1:] and not same:
            self.world.violate(
                f"D {of.run}/{attempt} was put back as {row.digest} ({row.policy}), and granted as {grant.digest}"
                f" ({grant.policy})"
            )
        same = before is not None and (before.attempt, before.token) == (attempt, token)
        whole = not same or (before.state == RECEIVED and state != RECEIVED)
        its_own = (row.attempt, row.token) == key[1:]  # an older attempt that is told of gets no lease
        if whole and its_own and row.state in (RECEIVED, STARTED):  # nor does one that is over
            self._lend(key, lease_s)

    def _waits(self, answer: Answer, row: Any) -> None:
        """L: a run that was asked for is due at once. Its next attempt is due after a pause of at most PAUSE_MAX_S."""
        world = self.world
        if "#" not in row.run or world.server.suspended(row.job) or world.server.recovering_s(world.server.wall()) > 0:
            return
        if answer.in_s > (PAUSE_MAX_S if row.attempt else 0.0) + EXACT_S:
            world.violate(f"L {row.run}/{row.attempt} is to wait for {answer.in_s:.1f} s, and for nothing")

    def _taken_away(self, before: Any, row: Any, nonce: str) -> None:
        """C: while a holder may rely on its grant, the ledger gives it to no other node and does not give it up."""
        if (row.token, row.nonce, row.state) == (before.token, before.nonce, before.state) or before.nonce == nonce:
            return
        world, server = self.world, self.world.server
        grant = self.grants[before.run, before.attempt, before.token]
        if grant.boots != server.boots:  # no process of that boot is alive
            return
        if world.now >= grant.lent_until - RHO * before.lease:
            return
        verdict = f"C {before.run}/{before.attempt} was taken away {grant.lent_until - world.now:.2f} s too soon"
        if any(one.shortened and grant.at <= one.at for one in server.setbacks):
            self.excuse(STEPPED, verdict)
        else:
            world.violate(verdict)

    def _lost(self, before: Any, row: Any) -> None:
        """G: an attempt is lost only if a fault has struck its node or the ledger since the grant."""
        gone = row.relaunches > before.relaunches or (row.state == UNKNOWN and before.state != UNKNOWN)
        if not gone or before.state not in (RECEIVED, STARTED) or row.token != before.token:
            return
        world = self.world
        grant = self.grants[before.run, before.attempt, before.token]
        since = grant.at - BEFORE_S
        if any(world.records.between(machine, since, world.now) for machine in (grant.node, LEDGER)):
            return
        verdict = f"G {row.run} was lost ({row.reason}) though nothing was killed, paused or cut off"
        claims_since = min(since, world.server.claiming.get((grant.node, row.run, before.attempt), since))
        if any(at >= claims_since for at in world.records.redefined[grant.node, row.job]):
            self.excuse(GIVEN_BACK, verdict)
        elif world.server.unanswered[before.run] < MANY_REPLIES:
            world.violate(verdict)
        else:
            self.excuse(UNANSWERED, verdict)

    def _publishes(self, run: str, token: int) -> None:
        """S4: at most one attempt of a run publishes. If the ledger forgets a commit, no witness tells of it."""
        now, (other, at) = self.world.now, self.published.setdefault(run, (token, self.world.now))
        verdict = f"S4 {run} was published under {other} and under {token}"
        if other != token and any(setback.kept_to < at <= setback.at for setback in self.world.server.setbacks):
            self.excuse(PUBLISHED, verdict)
            self.published[run] = (token, now)
        elif other != token:
            self.world.violate(verdict)

    def _quarantine(self, op: str, answer: Answer, before: Any, row: Any) -> None:
        """Q: all callers have the same quarantine. No run passes the gate in it. After its end it delays nothing."""
        world = self.world
        if not world.server.setbacks:
            return
        last = world.server.setbacks[-1]
        passed = op == "gate" and answer.word == OK and before is not None and before.state == RECEIVED
        if passed and world.now < min(last.opens_at, last.early_at) - SLACK_S:
            world.violate(f"Q {row.run} was let through the gate while the ledger was recovering")
        if answer.word == RECOVERING and world.now > last.opens_at + SLACK_S:
            world.violate("Q the ledger says that it recovers, and its quarantine is over")

    # ---- the ledger forgets

    def pruned(self, runs: set[str], before: float) -> None:
        """Retention has forgotten these runs. It has settled everything that was due before ``before``.

        A later request for a triggered run with one of these ids asks for a new run.
        """
        self.forgotten_by_retention |= runs
        if runs:
            self.kept_from = max(self.kept_from, before)
        self._is_another({run for run in runs if "#" in run})

    def _is_another(self, again: set[str]) -> None:
        """From now on, a request for a run with one of these ids asks for a new run."""
        for run in again:
            self.terminal.pop(run, None)
            self.leave.is_another(run)
            self.published.pop(run, None)
        self.launches = Counter({key: count for key, count in self.launches.items() if key[0] not in again})
        for child in self.children:
            if child.run in again:
                child.run, child.pruned = child.run + " (pruned)", True
        self.live = {child.run: child for child in self.live.values()}

    def went_back(self) -> None:
        """The ledger has other rows than before.

        If it has forgotten the newer state of a run or a job, that may continue from the present row.
        """
        self.leave.went_back()
        self.backfills.went_back()
        self.world.publishing.judge.went_back()
        for job in list(self.scheduled_as):
            known = self.world.server.job(job)
            if known is None or not known.digest:
                del self.scheduled_as[job], self.sequences[job]  # the next node to bring the job may not remember it
            else:
                # The ledger gives later numbers again, and a schedule that it has forgotten counts later.
                self.sequences[job], self.scheduled_as[job] = known.sequence, known.schedule
        for run in list(self.terminal):
            row = self.world.ledger.run(run)
            if row is None or row.state != self.terminal[run][0]:
                del self.terminal[run]
                self.ends_forgotten.add(run)

    # ---- the launched programs

    def spawned(self, host: Host, launch: Launch) -> None:
        """I12: when a runner is started, its intent must be on the disk."""
        if not intended(host, launch):
            self.world.violate(f"I12 {launch.run}/{launch.attempt} is launched, and its intent is not on the disk")

    def announced(self, daemon: Daemon, events: Iterable[Any]) -> None:
        """J: when a node announces a grant, the grant is on its disk, unless the disk is full."""
        for event in events:
            if not isinstance(event, TaskReceived) or event.node != daemon.name or daemon.full:
                continue
            if not intended(daemon.host, event):
                self.world.violate(f"J {daemon.name} announces {event.run}/{event.attempt}, and has not kept it")

    def launched(self, child: Child, launch: Launch, job: Job) -> None:
        """Check one launch. ``job``: the definition that the program executes."""
        world = self.world
        child.job = job
        child.key = (launch.run, launch.attempt, launch.token)
        self.leave.launched(launch)
        world.say(f"n{child.node} LAUNCH {child.run}/{child.attempt}")
        if "@" in launch.run and launch.run not in self.backfills.opened:
            self._was_known(launch, job)
        self._as_granted(child, job, launch.args)
        self.launches[child.run, child.attempt] += 1
        earlier = [c for c in self.children if c.run == child.run]
        self.children.append(child)
        if self.launches[child.run, child.attempt] > 1:
            others = [c for c in earlier if c.attempt == child.attempt]
            self._unless_unknown(others, f"S1 {child.run} attempt {child.attempt} was launched twice")
        other = self.live.get(child.run)
        if other is not None:
            self.lives_on(
                other,
                [other],
                f"S2 {child.run}: attempt {other.attempt} on n{other.node} lives while {child.attempt} starts",
            )
        self._overlap(child, job, earlier)
        limits.judge_launch(self, child, job)
        policies.launched(world, child)
        unknown = [c for c in earlier if c.how != "exit" and not c.fences and c.key not in self.resolved]
        if any(c.key not in self.forgotten for c in unknown):
            self._unless_unknown(unknown, f"H {child.run} is held, and was launched again after an unknown end")
            # a ledger that does not know of an end does not know of it at the next attempt either
            self.forgotten.update(c.key for c in unknown)
        self.live[child.run] = child

    def _was_known(self, launch: Launch, job: Job) -> None:
        """N: no run is launched that was due before its job or its definition was known.

        This is judged by true time. If the ledger's clock is set back, the ledger believes that everything was known
        earlier, by the same amount. Runs that it opens in that time are excused. Runs that it opens later, when its
        clock is right again, are not excused.
        """
        world = self.world
        opened_at, began = self.opened[launch.run]
        due = max(launch.fire_at, launch.due)
        if due < WALL:
            verdict = f"N {launch.run} was due before its job was known"
            if due < began:
                world.violate(verdict)
            else:
                self.excuse(SET_BACK, verdict)
        since = world.configuration.scheduled_since(job.digest, opened_at, began)
        if nominal(launch.run) + job.offset_s < since - ACTIVE_S:
            verdict = f"N {launch.run} was due before its definition ({job.digest}) was"
            if world.configuration.met_by_a_stranger(job, opened_at):
                self.excuse(STRANGER, verdict)
            else:
                world.violate(verdict)

    def _as_granted(self, child: Child, job: Job, args: str) -> None:
        """D: a program executes the definition whose digest the row had at the grant, under the row's policy then."""
        grant = self.grants[child.key]
        policy = claimed_policy(job, args, f"n{child.node}").pack()
        if (job.digest, policy) != (grant.digest, grant.policy):
            self.world.violate(
                f"D {child.run}/{child.attempt} executes {job.digest} ({policy}), and {grant.digest}"
                f" ({grant.policy}) was granted"
            )

    def _overlap(self, child: Child, job: Job, earlier: list[Child]) -> None:
        """O: if a job forbids overlap, no two of its runs live at the same time.

        A run that was let in keeps its place: a run whose definition allows overlap may be granted beside it, also
        before its program starts, and its next attempt may start beside such a run.
        """
        if job.overlap == "allow":
            return
        # A grant that was not used lapses, and is given again under a new token.
        since = min(grant.written[0] for key, grant in self.grants.items() if key[0] == child.run)
        for other in list(self.live.values()):
            assert other.job is not None
            if other.run == child.run or not other.run.startswith((f"{job.name}@", f"{job.name}#")):
                continue
            let_in = child.attempt > 0 or since < self.grants[other.key].written[0]
            if let_in and other.job.overlap == "allow":
                continue
            verdict = f"O {other.run} lives while {child.run} starts, and {job.name} says {job.overlap}"
            if self.ends_forgotten & {child.run, other.run}:
                self.excuse(END_FORGOTTEN, verdict)
            else:
                self.lives_on(other, [other, *earlier], verdict)

    def lives_on(self, other: Child, untold: list[Child], verdict: str) -> None:
        """A violation, unless a person, a frozen machine or a ledger that went back explains why ``other`` still lives.

        ``untold``: the programs of which perhaps nobody could tell the ledger.
        """
        grant = self.grants[other.key]
        if other.key in self.resolved:
            self.excuse(RESOLVED, verdict)
        elif other.fences and self.world.records.frozen_over(other.node, grant.lent_until, self.world.now):
            self.excuse(FROZEN, verdict)
        else:
            self._unless_unknown(untold, verdict)

    def _unless_unknown(self, earlier: Iterable[Child], verdict: str) -> None:
        """A violation, unless nobody could tell the ledger of an ``earlier`` program before it granted the newest."""
        world = self.world
        granted_at = self.grants[self.children[-1].key].written[0]
        for child in earlier:
            end = child.ended if child.ended is not None else world.now
            written = (*self.grants[child.key].written, child.started, end)
            for number in range(len(world.server.setbacks)):
                why = self.knowledge.nobody_could_tell(child.key, written, child.node, number, granted_at)
                if why is not None:
                    self.excuse(why, verdict)
                    return
        world.violate(verdict)

    def testified(self, daemon: Daemon, launch: Launch, why: str) -> None:
        """T: a node says of no attempt that it is over while the attempt's program lives, seen or not."""
        self.world.say(f"{daemon.name} TESTIFIES {launch.run}/{launch.attempt}: {why}")
        for child in self.children:
            if child.key == (launch.run, launch.attempt, launch.token) and child.ended is None:
                self.world.violate(f"T {daemon.name} says of {launch.run}/{launch.attempt} that {why}, and it lives")

    def ended_by_watcher(self, runner: Runner) -> None:
        """F: a watcher ends a program only if the runner cannot act. A runner that can act ends its program sooner."""
        world = self.world
        if world.now >= runner.awake_at + THAW_S and runner.alive:
            world.violate(f"F {runner.launch.run}: its watcher had to end it, and its runner could have")

    def died(self, child: Child, how: str) -> None:
        """I13: no program outlives its lease, unless its machine stood still when the lease ended."""
        world = self.world
        if child.ended is None:
            lent = self.grants[child.key].lent_until
            late = child.fences and world.now > lent + EXACT_S
            if late and not world.records.frozen_over(child.node, lent, world.now):
                world.violate(f"I13 {child.run}/{child.attempt} has outlived its lease by {world.now - lent:.3f} s")
            child.ended, child.how = self.world.now, how
            code = child.exit_code if how == "exit" else ""
            self.world.say(f"n{child.node} END {child.run}/{child.attempt} {how} {code}")
            if self.live.get(child.run) is child:
                del self.live[child.run]

    def left(self, key: Key, host: Host, stays_until: float) -> None:
        """R: a runner exits by itself, but not before the end of a quarantine that the ledger told it of.

        The ledger may forget a report that it gets in the quarantine, so the runner stays to repeat it.
        """
        if self.world.now < stays_until - SLACK_S:
            self.world.violate(f"R the runner of {key[0]} has reported once, and the ledger still recovers")
        last = self.world.server.setbacks[-1] if self.world.server.setbacks else None
        if last is not None and self.world.now < last.opens_at < float("inf"):
            self.knowledge.stays(host, key, last.opens_at)


def intended(host: Host, granted: Launch | TaskReceived) -> bool:
    """True if the intent is in the synced part of that machine's journal, which survives a power cut."""
    disk = host.disk
    return any(
        isinstance(event, TaskReceived) and event.token == granted.token and event.run == granted.run
        for event in reversed(disk.journal[: disk.synced])
    )


def machine_of(node: str) -> int:
    """The number of the machine that a full_hostname (n3.101) names."""
    return int(node.partition(".")[0][1:])
