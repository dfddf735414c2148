"""One page that answers: did my jobs run, did they run once, and where. Self-contained HTML; no Spark, no files.

Every text from events is escaped: a job's name or a failure's reason may contain anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from operator import itemgetter
from typing import Any

from coordd.history.drawing import bars, colours, timeline
from coordd.history.page import PAGE
from coordd.history.publishing import Owner

NO_PROBLEM = "good"
SOME_NOTICE = "fair"
BROKEN = "bad"

# A reason or an error may be a whole log; a table shows its start.
TEXT_MAX = 160


@dataclass(frozen=True)
class Report:
    """The contents of the page: counts by word, rows as dictionaries."""

    events: int = 0
    nodes: list[str] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    launches: dict[str, int] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)
    takeovers: int = 0
    severities: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def judgement(self) -> str:
        """good, fair or bad: the colour of the verdict."""
        if self.severities.get("violation"):
            return BROKEN
        return SOME_NOTICE if self.severities.get("notice") or self.corrupt else NO_PROBLEM

    @property
    def verdict(self) -> str:
        """The audit in one sentence."""
        runs, launches = sum(self.states.values()), sum(self.launches.values())
        told = f"{_count(launches, 'launch', 'launches')} of {_count(runs, 'run')}"
        violations, notices = self.severities.get("violation", 0), self.severities.get("notice", 0)
        lost = sum(self.corrupt.values())
        beside = [_count(notices, "notice")] if notices else []
        if lost:
            beside.append(f"{_count(lost, 'unreadable line')} kept aside")
        tail = f" ({', '.join(beside)})" if beside else ""
        if violations:
            return f"{_count(violations, 'violation')} found in {told}{tail}."
        if not launches:
            return f"Nothing was launched: {_count(runs, 'run')} known to the journals{tail}."
        return (
            f"In {told} no journal shows an attempt launched twice, two attempts of a run alive at a time,"
            f" or a token out of order{tail}."
        )


def render(report: Report, owner: Owner, *, made_at: float, took_s: float) -> str:
    """The whole page."""
    tint = colours(sorted({*report.nodes, *report.launches}))
    return PAGE.substitute(
        judgement=report.judgement,
        verdict=escape(report.verdict),
        cards=_cards(report),
        launches=bars(report.launches, tint),
        timeline=timeline(report.attempts, report.runs, tint),
        findings=_findings(report),
        runs=_runs(report, tint),
        footer=_footer(owner, made_at, took_s),
    )


def _cards(report: Report) -> str:
    runs = sum(report.states.values())
    other = runs - report.states.get("success", 0) - report.states.get("failure", 0)
    cards = [
        ("runs", runs, ""),
        ("succeeded", report.states.get("success", 0), "good"),
        ("failed", report.states.get("failure", 0), "bad" if report.states.get("failure") else ""),
        ("in other states", other, ""),
        ("launches", sum(report.launches.values()), ""),
        ("taken over", report.takeovers, "fair" if report.takeovers else ""),
        ("nodes", len(report.nodes), ""),
        ("events", report.events, ""),
        ("unreadable lines", sum(report.corrupt.values()), "bad" if report.corrupt else ""),
    ]
    return "".join(f'<div class="card {tone}"><b>{count:,}</b><span>{name}</span></div>' for name, count, tone in cards)


def _findings(report: Report) -> str:
    rows: list[tuple[str, ...]] = []
    for found in report.findings:
        kind = escape(found["kind"].replace("_", " "))
        where = (_code(found["run"]), _number(found["attempt"]), _instant(found["at"]))
        rows.append((_badge(found["severity"]), kind, *where, _text(found["detail"])))
    for problem, count in sorted(report.corrupt.items()):
        aside = "kept aside in the table <code>corrupt</code>"
        rows.append((_badge("notice"), f"{_count(count, 'line')} {escape(problem)}", "", "", "", aside))
    if not rows:
        return '<p class="none">Nothing found.</p>'
    shown = sum(report.severities.values())
    more = f'<p class="none">The first {len(report.findings)} of {shown}.</p>' if shown > len(report.findings) else ""
    return _table(("severity", "finding", "run", "attempt", "at (UTC)", "detail"), rows) + more


def _runs(report: Report, tint: dict[str, str]) -> str:
    if not report.runs:
        return '<p class="none">No run is known to the journals.</p>'
    launched: dict[str, list[str]] = {}
    for attempt in sorted(report.attempts, key=itemgetter("started", "attempt")):
        launched.setdefault(attempt["run"], []).append(attempt["hostname"])
    rows: list[tuple[str, ...]] = []
    for run in report.runs:
        started = run.get("started")
        nodes = launched.get(run["run"]) or ([run["hostname"]] if started else [])
        where = " → ".join(f'<i class="dot" style="background:{tint.get(n, "#888")}"></i>{escape(n)}' for n in nodes)
        reason = "" if run["state"] == "success" else run.get("reason") or run.get("exception") or ""
        rows.append(
            (
                _badge(run["state"]),
                _code(run["run"] or run["uuid"]),
                where,
                _number(len(nodes) or None),
                _instant(started),
                _seconds(run.get("runtime")),
                _number(run.get("exit_code")),
                _code(run.get("application_id")),
                _text(reason),
            )
        )
    total = sum(report.states.values())
    more = f'<p class="none">The latest {len(rows)} of {total}.</p>' if total > len(rows) else ""
    heads = ("state", "run", "launched on", "launches", "started (UTC)", "runtime", "exit", "application", "reason")
    return _table(heads, rows) + more


def _footer(owner: Owner, made_at: float, took_s: float) -> str:
    made = datetime.fromtimestamp(made_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    by = (
        f"by run <code>{escape(owner.run)}</code>, attempt {owner.attempt}, fencing token <code>{owner.token}</code>"
        if owner.run
        else "by hand, outside coordd (no <code>COORDD_RUN</code>, no token)"
    )
    where = f" on {escape(owner.node)}" if owner.node else ""
    return f"Made {made} UTC {by}{where}, in {took_s:.1f} s."


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{name}</th>" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _badge(word: str) -> str:
    return f'<span class="badge {escape(word)}">{escape(word)}</span>'


def _code(text: str | None) -> str:
    return f"<code>{escape(text)}</code>" if text else ""


def _text(text: str) -> str:
    return escape(text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…")


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"


def _instant(instant: float | None) -> str:
    if instant is None:
        return ""
    return f'<span class="time">{datetime.fromtimestamp(instant, UTC).strftime("%m-%d %H:%M:%S")}</span>'


def _count(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
