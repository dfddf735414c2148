"""The timeline of a run: what happened to it, in the order of time, from the rows of the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from coordd.core.ledger.rows import AttemptRow, Row
from coordd.core.ledger.sound import attempt_fault, run_fault
from coordd.core.ledger.words import ABSENT, RETRY, TERMINAL, UNKNOWN
from coordd.services.following import lineal
from coordd.services.views.objects import Stop, by_person, instant

# The ledger does not keep when the end of an attempt became unknown: that step is the last one, and has no instant.
UNDATED = float("inf")


class Step(NamedTuple):
    """One thing that happened, or that will happen. ``at`` in Unix seconds, or UNDATED."""

    at: float
    node: str
    what: str
    detail: str = ""


def of_run(row: Row | None, attempts: Sequence[AttemptRow], stop: Stop | None = None) -> list[Step]:
    """The steps that the ledger's rows tell, by time. ``stop``: why the run cannot start now."""
    steps = _steps(row, attempts) if row is not None and not run_fault(row) else []
    if stop is not None and stop.hold is not None and stop.hold.by and (row is None or row.state not in TERMINAL):
        hold = stop.hold
        note = f": {hold.note}" if hold.note else ""
        steps.append(Step(hold.at, "", "all jobs suspended" if stop.common else "suspended", f"by {hold.by}{note}"))
        if hold.until:
            steps.append(Step(hold.until, "", "suspension ends"))
    return sorted((step for step in steps if step.at), key=lambda step: step.at)


def shown(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """The timeline as in `run.show` and `why`: `[{at, node, what, detail}]`."""
    return [
        {
            "at": None if step.at == UNDATED else instant(step.at),
            "node": step.node or None,
            "what": step.what,
            "detail": step.detail or None,
        }
        for step in steps
    ]


def _steps(row: Row, attempts: Sequence[AttemptRow]) -> list[Step]:
    asked = lineal.registered_by(row)
    if asked.startswith(ABSENT):
        by = f"without its parents: {asked.removeprefix(ABSENT)}"
    else:
        by = f"by {asked}" if asked else "by its schedule" if row.scheduled else ""
    steps = [Step(row.due_at, "", "due"), Step(row.created_at, "", "registered", by)]
    told = False  # True when the end of the last attempt is shown: it is also the end of the run
    for one in attempts:
        if attempt_fault(one):
            continue
        number = f"attempt {one.attempt}"
        steps += [Step(one.received_at, one.node, "granted", number), Step(one.started_at, one.node, "started", number)]
        if one.ended_at:
            told = told or (one.attempt == row.attempt and one.state == row.state)
            code = f"exit code {one.exit_code}" if one.exit_code is not None else ""
            if by_person(one):  # not on its node, and not when its program ended
                steps.append(Step(one.ended_at, "", "resolved", one.reason.removeprefix("resolved ")))
            else:
                steps.append(Step(one.ended_at, one.node, one.state, one.reason or code))
    if row.state in TERMINAL and not told:
        steps.append(Step(row.ended_at, row.node, row.state, row.reason))
    if row.state == UNKNOWN:
        steps.append(Step(UNDATED, row.node, UNKNOWN, row.reason))
    if row.state == RETRY:
        steps.append(Step(row.not_before, "", "due again", f"attempt {row.attempt}"))
    return steps
