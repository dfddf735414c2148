"""One page that answers: did my jobs run, did they run once, and where. Self-contained HTML; no Spark, no files.

Every text from events is escaped: a job's name or a failure's reason may contain anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from operator import itemgetter
from typing import Any

from coordd.history.figures.learning import NOTHING, Learned
from coordd.history.pages import jobs, sections
from coordd.history.pages.charts import over_time, week
from coordd.history.pages.page import CLASSES, PAGE
from coordd.history.pages.parts import badge, code, count, instant, node, none, number, span, table, text
from coordd.history.pages.timeline import colours, timeline
from coordd.history.publishing import Owner

NO_PROBLEM = "good"
SOME_NOTICE = "fair"
BROKEN = "bad"

# How many runs the drawing of attempts has.
DRAWN_MAX = 16


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
    step_s: int = 1  # of ``over_time``
    over_time: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[dict[str, Any]] = field(default_factory=list)
    all_jobs: int = 0
    trends: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    placed: list[dict[str, Any]] = field(default_factory=list)
    handed_over: list[dict[str, Any]] = field(default_factory=list)
    trouble: list[dict[str, Any]] = field(default_factory=list)
    breakers: list[dict[str, Any]] = field(default_factory=list)
    kept: dict[str, int] = field(default_factory=dict)  # job -> runs that its breaker rejected, or let fail
    hours: list[dict[str, Any]] = field(default_factory=list)
    learned: Learned = NOTHING
    warnings: list[dict[str, Any]] = field(default_factory=list)
    first_at: float | None = None  # of all events about runs
    last_at: float | None = None

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
        told = f"{count(launches, 'launch', 'launches')} of {count(runs, 'run')}"
        violations, notices = self.severities.get("violation", 0), self.severities.get("notice", 0)
        lost = sum(self.corrupt.values())
        beside = [count(notices, "notice")] if notices else []
        if lost:
            beside.append(f"{count(lost, 'unreadable line')} kept aside")
        tail = f" ({', '.join(beside)})" if beside else ""
        if violations:
            return f"{count(violations, 'violation')} found in {told}{tail}."
        if not launches:
            return f"Nothing was launched: {count(runs, 'run')} known to the journals{tail}."
        return (
            f"In {told} no journal shows an attempt launched twice, two attempts of a run alive at a time,"
            f" or a token out of order{tail}."
        )


def render(report: Report, owner: Owner, *, made_at: float, took_s: float) -> str:
    """The whole page."""
    tint = colours(sorted({*report.nodes, *report.launches}))
    attempts = [_finished(attempt, owner, made_at) for attempt in report.attempts]
    now = report.last_at or made_at
    parts = [
        ("time", "Runs over time", over_time(report.over_time, report.step_s)),
        ("attempts", "Latest attempts (UTC)", timeline(_drawn(attempts), report.runs, tint)),
        ("jobs", "Jobs", sections.jobs(report.jobs, report.trends, report.all_jobs)),
        ("expected", "Expected", sections.expected(report.learned, report.warnings, now)),
        ("takeovers", "Takeovers", sections.takeovers(report.handed_over, report.takeovers, tint)),
        ("trouble", "Missed, late, rejected", sections.trouble(report.trouble)),
        ("breakers", "Breakers", sections.breakers(report.breakers, report.kept, tint)),
        ("hours", "Critical hours", sections.critical(report.hours) + week(report.hours)),
        ("who", "Who ran what", sections.who(report.placed, report.nodes, tint)),
        ("audit", "Audit", _findings(report)),
        ("latest", "Latest runs", _runs(report, tint)),
    ]
    page = [f'<section id="{name}"><h2>{title}</h2>{inside}</section>' for name, title, inside in parts]
    page.append(jobs.details(report.jobs, report.trends, report.placed, report.learned, tint))
    return PAGE.substitute(
        judgement=report.judgement,
        verdict=escape(report.verdict),
        span=_span(report),
        cards=_cards(report),
        links="".join(f'<li><a href="#{name}">{title.removesuffix(" (UTC)")}</a></li>' for name, title, _ in parts),
        sections="\n".join(page),
        classes=CLASSES,
        footer=_footer(owner, made_at, took_s),
    )


def _drawn(attempts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the runs that started last."""
    begun: dict[str, float] = {}
    for attempt in attempts:
        begun[attempt["run"]] = min(attempt["started"], begun.get(attempt["run"], attempt["started"]))
    last = set(sorted(begun, key=lambda run: (begun[run], run))[-DRAWN_MAX:])
    return [attempt for attempt in attempts if attempt["run"] in last]


