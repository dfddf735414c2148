"""What people do: ask for runs, forbid and end them, suspend jobs, change jobs, say how a lost run ended."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec

from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import ORDERS, REDO, Plan as Backfill
from coordd.core.ledger.people import is_dead_letter
from coordd.core.ledger.requests import Cancel, Discard, Keep, PlanBackfill, Prune, Replay, Resolve, Revoke, Suspend
from coordd.core.ledger.rerun.descendants import descendants
from coordd.core.ledger.rerun.plan import text_of
from coordd.core.ledger.rows import OF_JOB, Row
from coordd.core.ledger.runner_requests import Registration, Request
from coordd.core.ledger.words import FAILURE, LOST, MISSED, OK, STARTED, SUCCESS, UNKNOWN
from simulator.policies import AFTER, RERUNS, TRIGGERS

if TYPE_CHECKING:
    from simulator.item import Item
    from simulator.world import Host, World

# The name of the person in each request.
PERSON = "a person"

# People try again after this time (seconds).
AGAIN_S = 1.0

# If the redefinition of a job takes longer than this (seconds), the job is removed afterwards.
REMOVED_ABOVE_S = 8.0

# At most this long (seconds) before a machine gets a redefined job, somebody asks for a run of that job. The numbers of
# these runs begin at ASIDE, above the numbers of the plan's runs.
ASKED_BEFORE_S = 0.15
ASIDE = 1000

# The probability that somebody forbids or ends a run in the moment in which its gate has opened.
COMES_LATE = 0.1

# How often (seconds) somebody looks for runs whose end nobody knows, and the probability that such a run is resolved.
LOOKS_S = 7.0
RESOLVED = 0.5
# The probability that somebody replays, or discards, a run that was given up.
REPLAYED = 0.15
DISCARDED = 0.05
# Where people replay runs with their children: how much less often they leave a run as it is, and how many they replay
# so.
OFTEN = 0.3
WITH_CHILDREN = 0.8

# How many of the newest runs that succeeded or were missed are looked at, and the share of them that is wanted once
# more; also of those that have not ended, which the ledger must refuse.
ENDED_LOOKED_AT = 3
ENDED_AGAIN = 0.03

# The probability that what somebody holds ends by itself, and the states of daemons that take what people ask.
ENDS_BY_ITSELF = 0.5
ASKED = ("ready", "draining")

# The jobs of which somebody backfills the fire times, and the probability at each look.
BACKFILLED_JOBS = ("sched", "spread", "strict")
BACKFILLS = 0.5


class People:
    """Everybody who uses the cluster of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.asked: set[str] = set()  # runs that people ask for, whether or not anybody can take them
        self.rng = random.Random(f"letters {world.plan.seed}")  # of their own: the other acts stay as they were
        self.fills = random.Random(f"backfills {world.plan.seed}")
        self.again = random.Random(f"reruns {world.plan.seed}")
        self.plans: dict[str, Backfill] = {}
        self.held: set[str] = set()  # what they have held through the ledger
        world.at(LOOKS_S, self._look)

    def do(self, item: Item) -> None:
        """One act of the plan."""
        host = self._somewhere(item.who)
        if host is None:
            self.world.at(AGAIN_S, self.do, item)
            return
        if item.kind != "trigger":
            self.world.say(f"PEOPLE {item.kind} {item.what} on {host.name}")
            self.world.acts[item.kind] += 1
        getattr(self, f"_{item.kind}")(host, item)

    def _somewhere(self, who: float) -> Host | None:
        ready = [h for h in self.world.hosts if h.daemon is not None and h.daemon.node.ctx.state == "ready"]
        return ready[int(who * len(ready))] if ready else None

    def _ledger(self, host: Host, request: Request[Answer]) -> None:
        """Ask the ledger first, as the control socket does. Then the node makes the change take effect sooner."""

        def answered(answer: Any) -> None:
            daemon = host.daemon
            if daemon is None or not isinstance(answer, Answer) or answer.word != OK:
                return
            if isinstance(request, Prune):
                return  # pruning concerns no run that a node pursues
            if isinstance(request, Cancel):
                daemon.feed(daemon.node.hurry_cancel, request.run, f"cancelled by {request.by}", answer.attempt)
            elif isinstance(request, Revoke):
                daemon.feed(daemon.node.revoked, (request.run,), f"revoked by {PERSON}")
            else:
                daemon.feed(daemon.node.look_again)

        self.world.server.ask(host, request, answered)

    def come_late(self, host: Host, run: str) -> None:
        """In worlds that strike at the worst moment: forbid or end a run whose gate is open ahead of its fire time."""
        if self.world.targeted and host.daemon is not None and self.world.rng.random() < COMES_LATE:
            kind: type[Cancel | Revoke] = self.world.rng.choice((Cancel, Revoke))
            self.world.say(f"PEOPLE come late to {kind.op} {run}")
            self.world.acts[f"late_{kind.op}"] += 1
            self._ledger(host, kind(run=run, by=PERSON))

    # ---- the acts

    def _trigger(self, host: Host, item: Item, args: str = "{}") -> None:
        name, _, number = item.what.partition("#")
        job = host.jobs.get(name)
        if job is None:
            return  # there is no such job
        assert host.daemon is not None
        self.asked.add(item.what)
        of = Registration(item.what, name, job.digest, job.policy(), self.world.wall(host), scheduled=False, args=args)
        host.daemon.feed(host.daemon.node.trigger, of, 1 + int(number))

    def _conflict(self, host: Host, item: Item) -> None:
        """The same id with other arguments: the first request counts."""
        self._trigger(host, item, '{"day":"other"}')

    def _revoke(self, host: Host, item: Item) -> None:
        """A node that knows the job says when the run is due."""
        assert host.daemon is not None
        due = host.daemon.node.ctx.due_of(item.what)
        self._ledger(host, Revoke(run=item.what, by=PERSON, due=due))

    def _cancel(self, host: Host, item: Item) -> None:
        self._ledger(host, Cancel(run=item.what, by=PERSON))

    def _suspend(self, host: Host, item: Item) -> None:
        self._ledger(host, Suspend(job=item.what, suspended=True, by=PERSON))
        self.world.at(item.amount, self._resume, item)

    def _resume(self, item: Item) -> None:
        host = self._somewhere(item.who)
        if host is not None:
            self._ledger(host, Suspend(job=item.what, suspended=False, by=PERSON))
        if host is None or self.world.server.suspended(item.what):
            self.world.at(AGAIN_S, self._resume, item)  # again, until the job is resumed

    def _hold(self, host: Host, item: Item) -> None:
        """Drain a node, suspend a job or stop all jobs, through the ledger."""
        if self.world.chaos_over:
            return
        self.held.add(item.what)
        ends = (item.who * 100) % 1 < ENDS_BY_ITSELF
        self._keep(host, item.what, True, self.world.server.wall() + item.amount if ends else 0.0)
        if not ends:
            self.world.at(item.amount, self._release, item)

    def _release(self, item: Item) -> None:
        host = self._anybody(item.who)
        if host is not None:
            self._keep(host, item.what, False)

    def _keep(self, host: Host, key: str, held: bool, until: float = 0.0) -> None:
        if key.startswith(OF_JOB):
            self._ledger(host, Suspend(job=key[len(OF_JOB) :], suspended=held, by=PERSON, until=until))
        else:
            self._ledger(host, Keep(key=key, held=held, by=PERSON, until=until))

    def _anybody(self, who: float) -> Host | None:
        """A machine whose daemon can be asked, also if it is drained."""
        there = [h for h in self.world.hosts if h.daemon is not None and h.daemon.node.ctx.state in ASKED]
        return there[int(who * len(there))] if there else None

    def _redefine(self, host: Host, item: Item) -> None:
        """The file of one job is changed, on one machine after the other."""
        if "morph" not in self.world.jobs:
            return
        new = msgspec.structs.replace(self.world.jobs["morph"], digest="d7b", on_lost="hold")
        self.world.jobs = {**self.world.jobs, "morph": new}
        for number, machine in enumerate(self.world.hosts):
            at = number * item.amount / 4
            self.world.at(at, self.world.configuration.reload, machine)
            # Somebody asks for a run shortly before. So the claim or the launch is under way when the file changes.
            asked = item._replace(what=f"morph#{ASIDE + number}", who=self.world.rng.random())
            self.world.at(at - self.world.rng.uniform(0.0, ASKED_BEFORE_S), self._ask_anywhere, asked)
        if item.amount > REMOVED_ABOVE_S:
            self.world.at(item.amount, self._remove_for_good, item)

    def _remove_for_good(self, item: Item) -> None:
        """The file is removed from all machines. Runs that still wait find no machine that has it."""
        self.world.fault_log["job_removed"] += 1
        self.world.jobs = {name: job for name, job in self.world.jobs.items() if name != "morph"}
        for number, machine in enumerate(self.world.hosts):
            self.world.at(number * item.amount / 4, self.world.configuration.reload, machine)

    def _ask_anywhere(self, item: Item) -> None:
        host = self._somewhere(item.who)
        if host is not None:
            self._trigger(host, item)

    def _drain(self, host: Host, item: Item) -> None:
        daemon = host.daemon
        assert daemon is not None
        if self.world.chaos_over:
            return  # they came late, and a world ends with nodes that take runs
        daemon.feed(daemon.node.drain, True)
        self.world.at(item.amount, lambda: daemon.feed(daemon.node.drain, False))

    def _prune(self, host: Host, item: Item) -> None:
        """Retention: the ledger forgets old runs, but not where parents are awaited, or files stay, for longer."""
        if self.world.plan.kinds & {AFTER, TRIGGERS}:
            return
        self._ledger(host, Prune(keep_s=item.amount))

    # ---- acts that are not in the plan

    def _look(self) -> None:
        """Somebody says how held runs ended."""
        world = self.world
        for row in [] if world.chaos_over else world.ledger.runs(state=UNKNOWN, limit=100):
            host = self._somewhere(world.rng.random())
            if host is not None and world.rng.random() < RESOLVED:
                outcome = world.rng.choice(("success", "failed", "relaunch"))
                world.acts[f"resolve {outcome}"] += 1
                world.say(f"PEOPLE resolve {row.run} as {outcome}")
                self._ledger(host, Resolve(run=row.run, outcome=outcome, by=PERSON))
        for state in () if world.chaos_over else (FAILURE, LOST):
            for row in world.ledger.runs(state=state, limit=20):
                self._letter(row)
        for state in () if world.chaos_over or RERUNS not in world.plan.kinds else (SUCCESS, MISSED, STARTED):
            for row in world.ledger.runs(state=state, limit=ENDED_LOOKED_AT):
                if self.again.random() < ENDED_AGAIN:
                    self._run_again(row)
        if world.chaos_over:  # a ledger that went back may have forgotten that a job was resumed
            for job in sorted(world.plan.jobs.keys() - world.checking.keeps()):
                host = self._somewhere(world.rng.random())
                if host is not None and world.server.suspended(job):
                    self._ledger(host, Suspend(job=job, suspended=False, by=PERSON))
        for key in sorted(self.held) if world.chaos_over else ():
            host = self._anybody(world.rng.random())
            if host is not None:
                self._keep(host, key, False)
        if world.plan.backfills:
            self._backfill()
        world.at(LOOKS_S, self._look)

    def _backfill(self) -> None:
        """Somebody wants past fire times of a job; before the end of the world such a plan is cancelled."""
        world = self.world
        job = self.fills.choice(BACKFILLED_JOBS)
        host = self._somewhere(self.fills.random())
        if host is None or job not in world.jobs or (not world.chaos_over and self.fills.random() > BACKFILLS):
            return
        if world.chaos_over:
            for name in BACKFILLED_JOBS:
                self._ledger(host, PlanBackfill(job=name, text="", by=PERSON))
            return
        end = round(world.server.wall() - self.fills.uniform(0.0, 10.0), 3)  # a plan has milliseconds
        begin = round(end - self.fills.uniform(5.0, 60.0), 3)
        plan = Backfill(f"p{world.now:.3f}", begin, end, self.fills.choice(ORDERS), self.fills.randint(1, 3))
        plan.redo = self.fills.choice((*REDO, REDO[-1]))
        plan.stop_after = self.fills.choice((0, 0, 2))
        self.plans[plan.id] = plan
        world.acts["backfill"] += 1
        world.say(f"PEOPLE backfill {job} {plan.text()} on {host.name}")
        self._ledger(host, PlanBackfill(job=job, text=plan.text(), by=PERSON))

    def _letter(self, row: Row) -> None:
        """Somebody may want a run that was given up once more; two people on two nodes, often."""
        picked = self.rng.random()
        if RERUNS in self.world.plan.kinds:
            picked *= OFTEN
        if not is_dead_letter(row) or picked > REPLAYED + DISCARDED:
            return
        what = "discard" if picked > REPLAYED else "replay"
        for _ in range(1 + (self.rng.random() < 0.5)):
            host = self._somewhere(self.rng.random())
            if host is None:
                return
            self.world.acts[what] += 1
            self.world.say(f"PEOPLE {what} {row.run}/{row.attempt} on {host.name}")
            if what == "discard":
                self._ledger(host, Discard(run=row.run, attempt=row.attempt, by=PERSON, note="seen"))
            else:
                self._ledger(host, self._wish(host, row))

    def _run_again(self, row: Row) -> None:
        """Somebody wants a run once more, whichever way it has ended."""
        host = self._somewhere(self.again.random())
        if host is not None:
            self.world.acts["rerun of what has ended"] += 1
            self.world.say(f"PEOPLE rerun {row.run}/{row.attempt} on {host.name}")
            self._ledger(host, self._wish(host, row, whole=True))

    def _wish(self, host: Host, row: Row, *, whole: bool = False) -> Replay:
        return Replay(
            run=row.run,
            attempt=row.attempt,
            digest=row.digest,
            policy=row.policy,
            by=PERSON,
            children=self._children(host, row),
            whole=whole,
        )

    def _children(self, host: Host, row: Row) -> str:
        """With its children, in most cases."""
        if RERUNS not in self.world.plan.kinds or self.again.random() > WITH_CHILDREN:
            return ""
        assert host.daemon is not None
        begin = host.daemon.node.identity_from
        scheduled = bool(row.scheduled)
        return text_of(descendants(host.jobs, row.job, row.run, row.fire_at, scheduled=scheduled, identity_from=begin))
