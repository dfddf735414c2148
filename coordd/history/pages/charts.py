"""Charts as inline SVG: runs over time, durations of a job, hours of the week. Classes of the page give colours."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import Any

from coordd.history.figures.counting import OPEN
from coordd.history.pages.parts import WEEKDAYS, count, none, span

WIDTH = 1000
LEFT = 46  # room for the numbers of the vertical axis
STACK_HEIGHT = 170
TREND_HEIGHT = 120
SPARK_WIDTH, SPARK_HEIGHT, SPARK_MIN = 130, 26, 3
TICKS = 4

# The top of an axis of durations (seconds), so that half of it is a usual duration too.
SPANS = (
    1, 2, 4, 10, 20, 40, 60, 120, 240, 600, 1200, 2400, 3600, 7200, 14_400, 28_800, 57_600, 86_400, 172_800, 604_800,
)  # fmt: skip

# From the bottom of a bar to its top; other states come last, under one name.
ORDER = ("success", "started", "received", "pending", "retry", "revoked", "rejected", "failure")
OTHER = "other"

CELL, CELL_GAP, CELL_LEFT, CELL_TOP = 36, 3, 46, 20

# A duration that far above the middle half is an outlier (Tukey's outer fence), if the job has FENCE_MIN durations.
FENCE = 3.0
FENCE_MIN = 10


def svg(height: float, title: str, parts: list[str], width: float = WIDTH) -> str:
    """A drawing with its name for readers of screens."""
    return f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def over_time(buckets: list[dict[str, Any]], step_s: int) -> str:
    """Runs by state: one bar for each stretch of ``step_s`` seconds. A failure stands on top, where it is seen."""
    if not buckets:
        return none("No run is known to the journals.")
    stacks: dict[float, dict[str, int]] = {}
    for row in buckets:
        state = row["state"] if row["state"] in ORDER else OTHER
        stack = stacks.setdefault(row["at"], {})
        stack[state] = stack.get(state, 0) + row["runs"]
    first, last = min(stacks), max(stacks)
    slots = max(8, round((last - first) / step_s) + 1)
    tallest = max(sum(stack.values()) for stack in stacks.values())
    top = _round_up(tallest)
    room = (WIDTH - LEFT - 8) / slots
    parts = [_level(level, top) for level in _levels(top)]
    for at, stack in sorted(stacks.items()):
        x, y = LEFT + (at - first) / step_s * room, float(STACK_HEIGHT)
        said = ", ".join(f"{number:,} {state}" for state, number in stack.items())
        bar = [f"<title>{_moment(at, step_s)} UTC: {escape(said)}</title>"]
        for state in (*ORDER, OTHER):
            if state in stack:
                height = max(stack[state] / top * (STACK_HEIGHT - 12), 2.0)
                y -= height
                bar.append(
                    f'<rect class="s-{state}" x="{x + room * 0.1:.1f}" y="{y:.1f}" width="{min(room * 0.8, 60):.1f}"'
                    f' height="{max(height - 0.8, 1.2):.1f}"/>'
                )
        parts.append(f"<g>{''.join(bar)}</g>")
    every = max(1, -(-slots // 8))
    for slot in range(0, slots, every):
        x = LEFT + (slot + 0.1) * room
        word = _moment(first + slot * step_s, step_s)
        parts.append(f'<text class="tick-text" x="{x:.1f}" y="{STACK_HEIGHT + 18}">{word}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 8}" y1="{STACK_HEIGHT}" y2="{STACK_HEIGHT}"/>')
    states = [state for state in (*ORDER, OTHER) if any(state in stack for stack in stacks.values())]
    keys = "".join(f'<span><i class="dot s-{state}"></i>{state}</span>' for state in states)
    title = f"runs by state, in steps of {span(step_s)}"
    return svg(STACK_HEIGHT + 26, title, parts) + f'<p class="keys">{keys}<span>one bar: {span(step_s)}</span></p>'


def fence(took: list[float] | None, timed: int) -> float | None:
    """Above this duration (seconds) a success is an outlier; None with too few. ``took``: a job's five quantiles."""
    if not took or timed < FENCE_MIN:
        return None
    _, q25, median, q75, _ = took
    return max(q75 + FENCE * (q75 - q25), median * 1.5)


