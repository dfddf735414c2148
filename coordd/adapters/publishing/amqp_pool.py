"""The connections to brokers that the messages of this node share.

The addresses of a `[publish.NAME]`, with their login, are a *set of brokers*; destinations with equal sets share its
connections. A set has at most CONNECTIONS_MAX of them, each with one message at a time. A message goes to the first
address that takes it; an address that has failed is tried last, until it has rested.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

from coordd.adapters.bus.aio import OnDemand, ours
from coordd.adapters.bus.where import of_amqp, split
from coordd.adapters.publishing.amqp_link import AmqpLink, NotTakenError, message_of, open_link
from coordd.config.hooks.delivery import Delivered, Delivery
from coordd.core.redaction import redact_text

# Connections of one set. A node makes at most 8 calls of hooks and publishers at a time (core/runs: HOOKS_HERE).
CONNECTIONS_MAX = 4

# How long (seconds) a connection that nobody uses is kept.
IDLE_S = 60.0

# How long (seconds) an address that has failed is tried last; the time doubles.
REST_FIRST_S, REST_MAX_S = 5.0, 60.0

# Characters of a library's sentence that are shown.
WHY_LENGTH = 500

# As the exit codes of calls (services/hooks/call.py).
REFUSED, TIMED_OUT = 1, 124


class Resting(NamedTuple):
    """An address that has failed. ``until``: in the loop's time. ``s``: how long it rests."""

    until: float
    s: float
    why: str


class Idle(NamedTuple):
    """A connection that nobody uses. ``place``: of its address in the set. ``since``: in the loop's time."""

    place: int
    link: AmqpLink
    since: float


