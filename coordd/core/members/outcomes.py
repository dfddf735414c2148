"""The recent ends of runs that a node knows of: it shows them while the ledger is away, and tells them to a newcomer.

Nothing is decided by them: the ledger has the truth. A node that was told a lie shows that lie, with the name of the
teller, until the ledger answers or the end itself is heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

from msgspec import structs

from coordd.core.context import Context
from coordd.core.jobs.job import HOOK, job_of, run_uuid
from coordd.core.members.membership import PID_DIGITS_MAX
from coordd.core.names import NAME
from coordd.core.ready import Now
from coordd.core.visible import obeyed, visible
from coordd.core.wire.events import (
    PROTOCOL_MAJOR,
    ControlRevoke,
    Packet,
    RunOutcome,
    Task,
    TaskFailed,
    TaskReceived,
    TaskRejected,
    TaskRetried,
    TaskRevoked,
    TaskStarted,
    TaskSucceeded,
    event_type,
)

# This many ends are kept and told, of at most this age (seconds).
OUTCOMES_MAX = 300
OUTCOME_AGE_MAX_S = 3600.0

# The length of an id, and of a reason, that are told.
RUN_LENGTH_MAX = 256
REASON_LENGTH_MAX = 200

# Event type -> class, of the events that end a run (or an attempt that may be tried again).
ENDS: dict[str, type[Task]] = {
    str(kind.__struct_config__.tag): kind for kind in (TaskSucceeded, TaskFailed, TaskRejected, TaskRevoked)
}
REVOKED = str(TaskRevoked.__struct_config__.tag)
# After these, with a higher token, the run goes on.
GOES_ON = (TaskReceived, TaskStarted, TaskRetried)


class Known(NamedTuple):
    """One end. ``seen_at``: when this node heard of it, or the teller did, by this node's wall clock."""

    outcome: RunOutcome
    seen_at: float
    told_by: str = ""  # full_hostname; "" if this node has heard the event itself

    def age_s(self, now: Now) -> float:
        """How long it has been known. A wall clock that was set back makes nothing younger than now."""
        return max(0.0, now.wall - self.seen_at)


class Outcomes:
    """The memory of one node. What it was told displaces nothing that it has heard."""

    __slots__ = ("_ctx", "_heard", "_learned", "_refused", "_told")

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._heard: dict[str, Known] = {}  # by run, the newest last
        self._told: dict[str, Known] = {}
        self._learned: list[RunOutcome] = []  # told, and not yet shown
        self._refused = 0  # entries that no honest node sends

    def of(self, run: str) -> Known | None:
        """How that run ended, as far as this node knows; None while it may still go on."""
        return self._heard.get(run) or self._told.get(run)

    def saw(self, event: Task, seen_at: float) -> None:
        """An event of a run, of this node or another, at that time by this node's wall clock."""
        known = self.of(event.run)
        if event_type(event) in ENDS:
            if known is None or known.told_by or event.token >= known.outcome.token:
                self._hear(_outcome(event), seen_at)
        elif isinstance(event, GOES_ON) and known is not None and _goes_on(event, known.outcome):
            self._heard.pop(event.run, None)
            self._told.pop(event.run, None)

    def revoked(self, said: ControlRevoke, seen_at: float) -> None:
        """A person has forbidden a run."""
        self._hear(
            RunOutcome(REVOKED, said.run, said.clock, said.timestamp, reason=said.reason[:REASON_LENGTH_MAX]), seen_at
        )

    def _hear(self, outcome: RunOutcome, seen_at: float) -> None:
        self._told.pop(outcome.run, None)
        _put(self._heard, Known(outcome, seen_at))

    # ---- newcomers

    def recent(self, now: Now) -> list[RunOutcome]:
        """What a newcomer is told, the newest first. What this node was told itself is told on, with its age."""
        young = [
            (known.age_s(now), known.outcome)
            for known in (*reversed(self._heard.values()), *reversed(self._told.values()))
            if known.age_s(now) <= OUTCOME_AGE_MAX_S
        ]
        young.sort(key=lambda one: one[0])
        return [structs.replace(outcome, age=round(age_s, 3)) for age_s, outcome in young[:OUTCOMES_MAX]]

    def told(self, outcomes: Iterable[RunOutcome], teller: str, now: Now) -> None:
        """What a peer knows. What this node has heard itself counts more; of two tellers, the higher token."""
        for outcome in islice(outcomes, OUTCOMES_MAX):
            if not _is_sound(outcome):
                self._refused += 1
                if self._refused & (self._refused - 1) == 0:  # 1, 2, 4, 8, …: a flood must not fill the log
                    run = visible(outcome.run[:RUN_LENGTH_MAX])
                    self._ctx.note("outcome.not_believed", peer=teller, run=run, count=self._refused)
                continue
            known = self.of(outcome.run)
            if known is not None and (not known.told_by or known.outcome.token >= outcome.token):
                continue
            _put(self._told, Known(outcome, now.wall - outcome.age, teller))
            if len(self._learned) < OUTCOMES_MAX:
                self._learned.append(outcome)

    def learned(self) -> list[RunOutcome]:
        """The ends that peers told since the last call, the oldest first."""
        learned, self._learned = self._learned, []
        return sorted(learned, key=lambda outcome: -outcome.age)


def _put(into: dict[str, Known], known: Known) -> None:
    into.pop(known.outcome.run, None)
    if len(into) >= OUTCOMES_MAX:
        del into[next(iter(into))]
    into[known.outcome.run] = known


def _outcome(event: Task) -> RunOutcome:
    return RunOutcome(
        event_type(event),
        event.run,
        event.clock,
        event.timestamp,
        attempt=event.attempt,
        token=event.token,
        node=event.node,
        exit_code=event.exit_code,
        reason=event.reason[:REASON_LENGTH_MAX],
        result=(event.result or "")[:REASON_LENGTH_MAX],
    )


def packet_of(outcome: RunOutcome, cluster: str) -> Packet:
    """The event as its node has sent it, as far as it was told. It has no incarnation: nobody has heard it here."""
    hostname, _, pid = outcome.node.rpartition(".")
    number = int(pid) if pid.isascii() and pid.isdigit() and len(pid) <= PID_DIGITS_MAX else 0
    event: Any = ENDS[outcome.kind](
        clock=outcome.clock,
        timestamp=outcome.at,
        uuid=run_uuid(outcome.run),
        name=job_of(outcome.run),
        run=outcome.run,
        attempt=outcome.attempt,
        token=outcome.token,
        node=outcome.node,
        exit_code=outcome.exit_code,
        reason=outcome.reason,
        result=outcome.result or None,
    )
    return Packet(PROTOCOL_MAJOR, cluster, hostname, number, "", 0, 0, [event])


def _goes_on(event: Task, outcome: RunOutcome) -> bool:
    """True if the event tells of a later attempt. What a person forbade has no token: then the clock tells."""
    return event.token > outcome.token and (outcome.token > 0 or event.clock > outcome.clock)


def _is_sound(outcome: RunOutcome) -> bool:
    """True if an honest node may have said so. The codec has checked types and ranges."""
    job = job_of(outcome.run)
    return (
        outcome.kind in ENDS
        and 0.0 <= outcome.age <= OUTCOME_AGE_MAX_S
        and outcome.run != job
        and len(outcome.run) <= RUN_LENGTH_MAX
        and NAME.fullmatch(job.removeprefix(HOOK)) is not None
        and not any(obeyed(text) for text in (outcome.run, outcome.node))
        and max(len(outcome.reason), len(outcome.result)) <= REASON_LENGTH_MAX
    )
