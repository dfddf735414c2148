"""The control methods about fire times that are over: `job.fires`, and what other methods tell of them."""

from __future__ import annotations

import math
from typing import Any

from coordd.core.jobs.job import Job, job_of
from coordd.core.jobs.schedule import parse_instant
from coordd.core.ledger.fires import Decided
from coordd.core.ledger.requests import nominal_time
from coordd.core.ledger.rows import Row
from coordd.core.ledger.words import REVOKED
from coordd.errors import RefusedError, UnavailableError
from coordd.ports import Ledger
from coordd.services.control.callers import VIEWER, Caller
from coordd.services.control.core_methods import VIEWER_LIST_MAX, CoreMethods
from coordd.services.control.lookups import Lookups
from coordd.services.control.rpc import INVALID_PARAMS, RpcError
from coordd.services.views import fires, objects
from coordd.services.views.fires import Fire, Known

# The maximum number of fire times in one answer; computing one may take a millisecond.
FIRES_MAX = 1000

# How many fire times `job.fires` shows if nobody says from when.
FIRES_SHOWN = 50

# How many rows of a group's members one answer reads; of large groups it tells fewer fire times.
MEMBERS_READ_MAX = 20_000

# The newest rows of many are looked for in the last seconds, then in a span that is longer by this factor, ….
SPAN_S = 60.0
SPAN_GROWS = 4.0
SPAN_LEAST_S = 0.001

# How many revoked runs of a job are looked at.
REVOKED_MAX = 1000


