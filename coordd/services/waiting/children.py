"""Why a child has no run in a period, from what the ledger tells of its parents' runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coordd.core.groups.expand import group_of, number_of
from coordd.core.jobs.after import Ends, Period, judged, period_end, period_of
from coordd.core.jobs.job import After, Job, triggered_run
from coordd.core.ledger.requests import ListOpen
from coordd.core.ledger.rows import Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import OPENED, TERMINAL
from coordd.ports import Ledger
from coordd.services.following import groups, lineal
from coordd.services.waiting.sentences import when

# At most this many parents are named, and this many rows of one are read.
NAMED_MAX = 10
ROWS_MAX = 1000


class Family(NamedTuple):
    """The runs of the parents of one period: their rows and ends, and since when the child's definition counts."""

    rows: Mapping[str, Sequence[Row]]  # by parent
    ends: Ends
    counts_from: float


def read(ledger: Ledger, child: Job, after: After, run: str, period: Period, jobs: Mapping[str, Job]) -> Family:
    """Runs in the ledger's thread."""
    ends, rows = Ends(run), {}
    for parent in after.jobs:
        known = jobs.get(parent)
        rows[parent] = [row for row in _rows(ledger, child, after, parent, known, period) if not run_fault(row)]
        for row in rows[parent]:
            if row.state not in TERMINAL:
                continue
            if number_of(row.run) is None:
                ends.note(after, parent, row.run, row.state, row.ended_at)
            elif known is not None and known.expand is not None:
                ends.note_member(after, parent, row.run, known.expand.count, row.state, row.ended_at)
    current = ledger.ask(ListOpen(jobs=(child.name,), limit=1)).current.get(child.name)
    return Family(rows, ends, current.counts_from if current is not None else 0.0)


def _rows(ledger: Ledger, child: Job, after: After, parent: str, known: Job | None, period: Period) -> Sequence[Row]:
    """The rows of one parent in that period."""
    if period.ident:
        run = triggered_run(parent, period.ident)
        if known is not None and known.expand is not None:
            return groups.member_rows(ledger, run, known.expand)
        row = ledger.run(run)
        return [row] if row is not None else []
    end = period_end(period.at, after.period_s, child.timezone) if after.period_s else period.at
    jitter_s = known.released.offset_s if known is not None else 0.0  # rows are found by their due time
    found = ledger.fired(parent, period.at - 1.0, end + jitter_s + 1.0, ROWS_MAX)
    return [
        row
        for row in found
        if row.scheduled and period_of(after, child.timezone, row.run, row.fire_at, scheduled=True) == period
    ]


def told(child: Job, after: After, period: Period, of: Family, own_due: float, wall: float) -> str:
    """Why its parents have not opened a run. ``own_due``: the time of its own schedule; 0.0: it has none."""
    joined = of.ends.joined(after)
    ran = ", ".join([came.run for came in joined[:NAMED_MAX]])
    if joined and max(joined[-1].at, own_due) <= of.counts_from:
        return f"its parents ended ({ran}) before its definition counted (since {when(of.counts_from)})."
    verdict = judged(after, child.timezone, period, of.ends, own_due, wall)
    if joined and not verdict.by.startswith(OPENED):
        return f"its parents ended ({ran}) after {when(verdict.until)}: they were awaited until then."
    if joined:
        return f"its parents have ended ({ran}): it is opened in a moment, or it is older than the history kept."
    if not any(of.rows.values()):
        names = [triggered_run(name, period.ident) if period.ident else name for name in after.jobs[:NAMED_MAX]]
        return (
            f"none of its parents ({', '.join(names)}) has a run of that period: it was not due or not triggered, or it"
            " is older than the history kept."
        )
    parts = [_parent(name, of) for name in after.jobs if name not in of.ends.came]
    return f"its parents have not ended so that it starts: {'; '.join(parts[:NAMED_MAX])}. {lineal.relation(child)}"


def _parent(name: str, of: Family) -> str:
    """How the runs of a parent are that does not let it start."""
    rows = of.rows[name]
    if not rows:
        return f"no run of {name} is known"
    last = rows[-1]
    how = of.ends.others.get(name, "not over") if number_of(last.run) is not None else last.state
    return f"{group_of(last.run)} is {how}"
