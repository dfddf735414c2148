"""The latest runs over time, as inline SVG: a bar for each attempt, in the colour of its node.

An attempt that has ended has a closed bar and a mark for its outcome. One that was given up fades out, because nobody
saw its end; an arrow leads to the attempt that took over. One that still runs is open to the right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Any

from coordd.history.pages.charts import WIDTH, svg
from coordd.history.pages.parts import none, span

# Colours that colour-blind people can distinguish (Okabe and Ito); neighbours are far apart.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6fc9", "#7a7a7a")
# Those on which white text is hard to read.
LIGHT = frozenset(("#e69f00", "#56b4e9", "#cc79a7", "#009e73"))

LABEL_WIDTH = 265
RIGHT = 34  # room for the mark of the last outcome
ROW_HEIGHT, BAR_HEIGHT = 26, 16
ROWS_MAX = 4  # of one run; further attempts share the last row
LABEL_MAX = 32
TICKS = 6

# Possible distances between ticks, in seconds.
STEPS = (
    0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
    86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000,
)  # fmt: skip

MARKS = {"success": "✓", "failure": "✕", "revoked": "■"}

# An attempt as drawn.
ENDED, GIVEN_UP, RUNNING = "closed", "lost", "open"

# From an instant to its x position in the drawing.
Scale = Callable[[float], float]


def colours(nodes: list[str]) -> dict[str, str]:
    """One colour per node; with more nodes than colours, they repeat."""
    return {node: PALETTE[number % len(PALETTE)] for number, node in enumerate(nodes)}


def timeline(attempts: list[dict[str, Any]], runs: list[dict[str, Any]], tint: dict[str, str]) -> str:
    """A lane for each run, in which each attempt has a row."""
    lanes: dict[str, list[dict[str, Any]]] = {}
    for attempt in sorted(attempts, key=lambda a: (a["started"], a["attempt"])):
        lanes.setdefault(attempt["run"], []).append(attempt)
    if not lanes:
        return none("No launch is known to the journals.")
    begin: float = min(a["started"] for a in attempts)
    until: float = max(
        [
            begin + 1.0,
            *(a["ended"] or a["started"] for a in attempts),
            *(r["timestamp"] for r in runs if r["run"] in lanes),
        ]
    )
    room = WIDTH - LABEL_WIDTH - RIGHT
    heights = {run: ROW_HEIGHT * min(len(lane), ROWS_MAX) for run, lane in lanes.items()}
    height = sum(heights.values())

    def x(instant: float) -> float:
        return LABEL_WIDTH + room * (instant - begin) / (until - begin)

    parts = [_gradients(tint), _ticks(begin, until, height, x)]
    y = 0
    for run, lane in lanes.items():
        name = f"{escape(_short(run))}<title>{escape(run)}</title>"
        parts.append(f'<text class="label" x="{LABEL_WIDTH - 12}" y="{y + 17}">{name}</text>')
        rows = [y + ROW_HEIGHT * min(place, ROWS_MAX - 1) for place in range(len(lane))]
        following = [*lane[1:], None]
        for attempt, after, row in zip(lane, following, rows, strict=True):
            parts.append(_bar(attempt, after, row, x, until, tint, many=len(lane) > 1))
        for (one, at), (other, to) in pairwise(zip(lane, rows, strict=True)):
            parts.append(_hand_over(one, other, at, to, x))
        y += heights[run]
        parts.append(f'<line class="lane" x1="0" x2="{WIDTH}" y1="{y}" y2="{y}"/>')
    return svg(height + 30, "attempts over time", parts) + _keys(tint)


def _keys(tint: dict[str, str]) -> str:
    nodes = "".join(f'<span><i class="dot" style="background:{c}"></i>{escape(n)}</span>' for n, c in tint.items())
    words = "".join(f"<span>{mark} {word}</span>" for word, mark in MARKS.items())
    return f'<p class="keys">{nodes}{words}<span>↷ handed over</span><span>⋯ running</span></p>'


def shape(attempt: dict[str, Any], after: dict[str, Any] | None) -> str:
    """How an attempt is drawn. It was given up if it was tried again without a known exit."""
    given_up = attempt["outcome"] in ("retry", None) and attempt.get("exit_code") is None
    if attempt["ended"] is not None and not given_up:
        return ENDED
    return GIVEN_UP if after is not None or attempt["outcome"] == "retry" else RUNNING


def _bar(
    attempt: dict[str, Any],
    after: dict[str, Any] | None,
    y: int,
    x: Scale,
    until: float,
    tint: dict[str, str],
    *,
    many: bool,
) -> str:
    colour, drawn = tint.get(attempt["hostname"], PALETTE[-1]), shape(attempt, after)
    ended = attempt["ended"]
    if ended is None:
        ended = after["started"] if after is not None else until
    left, width = x(attempt["started"]), max(x(ended) - x(attempt["started"]), 4.0)
    right, top = left + width, y + (ROW_HEIGHT - BAR_HEIGHT) / 2
    lasted_s = ended - attempt["started"]
    told = {
        ENDED: f"{attempt['outcome']} after {span(lasted_s)}",
        GIVEN_UP: f"given up after {span(lasted_s)}; nobody saw its end",
        RUNNING: "no end known",
    }[drawn]
    said = f"{attempt['run']} attempt {attempt['attempt']} on {attempt['hostname']}: {told}"
    if attempt.get("reason"):
        said += f" ({attempt['reason']})"
    fill = colour if drawn == ENDED else f"url(#fade{PALETTE.index(colour)})"
    ink = "dark-ink" if colour in LIGHT else "light-ink"
    word = f"attempt {attempt['attempt']}" if many and width > 90 else str(attempt["attempt"]) if many else ""
    if drawn == RUNNING and width > 90:
        word = f"{word} ⋯ running" if word else "⋯ running"
    inside = f'<text class="inside {ink}" x="{left + 7:.1f}" y="{y + 17}">{word}</text>' if width > 26 and word else ""
    mark = MARKS.get(attempt["outcome"] or "", "") if drawn == ENDED else ""
    outside = (
        f'<text class="mark m-{attempt["outcome"]}" x="{right + 5:.1f}" y="{y + 18}">{mark}</text>' if mark else ""
    )
    return (
        f'<g><title>{escape(said)}</title><rect class="{drawn}" x="{left:.1f}" y="{top:g}" width="{width:.1f}"'
        f' height="{BAR_HEIGHT}" rx="3" fill="{fill}" stroke="{colour}"/>{inside}{outside}</g>'
    )


def _hand_over(one: dict[str, Any], other: dict[str, Any], y: int, to: int, x: Scale) -> str:
    """An arrow from the end of an attempt down to the one on another node that took over."""
    if one["hostname"] == other["hostname"]:
        return ""
    left, right = x(one["ended"] or other["started"]), x(other["started"])
    top, bottom = y + ROW_HEIGHT / 2, to + ROW_HEIGHT / 2
    title = f"{other['hostname']} took over from {one['hostname']}"
    bend = min(left, right) - 16 if right - left < 12 else right
    if to == y:
        way = f"M{left:.1f} {top:g}L{right:.1f} {top:g}"
    elif bend < right:
        way = f"M{left:.1f} {top:g}m0 0C{left + 22:.1f} {top:g} {bend - 8:.1f} {bottom:g} {right - 2:.1f} {bottom:g}"
    else:
        way = f"M{left:.1f} {top:g}C{right:.1f} {top:g} {left:.1f} {bottom:g} {right - 2:.1f} {bottom:g}"
    head = "m-6 -4l6 4l-6 4"
    return f'<g><title>{escape(title)}</title><path class="over" d="{way}{head}"/></g>'


def _gradients(tint: dict[str, str]) -> str:
    stops = (
        '<stop offset="0" stop-color="{0}"/><stop offset=".3" stop-color="{0}"/>'
        '<stop offset="1" stop-color="{0}" stop-opacity=".1"/>'
    )
    fades = "".join(
        f'<linearGradient id="fade{PALETTE.index(c)}">{stops.format(c)}</linearGradient>'
        for c in sorted({*tint.values(), PALETTE[-1]})
    )
    return f"<defs>{fades}</defs>"


def _ticks(begin: float, until: float, height: int, x: Scale) -> str:
    step = next((s for s in STEPS if (until - begin) / s <= TICKS), STEPS[-1])
    form = "%H:%M:%S" if until - begin < 86400 else "%m-%d %H:%M"
    parts = []
    instant = begin - begin % step + step
    for _ in range(TICKS * 2):
        if instant > until:
            break
        at, word = x(instant), datetime.fromtimestamp(instant, UTC).strftime(form)
        parts.append(
            f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height + 6}"/>'
            f'<text class="tick-text" x="{min(at, WIDTH - 32):.1f}" y="{height + 22}">{word}</text>'
        )
        instant += step
    return "".join(parts)


def _short(text: str) -> str:
    """A label shortened to its column: the end of a run's id says more than its middle."""
    text = re.sub(r"\.\d+Z$", "Z", text)  # whole seconds are enough for a label
    return text if len(text) <= LABEL_MAX else f"{text[: LABEL_MAX - 21]}…{text[-20:]}"
