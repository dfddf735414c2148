"""Builds the bus and the ledger that the configuration names; modules for other kinds are not even imported."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from coordd.adapters import secrets
from coordd.adapters.backends import function
from coordd.adapters.backends.kept import KeptFile
from coordd.adapters.bus.no_bus import NoBus
from coordd.adapters.bus.unix_bus import UnixBus
from coordd.adapters.ledger.sqlite_ledger import SqliteLedger
from coordd.config import keyring
from coordd.config.addresses import ENCRYPTED
from coordd.config.hooks.delivery import socket_path
from coordd.config.sections import FILES, PYTHON, ClusterConfig, Config
from coordd.core.jobs.job import Job
from coordd.core.ledger.identity import Known
from coordd.core.redaction import HIDDEN, redact_text
from coordd.core.wire.envelope import RETIRED
from coordd.errors import UnavailableError
from coordd.plugins import CONFIG_BACKENDS
from coordd.ports import Bus, Ledger, Mirror, Published, RevisionStore
from coordd.services.backends.published import PublishedSource
from coordd.services.backends.source import Called, Source
from coordd.services.ledger import LedgerService
from coordd.services.publishing.passing import Brokers, Passing
from coordd.services.sealed_bus import SealedBus

# How far (seconds) a promoted replica may lag behind its master; the quarantine after a failover is that much longer
# than the longest lease.
REPLICA_LAG_S = 10.0


class Connections:
    """The bus and the ledger of one node. A reload replaces ``cluster``, from the next connection on."""

    def __init__(
        self, cluster: ClusterConfig, full_hostname: str, ledgers: Mapping[str, str], pin: tuple[str, str] = ("", "")
    ) -> None:
        """``ledgers``: the last known epoch of each ledger (by its URL) that this node has seen. ``pin``: the identity
        and the address of the ledger that it has used.

        Raises ConfigError when a configured bus or ledger cannot be used.
        """
        self.cluster = cluster
        self.jobs: Callable[[], Mapping[str, Job]] = dict  # another mapping after each reload
        self._longest: tuple[Mapping[str, Job], float] = {}, 0.0  # the jobs, and their longest lease (seconds)
        self.leased_s: Callable[[], float] = float  # the longest lease of all active attempts in the cluster
        self._full_hostname = full_hostname
        self._bus: Any = None  # the bus inside the envelopes
        self.known = Known(
            ledgers.get(self.ledger_url, ""),
            pin=pin[0],
            pinned_at=pin[1],
            address=ledger_address(cluster),
            proposal=os.urandom(8).hex(),
        )
        self._ledger_seen = False
        self.bus = self._make_bus()

    @property
    def loses_connection(self) -> bool:
        """True if the bus has a connection that can be lost; the bus of a single machine has none."""
        return self.cluster.gossip and not self.cluster.is_embedded

    @property
    def ledger_can_go_back(self) -> bool:
        """True if the ledger is a server, which notices that it has lost its last writes, and asks its witnesses for
        them.
        """
        return self.cluster.ledger_scheme != "sqlite"

    def use(self, cluster: ClusterConfig) -> None:
        """Use a new configuration with the same bus and ledger: keys at once, passwords and certificates with the next
        connection.

        Raises ConfigError, and then nothing has changed.
        """
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
        if not cluster.gossip:
            return NoBus()
        if cluster.is_embedded:
            return UnixBus(cluster.bus, self._full_hostname, check_interval_s=cluster.heartbeat_interval)
        urls, common = list(cluster.bus_urls), {"cluster": cluster.name, "password": self._bus_password}
        if cluster.bus_scheme in ("amqp", "amqps"):
            from coordd.adapters.bus.amqp_bus import AmqpBus

            self._bus = AmqpBus(urls, self._full_hostname, tls=tls, lane=cluster.fast_path, **common)  # type: ignore[arg-type]  # as named there
        else:
            from coordd.adapters.bus.redis_bus import RedisBus

            self._bus = RedisBus(urls, self._full_hostname, tls=tls, **common)  # type: ignore[arg-type]  # typed where the keywords are made
        bus: Bus = self._bus
        if not cluster.is_signed:
            return bus
        keys = keyring.load(cluster.keyring, os.environ)
        return SealedBus(bus, keys, cluster.name, inbox=self._full_hostname)

    def _bus_password(self) -> str:
        return secrets.bus_password(self.cluster)

    def _tls(self, cluster: ClusterConfig) -> Any:
        """The TLS context for connections of the bus, or None. The ledger reads the same files itself at each
        connection; they are checked here so that bad ones prevent a start or a reload.
        """
        if cluster.bus_scheme not in ENCRYPTED and cluster.ledger_scheme not in ENCRYPTED:
            return None
        return secrets.tls_context(cluster.tls_ca, cluster.tls_cert, cluster.tls_key)

    # ---- published revisions

    def seal_revision(self, number: int, digest: str) -> tuple[str, str]:
        """The id of the signing key, and its MAC of a revision; ("", "") in a cluster without keys."""
        if not isinstance(self.bus, SealedBus):
            return "", ""
        key = self.bus.keyring.signing
        return key.id, self._mac(key.secret, number, digest)

    def verify_revision(self, revision: Published, named: bool) -> str:
        """Why a revision was not published by a node of this cluster, or "". A cluster without keys believes all.

        ``named``: a person names this number to publish it again. Then its key may be retired or gone: nobody has its
        secret any more, so nobody can check the MAC.
        """
        if not isinstance(self.bus, SealedBus):
            return ""
        key = next((one for one in self.bus.keyring.keys if one.id == revision.key), None)
        if key is None or key.state == RETIRED:
            how = "not in the keyring" if key is None else "retired"
            advice = f"coordctl config show {revision.number}, then coordctl config rollback {revision.number}"
            return "" if named else f'its key "{revision.key}" is {how}: read it, and publish it again ({advice})'
        if not hmac.compare_digest(self._mac(key.secret, revision.number, revision.digest), revision.mac):
            return "its MAC is wrong: it was not published by a node of this cluster, or changed since"
        return ""

    def _mac(self, secret: bytes, number: int, digest: str) -> str:
        said = f"coordd revision\0{self.cluster.name}\0{number}\0{digest}".encode()
        return hmac.new(secret, said, "sha256").hexdigest()

    # ---- the ledger

    def open_ledger(self, known: Known | None = None) -> Ledger:
        """A new connection. ``known``: the caller's knowledge, if it is not this node.

        Raises UnavailableError (there may be an answer later) or ConfigError (a person must see to it).
        """
        cluster = self.cluster
        if cluster.ledger_scheme != "sqlite":
            return self._redis_ledger(known or self.known)
        # Only the first connection may create the file: a lost ledger must not be replaced by a new one unseen.
        if self._ledger_seen and not os.path.exists(cluster.ledger_path):
            raise UnavailableError(f"ledger {cluster.ledger_path}: it is gone; put it back, or restore a backup")
        ledger = SqliteLedger(cluster.ledger, timeout_s=cluster.ledger_timeout, known=known or self.known)
        self._ledger_seen = True
        return ledger

    def open_any_ledger(self) -> Ledger:
        """Like ``open_ledger``, but without a pin: for people who inspect or replace a ledger that is refused here."""
        return self.open_ledger(Known("-", proposal=self.known.proposal))

    def _redis_ledger(self, known: Known) -> Ledger:
        from coordd.adapters.ledger.redis_ledger import RedisLedger
        from coordd.adapters.ledger.redis_loop import RedisLoopLedger

        kind = RedisLoopLedger if self.cluster.fast_path else RedisLedger
        options = {**self.ledger_options(), "identity": "", "quarantine_s": self._quarantine_s}
        ledger: Ledger = kind(self.cluster.ledger, self.cluster.ledger_timeout, known=known, **options)
        return ledger

    @property
    def ledger_mark(self) -> str:
        """For this node's next process."""
        return self.known.epoch

    def _quarantine_s(self) -> float:
        """The longest known lease, plus the lag of a replica. A reload may bring a longer lease; an attempt keeps its
        own, even if its job is removed.
        """
        jobs, (measured, longest_s) = self.jobs(), self._longest
        if jobs is not measured:  # each request asks; thousands of jobs are not looked at each time
            longest_s = max((job.lease_s for job in jobs.values()), default=0.0)
            self._longest = jobs, longest_s
        return max(self.cluster.lease, self.leased_s(), longest_s) + REPLICA_LAG_S

    @property
    def ledger_url(self) -> str:
        """For runners and people: without a password."""
        return url_of_ledger(self.cluster)

    def ledger_options(self) -> dict[str, Any]:
        """The parameters of a ledger connection besides the URL; runners get them too, so they are paths, not secrets.

        A password in the URL is the only exception. A runner gets it through memory only.
        """
        cluster = self.cluster
        if cluster.ledger_scheme == "sqlite":
            return {"identity": self.known.pin}
        options: dict[str, Any] = {
            "cluster": cluster.name,
            "identity": self.known.pin,
            "quarantine_s": self._quarantine_s(),
            "short_quarantine_s": 2 * cluster.renew_interval + cluster.ledger_timeout,
            "password_file": secrets.password_path(cluster.ledger_password_file, secrets.LEDGER_PASSWORD),
            "tls_ca": cluster.tls_ca,
            "tls_cert": cluster.tls_cert,
            "tls_key": cluster.tls_key,
            "tls_verify": cluster.verifies_ledger,
        }
        inline = _inline_password(cluster.ledger)
        if inline and not options["password_file"]:
            options["password"] = inline
        return options


