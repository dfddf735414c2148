"""A lease as one node has seen it itself: the only ground on which it may call the lease lapsed."""

from __future__ import annotations

from coordd.core.context import Settings
from coordd.core.ledger.requests import Watched
from coordd.core.ledger.words import RHO, Token


class LeaseWatch:
    """How long this node itself has seen the same (token, beat), through answers that were never too far apart."""

    __slots__ = ("beat", "last_at", "lease_s", "since", "token")

    def __init__(self, token: Token, beat: int, lease_s: float, now: float) -> None:
        self.token = token
        self.beat = beat
        self.lease_s = lease_s
        self.since = self.last_at = now

    def watched(self, now: float) -> Watched:
        """What a claim says of it."""
        return Watched(token=self.token, beat=self.beat, unchanged_s=max(0.0, now - self.since))

    def ripe_at(self) -> float:
        """When a whole lease, and a little more, will have been watched."""
        return self.since + self.lease_s * (1 + 2 * RHO) + 0.001


def watched_on(
    watch: LeaseWatch | None, token: Token, beat: int, lease_s: float, settings: Settings, now: float
) -> LeaseWatch:
    """An answer shows the holder's (token, beat): the watch continues, or a new one begins."""
    apart_s = (settings.renew_interval_s + settings.ledger_timeout_s) * (1 + 2 * RHO)
    if watch is not None and (watch.token, watch.beat) == (token, beat) and now - watch.last_at <= apart_s:
        watch.last_at = now
        return watch
    return LeaseWatch(token, beat, lease_s, now)
