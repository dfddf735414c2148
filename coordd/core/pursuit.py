"""Pursuit: rank only delays. Every node that could run a due run goes after it until the ledger says it is over.

One pursuit per open run. What other nodes say (``task-received``) or hold (``held``) postpones it; nothing
but the ledger ends it: finished, missed, rejected, revoked. Otherwise whoever dies at the wrong moment takes
the run with it.

    ELECTING --decided--> DUE --its turn--> CLAIMING --granted--> OWNED
       ^                   ^                   |--held----------> HELD --lapsed--> DUE
       |                   |--- WAITING <------|--not eligible, limited, no budget
       |---- SLEEPING <------------------------|--lost: the next attempt, when it is due
"""

from __future__ import annotations

from msgspec import structs

from coordd.core import rows
from coordd.core.ballots import Ballots
from coordd.core.context import LEAD_S, Context
from coordd.core.election import Election
from coordd.core.events import TASK_END, Action, Task, TaskReceived, event_type
from coordd.core.job import Command, Job, is_named, run_uuid
from coordd.core.lease_watch import LeaseWatch
from coordd.core.ready import Launch, Now
from coordd.core.rows import RHO, Answer, Claim, OpenAnswer, OpenRun, Registration

ELECTING = "electing"
DUE = "due"
CLAIMING = "claiming"
WAITING = "waiting"
HELD_BY_OTHER = "held"
SLEEPING = "sleeping"
OWNED = "owned"

# An unanswered or limited claim is repeated with a delay that doubles between these bounds.
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 10.0

# A claim that was answered "held" although the watch seemed ripe is not repeated sooner than this.
HELD_AGAIN_S = 0.25

# Elections decided less than this apart are one burst. Each claim of it takes the ledger so long; if the next in rank
# did not wait for that as well, every node would claim everything.
BURST_APART_S = 0.05
CLAIM_COST_S = 0.002

# A run that nobody can take (its job was changed since, no node has the tags) is asked for all the same once it is
# so much later than start_within: the ledger then writes that it was missed, and why.
LATE_S = 60.0

# What a node remembers of runs that are over, only to explain them (`why`).
EPITAPHS_MAX = 2000


class Pursuit:
    """One run that this node is after."""

    __slots__ = (
        "action", "at", "attempt", "backoff_s", "floor", "late_at", "limited", "nonce", "owner", "phase",
        "rank", "row_at", "settled_to", "unfit", "watch", "why",
    )  # fmt: skip

    def __init__(self, action: Action, settled_to: float) -> None:
        self.action = action
        self.attempt = action.attempt
        self.settled_to = settled_to
        self.phase = ELECTING
        self.at = 0.0
        self.rank: int | None = None
        self.nonce = ""
        self.floor = 0  # the job's highest token when the nonce was drawn: what that nonce is granted is above it
        self.late_at = float("inf")  # from then on even a node that cannot take it asks
        self.unfit = ""  # why this node may not launch what it has asked for
        self.backoff_s = BACKOFF_MIN_S
        self.row_at = float("inf")  # since when we know that the ledger has a row for it
        self.limited = False  # the last answer was: not while others run
        self.owner = ""
        self.watch: LeaseWatch | None = None
        self.why = ""


