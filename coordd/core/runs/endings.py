"""The ends of attempts: reports ends that the holder could not report, and publishes ends that our own requests caused.

A holder publishes how its attempt ended, and reports it to the ledger. If it cannot report, any node that heard of the
end does it, as soon as the sweep shows that the ledger does not know yet.
"""

from __future__ import annotations

from coordd.core.context import Context
from coordd.core.jobs.job import Job, run_uuid, unpinned
from coordd.core.ledger import words
from coordd.core.ledger.answers import Answer
from coordd.core.ledger.open_answer import OpenRun
from coordd.core.ledger.runner_requests import Grant, Report
from coordd.core.ledger.words import AttemptNumber, Token
from coordd.core.members.elsewhere import Elsewhere
from coordd.core.ready import Now
from coordd.core.wire.events import TASK_END, Action, Task, event_type

# How many ended runs a node remembers, with their ends (for `why`).
EPITAPHS_MAX = 2000


class Endings:
    """Ends that one node has heard and the ledger may not have."""

    __slots__ = ("_ctx", "elsewhere", "finals")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.elsewhere = Elsewhere(ctx)
        self.finals: dict[str, Task] = {}  # run -> a published end of an attempt, until the ledger has it

    def heard(self, event: Task, now: Now) -> None:
        """An end was heard; if its holder cannot report it, we do."""
        self.elsewhere.heard(event, now)
        known = self.finals.get(event.run)
        if known is not None and known.token > event.token:
            return  # an old event of an earlier attempt
        if len(self.finals) >= EPITAPHS_MAX:
            del self.finals[next(iter(self.finals))]
        self.finals[event.run] = event

    def forget(self, run: str) -> None:
        """The ledger has it."""
        self.finals.pop(run, None)

    def row_seen(self, row: OpenRun) -> None:
        """An open row: if we know how its attempt ended, tell the ledger."""
        final = self.finals.get(row.run)
        if final is None or (final.token, final.nonce) != (row.token, row.nonce) or row.state == words.RETRY:
            return
        report = self.report_of(final)
        if row.state == words.UNKNOWN and report.state == words.LOST:
            return  # the ledger knows as much as we do, and waits for a person
        self._ctx.ask(report)

    def report_of(self, event: Task) -> Report:
        """What the holder would have reported, from its event."""
        state = {"task-succeeded": "success", "task-failed": "failure", "task-revoked": "revoked"}.get(
            event_type(event), words.LOST
        )
        return Report(
            grant=granted_in(event),
            state=state,
            exit_code=event.exit_code,
            reason=event.reason,
            application_id=event.application_id,
            final=is_final(event, self._ctx.jobs.get(event.name)),
        )

    def tell(self, action: Action, answer: Answer, now: Now) -> None:
        """Our claim has ended an attempt (its lease had lapsed, it came too late, …): publish that for the history."""
        assert answer.ended is not None
        ended = answer.ended
        kind = TASK_END.get(answer.state or "lost", TASK_END["lost"])
        self._ctx.record(
            kind(
                uuid=run_uuid(action.run),
                name=action.job,
                run=action.run,
                attempt=ended.attempt,
                token=ended.token,
                nonce=ended.nonce,
                node=ended.node,
                fire_at=action.fire_at,
                due=action.due,
                kwargs=action.args,
                reason=ended.reason,
                retries=ended.attempt,
                result=answer.state or None,
                digest=ended.digest,
                policy=ended.policy,
                lease=ended.lease_s,
            ),
            now,
        )


def granted_in(event: Task) -> Grant:
    """The grant of the attempt that an event tells of."""
    return Grant(run=event.run, attempt=AttemptNumber(event.attempt), token=Token(event.token), nonce=event.nonce)


def is_final(event: Task, job: Job | None) -> bool:
    """True if that exit code is never retried, by the definition that ran (an older version does not say which)."""
    return (
        job is not None
        and unpinned(event.digest)[0] in ("", job.digest)
        and event.exit_code in job.retry.never_on_codes
    )
