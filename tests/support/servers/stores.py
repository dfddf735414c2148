"""Redis: one server, or a primary with replicas under Sentinel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from support.servers.certs import Certificates
from support.servers.server import HERE, Place, Server, ServerError, free_port, wait


class Redis(Server):
    """One Redis server with an append-only file. ``settings`` are those of redis.conf, with "_" for "-"."""

    program, package = "redis-server", "redis-server"

    def __init__(self, *, tls: Certificates | None = None, place: Place = HERE, **settings: str) -> None:
        super().__init__(place)
        self.settings = {"appendonly": "yes", "save": "", **settings}
        self.tls_port = free_port() if tls else 0
        if tls:
            self.settings |= {
                "tls_port": str(self.tls_port),
                "tls_ca_cert_file": tls.ca,
                "tls_cert_file": tls.cert,
                "tls_key_file": tls.key,
                "tls_auth_clients": "optional",
            }

    @property
    def url(self) -> str:
        return f"redis://{self.host}:{self.port}/0"

    @property
    def tls_url(self) -> str:
        return f"rediss://{self.host}:{self.tls_port}/0"

    def argv(self) -> list[str]:
        named = [
            word
            for key, value in self.settings.items()
            for word in (f"--{key.replace('_', '-')}", *(value.split() or [""]))
        ]
        return [
            self.program,
            "--port",
            str(self.port),
            "--bind",
            self.host,
            "--protected-mode",
            "no",
            "--dir",
            str(self.directory),
            "--repl-diskless-sync-delay",
            "0",
            *named,
        ]

    def answers(self) -> bool:
        return self.asked(b"PING\r\n", 7)[:7] in (b"+PONG\r\n", b"-NOAUTH")

    def cli(self, *args: str) -> str:
        """Run redis-cli. Raises ServerError if it cannot connect. An error of the server is part of the answer."""
        password = self.settings.get("requirepass")
        environment = self.environment() | ({"REDISCLI_AUTH": password} if password else {})
        return self.output_of(["redis-cli", "-h", self.host, "-p", str(self.port), *args], environment)

    def replicates(self, other: Redis | None) -> None:
        """Make this server a replica of ``other``; with None make it a primary."""
        self.cli("REPLICAOF", *((other.host, str(other.port)) if other else ("NO", "ONE")))


class Sentinel(Server):
    """One sentinel. It watches the primary under the name "m"."""

    program, package = "redis-sentinel", "redis-sentinel"

    def __init__(self, primary: Redis, down_after_ms: int, failover_timeout_ms: int, place: Place = HERE) -> None:
        super().__init__(place)
        lines = [
            f"port {self.port}",
            f"bind {self.host}",
            "protected-mode no",
            f"dir {self.directory}",
            f"sentinel monitor m {primary.host} {primary.port} 2",
            f"sentinel down-after-milliseconds m {down_after_ms}",
            f"sentinel failover-timeout m {failover_timeout_ms}",
            "sentinel parallel-syncs m 1",
        ]
        (self.directory / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def argv(self) -> list[str]:
        return [self.program, str(self.directory / "sentinel.conf")]

    def answers(self) -> bool:
        return self.asked(b"PING\r\n", 7) == b"+PONG\r\n"

    def cli(self, *args: str) -> str:
        return self.output_of(["redis-cli", "-h", self.host, "-p", str(self.port), *args], self.environment())


class Sentinels:
    """A primary, its replicas, and three sentinels that watch them (by default with Sentinel's own timings)."""

    def __init__(
        self,
        replicas: int = 2,
        *,
        down_after_ms: int = 30_000,
        failover_timeout_ms: int = 180_000,
        places: Sequence[Place] = (),
        **settings: str,
    ) -> None:
        """``places``: those of the primary, the replicas and the sentinels, in this order."""
        first, *others = places or [HERE] * (replicas + 4)
        self.primary = Redis(tls=None, place=first, **settings)
        following = {"replicaof": f"{self.primary.host} {self.primary.port}", **settings}
        self.replicas = [Redis(tls=None, place=place, **following) for place in others[:replicas]]
        self.sentinels = [
            Sentinel(self.primary, down_after_ms, failover_timeout_ms, place) for place in others[replicas:]
        ]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join([f'{one.host}:{one.port}' for one in self.sentinels])}/m/0"

    def start(self) -> None:
        """Start all servers, and wait until the replicas follow and each sentinel knows all others."""
        for server in (self.primary, *self.replicas):
            server.start()
        count = f"connected_slaves:{len(self.replicas)}"
        wait(lambda: count in self.primary.cli("INFO", "replication").split(), "the replicas follow")
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            wait(lambda sentinel=sentinel: self._knows_all(sentinel), "the sentinels know each other")  # type: ignore[misc]  # a default binds the loop's variable

    def _knows_all(self, sentinel: Sentinel) -> bool:
        words = sentinel.cli("SENTINEL", "MASTER", "m").split()
        known = dict(zip(words[::2], words[1::2], strict=False))
        return (known.get("num-slaves"), known.get("num-other-sentinels")) == (str(len(self.replicas)), "2")

    def master(self) -> Redis:
        """The server that the sentinels now name as the primary."""
        for sentinel in self.sentinels:
            if sentinel.up:
                host, port = sentinel.cli("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "m").split()
                return next(one for one in (self.primary, *self.replicas) if (one.host, str(one.port)) == (host, port))
        raise ServerError("no sentinel is up")

    def close(self) -> None:
        for server in (*self.sentinels, self.primary, *self.replicas):
            server.close()


@contextlib.contextmanager
def redis(**settings: object) -> Iterator[Redis]:
    """A running Redis. The settings are those of redis.conf."""
    server = Redis(**settings)  # type: ignore[arg-type]  # passed on
    with contextlib.closing(server):
        server.start()
        yield server


@contextlib.contextmanager
def sentinels(replicas: int = 2, **options: object) -> Iterator[Sentinels]:
    """A running, replicated Redis under Sentinel. The options are those of Sentinels."""
    made = Sentinels(replicas, **options)  # type: ignore[arg-type]  # passed on
    with contextlib.closing(made):
        made.start()
        yield made
