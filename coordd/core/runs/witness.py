"""A witness: remembers attempts, to restore them in a ledger that went back.

A failover, a backup that was restored, a flush: the ledger may have lost its last writes, and knows it. It grants
nothing for a while (``recovering_s``), and the nodes that know an attempt restore it: its own node, and every node that
heard of it. A restored row is held as if nothing had happened, and the attempt is not launched again.

One case is not covered: an attempt that no living node has seen is lost.
"""

from __future__ import annotations

from functools import partial

from coordd.core.context import Context
from coordd.core.groups.expand import group_of
from coordd.core.jobs.job import Job, scheduled_run
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.runner_requests import Registration, Restore
from coordd.core.ledger.sound import policy_fault
from coordd.core.ledger.words import FAILURE, LOST, OK, RECEIVED, REVOKED, STALE, STARTED, SUCCESS, Policy
from coordd.core.ready import Now
from coordd.core.runs.endings import granted_in, is_final
from coordd.core.wire.events import Task, TaskFailed, TaskReceived, TaskRetried, TaskRevoked, TaskStarted, TaskSucceeded

# Maximum number of remembered attempts; those without news for longest are forgotten first.
SEEN_MAX = 2000

# Maximum number of restorations at a time: the ledger must also answer runners. Where nobody knows whether a quarantine
# lasts, one is enough to find out.
AT_A_TIME = 64

# The state of an attempt after each event. Rejected runs were never granted, and need no witness.
STATES: dict[type[Task], str] = {
    TaskReceived: RECEIVED,
    TaskStarted: STARTED,
    TaskSucceeded: SUCCESS,
    TaskFailed: FAILURE,
    TaskRevoked: REVOKED,
    TaskRetried: LOST,
}
_ORDER = {RECEIVED: 0, STARTED: 1}  # all others are ends: 2


class Seen:
    """One attempt, as far as it is known."""

    __slots__ = ("application_id", "args", "digest", "event", "lease_s", "policy", "restored", "state")

    def __init__(self, event: Task, state: str, args: str) -> None:
        self.event = event  # the newest
        self.state = state
        self.args = args
        self.digest = event.digest  # the granted definition, policy and lease; "" and 0.0 if unknown
        self.policy = event.policy
        self.lease_s = event.lease
        self.application_id = event.application_id
        self.restored = ""  # the state that the ledger has restored in this quarantine


