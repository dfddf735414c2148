"""Sections about all jobs: who ran what, takeovers, missed and late runs, what is expected."""

from __future__ import annotations

from html import escape
from typing import Any

from coordd.history.figures.counting import BREAKERS_SHOWN, LATE_S, NODES_SHOWN, TROUBLE_SHOWN
from coordd.history.figures.learning import DAYS_MIN, JOB_MIN, RUNNING_SHOWN, Learned
from coordd.history.pages.charts import sparkline
from coordd.history.pages.parts import (
    WEEKDAYS,
    badge,
    code,
    count,
    instant,
    node,
    none,
    number,
    percent,
    share_bar,
    span,
    table,
    text,
)

Rows = list[dict[str, Any]]

# How many warnings are told; those that come true first.
WARNINGS_SHOWN = 50

TO = '<span class="to" aria-label="handed over to">→</span>'


def anchor(place: int) -> str:
    """The id of the section of the job at this place; names of jobs may contain anything."""
    return f"job-{place + 1}"


def jobs(rows: Rows, trends: dict[str, Rows], all_jobs: int) -> str:
    """All jobs in one table; a job with a section of its own is a link to it."""
    if not rows:
        return none("No job is known to the journals.")
    cells = []
    for place, row in enumerate(rows):
        name = escape(row["job"] or "?")
        linked = f'<a href="#{anchor(place)}">{name}</a>' if row["job"] in trends else name
        ended = row["runs"] - row["open"]
        rate = row["succeeded"] / ended if ended else None
        delay, took = row["delay"] or [None, None], row["took"] or [None] * 5
        cells.append(
            (
                linked,
                badge(row["last_state"]),
                number(row["runs"]),
                "" if rate is None else f"{percent(rate)} {share_bar(rate, 'low' if rate < 0.9 else '')}",
                number(row["failed"]) or "0",
                number(row["again"]),
                span(took[2]),
                span(took[4]),
                sparkline(trends.get(row["job"], [])),
                span(delay[0]),
                span(delay[1]),
            )
        )
    heads = (
        "job",
        "last",
        "#runs",
        "succeeded",
        "#failed",
        "#tried again",
        "#half take",
        "#9 of 10",
        "latest",
        "#half wait",
        "#95 % wait",
    )
    more = none(f"The {len(rows)} jobs with the most runs, of {all_jobs:,}.") if all_jobs > len(rows) else ""
    return table(heads, cells, "jobs") + more


def who(placed: Rows, nodes: list[str], tint: dict[str, str]) -> str:
    """Launches of each job on each node."""
    if not placed:
        return none("No launch is known to the journals.")
    totals: dict[str, int] = {}
    by_job: dict[str, dict[str, int]] = {}
    for row in placed:
        by_job.setdefault(row["job"], {})[row["hostname"]] = row["launches"]
        totals[row["hostname"]] = totals.get(row["hostname"], 0) + row["launches"]
    shown = sorted({*nodes, *totals}, key=lambda name: (-totals.get(name, 0), name))[:NODES_SHOWN]
    shown.sort()
    heads = ("job", *[node(name, tint) for name in shown])
    body = []
    for job, on in by_job.items():
        most = max(on.values())
        body.append((escape(job), *[_share(on.get(name, 0), most) for name in shown]))
    more = none(f"The {len(shown)} nodes with the most launches.") if len(shown) < len({*nodes, *totals}) else ""
    return table(heads, body, "who ran what") + more


def _share(launches: int, most: int) -> str:
    return f"{share_bar(launches / most)} {launches:,}" if launches else '<span class="dim">·</span>'


