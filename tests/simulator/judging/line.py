"""OR: a run that waits for a pool is not passed by one behind it. FS: no slot stays free while a run waits for it.

Once the faults are over and all nodes have known each other for a while, both hold for every run. Before that, a run
may be passed: by what a node that does not know the line yet claims, by a claim that had no answer, by a run whose
bound to let others go first is over. That is counted, and has a budget (excuses.py). So is a run that a node passes
which leaves it to others because its runs fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordd.core.ledger.steps import HOLDING
from coordd.core.ledger.words import PENDING, RETRY
from simulator.judging.excuses import PASSED
from simulator.judging.records import KNOWN_S
from simulator.policies import LINE, POOL
from simulator.terms import CHAOS_S

if TYPE_CHECKING:
    from coordd.core.jobs.job import Job
    from coordd.core.ledger.rows import Row
    from simulator.world import Host, World

# The policy of a run that has a slot, or has asked for one, says so.
SLOT = f"slots:pool/{POOL}="

# After the faults have ended, all nodes know each other and all that waits within this time (seconds).
CALM_FROM_S = CHAOS_S + KNOWN_S

# Within this time (seconds) every node's sweep has met a run that waits, and the run has asked for its slot.
MET_S = 8.0

# All nodes have heard of an attempt that was lost within this time (seconds).
HEARD_S = 2.0

# A free slot is given to a run that waits, within this time (seconds). How often that is looked at.
FREE_S = 12.0
LOOK_S = 1.0


class Line:
    """The pool of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._waits_since: dict[str, float] = {}
        self._known: set[str] = set()  # runs that had a row once
        self._dated_again: set[str] = set()  # of these: a claim wrote the row again, which was forgotten
        self._free_since = float("inf")  # since when a slot was free and a run waited for it
        self.longest_free_s = 0.0
        if LINE in world.plan.kinds:
            world.at(CALM_FROM_S, self._look)

    def operation(self, before: Row | None, row: Row | None) -> None:
        """A row was written, or not."""
        if row is None or LINE not in self.world.plan.kinds:
            return
        if before is None and row.run in self._known:
            self._dated_again.add(row.run)
        self._known.add(row.run)
        if row.state not in (PENDING, RETRY):
            self._waits_since.pop(row.run, None)
        elif before is None or (before.state, before.attempt, before.fire_at) != (row.state, row.attempt, row.fire_at):
            self._waits_since[row.run] = self.world.now  # a clock that was ahead has dated it, and it is dated again

    def granted(self, host: Host, before: Row | None, row: Row) -> None:
        """OR: none of those that wait goes before this one."""
        job = self._in_line(row)
        if job is None or (before is not None and before.state in HOLDING):
            return  # it had its slot already: its lease had lapsed
        if before is not None and before.attempt and self._waits_s(before) < HEARD_S:
            return  # the same, and somebody else has just said that it is lost
        dated = before is not None and before.fire_at > self.world.server.wall() - HEARD_S
        if dated or (before is None and row.run in self._dated_again):
            return  # it has just got this date, and the others know it by another one
        mine = self._order(job, row)
        for other in self._waiting():
            known = self._in_line(other)
            if other.run == row.run or known is None or self._order(known, other) > mine:
                continue
            if self._waits_s(other) < MET_S or known.overlap != "allow" or not self._may_take(host, known, other):
                continue
            verdict = f"OR {host.name} was granted {row.run}, and {other.run} waits before it"
            if self._calm(self._waits_s(other)) and not self._leaves_it_to_others(host):
                self.world.violate(verdict)
            self.world.judge.excuse(PASSED, verdict)

    def _look(self) -> None:
        """FS: is a slot free, and does a run wait that somebody can take?"""
        world = self.world
        world.at(LOOK_S, self._look)
        taken = [row for row in world.server.open_rows() if row.state in HOLDING and SLOT in row.policy]
        waits = [row for row in self._waiting() if self._can_be_taken(row)]
        size = next((job.pool_size for job in world.jobs.values() if job.pool == POOL), 0)
        if len(taken) >= size or not waits:
            self._free_since = float("inf")
            return
        self._free_since = min(self._free_since, world.now)
        free_s = world.now - self._free_since
        self.longest_free_s = max(self.longest_free_s, free_s)
        if free_s > FREE_S and self._calm(free_s):
            world.violate(
                f"FS {len(taken)} of {size} run for {free_s:.1f} s, and {', '.join(w.run for w in waits)} wait"
            )

    def _waiting(self) -> list[Row]:
        world = self.world
        rows = [row for row in world.server.open_rows() if row.state in (PENDING, RETRY) and self._in_line(row)]
        return [row for row in rows if row.not_before <= world.server.wall() and not world.server.suspended(row.job)]

    def _in_line(self, row: Row) -> Job | None:
        """Its definition, if that is in the pool, and no other limit holds its runs back."""
        job = self.world.known_jobs.get(row.digest)
        if job is None or job.pool != POOL:
            return None
        return job if job.rate is None and job.concurrency is None else None

    def _order(self, job: Job, row: Row) -> tuple[float, float, float, str]:
        return -job.priority, -self.world.plan.scores.get(row.job, 0.0), row.fire_at, row.run

    def _waits_s(self, row: Row) -> float:
        """How long it has waited and been due."""
        server = self.world.server
        due_s = (server.wall() - row.not_before) / server.rate
        return min(due_s, self.world.now - self._waits_since.get(row.run, self.world.now))

    def _may_take(self, host: Host, job: Job, row: Row) -> bool:
        daemon = host.daemon
        return (
            daemon is not None
            and not daemon.paused
            and daemon.began_at < self.world.now - MET_S
            and daemon.node.ctx.state == "ready"
            and host.jobs.get(row.job) is job
            and set(job.tags) <= set(self.world.plan.tags[host.index])
            and not any(runner.launch.run == row.run for runner in host.runners)
        )

    @staticmethod
    def _leaves_it_to_others(host: Host) -> bool:
        """True if runs fail on this node that succeed elsewhere: it lets the one before go first for a few seconds, and
        a slot may become free in the very instant in which it asks then.
        """
        return host.daemon is not None and bool(host.daemon.node.ctx.aside)

    def _can_be_taken(self, row: Row) -> bool:
        job = self._in_line(row)
        if job is None or job.overlap != "allow" or self._waits_s(row) < 1.0:
            return False
        budget = {host.index: sum(runner.alive for runner in host.runners) for host in self.world.hosts}
        rooms = self.world.rooms
        return any(
            self._may_take(host, job, row) and budget[host.index] < rooms.present(host) for host in self.world.hosts
        )

    def _calm(self, waits_s: float) -> bool:
        """True if all nodes had known each other, and the ledger, for a while before it began to wait."""
        setbacks = self.world.server.setbacks
        since = max(CALM_FROM_S, setbacks[-1].opens_at + KNOWN_S if setbacks else 0.0)
        return self.world.now - waits_s > since
