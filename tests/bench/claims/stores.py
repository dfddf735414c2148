"""The stores that are compared: Debian's packages, started on free loopback ports with data directories of their own.

Each one answers only when the claim is on the disk, as far as it has a setting for that; ``durable`` says which.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.components import Component, MissingError, ensure
from support.servers import HERE, Redis, Server, free_port
from support.servers.postgres import PG_BIN, Postgres

JARS = Path("/usr/share/java")


class Etcd(Server):
    """One etcd, a cluster of its own."""

    program, package = "etcd", "etcd-server"

    def __init__(self) -> None:
        super().__init__(HERE)
        self.peers = f"http://{self.host}:{free_port()}"

    def argv(self) -> list[str]:
        clients = f"http://{self.host}:{self.port}"
        settings = {
            "data-dir": f"{self.directory}/data",
            "listen-client-urls": clients,
            "advertise-client-urls": clients,
            "listen-peer-urls": self.peers,
            "initial-advertise-peer-urls": self.peers,
            "initial-cluster": f"default={self.peers}",
        }
        return ["etcd", *[f"--{name}={value}" for name, value in settings.items()]]

    def answers(self) -> bool:
        return b'"health":"true"' in self.asked(b"GET /health HTTP/1.0\r\n\r\n", 4096)


class Zookeeper(Server):
    """One ZooKeeper, standalone."""

    program, package = "zookeeper", "zookeeper"

    def __init__(self) -> None:
        super().__init__(HERE)
        lines = [
            f"dataDir={self.directory}/data",
            f"clientPort={self.port}",
            f"clientPortAddress={self.host}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=ruok,srvr",
            "maxClientCnxns=0",
        ]
        (self.directory / "zoo.cfg").write_text("\n".join(lines) + "\n")

    def argv(self) -> list[str]:
        path = f"{JARS}/zookeeper.jar:{JARS}/slf4j-nop.jar"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", "-Xmx256m", "-cp", path, main, f"{self.directory}/zoo.cfg"]

    def answers(self) -> bool:
        return b"Mode: standalone" in self.asked(b"srvr", 4096)


class Nats(Server):
    """One NATS server with JetStream."""

    program, package = "nats-server", "nats-server"

    def __init__(self) -> None:
        super().__init__(HERE)
        text = f'listen: "{self.host}:{self.port}"\njetstream {{ store_dir: "{self.directory}/data" }}\n'
        (self.directory / "nats.conf").write_text(text)

    def argv(self) -> list[str]:
        return ["nats-server", "-c", f"{self.directory}/nats.conf"]

    def answers(self) -> bool:
        return self.asked(b"", 5) == b"INFO "


@dataclass(frozen=True)
class Store:
    """One store. ``kind`` names its client, ``address`` is for that client, ``directory`` has all of its data."""

    name: str
    kind: str
    address: str
    directory: Path
    durable: str
    server: Server | None = None

    def at(self, lease_s: float) -> tuple[str, str, float]:
        """The store as a contender's command names it."""
        return (self.kind, self.address, lease_s)


def _ours_redis() -> Store:
    server = _redis()
    durable = "appendfsync always"
    return Store("coordd, Redis", "ours_redis", f"{server.url} bench", server.directory, durable, server)


def _ours_sqlite() -> Store:
    directory = Path(tempfile.mkdtemp(prefix="cd-srv-", dir="/tmp"))
    return Store("coordd, SQLite", "ours_sqlite", f"{directory}/ledger.db", directory, "WAL, synchronous=FULL")


def _plain_lock() -> Store:
    server = _redis()
    return Store("Redis, SET NX PX", "plain_lock", server.url, server.directory, "appendfsync always", server)


def _etcd() -> Store:
    server = Etcd()
    server.start()
    durable = "its default: fsync before the answer"
    return Store("etcd", "etcd", f"{server.host}:{server.port}", server.directory, durable, server)


def _zookeeper() -> Store:
    server = Zookeeper()
    server.start()
    durable = "forceSync=yes, the default"
    return Store("ZooKeeper", "zookeeper", f"{server.host}:{server.port}", server.directory, durable, server)


def _advisory() -> Store:
    server = Postgres()
    server.start()
    durable = "nothing is written, so nothing is synced"
    return Store("PostgreSQL, advisory lock", "advisory", server.address, server.directory, durable, server)


def _skip_locked() -> Store:
    server = Postgres()
    server.start()
    durable = "fsync=on, synchronous_commit=on"
    return Store("PostgreSQL, SKIP LOCKED", "skip_locked", server.address, server.directory, durable, server)


def _nats() -> Store:
    server = Nats()
    server.start()
    durable = "NOT equal: 2.9 has no setting that syncs before the answer"
    address = f"nats://{server.host}:{server.port}"
    return Store("NATS KV", "nats", address, server.directory, durable, server)


def _redis() -> Redis:
    server = Redis(appendfsync="always", auto_aof_rewrite_percentage="0")
    server.start()
    return server


POSTGRES = Component("postgres", "postgresql-15", str(PG_BIN / "postgres"))
REDIS = Component("redis-server", "redis-server")

# What each needs, and how it is started.
MAKERS: dict[str, tuple[Component | None, Callable[[], Store]]] = {
    "coordd, Redis": (REDIS, _ours_redis),
    "coordd, SQLite": (None, _ours_sqlite),
    "etcd": (Component("etcd", "etcd-server"), _etcd),
    "ZooKeeper": (Component("zookeeper", "zookeeper", "/usr/share/zookeeper/bin/zkServer.sh"), _zookeeper),
    "PostgreSQL, advisory lock": (POSTGRES, _advisory),
    "PostgreSQL, SKIP LOCKED": (POSTGRES, _skip_locked),
    "NATS KV": (Component("nats-server", "nats-server"), _nats),
    "Redis, SET NX PX": (REDIS, _plain_lock),
}


@contextlib.contextmanager
def stores() -> Iterator[tuple[list[Store], dict[str, str]]]:
    """All stores that are installed or can be, running, and by name why the others are missing."""
    made: list[Store] = []
    missing: dict[str, str] = {}
    try:
        for name, (component, make) in MAKERS.items():
            try:
                ensure([component] if component else [])
            except MissingError as exc:
                missing[name] = str(exc)
            else:
                made.append(make())
        yield made, missing
    finally:
        for store in made:
            if store.server is None:
                shutil.rmtree(store.directory, ignore_errors=True)
            else:
                store.server.close()
