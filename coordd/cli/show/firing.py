"""`coordctl job next`: the columns of fire times to come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordd.cli.show.phrases import distance, duration, instant
from coordd.cli.show.tables import Column, text


def fire_columns(fires: Iterable[Mapping[str, Any]]) -> Sequence[Column]:
    """The columns of `job next`: with the due time if the job's jitter moves it."""
    due = Column("DUE (UTC)", text("due"), whole=True, spare=2)
    moved = any(fire.get("due") not in (None, fire.get("fire_time")) for fire in fires)
    return (
        Column("FIRE TIME (UTC)", text("fire_time"), whole=True),
        *((due,) if moved else ()),
        Column("LOCAL", text("local"), spare=3),
        Column("CLOCKS", lambda row, _now: _clocks(row.get("clocks_s") or 0.0)),
        Column("", lambda row, now: distance(instant(row.get("fire_time")), now), right=True, spare=1),
        Column("RUN", text("run"), whole=True),
    )


def _clocks(seconds: float) -> str:
    """What the clocks of the job's zone did since the time before."""
    return f"{duration(abs(seconds))} {'forward' if seconds > 0 else 'back'}" if seconds else ""
