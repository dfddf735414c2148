"""Backfills: this node's part in the plans that the ledger keeps (core/ledger/backfill).

Every node sees every plan with its sweep, and asks the ledger for the next fire time of it. The ledger decides; so no
node must be there for a plan to go on, and it does not matter how many ask. A fire time that the ledger has opened is
due: this node opens its election at once, the others find it with their next sweep.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from coordd.core.context import Context
from coordd.core.jobs.job import Job, due_time, fire_time, scheduled_run
from coordd.core.jobs.limits import claimed_policy
from coordd.core.jobs.schedule import fires_between, next_fire
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.backfill.plan import OLDEST, RUNNING, Plan
from coordd.core.ledger.open_answer import OpenAnswer
from coordd.core.ledger.requests import Fill
from coordd.core.ledger.rows import OF_BACKFILL
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import EXISTS, NEVER, OK
from coordd.core.ready import Now
from coordd.core.wire.events import Action

# Maximum number of requests for one plan after one sweep; most of them pass over fire times that have run.
ASKS_MAX = 1000


class Place:
    """How far this node has come in a plan: the due time (Unix seconds) of the last fire time that it asked for, or
    None; and how many requests are left until the next sweep.
    """

    __slots__ = ("asks_left", "due", "plan")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.due: float | None = None
        self.asks_left = 0


class Backfills:
    """Asks for the fire times of the plans, one after the other."""

    __slots__ = ("_asked", "_begin", "_ctx", "_places")

    def __init__(self, ctx: Context, begin: Callable[..., object]) -> None:
        """``begin``: pursue a run (Pursuits.begin)."""
        self._ctx = ctx
        self._begin = begin
        self._places: dict[str, Place] = {}  # by job
        self._asked: set[str] = set()  # jobs whose request is out

    def swept(self, answer: OpenAnswer) -> None:
        """The plans in the ledger, and which definitions count."""
        found = {
            key[len(OF_BACKFILL) :]: Plan.read(hold.note)
            for key, hold in answer.holds.items()
            if key.startswith(OF_BACKFILL)
        }
        plans = {name: plan for name, plan in found.items() if plan is not None and plan.state == RUNNING}
        for name in self._places.keys() - plans.keys():
            del self._places[name]
        if answer.recovering_s > 0 or answer.identity_from == NEVER or self._ctx.braked:
            return
        for name, plan in plans.items():
            job, current = self._ctx.jobs.get(name), answer.current.get(name)
            if job is None or not self._has_runs(job) or current is None or current.digest != job.digest:
                continue  # another node has the definition that counts
            known = self._places.get(name)
            if known is None or known.plan.id != plan.id:
                known = self._places[name] = Place(plan)
            known.plan = plan
            if plan.cursor:
                self._move(known, plan, due_time(job, plan.cursor, self._ctx.identity_from))
            known.asks_left = ASKS_MAX
            if name not in self._asked:
                self._ask(job, known)

    @staticmethod
    def _has_runs(job: Job) -> bool:
        """True if each fire time is one run. If the job has got `expand` since, each is a group of members."""
        return job.schedule is not None and job.expand is None

    def _move(self, place: Place, plan: Plan, due: float) -> None:
        """Never back: what was passed over needs no second question."""
        if place.due is None:
            place.due = due
        else:
            place.due = max(place.due, due) if plan.order == OLDEST else min(place.due, due)

    def _next(self, job: Job, place: Place) -> float | None:
        """The due time of the plan's next fire time; None if there is none."""
        assert job.schedule is not None, job.name
        plan, begin = place.plan, self._ctx.identity_from
        low = math.nextafter(due_time(job, plan.begin, begin), -math.inf)
        high = math.nextafter(due_time(job, plan.end, begin), -math.inf)
        if plan.order == OLDEST:
            first = next_fire(job.schedule, low if place.due is None else place.due)
            return first if first is not None and first <= high else None
        until = high if place.due is None else math.nextafter(place.due, -math.inf)
        return next(iter(fires_between(job.schedule, low, until, 1)), None)

    def _ask(self, job: Job, place: Place) -> None:
        due = self._next(job, place)
        begin = self._ctx.identity_from
        fire_at = fire_time(job, due, begin) if due is not None else place.plan.begin
        of = Registration(
            scheduled_run(job.name, fire_at),
            job.name,
            job.digest,
            claimed_policy(job, "{}", self._ctx.hostname, self._ctx.concurrency),
            fire_at,
            scheduled=True,
            due=due or 0.0,
            identity_from=begin,
        )
        self._asked.add(job.name)
        place.asks_left -= 1
        fill = Fill(plan=place.plan.id, left=int(due is not None), of=of)
        self._ctx.ask(fill, partial(self._answered, fill, due))

    def _answered(self, asked: Fill, due: float | None, answer: Answer, _sent_at: float, now: Now) -> None:
        """What the ledger says. If it is not the fire time's turn, the next sweep asks again."""
        name = asked.of.job
        self._asked.discard(name)
        if answer.word == OK:
            of = asked.of
            later = of.due if of.due > of.fire_at else 0.0
            action = Action(name, of.run, answer.attempt, of.fire_at, True, of.digest, of.args, later)
            self._begin(action, now, in_ledger=True)
        place, job = self._places.get(name), self._ctx.jobs.get(name)
        if answer.word not in (OK, EXISTS) or due is None or place is None or place.plan.id != asked.plan:
            return
        self._move(place, place.plan, due)
        if job is not None and job.digest == asked.of.digest and place.asks_left > 0:
            self._ask(job, place)
