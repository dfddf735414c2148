"""The state of each run, from its events: Celery's rules of precedence and merging.

Events come late, twice and in any order. Two things make the outcome the same for everybody:

1. *Order.* Events are ordered by ``(clock, timestamp, full_hostname)``. Within one run the attempt goes before
   all of it: the ledger grants attempts one after the other, which is stronger than any clock. Without it a
   node that comes back late and journals the loss of attempt 0 would turn a run that has succeeded meanwhile
   back into ``retry`` (for Celery's events, which have no attempt, the order is Celery's).
2. *Precedence.* An event that logically happened before the state we are in (``PRECEDENCE``) does not move
   the state back; it contributes its fields, and a late ``task-received`` only those of ``MERGE_RULES``.
   ``retry`` is exempt: it always counts, and whatever follows it counts. States of different attempts are not
   compared: the first event of a later attempt always counts, whatever became of the one before it.

Fields keep the value that came last; a field that is absent, None in a record, or empty never erases a value.

Two departures from celery.events.state, both on purpose: ``timestamp`` is that of the event that gave the
state (in Celery a late event overwrites it, so that it may belong to another event than the state beside it);
and states are our words (``success``), where Celery shouts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from coordd.core.ledger.words import FAILURE, PENDING, RECEIVED, REJECTED, RETRY, REVOKED, STARTED, SUCCESS

TASK = "task-"

# The state that each event means; another type names a state of its own ("task-foo": foo).
STATE_OF: dict[str, str] = {
    "task-sent": PENDING,
    "task-received": RECEIVED,
    "task-started": STARTED,
    "task-succeeded": SUCCESS,
    "task-failed": FAILURE,
    "task-rejected": REJECTED,
    "task-revoked": REVOKED,
    "task-retried": RETRY,
}

# Highest first; None stands for all other states.
PRECEDENCE: tuple[str | None, ...] = (SUCCESS, FAILURE, None, REVOKED, STARTED, RECEIVED, REJECTED, RETRY, PENDING)
_RANKS = {state: rank for rank, state in enumerate(PRECEDENCE)}

# The fields that an event contributes even if its state is too late to count. States without an entry contribute all
# their fields.
MERGE_RULES: dict[str, tuple[str, ...]] = {
    RECEIVED: ("name", "args", "kwargs", "parent_id", "root_id", "retries", "eta", "expires")
}

# For two events of one node with one stamp (a node does not write such): the run's life decides.
LIFE = (
    "task-sent",
    "task-received",
    "task-started",
    "task-rejected",
    "task-retried",
    "task-revoked",
    "task-failed",
    "task-succeeded",
)
_LIFE_RANKS = {word: rank for rank, word in enumerate(LIFE)}

# Not fields of a run: ``state``, ``timestamp`` and ``seen`` contain them.
_NOT_FIELDS = frozenset(("type", "state", "timestamp"))


def precedence(state: str) -> int:
    """The rank of a state; 0 is the highest."""
    return _RANKS.get(state, _RANKS[None])


def state_of(event_type: str) -> str:
    """The state that a task event announces."""
    return STATE_OF.get(event_type) or event_type.removeprefix(TASK)


def life_rank(event_type: str) -> int:
    """The position of a task event in a run's life; unknown types come last."""
    return _LIFE_RANKS.get(event_type, len(LIFE))


def order_key(event: dict[str, Any]) -> tuple[int, float, str]:
    """The order of all events: (clock, timestamp, full_hostname)."""
    full_hostname = f"{event.get('hostname') or ''}.{event.get('pid') or 0}"
    return (event.get("clock") or 0, event.get("timestamp") or 0.0, full_hostname)


def run_key(event: dict[str, Any]) -> tuple[Any, ...]:
    """The order of the events of one run; total for events that differ in any part of it."""
    kind = event["type"]
    grant = (event.get("attempt") or 0, event.get("token") or 0)  # an attempt that lapsed unlaunched is granted again
    return (*grant, *order_key(event), life_rank(kind), kind, event.get("incarnation") or "")


class RunState:
    """One run, as its events describe it: a fold, one ``apply`` per event."""

    __slots__ = ("attempt", "fields", "seen", "state", "timestamp", "uuid")

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.attempt = 0  # the latest one that any event has named
        self.state = PENDING
        self.timestamp = 0.0  # of the event that gave the state
        self.seen: dict[str, float] = {}  # "started" -> when; the last one if there were several
        self.fields: dict[str, Any] = {}

    def apply(self, event: dict[str, Any]) -> None:
        """Add one more event, in any order; Celery's rules, as Celery applies them on arrival. Of an attempt before the
        latest, only fields that are not known yet count.
        """
        kind = event["type"]
        timestamp = event.get("timestamp") or 0.0
        self.seen[kind.removeprefix(TASK)] = timestamp
        state = state_of(kind)
        attempt = event.get("attempt") or 0
        past, opens = attempt < self.attempt, attempt > self.attempt
        keep: tuple[str, ...] | None = None
        if past or not (opens or RETRY in (state, self.state) or precedence(state) <= precedence(self.state)):
            keep = MERGE_RULES.get(state)  # logically it happened before
        else:
            self.attempt, self.state, self.timestamp = attempt, state, timestamp
        for name, value in event.items():
            if value in (None, "") or name in _NOT_FIELDS or (keep is not None and name not in keep):
                continue
            if not (past and name in self.fields):
                self.fields[name] = value

    def __repr__(self) -> str:
        return f"RunState({self.fields.get('run') or self.uuid}: {self.state})"


def merge(events: Iterable[dict[str, Any]]) -> dict[str, RunState]:
    """The runs (by uuid) of these events; neither their order nor duplicates matter.

    Events that are not about a run are ignored.
    """
    runs: dict[str, RunState] = {}
    for event in sorted((e for e in events if e["type"].startswith(TASK) and e.get("uuid")), key=run_key):
        uuid = event["uuid"]
        run = runs.get(uuid)
        if run is None:
            run = runs[uuid] = RunState(uuid)
        run.apply(event)
    return runs
