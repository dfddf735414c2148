"""`job fires`: the fire times of a job, each with its one decision. Pure.

A fire time's run tells the decision, if it has a row. Otherwise the ledger's stretches do (core/ledger/fires.py), and a
blackout follows from the definition itself. What none of them knows is said to be unknown, not guessed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from coordd.core.groups.expand import group_of
from coordd.core.jobs.job import Job, due_time, fire_time, scheduled_run
from coordd.core.jobs.schedule import fires_between, without_blackouts
from coordd.core.ledger.fires import (
    COALESCED,
    GIVEN_UP,
    HELD_BY_OTHERS,
    HELD_BY_SUSPENSION,
    REDEFINED,
    SKIPPED,
    SUSPENDED,
    Decided,
    Stretch,
)
from coordd.core.ledger.rows import Activation, Row, is_backfill, is_rerun
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import MISSED, PENDING, REPEATED, RETRY
from coordd.services.following import groups
from coordd.services.views.objects import instant

LAUNCHED = "launched"
BLACKOUT = "blackout"
LIMITED = "limited"
HELD = "held"  # until its job is released; then it is decided
# Every decision, in the order in which they are counted.
DECISIONS = (LAUNCHED, COALESCED, SKIPPED, GIVEN_UP, "rejected", SUSPENDED, BLACKOUT, LIMITED)

# The decision of a stretch, and the reason that goes with it.
_STRETCHES = {
    COALESCED: (COALESCED, "misfire = once: a later run stands for it"),
    SKIPPED: (SKIPPED, "misfire = skip: no node launched it at its time"),
    GIVEN_UP: (GIVEN_UP, "no node launched it within start_within of its time"),
    SUSPENDED: (SUSPENDED, "the job was suspended until its start_within had passed"),
    REDEFINED: (SKIPPED, "the job was edited, held or removed before a node launched it"),
}
IS_HELD = "the job is held (enabled = false); nothing launches it"
NOT_YET = "not decided yet: "
NOT_RECORDED = "not recorded: it is older than the history kept, or a node of an earlier version decided it"


class Fire(NamedTuple):
    """One fire time (Unix seconds, nominal and due). ``decision`` is "" if none is known; ``run``: its run, its group,
    or the run that stands for it; ``state``: of its own run, or of its group as a whole.
    """

    fire_at: float
    due: float
    decision: str
    reason: str
    run: str = ""
    state: str = ""

    def view(self) -> dict[str, Any]:
        """As in `job.fires`."""
        return {
            "fire_time": instant(self.fire_at),
            "due": instant(self.due),
            "decision": self.decision or None,
            "reason": self.reason or None,
            "run": self.run or None,
            "state": self.state or None,
        }


class Known(NamedTuple):
    """The facts about a job's fire times."""

    decided: Decided
    rows: Mapping[str, Row]  # by run; also revoked runs, which no node has claimed
    later: str  # the first run that is due after these rows; "" if there is none


def segments(activations: Sequence[Activation], jobs: Iterable[Job]) -> list[tuple[float, float, Job | None]]:
    """(after, up to, definition): which definition counts for which due times, oldest first. None: not known here.

    Without activations (the old rules), the present definition counts for all times. ``jobs``: the present definition
    first.
    """
    known = list(jobs)
    if not activations:
        return [(-math.inf, math.inf, known[0])] if known else []
    found: list[tuple[float, float, Job | None]] = []
    upto = math.inf
    for one in reversed(activations):
        if one.counts_from < upto:
            job = next((job for job in known if one.schedule and job.schedule_digest == one.schedule), None)
            found.append((one.counts_from, upto, job))
            upto = one.counts_from
    return found[::-1]


class Due(NamedTuple):
    """A fire time of a definition, before anybody has looked what became of it."""

    due: float
    job: Job
    blackout: bool


def enumerated(
    parts: Sequence[tuple[float, float, Job | None]],
    begin: float,
    end: float,
    limit: int,
    identity_from: float,
    now: float,
) -> list[Due]:
    """The newest fire times of a job that are due by now, oldest first, at most ``limit``, with begin <= nominal time
    <= end. Those of a definition that this node does not know are missing.
    """
    found: list[Due] = []
    for after, upto, job in parts:
        if job is None or job.schedule is None:
            continue
        low = max(after, math.nextafter(due_time(job, begin, identity_from), -math.inf))
        high = min(upto, due_time(job, end, identity_from), now)
        if high > low:
            bare = without_blackouts(job.schedule)
            allowed = set(fires_between(job.schedule, low, high, limit)) if job.schedule.blackout else set()
            fire_times = fires_between(bare, low, high, limit)
            found += [Due(due, job, bool(job.schedule.blackout) and due not in allowed) for due in fire_times]
    return found[-limit:]


