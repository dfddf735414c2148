"""What each page shows: the daemon's answers, chosen and put in order."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from coordd.cli.show.phrases import instant, just_before, runs_and_searched
from coordd.cli.web import drawing
from coordd.cli.web.source import Source
from coordd.core.jobs.job import iso, job_of
from coordd.core.ledger.words import PENDING, RECEIVED, RETRY, STARTED, STATES, TERMINAL, UNKNOWN
from coordd.errors import RefusedError

# Rows of a table; further ones are on the next page, or are counted.
ROWS = 100
FEW = 15

# Bytes of a log's end.
LOG_BYTES = 48 * 1024

# The story of a run that ended this long (seconds) ago hardly changes: it is asked for this seldom (seconds).
SETTLED_S, SETTLED_FRESH_S = 60.0, 60.0

# Fire times of one day that its page shows.
DAY_MOST = 2000

# The most runs that the daemon tells of at a time, for pages that join them with something else.
RUNS_JOINED = 1000


class View(NamedTuple):
    """What a page is made from. ``query``: the fields of its address, ``now``: Unix seconds."""

    source: Source
    query: Mapping[str, str]
    now: float

    async def ask(self, method: str, *, fresh_s: float = 0.0, **params: Any) -> Any:
        """The daemon's answer. Raises RefusedError and UnavailableError."""
        return await self.source.ask(method, fresh_s=fresh_s, **params)


async def now(view: View) -> dict[str, Any]:
    """Jobs that are late, runs that run, the next fire times, runs that ended last."""
    status = await view.ask("status")
    jobs = await view.ask("job.list")
    running = [run for state in (STARTED, RECEIVED) for run in await view.ask("run.list", state=state, limit=ROWS)]
    waiting = [run for state in (PENDING, RETRY) for run in await view.ask("run.list", state=state, limit=ROWS)]
    unknown = await view.ask("run.list", state=UNKNOWN, limit=ROWS)
    newest = await view.ask("run.list", limit=ROWS)
    due = [job for job in jobs if job.get("next_fire_at")]
    return {
        "status": status,
        "alarms": await view.ask("alarm.list"),
        "letters": _by_job(await view.ask("deadletter.list", limit=ROWS)),
        "late": [job for job in jobs if job.get("late")],
        "disabled": [job for job in jobs if job.get("problems")],
        "suspended": [job for job in jobs if job.get("suspended")],
        "running": running,
        "waiting": waiting,
        "unknown": unknown,
        "next": sorted(due, key=lambda job: instant(job["next_fire_at"]) or math.inf)[:FEW],
        "ended": [run for run in newest if run["state"] in TERMINAL][:FEW],
    }


async def jobs(view: View) -> dict[str, Any]:
    """All jobs, or those with a text in their names."""
    found = await view.ask("job.list")
    text = view.query.get("q", "").strip().lower()
    chosen = [job for job in found if text in f"{job['name']} {job.get('description') or ''}".lower()]
    start = _number(view.query.get("from"))
    return {"jobs": chosen[start : start + ROWS], "q": view.query.get("q", ""), "count": len(chosen), "start": start}


async def job(view: View, name: str) -> dict[str, Any]:
    """One job: its state, 30 days of fire times, how long its runs took, and why it does what it does."""
    shown = await view.ask("job.show", job=name)
    runs = await view.ask("run.list", job=name, limit=RUNS_JOINED)
    fires: list[dict[str, Any]] = []
    if shown.get("schedule"):
        begin = datetime.fromtimestamp(view.now, UTC).date() - timedelta(days=drawing.DAYS)
        since: dict[str, Any] = {"from": f"{begin.isoformat()}T00:00Z"}
        fires = await view.ask("job.fires", job=name, **since)
    return {
        "job": shown,
        "why": await view.ask("why", fresh_s=15.0, id=name),
        "next": await view.ask("job.next", job=name, count=5) if shown.get("schedule") else [],
        "runs": runs[:FEW],
        "earlier": bool(fires and fires[0].get("earlier")),
        "fires": len(fires),
        "grid": drawing.grid(fires, {run["id"]: run["state"] for run in runs}, view.now),
        "bars": drawing.bars(runs),
    }


