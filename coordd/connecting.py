"""From the configuration to the bus and the ledger that it names; what it does not name is not even imported."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from coordd import keyring
from coordd.adapters import secrets
from coordd.adapters.resp import without_password
from coordd.adapters.sqlite_ledger import SqliteLedger
from coordd.adapters.unix_bus import UnixBus
from coordd.config import ClusterConfig
from coordd.core.addresses import ENCRYPTED
from coordd.core.job import Job
from coordd.errors import UnavailableError
from coordd.ports import Bus, Ledger
from coordd.services.sealed_bus import SealedBus

# What a replica that takes over may lag behind its master; the quarantine after a failover is that much longer than
# the longest lease.
REPLICA_LAG_S = 10.0

BUS_PASSWORD = "bus_password"  # noqa: S105  # the name of a systemd credential
LEDGER_PASSWORD = "ledger_password"  # noqa: S105


class Connections:
    """The bus and the ledger of one node. ``cluster`` is replaced by a reload, from the next connection on."""

    def __init__(self, cluster: ClusterConfig, full_hostname: str, ledgers: Mapping[str, str]) -> None:
        """``ledgers``: which life of each ledger (by its URL) this node saw last; one it never saw is not there.

        Raises ConfigError when something that the configuration names cannot be used.
        """
        self.cluster = cluster
        self.jobs: Callable[[], Iterable[Job]] = tuple
        self._full_hostname = full_hostname
        self._bus: Any = None  # the one inside the envelopes
        self._known: Any = None
        self._at_start = cluster
        self._ledger_mark = ledgers.get(self.ledger_url, "")
        self._ledger_seen = False
        self.bus = self._make_bus()

    @property
    def loses_connection(self) -> bool:
        """The bus has a connection that can be lost; that of one machine has none."""
        return not self.cluster.is_embedded

    @property
    def ledger_can_go_back(self) -> bool:
        """The ledger is a server, which notices that it has lost its last writes and asks its witnesses for them."""
        return self.cluster.ledger_scheme != "sqlite"

    def use(self, cluster: ClusterConfig) -> None:
        """Take over a new configuration: keys at once, passwords and certificates with the next connection.

        Raises ConfigError, and then nothing was changed.
        """
        start = self._at_start  # a reload moves neither bus nor ledger
        cluster = msgspec.structs.replace(
            cluster, name=start.name, bus=start.bus, ledger=start.ledger, ledger_timeout=start.ledger_timeout,
            unsigned=start.unsigned,
        )  # fmt: skip
        tls = self._tls(cluster)
        keys = keyring.load(cluster.keyring, os.environ) if isinstance(self.bus, SealedBus) else None
        self.cluster = cluster
        if self._bus is not None and cluster.bus_scheme in ENCRYPTED:
            self._bus.tls = tls
        if keys is not None and isinstance(self.bus, SealedBus):
            self.bus.use(keys)

    # ---- the bus

    def _make_bus(self) -> Bus:
        cluster = self.cluster
        tls = self._tls(cluster)
        if cluster.is_embedded:
            return UnixBus(cluster.bus, self._full_hostname, check_interval_s=cluster.heartbeat_interval)
        urls, common = list(cluster.bus_urls), {"cluster": cluster.name, "password": self._bus_password}
        if cluster.bus_scheme in ("amqp", "amqps"):
            from coordd.adapters.amqp_bus import AmqpBus

            self._bus = AmqpBus(urls, self._full_hostname, tls=tls, **common)  # type: ignore[arg-type]  # as named there
        else:
            from coordd.adapters.redis_bus import RedisBus

            self._bus = RedisBus(urls, self._full_hostname, tls=tls, **common)  # type: ignore[arg-type]
        bus: Bus = self._bus
        if not cluster.is_signed:
            return bus
        keys = keyring.load(cluster.keyring, os.environ)
        return SealedBus(bus, keys, cluster.name, inbox=self._full_hostname)

    def _bus_password(self) -> str:
        return secrets.password(self.cluster.bus_password_file, BUS_PASSWORD)

    def _tls(self, cluster: ClusterConfig) -> Any:
        """What a TLS connection of the bus needs, or None. The ledger reads the same files by itself, at each
        connection; they are looked at here so that bad ones stop a start or a reload."""
        if cluster.bus_scheme not in ENCRYPTED and cluster.ledger_scheme not in ENCRYPTED:
            return None
        return secrets.tls_context(cluster.tls_ca, cluster.tls_cert, cluster.tls_key, verify=cluster.verifies_tls)

    # ---- the ledger

    def open_ledger(self) -> Ledger:
        """A new connection.

        Raises UnavailableError (there may be an answer later) or ConfigError (a person must see to it).
        """
        cluster = self.cluster
        if cluster.ledger_scheme != "sqlite":
            return self._redis_ledger()
        # Only the first one may make the file: one that was lost must not begin anew unseen.
        if self._ledger_seen and not os.path.exists(cluster.ledger_path):
            raise UnavailableError(f"ledger {cluster.ledger_path}: it is gone; put it back, or restore a backup")
        ledger = SqliteLedger(cluster.ledger, timeout_s=cluster.ledger_timeout)
        self._ledger_seen = True
        return ledger

    def _redis_ledger(self) -> Ledger:
        from coordd.adapters.redis_ledger import Known, RedisLedger

        if self._known is None:
            self._known = Known(self._ledger_mark)
        ledger: Ledger = RedisLedger(
            self.cluster.ledger, self.cluster.ledger_timeout, known=self._known, **self.ledger_options()
        )
        return ledger

    @property
    def ledger_mark(self) -> str:
        """To be given to this node's next life."""
        return self._known.mark if self._known is not None else self._ledger_mark

    @property
    def ledger_url(self) -> str:
        """For runners and people: without a password."""
        url = self.cluster.ledger
        return url if self.cluster.ledger_scheme == "sqlite" else without_password(url)

    def ledger_options(self) -> dict[str, Any]:
        """What else than the URL a connection to the ledger takes; for runners too, hence paths and no secrets.

        A password that stands in the URL is the one exception. It goes to a runner through memory alone.
        """
        cluster = self.cluster
        if cluster.ledger_scheme == "sqlite":
            return {}
        leases = [cluster.lease, *(job.lease_s for job in self.jobs())]
        options: dict[str, Any] = {
            "cluster": cluster.name,
            "quarantine_s": max(leases) + REPLICA_LAG_S,
            "short_quarantine_s": 2 * cluster.renew_interval + cluster.ledger_timeout,
            "password_file": _password_path(cluster.ledger_password_file, LEDGER_PASSWORD),
            "tls_ca": cluster.tls_ca, "tls_cert": cluster.tls_cert, "tls_key": cluster.tls_key,
            "tls_verify": cluster.verifies_tls,
        }  # fmt: skip
        inline = _inline_password(cluster.ledger)
        if inline and not options["password_file"]:
            options["password"] = inline
        return options


def _inline_password(url: str) -> str:
    return unquote(urlsplit(url).netloc.rpartition("@")[0].partition(":")[2])


def _password_path(path: str, credential: str) -> str:
    """The file that holds a password: the one that is named, or the systemd credential; "" when there is none."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if path or not directory:
        return path
    found = os.path.join(directory, credential)
    return found if os.path.exists(found) else ""
