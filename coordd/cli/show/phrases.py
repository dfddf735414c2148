"""Short texts for people: durations, distances in time, sizes, lists."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from coordd.core.visible import visible

_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


def duration(seconds: float | None) -> str:
    """At most two units: 850 ms, 12.3 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return ""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    left = round(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


def instant(text: str | None) -> float | None:
    """Unix seconds of an ISO 8601 text; None for an empty or invalid text."""
    try:
        return datetime.fromisoformat(text).timestamp() if text else None
    except ValueError:
        return None


def just_before(fire: Mapping[str, Any]) -> float:
    """An instant (Unix seconds) before a fire time and after the one before it: they are told in milliseconds."""
    return (instant(fire["fire_time"]) or 0.0) - 0.001


def runs_and_searched(found: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """The runs in an answer of `run.list`, and how far it searched: its last item, if there may be more. An older
    daemon does not tell it.
    """
    return (found[:-1], found[-1]) if found and "searched" in found[-1] else (found, None)


def distance(at: float | None, now: float) -> str:
    """ "in 3 h", "12 s ago". One unit, because the instant itself is beside it."""
    if at is None:
        return ""
    seconds = at - now
    if abs(seconds) < 1:
        return "now"
    left = round(abs(seconds))
    unit, size = next((unit, size) for unit, size in _UNITS if left >= size)
    return f"in {left // size} {unit}" if seconds > 0 else f"{left // size} {unit} ago"


def moment(at: float | None, now: float) -> str:
    """The instant in UTC (without today's date) and its distance: 02:00:00 (in 3 h)."""
    if at is None:
        return ""
    then, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    shape = "%H:%M:%S" if then.date() == today.date() else "%Y-%m-%d %H:%M:%S"
    return f"{then.strftime(shape)} ({distance(at, now)})"


def size(count: float | None) -> str:
    """Bytes: 512 B, 1.5 MiB."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def some(count: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def percent(progress: Mapping[str, Any]) -> int:
    """How much of its tasks a Spark run has done, rounded down."""
    tasks = count(progress, "tasks")
    return min(100, 100 * count(progress, "tasks_done") // tasks) if tasks else 0


def advanced(progress: Mapping[str, Any]) -> str:
    """How far a Spark run is: 30 %, 12 of 40 tasks, 2 of 3 stages, about 3 min left."""
    failed, left_s = count(progress, "tasks_failed"), progress.get("left_s")
    told = [
        f"{percent(progress)} %",
        f"{count(progress, 'tasks_done')} of {some(count(progress, 'tasks'), 'task')}",
        f"{count(progress, 'stages_done')} of {some(count(progress, 'stages'), 'stage')}",
    ]
    if failed:
        told.append(f"{some(failed, 'task')} failed")
    if isinstance(left_s, (int, float)):
        told.append(f"about {duration(round(left_s))} left" if left_s >= 1.0 else "longer than usual")
    return ", ".join(told)


def count(of: Mapping[str, Any], key: str) -> int:
    """A whole number of an answer; 0 for anything else."""
    value = of.get(key)
    return value if isinstance(value, int) else 0


def rounded(at: str, digits: int) -> str:
    """2026-12-01T02:00:00.740000Z with up to ``digits`` of the fraction: .740Z for 3, no fraction for 0."""
    whole, dot, fraction = at.partition(".")
    return f"{whole}{dot if digits else ''}{fraction[:digits]}Z" if dot else at


def held(hold: dict[str, Any]) -> str:
    """Until when something is held, by whom and why: until 2026-12-01T02:00:00Z by ann (a note)."""
    parts = [f"until {rounded(plain(hold['until']), 0)}"] if hold.get("until") else []
    parts += [f"by {plain(hold['by'])}"] if hold.get("by") else []
    return " ".join([*parts, *([f"({plain(hold['note'])})"] if hold.get("note") else [])])


def rules_text(rules: dict[str, Any]) -> str:
    """The ledger rules in force, and who does not know the new ones; "" if the daemon does not say."""
    old = rules.get("held_back_by")
    return plain(rules.get("in_force")) + (f"; members of an older version: {plain(old)}" if old else "")


def plain(value: Any) -> str:
    """A value in one cell, on one line: empty for None, words for lists; control characters are escaped."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(plain(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={plain(item)}" for key, item in value.items())
    return visible(str(value))


def safe(text: str) -> str:
    """A text that is safe on a terminal: control characters are escaped."""
    return visible(text, lines=True)


def tail_of(attempt: int | None) -> str:
    """What the last lines of a log are headed with. None: an older daemon does not tell the attempt."""
    return "the last lines of its log" if attempt is None else f"the last lines of the log of attempt {attempt}"


def child(of: Mapping[str, Any]) -> str:
    """A child of a run, with its state."""
    again = " (to run once more)" if of.get("again") else ""
    return f"{plain(of['id'])} {plain(of['state'])}".strip() + again


def committed(run: Mapping[str, Any]) -> str:
    """Which attempt has the right to publish the run's output; "" if none has asked for it."""
    token = run.get("commit_token")
    if not token or token == run.get("token"):
        return "by this attempt" if token else ""
    return f"by an earlier attempt (token {plain(token)})"
