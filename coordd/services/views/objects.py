"""Views for people: rows, members and elections as plain objects with the interface's field names. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from coordd.core.election import Election
from coordd.core.jobs.arguments import unpacked
from coordd.core.jobs.job import Command, Job, Schedule, fire_time, iso, scheduled_run, unpinned
from coordd.core.jobs.plan import utc_offset_s
from coordd.core.jobs.schedule import last_fire, next_fire, zone
from coordd.core.ledger.rows import AttemptRow, Hold, Row
from coordd.core.ledger.sound import attempt_fault, bad_run, printable, run_fault
from coordd.core.ledger.words import BAD, RESOLVED
from coordd.core.members.membership import ALIVE, LEFT, LOST, SUSPECT
from coordd.core.names import host_of
from coordd.core.node.node import Node
from coordd.core.node.shown import Shown
from coordd.errors import RefusedError
from coordd.services.views.troubles import Found

REDACTED = "(hidden)"


def instant(at: float) -> str | None:
    """Unix seconds as text; None when it has not happened yet."""
    return iso(round(at, 3)) if at else None


def run_view(row: Row, *, redacted: bool) -> dict[str, Any]:
    """One run, as in `run.list` and `run.show`. An invalid row shows only that it is invalid."""
    fault = run_fault(row)
    if fault:
        return _bad_view(row, fault)
    runtime_s = None
    if row.started_at and row.ended_at and not by_person(row):
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
        "args": REDACTED if redacted else _arguments(row.args),
        "by": row.by or ("schedule" if row.scheduled else None),
        "only_node": unpinned(row.digest)[1] or None,
        "commit_token": row.commit_token or None,
    }


def by_person(row: Row | AttemptRow) -> bool:
    """True if a person has said how it ended (`run resolve`): its end is not the instant of the program's."""
    return row.reason.startswith(RESOLVED) and row.exit_code is None


def resolved(row: Row) -> str:
    """What a person has said of its end; "" if the run ended by itself."""
    if not by_person(row):
        return ""
    said, _, cause = row.reason.partition("; its own end is not known")
    return f"was {said} at {iso(int(row.ended_at))}; its own end on {row.node or 'its node'} is not known{cause}"


def _bad_view(row: Row, fault: str) -> dict[str, Any]:
    """The fields of a run, all empty: `state` and `reason` say why."""
    fields = dict.fromkeys(
        (
            "id",
            "job",
            "fire_time",
            "state",
            "attempt",
            "node",
            "token",
            "application_id",
            "exit_code",
            "received_at",
            "started_at",
            "ended_at",
            "runtime_s",
            "reason",
            "args",
            "by",
            "only_node",
            "commit_token",
        )
    )
    return {
        **fields,
        "id": printable(row.run),
        "job": printable(row.job),
        "state": BAD,
        "attempt": 0,
        "reason": f"{bad_run(row.run, fault)}; `coordctl run revoke` ends it",
    }


def _arguments(text: str) -> Any:
    """Arguments for people; a text that is not a JSON object of texts is shown unchanged."""
    try:
        return unpacked(text or "{}")
    except RefusedError:
        return printable(text)


def is_of(row: Row, node: str, since: float) -> bool:
    """True if the run is, or was last, on that node, and changed since that instant; "" and 0.0 match all."""
    if run_fault(row):
        return not node
    newest = max(row.created_at, row.started_at, row.ended_at)
    return newest >= since and node in ("", row.node, host_of(row.node))


def searched_view(rows: Sequence[Row]) -> dict[str, Any]:
    """How many runs were searched, newest first, and when the oldest of these was requested."""
    oldest = next((row.created_at for row in reversed(rows) if not run_fault(row)), 0.0)
    return {"searched": len(rows), "back_to": instant(oldest)}


def attempt_view(row: AttemptRow) -> dict[str, Any]:
    """One attempt of a run."""
    fault = attempt_fault(row)
    if fault:
        number = row.attempt if isinstance(row.attempt, int) else 0
        fields = dict.fromkeys(
            ("node", "token", "application_id", "exit_code", "received_at", "started_at", "ended_at")
        )
        return {"attempt": number, "state": BAD, **fields, "reason": bad_run(f"{row.run}/{number}", fault)}
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