def takeovers(rows: Rows, all_of_them: int, tint: dict[str, str]) -> str:
    """From whom to whom, and how long nobody ran it."""
    if not rows:
        return none("No attempt was lost and taken over.")
    body = [
        (
            instant(row["started"]),
            code(row["run"]),
            TO.join(node(row[end], tint) for end in ("from", "hostname")),
            span(row["begun_before"] and row["started"] - row["begun_before"]),
            span(row["gap_s"]),
            text(row["why"] or ""),
        )
        for row in rows
    ]
    heads = ("taken over (UTC)", "run", "from, to", "#after its start", "#handed over in", "why")
    more = (
        none(f"The latest {len(rows)} of {count(all_of_them, 'run')} that were taken over.")
        if all_of_them > len(rows)
        else ""
    )
    return table(heads, body, "takeovers") + more


def trouble(rows: Rows) -> str:
    """Missed, late and rejected runs: how many, and the latest of each kind."""
    if not rows:
        return none(f"No run was missed, rejected, or later than {span(LATE_S)}.")
    kinds = {row["kind"]: row["of_kind"] for row in rows}
    told = "".join(
        f'<span class="tally"><b>{of:,}</b> {escape(kind)}</span>'
        for kind, of in sorted(kinds.items(), key=lambda one: -one[1])
    )
    body = [
        (badge(row["kind"]), code(row["run"]), instant(row["at"]), span(row["delay_s"]), text(row["reason"] or ""))
        for row in rows
    ]
    more = none(f"The latest {TROUBLE_SHOWN} of each kind.") if any(of > TROUBLE_SHOWN for of in kinds.values()) else ""
    return (
        f'<p class="tallies">{told}</p>'
        + table(("kind", "run", "at (UTC)", "#late by", "reason"), body, "missed and late")
        + more
    )


def breakers(rows: Rows, kept: dict[str, int], tint: dict[str, str]) -> str:
    """Which breakers were not closed: how often they opened, for how long, and how many runs they kept from running."""
    if not rows:
        return none("No breaker opened, as far as the journals tell.")
    body = [
        (
            node(row["hostname"], tint) if row["hostname"] else "all nodes",
            escape(row["breaker"]),
            badge(row["state"].replace("_", "-")) if row["open"] else badge("closed"),
            number(row["opened"]),
            span(row["not_closed_s"]),
            number(kept.get(row["job"], 0)) if row["job"] else "",
            instant(row["last_at"]),
            text(row["reason"] or ""),
        )
        for row in rows
    ]
    heads = ("of", "breaker", "now", "#opened", "#not closed for", "#runs stopped", "last (UTC)", "why")
    more = none(f"The {len(rows)} that opened last; there may be more.") if len(rows) == BREAKERS_SHOWN else ""
    return table(heads, body, "breakers") + more


def critical(rows: Rows) -> str:
    """The busiest hour, the one with the most failures and the one with the longest delay, in a sentence each."""
    said = []
    total = sum(row["starts"] for row in rows)
    if total:
        busy = max(rows, key=lambda row: row["starts"])
        said.append(f"Most starts: {_hour(busy)}, {busy['starts']:,} of {total:,}.")
    failed = max(rows, key=lambda row: row["failed"], default=None)
    if failed is not None and failed["failed"]:
        said.append(f"Most failures: {_hour(failed)}, {failed['failed']:,}.")
    slow = max((row for row in rows if row["delay_s"] is not None), key=lambda row: row["delay_s"], default=None)
    if slow is not None and slow["delay_s"] > 1.0:
        said.append(f"Longest delay: {_hour(slow)}, 5 % of the runs waited {span(slow['delay_s'])} or longer.")
    return f"<p>{' '.join(said)}</p>" if said else ""


def _hour(row: dict[str, Any]) -> str:
    return f"{WEEKDAYS[row['weekday']]} {row['hour']:02d} to {(row['hour'] + 1) % 24:02d}:00"


def expected(learned: Learned, warned: Rows, now: float) -> str:
    """What runs now and when it should end, what may be missed, what collides, and how far all this can be trusted."""
    parts = [_warnings(warned)] if warned else []
    if learned.running:
        parts += ["<h3>Running</h3>", _running(learned.running, now)]
    if learned.collisions:
        parts += ["<h3>Jobs that start together</h3>", _advice(learned.collisions)]
    return "".join(parts) + trust(learned)


