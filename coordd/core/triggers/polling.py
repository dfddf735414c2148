"""Which node polls a trigger: the first of an election's succession that is there. Elections are held in terms.

Two nodes that both take themselves for the poller harm nothing: each arrival is one row of the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from coordd.core.election import rendezvous

TOPIC = "trigger"

# The length of a term (seconds). The winner of the term before is ahead in the next one, unless its look failed.
TERM_S = 60.0


def subject(job: str, trigger: str) -> str:
    """What elections about a trigger are named after."""
    return f"trigger/{job}/{trigger}"


def term(of: str, wall: float) -> int:
    """The number of the present term; those of different subjects do not begin at the same time."""
    shift = int.from_bytes(hashlib.blake2b(of.encode(), digest_size=4).digest(), "big") % int(TERM_S)
    return int((wall + shift) // TERM_S)


def election_of(of: str, number: int) -> str:
    """The id of a term's election."""
    return f"{of}/{number}"


def poller(ident: str, succession: Sequence[str], eligible: Collection[str]) -> str:
    """The node that polls (full_hostname), or "". ``eligible``: the nodes that are alive and have the trigger.

    If no winner is there any more, a hash that all nodes can compute decides until the next term.
    """
    for name in succession:
        if name in eligible:
            return name
    return next(iter(rendezvous(ident, tuple(eligible))), "")
