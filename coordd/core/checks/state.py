"""How results become the state of a check.

    unknown --a good result--> healthy
    any --``fail_after`` results in a row that are worse--> the last of them
    any --``pass_after`` results in a row that are better--> the last of them

A certificate that is not valid, and a page that does not exist, are not accidents of a moment: such a result counts at
once. A look that failed itself says nothing: the state stays, until LOST_AFTER such looks in a row.
"""

from __future__ import annotations

import msgspec

HEALTHY, DEGRADED, UNHEALTHY = "healthy", "degraded", "unhealthy"
INSECURE, UNAVAILABLE, UNKNOWN = "insecure", "unavailable", "unknown"

# From good to bad. "unavailable" is permanent: what is looked at is not there at all.
RANKS = {HEALTHY: 0, DEGRADED: 1, UNHEALTHY: 2, UNAVAILABLE: 3, INSECURE: 4}
STATES = (*RANKS, UNKNOWN)

# In these a check is bad: what it says of jobs is done.
BAD = frozenset((UNHEALTHY, UNAVAILABLE, INSECURE))

# These count at once.
DEFINITE = frozenset((UNAVAILABLE, INSECURE))

# After as many looks in a row that failed themselves, nothing is known any more.
LOST_AFTER = 10

# Characters of the text and of the figures that a look brought.
TEXT_MAX = 300


class Result(msgspec.Struct, frozen=True):
    """One look: its state (``unknown``: the look itself failed), a line for people, and figures (performance data)."""

    state: str
    text: str = ""
    figures: str = ""


class Standing(msgspec.Struct, frozen=True, array_like=True):
    """How a check stands. Times are Unix seconds.

    ``worse``, ``better``: results in a row that are worse, or better, than the state. ``lost``: looks in a row that
    failed themselves, and ``problem`` why. ``text`` and ``figures`` are those of the last result. ``was``: the state
    before this one; nodes that never saw that one tell the change as those that did.
    """

    state: str = UNKNOWN
    since: float = 0.0
    at: float = 0.0  # of the last look
    text: str = ""
    figures: str = ""
    worse: int = 0
    better: int = 0
    lost: int = 0
    problem: str = ""
    was: str = UNKNOWN  # at the end: earlier versions read what is before it

    @property
    def is_good(self) -> bool:
        """True if what it says of jobs is over: it is known not to be bad, or nobody can tell any more."""
        return not self.is_bad and (self.state != UNKNOWN or self.lost >= LOST_AFTER)

    @property
    def is_bad(self) -> bool:
        """True if what it says of jobs must be done."""
        return self.state in BAD

    def looked_at(self, at: float) -> Standing:
        """The same after one more look, whose result is not judged yet."""
        return msgspec.structs.replace(self, at=at)


def after(standing: Standing, result: Result, at: float, *, fail_after: int, pass_after: int) -> Standing:
    """How the check stands after a look ``at`` that instant (Unix seconds)."""
    replace = msgspec.structs.replace
    if result.state not in RANKS:
        lost = standing.lost + 1
        problem = result.text[:TEXT_MAX] or "the look failed"
        if lost < LOST_AFTER or standing.state == UNKNOWN:
            return replace(standing, at=at, lost=lost, problem=problem)
        return Standing(since=at, at=at, lost=lost, problem=problem, was=standing.state)
    seen = replace(standing, at=at, text=result.text[:TEXT_MAX], figures=result.figures[:TEXT_MAX], lost=0, problem="")
    state, rank = standing.state, RANKS[result.state]
    present = RANKS.get(state, -1)  # unknown: everything is worse, so only what is bad must be repeated
    if rank == present:
        return replace(seen, worse=0, better=0)
    if rank > present:
        seen = replace(seen, worse=seen.worse + 1, better=0)
        first = state == UNKNOWN and result.state == HEALTHY
        moves = first or result.state in DEFINITE or seen.worse >= fail_after
    else:
        seen = replace(seen, worse=0, better=seen.better + 1)
        moves = seen.better >= pass_after
    return replace(seen, state=result.state, since=at, worse=0, better=0, was=state) if moves else seen


def pack(standing: Standing) -> str:
    """As one line of text, for the ledger."""
    return msgspec.json.encode(standing).decode()


def unpack(text: str) -> Standing:
    """The inverse. A damaged text, or one of a later version, is one of which nothing is known."""
    try:
        standing = msgspec.json.decode(text, type=Standing)
    except (msgspec.MsgspecError, ValueError):
        return Standing()
    return standing if standing.state in STATES else Standing()


def worst(*states: str) -> str:
    """The worst of these states; unknown ones do not count beside others."""
    known = [state for state in states if state in RANKS]
    return max(known, key=RANKS.__getitem__) if known else UNKNOWN