def _warnings(warned: Rows) -> str:
    shown = sorted(warned, key=lambda row: (row["at"] is None, row["at"]))[:WARNINGS_SHOWN]
    lines = [
        f"<li><b>{escape(row['job'])}</b> {code(row['run'])} {escape(row['why'])}"
        + (f" ({instant(row['at'], '%m-%d %H:%M')} UTC)" if row["at"] else "")
        + ".</li>"
        for row in shown
    ]
    more = none(f"The first {len(shown)} of {count(len(warned), 'warning')}.") if len(warned) > len(shown) else ""
    return f'<ul class="warned">{"".join(lines)}</ul>{more}'


def _running(rows: Rows, now: float) -> str:
    body = []
    for row in rows:
        age_s = max(0.0, now - row["last_begun"])
        if row["p50"] is None:
            ends = f'<span class="dim">not enough data (fewer than {JOB_MIN} successes)</span>'
            usual = ""
        else:
            late = age_s > row["p90"]
            ends = f"{instant(row['last_begun'] + row['p50'])} to {instant(row['last_begun'] + row['p90'])}"
            ends = f"{badge('late')} longer than 9 of 10 of its runs" if late else ends
            usual = f"{span(row['p50'])} to {span(row['p90'])}" + (" at this hour" if row["by_hour"] else "")
        body.append((code(row["run"]), escape(row["node"] or ""), instant(row["last_begun"]), span(age_s), usual, ends))
    more = f"The {len(rows)} runs that have run the longest; there may be more." if len(rows) == RUNNING_SHOWN else ""
    heads = ("run", "node", "started (UTC)", "#so far", "usually", "expected end (UTC)")
    return table(heads, body, "running") + (none(more) if more else "")


def _advice(rows: Rows) -> str:
    lines = []
    for row in rows:
        later = (
            f"start <b>{escape(row['other'])}</b> {_later(row['took_s'])} later" if row["took_s"] else "start one later"
        )
        lines.append(
            f"<li><b>{escape(row['job'])}</b> and <b>{escape(row['other'])}</b> were due at the same instant"
            f" {row['together']:,} times of {row['runs']:,}; 1 of 10 launches then waited"
            f" {span(row['delay_s'])} or longer."
            f" They need not: {later} (half of the runs of {escape(row['job'])} take {span(row['took_s'])}).</li>"
        )
    return f'<ul class="advice">{"".join(lines)}</ul>'


def _later(seconds: float) -> str:
    """A whole number of minutes, as a schedule has."""
    minutes = max(1, -(-int(seconds) // 60))
    return f"{minutes} min" if minutes < 10 else f"{-(-minutes // 5) * 5} min"


def trust(learned: Learned) -> str:
    """How large the error was on the days that were held back."""
    if not learned.held_back:
        return none(
            f"Not enough data to say how good such expectations are: {count(learned.days, 'day')} with successes,"
            f" and {DAYS_MIN} are needed."
        )
    whole = learned.errors.get(None)
    if whole is None or not whole["judged"]:
        return none(
            f"Not enough data: no job had {JOB_MIN} successes before the last {count(learned.held_back, 'day')},"
            " which are held back to measure the error."
        )
    return none(
        f"Expected durations are quantiles of a job's own successes. Measured on the last"
        f" {count(learned.held_back, 'day')} with only the days before: half of {count(whole['judged'], 'run')}"
        " were off by"
        f" {percent(whole['median_error'])} or less (a plain mean: {percent(whole['mean_error'])}), and"
        f" {percent(whole['inside'])} lay between the 10 % and the 90 % quantile, where 80 % should."
        + (
            f" {count(whole['runs'] - whole['judged'], 'run')} had not enough data."
            if whole["runs"] > whole["judged"]
            else ""
        )
    )
