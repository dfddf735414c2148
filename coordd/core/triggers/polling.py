"""Which node polls a trigger: the first of an election's succession that is there. Elections are held in terms.

Two nodes that both take themselves for the poller harm nothing: each arrival is one row of the ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Container, Sequence

from coordd.core.election import rendezvous

TOPIC = "trigger"

# The length of a term (seconds). The winner of the term before is ahead in the next one, unless its look failed.
TERM_S = 60.0


def subject(job: str, trigger: str) -> str:
    """What elections about a trigger are named after."""
    return f"trigger/{job}/{trigger}"


def term(of: str, wall: float) -> int:
    """The number of the present term; those of different subjects do not begin at the same time.

    ``wall``: the ledger's clock, as far as the node knows it (Unix seconds): the nodes' own may be minutes apart.
    """
    shift = int.from_bytes(hashlib.blake2b(of.encode(), digest_size=4).digest(), "big") % int(TERM_S)
    return int((wall + shift) // TERM_S)


def election_of(of: str, number: int) -> str:
    """The id of a term's election."""
    return f"{of}/{number}"


def parts_of(ident: str) -> tuple[str, str]:
    """The subject and the term in an election's id; a peer may have put anything there."""
    of, _, number = ident.rpartition("/")
    return of, number


def is_outdated(ident: str, decided: float, wall: float) -> bool:
    """True if a term begins whose election was decided (Unix seconds, by the present clock) long before.

    A clock was ahead then: the ledger's, or that of a node that had not asked it yet. It is held once more: those that
    it did not reach have another result of it, or none.
    """
    of, number = parts_of(ident)
    early_s = TERM_S / 2
    return number.isdecimal() and term(of, decided + early_s) < int(number) <= term(of, wall + early_s)


def poller(ident: str, succession: Sequence[str], there: Container[str], alike: Collection[str]) -> str:
    """The node that polls (full_hostname), or "".

    ``there``: the nodes that are alive. Who stood has the trigger, also while the job files of the nodes differ.
    ``alike``: those with the same job files. If no winner is there any more, a hash of these decides for the term.
    """
    for name in succession:
        if name in there:
            return name
    return next(iter(rendezvous(ident, tuple(alike))), "")