def _finished(attempt: dict[str, Any], owner: Owner, made_at: float) -> dict[str, Any]:
    """The attempt that makes this page has done its work when somebody reads it."""
    mine = (attempt["run"], attempt["attempt"]) == (owner.run, owner.attempt) and attempt["ended"] is None
    if not mine:
        return attempt
    ended = max(made_at, attempt["started"])
    return {**attempt, "ended": ended, "outcome": "success", "exit_code": 0, "reason": "it made this report"}


def _span(report: Report) -> str:
    if report.first_at is None or report.last_at is None:
        return "No run is known to the journals."
    form = "%Y-%m-%d %H:%M"
    nodes = count(len(report.nodes), "node")
    events = count(report.events, "event")
    return f"{instant(report.first_at, form)} to {instant(report.last_at, form)} UTC, {nodes}, {events}"


def _cards(report: Report) -> str:
    runs = sum(report.states.values())
    succeeded, failed = report.states.get("success", 0), report.states.get("failure", 0)
    late = {row["kind"]: row["of_kind"] for row in report.trouble}
    missed = late.get("missed", 0)
    delays = [row["delay"][1] for row in report.jobs if row["delay"]]
    cards = [
        ("runs", f"{runs:,}", ""),
        ("succeeded", f"{succeeded:,}", "good"),
        ("failed", f"{failed:,}", "bad" if failed else ""),
        ("in other states", f"{runs - succeeded - failed:,}", ""),
        ("launches", f"{sum(report.launches.values()):,}", ""),
        ("taken over", f"{report.takeovers:,}", "fair" if report.takeovers else ""),
        ("missed", f"{missed:,}", "bad" if missed else ""),
        ("largest 95 % delay", span(max(delays)) if delays else "none", "fair" if delays and max(delays) > 30 else ""),
        *([("unreadable lines", f"{sum(report.corrupt.values()):,}", "bad")] if report.corrupt else []),
    ]
    return "".join(f'<div class="card {tone}"><b>{value}</b><span>{name}</span></div>' for name, value, tone in cards)


def _findings(report: Report) -> str:
    rows: list[tuple[str, ...]] = []
    for found in report.findings:
        kind = escape(found["kind"].replace("_", " "))
        where = (code(found["run"]), number(found["attempt"]), instant(found["at"]))
        rows.append((badge(found["severity"]), kind, *where, text(found["detail"])))
    for problem, lines in sorted(report.corrupt.items()):
        aside = "kept aside in the table <code>corrupt</code>"
        rows.append((badge("notice"), f"{count(lines, 'line')} {escape(problem)}", "", "", "", aside))
    if not rows:
        return none("Nothing found.")
    shown = sum(report.severities.values())
    more = f'<p class="none">The first {len(report.findings)} of {shown}.</p>' if shown > len(report.findings) else ""
    return table(("severity", "finding", "run", "attempt", "at (UTC)", "detail"), rows, "audit") + more


def _runs(report: Report, tint: dict[str, str]) -> str:
    if not report.runs:
        return none("No run is known to the journals.")
    launched: dict[str, list[str]] = {}
    for attempt in sorted(report.attempts, key=itemgetter("started", "attempt")):
        launched.setdefault(attempt["run"], []).append(attempt["hostname"])
    rows: list[tuple[str, ...]] = []
    for run in report.runs:
        started = run.get("started")
        nodes = launched.get(run["run"]) or ([run["hostname"]] if started else [])
        where = sections.TO.join(node(name, tint) for name in nodes)
        reason = "" if run["state"] == "success" else run.get("reason") or run.get("exception") or ""
        rows.append(
            (
                badge(run["state"]),
                code(run["run"] or run["uuid"]),
                where,
                number(len(nodes) or None),
                instant(started),
                span(run.get("runtime")),
                number(run.get("exit_code")),
                code(run.get("application_id")),
                text(reason),
            )
        )
    total = sum(report.states.values())
    more = f'<p class="none">The latest {len(rows)} of {total}.</p>' if total > len(rows) else ""
    heads = ("state", "run", "launched on", "#launches", "started (UTC)", "#took", "#exit", "application", "reason")
    return table(heads, rows, "latest runs") + more


def _footer(owner: Owner, made_at: float, took_s: float) -> str:
    made = datetime.fromtimestamp(made_at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    by = (
        f"by run <code>{escape(owner.run)}</code>, attempt {owner.attempt}, fencing token <code>{owner.token}</code>"
        if owner.run
        else "by hand, outside coordd (no <code>COORDD_RUN</code>, no token)"
    )
    where = f" on {escape(owner.node)}" if owner.node else ""
    return f"Made {made} UTC {by}{where}, in {took_s:.1f} s."
