"""Re-runs with children: this node's part in the plans that the ledger keeps (core/ledger/rerun).

Every node sees every plan with its sweep, and asks the ledger for each run of it whose job it has. The ledger decides;
so no node must be there for a plan to go on, and it does not matter how many ask. A run that the ledger has opened is
due: this node opens its election at once, the others find it with their next sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coordd.core.context import Context
from coordd.core.groups.members import members_of
from coordd.core.jobs.job import Job, due_time, job_of
from coordd.core.jobs.limits import claimed_policy
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import Current, OpenAnswer
from coordd.core.ledger.requests import Rerun, nominal_time
from coordd.core.ledger.rerun.plan import Item, read
from coordd.core.ledger.rows import OF_RERUN
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import EXISTS, FINISHED, NEVER, OK
from coordd.core.ready import Now
from coordd.core.wire.events import Action

# Maximum number of requests that are out for all plans; others follow with the next sweep.
AT_A_TIME = 200

# A plan that stands is asked for again, as a whole, after as many sweeps with no question about it. What the ledger has
# said of a run may be out of date: a parent that had no row has one now, and has to end first.
QUIET_SWEEPS = 3


class Place:
    """What this node knows of a plan: its items, and the runs that need no further question."""

    __slots__ = ("begun_at", "decided", "items", "note", "quiet")

    def __init__(self, note: str, begun_at: float) -> None:
        self.note = note
        self.begun_at = begun_at
        self.items = read(note)
        self.decided: set[str] = set()
        self.quiet = 0  # sweeps with no question about it


class Reruns:
    """Asks for the runs of the plans."""

    __slots__ = ("_asked", "_begin", "_ctx", "_places")

    def __init__(self, ctx: Context, begin: Callable[..., object]) -> None:
        """``begin``: pursue a run (Pursuits.begin)."""
        self._ctx = ctx
        self._begin = begin
        self._places: dict[str, Place] = {}  # by the run that a person has run once more
        self._asked: set[tuple[str, str]] = set()  # (that run, the run whose request is out)

    def swept(self, answer: OpenAnswer) -> None:
        """The plans in the ledger, which definitions count, and the first of the runs that are not over."""
        found = {key[len(OF_RERUN) :]: hold for key, hold in answer.holds.items() if key.startswith(OF_RERUN)}
        for root in self._places.keys() - found.keys():
            del self._places[root]
        if answer.recovering_s > 0 or answer.identity_from == NEVER or self._ctx.braked:
            return
        if self._ctx.state not in ("ready", "draining"):
            return
        alive = {row.run for row in answer.runs}
        for root, hold in sorted(found.items()):
            place = self._places.get(root)
            if place is None or (place.note, place.begun_at) != (hold.note, hold.at):
                place = self._places[root] = Place(hold.note, hold.at)
            if place.quiet >= QUIET_SWEEPS:
                place.decided.clear()
            for item in place.items:
                self._look_at(root, place, item, alive, answer.current)
            place.quiet = place.quiet + 1 if all(one != root for one, _ in self._asked) else 0

    def _look_at(self, root: str, place: Place, item: Item, alive: set[str], current: dict[str, Current]) -> None:
        """Ask for a run, or for the members of a group, unless a parent is known not to have ended."""
        job = self._ctx.jobs.get(job_of(item.runs.run))
        counts = current.get(job.name) if job is not None else None
        if job is None or counts is None or counts.digest != job.digest:
            return  # another node has the definition that counts
        parents = [run for of_job in item.parents for runs in of_job for run in runs.rows()]
        if not alive.isdisjoint(parents):
            return
        undecided = {run for run in item.runs.rows() if run not in place.decided and (root, run) not in self._asked}
        for of in self._registrations(job, item, undecided):
            if len(self._asked) < AT_A_TIME:
                self._asked.add((root, of.run))
                self._ctx.ask(Rerun(root=root, of=of), partial(self._answered, root, of))

    def _registrations(self, job: Job, item: Item, runs: set[str]) -> list[Registration]:
        """Of these runs. Of one that has a row the ledger keeps the arguments."""
        ctx, at = self._ctx, nominal_time(item.runs.run)
        fire_at = at if at is not None else 0.0
        return [
            Registration(
                one.run,
                job.name,
                job.digest,
                claimed_policy(job, one.args, ctx.hostname, ctx.concurrency),
                fire_at,
                scheduled=at is not None,
                args=one.args,
                due=due_time(job, fire_at, ctx.identity_from) if job.schedule is not None and at is not None else 0.0,
                identity_from=ctx.identity_from,
            )
            for one in members_of(job, item.runs.run, fire_at)
            if one.run in runs
        ]

    def _answered(self, root: str, of: Registration, answer: Answer, _sent_at: float, now: Now) -> None:
        """What the ledger says. If it is not the run's turn, the next sweep asks again."""
        self._asked.discard((root, of.run))
        place = self._places.get(root)
        if answer.word in (OK, EXISTS) and place is not None:
            place.decided.add(of.run)
        if answer.word == FINISHED:
            self._places.pop(root, None)
        if answer.word == OK:
            later = of.due if of.due > of.fire_at else 0.0
            self._ctx.note("run.opened_by_rerun", run=of.run, rerun=root)
            action = Action(of.job, of.run, answer.attempt, of.fire_at, of.scheduled, of.digest, of.args, later)
            self._begin(action, now, in_ledger=True)