class FireMethods(CoreMethods):
    """What became of fire times."""

    _lookups: Lookups  # made by the class that has all methods

    def _ledger_wall(self) -> float:
        """The ledger's time now, in Unix seconds."""
        now = self._driver.now()
        return now.wall - self._driver.node.skew_s(now)

    async def fires_of(self, job: Job, params: dict[str, Any], caller: Caller) -> list[dict[str, Any]]:
        """The answer of `job.fires`. If there are earlier ones than its first, that one says so."""
        begin, end = _instant(params, "from", -math.inf), _instant(params, "to", math.inf)
        if begin > end:
            raise RefusedError("from is later than to", kind="invalid_params", hint="exchange the two instants")
        most = FIRES_SHOWN if begin == -math.inf else FIRES_MAX
        found, earlier = await self._fires(job, begin, end, most, looks=caller.role <= VIEWER)
        told = [fire.view() for fire in found]
        if earlier:
            told[0]["earlier"] = True
        return told

    async def fire_counts(self, job: Job, *, looks: bool) -> dict[str, Any] | None:
        """How many of the newest fire times have which decision; None while the ledger does not answer."""
        try:
            found, _ = await self._fires(job, -math.inf, math.inf, FIRES_MAX, looks=looks)
        except UnavailableError:
            return None
        return {"from": objects.instant(found[0].fire_at) if found else None, **fires.counted(found)}

    async def decision(self, run: str, *, looks: bool) -> Fire | None:
        """What became of the fire time that a run's id names; None if this node knows of no such fire time."""
        job, at = self._driver.node.jobs.get(job_of(run)), nominal_time(run)
        if job is None or at is None:
            return None
        found, _ = await self._fires(job, at, at, 1, looks=looks)
        return found[0] if found else None

    async def fires_due(self, job: Job, after: float, upto: float) -> list[Fire]:
        """What became of the fire times that are due after ``after``, up to ``upto``. Raises UnavailableError."""
        offset_s = job.released.offset_s
        found, _ = await self._fires(job, after - offset_s, upto - offset_s, FIRES_MAX, looks=False)
        return [fire for fire in found if after < fire.due <= upto and fire.decision != fires.HELD]

    async def _fires(self, job: Job, begin: float, end: float, most: int, *, looks: bool) -> tuple[list[Fire], bool]:
        """The newest fire times between two nominal instants (Unix seconds), and whether there are earlier ones
        between them. Raises UnavailableError.
        """
        node, held, job = self._driver.node, not job.enabled, job.released
        members = job.expand.count if job.expand else 1
        limit = min(most, VIEWER_LIST_MAX if looks else most, max(1, MEMBERS_READ_MAX // members))
        present = self._ledger_wall()
        end = min(end, present)
        decided = await self._ledger.query(lambda ledger: ledger.fires(job.name))
        parts = fires.segments(decided.activations, (job, *reversed(node.past(job.name))))
        if held and not decided.activations:
            parts = []  # it has never begun to count
        identity_from = node.identity_from
        dues = await self._lookups.do(
            lambda _: fires.enumerated(parts, max(begin, 0.0), end, limit + 1, identity_from, present), looks=looks
        )
        # Runs of definitions that are not known here, or that had no schedule, may be older than all of these.
        first = math.nextafter(dues[0].due if len(dues) > limit else max(begin, 0.0) - job.offset_s, -math.inf)
        last = max(dues[-1].due if dues else 0.0, end + job.offset_s)
        rows = (limit + 1) * members
        known = await self._ledger.query(lambda ledger: _known(ledger, job.name, decided, first, last, rows))
        found = fires.fires(dues, known, max(begin, first - job.offset_s), end, identity_from, present)
        shown = [fires.of_held_job(fire) if held else self._seen(job, fire) for fire in found[-limit:]]
        return shown, len(found) > limit

    def _seen(self, job: Job, fire: Fire) -> Fire:
        """With what this node knows of it, and the ledger does not yet."""
        here = self._driver.passed_over(job.name, fire.due) if not (fire.decision or fire.run) else ""
        return fires.passed_over(fire, here) if here else fire

    async def newest_without_run(self, job: Job) -> Fire | None:
        """The newest fire time, if it has no run: it is decided that nobody launches it, or nobody has yet. Raises
        UnavailableError.
        """
        found = (await self._fires(job, -math.inf, math.inf, 1, looks=False))[0] if job.schedule is not None else []
        if not found or found[-1].decision in (fires.LAUNCHED, fires.BLACKOUT):
            return None
        newest = found[-1]
        waits = newest.reason.startswith(fires.NOT_YET) and not newest.run and job.follows is None
        return newest if newest.decision or waits else None


def _known(ledger: Ledger, job: str, decided: Decided, first: float, last: float, limit: int) -> Known:
    """Runs in the ledger's thread: the rows of these fire times, and the first one after them."""
    rows = _newest(ledger, job, first, last, limit)
    later = ledger.fired(job, last, last + 1e9, 1)
    # A run that was revoked before any claim is in no order of due times.
    revoked = [row for row in ledger.runs(job=job, state=REVOKED, limit=REVOKED_MAX) if first < row.due_at <= last]
    return Known(decided, {row.run: row for row in (*rows, *revoked)}, later[0].run if later else "")


def _newest(ledger: Ledger, job: str, first: float, last: float, limit: int) -> list[Row]:
    """The rows that are due in that time; if there are too many, at least the ``limit`` newest ones.

    A ledger tells the oldest first. So of many rows a span that ends at ``last`` is looked for, in which there are
    enough of them, and not too many.
    """
    most = 2 * limit + REVOKED_MAX
    rows: list[Row] = ledger.fired(job, first, last, most)
    if len(rows) < most:
        return rows
    short_s, long_s, found_s = 0.0, last - first, SPAN_S
    few: list[Row] = []
    while long_s - short_s > SPAN_LEAST_S:
        found = ledger.fired(job, max(first, last - found_s), last, most)
        if len(found) >= most:
            rows, long_s = found, found_s
        elif len(found) >= limit:
            return found
        else:
            few, short_s = found, found_s
        found_s = min(SPAN_GROWS * found_s, (short_s + long_s) / 2) if short_s else found_s / SPAN_GROWS
    return [*rows, *few]  # more than can be read are due at one instant


def _instant(params: dict[str, Any], name: str, missing: float) -> float:
    """An instant, in Unix seconds or as ISO 8601 (UTC)."""
    value = params.get(name)
    if value is None:
        return missing
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        return parse_instant(str(value), "UTC")
    except ValueError as exc:
        raise RpcError(INVALID_PARAMS, f"{name}: {exc}", kind="invalid_params", hint="2026-11-21T02:00Z") from exc
