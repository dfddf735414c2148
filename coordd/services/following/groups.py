"""Groups for people: what their members' rows tell of them as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from coordd.core.groups.expand import Expand, group_of, how_it_ended, number_of, rows_of
from coordd.core.jobs.job import Job
from coordd.core.ledger.rows import Row
from coordd.core.ledger.sound import run_fault
from coordd.core.ledger.words import PENDING, STARTED, SUCCESS, TERMINAL
from coordd.ports import Ledger
from coordd.services.views.objects import instant

# At most this many members that did not succeed are named.
NAMED_MAX = 20


def expanded(run: str, job: Job | None) -> Expand | None:
    """What made the members if the id is that of a group, which has no row of its own; None for another run."""
    return job.expand if job is not None and run != job.name and number_of(run) is None else None


def member_rows(ledger: Ledger, run: str, expand: Expand) -> list[Row]:
    """The sound rows of a group's members. Blocking."""
    rows = map(ledger.run, rows_of(expand, run))
    return [row for row in rows if row is not None and not run_fault(row)]


def state_of(rows: Sequence[Row], total: int) -> str:
    """The group's state: pending, started (some have not ended), or how it ended."""
    states = [row.state for row in rows]
    if len(rows) == total and TERMINAL.issuperset(states):
        return how_it_ended(states)
    return PENDING if set(states) <= {PENDING} else STARTED


def counted(rows: Iterable[Row]) -> dict[str, int]:
    """How many members are in which state."""
    return dict(sorted(Counter(row.state for row in rows).items()))


def sentence(run: str, rows: Sequence[Row], total: int) -> str:
    """What there is to say of a group."""
    told = ", ".join(f"{number} {state}" for state, number in counted(rows).items())
    left = f", {total - len(rows)} not recorded yet" if len(rows) < total else ""
    named = [row.run for row in rows if row.state in TERMINAL and row.state != SUCCESS][:NAMED_MAX]
    why = f" `coordctl why '{named[0]}'` says why one did not succeed." if named else ""
    return f"{run} is a group of {total} runs: {told}{left}.{why}"


def one_of_them(run: str, total: int) -> str:
    """For a method that is about one run."""
    return f"{run} is a group of {total} runs: expected one of them, for example {run}~0"


def view(run: str, rows: Sequence[Row], shown: dict[str, Any], total: int) -> dict[str, Any]:
    """A group, as in `run.show`. ``rows``: of its members, at least one; ``shown``: the view of the first of them."""
    state = state_of(rows, total)
    begun = [row.started_at for row in rows if row.started_at]
    ended_at = max(row.ended_at for row in rows) if state in TERMINAL else 0.0
    return {
        **shown,
        **dict.fromkeys(("node", "token", "application_id", "exit_code", "received_at", "args", "commit_token")),
        "id": run,
        "state": state,
        "attempt": 0,
        "started_at": instant(min(begun, default=0.0)),
        "ended_at": instant(ended_at),
        "runtime_s": round(ended_at - min(begun), 3) if begun and ended_at else None,
        "reason": sentence(run, rows, total),
        "group": None,
        "members": {
            "total": total,
            "states": counted(rows),
            "unsuccessful": [row.run for row in rows if row.state in TERMINAL and row.state != SUCCESS][:NAMED_MAX],
        },
        "attempts": [],
        "timeline": [],
    }


def of_member(run: str) -> str | None:
    """The group of a member; None for another run."""
    group = group_of(run)
    return group if group != run else None
