"""AR: each arrival is exactly one run, or waits where people see it; nothing is acknowledged before its row is there.

AP: once all is calm, each source is looked at, by one node. AD: triggers with the same key in a period are one run.

The judge knows what has arrived, and takes the arguments of a row for what the row says it is: never its id.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from coordd.core.ledger.requests import Claim, Register
from coordd.core.node.states import READY
from coordd.core.triggers.polling import subject
from coordd.core.wire.windows import FORGOTTEN_S
from simulator.judging.excuses import ACKNOWLEDGED_FORGOTTEN, DEAF_AT_FIRST
from simulator.machines.arriving import DROP, ONCE, QUEUE, TERM
from simulator.policies import TRIGGERS
from simulator.terms import CHAOS_S

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from coordd.core.triggers.messages import Message
    from simulator.machines.daemon import Daemon
    from simulator.world import Host, World

# After the faults (seconds): until all nodes see each other; until they have decided an election; for how long two may
# poll where that changes; the longest pause between two looks at a source; and until an arrival that has room has its
# row. Nodes that did not hear each other may have elected two pollers, for the rest of that term, and for those that
# they had held before their time.
CALM_S = 12.0
ELECTED_S = 6.0
BOTH_S = 3.0
UNSEEN_S = 8.0
LATE_S = 20.0

# A clock was set if it was moved by more than this (seconds).
SET_S = 30.0

# Looks of one node that are further apart than this (seconds) are not of one time as the poller.
APART_S = 6.0


class Arrival(NamedTuple):
    """What a run is of: a job, and what tells its arrivals apart."""

    job: str
    what: str


class Polls(NamedTuple):
    """A time in which a daemon polls (seconds)."""

    since: float
    until: float


class Arrived:
    """The arrivals of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.on = TRIGGERS in world.plan.kinds
        self._made: dict[Arrival, float] = {}  # everything that may be a run -> when it came
        self._wanted: set[Arrival] = set()  # of these, what must be one
        self._gone: dict[Arrival, float] = {}  # a file of another size -> when that was written over it
        self._runs: dict[Arrival, str] = {}
        self._done: set[Arrival] = set()  # those that were acknowledged
        self._asked: dict[str, tuple[str, float]] = {}  # run of DAILY -> the value, and the number of the period
        self._polls: dict[str, dict[str, Polls]] = defaultdict(dict)  # trigger -> daemon -> when it polled last
        self._subjects = [subject(job.name, one.name) for job in world.plan.jobs.values() for one in job.triggers]
        self._waits_since: dict[Arrival, float] = {}
        self._taken: Counter[str] = Counter()  # by job, at the last look
        self._one_from_s = CHAOS_S + ELECTED_S + 2.0 * world.plan.limits.get(TERM, 0.0)
        self._nobody_s = 0.0  # until when no node was ready: all that were left were drained, say
        self._offsets: dict[
            str, tuple[float, dict[int, float]]
        ] = {}  # daemon -> when it was seen first; all clocks then
        if self.on:
            world.at(CHAOS_S + CALM_S - UNSEEN_S, self._look)

    # ---- what arrives

    def arrives(self, job: str, message: Message) -> None:
        """A message was sent. One without an id, or without a value that is needed, can start nothing."""
        if (of := self._of_message(job, message)) is not None:
            self._made.setdefault(of, self.world.now)
            self._wanted.add(of)

    def written(self, path: str, size: int) -> None:
        """A file was written, or written again."""
        now, before = self.world.now, Arrival(DROP, f"{path} {size - 1}")
        self._made[Arrival(DROP, f"{path} {size}")] = now
        self._wanted.add(Arrival(DROP, f"{path} {size}"))
        if before in self._made:
            self._gone[before] = now
            self._wanted.discard(before)

    def asked(self, job: Job, run: str, value: str, wall: float) -> None:
        """Somebody asks for a run of a job that knows triggers by a key."""
        assert job.dedupe is not None
        if job.name == ONCE:
            self._made.setdefault(Arrival(ONCE, value), self.world.now)
            return
        period = value, wall // job.dedupe.period_s
        if self._asked.setdefault(run, period) != period:
            self.world.violate(f"AD {run} is asked for {self._asked[run]} and for {period}")
        others = [other for other, of in self._asked.items() if of == period and other != run]
        if others:
            self.world.violate(f"AD {others[0]} and {run} are two runs of one period")

    def _of_message(self, job: str, message: Message) -> Arrival | None:
        value = str(message.fields.get("value", ""))
        if not message.ident or (job == ONCE and not value):
            return None
        return Arrival(job, value if job == ONCE else message.ident)

    # ---- what becomes of it

    def operation(self, _: Host, request: Request[Any], _answer: Answer, before: Row | None, row: Row | None) -> None:
        """Check each row that is made."""
        if not self.on or before is not None or row is None or not isinstance(request, Claim | Register):
            return
        of = self._of_row(row)
        if of is None:
            return
        if of not in self._made:
            self.world.violate(f"AR {row.run} is the run of nothing that arrived: {row.args}")
        if self._runs.setdefault(of, row.run) != row.run:
            self.world.violate(f"AR {' '.join(of)} is two runs, {self._runs[of]} and {row.run}")
        settle_s = self.world.plan.jobs[DROP].triggers[0].settle_s
        if of in self._gone and (self._gone[of] - self._made[of]) * 1.02 < settle_s:
            self.world.violate(f"AR {row.run} is of a file that was still being written")

    def _of_row(self, row: Row) -> Arrival | None:
        if row.job not in (DROP, QUEUE, ONCE):
            return None
        said = json.loads(row.args)
        return Arrival(row.job, f"{said['value']} {said['size']}" if row.job == DROP else said["value"])

    def acknowledged(self, of: str, message: Message) -> None:
        """A poller has acknowledged a message: its row is there, or was there before the ledger went back."""
        job = of.split("/")[1]
        arrival = self._of_message(job, message)
        if arrival is None or arrival not in self._runs:
            self.world.violate(f"AR message {message.ident} of {job} was acknowledged, and has no row")
            return
        self._done.add(arrival)

    # ---- who polls

    def looked(self, daemon: Daemon, of: str) -> None:
        """A daemon looks at a source."""
        now, known = self.world.now, self._polls[of]
        self._ahead(daemon)
        self._note_clocks()
        since = known[daemon.name].since if daemon.name in known and now - known[daemon.name].until < APART_S else now
        known[daemon.name] = Polls(since, now)
        if now < self._one_from_s:
            return
        for name, other in known.items():
            both_s = min(now, other.until) - max(since, other.since, self._one_from_s)
            if name != daemon.name and both_s > BOTH_S:
                verdict = f"AP {name} and {daemon.name} have both polled {of} for {both_s:.1f} s"
                deaf_until = max(self._deaf_until(name), self._deaf_until(daemon.name))
                if now > deaf_until:
                    self.world.violate(verdict)
                self.world.judge.excuse(DEAF_AT_FIRST, verdict)
                self._one_from_s = deaf_until

    def _deaf_until(self, daemon: str) -> float:
        """Until when that daemon may hear no elections: its clock was set since its start, and so were others by
        which it would know what it cannot have heard. 0.0: it hears them.
        """
        began_at, offsets = self._offsets[daemon]
        moved = {
            host.index
            for host in self.world.hosts
            if abs(self.world.wall(host) - self.world.now - offsets[host.index]) > SET_S
        }
        own = next((host.index for host in self.world.hosts if host.name == daemon.partition(".")[0]), -1)
        return began_at + FORGOTTEN_S if own in moved and len(moved) > 1 else 0.0

    def _ahead(self, daemon: Daemon) -> None:
        """A node whose clock is ahead holds the elections of terms that the others come to later. Those that did not
        hear it then hold them again.
        """
        world, host = self.world, daemon.host
        if world.now < CHAOS_S + ELECTED_S:
            ahead_s = world.wall(host) - min(world.wall(other) for other in world.hosts if not other.gone)
            term_s = world.plan.limits.get(TERM, 0.0)
            self._one_from_s = max(self._one_from_s, world.now + ahead_s + 2.0 * term_s)

    def _note_clocks(self) -> None:
        """Of each new daemon: how all clocks are."""
        now = self.world.now
        for host in self.world.hosts:
            if host.daemon is not None and host.daemon.name not in self._offsets:
                offsets = {other.index: self.world.wall(other) - now for other in self.world.hosts}
                self._offsets[host.daemon.name] = (now, offsets)

    def _look(self) -> None:
        """AP: each source is looked at while a node is ready. A file that is gone has none; people bring it back."""
        world = self.world
        world.at(1.0, self._look)
        daemons = [host.daemon for host in world.hosts if not host.gone and host.daemon is not None]
        if not any(daemon.node.ctx.state == READY for daemon in daemons):
            self._nobody_s = world.now
        for of in self._subjects:
            there = all(of.split("/")[1] in host.jobs for host in world.hosts if not host.gone)
            last = max([polls.until for polls in self._polls[of].values()], default=0.0)
            if there and world.now - max(last, CHAOS_S + CALM_S - UNSEEN_S, self._nobody_s) > UNSEEN_S:
                world.violate(f"AP nobody has looked at {of} for {world.now - last:.0f} s")

    # ---- in the end

    def _missing(self) -> list[Arrival]:
        """Everything that is still there without a row."""
        if not self.on:
            return []
        rows = {of for row in self.world.ledger.runs(limit=100_000) if (of := self._of_row(row)) is not None}
        return sorted(self._wanted - rows)

    def _forgotten(self, of: Arrival) -> bool:
        """True if it was acknowledged, and the ledger has forgotten its row since: nobody can know of it."""
        run = self._runs.get(of, "")
        return of in self._done and any(run in setback.runs for setback in self.world.server.setbacks)

    def unsettled(self) -> bool:
        """True if something that arrived has no row, and can get one."""
        return any(not self._forgotten(of) for of in self._missing())

    def wait(self) -> None:
        """After the faults an arrival that has room has its row soon. A job that has just taken another had none."""
        world, now = self.world, self.world.now
        full = {row.job for row in world.server.open_rows()}
        taken = Counter(of.job for of in self._runs)
        full |= {job for job in taken if taken[job] != self._taken[job]}
        self._taken = taken
        late = {of for of in self._missing() if of.job not in full and not self._forgotten(of)}
        self._waits_since = {of: self._waits_since.get(of, now) for of in late}
        for of, since in self._waits_since.items():
            if now - since > LATE_S:
                world.violate(f"AR {' '.join(of)} has had no row for {now - since:.0f} s, and its job has room")

    def end(self) -> None:
        """Long after the faults everything that arrived has its row."""
        for of in self._missing():
            verdict = f"AR {' '.join(of)} has arrived, and has no row"
            if self._forgotten(of):
                self.world.judge.excuse(ACKNOWLEDGED_FORGOTTEN, verdict)
            else:
                self.world.violate(verdict)
