"""A trigger in a few lines, and the messages of other processes in a table."""

from __future__ import annotations

from typing import Any

from coordd.cli.show.phrases import plain, some
from coordd.cli.show.tables import Column, text, when

MESSAGES = (
    Column("NAME", text("name"), whole=True),
    Column("WAITING", text("waiting"), right=True),
    Column("AGAIN", text("again"), right=True, spare=2),
    Column("OLDEST", when("oldest"), spare=1),
    Column("GIVEN UP", text("given_up"), right=True),
    Column("TO", text("to")),
    Column("FAILING HERE", lambda row, _now: plain("; ".join(row.get("failing") or []))),
)


def trigger_text(shown: dict[str, Any]) -> str:
    """What `coordctl trigger show` prints."""
    node = f" by {plain(shown['poller'])}" if shown.get("poller") else ""
    every = f", every {shown['every_s']:g} s" if shown.get("every_s") else ""
    lines = [
        ("waits for", plain(shown["about"])),
        ("state", f"{plain(shown['state'])}{node}{every}"),
        ("looked at", plain(shown["looked_at"] or "")),
        ("problem", plain(shown["problem"] or "")),
        ("taken", f"{shown['taken']} since this node polls" if shown.get("taken") is not None else ""),
        ("", "\n            ".join([f"{one['at']}  {plain(one['arrival'])}" for one in shown["taken_last"] or []])),
        ("waiting", some(shown["waiting"], "arrival") if shown.get("waiting") else ""),
        ("", "\n            ".join([plain(one) for one in shown.get("waiting_first") or []])),
        ("refused", some(shown["refused"], "arrival") if shown.get("refused") else ""),
        (
            "",
            "\n            ".join(
                [f"{plain(one['arrival'])}: {plain(one['reason'])}" for one in _tables(shown.get("refused_now"))]
            ),
        ),
        ("dead", some(shown["dead"], "message") if shown.get("dead") else ""),
        (
            "",
            "\n            ".join(
                [
                    f"{one['at']}  {plain(one['message'])}: {plain(one['reason'])}"
                    for one in _tables(shown.get("dead_last"))
                ]
            ),
        ),
    ]
    head = f"{plain(shown['job'])}/{plain(shown['name'])}, a trigger of the kind {plain(shown['kind'])}"
    return "\n".join([head, *[f"  {name:<9} {text}" for name, text in lines if text]])


def _tables(value: Any) -> list[dict[str, Any]]:
    """Viewers see a word instead of a list."""
    return value if isinstance(value, list) else []
