"""What `doctor` says about the triggers that this node polls."""

from __future__ import annotations

from coordd.services.control.doctor import OK, WARN, Check, check
from coordd.services.triggering.service import Triggering

# So many triggers with a problem are named.
NAMED_MAX = 20


def trigger_checks(triggering: Triggering) -> list[Check]:
    """One line for each trigger with a problem, and one for all of them if there are any."""
    polled = triggering.polled()
    told = [
        check(f"trigger {one.job}/{one.trigger.name}", WARN, one.problem, "coordctl trigger show; see docs/runbook.md")
        for one in polled
        if one.problem
    ][:NAMED_MAX]
    told += [
        check(
            f"dead messages of {one.job}/{one.trigger.name}",
            WARN,
            f"{one.last.dead} messages could start nothing",
            "coordctl deadletter list; replay or discard each; see docs/runbook.md",
        )
        for one in polled
        if one.last.dead
    ][:NAMED_MAX]
    if (calls := triggering.calls) is not None:
        problem = calls.problem or "; ".join(sorted(set(calls.problems.values())))
        text = (
            problem
            or f"{len(calls.routes())} routes, {calls.taken.total()} calls taken, {calls.refused.total()} refused"
        )
        told.append(check("trigger listener", WARN if problem else OK, text, "callers try other nodes; see [triggers]"))
    if triggering.watched:
        waiting = sum(one.waiting for one in polled)
        text = f"{len(polled)} of {len(triggering.watched)} are polled by this node; {waiting} arrivals wait"
        told.append(check("triggers", OK, text, "coordctl trigger list"))
    return told
