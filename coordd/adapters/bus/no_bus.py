"""No bus: `[cluster] gossip = false`. Nobody is told anything, and nobody is heard; the ledger alone decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio


class NoBus:
    """What takes the place of a bus."""

    url = ""
    state = "off"
    error = ""

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Nobody waits for it, so nothing is kept."""
        if confirmed is not None:
            confirmed(True)

    def send(self, name: str, data: bytes) -> None:
        """There is no other node to send to."""

    def peers(self) -> Sequence[str]:
        return ()

    async def receive(
        self,
        deliver: Callable[[bytes], None],
        dead: Callable[[str], None],
        changed: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        await trio.sleep_forever()

    def statistics(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """There is nothing to close."""
