"""The common part of the buses over a broker: queues between trio and asyncio, and a connection that always reconnects.

The half that the core sees (``publish``, ``send``, ``receive``) is in the trio thread; the half that the broker sees
(``Session``) is in the asyncio thread. All messages of one tick cross together, and leave together.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import trio

from coordd.adapters.bus.aio import Aio, Crossing, open_aio, ours
from coordd.adapters.bus.where import Where
from coordd.config.addresses import ENCRYPTED, unverified
from coordd.core.redaction import redact_text
from coordd.core.wire.envelope import SEALED_BYTES_MAX
from coordd.core.wire.events import OTHERS_RETURN_S
from coordd.errors import ConfigError, CoorddError, LocalProtocolError

STARTING = "starting"
CONNECTED = "connected"
DISCONNECTED = "disconnected"

# Maximum number of outgoing messages. A tick makes a handful. More wait only if the broker does not accept them, and
# such old gossip helps nobody.
OUTGOING_LENGTH_MAX = 10_000
OUTGOING_BYTES_MAX = 16 * 1024 * 1024

# Maximum number of incoming messages that wait for a busy core; beyond it the oldest are dropped.
INCOMING_LENGTH_MAX = 10_000
INCOMING_BYTES_MAX = 16 * 1024 * 1024

# Gossip must be back within 3 s of a broker's return: the longest pause plus one attempt.
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 2.0
ATTEMPT_S = 3.0

# After a connection of this length (seconds) the pauses start again at the minimum.
GOOD_AFTER_S = 5.0

# Timeout (seconds) for sending the last messages and closing.
CLOSE_S = 1.0


def _believing(tls: ssl.SSLContext) -> ssl.SSLContext:
    """TLS for an address that switches verification off; all other addresses verify.

    Our own certificate is never shown to an unverified server.
    """
    believing = ssl.create_default_context()
    believing.minimum_version = tls.minimum_version
    believing.check_hostname = False
    believing.verify_mode = ssl.CERT_NONE
    return believing


class Outgoing(NamedTuple):
    """An outgoing message: to the inbox of ``name``, or to all others if ``name`` is empty."""

    name: str
    data: bytes
    confirmed: Callable[[bool], None] | None


# Sends an unconfirmed message, to a name or to all others, in the trio thread; never blocks. False: there is no room.
SayHere = Callable[[str, bytes], bool]


class Session(Protocol):
    """One usable connection. All methods run in the asyncio thread, except ``say_here``."""

    over: asyncio.Future[str]  # done when the connection is lost; its result is the reason for people

    @property
    def writable(self) -> bool:
        """False while the broker accepts nothing: then messages wait, within limits."""

    def write(self, batch: Sequence[Outgoing]) -> None:
        """Send; never blocks. ``Listener.settled`` is called exactly once for each message with ``confirmed``."""

    @property
    def say_here(self) -> SayHere | None:
        """How unconfirmed messages are sent in the trio thread. None: by ``write``, like the others."""

    async def close(self) -> None:
        """Flush, then close; unconfirmed messages count as lost. Never raises."""


class Listener(Protocol):
    """The events of a session, in the asyncio thread."""

    def heard(self, data: bytes) -> None: ...
    def rejected(self) -> None: ...
    def nobody_at(self, name: str) -> None: ...
    def settled(self, confirmed: Callable[[bool], None], arrived: bool) -> None: ...
    def blocked(self, reason: str) -> None: ...
    def writable(self) -> None: ...


class BrokeredBus:
    """ports.Bus over a broker; a subclass says how a session is opened."""

    def __init__(
        self,
        urls: Sequence[str],
        full_hostname: str,
        *,
        address: Callable[[str], Where],
        password: Callable[[], str] | None,
        tls: ssl.SSLContext | None,
        heartbeat_s: float,
        rng: random.Random | None,
        uvloop: bool,
    ) -> None:
        """``address`` splits a URL, or raises ConfigError; the other arguments are the subclass's own."""
        if not urls:
            raise ConfigError("[cluster] bus: no address")
        self.url = ", ".join([redact_text(url) for url in urls])
        self.state = STARTING
        self.error = ""
        self.full_hostname = full_hostname
        self.tls = tls
        self._urls = list(urls)
        self._where = {url: address(url) for url in urls}
        self._password = password
        self._heartbeat_s = max(1.0, heartbeat_s)
        self._rng = rng or random.SystemRandom()
        self._uvloop = uvloop
        self._closed = False
        self._receiving = False
        self._aio: Aio | None = None
        self._deliver: Callable[[bytes], None] = lambda _data: None
        self._dead: Callable[[str], None] = lambda _name: None
        self._changed: Callable[[bool], None] = lambda _up: None
        self._say_here: SayHere | None = None  # of the session in use
        self._outgoing: Crossing[Outgoing] = Crossing(OUTGOING_LENGTH_MAX, OUTGOING_BYTES_MAX, self._wake_aio)
        self._incoming: Crossing[bytes] = Crossing(INCOMING_LENGTH_MAX, INCOMING_BYTES_MAX, self._wake_trio)
        self._session: Session | None = None  # this and the following belong to the asyncio thread
        self._sessions = 0
        self._since = 0.0
        self._blocked = ""
        # Only one thread increments each counter.
        self._said = dict.fromkeys(("published", "bytes", "dropped", "delivered", "sent"), 0)
        self._seen = dict.fromkeys(("sent", "rejected", "unsent", "overrun", "connections"), 0)

    async def _open(self, url: str) -> Session:
        """Connect, and declare everything from the start.

        Raises UnavailableError or ConfigError with a sentence: what was expected, what was found, and what to do.
        """
        raise NotImplementedError

    def _credentials(self, url: str) -> tuple[str, ssl.SSLContext | None]:
        """The password ("": none) and the TLS (None: none) of the next connection. Raises UnavailableError."""
        tls = None
        if url.partition("://")[0] in ENCRYPTED:
            tls = self.tls or ssl.create_default_context()
            if unverified(url):
                tls = _believing(tls)
        return (self._password() if self._password is not None else "") or self._where[url].password, tls

    # ---- the port, in the trio thread

    def publish(self, data: bytes, confirmed: Callable[[bool], None] | None = None) -> None:
        """Send to every other node; never blocks.

        Without ``confirmed``, a message is dropped and counted if there is no connection or no room. Messages with
        ``confirmed`` keep their order, and so do those without; there is no order between the two kinds. Raises
        LocalProtocolError when the message is empty, or over 64 KiB and the envelope.
        """
        self._say("", data, confirmed)

    def send(self, name: str, data: bytes) -> None:
        """Send to one full_hostname; ``dead`` is called if nobody listens there. Raises as ``publish`` does."""
        self._say(name, data, None)

    def _say(self, name: str, data: bytes, confirmed: Callable[[bool], None] | None) -> None:
        if not 0 < len(data) <= SEALED_BYTES_MAX:
            raise LocalProtocolError(f"a message of {len(data)} bytes; 1 to {SEALED_BYTES_MAX} can be sent")
        said = self._said
        said["published"] += 1
        if confirmed is None and self._say_here is not None and self.state == CONNECTED:
            sent = self._say_here(name, data)
            said["sent"] += sent
            said["bytes"] += len(data) * sent
            said["dropped"] += not sent
            return
        if self.state == CONNECTED and self._outgoing.put(Outgoing(name, data, confirmed), len(data)):
            said["bytes"] += len(data)
            return
        said["dropped"] += 1
        if confirmed is not None:
            confirmed(False)

    def peers(self) -> Sequence[str] | None:
        """A broker does not know its peers."""
        return None

    async def receive(
        self,
        deliver: Callable[[bytes], None],
        dead: Callable[[str], None],
        changed: Callable[[bool], None] = lambda _up: None,
    ) -> None:
        """Stay connected for ever: ``deliver`` each message, then b"" when a burst is over, also after ``dead``.

        None of the three is ever called from inside ``publish`` or ``send``; their exceptions are raised here.
        """
        assert self._aio is None, "receive runs once"
        self._deliver, self._dead, self._changed = deliver, dead, changed
        try:
            async with open_aio("bus", uvloop=self._uvloop) as self._aio:
                self._receiving = not self._closed
                self._aio.start(self._stay_connected)
                try:
                    await trio.sleep_forever()
                finally:
                    self._receiving = False  # from here on, only the fate of the last messages is reported
        finally:
            self.state = DISCONNECTED
            for out in self._outgoing.take(OUTGOING_LENGTH_MAX):
                if out.confirmed is not None:
                    out.confirmed(False)

    def close(self) -> None:
        """Close: nothing is sent or delivered any more. May be called twice."""
        self._closed = True
        self._receiving = False
        self.state = DISCONNECTED
        if self._aio is not None:
            self._aio.to_aio(self._end_session)

    def statistics(self) -> dict[str, int]:
        """Counters.

        published: calls of publish and send. bytes: total of the accepted messages. sent: given to the broker.
        delivered: given to our caller. dropped: our messages without a connection or room, and incoming ones that the
        core took too slowly. rejected: too large messages of others. connections: made since the start.
        """
        said, seen = self._said, self._seen
        return {
            **said,
            **seen,
            "sent": said["sent"] + seen["sent"],
            "dropped": said["dropped"] + seen["unsent"] + seen["overrun"],
            "waiting": len(self._outgoing) + len(self._incoming),
        }

    def _take_in(self) -> None:
        """Deliver waiting messages; runs between trio's tasks."""
        if not self._receiving or self._aio is None:
            return
        self._deliver_all(self._incoming.take())
        if len(self._incoming):
            self._wake_trio()

    def _deliver_all(self, batch: list[bytes]) -> None:
        if not self._receiving or self._aio is None or not batch:
            return
        try:
            self._said["delivered"] += len(batch)
            deliver = self._deliver
            for data in batch:
                deliver(data)
            deliver(b"")
        except Exception as exc:  # raised from ``receive`` instead: here it would end trio itself
            self._aio.fail(exc)

    def _use_lane(self, say_here: SayHere | None) -> None:
        self._say_here = say_here

    def _went_up(self) -> None:
        if self._receiving:
            self.state, self.error = CONNECTED, ""
            self._changed(True)

    def _went_down(self, reason: str) -> None:
        was = self.state
        self.state, self.error = DISCONNECTED, reason
        if was == CONNECTED and self._receiving:
            self._changed(False)

    def _tell_dead(self, name: str) -> None:
        if self._receiving:
            self._dead(name)
            self._deliver(b"")

    # ---- wakers

    def _wake_aio(self) -> None:
        if self._aio is not None:
            self._aio.to_aio(self._flush)

    def _wake_trio(self) -> None:
        if self._aio is not None:
            self._aio.wake(self._take_in)

    # ---- Listener, in the asyncio thread

    def heard(self, data: bytes) -> None:
        """A message from another node."""
        self._seen["overrun"] += self._incoming.put_newest(data, len(data))

    def rejected(self) -> None:
        """A message that was too large to be read."""
        self._seen["rejected"] += 1

    def nobody_at(self, name: str) -> None:
        """Nobody listens at this inbox."""
        assert self._aio is not None
        if self._sessions == 1 or time.monotonic() - self._since > OTHERS_RETURN_S:
            self._aio.to_trio(lambda: self._tell_dead(name))

    def settled(self, confirmed: Callable[[bool], None], arrived: bool) -> None:
        """The result of a confirmed publish."""
        assert self._aio is not None
        self._aio.to_trio(lambda: confirmed(arrived))

    def blocked(self, reason: str) -> None:
        """The broker accepts no messages for now; with "", it accepts them again."""
        assert self._aio is not None
        if reason and not self._blocked:
            self._aio.to_trio(lambda: self._went_down(reason))
        elif not reason and self._blocked:
            self._aio.to_trio(self._went_up)
        self._blocked = reason

    def writable(self) -> None:
        """There is room for outgoing messages again."""
        self._flush()

    def _flush(self) -> None:
        """Send all waiting messages in one call."""
        session = self._session
        if session is not None and not session.writable and not self._blocked:
            return  # the queue has a limit, and waits for ``writable``
        batch = self._outgoing.take(OUTGOING_LENGTH_MAX)
        if session is not None and not self._blocked:
            self._seen["sent"] += len(batch)
            session.write(batch)
            return
        for out in batch:
            self._seen["unsent"] += 1
            if out.confirmed is not None:
                self.settled(out.confirmed, arrived=False)

    def _end_session(self) -> None:
        if self._session is not None and not self._session.over.done():
            self._session.over.set_result("it was closed")

    # ---- the connection

    async def _stay_connected(self) -> None:
        """Try one address after the other, for ever; pause after each round without a connection."""
        assert self._aio is not None
        urls = list(self._urls)
        self._rng.shuffle(urls)
        failures = 0
        while not self._closed:
            reasons: dict[str, str] = {}
            for url in urls:
                try:
                    async with asyncio.timeout(ATTEMPT_S):
                        session = await self._open(url)
                except CoorddError as exc:
                    reasons[url] = str(exc)
                except TimeoutError:
                    reasons[url] = (
                        f"{redact_text(url)} did not answer within {ATTEMPT_S:.0f} s: is it a broker, and is it up?"
                    )
                except asyncio.CancelledError:
                    if ours():
                        raise
                    reasons[url] = f"{self._where[url].shown} closed the connection while it was made"
                except Exception as exc:  # whatever a library raises at one address, the others are tried
                    reasons[url] = (
                        f"{self._where[url].shown} cannot be used: {type(exc).__name__}: {redact_text(str(exc))}"
                    )
                else:
                    reason, lasted_s = await self._use(session)
                    reasons = {url: reason}
                    if lasted_s >= GOOD_AFTER_S:
                        failures = 0
                    break
                said = "; ".join(reasons.values())
                self._aio.to_trio(lambda said=said: self._went_down(said))  # type: ignore[misc]  # bound now
            urls.append(urls.pop(0))
            failures += 1
            pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(failures - 1, 10))
            await asyncio.sleep(pause_s * (0.5 + self._rng.random() / 2))

    async def _use(self, session: Session) -> tuple[str, float]:
        """Use a connection until it is lost; returns the reason, and how many seconds it lasted."""
        assert self._aio is not None
        self._since = time.monotonic()
        self._sessions += 1
        self._seen["connections"] += 1
        self._session, self._blocked = session, ""
        self._aio.to_trio(lambda: self._use_lane(session.say_here))
        self._aio.to_trio(self._went_up)
        try:
            reason = await asyncio.shield(session.over)
        finally:
            self._aio.to_trio(lambda: self._use_lane(None))
            self._flush()  # at a clean end the last messages still leave
            self._session = None
            await asyncio.shield(asyncio.ensure_future(_close(session)))
        self._aio.to_trio(lambda: self._went_down(reason))
        self._flush()  # messages that came too late are settled
        return reason, time.monotonic() - self._since


async def _close(session: Session) -> None:
    with contextlib.suppress(TimeoutError):  # the session leaves nothing open
        async with asyncio.timeout(CLOSE_S):
            await session.close()
