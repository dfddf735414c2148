"""The names of the events that hooks are told of. The program of a call loads this file, so it imports little."""

from __future__ import annotations

from coordd.core.ledger.words import FAILURE, LOST, MISSED, REJECTED, REVOKED, SUCCESS, UNKNOWN

# The events about runs, by the state of the run; and the others.
RUN_EVENTS = tuple([f"run.{state}" for state in (SUCCESS, FAILURE, REVOKED, REJECTED, MISSED, LOST, UNKNOWN)])
# A check is in another state: those of core/checks/state.py.
CHECK_EVENTS = tuple(
    [f"check.{state}" for state in ("healthy", "degraded", "unhealthy", "unavailable", "insecure", UNKNOWN)]
)
NODE_EVENTS = ("node.joined", "node.left", "node.lost", "node.drained", "node.resumed")
_OTHERS = ("takeover", "job.late", "breaker.opened", "cluster.ready", "alarm.raised")
EVENTS = (*RUN_EVENTS, *_OTHERS, *NODE_EVENTS, *CHECK_EVENTS)
# A word that stands for several events.
ALL_OF = {"run.*": RUN_EVENTS, "node.*": NODE_EVENTS, "check.*": CHECK_EVENTS}

# A run has started: not for hooks, but for the receiver of lineage, which is called as they are.
LINEAGE_START = "lineage.start"