def is_isolated(node: Shown) -> bool:
    """True if there are other nodes, and this node hears none of them. A node that was always alone is not isolated."""
    others = node.members.values()
    return node.isolated and any(member.state in (ALIVE, SUSPECT) for member in others)


def nodes_view(node: Node, active: int, now: float) -> list[dict[str, Any]]:
    """Every node that this one knows, including itself. An isolated node takes all others for lost."""
    isolated = is_isolated(node)
    nodes = [
        {
            "hostname": node.hostname,
            "pid": node.pid,
            "incarnation": node.incarnation,
            "state": "alive",
            "clock": node.clock,
            "last_seen_s": 0.0,
            "active": active,
            "freq": node.settings.heartbeat_interval_s,
            "jobs_digest": node.jobs_digest,
            "self": True,
            "says": node.state,
            "tags": list(node.settings.tags),
            "version": node.settings.version,
            "isolated": isolated,
            "drained": hold_view(node.drains.own),
            "failing": bool(node.failing),
        }
    ]
    nodes += [
        {
            "hostname": m.hostname,
            "pid": m.pid,
            "incarnation": m.incarnation,
            "state": LOST if isolated and m.state in (ALIVE, SUSPECT) else m.state,
            "clock": m.clock,
            "last_seen_s": round(now - m.heard_at, 2),
            "active": m.active,
            "freq": m.freq,
            "jobs_digest": m.jobs_digest,
            "self": False,
            "says": m.says,
            "tags": list(m.tags),
            "version": m.sw_ver,
            "drained": hold_view(node.drains.of_node(m.hostname)),
            "failing": m.failing,
        }
        for m in node.members.values()
    ]
    return sorted(nodes, key=lambda one: (str(one["hostname"]), str(one["pid"])))


def ledgers_of_nodes(node: Shown) -> list[dict[str, Any]]:
    """The ledger of each known node, this node first; "identity" None: it has not said so."""
    own = {"node": node.full_hostname, "identity": node.ledger or None, "pinned": node.pinned, "agrees": True}
    return [own] + [
        {
            "node": m.name,
            "identity": m.ledger or None,
            "pinned": m.pinned,
            "agrees": not m.ledger or not node.ledger or m.ledger == node.ledger,
        }
        for m in sorted(node.members.values(), key=lambda m: m.name)
        if m.state != LEFT
    ]


def rules_view(node: Node) -> dict[str, Any]:
    """The ledger rules in force (docs/protocol.md, section 6), and the members that prevent the new ones."""
    return {"in_force": node.rules, "held_back_by": node.rulebook.held_back_by()}


def budget_view(node: Node) -> dict[str, Any]:
    """How many runs this node takes at a time; ``client`` is what the strategy ``by`` says now, at most ``max``."""
    settings = node.settings
    most = {"max": settings.budget_client, "by": settings.budget_by or None}
    return {"client": node.budget, **most, "cluster": settings.budget_cluster}


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


def troubles_view(found: Found) -> dict[str, list[str]]:
    """The runs that wait for a person, by their problem."""
    return {
        "unknown": [trouble.run for trouble in found.unknown],
        "late": [trouble.run for trouble in found.late],
        "stuck": [trouble.run for trouble in found.stuck],
        "dead": [trouble.run for trouble in found.dead],
    }


class Stop(NamedTuple):
    """What prevents a job: its own hold, or that on all jobs (``common``). No hold: an older version suspended it."""

    hold: Hold | None
    common: bool = False

    def view(self) -> dict[str, Any]:
        """As in `job.list`."""
        return {**(hold_view(self.hold or Hold(by="")) or {}), "all": self.common}


def hold_view(hold: Hold | None) -> dict[str, Any] | None:
    """A hold: until when, why, who and since when; None when there is none."""
    if hold is None:
        return None
    return {
        "until": instant(hold.until),
        "note": hold.note or None,
        "by": hold.by or None,
        "uid": hold.uid if hold.by else None,
        "at": instant(hold.at),
    }


