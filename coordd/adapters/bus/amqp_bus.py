"""The bus over RabbitMQ: a fanout exchange per cluster, and one bounded exclusive queue per node.

All that a node hears comes through its queue, which is bound to the cluster's fanout exchange and, with the node's
full_hostname as the key, to its direct exchange of inboxes. The queue dies with the connection: a mandatory message
to an inbox that comes back is the proof that the node's connection is gone.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl, unquote, urlsplit

from coordd.adapters.bus.amqp_session import AmqpSession, Names
from coordd.adapters.bus.brokered_bus import BrokeredBus, Session, Where
from coordd.config.addresses import UNVERIFIED
from coordd.config.values import redact_url
from coordd.errors import ConfigError

PORTS = {"amqp": 5672, "amqps": 5671}

# What AMQP allows for a name.
NAME_BYTES_MAX = 255


class AmqpBus(BrokeredBus):
    """The port's Bus over RabbitMQ."""

    def __init__(
        self,
        urls: Sequence[str],
        full_hostname: str,
        *,
        cluster: str,
        password: Callable[[], str] | None = None,
        tls: ssl.SSLContext | None = None,
        heartbeat_s: float = 5.0,
        rng: random.Random | None = None,
        uvloop: bool = True,
    ) -> None:
        """Nothing is connected before ``receive``.

        Args:
            urls: ``amqp(s)://[USER[:PASSWORD]@]HOST[:PORT][/VHOST]``, tried in turn, in an order of our own.
            full_hostname: our name, ``hostname.pid``.
            cluster: its name is part of the exchanges' names.
            password: asked anew at each attempt; unless it is empty it is taken rather than the URL's. May raise
                UnavailableError.
            tls: for amqps; None: the system's certificates. May be replaced (``bus.tls``) for the next connection.
            heartbeat_s: a broker that is silent for twice as long is given up.
            rng: for the order of addresses and the pauses.
            uvloop: use it where it is installed.

        Raises:
            ConfigError: a url or a name cannot be used.
        """
        super().__init__(
            urls,
            full_hostname,
            address=address,
            password=password,
            tls=tls,
            heartbeat_s=heartbeat_s,
            rng=rng,
            uvloop=uvloop,
        )
        self._exchange = f"coordd.{cluster}"
        self._inboxes = f"coordd.{cluster}.inbox"
        for name in (f"{self._exchange}.{full_hostname}.{0:08x}", self._inboxes):
            if len(name.encode()) > NAME_BYTES_MAX:
                raise ConfigError(f"[cluster] name and [node] name are too long together for RabbitMQ: {name}")

    async def _open(self, url: str) -> Session:
        # A name of its own for each connection: the broker may not have noticed yet that the last one is gone.
        queue = f"{self._exchange}.{self.full_hostname}.{self._rng.getrandbits(32):08x}"
        names = Names(self._exchange, self._inboxes, self.full_hostname, queue)
        credentials = self._credentials(url)
        session = AmqpSession(self._where[url], names, self, round(self._heartbeat_s))
        await session.open(*credentials)
        return session


def address(url: str) -> Where:
    """The parts of a broker's URL. Raises ConfigError when it cannot be used."""
    shown = redact_url(url)
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS[parts.scheme]
    except (ValueError, KeyError) as exc:
        raise ConfigError(f"[cluster] bus: {shown} is not amqp(s)://[USER@]HOST[:PORT][/VHOST]") from exc
    if not parts.hostname:
        raise ConfigError(f"[cluster] bus: {shown} names no host")
    unknown = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if name.lower() not in UNVERIFIED]
    if unknown or parts.fragment:
        raise ConfigError(
            f"[cluster] bus: {shown}: {unknown or '#'} is not known there; TLS and passwords have settings"
        )
    vhost = unquote(parts.path[1:]) or "/"
    return Where(
        f"RabbitMQ at {parts.hostname}:{port}",
        parts.hostname,
        port,
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        vhost,
    )
