"""One pursued run: its phase, what it waits for, and the steps that put it off."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from coordd.core.context import LEAD_S, Context
from coordd.core.election import Election
from coordd.core.jobs.job import EXEC_DIGEST, HOOK, Job, pinned, unpinned
from coordd.core.jobs.limits import JOB_SLOTS, claimed_policy, slots_named
from coordd.core.ledger import words
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.limits.rule import LIMIT_RETRY_S
from coordd.core.ledger.requests import NOTHING_SETTLED, Settled
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.ready import Now
from coordd.core.runs.lease_watch import LeaseWatch, watched_on
from coordd.core.runs.waiting.look import (
    ABSENT_S,
    BEHIND_S,
    BOUNDS_S,
    FIRST,
    YIELD_S,
    YIELD_TO_OTHERS_S,
    Heads,
    Look,
    Order,
    has_one_line,
    later,
    spread,
)
from coordd.core.wire.events import Action

# Maximum number of calls of hooks on one node at a time.
HOOKS_HERE = 8

ELECTING = "electing"
DUE = "due"
CLAIMING = "claiming"
WAITING = "waiting"
HELD_BY_OTHER = "held"
SLEEPING = "sleeping"
OWNED = "owned"

# The bounds (seconds) of the delay after an unanswered or limited claim; it doubles each time.
BACKOFF_MIN_S, BACKOFF_MAX_S = 0.5, 10.0

# The first pause (seconds) after a claim that was quicker than the record of its trigger.
UNRECORDED_AGAIN_S = 0.005
TOLD, OF_PARENTS = "told", "of parents"  # a row that its parents have opened is not written again by a claim

# A run is planned again if its turn comes sooner than a node knows by more than this (seconds): a clock was set.
TURN_S = 1.0

# Why a node leaves a run to the others, and what such a run waits for.
NO_BUDGET = "no budget"
BUDGET = "budget"
SUSPENDED = f"{words.LIMITED}: suspended"

# Why a node waits although its turn has come.
FAILED_HERE = "the attempt before failed here: the other nodes go first"


class Pursuit:
    """One run that this node pursues."""

    __slots__ = (
        "absent_until",
        "action",
        "alone",
        "at",
        "attempt",
        "backoff_s",
        "begun_at",
        "claimed",
        "dated",
        "floor",
        "late_at",
        "limited",
        "nonce",
        "others_until",
        "owner",
        "phase",
        "rank",
        "recorded",
        "redefined",
        "row_at",
        "settled",
        "slots",
        "unanswered",
        "watch",
        "why",
        "yielded_to",
        "yields_until",
    )

    def __init__(self, action: Action, settled: Settled, now: Now) -> None:
        self.action = action
        self.begun_at = now.mono
        self.attempt = AttemptNumber(action.attempt)
        self.settled = settled  # older fire times that its launch settles
        self.phase = ELECTING
        self.at = 0.0
        self.rank: int | None = None
        self.alone = False  # no node stood in its election
        self.nonce = ""
        self.claimed: Job | None = None  # the definition of the nonce: each repeated claim uses the same one
        self.floor = 0  # the job's highest token when the nonce was drawn: a grant must be above it
        self.late_at = float("inf")  # from then on, even an ineligible node makes sure that the run has a row
        self.unanswered = False  # the last claim had no answer: it may have been granted all the same
        self.backoff_s = BACKOFF_MIN_S
        self.row_at = float("inf")  # since when we know that the ledger has a row for it
        self.redefined = False  # its job was changed or removed while it had no row
        self.recorded = ""  # the ledger itself has said so, even if it forgot it since: TOLD, or OF_PARENTS
        self.slots = ""  # what it waits for, if the last answer was that no slot is free (Line)
        self.yielded_to = ""  # the run that went first when this one was last put off
        self.yields_until = float("inf")  # how long it lets that run go first; inf: it does not
        self.absent_until = 0.0  # it did not take a slot that was free: nobody lets it go first until then
        self.limited = False  # the last answer was: not while others run
        self.dated = False  # the last answer was: not due yet, by the ledger's clock of that instant
        self.others_until = 0.0  # the attempt before failed here: until then (mono) it is left to the other nodes
        self.owner = ""
        self.watch: LeaseWatch | None = None
        self.why = ""


class Phases:
    """The steps that put a run off; pursuit.py builds on them."""

    __slots__ = ("_ctx",)

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    def _definition(self, pursuit: Pursuit) -> Job | None:
        """The definition that a claim names: that of the run; if an answer is missing, the one of that claim."""
        current = self._ctx.definition_for(pursuit.action)
        claimed = pursuit.claimed
        if pursuit.nonce and claimed is not None:
            if pursuit.unanswered or self._ctx.definition(claimed.name, claimed.digest):
                return claimed
            pursuit.nonce = ""  # nothing was granted under it: this is another claim
        return current

    def _held(self, pursuit: Pursuit, by: str, left_s: float, now: Now) -> None:
        """Another node holds it: try again when its lease has been watched to its end."""
        pursuit.phase = HELD_BY_OTHER
        pursuit.owner = by
        pursuit.nonce = ""
        pursuit.why = f"held by {by}"
        if pursuit.watch is None:
            pursuit.at = float("inf")  # the next sweep starts a watch
            return
        ripe_at = max(pursuit.watch.ripe_at(), now.mono + max(0.0, left_s))
        pursuit.at = ripe_at + (pursuit.rank or 0) * self._ctx.stagger_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _observe(self, pursuit: Pursuit, token: Token, beat: int, lease_s: float, now: Now) -> None:
        """An answer shows the holder's (token, beat): continue the watch, or start again."""
        if not token:
            pursuit.watch = None
            return
        pursuit.watch = watched_on(pursuit.watch, token, beat, lease_s, self._ctx.settings, now.mono)

    def _leave_to_people(self, pursuit: Pursuit, node: str) -> None:
        """Its end is unknown: no node launches it until a person resolves it, or its holder is back."""
        pursuit.phase, pursuit.at, pursuit.nonce = SLEEPING, float("inf"), ""
        pursuit.why = f"unknown: {node} was lost while it ran; say `run resolve`"

    def _has_row(self, pursuit: Pursuit, now: Now, *, of_parents: bool = False) -> None:
        """The ledger has a row for it. If that was in doubt, a claim that waits is asked now."""
        pursuit.row_at = min(pursuit.row_at, now.mono)
        if not pursuit.recorded and pursuit.phase == DUE and pursuit.unanswered:
            pursuit.at = min(pursuit.at, now.mono + (pursuit.rank or 0) * self._ctx.stagger_s)
            self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)
        pursuit.recorded = OF_PARENTS if of_parents else pursuit.recorded or TOLD

    def _unrecorded(self, pursuit: Pursuit, now: Now) -> None:
        """No row: the election was quicker than the record, or the ledger refuses the trigger. The pause doubles."""
        in_s = min(max(UNRECORDED_AGAIN_S, now.mono - pursuit.begun_at), BACKOFF_MAX_S)
        self._again(pursuit, in_s, "the ledger has no record of the trigger yet", now)

    def _was_refused(self, pursuit: Pursuit, now: Now) -> bool:
        """True if no sweep shows a row of a triggered run, nor the second one, or of a redefined run or a child."""
        if pursuit.recorded or pursuit.action.scheduled or (pursuit.unanswered and pursuit.nonce):  # maybe granted
            return (pursuit.redefined or pursuit.recorded == OF_PARENTS) and pursuit.row_at == float("inf")
        settings = self._ctx.settings
        return now.mono >= pursuit.begun_at + 2 * (settings.ledger_timeout_s + settings.renew_interval_s)

    def _again(self, pursuit: Pursuit, in_s: float, why: str, now: Now) -> None:
        pursuit.phase = DUE
        pursuit.why = why
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _comes_sooner(self, pursuit: Pursuit, due_in_s: float, now: Now) -> None:
        """By the ledger's clock it is due then. If it waits for a later date, that clock was behind, and is set."""
        in_s = max(0.0, due_in_s - LEAD_S)
        if pursuit.dated and pursuit.phase == DUE and pursuit.at > now.mono + in_s + TURN_S:
            self._again(pursuit, in_s + (pursuit.rank or 0) * self._ctx.stagger_s, pursuit.why, now)

    def _wait(self, pursuit: Pursuit, now: Now, in_s: float) -> None:
        """Not eligible now; checked again then, at every sweep, and when a slot becomes free."""
        pursuit.phase = WAITING
        pursuit.nonce = ""
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _leave_to_others(self, pursuit: Pursuit, election: Election, failed: bool) -> None:
        """The attempt before ``failed`` here: until when does this node let those that stand ask first?

        They may decide later than this node: one that does not know yet that a third node is lost waits for that node's
        statement until its timeout. Then each has its delay; one more is for the message that opened it there.
        """
        ctx, succession = self._ctx, election.succession or ()
        others = set(succession) - {ctx.full_hostname}
        decided_s = ctx.settings.election_timeout_s + (1 + len(succession)) * ctx.stagger_s
        pursuit.others_until = election.opened_at + decided_s if failed and others else 0.0

    def _lets_others_first(self, pursuit: Pursuit, now: Now) -> bool:
        """True if the other nodes may still ask for what has just failed here: then it is put off until they have."""
        in_s = pursuit.others_until - now.mono
        if in_s <= 0:
            return False
        if pursuit.phase == WAITING:
            self._wait(pursuit, now, in_s)
        else:
            self._again(pursuit, in_s, FAILED_HERE, now)
        return True

    def _is_suspended(self, pursuit: Pursuit, now: Now) -> bool:
        """True if the ledger would say so again: it is asked when a sweep tells otherwise, and when it is late."""
        if pursuit.why != SUSPENDED or pursuit.action.job not in self._ctx.suspended or now.mono >= pursuit.late_at:
            return False
        self._again(pursuit, spread(pursuit.action.run, BACKOFF_MAX_S), SUSPENDED, now)
        return True

    def _aside(self, pursuit: Pursuit, job: Job, now: Now) -> str:
        """Why this node leaves it to the others for now, because its runs fail (elsewhere.py); "" if it does not."""
        in_time = now.mono < pursuit.late_at - job.start_within_s / 2
        return self._ctx.aside if in_time and not pursuit.alone else ""

    def _be_patient(self, pursuit: Pursuit, in_s: float, now: Now) -> None:
        """Set the time after which even an ineligible node claims; the run is due in ``in_s`` seconds."""
        job = self._ctx.definition_for(pursuit.action)
        if job is not None:
            pursuit.late_at = now.mono + max(0.0, in_s) + job.start_within_s