def trend(runs: list[dict[str, Any]], took: list[float] | None, timed: int) -> str:
    """A job's latest runs, each a mark at its duration; the band has 8 of 10 successes, its line is the median."""
    shown = [(run, _length(run)) for run in runs]
    lengths = [length for _, length in shown if length is not None]
    if not lengths:
        return none("No run of it has ended.")
    limit = fence(took, timed)
    top = next((step for step in SPANS if step >= max(lengths)), max(lengths)) or 1.0
    room = (WIDTH - LEFT - 8) / max(len(shown), 12)
    parts = [_level(level, top, TREND_HEIGHT, time=True) for level in _levels(top)]
    if took and timed >= FENCE_MIN:
        low, high = (TREND_HEIGHT - _up(value, top) for value in (took[0], took[4]))
        middle = TREND_HEIGHT - _up(took[2], top)
        parts.append(
            f'<rect class="band" x="{LEFT}" y="{high:.1f}" width="{WIDTH - LEFT - 8}"'
            f' height="{max(low - high, 1):.1f}"/>'
        )
        parts.append(f'<line class="median" x1="{LEFT}" x2="{WIDTH - 8}" y1="{middle:.1f}" y2="{middle:.1f}"/>')
    for place, (run, length) in enumerate(shown):
        x = LEFT + (place + 0.5) * room
        if length is None:
            continue
        y = TREND_HEIGHT - _up(length, top)
        odd = limit is not None and run["state"] == "success" and length > limit
        parts.append(_mark(run, length, x, y, odd))
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - 8}" y1="{TREND_HEIGHT}" y2="{TREND_HEIGHT}"/>')
    for place in sorted({0, len(shown) // 2, len(shown) - 1}):
        at = datetime.fromtimestamp(shown[place][0]["at"], UTC).strftime("%m-%d %H:%M")
        anchor = "start" if place == 0 else "end" if place == len(shown) - 1 and len(shown) > 11 else "middle"
        parts.append(
            f'<text class="tick-text" style="text-anchor:{anchor}" x="{LEFT + (place + 0.5) * room:.1f}"'
            f' y="{TREND_HEIGHT + 17}">{at}</text>'
        )
    return svg(TREND_HEIGHT + 24, f"durations of the latest {count(len(shown), 'run')}", parts)


def sparkline(runs: list[dict[str, Any]]) -> str:
    """The durations of a job's latest runs as a line, without an axis; a failure is a mark."""
    lengths = [(_length(run), run["state"]) for run in runs]
    known = [length for length, _ in lengths if length is not None]
    if len(known) < SPARK_MIN:
        return ""
    top = max(known) or 1.0
    points, marks = [], []
    for place, (length, state) in enumerate(lengths):
        if length is None:
            continue
        x = 3 + place * (SPARK_WIDTH - 6) / max(len(lengths) - 1, 1)
        y = SPARK_HEIGHT - 3 - length / top * (SPARK_HEIGHT - 6)
        points.append(f"{x:.1f},{y:.1f}")
        if state == "failure":
            marks.append(f'<circle class="s-failure" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>')
    line = f'<polyline class="spark" points="{" ".join(points)}"/>'
    name = f"durations of the latest {count(len(known), 'run')}, up to {span(top)}"
    return (
        f'<svg class="small" viewBox="0 0 {SPARK_WIDTH} {SPARK_HEIGHT}" width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}"'
        f' role="img" aria-label="{name}">{line}{"".join(marks)}</svg>'
    )


def week(hours: list[dict[str, Any]]) -> str:
    """The hours of the week: the darker, the more starts; a mark where runs failed; the title has the delay."""
    if not any(row["starts"] for row in hours):
        return none("No launch is known to the journals.")
    most = max(row["starts"] for row in hours)
    days = sorted({row["weekday"] for row in hours})
    parts = [
        f'<text class="tick-text" x="{CELL_LEFT + (hour + 0.5) * (CELL + CELL_GAP):.1f}" y="13">{hour:02d}</text>'
        for hour in range(24)
    ]
    by_place = {(row["weekday"], row["hour"]): row for row in hours}
    for line, day in enumerate(days):
        y = CELL_TOP + line * (26 + CELL_GAP)
        parts.append(f'<text class="label" x="{CELL_LEFT - 8}" y="{y + 17}">{WEEKDAYS[day]}</text>')
        for hour in range(24):
            x = CELL_LEFT + hour * (CELL + CELL_GAP)
            row = by_place.get((day, hour))
            parts.append(f'<rect class="cell" x="{x}" y="{y}" width="{CELL}" height="26" rx="4"/>')
            if row is None:
                continue
            said = f"{WEEKDAYS[day]} {hour:02d}:00 UTC: {count(row['starts'], 'start')}"
            said += f", {row['failed']:,} failed" if row["failed"] else ""
            said += f", 95 % within {span(row['delay_s'])} of their time" if row["delay_s"] is not None else ""
            strength = 0.16 + 0.84 * row["starts"] / most if row["starts"] else 0.0
            ink = "on-dark" if strength > 0.55 else "on-light"
            dot = f'<circle class="s-failure ring" cx="{x + CELL - 7}" cy="{y + 7}" r="3.6"/>' if row["failed"] else ""
            parts.append(
                f'<g><title>{said}</title><rect class="heat" style="fill-opacity:{strength:.2f}" x="{x}" y="{y}"'
                f' width="{CELL}" height="26" rx="4"/>'
                f'<text class="in-cell {ink}" x="{x + CELL / 2 - 2:g}" y="{y + 17}">'
                f"{_brief(row['starts'])}</text>{dot}</g>"
            )
    keys = '<p class="keys"><span><i class="dot heat-key"></i>starts in that hour (UTC)</span>'
    keys += '<span><i class="dot round s-failure"></i>some failed</span></p>'
    return (
        svg(
            CELL_TOP + len(days) * (26 + CELL_GAP),
            "starts in each hour of the week",
            parts,
            width=CELL_LEFT + 24 * (CELL + CELL_GAP),
        )
        + keys
    )


def _mark(run: dict[str, Any], length: float, x: float, y: float, odd: bool) -> str:
    said = f"{run['run']} on {run['node']}: {run['state']} after {span(length)}" + (", an outlier" if odd else "")
    said += f", {run['launches']} launches" if run["launches"] > 1 else ""
    if run["state"] == "success":
        ring = f'<circle class="odd" cx="{x:.1f}" cy="{y:.1f}" r="8"/>' if odd else ""
        over = "" if run["launches"] == 1 else f'<circle class="again" cx="{x:.1f}" cy="{y:.1f}" r="1.7"/>'
        drawn = f'{ring}<circle class="s-success" cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>{over}'
    elif run["over"] is None or run["state"] in OPEN:  # an earlier attempt may be over
        drawn = f'<circle class="open-mark" cx="{x:.1f}" cy="{y:.1f}" r="4.2"/>'
    else:
        drawn = f'<path class="cross" d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"/>'
    return f"<g><title>{escape(said)}</title>{drawn}</g>"


def _length(run: dict[str, Any]) -> float | None:
    """How long a run took: its success, or else from its first launch to its last end."""
    if run["took_s"] is not None:
        return float(run["took_s"])
    return None if run["over"] is None else max(0.0, float(run["over"] - run["begun"]))


def _up(value: float, top: float) -> float:
    return value / top * (TREND_HEIGHT - 14)


def _levels(top: float) -> list[float]:
    return [top] if top == 1 else [top / 2, top]


def _level(value: float, top: float, height: int = STACK_HEIGHT, *, time: bool = False) -> str:
    y = height - value / top * (height - (14 if time else 12))
    word = span(value) if time else f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
    return (
        f'<line class="tick" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="label dim" x="{LEFT - 7}" y="{y + 4:.1f}">{word}</text>'
    )


def _round_up(value: float) -> float:
    """The next 1, 2, 4, 6, 8 or 10 times a power of ten."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while value > 0 and power > value:
        power /= 10
    return next((step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value), 10 * power) or 1.0


def _brief(value: int) -> str:
    """A number that fits into a cell."""
    if not value:
        return ""
    return f"{value}" if value < 1000 else f"{value / 1000:.1f}k" if value < 10_000 else f"{value // 1000}k"


def _moment(at: float, step_s: int) -> str:
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 3600 else "%m-%d %Hh" if step_s < 86_400 else "%m-%d"
    return datetime.fromtimestamp(at, UTC).strftime(form)
