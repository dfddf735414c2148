"""The states of a node, and which may follow which."""

from __future__ import annotations

STARTING = "starting"
MINGLING = "mingling"
READY = "ready"
DRAINING = "draining"
STOPPING = "stopping"

# Only ``Node._become`` changes a node's state.
MOVES: dict[str, frozenset[str]] = {
    STARTING: frozenset((MINGLING, READY, STOPPING)),
    MINGLING: frozenset((READY, STOPPING)),
    READY: frozenset((DRAINING, STOPPING)),
    DRAINING: frozenset((READY, STOPPING)),
    STOPPING: frozenset(),
}

# The log word for a change of membership.
HAPPENED = {"join": "joined", "leave": "left", "lost": "lost"}
