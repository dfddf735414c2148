"""Registers the run of an arrival."""

from __future__ import annotations

import structlog

from coordd.core.jobs.job import Job
from coordd.core.jobs.limits import claimed_policy
from coordd.core.jobs.trigger import Trigger
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ready import Reply
from coordd.core.triggers.arrivals import Arrival, args_of, run_of
from coordd.core.visible import visible
from coordd.services.driver import Driver

log = structlog.get_logger("triggers")


async def register(driver: Driver, job: Job, trigger: Trigger, arrival: Arrival) -> Reply:
    """Register the run, and wait until it is recorded. Raises RefusedError for values that no argument may have."""
    node = driver.node
    args = args_of(job, trigger, arrival)
    of = Registration(
        run_of(job.name, trigger.name, arrival.key),
        job.name,
        job.digest,
        claimed_policy(job, args, node.hostname, node.concurrency),
        driver.now().wall,
        scheduled=False,
        args=args,
        by=f"trigger {trigger.name}",
    )
    reply = await driver.trigger(of)
    if not reply.kind:
        log.info("trigger.taken", trigger=trigger.name, run=of.run, about=visible(arrival.shown))
    elif reply.kind != "conflict":
        log.warning("trigger.not_registered", trigger=trigger.name, run=of.run, reason=reply.message)
    return reply


def may_start(driver: Driver, job: Job) -> str:
    """Why arrivals wait: the word for its state; "" if they do not."""
    drains = driver.node.drains
    if not job.enabled:
        return "held"
    return "suspended" if drains.pause is not None or job.name in drains.suspended else ""