def job_source(config: Config, connections: Connections) -> Source:
    """Where the job definitions come from: [jobs] backend."""
    jobs = config.jobs
    if jobs.backend == FILES:
        return Source(config)
    kept = KeptFile(os.path.join(config.node.state_dir, "jobs-source.json"))
    if not jobs.published:
        target = jobs.call if jobs.backend == PYTHON else function.target_of(CONFIG_BACKENDS, jobs.backend)
        return Called(config, kept, target, function.ask)
    store = _revision_store(config)
    return PublishedSource(config, kept, store, connections.seal_revision, connections.verify_revision)


def _revision_store(config: Config) -> RevisionStore:
    from coordd.adapters.backends.revisions import Revisions

    cluster, jobs = config.cluster, config.jobs
    url = jobs.url or cluster.ledger
    path = jobs.password_file or ("" if jobs.url else cluster.ledger_password_file)
    return Revisions(
        url,
        cluster.name,
        password=lambda: secrets.password(path, secrets.JOBS_PASSWORD if jobs.url else secrets.LEDGER_PASSWORD),
        timeout_s=cluster.ledger_timeout,
        tls=secrets.redis_tls(url, cluster),
    )


def make_mirror(config: Config, connections: Connections) -> Mirror | None:
    """Where copies of events go, if [mirror] says so. Raises ConfigError when its address cannot be used."""
    said, node = config.mirror, config.node.name
    if not said.url:
        return None
    from coordd.adapters.mirror.amqp_mirror import AmqpMirror

    def password() -> str:
        if said.on_bus and not said.password_file:
            return secrets.bus_password(connections.cluster)
        return secrets.password(said.password_file, secrets.MIRROR_PASSWORD)

    urls = config.cluster.bus_urls if said.on_bus else (said.url,)
    # A name that no exchange of a cluster has: those have no colon.
    exchange = said.exchange or f"coordd.{config.cluster.name}:mirror"
    return AmqpMirror(
        urls, exchange, f"coordd@{node}", password=password, tls=lambda url: secrets.tls_of(url, connections.cluster)
    )


