"""Elections: who tries first. Statements in, a succession out.

One election per (run, attempt). Every node states its candidacy ONCE: the opener's statement rides on its
``worker-elect``, everyone else's on their single ``worker-elect-ack``. A node decides when it has the
statement of every alive member of the frozen view, or at the timeout with what it has. The outcome is the
sorted list of those who stand: lowest (load class, clock, full_hostname) first.

**An election decides nothing about safety.** Nodes whose views differ reach different successions; then two
ask the ledger at the same time, and the ledger grants one. A wrong rank costs one call.

The vocabulary and the stamp are those of Celery's gossip. Its counting is not: there a node decides by the *number* of
acks, without names, memory or timeout.
"""

from __future__ import annotations

import hashlib

from coordd.core.wire.events import Action, Candidacy

# With more members than this, no messages are sent: ranks come from a hash that all nodes can compute.
ELECTION_MEMBERS_MAX = 16

# Maximum number of decided elections that are remembered, to answer repeated messages.
DECIDED_MAX = 4096


class Election:
    """One election, as one node sees it."""

    __slots__ = ("action", "decided_at", "id", "missing", "opened_at", "opened_by", "statements", "succession", "topic")

    def __init__(
        self, ident: str, topic: str, action: Action | None, opened_by: str, view: tuple[str, ...], now: float
    ) -> None:
        self.id = ident
        self.topic = topic
        self.action = action
        self.opened_by = opened_by
        self.opened_at = now
        self.missing = set(view)  # the frozen view, without nodes that have stated or were lost
        self.statements: dict[str, Candidacy] = {}
        self.succession: tuple[str, ...] | None = None
        self.decided_at = 0.0

    def is_about(self, action: Action) -> bool:
        """True if it is about the same attempt of the same run. A peer may have used its id for something else."""
        of = self.action
        return of is not None and (of.run, of.attempt) == (action.run, action.attempt)

    def state(self, name: str, candidacy: Candidacy) -> bool:
        """Take one node's statement; the first of each counts. True if it was the last missing one."""
        if self.succession is not None or name in self.statements:
            return False
        self.statements[name] = candidacy
        self.missing.discard(name)
        return not self.missing

    def lose(self, name: str) -> bool:
        """A member of the view was lost; True if no statement is missing any more."""
        if self.succession is not None or name not in self.missing:
            return False
        self.missing.discard(name)
        return not self.missing

    def decide(self, now: float) -> tuple[str, ...]:
        """Close it: returns the names of the candidates, in order. The first only tries first."""
        standing = [c for c in self.statements.values() if not c.abstains]
        if len(standing) > 1:
            standing.sort(key=stamp)
        self.succession = tuple([c.name for c in standing])
        self.decided_at = now
        return self.succession

    def rank(self, name: str) -> int | None:
        """The rank of a node in the succession, from 0; None if it is not a candidate."""
        if self.succession is None or name not in self.succession:
            return None
        return self.succession.index(name)


def stamp(candidacy: Candidacy) -> tuple[int, int, str]:
    """The sort key of a statement."""
    return (candidacy.load, candidacy.clock, candidacy.name)


def rendezvous(ident: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """A succession without messages: highest hash of (election, node) first (Thaler and Ravishankar, 1998)."""

    def weight(name: str) -> bytes:
        return hashlib.blake2b(f"{ident}\0{name}".encode(), digest_size=8).digest()

    return tuple(sorted(names, key=weight, reverse=True))
