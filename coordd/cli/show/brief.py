"""Output without rich: the status of a node, an event, a sentence. It must start fast."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from typing import Any

from coordd.cli.show.phrases import duration, held, plain, rules_text, safe, some
from coordd.core.visible import visible

_COLOURS = {
    "ready": "32", "connected": "32", "starting": "33", "mingling": "33", "draining": "33", "stopping": "2",
    "disconnected": "31", "unavailable": "1;31", "recovering": "33", "unknown": "1;31", "stuck": "1;31", "late": "33",
    "task-started": "36", "task-succeeded": "32", "task-failed": "1;31", "task-retried": "33", "task-rejected": "33",
    "task-revoked": "35", "worker-offline": "33", "worker-online": "32",
}  # fmt: skip

# More names than this in one line do not help.
NAMES_MAX = 5

# Fields of an event that are shown elsewhere on its line, or that only programs need.
_EVENT_HIDDEN = frozenset((
    "type", "timestamp", "hostname", "pid", "incarnation", "seq", "utcoffset", "uuid", "nonce", "view", "freq",
    "sw_ident", "sw_ver", "sw_sys", "view_digest", "jobs_digest", "cver", "name", "loadavg", "kwargs", "tokens",
    "members", "protocol", "fire_at", "token", "action", "exception", "retries", "acks", "active", "processed", "tags",
))  # fmt: skip


def coloured(word: str, text: str | None = None) -> str:
    """A word in the colour of its meaning, for a person at a terminal."""
    text = plain(word if text is None else text)
    code = _COLOURS.get(word)
    wanted = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\x1b[{code}m{text}\x1b[0m" if code and wanted else text


def spans(fires: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Fire times with equal neighbours as one: `fire_time`, `to` and `count`."""
    found: list[dict[str, Any]] = []
    for fire in fires:
        last = found[-1] if found else {}
        if fire["decision"] != "launched" and all(last.get(key) == fire[key] for key in ("decision", "reason", "run")):
            last.update(to=fire["fire_time"], count=last["count"] + 1)
        else:
            found.append({**fire, "count": 1})
    return found


def wrapped(text: str) -> str:
    """A sentence, wrapped to the terminal's width; one line for a program."""
    text = visible(text)
    if not sys.stdout.isatty():
        return text
    width = min(shutil.get_terminal_size().columns, 100)
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def _budget(budget: dict[str, Any]) -> str:
    """Only where a strategy decides."""
    if not budget.get("by"):
        return ""
    return f"{budget['client']} of at most {budget['max']} drivers compute here ({plain(budget['by'])})"


def _jobs_from(source: dict[str, Any]) -> str:
    """Where the job definitions come from, unless it is the usual directory; and what is wrong there."""
    if source.get("problem"):
        return f"{plain(source['backend'])}: {safe(source['problem'])}"
    if source.get("in_force"):
        return f"revision {source['in_force']} is in force" + (
            f"; {source['waiting']} waits (coordctl config list)" if source.get("waiting") else ""
        )
    return f"from {plain(source['backend'])}" if source.get("backend", "files") != "files" else ""


def _boot(steps: list[dict[str, Any]]) -> str:
    """The boot steps that are not done."""
    return "; ".join(
        f"{plain(step['name'])} {plain(step['state'])}"
        + (f", attempt {step['attempts']}" if step["attempts"] > 1 else "")
        + (f": {safe(step['text'])}" if step.get("text") else "")
        for step in steps
        if step["state"] != "done"
    )


def status_text(status: dict[str, Any]) -> str:
    """One node in a few lines."""
    members, runs, jobs = status["members"], status["runs"], status.get("jobs", {})
    away = [some(members[word], f"{word} node") for word in ("suspect", "lost") if members.get(word)]
    lines = [
        (
            "cluster",
            " · ".join(
                [
                    plain(status["cluster"]),
                    f"{some(members['alive'], 'node')} alive",
                    *away,
                    *(["isolated: this node hears nobody"] if status.get("isolated") else []),
                ]
            ),
        ),
        (
            "runs",
            f"{runs['active']} active"
            + (f" ({plain(runs['jobs'])})" if runs.get("jobs") else "")
            + f" · {runs.get('processed', 0)} processed since start",
        ),
        ("", _trouble("unknown", runs.get("unknown"), "coordctl run resolve RUN --as success|failed|relaunch")),
        ("", _trouble("stuck", runs.get("stuck"), "coordctl why RUN")),
        ("", _trouble("late", runs.get("late"), "coordctl why RUN")),
        ("", f"{some(len(runs['dead']), 'dead letter')} (coordctl deadletter list)" if runs.get("dead") else ""),
        (
            "jobs",
            f"{jobs.get('enabled', 0)} enabled"
            + (f" · {len(jobs['held'])} held: {plain(jobs['held'])}" if jobs.get("held") else "")
            + (
                f" · {len(jobs['disabled'])} disabled: {plain(jobs['disabled'])} (coordctl job list)"
                if jobs.get("disabled")
                else ""
            ),
        ),
        ("", _jobs_from(status.get("jobs_from") or {})),
        ("", f"no success in time: {plain(status['late_jobs'])} (coordctl why JOB)" if status.get("late_jobs") else ""),
        ("", f"stale here: {plain(status['stale_jobs'])} (coordctl job list)" if status.get("stale_jobs") else ""),
        ("", _stopped(status.get("suspended") or {})),
        ("boot", _boot(status.get("boot") or [])),
        ("triggers", _triggers(status.get("triggers") or {})),
        ("budget", _budget(status.get("budget") or {})),
        ("drained", held(status["drained"]) or "yes" if status.get("drained") else ""),
        ("rules", rules_text(status.get("rules") or {})),
        ("bus", _connection(status["bus"])),
        ("ledger", _connection(status["ledger"])),
        ("backlog", _backlog(status.get("backlog") or {})),
        ("breakers", f"open: {plain(status['breakers_open'])}" if status.get("breakers_open") else "closed"),
        ("impaired", plain(status.get("impaired"))),
        ("aside", plain(status.get("stands_aside"))),
        ("not used", plain(status["ledger"].get("not_used"))),
        ("alarms", plain(status.get("alarms"))),
        ("daemon", f"version {plain(status['version'])} · pid {status['pid']} · up {duration(status['uptime_s'])}"),
        ("clock", plain(status["clock"])),
    ]
    hindered = _hindered(status)
    state = f"{coloured(status['state'])}, but {hindered}" if hindered else coloured(status["state"])
    head = f"{coloured('unavailable' if hindered else status['state'], '●')} {plain(status['node'])} is {state}"
    return "\n".join([head, *[f"  {name:<9} {text}" for name, text in lines if text]])