def make_passing(config: Config, ledger: LedgerService) -> Passing:
    """The connections of messages to brokers."""

    def brokers() -> Brokers:
        from coordd.adapters.publishing.amqp_pool import AmqpPool  # it loads aio-pika

        return AmqpPool(
            f"coordd messages {config.cluster.name}/{config.node.name}",
            password=lambda path: secrets.password(path, ""),
            tls=lambda url, authority: secrets.tls_of(url, ClusterConfig(tls_ca=authority)),
        )

    return Passing(socket_path(config.node.runtime_dir), brokers, ledger)


def url_of_ledger(cluster: ClusterConfig) -> str:
    """Without a password: for runners and people, and the name under which a node remembers what it has seen of it."""
    if cluster.ledger_scheme == "sqlite":
        return cluster.ledger
    return redact_text(cluster.ledger).replace(f":{HIDDEN}@", "@").replace("://@", "://")


def ledger_address(cluster: ClusterConfig) -> str:
    """The address of a ledger: hosts, database and cluster name, without user, password and options; or its file."""
    if cluster.ledger_scheme == "sqlite":
        return cluster.ledger
    parts = urlsplit(cluster.ledger)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path} cluster {cluster.name}"


def _inline_password(url: str) -> str:
    return unquote(urlsplit(url).netloc.rpartition("@")[0].partition(":")[2])