def job_view(
    job: Job,
    *,
    stop: Stop | None,
    next_at: float | None,
    problem: str,
    redacted: bool,
    succeeded_at: float = 0.0,
    late: bool = False,
    breaker: str = "",
) -> dict[str, Any]:
    """One job that can be run. ``succeeded_at``: the end of its last success (Unix seconds); 0.0: it has none.
    ``breaker``: the state of its breaker; "": it has none.
    """
    launch, planned = job.launch, job.released.schedule
    starts = job.enabled and (stop is None or (stop.hold is not None and stop.hold.until))
    upcoming = instant(next_at) if next_at and starts else None  # otherwise it does not start then
    return {
        "name": job.name,
        "description": job.description,
        "owner": job.owner or None,
        "schedule": job.schedule_text or None,
        "started_by": started_by(job),
        "timezone": planned.timezone if planned else None,
        "next": upcoming,
        "next_fire_at": upcoming,
        "last_success_at": instant(succeeded_at),
        "expect_within_s": job.expect_within_s or None,
        "late": late,
        "suspended": stop.view() if stop else None,
        "breaker": breaker or None,
        "kind": "command" if isinstance(launch, Command) else "spark",
        "starts": REDACTED
        if redacted
        else (launch.argv[0] if isinstance(launch, Command) else launch.application or launch.pipeline),
        "on_lost": job.on_lost,
        "overlap": job.overlap,
        "misfire": job.misfire,
        "tags": list(job.tags),
        "lease_s": job.lease_s,
        "params": REDACTED if redacted else dict(job.params),
        "digest": job.digest,
        "problems": [problem] if problem else [],
        "enabled": job.enabled,
    }


def started_by(job: Job) -> str:
    """What starts runs of a job, beside a person: "schedule", "after PARENTS", "triggers: KINDS"; or "by hand"."""
    if job.schedule_text:
        return "schedule"
    if job.after is not None:
        return f"after {', '.join(job.after.jobs)}"
    return f"triggers: {', '.join([one.kind for one in job.triggers])}" if job.triggers else "by hand"


def fire_views(job: Job, dues: Sequence[float], now: float, identity_from: float) -> list[dict[str, Any]]:
    """The fire times of a job, ascending; of a held one those that it would have. ``due`` includes the job's jitter.

    ``local`` is the fire time by the clocks of the job's zone; ``clocks_s`` is the change of those clocks
    since the fire time before it (negative: put back); the first of a job has none before it.
    """
    job = job.released
    planned = job.schedule
    timezone = planned.timezone if planned is not None else "UTC"
    shown = []
    before = _fired_before(planned, now) if planned is not None else None
    offset_s = utc_offset_s(timezone, before) if before is not None else None
    for due in dues:
        named = fire_time(job, due, identity_from)
        before_s, offset_s = offset_s, utc_offset_s(timezone, named)
        shown.append(
            {
                "job": job.name,
                "fire_time": instant(named),
                "run": scheduled_run(job.name, named),
                "due": instant(due),
                "local": datetime.fromtimestamp(named, zone(timezone)).isoformat(),
                "clocks_s": offset_s - before_s if before_s is not None else 0.0,
            }
        )
    return shown


def _fired_before(planned: Schedule, now: float) -> float | None:
    """The fire time before the next one, or an instant with the same clocks; None if there is none."""
    if planned.start > now or planned.kind == "at":
        return None
    if planned.kind == "every":
        return now
    at = last_fire(planned.cron, planned.timezone, now)
    return at if at is not None and at >= planned.start else None


def next_fires(job: Job, after: float, count: int, check: Callable[[], None] = lambda: None) -> list[float]:
    """The next fire times of a job, at most ``count``; for a held job, the times at which it would fire.

    ``check`` is called before each, and may raise.
    """
    fires: list[float] = []
    at: float | None = after
    planned = job.released.schedule
    while planned is not None and at is not None and len(fires) < count:
        check()
        at = next_fire(planned, at)
        if at is not None:
            fires.append(at)
    return fires
