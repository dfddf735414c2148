"""A bus of sealed envelopes around any bus. Messages leave sealed; a message without a valid seal is dropped unread."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coordd.core.wire.envelope import REFUSALS, EnvelopeError, Envelopes, Keyring
from coordd.ports import Bus
from coordd.services.metrics.unread import Unread


class SealedBus:
    """ports.Bus. The inner bus must accept messages of core.wire.envelope.SEALED_BYTES_MAX."""

    def __init__(self, bus: Bus, keyring: Keyring, cluster: str, *, inbox: str) -> None:
        """``inbox`` is our own full_hostname."""
        self.bus = bus
        self.url = bus.url
        self._cluster = cluster
        self._inbox = inbox
        self.refused = dict.fromkeys(REFUSALS, 0)
        self.unread = Unread("envelope.refused")
        self._deliver: Callable[[bytes], None] = lambda _data: None
        self.use(keyring)

    def use(self, keyring: Keyring) -> None:
        """Use a new keyring, from the next message on."""
        self.keyring = keyring
        self._envelopes = Envelopes(keyring, self._cluster, self._inbox)

    @property
    def state(self) -> str:
        return self.bus.state

    @property
    def error(self) -> str:
        return self.bus.error

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Seal for everybody. Raises LocalProtocolError when the message is empty or over 64 KiB."""
        self.bus.publish(self._envelopes.seal(data), confirmed)

    def send(self, name: str, data: bytes) -> None:
        """Seal for one full_hostname. Raises as ``publish`` does."""
        self.bus.send(name, self._envelopes.seal(data, name))

    def peers(self) -> Sequence[str] | None:
        """The inner bus's state."""
        return self.bus.peers()

    async def receive(
        self,
        deliver: Callable[[bytes], None],
        dead: Callable[[str], None],
        changed: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        """Receive as the inner bus does; invalid envelopes are counted in ``refused`` and dropped."""
        self._deliver = deliver
        await self.bus.receive(self._open, dead, changed)

    def _open(self, data: bytes) -> None:
        if data:
            try:
                data = self._envelopes.open(data)
            except EnvelopeError as exc:
                self._refuse(exc, data)
                return
        self._deliver(data)

    def _refuse(self, exc: EnvelopeError, data: bytes) -> None:
        self.refused[exc.kind] += 1
        self.unread.add(str(exc), data, self.refused[exc.kind], kind=exc.kind)

    def statistics(self) -> dict[str, int]:
        """The inner bus's counters, and how many messages were refused, by reason."""
        return {**self.bus.statistics(), **{f"refused_{kind}": count for kind, count in self.refused.items() if count}}

    def close(self) -> None:
        """Close the inner bus."""
        self.bus.close()
