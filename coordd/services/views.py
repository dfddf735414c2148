"""What people are shown: rows, members and elections as plain objects with the contract's field names. Pure."""

from __future__ import annotations

import json
from typing import Any

from coordd.core.breaker import Breaker
from coordd.core.context import Context
from coordd.core.election import Election
from coordd.core.job import Command, Job, iso
from coordd.core.membership import ALIVE, LOST, SUSPECT
from coordd.core.rows import AttemptRow, Row
from coordd.core.schedule import next_fire

REDACTED = "(hidden)"


def instant(at: float) -> str | None:
    """Unix seconds for people; None where nothing happened yet."""
    return iso(round(at, 3)) if at else None


def run_view(row: Row, *, redacted: bool) -> dict[str, Any]:
    """One run, as `run.list` and `run.show` tell it."""
    runtime_s = None
    if row.started_at and row.ended_at:
        runtime_s = round(row.ended_at - row.started_at, 3)
    return {
        "id": row.run,
        "job": row.job,
        "fire_time": instant(row.fire_at),
        "state": row.state,
        "attempt": row.attempt,
        "node": row.node or None,
        "token": row.token or None,
        "application_id": row.application_id or None,
        "exit_code": row.exit_code,
        "received_at": instant(row.received_at),
        "started_at": instant(row.started_at),
        "ended_at": instant(row.ended_at),
        "runtime_s": runtime_s,
        "reason": row.reason or None,
        "args": REDACTED if redacted else json.loads(row.args or "{}"),
        "by": row.by or ("schedule" if row.scheduled else None),
    }


def attempt_view(row: AttemptRow) -> dict[str, Any]:
    """One attempt of a run."""
    return {
        "attempt": row.attempt,
        "state": row.state,
        "node": row.node or None,
        "token": row.token,
        "application_id": row.application_id or None,
        "exit_code": row.exit_code,
        "received_at": instant(row.received_at),
        "started_at": instant(row.started_at),
        "ended_at": instant(row.ended_at),
        "reason": row.reason or None,
    }


def is_isolated(ctx: Context) -> bool:
    """There are others, and this node hears none of them. Who has always been alone misses nobody."""
    others = ctx.membership.members.values()
    return ctx.membership.isolated and any(member.state in (ALIVE, SUSPECT) for member in others)


def nodes_view(ctx: Context, active: int, now: float) -> list[dict[str, Any]]:
    """Every node that this one knows of, itself included. Who hears nobody takes all others for lost."""
    isolated = is_isolated(ctx)
    nodes = [
        {
            "hostname": ctx.hostname, "pid": ctx.pid, "incarnation": ctx.incarnation, "state": "alive",
            "clock": ctx.clock.value, "last_seen_s": 0.0, "active": active,
            "freq": ctx.settings.heartbeat_interval_s, "jobs_digest": ctx.jobs_digest, "self": True,
            "says": ctx.state, "tags": list(ctx.settings.tags), "version": ctx.settings.version,
            "isolated": isolated,
        }
    ]  # fmt: skip
    nodes += [
        {
            "hostname": m.hostname, "pid": m.pid, "incarnation": m.incarnation,
            "state": LOST if isolated and m.state in (ALIVE, SUSPECT) else m.state, "clock": m.clock,
            "last_seen_s": round(now - m.heard_at, 2), "active": m.active, "freq": m.freq,
            "jobs_digest": m.jobs_digest, "self": False, "says": m.says, "tags": list(m.tags), "version": m.sw_ver,
        }
        for m in ctx.membership.members.values()
    ]  # fmt: skip
    return sorted(nodes, key=lambda node: (str(node["hostname"]), str(node["pid"])))


def election_view(election: Election) -> dict[str, Any]:
    """One election."""
    statements = {
        name: f"abstains: {c.abstains}" if c.abstains else f"stands: load {c.load}, clock {c.clock}"
        for name, c in sorted(election.statements.items())
    }
    decided = election.succession is not None
    return {
        "id": election.id,
        "topic": election.topic,
        "opened_by": election.opened_by,
        "decided": decided,
        "succession": list(election.succession or ()),
        "statements": statements,
        "missing": sorted(election.missing),
        "duration_ms": round((election.decided_at - election.opened_at) * 1000, 3) if decided else None,
    }


def breaker_view(breaker: Breaker, now: float) -> dict[str, Any]:
    """One breaker."""
    return {
        "name": breaker.name,
        "state": breaker.state,
        "failures": breaker.failures,
        "opened": breaker.opened,
        "since_s": round(now - breaker.changed_at, 1) if breaker.changed_at else None,
        "retry_in_s": round(breaker.retry_in_s(now), 1),
        "reason": breaker.reason or None,
    }


def job_view(job: Job, *, suspended: bool, next_at: float | None, problem: str, redacted: bool) -> dict[str, Any]:
    """One job that can be run."""
    launch = job.launch
    return {
        "name": job.name,
        "description": job.description,
        "owner": job.owner or None,
        "schedule": job.schedule_text or None,
        "timezone": job.schedule.timezone if job.schedule else None,
        "next": instant(next_at) if next_at else None,
        "suspended": suspended,
        "kind": "command" if isinstance(launch, Command) else "spark",
        "starts": REDACTED if redacted else (launch.argv[0] if isinstance(launch, Command) else launch.application),
        "on_lost": job.on_lost,
        "overlap": job.overlap,
        "misfire": job.misfire,
        "tags": list(job.tags),
        "lease_s": job.lease_s,
        "params": REDACTED if redacted else dict(job.params),
        "digest": job.digest,
        "problems": [problem] if problem else [],
        "enabled": True,
    }


def next_fires(job: Job, after: float, count: int) -> list[float]:
    """The next fire times of a job, at most ``count``."""
    fires: list[float] = []
    at: float | None = after
    while job.schedule is not None and at is not None and len(fires) < count:
        at = next_fire(job.schedule, at)
        if at is not None:
            fires.append(at)
    return fires
