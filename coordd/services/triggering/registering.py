"""Registers the run of an arrival."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from coordd.core.jobs.job import Job
from coordd.core.jobs.limits import claimed_policy
from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.breaker.text import CLOSED, OPEN
from coordd.core.ledger.rows import Hold, LedgerTime
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Reply
from coordd.core.triggers.arrivals import Arrival, args_of
from coordd.core.triggers.duplicates import run_of_arrival
from coordd.core.visible import visible
from coordd.services.breakers.view import of_jobs
from coordd.services.driver import Driver

log = structlog.get_logger("triggers")

# The word for a job whose breaker stops its runs.
HELD_BY_BREAKER = "held by its breaker"

# A run is judged by the ledger's clock, which this node knows about; so it waits for a breaker this much longer
# (seconds).
MARGIN_S = 1.0


async def register(driver: Driver, job: Job, trigger: Trigger, arrival: Arrival) -> Reply:
    """Register the run, and wait until it is recorded. Raises RefusedError for values that no argument may have."""
    node = driver.node
    args = args_of(job, trigger, arrival)
    of = Registration(
        run_of_arrival(job, trigger, arrival),
        job.name,
        job.digest,
        claimed_policy(job, args, node.hostname, node.concurrency),
        driver.now().wall,
        scheduled=False,
        args=args,
        by=f"trigger {trigger.name}",
    )
    reply = told_of(job, of.run, await driver.trigger(of))
    if reply.result.get("duplicate"):
        log.warning("trigger.duplicate", trigger=trigger.name, run=of.run, about=visible(arrival.shown))
    elif not reply.kind:
        log.info("trigger.taken", trigger=trigger.name, run=of.run, about=visible(arrival.shown))
    elif reply.kind != "conflict":
        log.warning("trigger.not_registered", trigger=trigger.name, run=of.run, reason=reply.message)
    return reply


def told_of(job: Job, run: str, reply: Reply) -> Reply:
    """What the caller is told if the job has `dedupe` and its run is there already."""
    there = reply.kind == "conflict" or (not reply.kind and reply.result.get("exists"))
    if job.dedupe is None or not there:
        return reply
    if job.dedupe.then == "refuse":
        return reply._replace(kind="conflict", message=f"{run} was triggered before with the same key")
    return reply._replace(
        result={"id": run, "durable": "ledger", **reply.result, "duplicate": True}, kind="", message=""
    )


def may_start(driver: Driver, job: Job) -> str:
    """Why arrivals wait: the word for its state; "" if they do not."""
    drains = driver.node.drains
    if not job.enabled:
        return "held"
    if drains.pause is not None or job.name in drains.suspended:
        return "suspended"
    return HELD_BY_BREAKER if breaker_lets(driver, job) == 0 else ""


def breaker_lets(driver: Driver, job: Job, holds: Mapping[str, Hold] | None = None) -> int | None:
    """How many open runs its breaker lets the job have: none, the one that tries, or any number (None). ``holds``:
    newer ones than this node's.

    A run that is registered while it is open would be rejected, and its arrival would be consumed.
    """
    if job.breaker is None:
        return None
    now = driver.now()
    wall = now.wall - driver.node.skew_s(now)
    one = of_jobs({job.name: job}, driver.node.drains.holds if holds is None else holds)[job.name]
    if one.isolated is not None and not one.isolated.has_ended(LedgerTime(wall, 0.0)):
        return 0
    if not one.enforces or one.kept.state == CLOSED:
        return None
    return 0 if one.kept.state == OPEN and wall < one.kept.retry_at + MARGIN_S else 1
