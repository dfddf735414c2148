"""Judges of policies, which see each operation of the ledger: one file for each subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from coordd.core.ledger.words import Policy
from simulator.judging.children.again import Again
from simulator.judging.children.joined import Joined
from simulator.judging.children.whole import Whole
from simulator.judging.feed.changes import Changes
from simulator.judging.policies.arrived import Arrived
from simulator.judging.policies.blackouts import Blackouts
from simulator.judging.policies.broken import Broken
from simulator.judging.policies.checked import Checked
from simulator.judging.policies.elsewhere import Elsewhere
from simulator.judging.policies.pauses import Pauses
from simulator.judging.policies.proposals import Proposals
from simulator.judging.policies.queues import Queues
from simulator.judging.policies.skips import Skips

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coordd.core.election import Election
    from coordd.core.ledger.answers import Answer
    from coordd.core.ledger.rows import Row
    from coordd.core.ledger.runner_requests import Request
    from simulator.judging.judge import Child
    from simulator.world import Host, World


class Watch(Protocol):
    """One judge of one policy. It keeps its own account of the world, and calls ``world.violate``."""

    def operation(self, host: Host, request: Request[Any], answer: Answer, before: Row | None, row: Row | None) -> None:
        """An operation was executed. ``before`` and ``row``: the row of its run, if it is about a run."""


def watches(world: World) -> tuple[Watch, ...]:
    """The judges of one world."""
    kinds = (Blackouts, Queues, Pauses, Elsewhere, Skips, Broken, Proposals, Joined, Again, Checked, Changes, Whole)
    begun = (kind(world) for kind in kinds)
    return world.holds, *begun, world.told, world.arrived, world.mingled


def put_back(granted: str, others: Iterable[str]) -> set[str]:
    """The policies (packed) under which a witness may put back what was granted under that one. ``others``: those of
    the run's grants. Beside an attempt that may be held with an unknown end, the run is not tried again.
    """
    held = any(other.startswith("hold") for other in others)
    return {granted, Policy.unpack(granted).held().pack()} if held else {granted}


def launched(world: World, child: Child) -> None:
    """A program was started."""
    for watch in world.watches:
        if isinstance(watch, Pauses | Whole):
            watch.launched(child)


def decided(world: World, election: Election) -> None:
    """A node has decided an election."""
    for watch in world.watches:
        if isinstance(watch, Elsewhere):
            watch.decided(election)


def ended(world: World) -> None:
    """The world is over."""
    for watch in world.watches:
        if isinstance(watch, Broken | Proposals | Joined | Again | Arrived | Checked):
            watch.end()


def waited(world: World) -> None:
    """The faults are over, and the world waits for what is unsettled."""
    for watch in world.watches:
        if isinstance(watch, Joined | Again | Arrived | Checked):
            watch.wait()


def unsettled(world: World) -> bool:
    """True if something is still to be done."""
    return any(isinstance(watch, Joined | Again | Arrived | Checked) and watch.unsettled() for watch in world.watches)