def fires(dues: Sequence[Due], known: Known, begin: float, end: float, identity_from: float, now: float) -> list[Fire]:
    """Each of these fire times with its decision, and the runs between ``begin`` and ``end`` that belong to none of
    them: the definition may not be known here.
    """
    rows: dict[str, list[Row]] = {}  # of a group's members together
    for row in known.rows.values():
        if not run_fault(row):
            rows.setdefault(group_of(row.run), []).append(row)
    listed: dict[float, Fire] = {}
    told: set[str] = set()
    for due, job, blackout in dues:
        at = fire_time(job, due, identity_from)
        run = scheduled_run(job.name, at)
        told.add(run)
        if run in rows:
            found = _of_rows(run, rows[run], job.expand.count if job.expand else 0)
            listed[due] = found._replace(due=due)  # an older version wrote rows without the jitter
        else:
            listed[due] = _without_row(due, at, known, now, blackout=blackout)
    for run, others in rows.items():
        first = others[0]
        if run not in told and first.scheduled and begin <= first.fire_at <= end:
            listed.setdefault(first.due_at, _of_rows(run, others))
    return [listed[due] for due in sorted(listed)]


def counted(found: Iterable[Fire]) -> dict[str, int]:
    """How many fire times have which decision; ``undecided`` are those without one."""
    counts = dict.fromkeys((*DECISIONS, HELD, "undecided"), 0)
    for fire in found:
        counts[fire.decision or "undecided"] += 1
    return counts


def passed_over(fire: Fire, decision: str) -> Fire:
    """The same, as a node has decided. The ledger hears of it with the next run of the job: perhaps a day later."""
    return fire._replace(decision=decision, reason=_STRETCHES[decision][1])


def of_held_job(fire: Fire) -> Fire:
    """The same, of a job that is held: nobody decides it before it is released."""
    waits = fire.reason.startswith(NOT_YET) and not (fire.decision or fire.run)
    return fire._replace(decision=HELD, reason=IS_HELD) if waits else fire


def _without_row(due: float, at: float, known: Known, now: float, *, blackout: bool) -> Fire:
    if blackout:
        return Fire(at, due, BLACKOUT, "its time lies in a blackout of the job")
    stretch = next((one for one in known.decided.stretches if one.after < due <= one.upto), None)
    if stretch is not None:
        return _of_stretch(stretch, at, due, known)
    if due <= known.decided.horizon:
        return Fire(at, due, "", NOT_RECORDED)
    return Fire(at, due, "", f"{NOT_YET}it was due {now - due:.0f} s ago, and no node has claimed it")


def _of_stretch(stretch: Stretch, at: float, due: float, known: Known) -> Fire:
    decision, reason = _STRETCHES.get(stretch.decision, ("", f"recorded as {stretch.decision!r}"))
    if decision != COALESCED:
        return Fire(at, due, decision, reason)
    later = [(row.due_at, row.run) for row in known.rows.values() if row.scheduled and row.due_at > due]
    run = min(later)[1] if later else known.later
    return Fire(at, due, decision, f"misfire = once: {run} stands for it" if run else reason, run)


def _of_row(row: Row) -> Fire:
    """The decision that a run's row tells."""
    at, due = row.fire_at, row.due_at
    how = ("" if row.by.startswith(REPEATED) else "run once more ") if is_rerun(row) else "opened by "
    opened = f", {how}{row.by}" if is_backfill(row) else ""
    if row.token or (row.attempt and not opened):
        return Fire(at, due, LAUNCHED, f"its run is {row.state}{opened}", row.run, row.state)
    if row.state in (PENDING, RETRY):
        return Fire(at, due, "", f"{NOT_YET}its run waits to be launched{opened}", row.run, row.state)
    if row.state == MISSED:
        return Fire(at, due, missed_as(row.reason), row.reason, row.run, row.state)
    return Fire(at, due, "rejected", row.reason, row.run, row.state)


def _of_rows(run: str, rows: Sequence[Row], members: int = 0) -> Fire:
    """The decision that the rows of a run, or of a group's members, tell: launched if one of them was. ``members``: as
    many as its definition says; 0: it is not known.
    """
    told = [_of_row(row) for row in rows]
    if rows[0].run == run:
        return told[0]
    total = max(members, len(rows))
    found = next((one for one in told if one.decision == LAUNCHED), told[0])._replace(run=run)
    state = groups.state_of(rows, total)
    if found.decision != LAUNCHED:
        return found._replace(state=state)
    left = f", {total - len(rows)} not recorded yet" if len(rows) < total else ""
    counts = ", ".join(f"{number} {word}" for word, number in groups.counted(rows).items())
    return found._replace(reason=f"its group is {state}: {counts}{left}", state=state)


def missed_as(reason: str) -> str:
    """The decision about a fire time whose run was missed for this reason."""
    if HELD_BY_SUSPENSION in reason:
        return SUSPENDED
    return LIMITED if HELD_BY_OTHERS in reason else GIVEN_UP
