"""Elections: who tries first. Statements in, a succession out.

One election per (run, attempt). Every node states its candidacy ONCE: the opener's statement rides on its
``worker-elect``, everyone else's on their single ``worker-elect-ack``. A node decides when it has the
statement of every alive member of the frozen view, or at the timeout with what it has. The outcome is the
sorted list of those who stand: lowest (load class, clock, full_hostname) first.

**An election decides nothing about safety.** Nodes whose views differ reach different successions; then two
ask the ledger at the same time, and the ledger grants one. A wrong rank costs one call.

From Celery's gossip the vocabulary and the stamp; not its counting: there a node decides on the *number* of
acks, which names nobody, remembers nothing and never times out.
"""

from __future__ import annotations

import hashlib

from coordd.core.wire.events import Action, Candidacy

# Above this many members nobody says anything: ranks come from a hash that all can compute.
ELECTION_MEMBERS_MAX = 16

# Decided elections are remembered, only to answer repeats.
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
        self.missing = set(view)  # the frozen view, less those who have stated or were lost
        self.statements: dict[str, Candidacy] = {}
        self.succession: tuple[str, ...] | None = None
        self.decided_at = 0.0

    def state(self, name: str, candidacy: Candidacy) -> bool:
        """Take one node's statement; the first of each counts. True when it was the last one missing."""
        if self.succession is not None or name in self.statements:
            return False
        self.statements[name] = candidacy
        self.missing.discard(name)
        return not self.missing

    def lose(self, name: str) -> bool:
        """A member of the view was found lost; True when nobody is missing any more."""
        if self.succession is not None or name not in self.missing:
            return False
        self.missing.discard(name)
        return not self.missing

    def decide(self, now: float) -> tuple[str, ...]:
        """Close it: the names of those who stand, in order. Whoever is first only tries first."""
        standing = [c for c in self.statements.values() if not c.abstains]
        if len(standing) > 1:
            standing.sort(key=stamp)
        self.succession = tuple([c.name for c in standing])
        self.decided_at = now
        return self.succession

    def rank(self, name: str) -> int | None:
        """The place of a node in the succession, from 0; None when it does not stand."""
        if self.succession is None or name not in self.succession:
            return None
        return self.succession.index(name)


def stamp(candidacy: Candidacy) -> tuple[int, int, str]:
    """What elections sort by."""
    return (candidacy.load, candidacy.clock, candidacy.name)


def rendezvous(ident: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """A succession without messages: highest hash of (election, node) first (Thaler and Ravishankar, 1998)."""

    def weight(name: str) -> bytes:
        return hashlib.blake2b(f"{ident}\0{name}".encode(), digest_size=8).digest()

    return tuple(sorted(names, key=weight, reverse=True))