class Pursuits:
    """Every run that this node is after, and every one that it runs itself."""

    __slots__ = (
        "_asked", "_ballots", "_burst", "_ctx", "claiming", "epitaphs", "finals", "pursuits", "running",
    )  # fmt: skip

    def __init__(self, ctx: Context, ballots: Ballots) -> None:
        self._ctx = ctx
        self._ballots = ballots
        self.pursuits: dict[str, Pursuit] = {}
        self.running: dict[str, tuple[int, int, bool]] = {}  # run -> (attempt, token, waits): runners alive here
        self.claiming = 0
        self._burst = (0, 0.0)  # how many were decided before the last one in the same burst, and when that was
        self._asked: dict[int, str] = {}  # ledger request -> run
        self.finals: dict[str, Task] = {}  # run -> the end of an attempt that was heard, until the ledger has it
        self.epitaphs: dict[str, str] = {}

    # ---- beginning

    def begin(self, action: Action, now: Now, *, settled_to: float = 0.0, in_ledger: bool = False) -> Pursuit:
        """Go after a run: open its election (or join it)."""
        pursuit = self.pursuits.get(action.run)
        if pursuit is None:
            pursuit = self._new(action, settled_to, now)
            self._elect(pursuit, now)
        if in_ledger:
            pursuit.row_at = min(pursuit.row_at, now.mono)
        return pursuit

    def join(self, action: Action, now: Now) -> None:
        """A peer has opened an election about a run: pursue it too, if the job is known here."""
        pursuit = self.pursuits.get(action.run)
        if pursuit is None:
            # A fire time is what its run's name says; what a peer says of it counts for nothing.
            named = is_named(action.run, action.job, action.fire_at, scheduled=action.scheduled)
            if named and action.job in self._ctx.jobs and action.run not in self.epitaphs:
                self._new(action, 0.0, now)
        elif action.attempt > pursuit.attempt and pursuit.phase not in (OWNED, CLAIMING):
            pursuit.attempt = action.attempt
            pursuit.phase = ELECTING

    def joined(self, action: Action, election: Election | None, now: Now) -> None:
        """That election was joined. One that is over, or one too many, will not call ``decided`` any more."""
        pursuit = self.pursuits.get(action.run)
        if election is not None and election.succession is not None:
            self.decided(election, now)
        elif election is None and pursuit is not None and pursuit.phase == ELECTING:
            pursuit.why = "too many elections are open"
            self._wait(pursuit, now, self._ctx.settings.election_timeout_s)

    def decided(self, election: Election, now: Now) -> None:
        """The succession is known: take a place in it."""
        action = election.action
        pursuit = self.pursuits.get(action.run) if action else None
        if pursuit is None or pursuit.phase != ELECTING or action is None or action.attempt != pursuit.attempt:
            return
        ctx = self._ctx
        pursuit.rank = election.rank(ctx.full_hostname)
        if pursuit.rank is None:
            mine = election.statements.get(ctx.full_hostname)
            pursuit.why = f"this node abstained: {mine.abstains}" if mine else "this node made no statement in time"
            self._wait(pursuit, now, ctx.settings.election_timeout_s + len(election.statements) * ctx.stagger_s)
            return
        pursuit.phase = DUE
        before, at = self._burst
        self._burst = (before + 1 if now.mono - at < BURST_APART_S else 0, now.mono)
        pursuit.at = now.mono + pursuit.rank * ctx.stagger_s
        if pursuit.rank == 0:
            self._claim_if_eligible(pursuit, now)
        else:  # whoever is first has as many others to claim before
            pursuit.at += min(self._burst[0] * CLAIM_COST_S, ctx.settings.election_timeout_s)
            ctx.arm(pursuit.at, "pursuit", action.run)

    def abstains(self, job: Job | None, action: Action) -> str:
        """Why this node would not launch it now; "" when it would."""
        ctx = self._ctx
        if ctx.state != "ready":
            return "not mingled" if ctx.state in ("starting", "mingling") else ctx.state
        if job is None:
            return "no such job"
        if action.digest and action.digest != job.digest:
            return "job differs"
        if not set(job.tags) <= set(ctx.settings.tags):
            return "tags do not match"
        if ctx.impaired:
            return ctx.impaired
        if job.name in ctx.launch_problems:
            return ctx.launch_problems[job.name]
        if action.run in self.running:
            return "an attempt of it still lives here"  # it ends, or is ended; a machine that was frozen needs a moment
        if not self._budget_left(job):
            return "no budget"
        return ""

    def load(self) -> int:
        """The load class of this node, for jobs that are to be spread."""
        return len(self.running) + self.claiming

    # ---- time

    def timer(self, run: str, now: Now) -> None:
        """A pursuit's turn, if it still is."""
        pursuit = self.pursuits.get(run)
        if pursuit is None:
            return
        if now.mono < pursuit.at:
            self._ctx.arm(pursuit.at, "pursuit", run)  # it was put off since
        elif pursuit.phase in (DUE, WAITING, HELD_BY_OTHER):
            self._claim_if_eligible(pursuit, now)
        elif pursuit.phase == SLEEPING:
            self._elect(pursuit, now)

    def run_ended(self, job: str, now: Now) -> None:
        """A run of a job is over: the one that is first in its queue need not wait for its next look."""
        queued = [p for p in self.pursuits.values() if p.limited and p.phase in (DUE, CLAIMING) and p.action.job == job]
        if queued:
            first = min(queued, key=lambda p: (p.action.fire_at, p.action.run))
            first.backoff_s = BACKOFF_MIN_S  # the end may be told before the ledger has it: then soon again
            if first.phase == DUE:
                self._again(first, (1 + (first.rank or 0)) * self._ctx.stagger_s, first.why, now)

    def slot_freed(self, now: Now) -> None:
        """A run has ended here: the next one that only waited for the budget."""
        waiting = [p for p in self.pursuits.values() if p.phase == WAITING]
        if not waiting:
            return
        jobs = self._ctx.jobs
        waiting.sort(key=lambda p: (-jobs[p.action.job].priority if p.action.job in jobs else 0, p.action.fire_at))
        for pursuit in waiting:
            if not self.abstains(jobs.get(pursuit.action.job), pursuit.action):
                self._claim_if_eligible(pursuit, now)
                return

    def redefined(self, job: str) -> None:
        """A job was changed or removed: its schedule opens anew what the ledger has no row of."""
        for run, pursuit in list(self.pursuits.items()):
            unrecorded = pursuit.action.scheduled and pursuit.row_at == float("inf")
            if pursuit.action.job == job and unrecorded and pursuit.phase not in (CLAIMING, OWNED):
                del self.pursuits[run]

    # ---- the ledger

    def claim_answered(self, request: int, answer: Answer, sent_at: float, now: Now) -> None:
        """What the ledger said to a claim."""
        pursuit = self.pursuits.get(self._asked.pop(request, ""))
        self.claiming -= 1
        if pursuit is None or pursuit.phase != CLAIMING:
            return
        word = answer.word
        pursuit.limited = word == rows.LIMITED
        if answer.ended is not None:
            self._tell_ended(pursuit.action, answer, now)
        if word in (rows.GRANTED, rows.HELD, rows.LOST):  # the others may be said of a run that has no row yet
            pursuit.row_at = min(pursuit.row_at, now.mono)
        if word not in (rows.UNAVAILABLE, rows.RECOVERING, rows.LIMITED):
            pursuit.backoff_s = BACKOFF_MIN_S
        if word == rows.GRANTED:
            self._granted(pursuit, answer, sent_at, now)
        elif word == rows.HELD:
            self._observe(pursuit, *answer.until_token, self._ctx.lease_of(pursuit.action.job), now)
            self._held(pursuit, answer.by, max(answer.left_s, HELD_AGAIN_S), now)
        elif word == rows.LOST:
            self._next_attempt(pursuit, answer.attempt, answer.in_s, now)
        elif word == rows.EARLY:
            self._again(pursuit, answer.in_s, "not due yet", now)
        elif word == rows.LIMITED:
            self._again(pursuit, max(answer.in_s, pursuit.backoff_s), f"limited: {answer.by}", now)
            pursuit.backoff_s = min(2 * pursuit.backoff_s, BACKOFF_MAX_S)
        elif word == rows.DIFFERS:
            pursuit.why = "the job's definition here differs from the one it was registered with"
            self._wait(pursuit, now, BACKOFF_MAX_S)
        elif word == rows.RECOVERING:
            # Not to its end in one go: a person may end it sooner.
            in_s = min(max(answer.left_s, BACKOFF_MIN_S), BACKOFF_MAX_S)
            self._again(pursuit, in_s, "the ledger is recovering", now)
        elif word == rows.UNAVAILABLE:
            pursuit.watch = None  # a watch counts only through answers
            self._again(pursuit, pursuit.backoff_s, "the ledger does not answer", now)
            pursuit.backoff_s = min(2 * pursuit.backoff_s, BACKOFF_MAX_S)
        else:
            assert word in (rows.FINISHED, rows.REVOKED), word
            self._over(pursuit, answer.state or rows.REVOKED, now)

    def swept(self, answer: OpenAnswer, sent_at: float, now: Now) -> None:
        """Every open row, as the ledger has it: nothing hangs because nobody watched."""
        seen = set()
        for row in answer.runs:
            seen.add(row.run)
            self._row_seen(row, now)
        for run, pursuit in list(self.pursuits.items()):
            if run not in seen and pursuit.row_at < sent_at and pursuit.phase != CLAIMING:
                if pursuit.phase == OWNED and run in self.running:
                    continue  # its runner will say how it ended
                if answer.recovering_s > 0:
                    pursuit.row_at = float("inf")  # forgotten, not over: its claim writes it anew
                    continue
                self._over(pursuit, "", now)
            elif pursuit.phase == WAITING and now.mono >= pursuit.at:
                self._claim_if_eligible(pursuit, now)

    def unswept(self) -> None:
        """The ledger did not answer: what was watched until now proves nothing any more."""
        for pursuit in self.pursuits.values():
            pursuit.watch = None

    # ---- what peers say

    def heard(self, event: Task, now: Now) -> None:
        """Another node's word on a run: it postpones, it never ends a pursuit."""
        job = event.name
        self._ctx.saw_token(job, event.token)
        pursuit = self.pursuits.get(event.run)
        if pursuit is None:
            return
        pursuit.row_at = min(pursuit.row_at, now.mono)  # whoever speaks of it has it from the ledger
        if isinstance(event, TaskReceived) and event.attempt >= pursuit.attempt:
            if pursuit.phase in (ELECTING, DUE, WAITING, SLEEPING):
                pursuit.attempt = event.attempt
                self._held(pursuit, event.node, self._ctx.lease_of(job), now)

    def ended_elsewhere(self, event: Task) -> None:
        """The end of an attempt was heard; should its holder be unable to, we report it."""
        known = self.finals.get(event.run)
        if known is not None and known.token > event.token:
            return  # late news of an earlier attempt
        if len(self.finals) >= EPITAPHS_MAX:
            del self.finals[next(iter(self.finals))]
        self.finals[event.run] = event

    # ---- runners of this node

    def started(self, run: str, attempt: int, token: int, waits: bool) -> None:
        """A runner of ours lives (just launched, or adopted after a restart)."""
        self.running[run] = (attempt, token, waits)

    def gone(self, run: str, token: int, now: Now) -> None:
        """That runner is no more, and its end has been told (or cannot be known)."""
        held = self.running.get(run)
        if held is not None and held[1] == token:
            del self.running[run]
            pursuit = self.pursuits.get(run)
            if pursuit is not None and pursuit.phase == OWNED:
                self._held(pursuit, self._ctx.full_hostname, 0.0, now)
            self.slot_freed(now)

    # ---- single steps

    def _new(self, action: Action, settled_to: float, now: Now) -> Pursuit:
        pursuit = self.pursuits[action.run] = Pursuit(action, settled_to)
        self._be_patient(pursuit, action.fire_at - now.wall if action.scheduled else 0.0, now)
        return pursuit

    def _elect(self, pursuit: Pursuit, now: Now) -> None:
        if self._ctx.state == "stopping":
            return  # the others go on
        action = pursuit.action
        if action.attempt != pursuit.attempt:
            action = pursuit.action = structs.replace(action, attempt=pursuit.attempt)
        pursuit.phase = ELECTING
        pursuit.rank = None
        job = self._ctx.jobs.get(action.job)
        topic = "command" if job and isinstance(job.launch, Command) else "spark"
        election = self._ballots.open(f"{action.run}/{action.attempt}", topic, action, now)
        if election.succession is not None and pursuit.phase == ELECTING:
            self.decided(election, now)  # it was decided before we came to it

    def _claim_if_eligible(self, pursuit: Pursuit, now: Now) -> None:
        ctx = self._ctx
        action = pursuit.action
        job = ctx.jobs.get(action.job)
        if job is None:
            del self.pursuits[action.run]  # should the job come back, the sweep or its schedule brings the run back
            return
        pursuit.unfit = self.abstains(job, action)
        if pursuit.unfit and (ctx.state != "ready" or now.mono < pursuit.late_at):
            pursuit.why = f"this node cannot take it: {pursuit.unfit}"
            self._wait(pursuit, now, ctx.settings.election_timeout_s)
            return
        watch = pursuit.watch
        watched = (watch.token, watch.beat, max(0.0, now.mono - watch.since)) if watch else None
        if not pursuit.nonce:
            pursuit.nonce = ctx.nonce()
            pursuit.floor = ctx.tokens.get(action.job, 0)
        pursuit.phase = CLAIMING
        pursuit.why = "asking the ledger"
        self.claiming += 1
        of = Registration(
            action.run, action.job, job.digest, job.policy(), action.fire_at,
            scheduled=action.scheduled, args=action.args,
        )  # fmt: skip
        claim = Claim(of, pursuit.attempt, pursuit.nonce, ctx.full_hostname, job.lease_s, watched, pursuit.settled_to)
        self._asked[ctx.ask("claim", claim)] = action.run

    def _granted(self, pursuit: Pursuit, answer: Answer, sent_at: float, now: Now) -> None:
        ctx, action = self._ctx, pursuit.action
        nonce, pursuit.nonce = pursuit.nonce, ""
        pursuit.watch = None
        if answer.token <= pursuit.floor:
            ctx.note("token.went_back", run=action.run, token=answer.token, seen=pursuit.floor)
            self._again(pursuit, BACKOFF_MAX_S, "the ledger handed out a token below one already seen", now)
            return
        if pursuit.unfit:
            pursuit.late_at = now.mono + LATE_S
            why = f"given back: {pursuit.unfit}"
            ctx.ask("report", action.run, answer.attempt, answer.token, nonce, rows.RETRY, None, why, "", False)
            self._held(pursuit, ctx.full_hostname, 0.0, now)
            return
        ctx.saw_token(action.job, answer.token)
        job = ctx.jobs.get(action.job)
        deadline = sent_at + answer.left_s * (1 - 2 * RHO)
        if job is None or now.mono >= deadline - ctx.settings.kill_grace_s:
            self._held(pursuit, ctx.full_hostname, answer.left_s, now)  # too late to start: let it lapse
            return
        pursuit.phase = OWNED
        pursuit.owner = ctx.full_hostname
        pursuit.why = ""
        self.running[action.run] = (pursuit.attempt, answer.token, job.waits)
        received = TaskReceived(
            uuid=run_uuid(action.run), name=action.job, kwargs=answer.args, run=action.run,
            attempt=pursuit.attempt, token=answer.token, nonce=nonce, node=ctx.full_hostname,
            fire_at=action.fire_at, retries=pursuit.attempt,
        )  # fmt: skip
        ctx.record(received, now, sync=True)
        ctx.out.launches.append(
            Launch(
                action.run, action.job, pursuit.attempt, answer.token, nonce, action.fire_at, answer.args,
                deadline, job.lease_s, sent_at + answer.in_s,
            )
        )  # fmt: skip

    def _held(self, pursuit: Pursuit, by: str, left_s: float, now: Now) -> None:
        """Somebody has it: come back when its lease has been watched to its end."""
        pursuit.phase = HELD_BY_OTHER
        pursuit.owner = by
        pursuit.nonce = ""
        pursuit.why = f"held by {by}"
        if pursuit.watch is None:
            pursuit.at = float("inf")  # the next sweep begins a watch
            return
        ripe_at = max(pursuit.watch.ripe_at(), now.mono + max(0.0, left_s))
        pursuit.at = ripe_at + (pursuit.rank or 0) * self._ctx.stagger_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _observe(self, pursuit: Pursuit, token: int, beat: int, lease_s: float, now: Now) -> None:
        """An answer shows the holder's (token, beat): go on watching, or begin anew."""
        if not token:
            pursuit.watch = None
            return
        settings = self._ctx.settings
        apart_s = (settings.renew_interval_s + settings.ledger_timeout_s) * (1 + 2 * RHO)
        watch = pursuit.watch
        if watch and (watch.token, watch.beat) == (token, beat) and now.mono - watch.last_at <= apart_s:
            watch.last_at = now.mono
        else:
            pursuit.watch = LeaseWatch(token, beat, lease_s, now.mono)

    def _row_seen(self, row: OpenRun, now: Now) -> None:
        ctx = self._ctx
        pursuit = self.pursuits.get(row.run)
        if pursuit is not None and pursuit.nonce and pursuit.nonce == row.nonce:
            return  # our own claim was granted and the answer is still to come (or was lost: we ask again)
        ctx.saw_token(row.job, row.token)
        runner = self.running.get(row.run)
        ours = runner is not None and runner[1] == row.token and row.state not in (rows.PENDING, rows.RETRY)
        final = self.finals.get(row.run)
        if final is not None and (final.token, final.nonce) == (row.token, row.nonce) and row.state != rows.RETRY:
            self._report_for(final)
        if pursuit is None:
            if row.job not in ctx.jobs or ours:
                return
            pursuit = self._new(asked_for(row, row.attempt), 0.0, now)
            pursuit.phase = SLEEPING
            pursuit.at = float("inf")
        pursuit.row_at = min(pursuit.row_at, now.mono)
        if pursuit.action.digest != row.digest:  # a peer said otherwise; what was asked for stands in the ledger
            pursuit.action = asked_for(row, pursuit.action.attempt)
        if row.state in (rows.PENDING, rows.RETRY):
            if pursuit.phase == SLEEPING and pursuit.attempt == row.attempt and pursuit.at < float("inf"):
                return  # its turn is known
            if pursuit.phase in (HELD_BY_OTHER, SLEEPING, OWNED):
                self._next_attempt(pursuit, row.attempt, row.due_in_s, now)
        elif row.state in (rows.RECEIVED, rows.STARTED):
            if pursuit.phase == CLAIMING or ours:
                return
            if row.attempt > pursuit.attempt:
                pursuit.watch = None
            pursuit.attempt = row.attempt
            self._observe(pursuit, row.token, row.beat, row.lease, now)
            self._held(pursuit, row.node, row.left_s, now)
        else:
            pursuit.why = f"unknown: {row.node} was lost while it ran; say `run resolve`"
            if pursuit.phase != CLAIMING:
                pursuit.phase = SLEEPING
                pursuit.at = float("inf")

    def _next_attempt(self, pursuit: Pursuit, attempt: int, in_s: float, now: Now) -> None:
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

    def _again(self, pursuit: Pursuit, in_s: float, why: str, now: Now) -> None:
        pursuit.phase = DUE
        pursuit.why = why
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _wait(self, pursuit: Pursuit, now: Now, in_s: float) -> None:
        """Not eligible now; looked at again then, at every sweep, and when a slot is freed."""
        pursuit.phase = WAITING
        pursuit.nonce = ""
        pursuit.at = now.mono + in_s
        self._ctx.arm(pursuit.at, "pursuit", pursuit.action.run)

    def _over(self, pursuit: Pursuit, state: str, now: Now) -> None:
        run = pursuit.action.run
        del self.pursuits[run]
        self.finals.pop(run, None)
        if len(self.epitaphs) >= EPITAPHS_MAX:
            del self.epitaphs[next(iter(self.epitaphs))]
        self.epitaphs[run] = state
        if state in (rows.MISSED, rows.REJECTED):
            self._ctx.note("run.not_launched", run=run, state=state)

    def _tell_ended(self, action: Action, answer: Answer, now: Now) -> None:
        """Our claim has ended an attempt (its lease had lapsed, it came too late, …): the history is to know."""
        assert answer.ended is not None
        attempt, token, nonce, node, reason = answer.ended
        kind = TASK_END.get(answer.state or "lost", TASK_END["lost"])
        self._ctx.record(
            kind(
                uuid=run_uuid(action.run), name=action.job, run=action.run, attempt=attempt, token=token, nonce=nonce,
                node=node, fire_at=action.fire_at, kwargs=action.args, reason=reason, retries=attempt,
            ),
            now,
        )  # fmt: skip

    def _report_for(self, final: Task) -> None:
        """On the holder's behalf: it said how its attempt ended, and the ledger does not know yet."""
        state = {"task-succeeded": "success", "task-failed": "failure", "task-revoked": "revoked"}.get(
            event_type(final), rows.LOST
        )
        job = self._ctx.jobs.get(final.name)
        never_again = job is not None and final.exit_code in job.retry.never_on_codes
        self._ctx.ask(
            "report", final.run, final.attempt, final.token, final.nonce, state, final.exit_code,
            final.reason, final.application_id, never_again,
        )  # fmt: skip

    def _be_patient(self, pursuit: Pursuit, in_s: float, now: Now) -> None:
        """It is due in so many seconds; so long a node that cannot take it leaves it to the others."""
        job = self._ctx.jobs.get(pursuit.action.job)
        if job is not None:
            pursuit.late_at = now.mono + max(0.0, in_s) + job.start_within_s + LATE_S

    def _budget_left(self, job: Job) -> bool:
        settings = self._ctx.settings
        same_kind = sum(1 for _, _, waits in self.running.values() if waits == job.waits)
        return same_kind + self.claiming < (settings.budget_cluster if job.waits else settings.budget_client)


def asked_for(row: OpenRun, attempt: int) -> Action:
    """What was asked for, as the ledger has it."""
    return Action(row.job, row.run, attempt, row.fire_at, bool(row.scheduled), row.digest, row.args)