class Set:
    """The brokers of equal addresses. It belongs to the asyncio thread; others may read ``open`` and ``resting``."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(CONNECTIONS_MAX)  # those who wait get one in their order
        self.idle: list[Idle] = []
        self.open = 0  # connections, the idle ones among them
        self.users = 0  # messages that wait or are on their way
        self.resting: dict[int, Resting] = {}
        self.farewells: set[asyncio.Task[None]] = set()  # the loop itself has only weak references to them

    def order(self, count: int, now: float) -> list[int]:
        """The places of the addresses as they are tried: those that rest come last."""
        late = {place for place, one in self.resting.items() if one.until > now}
        return sorted(range(count), key=lambda place: (place in late, place))

    def failed(self, place: int, why: str, now: float) -> None:
        """The address does not take messages."""
        before = self.resting.get(place)
        rests_s = min(REST_MAX_S, 2 * before.s) if before is not None else REST_FIRST_S
        self.resting[place] = Resting(now + rests_s, rests_s, why)

    def idle_at(self, place: int) -> AmqpLink | None:
        """The connection to this address that was used last, taken out; None if there is none."""
        for one in reversed(self.idle):
            if one.place == place and not one.link.closed:
                self.idle.remove(one)
                return one.link
        return None

    def drop(self, unless: Callable[[Idle], bool], most: int = CONNECTIONS_MAX) -> None:
        """Close idle connections, the oldest first."""
        for one in [one for one in self.idle if not unless(one)][:most]:
            self.idle.remove(one)
            self.close(one.link)

    def close(self, link: AmqpLink) -> None:
        """Close it, while messages go on: a broker that hangs does not answer its farewell."""
        self.open -= 1
        task = asyncio.create_task(link.close())
        self.farewells.add(task)
        task.add_done_callback(self.farewells.discard)


class AmqpPool:
    """Publishes to sets of brokers. ``publish`` and ``state`` are called from the trio thread."""

    def __init__(
        self, name: str, *, password: Callable[[str], str], tls: Callable[[str, str], ssl.SSLContext | None]
    ) -> None:
        """``name``: of the connections, for people. ``password``: in a file. ``tls``: the context for a URL and an
        authority's file. Both are called with each new connection, and may raise UnavailableError or ConfigError.
        """
        self._name = name
        self._password = password
        self._tls = tls
        self._aio = OnDemand("messages")
        self._sets: dict[tuple[str, ...], Set] = {}

    async def run(self) -> None:
        """Serve for ever."""
        await self._aio.run(self._tidy, self._close)

    async def publish(self, delivery: Delivery) -> Delivered:
        """Send one message. Raises UnavailableError when this node stops."""
        return await (await self._aio.get()).call(self._publish, delivery)

    def state(self, to: Sequence[str], password_file: str, tls_ca: str) -> tuple[int, dict[str, str]]:
        """Of the set with these addresses: how many connections are open, and why addresses are tried last."""
        one = self._sets.get(_key(to, password_file, tls_ca))
        if one is None:
            return 0, {}
        return one.open, {
            of_amqp(split(to[place])[0]).shown: rest.why for place, rest in sorted(dict(one.resting).items())
        }

    # ---- the asyncio thread

    async def _publish(self, delivery: Delivery) -> Delivered:
        brokers = self._sets.setdefault(_key(delivery.to, delivery.password_file, delivery.tls_ca), Set())
        deadline = asyncio.get_running_loop().time() + delivery.timeout_s
        brokers.users += 1
        try:
            async with asyncio.timeout_at(deadline):
                await brokers.permits.acquire()
        except TimeoutError:
            why = f"none of {CONNECTIONS_MAX} connections was free within {delivery.timeout_s:g} s"
            return Delivered(TIMED_OUT, (why,), delivery.repeated)
        else:
            try:
                return await self._offered(brokers, delivery, deadline)
            finally:
                brokers.permits.release()
        finally:
            brokers.users -= 1

    async def _offered(self, brokers: Set, delivery: Delivery, deadline: float) -> Delivered:
        """Offer it to each address in turn."""
        loop = asyncio.get_running_loop()
        said: list[str] = []
        code, repeated = REFUSED, delivery.repeated
        order = brokers.order(len(delivery.to), loop.time())
        for turn, place in enumerate(order):
            url, where = split(delivery.to[place])
            share_s = max(0.0, deadline - loop.time()) / (len(order) - turn)
            sent = False
            try:
                async with asyncio.timeout(share_s), self._link(brokers, place, url, delivery) as link:
                    message = message_of(
                        delivery.ident, delivery.body, kind=delivery.kind, until_s=delivery.until_s, repeated=repeated
                    )
                    sent = True
                    done = await link.publish(message, where)
            except NotTakenError as exc:
                code, why = REFUSED, str(exc)
            except TimeoutError:
                code, why = TIMED_OUT, f"took nothing within {share_s:.3g} s"
                repeated = repeated or sent
                brokers.failed(place, why, loop.time())
            except (Exception, asyncio.CancelledError) as exc:  # the library raises of many kinds
                if isinstance(exc, asyncio.CancelledError) and ours():
                    raise
                code, why = REFUSED, redact_text(str(exc))[:WHY_LENGTH] or type(exc).__name__
                repeated = repeated or sent
                brokers.failed(place, why, loop.time())
            else:
                brokers.resting.pop(place, None)
                return Delivered(0, (*said, f"{redact_text(delivery.to[place])}: {done}"), repeated)
            said.append(f"{redact_text(delivery.to[place])} cannot be used: {why}")
        return Delivered(code, tuple(said), repeated)

    @contextlib.asynccontextmanager
    async def _link(self, brokers: Set, place: int, url: str, delivery: Delivery) -> AsyncIterator[AmqpLink]:
        """A connection for one message. One that has failed is closed, the others are kept."""
        link = brokers.idle_at(place)
        if link is None:
            brokers.open += 1
            try:
                brokers.drop(lambda one: not one.link.closed)
                if brokers.open > CONNECTIONS_MAX:  # there is an idle one: up to that many have a permit
                    brokers.drop(lambda _one: False, most=1)
                secret = self._password(delivery.password_file) if delivery.password_file else ""
                link = await open_link(url, secret, self._tls(url, delivery.tls_ca), self._name)
            except BaseException:
                brokers.open -= 1
                raise
        try:
            yield link
        except NotTakenError:
            brokers.idle.append(Idle(place, link, asyncio.get_running_loop().time()))
            raise
        except BaseException:
            brokers.close(link)
            raise
        brokers.idle.append(Idle(place, link, asyncio.get_running_loop().time()))

    async def _tidy(self) -> None:
        """Close what nobody uses, for ever."""
        while True:
            await asyncio.sleep(IDLE_S / 4)
            now = asyncio.get_running_loop().time()
            for key, one in list(self._sets.items()):
                one.drop(lambda idle, now=now: idle.since > now - IDLE_S and not idle.link.closed)  # type: ignore[misc]  # a default binds the loop's variable
                for place, rest in list(one.resting.items()):
                    if rest.until < now - REST_MAX_S:  # nobody has asked for long
                        del one.resting[place]
                if not (one.open or one.users or one.resting):
                    self._sets.pop(key)

    async def _close(self) -> None:
        for one in self._sets.values():
            one.drop(lambda _idle: False)
            await asyncio.gather(*one.farewells, return_exceptions=True)


def _key(to: Sequence[str], password_file: str, tls_ca: str) -> tuple[str, ...]:
    return (*[split(one)[0] for one in to], password_file, tls_ca)
