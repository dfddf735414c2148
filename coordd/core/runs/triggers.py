"""Triggered runs: recorded before the reply, by the ledger or, while it is away, on this node's disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coordd.core.context import Context
from coordd.core.jobs.job import run_uuid
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.requests import Register
from coordd.core.ledger.runner_requests import Registration
from coordd.core.ledger.words import BAD, CONFLICT, EXISTS, OK, RECORDS_FIRST, UNAVAILABLE
from coordd.core.members.membership import LEFT
from coordd.core.ready import Now, Reply
from coordd.core.wire.events import Action, TaskSent

# Maximum number of triggers that the ledger does not have yet; each is also on this node's disk.
REQUESTS_MAX = 10_000

# How often (seconds) such a trigger is offered to the ledger.
REGISTER_AGAIN_S = 1.0


class Triggers:
    """The triggers that the ledger does not have yet.

    The election of such a run begins together with its record. It is a proposal: only the record makes it a run.
    """

    __slots__ = ("_answers", "_begin", "_ctx", "kept", "requests")

    def __init__(self, ctx: Context, begin: Callable[..., object]) -> None:
        """``begin(action, now, in_ledger=…)`` pursues a run."""
        self._ctx = ctx
        self._begin = begin
        self._answers = True  # the ledger answered the last request
        self.requests: dict[str, Registration] = {}
        self.kept: set[str] = set()  # the ones that are on this node's disk

    def trigger(self, of: Registration, reply_id: int, now: Now) -> None:
        """Trigger a run; ``reply_id`` is 0 if nobody waits (it was accepted before a restart)."""
        out = self._ctx.out
        if reply_id and len(self.requests) >= REQUESTS_MAX:
            out.replies.append(Reply(reply_id, {}, "try_later", f"{REQUESTS_MAX} triggers wait already"))
            return
        if reply_id and self._ctx.split:
            out.replies.append(Reply(reply_id, {}, "other_ledger", f"this node may launch nothing: {self._ctx.braked}"))
            return
        known = self.requests.get(of.run)
        if reply_id and known is not None and (known.digest, known.args) != (of.digest, of.args):
            out.replies.append(Reply(reply_id, {"durable": "node"}, "conflict", differs(of.run)))
            return
        self.requests[of.run] = of
        if not reply_id:
            self.kept.add(of.run)
        self._register(of, reply_id, now)
        if reply_id and known is None and self._proposes(of):
            self._begin(action_of(of), now, in_ledger=False)

    def not_kept(self, run: str) -> None:
        """The disk has refused it: it is not accepted."""
        self.requests.pop(run, None)
        self.kept.discard(run)

    def timer(self, run: str, now: Now) -> None:
        """Offer it to the ledger again."""
        if run in self.requests:
            self._register(self.requests[run], 0, now)

    def _answered(self, of: Registration, reply_id: int, answer: Answer, _sent_at: float, now: Now) -> None:
        """The ledger's answer; ``reply_id``: the reply that waits for it."""
        out = self._ctx.out
        self._answers = answer.word != UNAVAILABLE
        if answer.word not in (OK, EXISTS, CONFLICT, BAD):  # no answer, or none to a registration: a damaged ledger
            self._keep(of, reply_id, now)
            return
        self.requests.pop(of.run, None)
        if of.run in self.kept:
            self.kept.discard(of.run)
            out.requests_done.append(of.run)
        if answer.word == CONFLICT:
            if reply_id:
                out.replies.append(Reply(reply_id, {}, "conflict", differs(of.run)))
            else:
                self._ctx.note("request.dropped", run=of.run, reason=differs(of.run))
            return
        if answer.word == BAD:
            if reply_id:
                out.replies.append(
                    Reply(reply_id, {}, "bad_row", f"{answer.by}; `coordctl run revoke {of.run}` ends it")
                )
            else:
                self._ctx.note("request.dropped", run=of.run, reason=answer.by)
            return
        if answer.word == OK:
            sent = TaskSent(uuid=run_uuid(of.run), name=of.job, kwargs=of.args, run=of.run, fire_at=of.fire_at)
            self._ctx.record(sent, now)
        if reply_id:
            there = {"exists": True} if answer.word == EXISTS else {}
            out.replies.append(Reply(reply_id, {"id": of.run, "durable": "ledger", "state": answer.state, **there}))
        if answer.state in ("pending", "retry") and of.job in self._ctx.jobs:
            self._begin(action_of(of), now, in_ledger=True)

    def _proposes(self, of: Registration) -> bool:
        """True if its election need not wait for its record: the ledger answers, and each member claims by the rules 3,
        so no claim can make a run of a trigger that the ledger refuses.
        """
        ctx = self._ctx
        members = ctx.membership.members.values()
        agreed = all(member.rules >= RECORDS_FIRST for member in members if member.state != LEFT)
        return self._answers and agreed and ctx.state == "ready" and not ctx.braked and of.job in ctx.jobs

    def _keep(self, of: Registration, reply_id: int, now: Now) -> None:
        """The ledger does not have it yet: keep it here, and offer it again."""
        out = self._ctx.out
        if of.run not in self.requests:
            # It was triggered twice, and the other call was answered or refused meanwhile.
            if not reply_id:
                return
            self.requests[of.run] = of  # asked again until the ledger has it: then nothing stays here
        if reply_id:
            if of.run not in self.kept:  # only once: a disk that is full now must not lose an accepted trigger
                self.kept.add(of.run)
                out.requests_kept.append(of)
            out.replies.append(Reply(reply_id, {"id": of.run, "durable": "node"}))
        self._ctx.arm(now.mono + REGISTER_AGAIN_S, "register", of.run)

    def _register(self, of: Registration, reply_id: int, now: Now) -> None:
        if self._ctx.braked:  # in a ledger that may be the wrong one it would be lost
            self._keep(of, reply_id, now)
            return
        of.age_s = max(0.0, now.wall - of.fire_at)
        self._ctx.ask(Register(of=of), partial(self._answered, of, reply_id))


def action_of(of: Registration) -> Action:
    """A trigger as the subject of an election."""
    return Action(of.job, of.run, fire_at=of.fire_at, digest=of.digest, args=of.args)


def differs(run: str) -> str:
    """The same id must not mean two different requests."""
    return f"{run} exists already, with another definition or other arguments"
