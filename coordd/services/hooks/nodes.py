"""What hooks are told of nodes: who came, left, was lost, and was drained by a person. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from coordd.core.ledger.rows import OF_NODE, Hold
from coordd.core.ready import Notice
from coordd.services.hooks import happenings
from coordd.services.hooks.happenings import Happening

# The notices of a node about its peers.
ABOUT_PEERS = frozenset(("node.joined", "node.left", "node.lost"))

# Up to this many peers that were lost are remembered, until they are back.
LOST_MAX = 1000


class Nodes:
    """Remembers which nodes were lost or drained. All nodes that notice the same say it under the same key."""

    def __init__(self) -> None:
        self._lost: dict[str, None] = {}  # HOSTNAME.PID
        self._drained: Mapping[str, Hold] | None = None  # by hostname; None: before the first look

    def noticed(self, notice: Notice, incarnation: str, at: float, *, ready: bool) -> Happening | None:
        """A peer came, left or was lost. ``incarnation``: of that peer; "": nobody knows it any more. ``ready``: not so
        while a node starts: it meets peers then that were there before.
        """
        peer = str(notice.fields["peer"])
        if notice.event == "node.lost":
            self._lost[peer] = None
            while len(self._lost) > LOST_MAX:
                del self._lost[next(iter(self._lost))]
            return happenings.node_lost(peer, at)
        back = peer in self._lost
        self._lost.pop(peer, None)
        if notice.event == "node.left":
            return happenings.node_left(peer, incarnation, at)
        return happenings.node_joined(peer, "" if back else incarnation, at) if ready or back else None

    def looked(self, holds: Mapping[str, Hold]) -> Iterable[Happening]:
        """The holds in the ledger: which nodes are drained since, and which are not any more."""
        drained = {key.removeprefix(OF_NODE): hold for key, hold in holds.items() if key.startswith(OF_NODE)}
        before, self._drained = self._drained, drained
        if before is None:
            return
        for name in sorted(before.keys() | drained.keys()):
            was, is_ = before.get(name), drained.get(name)
            if is_ is not None and (was is None or was.at != is_.at):
                yield happenings.node_drained(name, is_)
            elif was is not None and is_ is None:
                yield happenings.node_resumed(name, was)
