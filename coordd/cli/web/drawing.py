"""The pictures: the grid of a job's fire times, the bars of its durations, a run's lane for each node. Pure.

Each picture has its words beside it or in it, so nobody needs colours or a mouse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from coordd.cli.show.phrases import duration, instant

# Days of the grid, and bars.
DAYS = 30
BARS_MAX = 60

# Bad ones first: a cell of several fire times shows the worst.
WORST = (
    "failure", "lost", "missed", "unknown", "not known", "rejected", "limited", "revoked", "suspended", "blackout",
    "held", "skipped", "retry", "received", "started", "pending", "coalesced", "launched", "success",
)  # fmt: skip

# A sign for each word, for those who do not see the colours.
SIGNS = {
    "success": "✓", "failure": "✕", "lost": "✕", "missed": "!", "unknown": "?", "not known": "?", "rejected": "⊘",
    "limited": "⊘", "revoked": "⊘", "suspended": "‖", "blackout": "‖", "held": "‖", "skipped": "-", "coalesced": "·",
    "retry": "↻", "started": "▶", "received": "▶", "pending": "…", "launched": "▶",
}  # fmt: skip

# How the reason of a fire time begins that is still to be decided (services.views.fires.NOT_YET).
NOT_YET = "not decided yet"


class Cell(NamedTuple):
    """The fire times of one hour of one day. ``word``: the worst; "" for none."""

    word: str
    title: str

    @property
    def sign(self) -> str:
        return SIGNS.get(self.word, "")


class Grid(NamedTuple):
    """``days``: the dates of the columns. ``rows``: (hour, its cells). ``since``: before this date nothing is known."""

    days: list[str]
    rows: list[tuple[str, list[Cell]]]
    since: str


def grid(fires: Sequence[Mapping[str, Any]], states: Mapping[str, str], now: float) -> Grid:
    """The last DAYS days, in UTC. ``fires``: the answer of job.fires, ``states``: run -> its state now."""
    today = datetime.fromtimestamp(now, UTC).date()
    days = [(today - timedelta(days=back)).isoformat() for back in reversed(range(DAYS))]
    found: dict[tuple[str, str], list[str]] = {}
    for fire in fires:
        at = str(fire["fire_time"])
        decision = decided(fire)
        state = states.get(str(fire.get("run") or "")) or fire.get("state")  # a group is in no list of runs
        word = str(state or decision) if decision == "launched" else decision
        found.setdefault((at[:10], at[11:13]), []).append(word)
    hours = sorted({hour for _, hour in found})
    rows = [(f"{hour}:00", [_cell(day, hour, found.get((day, hour), ())) for day in days]) for hour in hours]
    return Grid(days, rows, str(fires[0]["fire_time"])[:10] if fires else "")


def decided(fire: Mapping[str, Any]) -> str:
    """The decision about a fire time of job.fires; without one: whether there will be one."""
    waits = fire.get("state") == "pending" or str(fire.get("reason") or "").startswith(NOT_YET)
    return str(fire.get("decision") or ("pending" if waits else "not known"))


def _cell(day: str, hour: str, words: Sequence[str]) -> Cell:
    if not words:
        return Cell("", "")
    counts = {word: words.count(word) for word in sorted(set(words), key=_badness)}
    told = ", ".join(f"{count} {word}" if len(words) > 1 else word for word, count in counts.items())
    return Cell(next(iter(counts)), f"{day} {hour}h: {told}")


def _badness(word: str) -> int:
    return WORST.index(word) if word in WORST else 0


class Bar(NamedTuple):
    """One run that has ended, for the picture of durations (coordinates in its units)."""

    run: str
    state: str
    x: float
    y: float
    height: float
    title: str


class Bars(NamedTuple):
    """Bars from old to new. ``top``: what the full height means."""

    bars: list[Bar]
    width: int
    height: int
    top: str


def bars(runs: Iterable[Mapping[str, Any]]) -> Bars:
    """The durations of the newest runs. ``runs``: newest first."""
    ended = [run for run in runs if run.get("runtime_s") is not None and run.get("ended_at")][:BARS_MAX][::-1]
    longest = max((float(run["runtime_s"]) for run in ended), default=0.0) or 1.0
    height, step = 80, 10
    drawn = []
    for number, run in enumerate(ended):
        tall = max(2.0, height * float(run["runtime_s"]) / longest)
        title = f"{run['id']}: {run['state']} after {duration(run['runtime_s'])}"
        drawn.append(Bar(run["id"], run["state"], number * step, round(height - tall, 1), round(tall, 1), title))
    return Bars(drawn, max(1, len(drawn)) * step, height, duration(longest) if ended else "")


class Dot(NamedTuple):
    """One step of a timeline."""

    x: float
    y: float
    what: str
    title: str


class Stretch(NamedTuple):
    """An attempt, from its start to its end."""

    x: float
    y: float
    width: float
    state: str
    title: str


class Lanes(NamedTuple):
    """A timeline with a lane for each node (coordinates in its units)."""

    names: list[tuple[str, float]]  # (node, the middle of its lane)
    dots: list[Dot]
    stretches: list[Stretch]
    width: int
    height: int
    first: str
    last: str


LANE = 26
LEFT, WIDTH = 120, 900

# What belongs to no node has this lane.
CLUSTER = "cluster"


def lanes(timeline: Sequence[Mapping[str, Any]], attempts: Sequence[Mapping[str, Any]], now: float) -> Lanes:
    """``timeline``: steps with at, node, what, detail; ``attempts``: those of run.show."""
    steps = [(instant(step.get("at")), step) for step in timeline]
    spans = [(instant(one.get("started_at")), instant(one.get("ended_at")) or now, one) for one in attempts]
    times = [at for at, _ in steps if at is not None]
    times += [edge for begin, end, _ in spans if begin is not None for edge in (begin, end)]
    names = sorted({_lane(step.get("node")) for _, step in steps} | {_lane(one.get("node")) for *_, one in spans})
    names.sort(key=lambda name: name != CLUSTER)
    first, last = min(times, default=now), max(times, default=now)
    scale = (WIDTH - LEFT - 20) / ((last - first) or 1.0)
    middle = {name: LANE * number + LANE / 2 for number, name in enumerate(names)}
    dots = [
        Dot(
            round(LEFT + (at - first) * scale, 1),
            middle[_lane(step.get("node"))],
            str(step.get("what")),
            f"{step.get('at')} {_lane(step.get('node'))}: {step.get('what')} {step.get('detail') or ''}".strip(),
        )
        for at, step in steps
        if at is not None
    ]
    stretches = [
        Stretch(
            round(LEFT + (begin - first) * scale, 1),
            middle[_lane(one.get("node"))],
            round(max(2.0, (end - begin) * scale), 1),
            str(one.get("state")),
            f"attempt {one.get('attempt')}: {one.get('state')}, {duration(end - begin)}",
        )
        for begin, end, one in spans
        if begin is not None
    ]
    return Lanes(list(middle.items()), dots, stretches, WIDTH, LANE * len(names), _said(first), _said(last))


def _lane(node: Any) -> str:
    """A daemon that was started again stays in its lane."""
    return host(node or CLUSTER)


def host(node: Any) -> str:
    """A node's name without its pid."""
    name = str(node or "")
    before, dot, pid = name.rpartition(".")
    return before if dot and pid.isdecimal() else name


def _said(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")
