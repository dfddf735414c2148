"""`publish`: a message of another process becomes a run of its publisher's job."""

from __future__ import annotations

import json
import secrets
from typing import Any

from coordd.config.hooks.publisher import PIECES, PUBLISH, read_expires
from coordd.core.jobs.arguments import VALUE_BYTES_MAX, nearest, packed
from coordd.core.jobs.job import IDENT, Job, triggered_run
from coordd.core.jobs.limits import claimed_policy
from coordd.core.jobs.schedule import parse_duration
from coordd.core.ledger.runner_requests import Registration
from coordd.errors import RefusedError
from coordd.services.driver import Driver

# Messages of one destination that may wait, as this node knows; further ones are refused, so their senders know.
BACKLOG_MAX = 10_000

# Bytes of a message, with what JSON makes of it.
BODY_BYTES_MAX = 24 * 1024


def publisher(driver: Driver, name: str) -> Job:
    """The job of a destination. Raises RefusedError."""
    jobs = driver.node.jobs
    if job := jobs.get(PUBLISH + name):
        return job
    known = [one.removeprefix(PUBLISH) for one in jobs if one.startswith(PUBLISH)]
    shown = name[:60].encode("unicode_escape").decode()
    raise RefusedError(
        f"there is no [publish.{shown}] in coordd.toml of this node", kind="unknown_address", hint=nearest(shown, known)
    )


async def publish(driver: Driver, job: Job, body: Any, *, ident: str, expires: str, by: str) -> dict[str, Any]:
    """Record a message; answers where. ``body``: a text is sent as it is, everything else as JSON. Raises
    RefusedError.
    """
    try:
        expires_s = parse_duration(read_expires(expires)) if expires else 0.0
    except ValueError as exc:
        raise RefusedError(f"expires: {exc}", kind="invalid_params") from exc
    if ident and not IDENT.fullmatch(ident):
        raise RefusedError(f"the id {ident[:40]!r} must be 1 to 128 of A-Z a-z 0-9 . _ : + -", kind="invalid_params")
    kind = "text/plain" if isinstance(body, str) else "application/json"
    text = body if isinstance(body, str) else json.dumps(body)
    told = json.dumps({"body": text, "kind": kind, "expires_s": expires_s})  # ASCII: it can be cut anywhere
    if len(told) > BODY_BYTES_MAX:
        raise RefusedError(
            f"the message is {len(told)} bytes long as JSON; at most {BODY_BYTES_MAX} are accepted",
            kind="too_large",
            hint="send where the data is, not the data",
        )
    if (behind := sum(one.action.job == job.name for one in driver.node.pursuits.pursuits.values())) >= BACKLOG_MAX:
        raise RefusedError(
            f"{behind} messages of this destination wait: at most {BACKLOG_MAX} may",
            kind="try_later",
            hint="coordctl message list; docs/runbook.md: a message was not delivered",
        )
    pieces = [told[at : at + VALUE_BYTES_MAX] for at in range(0, len(told), VALUE_BYTES_MAX)]
    args = packed(dict(zip(PIECES, pieces, strict=False)))
    of = Registration(
        triggered_run(job.name, ident or secrets.token_hex(8)),
        job.name,
        job.digest,
        claimed_policy(job, args, driver.node.hostname, driver.node.concurrency),
        driver.now().wall,
        scheduled=False,
        args=args,
        by=by,
    )
    reply = await driver.trigger(of)
    if reply.kind:
        raise RefusedError(reply.message, kind=reply.kind)
    return {"id": of.run, "durable": reply.result["durable"]}
