"""The report's drawings, as inline SVG: launches per node, and attempts over time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from itertools import pairwise
from typing import Any

# Colours that colour-blind people can distinguish (Okabe and Ito); neighbours are far apart.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a6fc9", "#7a7a7a")

WIDTH = 1000
LABEL_WIDTH = 265
ROW_HEIGHT = 26
LABEL_MAX = 32
TICKS = 6

# Possible distances between ticks, in seconds.
STEPS = (
    0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200,
    86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000,
)  # fmt: skip


# From an instant to its x position in the drawing.
Scale = Callable[[float], float]


def colours(nodes: list[str]) -> dict[str, str]:
    """One colour per node; with more nodes than colours, they repeat."""
    return {node: PALETTE[number % len(PALETTE)] for number, node in enumerate(nodes)}


def bars(launches: dict[str, int], tint: dict[str, str]) -> str:
    """Launches per node; every known node has a bar, even an empty one."""
    if not tint:
        return '<p class="none">No node is known to the journals.</p>'
    most = max([1, *launches.values()])
    room = WIDTH - LABEL_WIDTH - 70
    parts = []
    for number, (node, colour) in enumerate(tint.items()):
        count = launches.get(node, 0)
        y, width = number * ROW_HEIGHT, room * count / most
        parts.append(
            f'<text class="label" x="{LABEL_WIDTH - 12}" y="{y + 17}">{escape(_short(node))}</text>'
            f'<rect x="{LABEL_WIDTH}" y="{y + 4}" width="{max(width, 1):.1f}" height="18" rx="3" fill="{colour}"/>'
            f'<text x="{LABEL_WIDTH + width + 8:.1f}" y="{y + 17}">{count:,}</text>'
        )
    return _svg(len(tint) * ROW_HEIGHT + 4, "launches per node", parts)


def timeline(attempts: list[dict[str, Any]], runs: list[dict[str, Any]], tint: dict[str, str]) -> str:
    """One line per run, one bar per attempt, in its node's colour. A bar without a known end fades out, up to the
    next attempt; an arrow leads from an attempt to the one that took over on another node.
    """
    lanes: dict[str, list[dict[str, Any]]] = {}
    for attempt in sorted(attempts, key=lambda a: (a["started"], a["attempt"])):
        lanes.setdefault(attempt["run"], []).append(attempt)
    if not lanes:
        return '<p class="none">No launch is known to the journals.</p>'
    begin: float = min(a["started"] for a in attempts)
    until: float = max(
        [
            begin + 1.0,
            *(a["ended"] or a["started"] for a in attempts),
            *(r["timestamp"] for r in runs if r["run"] in lanes),
        ]
    )
    room = WIDTH - LABEL_WIDTH - 20
    height = len(lanes) * ROW_HEIGHT

    def x(instant: float) -> float:
        return LABEL_WIDTH + room * (instant - begin) / (until - begin)

    parts = [_gradients(tint), _ticks(begin, until, height, x)]
    for number, (run, lane) in enumerate(lanes.items()):
        y = number * ROW_HEIGHT
        name = f"{escape(_short(run))}<title>{escape(run)}</title>"
        label = f'<text class="label" x="{LABEL_WIDTH - 12}" y="{y + 17}">{name}</text>'
        parts.append(f'<line class="lane" x1="0" x2="{WIDTH}" y1="{y + ROW_HEIGHT}" y2="{y + ROW_HEIGHT}"/>{label}')
        following = [*lane[1:], None]
        parts += [_bar(attempt, after, y, x, until, tint) for attempt, after in zip(lane, following, strict=True)]
        parts += [_arrow(one, other, y, x) for one, other in pairwise(lane)]
    keys = "".join(f'<span><i class="dot" style="background:{c}"></i>{escape(n)}</span>' for n, c in tint.items())
    return _svg(height + 34, "attempts over time", parts) + f'<p class="keys">{keys}</p>'


def _bar(
    attempt: dict[str, Any], after: dict[str, Any] | None, y: int, x: Scale, until: float, tint: dict[str, str]
) -> str:
    colour = tint.get(attempt["hostname"], PALETTE[-1])
    ended = attempt["ended"]
    unknown = ended is None
    if unknown:
        ended = after["started"] if after else until
    left, width = x(attempt["started"]), max(x(ended) - x(attempt["started"]), 4)
    outcome = attempt["outcome"] or "no end known"
    said = f"{attempt['run']} attempt {attempt['attempt']} on {attempt['hostname']}: {outcome}"
    if not unknown:
        said += f" after {attempt['ended'] - attempt['started']:.1f} s"
    if attempt.get("reason"):
        said += f" ({attempt['reason']})"
    fill = f"url(#fade{PALETTE.index(colour)})" if unknown else colour
    mark = {"failure": "✕", "revoked": "■", "retry": "↻"}.get(attempt["outcome"] or "", "")
    text = f"{attempt['attempt']}{' ' + mark if mark else ''}"
    inside = f'<text class="inside" x="{left + 6:.1f}" y="{y + 17}">{text}</text>' if width > 26 else ""
    return (
        f'<g><title>{escape(said)}</title><rect class="{"open" if unknown else "closed"}" x="{left:.1f}" y="{y + 5}"'
        f' width="{width:.1f}" height="17" rx="3" fill="{fill}" stroke="{colour}"/>{inside}</g>'
    )


def _arrow(one: dict[str, Any], other: dict[str, Any], y: int, x: Scale) -> str:
    """An arrow from the end of an attempt to the next one, if that was on another node."""
    if one["hostname"] == other["hostname"]:
        return ""
    left, right = x(one["ended"] or other["started"]), x(other["started"])
    return f'<path class="over" d="M{left:.1f} {y + 13.5} L{right:.1f} {y + 13.5} m-5 -4 l5 4 l-5 4"/>'


def _gradients(tint: dict[str, str]) -> str:
    stops = '<stop offset="0" stop-color="{0}"/><stop offset="1" stop-color="{0}" stop-opacity=".12"/>'
    fades = "".join(
        f'<linearGradient id="fade{PALETTE.index(c)}">{stops.format(c)}</linearGradient>'
        for c in sorted(set(tint.values()))
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
            f'<line class="tick" x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height + 8}"/>'
            f'<text class="time" x="{at:.1f}" y="{height + 24}">{word}</text>'
        )
        instant += step
    return "".join(parts)


def _short(text: str) -> str:
    """A label shortened to its column: the end of a run's id says more than its middle."""
    text = re.sub(r"\.\d+Z$", "Z", text)  # whole seconds are enough for a label
    return text if len(text) <= LABEL_MAX else f"{text[: LABEL_MAX - 21]}…{text[-20:]}"


def _svg(height: int, title: str, parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">{"".join(parts)}</svg>'
