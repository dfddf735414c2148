"""The same events folded by Celery's own State, and what of its tasks must equal the runs of the history.

Celery folds events in the order in which they arrive. It is given those of a run in the order of the history, once
each. That is the order of Celery's receivers (clock, timestamp, hostname), except that the attempt and its token go
before the clock: Celery's events have no attempt. Where an attempt begins, the task is pending again.

The rules that agree: the state that each event means, the precedence of states, ``retry``, which always counts, what a
late ``received`` may still contribute, and when the last event of each type was. So these must be equal for each run,
however its events came: the state (Celery shouts it) and the instants of the types. The other fields, too, for runs
whose events have no empty one.

The rules that do not: an empty or null field erases a value in Celery, and never does here; ``timestamp`` is of the
latest event in Celery, and of the event that gave the state here. Celery has no attempts, grants, elections and fires,
and its workers have no incarnation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from celery.events.state import State
from celery.states import PENDING

from coordd.core.wire.merge import LIFE, run_key
from coordd.history.schema import RUN_FIELDS
from history.oracle.comparing import Tally
from history.oracle.reference import Row

WORDS = tuple(word.removeprefix("task-") for word in LIFE)


def compare(records: Iterable[Row], runs: Mapping[str, Row], tally: Tally) -> None:
    """``records``: all events of the runs, each once. ``runs``: the rows of the table, by uuid."""
    by_uuid: dict[str, list[Row]] = defaultdict(list)
    for record in records:
        if record["type"].startswith("task-"):
            by_uuid[record["uuid"]].append(record)
    state = State(max_tasks_in_memory=len(by_uuid) + 1)
    for uuid, events in by_uuid.items():
        attempt = 0
        for event in sorted(events, key=run_key):
            if (event.get("attempt") or 0) > attempt:
                attempt = event["attempt"]
                if uuid in state.tasks:
                    state.tasks[uuid].state = PENDING
            state.event({**event, "local_received": event["timestamp"]})  # a receiver of Celery adds it
        task = vars(state.tasks[uuid])
        row = runs.get(uuid, {})
        tally.rows += 1
        if task["state"].lower() != row.get("state"):
            tally.add(uuid, f"state: Celery has {task['state']}, found {row.get('state')}")
        whole = not any(value in (None, "") for event in events for value in event.values())
        for name in (*WORDS, *(RUN_FIELDS if whole else ())):
            if task.get(name) != row.get(name):
                tally.add(uuid, f"{name}: Celery has {task.get(name)!r}, found {row.get(name)!r}")
