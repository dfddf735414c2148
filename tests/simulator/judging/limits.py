"""Y: never are more programs alive than a pool or a job's concurrency allows, nor more attempts granted than a rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from coordd.core.jobs.job import Job, Rate
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.words import PENDING, RETRY, SLOTS, UNKNOWN, Policy
from simulator.judging.excuses import RATE_AHEAD

if TYPE_CHECKING:
    from coordd.core.ledger.rows import Row
    from simulator.judging.judge import Child, Judge
    from simulator.world import World


def judge_launch(judge: Judge, child: Child, job: Job) -> None:
    """Check the programs that live when that one starts. Each counts by the definition that it executes."""
    others = [other for other in judge.live.values() if other.run != child.run and other.job is not None]
    if job.pool:
        _crowd(judge, child, [o for o in others if o.job and o.job.pool == job.pool], job.pool_size, f"pool {job.pool}")
    if job.concurrency is not None and job.rate is None:
        mine = _slots(judge, child)
        beside = [o for o in others if _slots(judge, o) & mine]
        _crowd(judge, child, beside, job.concurrency.max, f"concurrency of {job.name}")


def _slots(judge: Judge, child: Child) -> set[str]:
    """The slots of its job's concurrency that an attempt takes, by the definition that its row had at the grant."""
    items = Policy.unpack(judge.grants[child.key].policy).limits.split(",")
    return {item.rpartition("=")[0] for item in items if item.startswith(f"{SLOTS}job/")}


def _crowd(judge: Judge, child: Child, others: list[Child], size: int, what: str) -> None:
    if len(others) < size:
        return
    verdict = f"Y {child.run} starts beside {', '.join(o.run for o in others)}, and the {what} is {size}"
    judge.lives_on(_excused_first(judge, others), others, verdict)


def _excused_first(judge: Judge, others: Iterable[Child]) -> Child:
    """The program that lives on for a known reason, if there is one."""
    frozen = judge.world.records.frozen_over

    def lives_on(other: Child) -> bool:
        lent = judge.grants[other.key].lent_until
        return other.key in judge.resolved or (other.fences and frozen(other.node, lent, judge.world.now))

    return max(others, key=lives_on)


def slots_of(world: World, row: Row) -> dict[str, int]:
    """The keys whose slots a run takes, and how many there are of each. The limits come with a claim: a run that let
    others go first has none yet.
    """
    job = world.known_jobs.get(row.digest)
    limits = claimed_policy(job, row.args, "").limits if job is not None else Policy.unpack(row.policy).limits
    items = [item.rpartition("=") for item in limits.split(",") if item.startswith("slots:")]
    return {key: int(size) for key, _, size in items}


def taken_for_good(world: World) -> set[str]:
    """The keys of slots that a run with an unknown end takes until a person resolves it."""
    rows = world.ledger.runs(limit=100_000)
    return {key for row in rows if row.state == UNKNOWN for key in slots_of(world, row)}


def waits_for_good(world: World, row: Row, taken: set[str]) -> bool:
    """True if it waits for such slots, ``taken``."""
    return row.state in (PENDING, RETRY) and bool(taken & slots_of(world, row).keys())


class Starts:
    """The grants that count in the rates of each job, by the ledger's clock, which may step, and by true time."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, tuple[float, float]]] = {}

    def granted(self, judge: Judge, attempt: str, job: Job, at: float, node: int) -> None:
        """An attempt was granted; ``at``: the ledger's time, or its fire time if that is later. An attempt that was
        never launched, and is granted once more, counts once.
        """
        if job.rate is not None:
            for rate, of in ((job.rate.cluster, job.name), (job.rate.per_node, f"{job.name} on n{node}")):
                if rate is not None:
                    self._counts(judge, attempt, rate, of, at)

    def _counts(self, judge: Judge, attempt: str, rate: Rate, of: str, at: float) -> None:
        starts = self._of.setdefault(of, {})
        since, here = at - rate.period_s, judge.world.now
        within = [
            told
            for other, (told, when) in starts.items()
            if other != attempt and told > since and when > here - rate.period_s
        ]
        starts[attempt] = at, here
        if len(within) < rate.count or judge.world.server.setbacks:
            return
        verdict = f"Y {attempt} is start {len(within) + 1} of {of} within {rate.period_s} s, and {rate.count} may be"
        if max(within) > at:
            judge.excuse(RATE_AHEAD, verdict)
        else:
            judge.world.violate(verdict)