def _triggers(told: dict[str, Any]) -> str:
    """Those that this node polls."""
    if not told.get("polled") and not told.get("routes"):
        return ""
    waiting = f" · {some(told['waiting'], 'arrival')} wait" if told.get("waiting") else ""
    failing = f" · failing: {plain(told['failing'])} (coordctl trigger list)" if told.get("failing") else ""
    routes = f" · {some(told['routes'], 'route')} answered here" if told.get("routes") else ""
    return f"{told['polled']} polled here{routes}{waiting}{failing}"


def _stopped(suspended: dict[str, Any]) -> str:
    """The suspension of all jobs, or the suspended ones."""
    if pause := suspended.get("all"):
        return f"all suspended {held(pause)} (coordctl job resume --all)"
    jobs = suspended.get("jobs")
    return f"suspended: {plain(jobs[:NAMES_MAX])}{', …' if len(jobs) > NAMES_MAX else ''}" if jobs else ""


def _trouble(word: str, runs: list[str] | None, advice: str) -> str:
    """The runs that wait for a person."""
    if not runs:
        return ""
    more = f" and {len(runs) - NAMES_MAX} more" if len(runs) > NAMES_MAX else ""
    return f"{coloured(word, f'{len(runs)} {word}')}: {plain(runs[:NAMES_MAX])}{more} ({advice})"


def _hindered(status: dict[str, Any]) -> str:
    """Why a node that takes runs starts none; "" if nothing prevents it."""
    ledger = status["ledger"]["state"]
    if ledger != "connected":
        return f"the ledger is {plain(ledger)}: nothing new starts"
    return "it starts nothing itself" if status.get("impaired") or status["ledger"].get("not_used") else ""


def _connection(about: dict[str, Any]) -> str:
    """The bus or the ledger: state, address, and what is wrong."""
    parts = [coloured(about["state"]), plain(about["url"])]
    if about.get("recovering_s"):
        parts.append(f"no new launch for {duration(about['recovering_s'])}")
    if about.get("error"):
        parts.append(plain(about["error"]))
    return " · ".join(parts)


def _backlog(about: dict[str, Any]) -> str:
    """The messages that wait for the bus."""
    parts = []
    if about.get("waiting"):
        where = "" if about.get("kept") == "disk" else " in memory"
        oldest = duration(about.get("oldest_s"))
        parts.append(f"{some(about['waiting'], 'message')} waiting{where}, the oldest for {oldest}")
    if about.get("given_up"):
        parts.append(f"{about['given_up']} given up")
    if about.get("error"):
        parts.append(plain(about["error"]))
    return " · ".join(parts)


def event_text(event: dict[str, Any], *, colour: bool = True) -> str:
    """One event on one line: when, who, what, and the rest as key=value."""
    from datetime import UTC, datetime

    at = datetime.fromtimestamp(event.get("timestamp") or 0.0, UTC).strftime("%H:%M:%S.%f")[:-3]
    kind = str(event.get("type", ""))
    padded = f"{plain(kind):<16}"
    shown = {"run": event.get("run")} | event  # its subject comes first
    words = [
        f"{key}={_candidacy(value) if key == 'candidacy' else plain(value)}"
        for key, value in shown.items()
        if key not in _EVENT_HIDDEN and value not in (None, "", [], {}) and (key, value) != ("attempt", 0)
    ]
    who = f"{event.get('hostname', '')}.{event.get('pid', '')}"
    return " ".join([at, f"{plain(who):<20}", coloured(kind, padded) if colour else padded, *words])


def _candidacy(said: Any) -> str:
    """A statement in an election: load, clock, name, and why it abstains."""
    if not isinstance(said, list) or len(said) < 4:
        return plain(said)
    return f"abstains ({plain(said[3])})" if said[3] else f"stands (load {plain(said[0])}, clock {plain(said[1])})"
