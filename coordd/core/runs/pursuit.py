"""Pursuit: rank only delays. Every node that could run a due run pursues it until the ledger says that it is over.

One pursuit per open run. An event (``task-received``) or a lease (``held``) of another node postpones it. Only the
ledger ends it: finished, missed, rejected, revoked. Otherwise a run would be lost with a node that dies at the wrong
moment.

    ELECTING --decided--> DUE --its turn--> CLAIMING --granted--> OWNED
       ^                   ^                   |--held----------> HELD --lapsed--> DUE
       |                   |--- WAITING <------|--not eligible, limited, no budget
       |---- SLEEPING <------------------------|--lost: the next attempt, when it is due
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from functools import partial

from msgspec import structs

from coordd.core.context import LEAD_S, Context
from coordd.core.election import Election
from coordd.core.jobs.arguments import fits
from coordd.core.jobs.job import Command, Job, is_named, run_uuid, unpinned
from coordd.core.ledger import words
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenRun
from coordd.core.ledger.requests import NOTHING_SETTLED, Claim, Register, Settled
from coordd.core.ledger.runner_requests import Grant, Registration, Report
from coordd.core.ledger.words import RHO, SETTLED, AttemptNumber
from coordd.core.node.elections import Elections
from coordd.core.ready import Launch, Now
from coordd.core.runs.endings import EPITAPHS_MAX, Endings
from coordd.core.runs.leftovers import Leftovers
from coordd.core.runs.pursued import (
    BACKOFF_MAX_S,
    BACKOFF_MIN_S,
    CLAIMING,
    DUE,
    ELECTING,
    HELD_BY_OTHER,
    NO_BUDGET,
    OWNED,
    SLEEPING,
    TOLD,
    TURN_S,
    WAITING,
    Line,
    Pursuit,
)
from coordd.core.runs.waiting.look import first_of_lines
from coordd.core.wire.events import Action, Task, TaskReceived, asked_for

# A claim that was answered "held" although the watch seemed complete is not repeated sooner than this (seconds).
HELD_AGAIN_S = 0.25

# Why a grant is returned; why a claim waits.
REDEFINED = "the definition was changed or removed while it was claimed"
RECOVERS = "the ledger is recovering"

# Elections decided within this time (seconds) are one burst: the next in rank also waits for the claims before it.
BURST_APART_S = 0.05
CLAIM_COST_S = 0.002


class Pursuits(Line):
    """Every run that this node pursues, and every run that runs here."""

    __slots__ = ("_burst", "_elections", "_recording", "_sweep_soon", "endings", "epitaphs", "leftovers")

    def __init__(self, ctx: Context, elections: Elections, sweep_soon: Callable[[Now], None]) -> None:
        """``sweep_soon``: the ledger went back, or other rules are in force; the sweep will tell which."""
        super().__init__(ctx)
        self._elections = elections
        self._sweep_soon = sweep_soon
        self._burst = (0, 0.0)  # how many were decided before in the same burst, and when the last was
        self._recording: set[str] = set()  # runs that no node took, and that the ledger is asked to record
        self.endings = Endings(ctx)
        self.leftovers = Leftovers(ctx, self.endings)
        self.epitaphs: dict[str, str] = {}

    # ---- start

    def begin(
        self, action: Action, now: Now, settled: Settled = NOTHING_SETTLED, *, in_ledger: bool = False
    ) -> Pursuit:
        """Pursue a run: open its election (or join it)."""
        pursuit = self.pursuits.get(action.run)
        # A peer may have opened it first, under a definition that does not count any more: then nobody could claim it.
        otherwise = pursuit is not None and (pursuit.redefined or pursuit.action.digest != action.digest)
        if pursuit is None or (otherwise and pursuit.row_at == float("inf")):
            pursuit = self._new(action, settled, now)
            self._elect(pursuit, now)
        if in_ledger:
            self._has_row(pursuit, now)
        return pursuit

    def join(self, action: Action, now: Now) -> None:
        """A peer has opened an election about a run: pursue it too, if the job is known here."""
        pursuit = self.pursuits.get(action.run)
        if pursuit is None:
            # A run's id contains its fire time; a peer's word on it does not count.
            named = is_named(action.run, action.job, action.fire_at, scheduled=action.scheduled)
            named = named and fits(action.args) and self._ctx.is_named_now(action)
            if named and action.job in self._ctx.jobs and action.run not in self.epitaphs:
                self._new(action, NOTHING_SETTLED, now)
        elif action.attempt > pursuit.attempt and pursuit.phase not in (OWNED, CLAIMING):
            pursuit.attempt = AttemptNumber(action.attempt)
            pursuit.phase = ELECTING

    def joined(self, action: Action, election: Election | None, now: Now) -> None:
        """That election was joined, and may be decided. None: too many elections are open."""
        pursuit = self.pursuits.get(action.run)
        if election is not None and election.is_about(action):
            if election.succession is not None:
                self.decided(election, now)
        elif pursuit is not None and pursuit.phase == ELECTING:
            pursuit.why = "too many elections are open, or another has its id"
            self._wait(pursuit, now, self._ctx.settings.election_timeout_s)

    def decided(self, election: Election, now: Now) -> None:
        """The succession is known: take our place in it."""
        action = election.action
        pursuit = self.pursuits.get(action.run) if action else None
        if pursuit is None or pursuit.phase != ELECTING or action is None or action.attempt != pursuit.attempt:
            return
        ctx = self._ctx
        pursuit.rank, pursuit.alone = election.rank(ctx.full_hostname), not election.succession
        self._leave_to_others(pursuit, election, bool(self.endings.elsewhere.load(action)))
        if pursuit.rank is None:
            mine = election.statements.get(ctx.full_hostname)
            pursuit.why = f"this node abstained: {mine.abstains}" if mine else "this node made no statement in time"
            self._waits_for_budget(pursuit, mine is not None and mine.abstains == NO_BUDGET)
            self._wait(pursuit, now, ctx.settings.election_timeout_s + len(election.statements) * ctx.stagger_s)
            return
        pursuit.phase = DUE
        before, at = self._burst
        self._burst = (before + 1 if now.mono - at < BURST_APART_S else 0, now.mono)
        pursuit.at = now.mono + pursuit.rank * ctx.stagger_s
        if pursuit.rank == 0:
            self._claim_if_eligible(pursuit, now)
        else:  # the first node has that many claims to make before
            pursuit.at += min(self._burst[0] * CLAIM_COST_S, ctx.settings.election_timeout_s)
            ctx.arm(pursuit.at, "pursuit", action.run)

    def abstains(self, job: Job | None, action: Action) -> str:
        """Why this node would not launch it now; "" if it would."""
        ctx = self._ctx
        if ctx.state != "ready":
            return "not mingled" if ctx.state in ("starting", "mingling") else ctx.state
        if job is None:
            return "no such job"
        definition, only = unpinned(action.digest)
        if definition not in ("", job.digest):
            return "job differs"
        if only not in ("", ctx.hostname):
            return f"only {only} may launch it"
        if not set(job.tags) <= set(ctx.settings.tags):
            return "tags do not match"
        if ctx.braked or ctx.unfit:
            return ctx.braked or ctx.unfit
        if job.name in ctx.launch_problems:
            return ctx.launch_problems[job.name]
        if job.name in ctx.abstaining:
            return ctx.abstaining[job.name]
        if action.run in self.running:
            return "an attempt of it still lives here"  # it ends, or is ended; a machine that was frozen needs a moment
        if not self._budget_left(job):
            return NO_BUDGET
        return ""

    def load(self, job: Job | None, action: Action) -> int:
        """The load class of this node, for jobs that are spread, and for a retry of what has just failed here."""
        spread = job is not None and job.placement == "spread"
        return self.endings.elsewhere.load(action) + (len(self.running) + len(self.open_claims) if spread else 0)

    # ---- time

    def timer(self, run: str, now: Now) -> None:
        """The timer of a pursuit has fired."""
        pursuit = self.pursuits.get(run)
        if pursuit is None:
            return
        if now.mono < pursuit.at:
            self._ctx.arm(pursuit.at, "pursuit", run)  # it was postponed since
        elif pursuit.phase in (DUE, WAITING, HELD_BY_OTHER):
            self._claim_if_eligible(pursuit, now)
        elif pursuit.phase == SLEEPING:
            self._elect(pursuit, now)

    def slot_freed(self, now: Now) -> None:
        """A run has ended here: start the next one that only waited for the budget."""
        waiting = [p for p in self.pursuits.values() if p.phase == WAITING and now.mono >= p.others_until]
        if not waiting:
            return
        waiting.sort(key=self._order)
        for pursuit in waiting:
            if not self.abstains(self._ctx.definition_for(pursuit.action), pursuit.action):
                self._claim_if_eligible(pursuit, now)
                return

    def _take_longer_waiting(self, pursuit: Pursuit, job: Job, now: Now) -> None:
        """Runs that go before this one, and wait for the budget here, are claimed first."""
        for other in self._short_before(pursuit, job, now):
            if not self._budget_left(job):
                return
            if not self.abstains(self._ctx.definition_for(other.action), other.action):
                self._claim_if_eligible(other, now)

    def redefined(self, job: str) -> None:
        """A job was changed or removed: drop its runs that have no row; its schedule opens them again."""
        for run, pursuit in list(self.pursuits.items()):
            if pursuit.action.job == job and pursuit.action.scheduled and pursuit.row_at == float("inf"):
                pursuit.redefined = True  # a claim under way is not repeated
                if pursuit.phase not in (CLAIMING, OWNED):
                    del self.pursuits[run]

    # ---- the ledger

    def claim_answered(self, pursuit: Pursuit, claim: Claim, answer: Answer, sent_at: float, now: Now) -> None:
        """The ledger's answer to a claim."""
        self.open_claims.remove(pursuit)
        if answer.word == words.OUTDATED or (answer.word == words.RECOVERING and not self._ctx.recovering):
            self._sweep_soon(now)
        word = answer.word
        if self.pursuits.get(claim.of.run) is not pursuit or pursuit.phase != CLAIMING:
            # Meanwhile it was started again, under another definition, or is open under another id.
            if word == words.GRANTED:
                self._give_back(claim.of.run, answer, claim.nonce, REDEFINED)
            return
        pursuit.limited, pursuit.dated = word == words.LIMITED, word == words.EARLY
        pursuit.unanswered = word == words.UNAVAILABLE
        if answer.ended is not None:
            self.endings.tell(pursuit.action, answer, now)
        if word in (words.GRANTED, words.HELD, words.LOST):  # other answers may be about a run without a row
            self._has_row(pursuit, now)
        if word == words.GRANTED:
            self._was_free(pursuit, now)
        if word not in (words.UNAVAILABLE, words.RECOVERING, words.LIMITED, words.BAD):
            pursuit.backoff_s = BACKOFF_MIN_S
            self._left_line(pursuit, now)
        if word == words.GRANTED:
            self._granted(pursuit, claim.of, answer, sent_at, now)
        elif word == words.HELD and answer.state == words.UNKNOWN:
            self._ctx.note("run.unknown", run=pursuit.action.run, job=pursuit.action.job, node=answer.by)
            self._leave_to_people(pursuit, answer.by)
        elif word == words.HELD:
            self._observe(pursuit, answer.held.token, answer.held.beat, self._ctx.lease_of(pursuit.action.job), now)
            self._held(pursuit, answer.by, max(answer.left_s, HELD_AGAIN_S), now)
        elif word == words.LOST:
            self._next_attempt(pursuit, answer.attempt, answer.in_s, now)
        elif word == words.UNRECORDED:
            self._unrecorded(pursuit, now)
        elif word == words.EARLY:
            self._again(pursuit, answer.in_s, "not due yet", now)
        elif word in (words.LIMITED, words.BAD):
            if word == words.BAD:
                self._ctx.name_bad_rows({pursuit.action.run: answer.by}, swept=False)
            self._limited(pursuit, answer, now)
        elif word == words.DIFFERS:
            pursuit.why = "the job's definition here differs from the one it was registered with"
            self._wait(pursuit, now, BACKOFF_MAX_S)
        elif word == words.RECOVERING:
            self._again(pursuit, min(max(answer.left_s, BACKOFF_MIN_S), BACKOFF_MAX_S), RECOVERS, now)
        elif word == words.UNAVAILABLE:
            pursuit.watch = None  # a watch counts only through answers
            self._again(pursuit, pursuit.backoff_s, "the ledger does not answer", now)
            pursuit.backoff_s = min(2 * pursuit.backoff_s, BACKOFF_MAX_S)
        elif word not in (words.FINISHED, words.REVOKED):  # the last: a damaged ledger
            why = "other rules are in force than this node knew" if word == words.OUTDATED else f"answered {word!r}"
            self._again(pursuit, pursuit.backoff_s, why, now)
        else:
            if answer.state == SETTLED and pursuit.rank == 0 and pursuit.action.scheduled:  # one node counts it
                due = pursuit.action.due_at
                self._ctx.note("fire_times.settled", job=pursuit.action.job, after=due - 1e-3, upto=due)
            self._over(pursuit, answer.state or words.REVOKED, now)

    def rows_seen(self, some: Iterable[OpenRun], now: Now) -> None:
        """Open rows of the ledger."""
        for row in some:
            self._row_seen(row, now)
            self.leftovers.row_seen(row, now)

    def swept(self, gone: Container[str], bad: dict[str, str], recovering: bool, sent_at: float, now: Now) -> None:
        """These have had no open row since ``sent_at``: every one of them that is pursued and had a row is over.

        Never called after an incomplete sweep: a row that it did not reach is not over.
        """
        self.leftovers.swept(gone)
        for first in first_of_lines((p for p in self.pursuits.values() if p.limited and p.phase == DUE), self._order):
            self._sooner(first, self._ctx.stagger_s, now)  # those before it may be with other nodes
        for run, pursuit in list(self.pursuits.items()):
            if run in gone and pursuit.row_at < sent_at and pursuit.phase != CLAIMING:
                if pursuit.phase == OWNED and run in self.running:
                    continue  # its runner will tell how it ended
                if recovering:
                    pursuit.row_at = float("inf")  # forgotten, not over: its claim writes the row again
                    continue
                self._over(pursuit, words.BAD if run in bad else "", now)
            elif pursuit.phase == WAITING and now.mono >= pursuit.at:
                self._claim_if_eligible(pursuit, now)
            elif pursuit.phase == DUE and pursuit.why == RECOVERS and not recovering:
                self._sooner(pursuit, (pursuit.rank or 0) * self._ctx.stagger_s, now)
            elif pursuit.row_at == float("inf"):
                self._comes_sooner(pursuit, pursuit.action.due_at - self._ctx.ledger_wall(now), now)

    def unswept(self) -> None:
        """The ledger did not answer: earlier watching proves nothing any more."""
        self.leftovers.unswept()
        for pursuit in self.pursuits.values():
            pursuit.watch = None

    # ---- events of peers

    def heard(self, event: Task, now: Now) -> None:
        """Another node's event about a run: it postpones a pursuit, and never ends it."""
        self._ctx.told_token(event.name, event.token, event.node, now)
        pursuit = self.pursuits.get(event.run)
        if pursuit is None:
            return
        pursuit.row_at = min(pursuit.row_at, now.mono)  # the sender knows it from the ledger
        claims_not = pursuit.phase in (ELECTING, DUE, WAITING, SLEEPING)
        if isinstance(event, TaskReceived) and event.attempt >= pursuit.attempt and claims_not:
            pursuit.attempt = AttemptNumber(event.attempt)
            self._held(pursuit, event.node, self._ctx.lease_of(event.name), now)

    # ---- this node's runners

    def started(self, run: str, attempt: int, token: int, waits: bool) -> None:
        """A runner of ours is alive (just launched, or adopted after a restart)."""
        self.running[run] = (attempt, token, waits)

    def gone(self, run: str, token: int, now: Now) -> None:
        """That runner is gone, and its end was published (or cannot be known)."""
        held = self.running.get(run)
        if held is not None and held[1] == token:
            del self.running[run]
            pursuit = self.pursuits.get(run)
            if pursuit is not None and pursuit.phase == OWNED:
                self._held(pursuit, self._ctx.full_hostname, 0.0, now)
            self.slot_freed(now)

    # ---- steps

    def _new(self, action: Action, settled: Settled, now: Now) -> Pursuit:
        pursuit = self.pursuits[action.run] = Pursuit(action, settled, now)
        self._be_patient(pursuit, action.due_at - now.wall if action.scheduled else 0.0, now)
        return pursuit

    def _elect(self, pursuit: Pursuit, now: Now) -> None:
        if self._ctx.state == "stopping":
            return  # the other nodes continue
        action = pursuit.action
        if action.attempt != pursuit.attempt:
            action = pursuit.action = structs.replace(action, attempt=pursuit.attempt)
        pursuit.phase = ELECTING
        pursuit.rank, pursuit.dated = None, False
        job = self._ctx.definition_for(action)
        topic = "command" if job and isinstance(job.launch, Command) else "spark"
        election = self._elections.open(f"{action.run}/{action.attempt}", topic, action, now)
        if election.succession is not None:
            self.decided(election, now)  # at once, or before we joined

    def _claim_if_eligible(self, pursuit: Pursuit, now: Now) -> None:
        ctx, action = self._ctx, pursuit.action
        job = self._definition(pursuit)
        if job is None or self._was_refused(pursuit, now):
            # If the job comes back, the sweep or its schedule brings the run back. Two looks of one instant may end it.
            self.pursuits.pop(action.run, None)
            return
        if self._lets_others_first(pursuit, now) or self._is_suspended(pursuit, now):
            return
        if self._is_full(pursuit, job, now):
            self._see_to_a_row(pursuit, job, now)
            self._wait(pursuit, now, ctx.settings.election_timeout_s)
            return
        self._take_longer_waiting(pursuit, job, now)
        unfit = self.abstains(job, action) or self._aside(pursuit, job, now)
        if unfit:
            self._waits_for_budget(pursuit, unfit == NO_BUDGET)
            pursuit.why = f"this node cannot take it: {unfit}"
            self._see_to_a_row(pursuit, job, now)
            self._wait(pursuit, now, ctx.settings.election_timeout_s)
            return
        if self._yields(pursuit, job, now) or self._stands_behind(pursuit, job, now):
            self._record(pursuit, job)
            return
        if not pursuit.nonce:
            pursuit.nonce = ctx.nonce()
            pursuit.claimed = job
            pursuit.floor = ctx.tokens.get(action.job, 0)
        pursuit.phase = CLAIMING
        pursuit.why = "asking the ledger"
        self.open_claims.append(pursuit)
        claim = Claim(
            of=self._registration(action, job),
            attempt=pursuit.attempt,
            nonce=pursuit.nonce,
            node=ctx.full_hostname,
            lease_s=job.lease_s,
            watched=pursuit.watch.watched(now.mono) if pursuit.watch else None,
            settled=pursuit.settled,
            opens=job.follows is None if action.scheduled else pursuit.recorded == TOLD,
        )
        ctx.ask(claim, partial(self.claim_answered, pursuit, claim))

    def _granted(self, pursuit: Pursuit, of: Registration, answer: Answer, sent_at: float, now: Now) -> None:
        ctx, action = self._ctx, pursuit.action
        nonce, pursuit.nonce = pursuit.nonce, ""
        job, pursuit.claimed = pursuit.claimed, None
        assert job is not None, f"{action.run}: granted, and nothing was claimed"
        pursuit.watch = None
        if answer.token <= pursuit.floor:
            ctx.note("token.went_back", run=action.run, token=answer.token, seen=pursuit.floor)
            self._again(pursuit, BACKOFF_MAX_S, "the ledger handed out a token below one already seen", now)
            return
        if ctx.braked or not ctx.definition(job.name, job.digest):
            self._give_back(action.run, answer, nonce, ctx.braked or REDEFINED)
            self._held(pursuit, ctx.full_hostname, 0.0, now)
            return
        ctx.saw_token(action.job, answer.token)
        deadline = sent_at + min(answer.left_s, job.lease_s) * (1 - 2 * RHO)
        if now.mono >= deadline - ctx.settings.kill_grace_s:
            self._held(pursuit, ctx.full_hostname, answer.left_s, now)  # too late to start: let it lapse
            return
        pursuit.phase = OWNED
        pursuit.owner = ctx.full_hostname
        pursuit.why = ""
        self.running[action.run] = (pursuit.attempt, answer.token, job.waits)
        received = TaskReceived(
            uuid=run_uuid(action.run),
            name=action.job,
            kwargs=answer.args,
            run=action.run,
            attempt=pursuit.attempt,
            token=answer.token,
            nonce=nonce,
            node=ctx.full_hostname,
            fire_at=action.fire_at,
            due=action.due,
            retries=pursuit.attempt,
            digest=of.digest,
            policy=of.policy.pack(),
            lease=job.lease_s,
        )
        ctx.record(received, now, sync=True)
        ctx.out.launches.append(
            Launch(
                action.run,
                action.job,
                pursuit.attempt,
                answer.token,
                nonce,
                action.fire_at,
                answer.args,
                deadline,
                job.lease_s,
                sent_at + answer.in_s,
                of.digest,
                of.policy.pack(),
                action.due,
            )
        )

    def _give_back(self, run: str, granted: Answer, nonce: str, why: str) -> None:
        """A grant is not launched here: return it, so that nobody waits for its lease to lapse."""
        grant = Grant(run=run, attempt=granted.attempt, token=granted.token, nonce=nonce)
        self._ctx.ask(Report(grant=grant, state=words.RETRY, reason=f"given back: {why}"))

    def _row_seen(self, row: OpenRun, now: Now) -> None:
        ctx = self._ctx
        pursuit = self.pursuits.get(row.run)
        if pursuit is not None and pursuit.nonce and pursuit.nonce == row.nonce:
            return  # our own claim was granted and the answer is on its way (or was lost: we ask again)
        ctx.saw_token(row.job, row.token)
        runner = self.running.get(row.run)
        ours = runner is not None and runner[1] == row.token and row.state not in (words.PENDING, words.RETRY)
        self.endings.row_seen(row)
        if pursuit is None:
            if row.job not in ctx.jobs or ours:
                return
            pursuit = self._new(asked_for(row, row.attempt), NOTHING_SETTLED, now)
            pursuit.phase = SLEEPING
            pursuit.at = float("inf")
        self._has_row(pursuit, now, of_parents=row.of_parents)
        # A peer said otherwise; the ledger knows the registered one. Each peer dates what it was asked for by its own
        # clock, and the ledger for all: so all nodes have one order of the runs that wait.
        otherwise = pursuit.action.digest != row.digest
        if otherwise or (pursuit.action.fire_at != row.fire_at and not row.scheduled):
            pursuit.action = asked_for(row, pursuit.action.attempt)
        if row.state in (words.PENDING, words.RETRY):
            self._comes_sooner(pursuit, row.due_in_s, now)
            turn_at = now.mono + max(0.0, row.due_in_s - LEAD_S) + TURN_S
            if pursuit.phase == SLEEPING and pursuit.attempt == row.attempt and pursuit.at <= turn_at:
                return  # its turn is known
            if pursuit.phase in (HELD_BY_OTHER, SLEEPING, OWNED):
                self._next_attempt(pursuit, row.attempt, row.due_in_s, now)
        elif row.state in (words.RECEIVED, words.STARTED):
            if pursuit.phase == CLAIMING or ours:
                return
            if row.attempt > pursuit.attempt:
                pursuit.watch = None
            pursuit.attempt = row.attempt
            self._observe(pursuit, row.token, row.beat, row.lease, now)
            self._held(pursuit, row.node, row.left_s, now)
        elif pursuit.phase != CLAIMING:
            self._leave_to_people(pursuit, row.node)

    def _next_attempt(self, pursuit: Pursuit, attempt: AttemptNumber, in_s: float, now: Now) -> None:
        ctx = self._ctx
        pursuit.attempt = attempt
        pursuit.watch = None
        pursuit.nonce = ""
        pursuit.owner = ""
        self._be_patient(pursuit, in_s, now)
        wait_s = in_s - LEAD_S
        if wait_s > 0:
            pursuit.phase = SLEEPING
            pursuit.at = now.mono + wait_s
            pursuit.why = f"attempt {attempt} is due in {in_s:.0f} s"
            ctx.arm(pursuit.at, "pursuit", pursuit.action.run)
        else:
            self._elect(pursuit, now)

    def _over(self, pursuit: Pursuit, state: str, now: Now) -> None:
        run = pursuit.action.run
        del self.pursuits[run]
        self._left_line(pursuit, now)
        self.endings.forget(run)
        if len(self.epitaphs) >= EPITAPHS_MAX:
            del self.epitaphs[next(iter(self.epitaphs))]
        self.epitaphs[run] = state

    def _see_to_a_row(self, pursuit: Pursuit, job: Job, now: Now) -> None:
        """Record a scheduled run that no node can take (for example, no node has its tags) after its ``start_within``:
        without a row, nobody would know that it was missed.
        """
        if now.mono >= pursuit.late_at:
            self._record(pursuit, job)

    def _record(self, pursuit: Pursuit, job: Job) -> None:
        """Write a row for a scheduled run that has none, without a claim."""
        action = pursuit.action
        recorded = pursuit.row_at < float("inf") or action.run in self._recording
        if recorded or not action.scheduled or action.digest not in ("", job.digest):
            return
        if self._ctx.state == "ready":
            self._recording.add(action.run)
            self._ctx.ask(Register(of=self._registration(action, job)), partial(self._recorded, action.run))

    def _recorded(self, run: str, answer: Answer, _sent_at: float, now: Now) -> None:
        """The ledger has a row for it, or says that it is over."""
        self._recording.discard(run)
        pursuit = self.pursuits.get(run)
        if pursuit is None or answer.word not in (words.OK, words.EXISTS, words.CONFLICT):
            return
        if answer.state == SETTLED or answer.state in words.TERMINAL:
            if pursuit.phase not in (CLAIMING, OWNED):
                self._over(pursuit, answer.state, now)
        else:
            self._has_row(pursuit, now)
