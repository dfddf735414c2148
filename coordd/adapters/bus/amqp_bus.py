"""The bus over RabbitMQ: a fanout exchange per cluster, and one bounded exclusive queue per node.

A node receives everything through its queue. The queue is bound to the cluster's fanout exchange and, with the node's
full_hostname as the key, to the direct exchange of inboxes. The queue dies with the connection, so a mandatory message
to an inbox that is returned proves that the node's connection is gone.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence

from coordd.adapters.bus.amqp_session import AmqpSession, Lanes, Names
from coordd.adapters.bus.brokered_bus import BrokeredBus, Session
from coordd.adapters.bus.where import of_amqp
from coordd.errors import ConfigError

# AMQP's limit for a name.
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
        lane: bool = True,
    ) -> None:
        """Nothing is connected before ``receive``.

        Args: urls: ``amqp(s)://[USER[:PASSWORD]@]HOST[:PORT][/VHOST]``, tried in turn, in random order. full_hostname:
        our name, ``hostname.pid``. cluster: its name is part of the exchanges' names. password: called at each attempt;
        unless it returns "", it replaces the URL's password. May raise UnavailableError. tls: for amqps; None: the
        system's certificates. May be replaced (``bus.tls``) for the next connection. heartbeat_s: after twice this
        silence the connection is closed. rng: for the order of addresses and the pauses. uvloop: use it if it is
        installed. lane: trio reads and writes the socket, and gossip crosses no thread.

        Raises:
            ConfigError: a url or a name cannot be used.
        """
        super().__init__(
            urls,
            full_hostname,
            address=of_amqp,
            password=password,
            tls=tls,
            heartbeat_s=heartbeat_s,
            rng=rng,
            uvloop=uvloop,
        )
        self._lane = lane
        self._exchange = f"coordd.{cluster}"
        self._inboxes = f"coordd.{cluster}.inbox"
        for name in (f"{self._exchange}.{full_hostname}.{0:08x}", self._inboxes):
            if len(name.encode()) > NAME_BYTES_MAX:
                raise ConfigError(f"[cluster] name and [node] name are too long together for RabbitMQ: {name}")

    async def _open(self, url: str) -> Session:
        # A new name for each connection: the broker may not have noticed yet that the last one is gone.
        queue = f"{self._exchange}.{self.full_hostname}.{self._rng.getrandbits(32):08x}"
        names = Names(self._exchange, self._inboxes, self.full_hostname, queue)
        credentials = self._credentials(url)
        lanes = None
        if self._lane:
            assert self._aio is not None
            lanes = Lanes(self._aio, self._deliver_all)
        session = AmqpSession(self._where[url], names, self, round(self._heartbeat_s), lanes)
        await session.open(*credentials)
        return session
