"""A section for each job: its durations, what is normal, what stands out, where it ran."""

from __future__ import annotations

from html import escape
from typing import Any

from coordd.history.figures.learning import JOB_MIN, Learned
from coordd.history.pages.charts import fence, trend
from coordd.history.pages.parts import badge, code, count, instant, node, none, percent, span, table, text
from coordd.history.pages.sections import anchor

Rows = list[dict[str, Any]]

# How many of a job's latest runs its table has, and how many outliers it names.
LATEST_SHOWN = 5
OUTLIERS_SHOWN = 5


def details(rows: Rows, trends: dict[str, Rows], placed: Rows, learned: Learned, tint: dict[str, str]) -> str:
    """The sections, in the order of the table of jobs."""
    return "".join(
        _job(place, row, trends[row["job"]], placed, learned, tint)
        for place, row in enumerate(rows)
        if row["job"] in trends
    )


def _job(place: int, row: dict[str, Any], runs: Rows, placed: Rows, learned: Learned, tint: dict[str, str]) -> str:
    on = [one for one in placed if one["job"] == row["job"]]
    where = " ".join(f"{node(one['hostname'], tint)} {one['launches']:,}" for one in on[:12])
    facts = [
        f"{count(row['runs'], 'run')}, {row['succeeded']:,} succeeded, {row['failed']:,} failed",
        f"last {badge(row['last_state'])} {instant(row['last_at'])}",
        where,
    ]
    facts_list = "".join(f"<li>{fact}</li>" for fact in facts if fact)
    return (
        f'<section class="job" id="{anchor(place)}"><h3>{escape(row["job"] or "?")}</h3>'
        f'<ul class="facts">{facts_list}</ul>{trend(runs, row["took"], row["timed"])}'
        f"{_normal(row, learned)}{_outliers(row, runs)}{_latest(runs, tint)}"
        f'<p class="back"><a href="#jobs">all jobs</a></p></section>'
    )


def _normal(row: dict[str, Any], learned: Learned) -> str:
    known = learned.quantiles.get(row["job"])
    if known is None:
        return none(
            f"Expected duration: not enough data ({count(row['timed'], 'success', 'successes')}, {JOB_MIN} are needed)."
        )
    said = f"Expected duration: {span(known['p50'])}; 8 of 10 runs take {span(known['p10'])} to {span(known['p90'])}."
    error = learned.errors.get(row["job"])
    if error is not None and error["judged"]:
        said += (
            f" On held-back days: off by {percent(error['median_error'])} in the median"
            f" of {count(error['judged'], 'run')},"
            f" {percent(error['inside'])} within that range."
        )
    elif learned.held_back:
        said += " Its error is not known: not enough runs before the days that were held back."
    return none(said)


def _outliers(row: dict[str, Any], runs: Rows) -> str:
    limit = fence(row["took"], row["timed"])
    if limit is None:
        return ""
    odd = [run for run in runs if run["took_s"] is not None and run["took_s"] > limit]
    if not odd:
        return none(
            f"None of the latest {count(len(runs), 'run')} took longer than {span(limit)}, which would be an outlier."
        )
    named = ", ".join(
        f"{code(run['run'])} {span(run['took_s'])} on {escape(run['node'] or '')}" for run in odd[-OUTLIERS_SHOWN:]
    )
    return none(
        f"{count(len(odd), 'outlier')} above {span(limit)} among the latest {count(len(runs), 'run')}: {named}."
    )


def _latest(runs: Rows, tint: dict[str, str]) -> str:
    body = [
        (
            badge(run["state"]),
            code(run["run"]),
            node(run["node"], tint),
            instant(run["begun"]),
            span(run["took_s"]),
            span(run["delay_s"]),
            text(f"{run['launches']} launches" if run["launches"] > 1 else ""),
        )
        for run in reversed(runs[-LATEST_SHOWN:])
    ]
    inside = table(("state", "run", "node", "started (UTC)", "#took", "#delay", ""), body, "latest runs")
    return f"<details><summary>latest runs</summary>{inside}</details>"
