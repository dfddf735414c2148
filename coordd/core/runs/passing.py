"""Fire times that no node will launch any more: settled in the ledger, so that each of them ends in a decision.

A launch settles the fire times that its job's misfire policy leaves out before it. No launch settles some others: those
that `misfire = "skip"` leaves out before the next launch, those before a run that was rejected or missed, and those
whose node died before it wrote their rows. Once their ``start_within`` has passed, a node asks the ledger to
pass them over. It does so only for fire times that it does not pursue itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

from coordd.core.context import Context
from coordd.core.jobs.job import Job
from coordd.core.jobs.schedule import fires_between, next_fire
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.fires import COALESCED, GIVEN_UP, SKIPPED
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import PassOver, Settled
from coordd.core.ledger.words import NEVER, OK
from coordd.core.ready import Now
from coordd.core.runs.pursued import Pursuit

# What becomes of fire times without a row, by the job's misfire policy.
DECISIONS = {"once": COALESCED, "skip": SKIPPED, "all": GIVEN_UP}

# A fire time is passed over this long (seconds) after its start_within, so that a node that pursues it comes first.
GRACE_S = 60.0

# Fire times are counted up to this many; more than these have not all got rows.
COUNT_MAX = 100

# Maximum number of requests at a time; others follow with the next sweep.
AT_A_TIME = 200


def settled(job: Job, upto: float, known_from: float) -> Settled:
    """The job's fire times up to ``upto``, of which the ledger has settled those up to ``known_from``."""
    assert job.schedule is not None, job.name
    count = len(fires_between(job.schedule, known_from, upto, COUNT_MAX)) if upto > known_from else 0
    countable = count < COUNT_MAX and job.expand is None  # the members of a group are several rows for one fire time
    return Settled(upto, DECISIONS[job.misfire], known_from, count if countable else -1)


class Passing:
    """Looks at each sweep for such fire times."""

    __slots__ = ("_asked", "_ctx", "_cursors", "_next", "_pursuits")

    def __init__(self, ctx: Context, cursors: Mapping[str, float], pursuits: Mapping[str, Pursuit]) -> None:
        """``cursors``: job -> the fire time up to which this node has opened runs."""
        self._ctx = ctx
        self._cursors = cursors
        self._pursuits = pursuits
        self._asked: set[str] = set()  # jobs whose request is out
        self._next: dict[str, tuple[str, float, float]] = {}  # job -> (digest, horizon, the first fire time after it)

    def swept(self, answer: OpenAnswer) -> None:
        """The ledger's horizons, and its time."""
        if answer.recovering_s > 0 or answer.identity_from == NEVER:
            return
        oldest = self._oldest_pursued()
        for name, stands in answer.jobs.items():
            job, current = self._ctx.jobs.get(name), answer.current.get(name)
            if job is None or job.schedule is None or job.follows or name not in self._cursors or name in self._asked:
                continue
            if current is None or current.digest != job.digest or len(self._asked) >= AT_A_TIME:
                continue
            horizon = max(stands.horizon, current.counts_from)
            # With `once` and `all`, a later row shows that nobody opens the earlier fire times any more.
            known_to = self._cursors[name] if job.misfire == "skip" else stands.last_fire_at
            upto = min(answer.wall - job.start_within_s - GRACE_S, known_to, oldest.get(name, math.inf))
            if upto > horizon and self._first_after(job, horizon) <= upto:
                self._pass_over(job, horizon, upto)

    def _oldest_pursued(self) -> dict[str, float]:
        """Job -> just before its oldest due time that this node pursues and that may have no row."""
        oldest: dict[str, float] = {}
        for pursuit in self._pursuits.values():
            action = pursuit.action
            if action.scheduled and pursuit.row_at == math.inf:
                before = math.nextafter(action.due_at, -math.inf)
                oldest[action.job] = min(oldest.get(action.job, math.inf), before)
        return oldest

    def _first_after(self, job: Job, horizon: float) -> float:
        assert job.schedule is not None, job.name
        known = self._next.get(job.name)
        if known is None or known[:2] != (job.digest, horizon):
            first = next_fire(job.schedule, horizon)
            known = self._next[job.name] = (job.digest, horizon, math.inf if first is None else first)
        return known[2]

    def _pass_over(self, job: Job, horizon: float, upto: float) -> None:
        assert job.schedule is not None, job.name
        newest = fires_between(job.schedule, horizon, upto, 1)
        if not newest:
            return
        request = PassOver(
            job=job.name,
            digest=job.digest,
            identity_from=self._ctx.identity_from,
            start_within_s=job.start_within_s,
            settled=settled(job, newest[-1], horizon),
        )
        self._asked.add(job.name)
        self._ctx.ask(request, partial(self._answered, request))

    def _answered(self, request: PassOver, answer: Answer, _sent_at: float, _now: Now) -> None:
        """Whatever the answer is, the next sweep shows what is left."""
        self._asked.discard(request.job)
        if answer.word == OK:
            stretch = request.settled
            self._ctx.note("fire_times.settled", job=request.job, after=stretch.after, upto=stretch.upto)
