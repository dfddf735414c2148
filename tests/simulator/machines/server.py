"""The ledger across a network: calls get lost, its clock steps, and its store goes back (it loses its last writes).

The ledger of a single machine forgets nothing, and its leases end when the machine boots again. The ledger of a cluster
may lose its last writes, as Redis does in a failover, in a restart from an old snapshot, or in a flush. The ledger
knows that it lost writes, and begins a quarantine. The quarantine lasts a whole lease plus the maximum lag of a
replica. It begins at the first operation that finds the loss, is counted on the ledger's own clock, and is the same
for all callers.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from support.ledger_calls import run_of
from support.memory import MemoryLedger

from coordd.core.groups.expand import rows_of
from coordd.core.ledger.requests import Activate, Adopt, Claim, ListOpen, Prune, Vouch
from coordd.core.ledger.rows import JobRow, LedgerTime, Row
from coordd.core.ledger.runner_requests import Request, Restore
from coordd.core.ledger.standing import LATE_S
from coordd.core.ledger.words import GRANTED, OK, TERMINAL
from coordd.errors import ForeignLedgerError
from coordd.history.replay.store import MemoryStore
from simulator.judging.records import LEDGER
from simulator.machines.scripts import ScriptedLedger
from simulator.plan import FAILOVER, RESTART
from simulator.terms import LAG_S, LEASE, LEDGER_TIMEOUT, OLD_S, RENEW, WALL

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from simulator.world import Host, World


# Maximum number of replies to one question that are lost one after the other. More lost replies would cut a runner off
# from the ledger. That is another fault, with its own name.
LOST_IN_A_ROW = 2
LOST_REPLIES = 0.1

# The part of the restarts that lose nothing.
NOTHING_LOST = 0.4


@dataclass(slots=True)
class Setback:
    """One event in which the ledger went back: it lost its last writes."""

    kept_to: float  # the ledger forgot the writes after this time; 0.0: all writes
    at: float
    kind: str
    opens_at: float = float("inf")  # the end of its quarantine, known from the first operation after it
    early_at: float = float("inf")  # when that ended early
    shortened: bool = False  # the ledger's clock was set forward in the quarantine
    runs: frozenset[str] = frozenset()  # runs that have no row any more
    jobs: frozenset[str] = frozenset()  # jobs that have no row any more


class Server:
    """The one ledger of a world."""

    def __init__(self, world: World, rate: float, redis_url: str = "") -> None:
        self.world = world
        self.rate = rate
        self.step = 0.0
        self.lowest = 0.0  # the least that step ever was
        # job -> the least that step was at a sweep of it before its first grant, while the clock was behind the instant
        # that it had shown when the job's schedule began to count
        self.set_back: dict[str, float] = {}
        self.far = 0.0  # sum (seconds) of the far steps that healing takes back
        self.glitch_s = 0.0  # how far (seconds) it is ahead for a moment
        self.ahead_s = 0.0  # sum of all steps back (seconds): its rows may be dated that far ahead
        self.boots = 1
        self.booted_at = 0.0
        self.down_until = 0.0
        self.address = "here"
        self.answers: Counter[str] = Counter()
        self.known_from = 0.0  # when it first heard of the jobs, by its own wall clock
        self.known_again: dict[str, float] = {}  # job -> when the ledger heard of it again, after it had forgotten it
        self._forgotten: set[str] = set()  # jobs that it has not heard of again yet
        self.setbacks: list[Setback] = []
        self._history: deque[tuple[float, MemoryStore]] = deque()
        self.open_at = 0.0  # the end of the quarantine, by the ledger's clock
        self.quarantines = 0
        self._unanswered: Counter[tuple[str, str]] = Counter()  # (operation, run) -> replies lost, one after the other
        self.unanswered: Counter[str] = Counter()  # run -> replies lost
        self.asked_at: dict[int, float] = {}  # id of a runner's request, which that keeps -> when it was executed
        # (machine, run, attempt) -> since when the machine claims that attempt and got no answer except grants
        self.claiming: dict[tuple[int, str, int], float] = {}
        self.caller = ""  # name of the host whose operation is being executed
        self._new_epoch = False
        self.scripts: ScriptedLedger | None = None
        if redis_url and world.plan.scripted:
            self.scripts = ScriptedLedger(redis_url, self.time)
        self.ledger: Any = self.scripts or MemoryLedger(clock=self.time)

    # ---- its rows; a row that is stored in memory is never changed, so a copy is not needed

    def row(self, run: str) -> Row | None:
        """One run's row."""
        row: Row | None = self.scripts.run(run) if self.scripts else self.ledger._store.runs.get(run)
        return row

    def first_row(self, run: str, job: Job | None) -> Row | None:
        """The row of a run of that job; of a group, that of its first member."""
        return self.row(next(rows_of(job.expand if job is not None else None, run))) or self.row(run)

    def job(self, name: str) -> JobRow | None:
        """One job's row."""
        row: JobRow | None = (
            self.scripts.job(name) if self.scripts else self.ledger._rules._known(self.ledger._store, name)
        )
        return row

    def open_rows(self) -> list[Row]:
        """The rows of the runs that are not over."""
        if self.scripts:
            return [row for row in self.scripts.runs(limit=100_000) if row.state not in TERMINAL]
        return list(self.ledger._store.open.values())

    def runs(self) -> set[str]:
        """The runs of which there is a row."""
        return {row.run for row in self.ledger.runs(limit=100_000)}

    # ---- time

    def time(self) -> LedgerTime:
        wall = self.wall()
        if self.world.plan.production:
            return LedgerTime(
                wall,
                wall,
                recovering_s=self.whole_s(wall),
                epoch=str(self.quarantines),
                replicated=bool(self.setbacks) and self.setbacks[-1].kind == FAILOVER,
            )
        return LedgerTime(wall, (self.world.now - self.booted_at) * self.rate, f"boot {self.boots}")

    def wall(self) -> float:
        return WALL + self.world.now * self.rate + self.step

    def began(self, row: Row) -> float:
        """When the world began, by its clock as it is now, for the fire time of a row that is opened now.

        If its clock was behind for a while, it moved the start of its jobs back then (``Standing._swept_job``). When
        its clock is right again, it opens what is due after that start and not later than LATE_S. Until its clock
        comes to the instant that it had shown when the job's schedule began to count, it opens what is later, too: for
        the ledger that time has just passed. That holds only for a job of which nothing was granted before that sweep.
        """
        wall = self.wall()
        least = self.step
        if wall - max(row.not_before, row.due_at) <= LATE_S:
            least = self.lowest
        elif wall < self.world.judge.counts_from.get(row.job, 0.0):
            least = min(least, self.set_back.get(row.job, least))
        return WALL + least

    def _sweeps(self, job: str) -> None:
        wall, judge = self.wall(), self.world.judge
        if self.recovering_s(wall) <= 0 and job not in judge.last_token and wall < judge.counts_from.get(job, 0.0):
            self.set_back[job] = min(self.step, self.set_back.get(job, self.step))

    def whole_s(self, wall: float) -> float:
        """The rest of the whole quarantine (seconds), also if it has ended early."""
        return max(0.0, self.open_at - wall)

    def recovering_s(self, wall: float) -> float:
        """The rest of the quarantine (seconds)."""
        return 0.0 if self.setbacks and self.world.now >= self.setbacks[-1].early_at else self.whole_s(wall)

    def _look_for_early_end(self, answer: Any) -> None:
        """A node has vouched, and the ledger has said that its quarantine is over."""
        if answer.word == OK and self.whole_s(self.wall()) > 0 and self.setbacks[-1].early_at == float("inf"):
            self.setbacks[-1].early_at = self.world.now
            self.world.fault_log["early_end"] += 1
            self.world.say("the quarantine has ended early: no grant is lost")

    def begin_quarantine(self) -> None:
        """Begin the quarantine: an operation has found that the ledger went back."""
        self.quarantines += 1
        self.open_at = self.wall() + LEASE + LAG_S

    def _found(self) -> None:
        self._new_epoch = False
        for setback in self.setbacks:
            setback.opens_at = min(setback.opens_at, self.world.now + (LEASE + LAG_S) / self.rate)
        self.world.records.befell(LEDGER, "quarantine", self.world.now, LEASE + LAG_S + RENEW)
        self.world.say(f"the ledger is in quarantine for {LEASE + LAG_S:.0f} s")
        self.begin_quarantine()

    def suspended(self, job: str) -> bool:
        """True if no run of that job may be granted now."""
        row = self.job(job)
        return (row is not None and bool(row.suspended)) or self.world.holds.all_stand

    # ---- calls

    def ask(self, host: Host, request: Request[Any], answered: Callable[[Any], None]) -> None:
        """Send one call. The request may be lost (it is not executed), or the answer may be lost (it was executed)."""
        world = self.world
        state = [False]
        claimed = (host.index, request.of.run, request.attempt) if isinstance(request, Claim) else None
        if claimed is not None:
            self.claiming.setdefault(claimed, world.now)

        def finish(answer: Any) -> None:
            if not state[0]:
                state[0] = True
                if claimed is not None and answer is not None and answer.word != GRANTED:
                    self.claiming.pop(claimed, None)
                answered(answer)

        world.at(LEDGER_TIMEOUT / host.rate, finish, None)
        if self._hears(host):
            world.at(world.rng.uniform(0.0005, 0.02), self._execute, host, request, finish)

    def reaches(self, host: Host) -> bool:
        """True if that machine's calls reach the ledger, and the answers reach the machine."""
        return self._hears(host) and self.world.now >= host.ledger_deaf

    def _hears(self, host: Host) -> bool:
        return self.world.now >= host.ledger_cut and self.world.now >= self.down_until

    def _execute(self, host: Host, request: Request[Any], finish: Callable[[Any], None]) -> None:
        if not self._hears(host):
            return
        world = self.world
        self.caller = host.name
        if self._new_epoch:
            self._found()
        op, run = request.op, run_of(request)
        there = self.runs() if isinstance(request, Prune) else set()
        if not self.scripts:
            self.ledger.known = host.known
        try:
            before, answer, after = self._step(request, run)
        except AssertionError as exc:
            world.violate(f"S5 {exc}")
        except ForeignLedgerError:
            world.fault_log["foreign_ledger"] += 1
            return
        if isinstance(request, Vouch):
            self._look_for_early_end(answer)
        if world.plan.forgets and not self.scripts:
            self._history.append((world.now, self.ledger.snapshot()))
        if world.trace is not None and (op not in ("open", "renew") or answer.word != OK):
            said = f" {request.attempt} {request.state}" if isinstance(request, Restore) else ""
            subject = run or getattr(request, request.wire[0], "")
            world.say(f"{host.name} {op} {subject}{said} -> {answer!r}")
        if not self.known_from:
            self.known_from = self.wall()
        for job in [job for job in self._forgotten if self.job(job) is not None]:
            self._forgotten.discard(job)
            self.known_again[job] = self.wall()
        world.judge.fires.operation(request, before, after)
        if isinstance(request, Prune):
            world.judge.fires.forget()
            world.judge.pruned(there - self.runs(), self.wall() - request.keep_s)
        else:
            self.answers[answer.word] += 1
        for job in request.jobs if isinstance(request, ListOpen) else ():
            self._sweeps(job)
        if isinstance(request, Activate) and answer.word == OK:
            world.judge.activated(request.job, request.schedule, request.how, answer.token)
        if isinstance(request, Adopt) and answer.word == OK:
            world.publishing.adopted(request, host)
        if run:
            self.asked_at[id(request)] = world.now
            world.judge.operation(request, answer, before, after)
        for watch in world.watches:
            watch.operation(host, request, answer, before, after)
        if world.now < host.ledger_deaf:
            return
        if "lost_reply" in world.rough and world.rng.random() < LOST_REPLIES:
            self._unanswered[op, run] += 1
            if self._unanswered[op, run] <= LOST_IN_A_ROW:
                world.fault_log["lost_reply"] += 1
                self.unanswered[run] += 1
                return
        self._unanswered[op, run] = 0
        world.at(world.rng.uniform(0.0005, 0.02), finish, answer)

    def _step(self, request: Request[Any], run: str) -> tuple[Row | None, Any, Row | None]:
        """Execute one operation. Returns the run's row before it, the answer, and the run's row after it."""
        if self.scripts:
            return self.scripts.step(request, run, self.world.now)
        before = self.row(run) if run else None
        return before, self.ledger.ask(request), self.row(run) if run else None

    # ---- faults

    def away(self, seconds: float) -> None:
        """Nobody reaches the ledger for that time (seconds)."""
        self.down_until = max(self.down_until, self.world.now + seconds)
        self.world.records.befell(LEDGER, "ledger_down", self.world.now, seconds)

    def steps(self, seconds: float, *, far: bool = False) -> None:
        """Step the ledger's wall clock. Healing the world takes back the steps that were ``far``."""
        if not seconds:
            return
        if far:
            self.far += seconds
        now = self.world.now
        for setback in self.setbacks:
            if now < setback.opens_at < float("inf"):
                setback.opens_at = max(now, setback.opens_at - seconds / self.rate)
                setback.shortened = setback.shortened or seconds > 0
        self.step += seconds
        self.lowest = min(self.lowest, self.step)
        self.ahead_s += max(0.0, -seconds)
        self.world.records.befell(LEDGER, "ledger_step", now)

    def reboots(self) -> None:
        """The only machine restarts, so all holders of leases are dead."""
        self.boots += 1
        self.booted_at = self.world.now

    def goes_back(self, kind: str, seconds: float) -> None:
        """Nobody reaches the ledger for that time (seconds). When it is back, it has lost its last writes."""
        world = self.world
        self.away(seconds)
        lost_s = world.rng.uniform(0.0, LAG_S if kind in (FAILOVER, RESTART) else OLD_S)
        if kind == RESTART and lost_s < NOTHING_LOST * LAG_S:
            lost_s = 0.0
        kept_to = 0.0 if kind == "flush" else max(0.0, world.now - lost_s)
        runs, jobs = self.runs(), {job for job in world.plan.jobs if self.job(job) is not None}
        if self.scripts:
            self.scripts.goes_back(kept_to, replicated=kind == FAILOVER)
        else:
            while self._history and self._history[-1][0] > kept_to:
                self._history.pop()
            self.ledger.restore(self._history[-1][1] if self._history else MemoryStore())
        jobs = {job for job in jobs if self.job(job) is None}
        self.setbacks.append(
            Setback(kept_to, world.now, kind, runs=frozenset(runs - self.runs()), jobs=frozenset(jobs))
        )
        for job in jobs:
            self.known_again.pop(job, None)
            self.set_back.pop(job, None)
        self._forgotten |= jobs
        world.judge.went_back()
        world.judge.fires.forget()
        world.say(f"the ledger has forgotten what was written after {kept_to:.3f}")
        self._new_epoch = True


class Elsewhere(Server):
    """Another ledger, which some nodes ask at their first start. It may never grant a run."""

    def __init__(self, world: World, rate: float) -> None:
        super().__init__(world, rate)
        self.address = "elsewhere"

    def _execute(self, host: Host, request: Request[Any], finish: Callable[[Any], None]) -> None:
        if not self._hears(host):
            return
        world = self.world
        self.ledger.known = host.known
        answer = self.ledger.ask(request)
        if answer.word == GRANTED:
            world.violate(f"B {run_of(request)} was granted to {host.name} by a ledger that most nodes do not use")
        world.say(f"{host.name} {request.op} elsewhere -> {answer!r}")
        world.at(world.rng.uniform(0.0005, 0.02), finish, answer)