class Witness:
    """The memory of one node."""

    __slots__ = ("_answers", "_ctx", "_epoch", "_round", "_sure", "_todo", "asked", "recovering", "restored", "seen")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.seen: dict[tuple[str, int, int], Seen] = {}  # (run, attempt, token), in the order of their last events
        self.asked: set[tuple[str, int, int]] = set()  # attempts whose restoration the ledger has not answered yet
        self._round = 0  # how often the ledger went back: answers from before it did count no more
        self.recovering = False
        self._epoch = ""  # the epoch that the last sweep told
        self._answers = False  # the ledger takes restorations, as far as this node knows
        self._sure = False  # it took one, or said that it knows better
        self.restored = 0  # number of rows that the ledger restored from this node, since the start
        self._todo: list[tuple[str, int, int]] = []

    def saw(self, event: Task) -> None:
        """An event of an attempt, of this node or another; in any order."""
        state = STATES.get(type(event), "")
        if not state or not event.token or not event.nonce:
            return
        key = (event.run, event.attempt, event.token)
        known = self.seen.pop(key, None)
        if known is None:
            known = Seen(event, state, event.kwargs)
            if len(self.seen) >= SEEN_MAX:
                del self.seen[next(iter(self.seen))]
        elif _ORDER.get(state, 2) > _ORDER.get(known.state, 2):
            known.event, known.state = event, state
        known.args = known.args or event.kwargs
        if event.digest and not known.policy:
            known.digest, known.policy, known.lease_s = event.digest, event.policy, event.lease
        known.application_id = known.application_id or event.application_id
        self.seen[key] = known
        if self._answers and known.restored != known.state:
            self._todo.append(key)

    def ledger_says(self, recovering_s: float, epoch: str) -> None:
        """The ledger is in quarantine for ``recovering_s`` (0.0: not). A new ``epoch``: it has gone back once more.

        Others may have ended a quarantine early, before this node's first sweep; restorations are taken until its whole
        time is over. The sweep does not tell that, but the answer to a restoration does.
        """
        was, self.recovering = self.recovering, recovering_s > 0
        if epoch != self._epoch or (self.recovering and not was):
            self._epoch, self._answers, self._sure = epoch, self.recovering or bool(self.seen), self.recovering
            self.asked.clear()  # restorations from before it went back are forgotten
            self._round += 1
            for seen in self.seen.values():
                seen.restored = ""
            # Attempts that may still run come first: if time runs out, those must not be launched a second time.
            self._todo = sorted(self.seen, key=lambda key: (_ORDER.get(self.seen[key].state, 2) == 2, -key[2]))
            if self.recovering:
                self._ctx.note("ledger.recovering", left_s=round(recovering_s, 1), witnessed=len(self._todo))
        if was and not self.recovering:
            self._ctx.note("ledger.recovered", restored=self.restored)
        if self._answers:
            if not self._todo and not self.asked:  # including attempts without an answer
                self._todo = [key for key, seen in self.seen.items() if seen.restored != seen.state]
            self._go_on()

    @property
    def has_restored_all(self) -> bool:
        """True if the ledger has answered for all that this node knows."""
        known = (
            (seen, self._ctx.jobs.get(seen.event.name)) for seen in self.seen.values() if seen.restored != seen.state
        )
        return self.recovering and not self.asked and all(registration(seen, job) is None for seen, job in known)

    def _answered(
        self, round_: int, key: tuple[str, int, int], state: str, answer: Answer, _sent_at: float, _now: Now
    ) -> None:
        """The ledger has restored it, knows better, takes none any more, or did not answer."""
        if round_ != self._round:
            return
        self.asked.discard(key)
        seen = self.seen.get(key)
        if answer.word == STALE and not answer.state:  # the whole quarantine is over
            self._answers, self._todo = False, []
        elif answer.word in (OK, STALE):
            self._sure = True
            self.restored += answer.word == OK
            if seen is not None:
                seen.restored = state
        self._go_on()

    def _go_on(self) -> None:
        ctx = self._ctx
        while self._todo and len(self.asked) < (AT_A_TIME if self._sure else 1):
            key = self._todo.pop(0)
            seen = self.seen.get(key)
            if seen is None or seen.restored == seen.state or key in self.asked:
                continue
            event = seen.event
            job = ctx.jobs.get(event.name)
            of = registration(seen, job)
            if of is None:
                continue  # without its definition the row could not be told from another
            # A node that only heard of the grant cannot know that nothing was started: only the runner restores
            # "received".
            state = STARTED if seen.state == RECEIVED else seen.state
            lease_s = seen.lease_s or (job.lease_s if job is not None else ctx.settings.lease_s)
            restore = Restore(
                of=of,
                grant=granted_in(event),
                node=event.node,
                lease_s=lease_s,
                state=state,
                exit_code=event.exit_code,
                reason=event.reason,
                application_id=seen.application_id,
                final=is_final(event, job),
            )
            self.asked.add(key)
            ctx.ask(restore, partial(self._answered, self._round, key, seen.state))


def registration(seen: Seen, job: Job | None) -> Registration | None:
    """The run of an attempt, with the granted definition and policy.

    An older version sends neither, and a node that only ended the attempt may not know the policy: then the present job
    supplies the missing parts. None if the job is not known here.
    """
    event = seen.event
    policy = read_policy(seen.policy) if seen.digest else None
    if policy is None:
        if job is None:
            return None
        policy = job.policy()
    digest = seen.digest or (job.digest if job is not None else "")
    scheduled = group_of(event.run) == scheduled_run(event.name, event.fire_at)
    return Registration(
        event.run, event.name, digest, policy, event.fire_at, scheduled=scheduled, args=seen.args or "{}", due=event.due
    )


def read_policy(text: str) -> Policy | None:
    """The policy in a peer's event; None if its text is invalid."""
    if policy_fault(text):
        return None
    policy = Policy.unpack(text)
    return policy if policy.pack() == text else None