async def day(view: View, name: str, on: str) -> dict[str, Any]:
    """The fire times of one job on one day (UTC)."""
    try:
        begin = date.fromisoformat(on)
        before, end = begin - timedelta(days=1), begin + timedelta(days=1)
    except (ValueError, OverflowError) as exc:
        raise RefusedError(f"{on[:20]!r} is not a date", kind="unknown_day", hint="for example 2026-11-21") from exc
    fires: list[dict[str, Any]] = []
    upto, earlier = f"{end}T00:00Z", True
    while earlier and len(fires) < DAY_MOST:
        between: dict[str, Any] = {"from": f"{begin}T00:00Z", "to": upto}
        part = await view.ask("job.fires", job=name, **between)
        earlier = bool(part and part[0].get("earlier"))
        fires, upto = part + fires, iso(just_before(part[0])) if part else upto
    return {
        "name": name,
        "day": begin.isoformat(),
        "before": before.isoformat(),
        "after": end.isoformat(),
        "fires": [fire for fire in fires if str(fire["fire_time"]).startswith(begin.isoformat())],
        "earlier": earlier,
    }


async def runs(view: View) -> dict[str, Any]:
    """Runs, newest first, of a job, in a state, on a node."""
    chosen: dict[str, Any] = {key: view.query[key] for key in ("job", "state", "node") if view.query.get(key)}
    listed, searched = runs_and_searched(await view.ask("run.list", limit=ROWS, searched=True, **chosen))
    shown = {"job": view.query.get("job", ""), "state": view.query.get("state", ""), "on": view.query.get("node", "")}
    return {"runs": listed, "searched": searched, "states": STATES, "most": ROWS, **shown}


async def run(view: View, ident: str) -> dict[str, Any]:
    """One run: why it is as it is, its timeline, its attempts, the end of its log."""
    shown = await view.ask("run.show", id=ident)
    ended_at = instant(shown.get("ended_at")) if shown["state"] in TERMINAL else None
    fresh_s = SETTLED_FRESH_S if ended_at and view.now - ended_at > SETTLED_S else 0.0
    why = await view.ask("why", fresh_s=fresh_s, id=ident)
    timeline = why.get("timeline") or shown.get("timeline") or []
    return {
        "run": shown,
        "why": why,
        "timeline": timeline,
        "lanes": drawing.lanes(timeline, shown["attempts"] or [shown], view.now),
        "log": await _log(view, ident, fresh_s),
        "job": await _job_of(view, job_of(ident)),
    }


async def _log(view: View, ident: str, fresh_s: float) -> dict[str, Any]:
    """The end of the newest attempt's log, or why it cannot be shown."""
    try:
        said = await view.ask("run.logs", fresh_s=fresh_s, id=ident, bytes=LOG_BYTES)
    except RefusedError as exc:
        return {"text": "", "refused": str(exc)}
    return {"text": said["text"], "refused": "", "attempt": said.get("attempt")}


async def _job_of(view: View, name: str) -> dict[str, Any]:
    """The job of a run; nothing if its file is gone."""
    try:
        found: dict[str, Any] = await view.ask("job.show", job=name)
    except RefusedError:
        return {}
    return found


async def cluster(view: View) -> dict[str, Any]:
    """The nodes, the bus, the ledger, pools, breakers, elections."""
    elections = await view.ask("election.list", limit=FEW)
    return {
        "status": await view.ask("status"),
        "nodes": await view.ask("node.list"),
        "ledger": await view.ask("ledger.status"),
        "breakers": await view.ask("breaker.list"),
        "pools": await view.ask("pool.list"),
        "elections": list(reversed(elections)),
        "alarms": await view.ask("alarm.list"),
    }


def _by_job(letters: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Dead letters by their jobs, those of the newest first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for letter in letters:
        found.setdefault(str(letter.get("job") or letter.get("kind")), []).append(letter)
    return list(found.items())


def _number(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) < 7 else 0