class Line(Phases):
    """The pursued runs, and who of those that wait for each other asks the ledger again, and when.

    The ledger decides whether a run may start. But hundreds may wait for the slots of one pool, on every node. Each
    node knows nearly all of them, and puts them in the same order. So only the first one that this node can take asks
    twice a second. The next few look every second whether they are the first; the others look seldom.
    """

    __slots__ = ("_last", "_scores", "open_claims", "pursuits", "running", "short")

    def __init__(self, ctx: Context) -> None:
        super().__init__(ctx)
        self.pursuits: dict[str, Pursuit] = {}
        self.running: dict[str, tuple[int, int, bool]] = {}  # run -> (attempt, token, waits): runners alive here
        self.open_claims: list[Pursuit] = []  # claims without an answer; few, since the budget bounds them
        self.short = False  # a run waited for the budget of drivers that compute
        self._last: Look[Pursuit] = Look(-1.0)
        self._scores: Mapping[str, float] = {}  # job -> what the strategy of priorities says

    def scored(self, scores: Mapping[str, float]) -> None:
        """Job -> what the strategy of priorities says of it: of jobs with one priority, the highest goes first."""
        self._scores = scores

    def run_ended(self, job: str, now: Now) -> None:
        """A run of a job is over: the first run in its queue, and the first that wait for its pool, ask soon."""
        queued = [p for p in self.pursuits.values() if p.limited and p.phase in (DUE, CLAIMING) and p.action.job == job]
        if queued:
            first = min(queued, key=lambda p: (p.action.fire_at, p.action.run))
            first.backoff_s = BACKOFF_MIN_S  # the event may come before the ledger knows the end: then try again soon
            if first.phase == DUE:
                self._again(first, (1 + (first.rank or 0)) * self._ctx.stagger_s, first.why, now)
        known = self._ctx.jobs.get(job)
        if known is not None and known.pool:
            self.line_moved(f"pool {known.pool}", now)

    def _limited(self, pursuit: Pursuit, answer: Answer, now: Now) -> None:
        """The ledger said: not now."""
        pursuit.slots = slots_named(answer.by, pursuit.action.job)
        in_s = answer.in_s
        if pursuit.slots and self._is_first(pursuit, pursuit.slots, now):
            pursuit.backoff_s = BACKOFF_MIN_S
            if in_s <= LIMIT_RETRY_S:  # it is due: a slot may become free of whose run nobody here hears the end
                in_s = BACKOFF_MIN_S
        elif pursuit.slots.startswith(JOB_SLOTS) and has_one_line(self._ctx.definition_for(pursuit.action)):
            in_s = max(in_s, self._behind_s(pursuit))
        self._again(pursuit, max(in_s, pursuit.backoff_s), f"{answer.word}: {answer.by}", now)
        pursuit.backoff_s = min(2 * pursuit.backoff_s, BACKOFF_MAX_S)

    def _left_line(self, pursuit: Pursuit, now: Now) -> None:
        """It does not wait for slots any more. Hundreds may leave at one instant: after it, their line is looked at."""
        if pursuit.slots:
            self._ctx.arm(now.mono, "line", pursuit.slots)
            pursuit.slots = ""

    def line_moved(self, slots: str, now: Now) -> None:
        """Runs do not wait for these slots any more, or one may be free: the first that wait ask soon."""
        for other in self._first(slots):
            self._sooner(other, (1 + (other.rank or 0)) * self._ctx.stagger_s, now)

    def _first(self, slots: str) -> list[Pursuit]:
        """The first of the runs that wait for these slots."""
        waiting = [p for p in self.pursuits.values() if self._waits_for(p, slots)]
        return heapq.nsmallest(FIRST, waiting, key=self._order)

    def _waits_for(self, pursuit: Pursuit, slots: str) -> bool:
        waits = pursuit.slots == slots and pursuit.phase in (DUE, CLAIMING, WAITING)
        return waits and self.pursuits.get(pursuit.action.run) is pursuit

    def _is_first(self, pursuit: Pursuit, slots: str, now: Now) -> bool:
        """True if it is one of the first that wait for these slots."""
        return pursuit in self._line(pursuit, slots, now)

    def _line(self, pursuit: Pursuit, slots: str, now: Now) -> list[Pursuit]:
        """Those first; found once in LOOK_S, unless one of them has left the line or this one belongs to them."""
        look = self._look(now)
        first = look.firsts.get(slots, [])
        left = not all(self._waits_for(p, slots) for p in first)
        if left or (pursuit not in first and self._belongs_to(first, pursuit)):
            first = look.firsts[slots] = self._first(slots)
        return first

    def _belongs_to(self, first: list[Pursuit], pursuit: Pursuit) -> bool:
        return len(first) < FIRST or self._order(pursuit) <= self._order(first[-1])

    def _look(self, now: Now) -> Look[Pursuit]:
        """The knowledge of this instant; empty for the first one that looks."""
        if self._last.at != now.mono:
            self._last = Look(now.mono, self._last)
        return self._last

    def _sooner(self, pursuit: Pursuit, in_s: float, now: Now) -> None:
        pursuit.backoff_s = BACKOFF_MIN_S
        if pursuit.phase in (DUE, WAITING) and pursuit.at > now.mono + in_s:
            self._again(pursuit, in_s, pursuit.why, now)

    def _order(self, pursuit: Pursuit) -> Order:
        """The order of runs that wait: by the job's priority, then as the strategy says, then by fire time."""
        action = pursuit.action
        job = self._ctx.definition_for(action)
        return -(job.priority if job else 0), -self._scores.get(action.job, 0.0), action.fire_at, action.run

    # ---- who goes first

    def _yields(self, pursuit: Pursuit, job: Job, now: Now) -> bool:
        """True if another run goes before this one: then this one is put off, and asks later."""
        # A run with a holder has its slot already: it is taken over, or nobody else gets the slot.
        if not job.pool or pursuit.unanswered or pursuit.watch is not None:
            return False
        bound_s = self._puts_off(pursuit, job.pool, now)
        if bound_s <= 0:
            return False
        slots = f"pool {job.pool}"
        if not pursuit.limited or pursuit.slots:  # otherwise something else than the pool holds it up, and it nobody
            pursuit.slots = slots
        first = self._is_first(pursuit, slots, now)
        pursuit.backoff_s = BACKOFF_MIN_S if first else min(2 * pursuit.backoff_s, BACKOFF_MAX_S)
        in_s = LIMIT_RETRY_S if first else later(pursuit.action.run, pursuit.backoff_s, now.mono)
        why = f"{words.LIMITED}: {slots}: {pursuit.yielded_to} goes first"
        self._again(pursuit, min(in_s, bound_s), why, now)
        return True

    def _stands_behind(self, pursuit: Pursuit, job: Job, now: Now) -> bool:
        """True if the runs that go before this one wait for its job's slot: then it need not ask yet."""
        slots = f"{JOB_SLOTS}{job.name}"
        old = now.mono >= pursuit.begun_at + BEHIND_S / 2
        if old or pursuit.unanswered or pursuit.watch is not None or job.overlap != "allow" or not has_one_line(job):
            return False
        first = self._line(pursuit, slots, now)
        if self._belongs_to(first, pursuit) or not all(p.limited for p in first):
            return False
        pursuit.slots, pursuit.limited = slots, True
        self._again(pursuit, self._behind_s(pursuit), f"limited: concurrency: {first[0].action.run} goes first", now)
        return True

    @staticmethod
    def _behind_s(pursuit: Pursuit) -> float:
        """When (in seconds) one that is not among the first asks; sooner if no record of it may ever come."""
        return spread(pursuit.action.run, BEHIND_S) if pursuit.recorded or pursuit.action.scheduled else BACKOFF_MAX_S

    def before_caller(self, action: Action, pool: str, now: Now) -> str:
        """The run that goes before one of a caller of `coordd exec`; "" if the caller may ask the ledger now.

        No node takes such a run, so each pursues it as one that only others can take, from its row on.
        """
        pursuit = self.pursuits.get(action.run)
        if pursuit is not None and (pursuit.phase not in (ELECTING, WAITING) or pursuit.watch is not None):
            return ""  # somebody has it, or its end is not known
        pursuit = pursuit or Pursuit(action, NOTHING_SETTLED, now)
        return pursuit.yielded_to if self._puts_off(pursuit, pool, now) > 0 else ""

    def caller_granted(self, run: str, pool: str, now: Now) -> None:
        """The caller's run has got a slot of that pool."""
        pursuit = self.pursuits.get(run)
        if pursuit is not None:
            pursuit.slots = f"pool {pool}"
            self._was_free(pursuit, now)
            pursuit.slots = ""

    def _puts_off(self, pursuit: Pursuit, pool: str, now: Now) -> float:
        """For how long (seconds) at most the run lets another one go first, ``yielded_to``; 0.0 if it may ask now."""
        other, bound_s = self._goes_first(pursuit, pool, now)
        waited = now.mono >= pursuit.yields_until
        if other is None or waited or bound_s == float("inf"):
            pursuit.yields_until = float("inf")
        if other is None or (waited and bound_s < float("inf")):
            return 0.0
        pursuit.yields_until = min(pursuit.yields_until, now.mono + bound_s)
        pursuit.yielded_to = other.action.run
        return bound_s

    def _goes_first(self, pursuit: Pursuit, pool: str, now: Now) -> tuple[Pursuit | None, float]:
        """A run that waits for the same pool and is before this one in its line, and for how long (seconds) this one
        lets it go first at most. No bound, if this node itself asks for that run: an answer will come. A run that came
        at this very instant may be seen at the next one only.
        """
        look = self._look(now)
        heads = look.heads.get(pool)
        if heads is None or any(self._stands(other, pool, now) != bound_s for bound_s, (_, other) in heads.items()):
            heads = look.heads[pool] = self._look_along(pool, now)
        mine = self._order(pursuit)
        for bound_s in BOUNDS_S:
            order, other = heads.get(bound_s, (mine, pursuit))
            if order < mine:
                return other, bound_s
        return None, 0.0

    def _look_along(self, pool: str, now: Now) -> Heads[Pursuit]:
        """The first run of each kind in the line of that pool."""
        heads: Heads[Pursuit] = {}
        answers: dict[tuple[tuple[str, ...], str, bool], bool] = {}  # hundreds may ask for the same tags
        for other in self.pursuits.values():
            bound_s = self._stands(other, pool, now)
            if not bound_s:
                continue
            order = self._order(other)
            if bound_s in heads and order > heads[bound_s][0]:
                continue
            if bound_s == YIELD_TO_OTHERS_S:
                job = self._ctx.definition_for(other.action)
                digest, only = unpinned(other.action.digest)
                defined = job is not None and digest in ("", job.digest)
                asks = job.tags if job else (), only, defined or digest.startswith(EXEC_DIGEST)
                if asks not in answers:
                    answers[asks] = self._somebody_may(*asks)
                if not answers[asks]:
                    continue
            heads[bound_s] = order, other
        return heads

    def _stands(self, other: Pursuit, pool: str, now: Now) -> float:
        """For how long (seconds) those behind it let this run go first at most; 0.0 if it is not in that line, or
        something else holds it up.
        """
        if other.phase not in (ELECTING, DUE, CLAIMING, WAITING) or now.mono < other.absent_until:
            return 0.0
        job = self._ctx.definition_for(other.action)
        if job is None or job.pool != pool:
            return 0.0
        if other.phase == WAITING:
            return YIELD_TO_OTHERS_S
        if other.slots != BUDGET and (other.limited or other.slots):  # no budget was short since that answer
            return float("inf") if other.slots == f"pool {pool}" else 0.0
        soon = other.phase != DUE or other.at <= now.mono + YIELD_S  # otherwise it is not due, or the ledger is away
        return YIELD_S if soon else 0.0

    def _somebody_may(self, tags: tuple[str, ...], only: str, here: bool) -> bool:
        """True if this node, or one that is not lost, has the tags, and is the one that is asked for ("": any). Of
        itself the node also knows that it has its definition (``here``); another one may still have an earlier one.
        """
        ctx, wanted = self._ctx, set(tags)
        if here and wanted <= set(ctx.settings.tags) and only in ("", ctx.hostname):
            return True
        return ctx.membership.somebody_has(wanted, only)

    def _was_free(self, pursuit: Pursuit, now: Now) -> None:
        """This run has got a slot. The one that it waited for had its time, and did not take it; nor did the others
        that only other nodes can take, and that waited as long.
        """
        first = self.pursuits.get(pursuit.yielded_to)
        pursuit.yielded_to = ""
        if first is None or first.phase != WAITING:
            return
        mine, since, slots = self._order(pursuit), now.mono - YIELD_TO_OTHERS_S, pursuit.slots
        for other in self.pursuits.values():
            waited = other.phase == WAITING and (other is first or other.row_at <= since)
            job = self._ctx.definition_for(other.action) if waited else None
            if job is not None and f"pool {job.pool}" == slots and self._order(other) < mine:
                other.absent_until = now.mono + ABSENT_S

    def _short_before(self, pursuit: Pursuit, job: Job, now: Now) -> Iterator[Pursuit]:
        """The runs before this one that wait for the budget of this node, in their order; none while there is no budget
        left: hundreds may wait, and each looks every second.
        """
        if not self._budget_left(job):
            return
        look = self._look(now)
        if look.short is None:
            look.short = sorted((p for p in self.pursuits.values() if p.slots == BUDGET), key=self._order)
        if not look.short:
            return
        mine = self._order(pursuit)
        for other in look.short:
            if self._order(other) >= mine:
                return
            if self._waits_for(other, BUDGET) and other.phase == WAITING and now.mono >= other.others_until:
                yield other

    def _waits_for_budget(self, pursuit: Pursuit, short: bool) -> None:
        if short and pursuit.slots != BUDGET:
            pursuit.slots, pursuit.yields_until = BUDGET, float("inf")  # then it lets others go first again
            self._last.add_short(pursuit, self._order)
        elif not short and pursuit.slots == BUDGET:
            pursuit.slots = ""

    def _is_full(self, pursuit: Pursuit, job: Job, now: Now) -> bool:
        """True if it waits for the budget, and none was left for another run at this very instant: thousands may wait,
        and each looks every second.
        """
        if pursuit.phase != WAITING or pursuit.slots != BUDGET or job.name.startswith(HOOK):
            return False
        full = self._look(now).full
        if job.waits not in full and not self._budget_left(job):
            full.add(job.waits)
        return job.waits in full

    def _budget_left(self, job: Job) -> bool:
        """Drivers that compute, drivers that wait, and calls of hooks (also made by a full node) are counted apart."""
        kind = HOOK if job.name.startswith(HOOK) else job.waits
        limit = HOOKS_HERE if kind == HOOK else self._ctx.settings.budget_cluster if kind else self._ctx.computing
        left = len(self.running) + len(self.open_claims) < limit  # whatever they are
        if not left:
            used = [(run, waits) for run, (_, _, waits) in self.running.items()]
            used += [(p.claimed.name, p.claimed.waits) for p in self.open_claims if p.phase == CLAIMING and p.claimed]
            left = sum((HOOK if name.startswith(HOOK) else waits) == kind for name, waits in used) < limit
        self.short = self.short or not (left or job.waits)
        return left

    def _registration(self, action: Action, job: Job) -> Registration:
        return Registration(
            action.run,
            action.job,
            pinned(job.digest, unpinned(action.digest)[1]),
            claimed_policy(job, action.args, self._ctx.hostname, self._ctx.concurrency),
            action.fire_at,
            scheduled=action.scheduled,
            args=action.args,
            due=action.due,
            identity_from=self._ctx.identity_from,
        )
