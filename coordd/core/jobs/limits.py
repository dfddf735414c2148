"""The policy of a run with its limits, as a claim carries them (core/ledger/limits/text.py has the format)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

from coordd.core.jobs.arguments import fill, unpacked
from coordd.core.jobs.job import Breaker, Job
from coordd.core.ledger.breaker.text import Rule
from coordd.core.ledger.limits.text import POOL
from coordd.core.ledger.words import JITTER, QUEUE, QUEUE_MAX, RATE, SLOTS, Policy
from coordd.errors import RefusedError

# No job has a strategy.
NOTHING: Mapping[str, int] = MappingProxyType({})


def claimed_policy(job: Job, args: str, node: str, present: Mapping[str, int] = NOTHING) -> Policy:
    """The policy of one run; a rate overrides the concurrency.

    ``args``: its arguments in JSON; ``node``: who claims it; ``present``: what a strategy there says of a job now.
    """
    policy = job.policy()
    items = []
    if job.pool:
        items.append(f"{SLOTS}{POOL}{job.pool}={job.pool_size}")
    if job.rate is not None:
        for rate, key in ((job.rate.cluster, f"job/{job.name}"), (job.rate.per_node, f"node/{node}/{job.name}")):
            if rate is not None:
                items.append(f"{RATE}{key}={rate.count}/{rate.period_s}")
    elif job.concurrency is not None:
        token = f"/{_token(job, args)}" if job.concurrency.per else ""
        items.append(f"{SLOTS}job/{job.name}{token}={present.get(job.name, job.concurrency.max)}")
    if (job.queue_max, job.queue_keep) != (QUEUE_MAX, "first"):
        items.append(f"{QUEUE}{job.queue_max}/{job.queue_keep}")
    if job.retry.jitter > 0 and job.retry.attempts > 1:
        items.append(f"{JITTER}{round(1000 * job.retry.jitter)}")
    if job.breaker is not None:
        items.append(_breaker(job.breaker))
    policy.limits = ",".join(items)
    return policy


# How the slots of a job's concurrency are called, before its name.
JOB_SLOTS = "job "


def slots_named(by: str, job: str) -> str:
    """The slots that an answer names: those of a pool, or of a job's concurrency; "" if it names none."""
    kind = by.partition(":")[0]
    if kind.startswith("pool "):
        return kind
    return f"{JOB_SLOTS}{job}" if kind == "concurrency" else ""


def _breaker(said: Breaker) -> str:
    window, open_for, longest = (round(1000 * s) for s in (said.window_s, said.open_for_s, said.open_for_max_s))
    return Rule(said.groups, window, open_for, longest, said.growth, said.when_open, said.enforce).item()


def _token(job: Job, args: str) -> str:
    """The digest of the filled template: any text may come out of it."""
    assert job.concurrency is not None
    try:
        text = fill(job.concurrency.per, {**job.params, **unpacked(args)})
    except RefusedError:
        text = args  # such a run is refused before its launch; until then it has a slot of its own
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
