"""Words, numbers and tables of the page. Every text from events is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

# A reason or an error may be a whole log; a table shows its start.
TEXT_MAX = 160

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], name: str = "table") -> str:
    """A table that scrolls in itself when it is wider than the page; a keyboard reaches it. A head that begins with #
    is of a column of numbers.
    """
    right = [head.startswith("#") for head in heads]
    head = "".join(
        f'<th scope="col"{_right(number)}>{title.removeprefix("#")}</th>'
        for number, title in zip(right, heads, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{_right(number)}>{cell}</td>" for number, cell in zip(right, row, strict=True)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="wide" role="region" aria-label="{escape(name)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _right(number: bool) -> str:
    return ' class="n"' if number else ""


def none(text: str) -> str:
    """A sentence in place of a table or a drawing."""
    return f'<p class="none">{text}</p>'


def badge(word: str) -> str:
    """A state or a severity in its colour."""
    return f'<span class="badge {escape(word)}">{escape(word)}</span>'


def code(text: str | None) -> str:
    """An id; it may break after each of its parts."""
    if not text:
        return ""
    broken = escape(text)
    for mark in "@#/":
        broken = broken.replace(mark, f"{mark}<wbr>", 1)
    return f"<code>{broken}</code>"


def text(said: str) -> str:
    """A text from outside, cut."""
    return escape(said if len(said) <= TEXT_MAX else said[: TEXT_MAX - 1] + "…")


def number(value: int | None) -> str:
    """A whole number; empty if there is none."""
    return "" if value is None else f"{value:,}"


def span(seconds: float | None) -> str:
    """A duration in one unit that a person reads at once: 0.4 s, 12 s, 3.5 min, 2.1 h, 4 d."""
    if seconds is None:
        return ""
    for unit, size, below in (("s", 1.0, 100.0), ("min", 60.0, 100.0), ("h", 3600.0, 72.0)):
        amount = seconds / size
        if amount < below:
            return f"{amount:.1f} {unit}" if amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def percent(share: float | None) -> str:
    """A share; below one percent only zero is 0 %."""
    if share is None:
        return ""
    return f"{100 * share:.0f} %" if share == 0 or share >= 0.01 else "< 1 %"


def instant(at: float | None, form: str = "%m-%d %H:%M:%S") -> str:
    """An instant in UTC, which never wraps."""
    if at is None:
        return ""
    return f'<span class="time">{datetime.fromtimestamp(at, UTC).strftime(form)}</span>'


def count(of: int, one: str, many: str = "") -> str:
    """1 run, 2 runs."""
    return f"{of:,} {one if of == 1 else many or one + 's'}"


def share_bar(share: float, tone: str = "") -> str:
    """A share as a small bar beside its number; the number says it too."""
    width = max(0.0, min(1.0, share)) * 100
    return f'<span class="share {tone}" aria-hidden="true"><i style="width:{width:.0f}%"></i></span>'


def node(name: str, tint: dict[str, str]) -> str:
    """A node with its colour."""
    return f'<span class="node"><i class="dot" style="background:{tint.get(name, "#888")}"></i>{escape(name)}</span>'
